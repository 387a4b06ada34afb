"""Scans of changelogs: where they begin and end, tails that wait for commits, and a snapshot with its log behind it."""
