"""The sans-IO core: bytes and `now` in, events and bytes out. No trio, clock, socket, thread or randomness."""
