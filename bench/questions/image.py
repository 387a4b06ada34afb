"""How much quicker is a whole scan that reads an image, and what is left of that as rows are changed?

A server in a process of its own, one bucket of a table of some 80 octets a row, one client. In every round the table
is scanned once as the server chooses and once from the row store, which a row limit of as many rows as there are asks
for. Then a new image is made and rows are changed, and it is done again: with 1, 2, 5 and 10 per cent of the rows,
spread evenly, so that every block is touched, and with a twentieth of them side by side. The changes are written in
twenty pieces, with a scan behind each, which merges anew what that write has touched. Beside the fresh image two
filters are measured: one that a hundredth of the rows passes, side by side, in a column that grows with the key, so
that the statistics of the blocks rule most of them out; and one that a thousandth passes, one row here and there, which
rules out none. Measured are the rows a second at the client, and the CPU that the server takes for a row; medians of
the rounds.

What was expected: from a fresh image the server does little but writing to the socket and reading from the page cache.
Where a block is changed all of its rows are decoded, merged and encoded.

What was found, on two cores that five others used too, with 500 000 rows and the choice taken out of the server (9
rounds), in us of the server's CPU a row; a block had 12 000 rows in the table of one bucket, and 6000 in that of four:

    rows changed, spread   fresh  0.25 %  0.5 %   1 %   2 %   4 %
    one bucket, image       0.10    0.26   0.26  0.25  0.33  0.45
                rows        0.46    0.50   0.41  0.44  0.44  0.52
    four buckets, image     0.14    0.42   0.35  0.39  0.52  0.73
                  rows      0.41    0.47   0.39  0.41  0.45  0.56

So a block that is touched costs 1.2 ms, and 0.05 us for each of its rows, and a change 2 to 4 us. The server chooses
by that (`scanner.server.scan.image_costs`); where it reads the row store, a line compares that with itself.

Since then blocks have become larger and merging cheaper, and blocks that are read again stay in memory. Idle, one
bucket, 3 rounds of this bench, M rows a second (row store) and what was read: fresh 29.5 (2.5), 1 % spread 9.0 (2.6),
2 % 7.4 (2.5), 5 % 4.7 (2.3), all from the image, and 10 % 2.1 (2.1) from the row store; 5 % together 10.1 (2.5).

Since then the second scan that shows the same changes of a block keeps it merged. In a slow phase of the machine, 3
rounds, M rows a second (behind a write): fresh 11.6, 1 % spread 16.4 (4.5), 2 % 18.1 (5.6), 5 % 15.0 (3.0), 10 % from
the row store 1.2 (1.9); 5 % together, where more is changed in a block than one read gives, 4.9 (5.3).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, at_least, write_json
from bench.harness.server import running_server

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.processes import Peer

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("account", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
    ]
)
LOAD_ROWS = 50_000
STATES: Final = {
    "fresh": (0, 1),
    "1 % spread": (1, 100),
    "2 % spread": (2, 50),
    "5 % spread": (5, 20),
    "10 % spread": (10, 10),
    "5 % together": (5, 1),
}
"""What is updated since the image in front of each measurement: so many per cent of the rows, one of so many."""
FRESH_SHARE_MIN: Final = {"1 % spread": 0.3, "5 % together": 0.3}
"""Rows a second with those changes, by those of a fresh image, at least."""
QUICKER_MIN: Final = 0.9
"""Rows a second as the server chooses, by those of the row store, at least."""
PIECES: Final = 20
"""Writes of an update; a scan behind each reads what was changed, as scans beside a writer do."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """One scan."""

    rows: int
    digest: int | None
    read_from: str
    """`image` or `now`, which is the row store, as the server said."""
    seconds: float
    server_cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Scans of one state, in rounds."""

    changed: str
    """What was updated since the image; or the filter."""
    chosen: list[Scanned]
    """As the server chose to read."""
    row_store: list[Scanned]
    behind_writes: list[Scanned] = field(default_factory=list)
    """As the server chose to read, each right behind a write of a twentieth of the changes."""

    @property
    def read_from(self) -> str:
        """What the server chose, in most rounds."""
        return statistics.mode(scan.read_from for scan in self.chosen)


def run(output: Path | None, console: Console, *, rows: int, rounds: int) -> list[Bar]:
    """Measure, write the JSON, and print."""
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
        found = []
        for version, (name, (percent, every)) in enumerate(STATES.items()):
            if version:
                client.make_images("rows")
            ids = range(0, rows * percent // 100 * every, every)
            behind_writes = []
            for piece in range(PIECES if percent else 0):
                table.write(sample_rows(ids[piece::PIECES], version))
                behind_writes.append(_scan(server, table.new_scan()))
            measured = _measure(server, table.new_scan(), rows, rounds, name)
            found.append(replace(measured, behind_writes=behind_writes))
            if not version:
                filtered = [
                    _measure(server, table.new_scan().where(where), rows, rounds, where)
                    for where in (f"amount < {rows // 400}", "account = 'account-00000007'")
                ]
    judged = bars(found) + filter_bars(filtered)
    write_json(output, judged, image=made, made_s=made_s, measured=found, filtered=filtered)
    console.print(_shown(found))
    console.print(_filters_shown(filtered, rows))
    console.print(
        f"the image took {made_s:.1f} s to make and takes {made.disk_bytes / rows:.0f} octets a row"
    )
    return judged


def bars(found: list[Measured]) -> list[Bar]:
    """What must hold: the same rows and digests, and a fresh image several times as quick."""
    same = all(map(_is_same, found))
    fresh = found[0]
    ratio = _rate(fresh.chosen) / _rate(fresh.row_store)
    return [
        Bar("rows and digests from image and row store", same, "equal", same),
        at_least("fresh image, rows a second, by those of the row store", ratio, 2),
        *(_slower(each, fresh) for each in found if each.changed in FRESH_SHARE_MIN),
        *map(_quicker, found),
    ]


def filter_bars(found: list[Measured]) -> list[Bar]:
    """What must hold of filters: the same rows and digests, and less work where blocks are ruled out.

    Args:
        found: Of a filter that rules out most blocks, and of one that rules out none.
    """
    same = all(map(_is_same, found))
    skipping, scattered = (statistics.median(scan.server_cpu_s for scan in each.chosen) for each in found)
    ratio = scattered / max(skipping, 1e-3)
    return [
        Bar("filtered rows and digests from image and row store", same, "equal", same),
        at_least("server's CPU where no block is ruled out, by that where most are", ratio, 2),
    ]


def _is_same(each: Measured) -> bool:
    return {(scan.rows, scan.digest) for scan in each.chosen} == {
        (scan.rows, scan.digest) for scan in each.row_store
    }


def _slower(changed: Measured, fresh: Measured) -> Bar:
    ratio, least = _rate(changed.chosen) / _rate(fresh.chosen), FRESH_SHARE_MIN[changed.changed]
    return at_least(f"{changed.changed}, rows a second, by those of a fresh image", ratio, least)


def _quicker(each: Measured) -> Bar:
    ratio = _rate(each.chosen) / _rate(each.row_store)
    name = f"{each.changed}, read from {each.read_from}: rows a second, by those of the row store"
    return at_least(name, ratio, QUICKER_MIN)


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


def _measure(server: Peer, scan: scanner.sync.Scan, rows: int, rounds: int, changed: str) -> Measured:
    scans = {"chosen": scan, "row store": scan.limit(rows)}
    found: dict[str, list[Scanned]] = {name: [] for name in scans}
    for each in scans.values():
        _scan(server, each)  # The first one reads what was changed.
    for _ in range(rounds):
        for name, each in scans.items():
            found[name].append(_scan(server, each))
    return Measured(changed, found["chosen"], found["row store"])


def _scan(server: Peer, scan: scanner.sync.Scan) -> Scanned:
    cpu, started, rows = server.cpu_s(), time.perf_counter(), 0
    with scan.execute() as batches:
        for batch in batches:
            rows += batch.num_rows
    seconds = time.perf_counter() - started
    (bucket,) = batches.statistics().buckets
    return Scanned(rows, bucket.digest, " ".join(bucket.read_sources), seconds, server.cpu_s() - cpu)


def _rate(scans: list[Scanned]) -> float:
    return statistics.median(scan.rows / scan.seconds for scan in scans)


def _cpu_us(scans: list[Scanned]) -> float:
    return statistics.median(scan.server_cpu_s / scan.rows * 1e6 for scan in scans)


def _filters_shown(found: list[Measured], rows: int) -> Table:
    shown = Table("filter", "passing", "image, M rows read/s", "row store", "image, server ms", "row store")
    for each in found:
        sides = (each.chosen, each.row_store)
        rates = [statistics.median(rows / scan.seconds / 1e6 for scan in side) for side in sides]
        costs = [statistics.median(scan.server_cpu_s * 1e3 for scan in side) for side in sides]
        shown.add_row(
            each.changed,
            str(each.chosen[0].rows),
            *(f"{rate:.1f}" for rate in rates),
            *(f"{cost:.0f}" for cost in costs),
        )
    return shown


def _shown(found: list[Measured]) -> Table:
    shown = Table(
        "changed",
        "read from",
        "M rows/s",
        "row store",
        "ratio",
        "behind a write",
        "server us/row",
        "row store",
    )
    for each in found:
        image, row_store = _rate(each.chosen), _rate(each.row_store)
        shown.add_row(
            each.changed,
            each.read_from,
            f"{image / 1e6:.2f}",
            f"{row_store / 1e6:.2f}",
            f"{image / row_store:.2f}",
            f"{_rate(each.behind_writes) / 1e6:.2f}" if each.behind_writes else "",
            f"{_cpu_us(each.chosen):.3f}",
            f"{_cpu_us(each.row_store):.3f}",
        )
    return shown
