"""Benches: one question each, answered against a running weir. `python -m bench --help` lists them."""
