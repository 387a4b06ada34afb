"""The tables that are served: their buckets, snapshots, log pins and writes."""
