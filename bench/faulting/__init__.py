"""Parts of the fault campaign (`python -m bench faults`)."""
