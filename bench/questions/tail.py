"""Push or long poll: how soon does a commit reach its tails, and what do they cost?

One server process, one process of tails, and the writer in a third one; loopback, and a line of 50 ms between server
and tails (`bench.harness.links`). Long poll is `FetchLog` with a minimum of one byte and a wait of at most 500 ms, as
Kafka's consumers have it; one request of a tail is in flight at a time. Transport, blocks and codec are the same.

    latency     from the writer's acknowledgement until the change is in the consumer's hand, at 1 to 1000 tails;
                percentiles over all samples, those of OpenMessaging's benchmark. The writer commits one row at a time,
                evenly, so often that all tails together get 2000 changes a second at most
    throughput  one writer as fast as it goes, and 1, 10 and 100 readers
    idle        10 000 tails over 100 connections: memory, CPU and requests while nothing happens, and how long a commit
                takes to the last of them
    slow        what a tail that hardly reads does to twenty others: interleaved rounds with it and without

What was expected: over no distance the two differ little where each tail has a request waiting; a tail that has just
been answered has none, and hears of a commit one round trip later. So over 50 ms a tail by long poll falls behind by up
to that, once commits come faster than it can ask again. What push saves is the requests.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

import scanner.sync
from bench.harness.bars import Bar, at_least, at_most, none_of, write_json
from bench.harness.progress import Advance, question_bars
from bench.harness.sheet import Sheet
from bench.harness.tails import Received, Tails, tail_process
from bench.questions.continuation.serving import ServerProcess, Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from bench.harness.processes import Worker

MODES: Final = ("push", "fetch")
PARTS: Final = ("latency", "throughput", "idle", "slow")
TAILS: Final = (1, 10, 100, 1000)
READERS: Final = (1, 10, 100)
ROUND_TRIPS_S: Final = (0.0, 0.05)
PERCENTILES: Final = (50.0, 99.0, 99.9)
COMMITS_PER_S_MAX: Final = 50.0
DELIVERIES_PER_S_MAX: Final = 2_000.0
CONNECTIONS_MAX: Final = 10
SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])

IDLE_TAILS: Final = 10_000
IDLE_CONNECTIONS: Final = 100
IDLE_S: Final = 20.0
IDLE_BYTES_MAX: Final = 25_000
IDLE_CPU_MAX: Final = 0.05
IDLE_LAST_S_MAX: Final = 2

THROUGHPUT_ROWS: Final = 100_000
THROUGHPUT_BATCH_ROWS: Final = 500

SLOW_BESIDE: Final = 20
SLOW_ROUNDS: Final = 9
SLOW_PAUSE_S: Final = 0.5
SLOW_BAR: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """How soon commits reached the tails."""

    mode: str
    tails: int
    round_trip_ms: float
    commits_per_s: float
    """That were asked for."""
    samples: int
    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float
    requests_per_s: float
    """Of all tails together."""
    server_cpu: float
    """Seconds of CPU a second."""
    encoded_per_row: float
    """Times that a change was encoded at the server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """One writer as fast as it goes."""

    mode: str
    readers: int
    written_per_s: float
    delivered_per_s: float
    """To all readers together, until the last one had the last row."""
    encoded_per_row: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """Very many tails to which nothing comes."""

    tails: int
    connections: int
    open_s: float
    bytes_each: int
    """Resident memory that the server took for each, its part of a connection included."""
    cpu: float
    """Seconds of CPU a second."""
    requests: int
    """While nothing happened."""
    first_s: float
    """From the acknowledgement of a commit until the first tail had it."""
    median_s: float
    last_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """Tails beside one that hardly reads, and without it: medians of the rounds of each, compared.

    The 99th percentile of five seconds is what one pause of the disk makes of it: 17 ms without, 50 to 500 with. A
    ratio of each round would have the pauses of both.
    """

    beside: int
    rounds: int
    p99_ms: list[float]
    """With the slow one, by round."""
    p99_ms_without: list[float]
    p99_ratio: float
    """With the slow one, to without."""
    rate_ratio: float
    """Likewise, of changes delivered a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is measured."""

    parts: Sequence[str] = PARTS
    tails: Sequence[int] = TAILS
    readers: Sequence[int] = READERS
    round_trips_s: Sequence[float] = ROUND_TRIPS_S
    seconds: float = 10.0
    """Of writing, for each latency."""
    rows: int = THROUGHPUT_ROWS
    idle_tails: int = IDLE_TAILS
    idle_connections: int = IDLE_CONNECTIONS
    idle_s: float = IDLE_S
    slow_rounds: int = SLOW_ROUNDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Everything that was asked for."""

    latency: list[Latency]
    throughput: list[Throughput]
    idle: Idle | None
    slow: Slow | None


# ---------------------------------------------------------------------- server, tails and writer


class Bench:
    """A server with an empty table, tails, and a writer. Made by `bench`."""

    def __init__(self, server: ServerProcess, tails: Worker[Any, Any], table: scanner.sync.Table) -> None:
        self.server = server
        self.tails = tails
        self._table = table
        self.written = 0

    def rows(self, count: int) -> pa.RecordBatch:
        """The next rows, with ids that were not written before."""
        ids = np.arange(self.written, self.written + count, dtype=np.int64)
        self.written += count
        return pa.record_batch([pa.array(ids), pa.array(["a note of some length"] * count)], SCHEMA)

    def commit_evenly(self, per_s: float, seconds: float) -> NDArray[np.float64]:
        """Commit one row after another; when each was acknowledged, from the first one on."""
        acknowledged = []
        began = time.monotonic()
        for number in range(max(1, round(per_s * seconds))):
            time.sleep(max(0.0, began + number / per_s - time.monotonic()))
            self._table.write(pa.Table.from_batches([self.rows(1)]))
            acknowledged.append(time.monotonic())
        return np.array(acknowledged)

    def write_fast(self, rows: int) -> None:
        """Write so many rows, as fast as it goes."""
        with self._table.open_writer() as writer:
            for _ in range(rows // THROUGHPUT_BATCH_ROWS):
                writer.write(pa.Table.from_batches([self.rows(THROUGHPUT_BATCH_ROWS)]))


@contextmanager
def bench(folder: Path, name: str) -> Iterator[Bench]:
    """Run server and tails for a block."""
    settings = Settings(scans_max=2 * IDLE_TAILS)
    with ServerProcess(folder / name, settings) as server, tail_process(server.endpoint) as tails:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("ticks", SCHEMA, primary_key=["id"], buckets=1)
            on = Bench(server, tails, table)
            # What the first tail of a process loads is nobody's own time or memory.
            for mode in (*MODES, "raw"):
                tails.do(("open", _tails(mode, 2)))
                on.commit_evenly(10.0, 0.3)
                tails.do(("wait", 3))
                tails.do(("close",))
            # As the other two processes: a commit that waits for a collection is late at every tail.
            gc.collect()
            gc.freeze()
            yield on


def _tails(mode: str, count: int, round_trip_s: float = 0.0, **more: Any) -> Tails:
    return Tails(
        table="ticks",
        mode=mode,
        count=count,
        connections=min(count, CONNECTIONS_MAX),
        round_trip_s=round_trip_s,
        **more,
    )


def _latencies_s(received: Received, first_id: int, acknowledged: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every change at every tail; below 0: it came before the acknowledgement."""
    return received.at - acknowledged[received.ids - first_id]


# ---------------------------------------------------------------------- the questions


def measure_latency(on: Bench, mode: str, tails: int, round_trip_s: float, seconds: float) -> Latency:
    """How soon commits reach so many tails."""
    per_s = min(COMMITS_PER_S_MAX, DELIVERIES_PER_S_MAX / tails)
    on.tails.do(("open", _tails(mode, tails, round_trip_s)))
    asked, held, cpu_s = on.tails.do(("take",)).requests, on.server.held(), on.server.cpu_s()
    began, first_id = time.monotonic(), on.written
    acknowledged = on.commit_evenly(per_s, seconds)
    on.tails.do(("wait", len(acknowledged)))
    took_s = time.monotonic() - began
    received = on.tails.do(("take",))
    encoded = on.server.held().encoded_rows - held.encoded_rows
    cpu = (on.server.cpu_s() - cpu_s) / took_s
    on.tails.do(("close",))
    found_ms = _latencies_s(received, first_id, acknowledged) * 1e3
    p50, p99, p99_9 = np.percentile(found_ms, PERCENTILES)
    return Latency(
        mode=mode,
        tails=tails,
        round_trip_ms=round_trip_s * 1e3,
        commits_per_s=per_s,
        samples=len(found_ms),
        p50_ms=round(float(p50), 3),
        p99_ms=round(float(p99), 3),
        p99_9_ms=round(float(p99_9), 3),
        max_ms=round(float(found_ms.max()), 3),
        requests_per_s=round((received.requests - asked) / took_s, 1),
        server_cpu=round(cpu, 3),
        encoded_per_row=round(encoded / len(acknowledged), 3),
    )


def measure_throughput(on: Bench, mode: str, readers: int, rows: int) -> Throughput:
    """How fast one writer writes, and so many readers read; the rows are rounded down to whole batches."""
    rows -= rows % THROUGHPUT_BATCH_ROWS
    on.tails.do(("open", _tails(mode, readers, credit_bytes=8 << 20)))
    held, began = on.server.held(), time.monotonic()
    on.write_fast(rows)
    written_s = time.monotonic() - began
    on.tails.do(("wait", rows))
    delivered_s = time.monotonic() - began
    encoded = on.server.held().encoded_rows - held.encoded_rows
    on.tails.do(("close",))
    return Throughput(
        mode=mode,
        readers=readers,
        written_per_s=round(rows / written_s),
        delivered_per_s=round(rows * readers / delivered_s),
        encoded_per_row=round(encoded / rows, 3),
    )


def measure_idle(on: Bench, tails: int, connections: int, idle_s: float) -> Idle:
    """What very many tails cost while nothing happens, and how long a commit takes to all of them."""
    before = on.server.resident_bytes()
    open_s = on.tails.do(("open", Tails(table="ticks", mode="raw", count=tails, connections=connections)))
    resident, cpu_s, calls = on.server.resident_bytes(), on.server.cpu_s(), on.server.held().calls
    time.sleep(idle_s)
    requests = on.server.held().calls - calls
    cpu = (on.server.cpu_s() - cpu_s) / idle_s
    on.tails.do(("take",))
    acknowledged = on.commit_evenly(1.0, 1.0)
    on.tails.do(("wait", 1))
    latencies = np.sort(on.tails.do(("take",)).at - acknowledged[0])
    on.tails.do(("close",))
    return Idle(
        tails=tails,
        connections=connections,
        open_s=round(open_s, 2),
        bytes_each=(resident - before) // tails,
        cpu=round(cpu, 4),
        requests=requests,
        first_s=round(float(latencies[0]), 4),
        median_s=round(float(np.median(latencies)), 4),
        last_s=round(float(latencies[-1]), 4),
    )


def measure_slow(on: Bench, rounds: int, seconds: float, step: Callable[[], None]) -> Slow:
    """What a tail that hardly reads does to the others."""
    p99_s: dict[bool, list[float]] = {True: [], False: []}
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for slow in (True, False) if number % 2 else (False, True):
            p99, rate = _beside(on, slow=slow, seconds=seconds)
            p99_s[slow].append(p99)
            rates[slow].append(rate)
            step()
    return Slow(
        beside=SLOW_BESIDE,
        rounds=rounds,
        p99_ms=[round(each * 1e3, 2) for each in p99_s[True]],
        p99_ms_without=[round(each * 1e3, 2) for each in p99_s[False]],
        p99_ratio=round(statistics.median(p99_s[True]) / statistics.median(p99_s[False]), 3),
        rate_ratio=round(statistics.median(rates[True]) / statistics.median(rates[False]), 3),
    )


def _beside(on: Bench, *, slow: bool, seconds: float) -> tuple[float, float]:
    """Of the tails that read: the 99th percentile, seconds from when a row was due, and changes they got a second."""
    on.tails.do(("open", _tails("push", SLOW_BESIDE)))
    if slow:
        on.tails.do(("open", _tails("push", 1, pause_s=SLOW_PAUSE_S, credit_bytes=1)))
    on.tails.do(("take",))
    first_id, began = on.written, time.monotonic()
    acknowledged = on.commit_evenly(COMMITS_PER_S_MAX, seconds)
    on.tails.do(("wait", len(acknowledged)))
    took_s = time.monotonic() - began
    received = on.tails.do(("take",))
    on.tails.do(("close",))
    # Counted from when the row was due: what comes before its acknowledgement would make a ratio of no meaning.
    due = began + np.arange(len(acknowledged)) / COMMITS_PER_S_MAX
    p99 = float(np.percentile(_latencies_s(received, first_id, due), 99.0))
    return p99, len(received.ids) / took_s


def measure(scale: Scale, advance: Advance) -> Measured:
    """Ask what is asked for.

    Args:
        scale: How much.
        advance: Told of a question and its number of steps; what it returns is told of each step.
    """
    latency: list[Latency] = []
    throughput: list[Throughput] = []
    idle, slow = None, None
    with tempfile.TemporaryDirectory(prefix="weir-tail-") as name:
        folder = Path(name)
        if "idle" in scale.parts:
            step = advance("idle tails", 1)
            with bench(folder, "idle") as on:
                idle = measure_idle(on, scale.idle_tails, scale.idle_connections, scale.idle_s)
            step()
        if set(scale.parts) == {"idle"}:
            return Measured(latency=latency, throughput=throughput, idle=idle, slow=slow)
        with bench(folder, "busy") as on:
            if "latency" in scale.parts:
                cells = list(itertools.product(scale.round_trips_s, scale.tails, MODES))
                step = advance("latency", len(cells))
                for far, tails, mode in cells:
                    latency.append(measure_latency(on, mode, tails, far, scale.seconds))
                    step()
            if "slow" in scale.parts:
                step = advance("beside a slow tail", 2 * scale.slow_rounds)
                slow = measure_slow(on, scale.slow_rounds, scale.seconds / 2, step)
            if "throughput" in scale.parts:
                runs = list(itertools.product(scale.readers, MODES))
                step = advance("throughput", len(runs))
                for readers, mode in runs:
                    throughput.append(measure_throughput(on, mode, readers, scale.rows))
                    step()
    return Measured(latency=latency, throughput=throughput, idle=idle, slow=slow)


# ---------------------------------------------------------------------- bars, tables, JSON


def bars(measured: Measured) -> list[Bar]:
    """What must hold of what was measured."""
    return [*_latency_bars(measured.latency), *_idle_bars(measured.idle), *_slow_bars(measured.slow)]


def _latency_bars(found: Sequence[Latency]) -> Iterator[Bar]:
    cells = {(each.tails, each.round_trip_ms, each.mode): each for each in found}
    for (tails, far_ms, mode), push in cells.items():
        fetch = cells.get((tails, far_ms, "fetch"))
        if mode != "push" or fetch is None or tails != 100:
            continue
        for name in ("p50_ms", "p99_ms"):
            ours, theirs = getattr(push, name), getattr(fetch, name)
            what = f"{name.removesuffix('_ms')} of {tails} tails at {far_ms:g} ms, push beside long poll"
            yield Bar(what, f"{ours:.2f} and {theirs:.2f} ms", "push <= long poll", ours <= theirs)
    for each in found:
        if each.mode == "push" and each.tails == 100:
            what = f"times that a change is encoded for {each.tails} tails at {each.round_trip_ms:g} ms"
            yield Bar(what, each.encoded_per_row, "= 1", each.encoded_per_row == 1)


def _idle_bars(idle: Idle | None) -> Iterator[Bar]:
    if idle is None:
        return
    what = f"of {idle.tails} idle tails"
    yield at_most(f"resident bytes of each {what}", idle.bytes_each, IDLE_BYTES_MAX)
    yield none_of(f"requests {what}", idle.requests)
    yield Bar(f"CPU {what}", idle.cpu, f"< {IDLE_CPU_MAX:g}", idle.cpu < IDLE_CPU_MAX)
    yield at_most(f"seconds until a commit has reached the last {what}", idle.last_s, IDLE_LAST_S_MAX)


def _slow_bars(slow: Slow | None) -> Iterator[Bar]:
    if slow is None:
        return
    p99, rate = slow.p99_ratio, slow.rate_ratio
    yield at_most("p99 beside a slow tail / without", p99, 1 + SLOW_BAR)
    yield at_least("rate beside a slow tail / without", rate, 1 - SLOW_BAR)


def render(measured: Measured) -> Iterator[Sheet]:
    """The tables, of what was measured."""
    if measured.latency:
        yield Sheet(
            "ms from the acknowledgement to the consumer's hand",
            (
                "tails", "rtt\nms", "mode", "commits\na s", "p50", "p99", "p99.9", "max", "requests\na s",
                "server\nCPU %", "times\nencoded",
            ),
            [
                (
                    f"{each.tails}", f"{each.round_trip_ms:g}", each.mode, f"{each.commits_per_s:g}",
                    f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}", f"{each.p99_9_ms:.1f}", f"{each.max_ms:.1f}",
                    f"{each.requests_per_s:.1f}", f"{each.server_cpu * 100:.0f}", f"{each.encoded_per_row:g}",
                )
                for each in measured.latency
            ],
        )  # fmt: skip
    if measured.throughput:
        yield Sheet(
            "one writer as fast as it goes, rows a second",
            ("readers", "mode", "written", "delivered", "times\nencoded"),
            [
                (f"{each.readers}", each.mode, f"{each.written_per_s:.0f}", f"{each.delivered_per_s:.0f}",
                 f"{each.encoded_per_row:g}")
                for each in measured.throughput
            ],
        )  # fmt: skip
    if (idle := measured.idle) is not None:
        yield Sheet(
            "idle tails on one server process",
            ("tails", "connec-\ntions", "open s", "KB each", "CPU %", "calls", "commit, ms:\nfirst", "median", "last"),
            [
                (f"{idle.tails}", f"{idle.connections}", f"{idle.open_s:.1f}", f"{idle.bytes_each / 1e3:.1f}",
                 f"{idle.cpu * 100:.1f}", f"{idle.requests}", f"{idle.first_s * 1e3:.0f}",
                 f"{idle.median_s * 1e3:.0f}", f"{idle.last_s * 1e3:.0f}")
            ],
        )  # fmt: skip
    if (slow := measured.slow) is not None:
        yield Sheet(
            f"{slow.beside} tails beside one that hardly reads / without it",
            ("rounds", "p99", "rate"),
            [(f"{slow.rounds}", f"{slow.p99_ratio:.3f}", f"{slow.rate_ratio:.3f}")],
        )


def run(output: Path | None, plots: Path | None, console: Console, *, scale: Scale) -> list[Bar]:
    """Measure, write the JSON, print, and draw."""
    with question_bars(console) as advance:
        measured = measure(scale, advance)
    found = bars(measured)
    document = asdict(measured)
    write_json(output, found, **document)
    for sheet in render(measured):
        console.print(sheet.rich())
    if plots is not None:
        # Matplotlib takes a second to load: only for pictures.
        from bench.questions.tail_plots import draw

        draw(document, plots)
    return found
