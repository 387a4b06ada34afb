"""The table that is scanned: orders with a running number as their key, 110 octets of Arrow a row, as in TPC-H."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import scanner.sync

if TYPE_CHECKING:
    from bench.questions.continuation.serving import ServerProcess

KEY = "id"
SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.int64(), nullable=False),
        ("customer", pa.int64()),
        ("version", pa.int64()),
        ("price", pa.float64()),
        ("note", pa.string()),
    ]
)
_SLICE_ROWS = 100_000
_QUIET_S = 0.5
_QUIET_MAX_S = 15.0


def rows_of(ids: npt.NDArray[np.int64], version: int) -> pa.RecordBatch:
    """Rows with these keys, as one version of them."""
    key = pa.array(ids)
    digits = pc.utf8_lpad(key.cast(pa.string()), 12, "0")
    tail = f"carefully final deposits of version {version:09d} sleep slyly"
    note = pc.binary_join_element_wise("order", digits, tail, "-")
    return pa.record_batch(
        [
            key,
            pa.array(ids * 7919 % 100_003),
            pa.array(np.full(len(ids), version, np.int64)),
            pa.array(ids / 4),
            note,
        ],
        schema=SCHEMA,
    )


def create(server: ServerProcess, name: str, rows: int, *, buckets: int = 1) -> None:
    """Create a table of `rows` rows with the keys 0, 1, 2, ..., and wait until its files are at rest.

    Args:
        server: Serves it.
        name: Of the table.
        rows: Above 0.
        buckets: Of the table.
    """
    with scanner.sync.connect(server.endpoint) as client:
        table = client.create_table(name, SCHEMA, primary_key=KEY, buckets=buckets)
        for start in range(0, rows, _SLICE_ROWS):
            count = min(_SLICE_ROWS, rows - start)
            table.write(rows_of(np.arange(start, start + count, dtype=np.int64), 0))
    wait_quiet(server)


def wait_quiet(server: ServerProcess) -> None:
    """Wait until compaction has nothing more to do, as far as the files tell, or for 15 s."""
    deadline = time.monotonic() + _QUIET_MAX_S
    before = server.table_file_bytes()
    since = time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < _QUIET_S:
        time.sleep(0.1)
        now = server.table_file_bytes()
        if now != before:
            before, since = now, time.monotonic()


def lost_and_repeated(ids: list[npt.NDArray[np.int64]], rows: int) -> tuple[int, int]:
    """How many keys of 0..rows-1 are not there, and how many come more than once."""
    if not ids:
        return rows, 0
    found, counts = np.unique(np.concatenate(ids), return_counts=True)
    return rows - len(found), int((counts > 1).sum())
