"""A table that the interop tests scan, whose rows differ much in size, and what is true of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import scanner.sync
from tests.support.server import RunningServer, running_server

TABLE = "blobs"
ROWS = 600
SIZES = 31
ROW_BYTES_STEP = 500
"""All rows together are more than the 4 MiB that gRPC takes in one message."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("blob", pa.binary())])


@dataclass(frozen=True, slots=True)
class Served:
    """A running server with the table in it."""

    server: RunningServer
    digest: int
    """Of a scan of all of it."""
    row_bytes: int
    """Length of the longest message that carries one row: what may be sent past the credit."""

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the server itself."""
        return self.server.endpoint

    def overrun_bytes(self) -> int:
        """The furthest that any scan was past its credit, as the server counted."""
        self.wait_released()
        return self.server.ask(lambda server: server.statistics().overrun_bytes)

    def wait_released(self) -> None:
        """Return when no scan is open any more."""
        self.server.wait_until(lambda server: not server.statistics().push_scans_open)


@contextmanager
def serving_blobs(data: Path) -> Iterator[Served]:
    """A server with the table, which is measured once with a credit that lets one row through at a time."""
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table(TABLE, SCHEMA, primary_key=["id"], buckets=1)
        blobs = [bytes(id_ * 7 % SIZES * ROW_BYTES_STEP) for id_ in range(ROWS)]
        table.write(pa.table({"id": list(range(ROWS)), "blob": blobs}, SCHEMA))
        longest = before = 0
        with table.new_scan().with_credit(1).execute() as batches:
            for batch in batches:
                assert batch.num_rows == 1
                now = batches.statistics().bytes_received
                longest, before = max(longest, now - before), now
        (bucket,) = batches.statistics().buckets
        assert bucket.rows == ROWS
        assert bucket.digest is not None
        yield Served(server, bucket.digest, longest)
