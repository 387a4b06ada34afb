"""The blocking client; see `scanner.sync`."""

from scanner.sync import Batches, Client, Lease, Leases, Scan, Table, Writer, connect

__all__ = ["Batches", "Client", "Lease", "Leases", "Scan", "Table", "Writer", "connect"]
