"""Tables on disk: buckets of rows and their changelogs.

`interface` has the protocols and records that the rest of scanner uses; `store` implements them on RocksDB,
`memory` in memory. Only this package imports rocksdict.
"""
