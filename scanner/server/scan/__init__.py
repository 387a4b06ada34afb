"""Scans by push: how one is opened, stepped, parked, and resumed by token."""
