"""Connections cut at exact places, and scans that must not notice."""
