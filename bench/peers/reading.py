"""One full scan to Arrow by one way, in a client process of its own that is told what to do.

A scan counts from the call on a connection that is there to the last batch; the batches are kept, as an application
that wants the table would.
"""

from __future__ import annotations

import ctypes
import gc
import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import trio

import scanner
import scanner.sync
from bench.harness.processes import answer_all
from bench.peers.serving import SERVICE, Origin, Ticket
from bench.peers.streams import STREAMS, grpcio_channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

THREADS: Final = 2
"""Of Parquet and DuckDB."""
_PAGE_BYTES: Final = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What to read, and how."""

    way: str
    """`push` and the other modes of weir, `push trio`, `flight`, `grpcio`, `local`, `parquet` or `duckdb`."""
    place: str
    """HOST:PORT of the server, or the path of the file."""
    table: str
    buckets: int
    origin: Origin = "storage"
    """Of Flight and grpcio."""
    batch_bytes: int = 1 << 20
    """Of Flight and grpcio."""
    ca: str | None = None
    """PEM file of whom to trust; None: plaintext."""
    trimmed: bool = False
    """Give the memory of earlier scans back first: not for a scan that is timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one scan took."""

    rows: int
    seconds: float
    first_batch_s: float
    cpu_s: float
    """Of the client."""
    resident_bytes: int
    """Of the client, at the end, with the rows; with what earlier scans left, unless it was trimmed."""
    disk_read_bytes: int
    """That the client had fetched from the disk."""
    digest: int | None = None
    """Of a scan by weir."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """One scan, as its way saw it."""

    rows: int
    seconds: float
    first_s: float
    cpu_s: float
    digest: int | None = None


class _Taken:
    """Batches as they come, and when the first did."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.first_s: float | None = None
        self.batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> None:
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.started
        self.batches.append(batch)

    def timed(self, cpu_before_s: float, digest: int | None) -> _Timed:
        """All of them have come."""
        seconds, rows = time.perf_counter() - self.started, sum(batch.num_rows for batch in self.batches)
        return _Timed(rows, seconds, self.first_s or seconds, time.process_time() - cpu_before_s, digest)


def reader(commands: Connection) -> None:
    """Read what comes over a pipe, until None comes, and answer with the cost."""
    pa.set_cpu_count(THREADS)
    answer_all(commands, _read)


def _read(reading: Reading) -> Cost:
    if reading.trimmed:
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    fetched = process.io_counters().read_bytes
    timed = _WAYS.get(reading.way, _weir)(reading)
    return Cost(
        rows=timed.rows,
        seconds=timed.seconds,
        first_batch_s=timed.first_s,
        cpu_s=timed.cpu_s,
        resident_bytes=int(process.memory_info().rss),
        disk_read_bytes=process.io_counters().read_bytes - fetched,
        digest=timed.digest,
    )


def _timed(fill: Callable[[_Taken], int | None]) -> _Timed:
    cpu, taken = time.process_time(), _Taken()
    return taken.timed(cpu, fill(taken))


def _weir(reading: Reading) -> _Timed:
    secured = None if reading.ca is None else scanner.tls(reading.ca)
    with scanner.sync.connect(reading.place, ssl_context=secured) as client:
        scan = client.table(reading.table).new_scan().with_mode(reading.way)
        if reading.way != "push":
            scan = scan.with_page_bytes(_PAGE_BYTES)

        def fill(taken: _Taken) -> int | None:
            with scan.execute() as batches:
                for batch in batches:
                    taken.take(batch)
                return batches.statistics().digest

        return _timed(fill)


def _weir_trio(reading: Reading) -> _Timed:
    async def scan() -> _Timed:
        async with scanner.connect(reading.place) as client:
            planned = (await client.table(reading.table)).new_scan()
            cpu, taken = time.process_time(), _Taken()
            async with planned.execute() as batches:
                async for batch in batches:
                    taken.take(batch)
                digest = batches.statistics().digest
            return taken.timed(cpu, digest)

    return trio.run(scan)


def _tickets(reading: Reading) -> list[Ticket]:
    return [
        Ticket(table=reading.table, bucket=bucket, origin=reading.origin, batch_bytes=reading.batch_bytes)
        for bucket in range(reading.buckets)
    ]


def _by_streams(reading: Reading) -> _Timed:
    """One stream a bucket, each in a thread if there are several."""
    with STREAMS[reading.way](reading.place, reading.ca) as stream:

        def fill(taken: _Taken) -> None:
            def take_all(ticket: Ticket) -> None:
                for batch in stream(ticket):
                    taken.take(batch)

            tickets = _tickets(reading)
            if len(tickets) == 1:
                take_all(tickets[0])
                return
            with futures.ThreadPoolExecutor(len(tickets)) as pool:
                list(pool.map(take_all, tickets))

        return _timed(fill)


def _local(reading: Reading) -> _Timed:
    """Iteration and decoding in the server's process, bucket after bucket, with nothing sent."""
    with grpcio_channel(reading.place, reading.ca) as channel:
        count: Any = channel.unary_unary(f"/{SERVICE}/Count")
        started = time.perf_counter()
        rows = sum(int(count(ticket.to_bytes())) for ticket in _tickets(reading))
        seconds = time.perf_counter() - started
        return _Timed(rows, seconds, seconds, 0.0)


def _parquet(reading: Reading) -> _Timed:
    def fill(taken: _Taken) -> None:
        for batch in pq.read_table(reading.place, use_threads=True).to_batches():
            taken.take(batch)

    return _timed(fill)


def _duckdb(reading: Reading) -> _Timed:
    import duckdb  # It complains of its own leaks when a process ends that has not used it.

    with duckdb.connect(config={"threads": THREADS}) as connection:

        def fill(taken: _Taken) -> None:
            found = connection.read_parquet(reading.place).to_arrow_table()
            for batch in found.to_batches():
                taken.take(batch)

        return _timed(fill)


_WAYS: Final[dict[str, Callable[[Reading], _Timed]]] = {
    "push trio": _weir_trio,
    "flight": _by_streams,
    "grpcio": _by_streams,
    "local": _local,
    "parquet": _parquet,
    "duckdb": _duckdb,
}
