"""How fast is a full scan, and a call, beside what people would otherwise take?

One bucket, or four, of rows of two widths, read whole to Arrow batches in a client process of its own:

    push ... asof        weir, every model; pages of 4 MiB
    flight, grpcio       Arrow Flight and grpcio, over the same RocksDB iteration and decoding (storage), or from
                         batches in the server's memory; each at the batch size that was best in a first round
    local                the iteration and the decoding alone, in the server's process: nothing can be faster
                         without reading less
    parquet, duckdb      the same rows in a file, two threads

Then unary calls of a hundred octets, one and a hundred in flight. Rounds are interleaved; medians and their ratios are
kept. The peers are not asked to be isolated, resumable or checksummed; weir is.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from rich.table import Table

import scanner.sync
from bench.harness.bars import Bar, machine
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server
from bench.peers import calls
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
OVER_GRPCIO_MIN: Final = 1.0
OVER_AIO_MIN: Final = 0.8
IN_FLIGHT: Final = (1, 100)
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


@dataclass(kw_only=True, slots=True)
class Called:
    """Unary calls by one way, over all rounds."""

    way: str
    in_flight: int
    calls_per_s: list[float] = field(default_factory=list)
    server_us_per_call: list[float] = field(default_factory=list)
    client_us_per_call: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    peer: Peer | None
    reading: Reading


# ---------------------------------------------------------------------- scans


def _load(endpoint: str, width: Width, rows: int, buckets: int, parquet: Path) -> None:
    with (
        scanner.sync.connect(endpoint) as client,
        pq.ParquetWriter(parquet, SCHEMA, compression="snappy") as file,
    ):
        table = client.create_table(_TABLE, SCHEMA, list(PRIMARY_KEY), buckets)
        for piece in pieces(width, rows):
            table.write(piece)
            file.write_table(piece, row_group_size=_ROW_GROUP_ROWS)


@contextmanager
def _serving(
    scratch: Path, width: Width, rows: int, buckets: int
) -> Iterator[tuple[list[_Way], Worker[Reading, Cost]]]:
    """All servers, with the same rows, and a client."""
    data, parquet = scratch / "weir", scratch / "rows.parquet"
    with running_server(data) as server:
        _load(server.endpoint, width, rows, buckets, parquet)
    # Two processes cannot have one store open.
    copies = {name: Path(shutil.copytree(data, scratch / name)) for name in ("flight", "grpcio")}
    with ExitStack() as stack:
        weir = stack.enter_context(running_server(data))
        weir_peer = Peer(weir.pid, int(weir.endpoint.rpartition(":")[2]))
        peers = {
            "flight": stack.enter_context(running_peer(serve_flight, copies["flight"])),
            "grpcio": stack.enter_context(running_peer(serve_grpcio, copies["grpcio"])),
        }
        worker = stack.enter_context(running_worker(reader))

        def reading(way: str, place: str, origin: str = "storage") -> Reading:
            return Reading(way=way, place=place, table=_TABLE, buckets=buckets, origin=origin)

        ways = [_Way(model, weir_peer, reading(model, weir.endpoint)) for model in MODELS]
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


def _measure_scans(width: Width, rows: int, buckets: int, rounds: int, console: Console) -> list[Scanned]:
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


# ---------------------------------------------------------------------- calls


def _measure_calls(count: int, rounds: int, console: Console) -> list[Called]:
    found = [
        Called(way=way, in_flight=in_flight) for in_flight, way in itertools.product(IN_FLIGHT, calls.SERVERS)
    ]
    with ExitStack() as stack:
        peers = {way: stack.enter_context(running_peer(target)) for way, target in calls.SERVERS.items()}
        # One client each: grpcio's own threads would work beside the next way's calls.
        workers = {way: stack.enter_context(running_worker(calls.caller)) for way in peers}
        for number in range(rounds):
            console.log(f"calls: round {number + 1} of {rounds}")
            for called in found:
                peer = peers[called.way]
                before = peer.cpu_s()
                asked = calls.Calling(way=called.way, port=peer.port, calls=count, in_flight=called.in_flight)
                cost: calls.CallCost = workers[called.way].do(asked)
                called.calls_per_s.append(round(count / cost.seconds))
                called.client_us_per_call.append(round(cost.cpu_s * 1e6 / count, 1))
                called.server_us_per_call.append(round((peer.cpu_s() - before) * 1e6 / count, 1))
    return found


# ---------------------------------------------------------------------- the whole


def run(
    output: Path | None,
    console: Console,
    *,
    rows: int,
    widths: Sequence[str],
    buckets: Sequence[int],
    rounds: int,
    call_count: int,
) -> list[Bar]:
    """Measure, print the tables, write the JSON.

    Args:
        output: Where the JSON goes; None: nowhere.
        console: Where progress and the tables go.
        rows: Of a table of the narrow rows, above 0; wide ones get an eighth of them.
        widths: Names in `WIDTHS`.
        buckets: Of the tables, each above 0.
        rounds: Interleaved, above 0.
        call_count: Calls of a round, above 0; 0: no calls.

    Raises:
        BenchFailed: A way read fewer rows than there are, or a process did not answer.
    """
    scans: list[Scanned] = []
    for name, count in itertools.product(widths, buckets):
        width = WIDTHS[name]
        wanted = rows if name == "86" else max(1, rows // 8)
        measured = _measure_scans(width, wanted, count, rounds, console)
        console.print(_scan_table(measured))
        scans += measured
    called = _measure_calls(call_count, rounds, console) if call_count else []
    if called:
        console.print(_call_table(called))
    bars = judge(scans, called)
    if output is not None:
        document: dict[str, Any] = {
            "bench": "peers",
            "machine": machine(),
            "rows": rows,
            "scans": [asdict(each) for each in scans],
            "calls": [asdict(each) for each in called],
            "bars": [asdict(bar) for bar in bars],
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return bars


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: each round's ways ran one after the other."""
    return round(statistics.median([a / b for a, b in zip(mine, theirs, strict=True)]), 2)


def judge(scans: Sequence[Scanned], called: Sequence[Called]) -> list[Bar]:
    """What must hold of the measurements."""
    found = []
    by_way = {(each.width, each.buckets, each.way): each.rows_per_s for each in scans}
    for width, buckets in dict.fromkeys((each.width, each.buckets) for each in scans):
        push = by_way[width, buckets, "push"]
        for peer in ("flight storage", "grpcio storage"):
            ratio = _ratio(push, by_way[width, buckets, peer])
            name = f"push over {peer}, {width}, {buckets} buckets"
            found.append(Bar(name, ratio, f">= {OVER_STORAGE_MIN}", ratio >= OVER_STORAGE_MIN))
    rates = {(each.way, each.in_flight): each.calls_per_s for each in called}
    for in_flight in dict.fromkeys(each.in_flight for each in called):
        for peer, least in (("grpcio", OVER_GRPCIO_MIN), ("grpc.aio", OVER_AIO_MIN)):
            ratio = _ratio(rates["weir", in_flight], rates[peer, in_flight])
            found.append(
                Bar(f"calls over {peer}, {in_flight} in flight", ratio, f">= {least}", ratio >= least)
            )
    return found


def _scan_table(scans: Sequence[Scanned]) -> Table:
    first = scans[0]
    table = Table(title=f"{first.width} a row, {first.buckets} buckets: medians", padding=0)
    for heading in ("", "M rows/s", "push is", "first ms", "server us/row", "client us/row", "batch KiB"):
        table.add_column(heading, justify="right" if heading else "left")
    push = next(each for each in scans if each.way == "push")
    for each in scans:
        table.add_row(
            each.way,
            f"{statistics.median(each.rows_per_s) / 1e6:.2f}",
            f"{_ratio(push.rows_per_s, each.rows_per_s):.2f}",
            f"{statistics.median(each.first_batch_ms):.1f}",
            f"{statistics.median(each.server_us_per_row):.2f}",
            f"{statistics.median(each.client_us_per_row):.2f}",
            "" if each.batch_bytes is None else f"{each.batch_bytes >> 10}",
        )
    return table


def _call_table(called: Sequence[Called]) -> Table:
    table = Table(title="unary calls of 100 octets: medians", padding=0)
    for heading in ("", "in flight", "calls/s", "weir is", "server us", "client us"):
        table.add_column(heading, justify="right" if heading else "left")
    weir = {each.in_flight: each.calls_per_s for each in called if each.way == "weir"}
    for each in called:
        table.add_row(
            each.way,
            str(each.in_flight),
            f"{statistics.median(each.calls_per_s):,.0f}",
            f"{_ratio(weir[each.in_flight], each.calls_per_s):.2f}",
            f"{statistics.median(each.server_us_per_call):.0f}",
            f"{statistics.median(each.client_us_per_call):.0f}",
        )
    return table
