"""What `make` uses beside pinned tools."""
