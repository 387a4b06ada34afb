"""Scans by pages: the sessions and snapshots that are kept between two of them."""
