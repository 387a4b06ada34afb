"""The store on RocksDB, and all that knows its files."""

from importlib import import_module

from scanner.extras import extras_needed

with extras_needed("a store on the disk"):
    import_module("rocksdict")
