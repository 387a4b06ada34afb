"""The pull models that the push scan is compared with, on the same transport, sources and batches."""
