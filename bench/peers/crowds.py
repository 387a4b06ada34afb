"""Many scans at once by one way, in a client process of its own that is told what to do; and a writer beside them.

All scans of a crowd begin together, on one connection of weir's client, and in a thread each of the peers'.
"""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import pyarrow as pa
import trio
from pyarrow import flight

import scanner
import scanner.sync
from bench.peers.rows import SCHEMA, WIDTHS, rows_of
from bench.peers.serving import SERVICE, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

WRITE_ROWS: Final = 8192
"""Of a writer's request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """What to read, how, and how often."""

    way: str
    """A mode of weir, `flight` or `grpcio`."""
    place: str
    """HOST:PORT of the server."""
    table: str
    scans: int
    """At once."""
    repeats: int = 1
    """Of each of them, one after another."""
    row_limit: int = 0
    """Of a scan; 0: all rows."""
    batch_bytes: int = 1 << 20
    """Of Flight and grpcio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One scan of a crowd; seconds from its begin."""

    rows: int
    first_batch_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdCost:
    """What a crowd took."""

    runs: list[Run]
    seconds: float
    """Until the last one ended."""
    cpu_s: float
    """Of the client."""


def crowd_reader(commands: Connection) -> None:
    """Read what comes over a pipe, until None comes, and answer with the cost."""
    while (crowd := commands.recv()) is not None:
        commands.send(_WAYS.get(crowd.way, _by_weir)(crowd))


class _Scan:
    """Takes the time of one scan."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first_s: float | None = None
        self._rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter() - self._started
        self._rows += batch.num_rows

    def ended(self) -> Run:
        seconds = time.perf_counter() - self._started
        return Run(rows=self._rows, first_batch_s=self._first_s or seconds, seconds=seconds)


def _by_weir(crowd: Crowd) -> CrowdCost:
    runs: list[Run] = []

    async def read_often(table: scanner.Table) -> None:
        scan = table.new_scan().with_mode(crowd.way)
        if crowd.row_limit:
            scan = scan.limit(crowd.row_limit)
        for _ in range(crowd.repeats):
            taken = _Scan()
            async with scan.execute() as batches:
                async for batch in batches:
                    taken.take(batch)
            runs.append(taken.ended())

    async def main() -> CrowdCost:
        async with scanner.connect(crowd.place) as client:
            table = await client.table(crowd.table)
            cpu, started = time.process_time(), time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(crowd.scans):
                    nursery.start_soon(read_often, table)
            return CrowdCost(
                runs=runs, seconds=time.perf_counter() - started, cpu_s=time.process_time() - cpu
            )

    return trio.run(main)


def _in_threads(crowd: Crowd, stream: Callable[[Ticket], Iterable[pa.RecordBatch]]) -> CrowdCost:
    ticket = Ticket(
        table=crowd.table,
        bucket=0,
        origin="storage",
        batch_bytes=crowd.batch_bytes,
        row_limit=crowd.row_limit,
    )

    def read_often(_: int) -> list[Run]:
        runs = []
        for _repeat in range(crowd.repeats):
            taken = _Scan()
            for batch in stream(ticket):
                taken.take(batch)
            runs.append(taken.ended())
        return runs

    cpu, started = time.process_time(), time.perf_counter()
    with futures.ThreadPoolExecutor(crowd.scans) as pool:
        runs = [run for each in pool.map(read_often, range(crowd.scans)) for run in each]
    return CrowdCost(runs=runs, seconds=time.perf_counter() - started, cpu_s=time.process_time() - cpu)


def _by_flight(crowd: Crowd) -> CrowdCost:
    with flight.connect(f"grpc://{crowd.place}") as client:
        return _in_threads(
            crowd, lambda ticket: (chunk.data for chunk in client.do_get(flight.Ticket(ticket.to_bytes())))
        )


def _by_grpcio(crowd: Crowd) -> CrowdCost:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(crowd.place, options=options) as channel:
        grpc.channel_ready_future(channel).result(30)
        read: Any = channel.unary_stream(f"/{SERVICE}/Read")
        return _in_threads(
            crowd,
            lambda ticket: (
                pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA) for message in read(ticket.to_bytes())
            ),
        )


_WAYS: Final[dict[str, Callable[[Crowd], CrowdCost]]] = {"flight": _by_flight, "grpcio": _by_grpcio}


def writer(place: str, table: str, rows: int, commands: Connection) -> None:
    """Update a table's rows, a request after the other, until something comes over the pipe; tells how many it wrote.

    Args:
        place: HOST:PORT of the server.
        table: Its name; of narrow rows.
        rows: That it has; at least those of a request.
        commands: Tells when the first request is acknowledged, and the rows written at the end.
    """
    requests = [
        rows_of(WIDTHS["86"], range(at, at + WRITE_ROWS))
        for at in range(0, rows - WRITE_ROWS + 1, WRITE_ROWS)
    ]
    with scanner.sync.connect(place) as client:
        written, target = 0, client.table(table)
        while not commands.poll():
            target.write(requests[written % len(requests)])
            written += 1
            if written == 1:
                commands.send(0)
        commands.send(written * WRITE_ROWS)
