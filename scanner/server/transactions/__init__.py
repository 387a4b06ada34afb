"""Transactions of writers: staged, decided once, and completed by the server."""
