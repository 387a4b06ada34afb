"""Streaming reads: a table's changes in micro-batches."""
