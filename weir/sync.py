"""The blocking client; see `scanner.sync`."""

from scanner.sync import (
    Batches,
    Client,
    GroupBatches,
    GroupScan,
    Lease,
    Leases,
    PartWriter,
    Scan,
    Table,
    Transaction,
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
    "PartWriter",
    "Scan",
    "Table",
    "Transaction",
    "Writer",
    "connect",
]
