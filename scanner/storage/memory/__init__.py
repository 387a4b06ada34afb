"""The in-memory store: a verified fake, which passes the contract suite of the real one."""
