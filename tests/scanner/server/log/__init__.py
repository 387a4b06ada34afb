"""Scans of changelogs, message by message."""
