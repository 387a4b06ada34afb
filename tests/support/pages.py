"""The table that tests read by pages, and what a server keeps between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from scanner.server.config import ScannerConfig
from tests.support.scans import sample, write, write_request

if TYPE_CHECKING:
    import transport
    from scanner.server.server import Server
    from scanner.storage.memory.store import MemoryStore

Stored: TypeAlias = "MemoryStore | Path"
"""What a server can be opened on."""

ROWS = 3000
"""Rows of the sample table."""
TABLE = pa.Table.from_batches([sample(range(ROWS))])
CONFIG = ScannerConfig(
    block_rows_max=100,
    page_snapshots_per_bucket_max=2,
    page_snapshots_max=3,
    sessions_per_bucket_max=2,
    sessions_max=3,
    session_sweep_interval_s=600.0,
    snapshot_linger_s=0,
)
"""Small blocks and caps, and nothing that outlives its scan."""


def kept(server: Server) -> int:
    """Sessions and snapshots that the server keeps between pages."""
    statistics = server.statistics()
    return statistics.sessions_open + statistics.page_snapshots_kept


async def shake(client: transport.Client) -> None:
    """Delete the first and the last rows, change every other one, and add some behind: two thirds of the bucket."""
    gone = [*range(0, ROWS, 30), ROWS - 1]
    changed = sample(range(1, ROWS - 1, 2)).set_column(
        3, "sold", pa.array([None] * (ROWS // 2 - 1), pa.bool_())
    )
    await write(
        client,
        write_request(sample(gone).select(["id"]), delete=True),
        write_request(changed),
        write_request(sample(range(ROWS, ROWS + 50))),
    )
