"""The blocking twin of the client, for scripts, notebooks and Spark. Same names, same arguments, same errors.

Each client has one background thread with its own trio loop, which answers keepalives while the caller is busy. What
waits in it for a caller is bounded by the scan's credit. A client may be used by many threads at once; a scan's
batches are for one thread at a time.

    import weir.sync

    with weir.sync.connect("127.0.0.1:9123") as client:
        frame = client.table("orders").new_scan().select("id", "price").limit(10).to_pandas()
"""

from scanner.sync.client import Client, Table, Writer, connect
from scanner.sync.groups import GroupBatches, GroupScan
from scanner.sync.leases import Lease, Leases
from scanner.sync.scan import Batches, Scan
from scanner.sync.transactions import PartWriter, Transaction

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
