"""Scans, seen from the client: what is asked for, what arrives, and how a scan goes on after a cut."""
