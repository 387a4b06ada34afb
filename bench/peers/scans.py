"""Full scans of one table, by weir in every model and by its peers, in interleaved rounds."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server
from bench.peers.processes import Peer, Worker, running_peer, running_worker
from bench.peers.reading import Cost, Reading, reader
from bench.peers.rows import PRIMARY_KEY, SCHEMA, WIDTHS, Width, pieces
from bench.peers.serving import serve_flight, serve_grpcio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

MODELS: Final = ("push", "session", "token", "cursor", "asof")
BATCH_BYTES: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
OVER_STORAGE_MIN: Final = 0.95
OVER_MEMORY_MIN: Final = 1.2
OWN_PART_NS_MAX: Final = 60
_TABLE: Final = "rows"
_ROW_GROUP_ROWS: Final = 122_880


@dataclass(kw_only=True, slots=True)
class Scanned:
    """One way to read one table, over all rounds."""

    width: str
    buckets: int
    way: str
    batch_bytes: int | None = None
    rows_per_s: list[float] = field(default_factory=list)
    first_batch_ms: list[float] = field(default_factory=list)
    server_us_per_row: list[float] = field(default_factory=list)
    client_us_per_row: list[float] = field(default_factory=list)
    server_resident_bytes: int = 0
    client_resident_bytes: int = 0

    def add(self, cost: Cost, server_cpu_s: float) -> None:
        """One more round."""
        self.rows_per_s.append(round(cost.rows / cost.seconds))
        self.first_batch_ms.append(round(cost.first_batch_s * 1e3, 2))
        self.server_us_per_row.append(round(server_cpu_s * 1e6 / cost.rows, 3))
        self.client_us_per_row.append(round(cost.cpu_s * 1e6 / cost.rows, 3))
        self.client_resident_bytes = max(self.client_resident_bytes, cost.resident_bytes)


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    peer: Peer | None
    reading: Reading


def load(
    endpoint: str, width: Width, rows: int, buckets: int, parquet: Path | None = None, table: str = _TABLE
) -> None:
    """Write the rows to a new table of a server and, if it is asked for, to a file."""
    with ExitStack() as stack:
        client = stack.enter_context(scanner.sync.connect(endpoint))
        file = None
        if parquet is not None:
            file = stack.enter_context(pq.ParquetWriter(parquet, SCHEMA, compression="snappy"))
        target = client.create_table(table, SCHEMA, list(PRIMARY_KEY), buckets)
        for piece in pieces(width, rows):
            target.write(piece)
            if file is not None:
                file.write_table(piece, row_group_size=_ROW_GROUP_ROWS)


@contextmanager
def _serving(
    scratch: Path, width: Width, rows: int, buckets: int
) -> Iterator[tuple[list[_Way], Worker[Reading, Cost]]]:
    """All servers, with the same rows, and a client."""
    data, parquet = scratch / "weir", scratch / "rows.parquet"
    with running_server(data) as server:
        load(server.endpoint, width, rows, buckets, parquet)
    # Two processes cannot have one store open.
    copies = {name: Path(shutil.copytree(data, scratch / name)) for name in ("image", "flight", "grpcio")}
    with ExitStack() as stack:
        weirs = {
            suffix: stack.enter_context(running_server(place))
            for suffix, place in (("", data), (", image", copies["image"]))
        }
        with scanner.sync.connect(weirs[", image"].endpoint) as client:
            client.make_images(_TABLE)
        peers = {
            "flight": stack.enter_context(running_peer(serve_flight, copies["flight"])),
            "grpcio": stack.enter_context(running_peer(serve_grpcio, copies["grpcio"])),
        }
        worker = stack.enter_context(running_worker(reader))

        def reading(way: str, place: str, origin: str = "storage") -> Reading:
            return Reading(way=way, place=place, table=_TABLE, buckets=buckets, origin=origin)

        ways = [
            _Way(model + suffix, Peer.of(weir.pid, weir.endpoint), reading(model, weir.endpoint))
            for suffix, weir in weirs.items()
            for model in MODELS
        ]
        for name, peer in peers.items():
            ways += [
                _Way(f"{name} {origin}", peer, reading(name, peer.endpoint, origin))
                for origin in ("storage", "memory")
            ]
        ways.append(_Way("local", peers["grpcio"], reading("local", peers["grpcio"].endpoint)))
        ways += [_Way(name, None, reading(name, str(parquet))) for name in ("parquet", "duckdb")]
        yield ways, worker


def _at_its_best(way: _Way, worker: Worker[Reading, Cost]) -> _Way:
    """A peer at the batch size at which it is quickest; also warms it up."""
    if way.reading.way not in ("flight", "grpcio"):
        worker.do(way.reading)
        return way
    tried = [_with_batches(way.reading, size) for size in BATCH_BYTES]
    for each in tried:
        worker.do(each)  # What is in memory is made now.
    best = min(tried, key=lambda each: worker.do(each).seconds)
    return _Way(way.name, way.peer, best)


def _with_batches(reading: Reading, batch_bytes: int) -> Reading:
    return Reading(**{**asdict(reading), "batch_bytes": batch_bytes})


def measure(width: Width, rows: int, buckets: int, rounds: int, console: Console) -> list[Scanned]:
    """Read a table of so many rows by every way.

    Raises:
        BenchFailed: A way read fewer rows than there are, or a process did not answer.
    """
    with tempfile.TemporaryDirectory() as directory:
        with _serving(Path(directory), width, rows, buckets) as (ways, worker):
            chosen = [_at_its_best(way, worker) for way in ways]
            found = [_scanned(way, width, buckets) for way in chosen]
            for number in range(rounds):
                console.log(f"{width.name}, {buckets} buckets: round {number + 1} of {rounds}")
                for way, scanned in zip(chosen, found, strict=True):
                    _measure_scan(way, worker, rows, scanned)
            return found


def _scanned(way: _Way, width: Width, buckets: int) -> Scanned:
    batch_bytes = way.reading.batch_bytes if way.reading.way in ("flight", "grpcio") else None
    return Scanned(width=width.name, buckets=buckets, way=way.name, batch_bytes=batch_bytes)


def _measure_scan(way: _Way, worker: Worker[Reading, Cost], rows: int, scanned: Scanned) -> None:
    before = 0.0 if way.peer is None else way.peer.cpu_s()
    cost = worker.do(way.reading)
    if cost.rows != rows:
        raise BenchFailed(f"{way.name} read {cost.rows} rows of {rows}")
    scanned.add(cost, 0.0 if way.peer is None else way.peer.cpu_s() - before)
    if way.peer is not None:
        scanned.server_resident_bytes = max(scanned.server_resident_bytes, way.peer.resident_bytes())


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: each round's ways ran one after the other."""
    return round(statistics.median([a / b for a, b in zip(mine, theirs, strict=True)]), 2)


def judge(scans: Sequence[Scanned]) -> list[Bar]:
    """What must hold of full scans."""
    found = []
    by_way = {(each.width, each.buckets, each.way): each for each in scans}
    for width, buckets in dict.fromkeys((each.width, each.buckets) for each in scans):
        for mine, peers, least in (
            ("push", ("flight storage", "grpcio storage"), OVER_STORAGE_MIN),
            ("push, image", ("flight memory", "grpcio memory"), OVER_MEMORY_MIN),
        ):
            if mine == "push, image" and width != WIDTHS["86"].name:
                continue
            for peer in peers:
                pair = [by_way.get((width, buckets, way)) for way in (mine, peer)]
                if pair[0] is None or pair[1] is None:
                    continue
                value = ratio(pair[0].rows_per_s, pair[1].rows_per_s)
                found.append(
                    Bar(
                        f"{mine} over {peer}, {width}, {buckets} buckets",
                        value,
                        f">= {least}",
                        value >= least,
                    )
                )
        found += _own_part(by_way.get((width, buckets, "push")), by_way.get((width, buckets, "local")))
    return found


def _own_part(push: Scanned | None, local: Scanned | None) -> list[Bar]:
    """What the server does for a row beside iterating and decoding; of one bucket of narrow rows."""
    if push is None or local is None or (push.width, push.buckets) != (WIDTHS["86"].name, 1):
        return []
    pairs = zip(push.server_us_per_row, local.server_us_per_row, strict=True)
    own_ns = round(statistics.median([mine - theirs for mine, theirs in pairs]) * 1e3)
    return [Bar("weir's own part of a row, ns", own_ns, f"<= {OWN_PART_NS_MAX}", own_ns <= OWN_PART_NS_MAX)]


def show(scans: Sequence[Scanned]) -> Table:
    """One table of rows in one number of buckets."""
    first = scans[0]
    table = Table(title=f"{first.width} a row, {first.buckets} buckets: medians", padding=0)
    for heading in ("", "M rows/s", "push is", "first ms", "server us/row", "client us/row", "batch KiB"):
        table.add_column(heading, justify="right" if heading else "left")
    push = next(each for each in scans if each.way == "push")
    for each in scans:
        table.add_row(
            each.way,
            f"{statistics.median(each.rows_per_s) / 1e6:.2f}",
            f"{ratio(push.rows_per_s, each.rows_per_s):.2f}",
            f"{statistics.median(each.first_batch_ms):.1f}",
            f"{statistics.median(each.server_us_per_row):.2f}",
            f"{statistics.median(each.client_us_per_row):.2f}",
            "" if each.batch_bytes is None else f"{each.batch_bytes >> 10}",
        )
    return table
