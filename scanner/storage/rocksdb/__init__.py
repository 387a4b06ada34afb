"""The store on RocksDB, and all that knows its files."""
