"""Batch reads: what one `load()` reads, in which partitions, and how a task reads one."""
