"""The blocking client; see `scanner.sync`."""

from scanner.sync import (
    Batches,
    Client,
    GroupBatches,
    GroupScan,
    Lease,
    Leases,
    Scan,
    Table,
    Writer,
    connect,
)

__all__ = [
    "Batches",
    "Client",
    "GroupBatches",
    "GroupScan",
    "Lease",
    "Leases",
    "Scan",
    "Table",
    "Writer",
    "connect",
]
