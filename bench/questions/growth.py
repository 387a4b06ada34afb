"""Does anything grow faster than the rows? A table, and one with ten times as many.

Four buckets, rows of an integer key, an integer, a float and a string of four kinds, some 30 stored octets. Each size
has a server of its own. Measured are `weir load` of a Parquet file, a scan of all rows from the row store, the making
of the images, a scan of all rows from these, the first ten rows that a server which is started again answers with, a
scan whose server is killed in the middle, and the most memory that the server took.

Every scan counts the rows and adds up their keys.

What was expected: time goes with the rows, memory and the start do not.

What was found with 100 000 000 rows, on two cores that did nothing else: so it is (docs/scale.md). Images are made at
the share of a core that such work may have, so they take longer than the load.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, at_most, none_of, write_json
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server
from bench.questions.continuation.serving import ServerProcess, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from bench.harness.processes import Peer

TABLE: Final = "rows"
BUCKETS: Final = 4
TIMES: Final = 10
"""That the larger table has the rows of the smaller one."""
SLOWER_MAX: Final = 1.5
"""For each row of the larger table."""
LARGER_MAX: Final = 1.5
"""The server's memory."""
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.int32()),
        ("amount", pa.float64()),
        ("state", pa.string()),
    ]
)
_STATES: Final = pa.array(["open", "paid", "shipped", "returned"])
_GROUP_ROWS: Final = 500_000
"""Of a row group of the file."""
_FIRST_ROWS: Final = 10
_OF_ALL_ROWS: Final = {
    "load": "load_s",
    "scan of the row store": "scan_s",
    "making of images": "image_s",
    "scan of images": "image_scan_s",
}
_TIMES: Final = {**_OF_ALL_ROWS, "start to ten rows": "start_s", "scan with a killed server": "cut_s"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """A table of one size. Seconds, unless it says otherwise."""

    rows: int
    load_s: float
    scan_s: float
    """From the row store."""
    image_s: float
    """Making the images."""
    image_scan_s: float
    """From them."""
    start_s: float
    """From the start of a server until ten rows were there."""
    cut_s: float
    """A scan whose server is killed in the middle, and started again."""
    memory_bytes: int
    """Resident, the most that a server took."""
    disk_bytes: int
    """Of the data directory, images included."""
    wrong: int
    """Scans that had other rows."""


class Rows:
    """What a scan must bring: each key from 0 on, once.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._expected = count, count * (count - 1) // 2
        self.wrong = 0
        """Scans that brought something else."""

    def timed_scan(self, table: scanner.sync.Table, half_way: Callable[[], None] = lambda: None) -> float:
        """Scan all rows, with something to be done in the middle; the seconds that it took."""
        started = time.perf_counter()
        count = keys = 0
        middle = self._expected[0] // 2
        with table.new_scan().execute() as batches:
            for batch in batches:
                keys += pc.sum(batch["id"]).as_py() or 0
                if count <= middle < count + batch.num_rows:
                    half_way()
                count += batch.num_rows
        self.wrong += (count, keys) != self._expected
        return time.perf_counter() - started


def run(output: Path | None, console: Console, *, rows: int) -> list[Bar]:
    """Measure, write the JSON, and print."""
    found = []
    for count in (rows // TIMES, rows):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder), count))
    console.print(_shown(*found))
    return write_json(output, bars(*found), rows=rows, measured=found)


def bars(small: Grown, large: Grown) -> list[Bar]:
    """What must hold."""
    judged = [none_of("scans with other rows", small.wrong + large.wrong)]
    for what, name in _OF_ALL_ROWS.items():
        ratio = (getattr(large, name) / large.rows) / (getattr(small, name) / small.rows)
        judged.append(at_most(f"{what}, of {large.rows} rows over {small.rows}, each row", ratio, SLOWER_MAX))
    memory = large.memory_bytes / small.memory_bytes
    return [*judged, at_most("memory of the server, the same", memory, LARGER_MAX)]


def measure(folder: Path, count: int) -> Grown:
    """Load a table of so many rows, and read it in every way.

    Raises:
        BenchFailed: A command failed.
    """
    data, file, rows = folder / "data", folder / "rows.parquet", Rows(count)
    write_file(file, count)
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        load_s = _timed_load(file, server)
        file.unlink()
        table = client.table(TABLE)
        scan_s = rows.timed_scan(table)
        started = time.perf_counter()
        client.make_images(TABLE)
        image_s = time.perf_counter() - started
        image_scan_s = rows.timed_scan(table)
        memory_bytes = server.resident_bytes_max()
    started = time.perf_counter()
    with running_server(data) as server, scanner.sync.connect(server.endpoint) as client:
        if client.table(TABLE).new_scan().limit(_FIRST_ROWS).to_arrow().num_rows != _FIRST_ROWS:
            raise BenchFailed(f"a server that was started again has no {_FIRST_ROWS} rows")
        start_s = time.perf_counter() - started
    with (
        ServerProcess(data, Settings(images="off")) as cut,
        scanner.sync.connect(cut.endpoint) as client,
    ):

        def restart() -> None:
            cut.kill()
            cut.start()

        cut_s = rows.timed_scan(client.table(TABLE), restart)
    return Grown(
        rows=count,
        load_s=round(load_s, 2),
        scan_s=round(scan_s, 2),
        image_s=round(image_s, 2),
        image_scan_s=round(image_scan_s, 2),
        start_s=round(start_s, 2),
        cut_s=round(cut_s, 2),
        memory_bytes=memory_bytes,
        disk_bytes=_disk_bytes(data),
        wrong=rows.wrong,
    )


def write_file(file: Path, count: int) -> None:
    """Write the rows of the keys from 0 on, in their order, as Parquet."""
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for start in range(0, count, _GROUP_ROWS):
            keys = np.arange(start, min(count, start + _GROUP_ROWS))
            kinds = pa.DictionaryArray.from_arrays((keys % len(_STATES)).astype(np.int32), _STATES)
            columns = [
                keys,
                (keys * 7919 % 1_000_003).astype(np.int32),
                keys % 1000 / 8,
                kinds.cast(pa.string()),
            ]
            writer.write_table(pa.table(columns, schema=SCHEMA))


def _timed_load(file: Path, server: Peer) -> float:
    command = [str(Path(sys.executable).with_name("weir")), "load", str(file), "--table", TABLE, "-k", "id"]
    command += ["--buckets", str(BUCKETS), "-e", server.endpoint]
    started = time.perf_counter()
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise BenchFailed(f"weir load failed: {error.stderr}") from error
    return time.perf_counter() - started


def _disk_bytes(directory: Path) -> int:
    return sum(
        os.stat(Path(folder) / name).st_blocks * 512
        for folder, _, names in os.walk(directory)
        for name in names
    )


def _shown(*found: Grown) -> Table:
    shown = Table("", *(f"{each.rows:,} rows" for each in found))
    for what, name in _TIMES.items():
        shown.add_row(what, *(f"{getattr(each, name):.2f} s" for each in found))
    for what, name in (("memory of the server", "memory_bytes"), ("disk", "disk_bytes")):
        shown.add_row(what, *(f"{getattr(each, name) / 2**20:,.0f} MiB" for each in found))
    return shown
