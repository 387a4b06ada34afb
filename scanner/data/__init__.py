"""Pure values and codecs: tables, keys, rows, filters, digests. No I/O, no network, no protobuf."""
