"""How much quicker is a whole scan that reads an image, and what is left of that as rows are changed?

A server in a process of its own, one bucket of a table of some 80 octets a row, one client. In every round the table
is scanned once from the image and once from the row store, which a row limit of as many rows as there are asks for;
then more rows are changed, spread evenly, so that every block is touched, and it is done again. Measured are the rows a
second at the client, and the CPU that the server takes for a row; medians of the rounds.

What was expected: from a fresh image the server does little but writing to the socket and reading from the page cache.
With changes in every block all rows are decoded, merged and encoded; 1 % still leaves most of the iteration away.

What was found, on two cores that six others used too, with 400 000 rows: 2.5 million rows a second from a fresh image,
0.8 from the row store, and 0.10 us of the server's CPU a row instead of 0.43. At 1 % of the rows changed both are as
quick, at 2 % the row store is. So the server reads an image while there is at most one change for fifty rows, an
update counted twice, and the later lines compare the row store with itself. The delta's merging is what costs: the keys
of whole blocks are worked out, and digests are put together stretch by stretch.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, machine
from bench.harness.server import RunningServer, running_server

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("account", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)
LOAD_ROWS = 50_000
STEPS = (0, 1, 1)
"""Per cent of the rows that are updated in front of each measurement, each time others."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """One scan."""

    rows: int
    digest: int | None
    seconds: float
    server_cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Scans of one state, in rounds."""

    changed_percent: int
    """Rows that were updated since the image."""
    image: list[Scanned]
    row_store: list[Scanned]


def run(output: Path | None, console: Console, *, rows: int, rounds: int) -> list[Bar]:
    """Measure, print, and write the JSON.

    Args:
        output: Of the JSON; None: none is written.
        console: Where the table goes.
        rows: Of the table.
        rounds: Scans of each kind and state.
    """
    with (
        tempfile.TemporaryDirectory() as data,
        running_server(Path(data) / "data") as server,
        scanner.sync.connect(server.endpoint) as client,
    ):
        table = client.create_table("rows", SCHEMA, primary_key=["id"], buckets=1)
        for start in range(0, rows, LOAD_ROWS):
            table.write(sample_rows(range(start, min(rows, start + LOAD_ROWS)), 0))
        started = time.perf_counter()
        (made,) = client.make_images("rows")
        made_s = time.perf_counter() - started
        found, changed = [], 0
        for step in STEPS:
            if step:
                table.write(sample_rows(range(changed, rows, 100 // step), step))
                changed += step
            found.append(_measure(server, table, rows, rounds, changed))
    console.print(_shown(found))
    console.print(
        f"the image took {made_s:.1f} s to make and takes {made.disk_bytes / rows:.0f} octets a row"
    )
    measured = bars(found)
    if output is not None:
        content = {
            "machine": machine(),
            "bars": [asdict(bar) for bar in measured],
            "image": asdict(made),
            "made_s": made_s,
            "measured": [asdict(each) for each in found],
        }
        output.write_text(json.dumps(content, indent=1) + "\n")
    return measured


def bars(found: list[Measured]) -> list[Bar]:
    """What must hold: the same rows and digests, and a fresh image several times as quick."""
    same = all(
        {(scan.rows, scan.digest) for scan in each.image}
        == {(scan.rows, scan.digest) for scan in each.row_store}
        for each in found
    )
    fresh = found[0]
    ratio = round(_rate(fresh.image) / _rate(fresh.row_store), 2)
    return [
        Bar("rows and digests from image and row store", same, "equal", same),
        Bar("fresh image, rows a second, by those of the row store", ratio, ">= 2", ratio >= 2),
    ]


def sample_rows(ids: range, version: int) -> pa.Table:
    """Rows of the table; those of another version differ in every column but the key and the account."""
    return pa.table(
        {
            "id": ids,
            "account": [f"account-{number % 1000:08d}" for number in ids],
            "amount": [number * 0.25 + version for number in ids],
            "note": [f"note {number:015d} of version {version:03d}" for number in ids],
        },
        schema=SCHEMA,
    )


def _measure(
    server: RunningServer, table: scanner.sync.Table, rows: int, rounds: int, changed_percent: int
) -> Measured:
    scans = {"image": table.new_scan(), "row store": table.new_scan().limit(rows)}
    found: dict[str, list[Scanned]] = {name: [] for name in scans}
    for scan in scans.values():
        _scan(server, scan)  # The first one reads what was changed.
    for _ in range(rounds):
        for name, scan in scans.items():
            found[name].append(_scan(server, scan))
    return Measured(changed_percent, found["image"], found["row store"])


def _scan(server: RunningServer, scan: scanner.sync.Scan) -> Scanned:
    process = psutil.Process(server.pid)
    cpu, started, rows = sum(process.cpu_times()[:2]), time.perf_counter(), 0
    with scan.execute() as batches:
        for batch in batches:
            rows += batch.num_rows
    seconds = time.perf_counter() - started
    digest = batches.statistics().buckets[0].digest
    return Scanned(rows, digest, seconds, sum(process.cpu_times()[:2]) - cpu)


def _rate(scans: list[Scanned]) -> float:
    return statistics.median(scan.rows / scan.seconds for scan in scans)


def _cpu_us(scans: list[Scanned]) -> float:
    return statistics.median(scan.server_cpu_s / scan.rows * 1e6 for scan in scans)


def _shown(found: list[Measured]) -> Table:
    shown = Table("changed", "image, M rows/s", "row store", "ratio", "image, server us/row", "row store")
    for each in found:
        image, row_store = _rate(each.image), _rate(each.row_store)
        shown.add_row(
            f"{each.changed_percent} %",
            f"{image / 1e6:.2f}",
            f"{row_store / 1e6:.2f}",
            f"{image / row_store:.2f}",
            f"{_cpu_us(each.image):.3f}",
            f"{_cpu_us(each.row_store):.3f}",
        )
    return shown
