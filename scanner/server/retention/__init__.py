"""What is kept and for how long: checkpoints, leases, changelogs."""
