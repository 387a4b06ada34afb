"""One full scan to Arrow by one way, in a client process of its own that is told what to do.

A scan counts from the call on a connection that is there to the last batch; the batches are kept, as an application
that wants the table would.
"""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import flight

import scanner.sync
from bench.peers.rows import SCHEMA
from bench.peers.serving import SERVICE, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

THREADS: Final = 2
"""Of Parquet and DuckDB."""
_PAGE_BYTES: Final = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What to read, and how."""

    way: str
    """`push` and the other modes of weir, `flight`, `grpcio`, `local`, `parquet` or `duckdb`."""
    place: str
    """HOST:PORT of the server, or the path of the file."""
    table: str
    buckets: int
    origin: str = "storage"
    """Of Flight and grpcio: `storage` or `memory`."""
    batch_bytes: int = 1 << 20
    """Of Flight and grpcio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one scan took."""

    rows: int
    seconds: float
    first_batch_s: float
    cpu_s: float
    """Of the client."""
    resident_bytes: int
    """Of the client, at the end, with the rows."""


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

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def reader(commands: Connection) -> None:
    """Read what comes over a pipe, until None comes, and answer with the cost."""
    pa.set_cpu_count(THREADS)
    while (reading := commands.recv()) is not None:
        commands.send(_read(reading))


def _read(reading: Reading) -> Cost:
    run: Callable[[Reading], tuple[int, float, float, float]] = _WAYS.get(reading.way, _weir)
    rows, seconds, first_s, cpu_s = run(reading)
    return Cost(
        rows=rows,
        seconds=seconds,
        first_batch_s=first_s,
        cpu_s=cpu_s,
        resident_bytes=int(psutil.Process().memory_info().rss),
    )


def _timed(fill: Callable[[_Taken], None]) -> tuple[int, float, float, float]:
    cpu, taken = time.process_time(), _Taken()
    fill(taken)
    seconds = time.perf_counter() - taken.started
    return taken.rows, seconds, taken.first_s or seconds, time.process_time() - cpu


def _weir(reading: Reading) -> tuple[int, float, float, float]:
    with scanner.sync.connect(reading.place) as client:
        scan = client.table(reading.table).new_scan().with_mode(reading.way)
        if reading.way != "push":
            scan = scan.with_page_bytes(_PAGE_BYTES)

        def fill(taken: _Taken) -> None:
            with scan.execute() as batches:
                for batch in batches:
                    taken.take(batch)

        return _timed(fill)


def _tickets(reading: Reading) -> list[Ticket]:
    origin: Any = reading.origin
    return [
        Ticket(table=reading.table, bucket=bucket, origin=origin, batch_bytes=reading.batch_bytes)
        for bucket in range(reading.buckets)
    ]


def _by_streams(
    reading: Reading, stream: Callable[[Ticket], Iterator[pa.RecordBatch]]
) -> tuple[int, float, float, float]:
    """One stream a bucket, each in a thread if there are several."""

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


def _flight(reading: Reading) -> tuple[int, float, float, float]:
    with flight.connect(f"grpc://{reading.place}") as client:

        def stream(ticket: Ticket) -> Iterator[pa.RecordBatch]:
            for chunk in client.do_get(flight.Ticket(ticket.to_bytes())):
                yield chunk.data

        return _by_streams(reading, stream)


def _grpcio(reading: Reading) -> tuple[int, float, float, float]:
    with _channel(reading.place) as channel:
        read: Any = channel.unary_stream(f"/{SERVICE}/Read")

        def stream(ticket: Ticket) -> Iterator[pa.RecordBatch]:
            for message in read(ticket.to_bytes()):
                yield pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)

        return _by_streams(reading, stream)


def _local(reading: Reading) -> tuple[int, float, float, float]:
    """Iteration and decoding in the server's process, bucket after bucket, with nothing sent."""
    with _channel(reading.place) as channel:
        count: Any = channel.unary_unary(f"/{SERVICE}/Count")
        started = time.perf_counter()
        rows = sum(int(count(ticket.to_bytes())) for ticket in _tickets(reading))
        seconds = time.perf_counter() - started
        return rows, seconds, seconds, 0.0


def _parquet(reading: Reading) -> tuple[int, float, float, float]:
    def fill(taken: _Taken) -> None:
        for batch in pq.read_table(reading.place, use_threads=True).to_batches():
            taken.take(batch)

    return _timed(fill)


def _duckdb(reading: Reading) -> tuple[int, float, float, float]:
    import duckdb  # It complains of its own leaks when a process ends that has not used it.

    with duckdb.connect(config={"threads": THREADS}) as connection:

        def fill(taken: _Taken) -> None:
            found = connection.read_parquet(reading.place).to_arrow_table()
            for batch in found.to_batches():
                taken.take(batch)

        return _timed(fill)


def _channel(place: str) -> grpc.Channel:
    channel = grpc.insecure_channel(place, options=[("grpc.max_receive_message_length", -1)])
    grpc.channel_ready_future(channel).result(30)
    return channel


_WAYS: Final = {
    "flight": _flight,
    "grpcio": _grpcio,
    "local": _local,
    "parquet": _parquet,
    "duckdb": _duckdb,
}
