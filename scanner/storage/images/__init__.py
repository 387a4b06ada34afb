"""Columnar images of buckets: their rows as of one offset as Arrow record batches, in immutable files."""
