"""Many scans at once by one way, in a client process of its own that is told what to do; and a writer beside them.

All scans of a crowd begin together, on one connection of weir's client, and in a thread each of the peers'.
"""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

import scanner
import scanner.sync
from bench.harness.processes import answer_all
from bench.peers.rows import WIDTHS, rows_of
from bench.peers.serving import Ticket
from bench.peers.streams import STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    import pyarrow as pa

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
    least_share: float
    """When the first of them ended: the rows of the one that had least, by those of the one that had most."""


def crowd_reader(commands: Connection) -> None:
    """Read what comes over a pipe, until None comes, and answer with the cost."""
    answer_all(commands, lambda crowd: (_in_threads if crowd.way in STREAMS else _by_weir)(crowd))


class _Scan:
    """Takes the time of one scan."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.ended_at = self._started
        self._rows = 0
        self._taken: list[tuple[float, int]] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._taken.append((time.perf_counter(), self._rows))

    def end(self) -> None:
        self.ended_at = time.perf_counter()

    def rows_at(self, moment: float) -> int:
        """That it had by then."""
        return max((rows for at, rows in self._taken if at <= moment), default=0)

    def run(self) -> Run:
        first_at = self._taken[0][0] if self._taken else self.ended_at
        return Run(
            rows=self._rows, first_batch_s=first_at - self._started, seconds=self.ended_at - self._started
        )


def _cost(scans: Sequence[_Scan], started: float, cpu_s: float) -> CrowdCost:
    """Of scans that have ended, since a moment and since the client had used so much CPU."""
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    first_ended = min(each.ended_at for each in scans)
    rows = [each.rows_at(first_ended) for each in scans]
    return CrowdCost(
        runs=[each.run() for each in scans],
        seconds=seconds,
        cpu_s=cpu_s,
        least_share=round(min(rows) / max(1, *rows), 3),
    )


def _by_weir(crowd: Crowd) -> CrowdCost:
    read: list[_Scan] = []

    async def read_often(table: scanner.Table) -> None:
        scan = table.new_scan().with_mode(crowd.way)
        if crowd.row_limit:
            scan = scan.limit(crowd.row_limit)
        for _ in range(crowd.repeats):
            taken = _Scan()
            read.append(taken)
            async with scan.execute() as batches:
                async for batch in batches:
                    taken.take(batch)
            taken.end()

    async def main() -> CrowdCost:
        async with scanner.connect(crowd.place) as client:
            table = await client.table(crowd.table)
            cpu, started = time.process_time(), time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(crowd.scans):
                    nursery.start_soon(read_often, table)
            return _cost(read, started, cpu)

    return trio.run(main)


def _in_threads(crowd: Crowd) -> CrowdCost:
    ticket = Ticket(
        table=crowd.table,
        bucket=0,
        origin="storage",
        batch_bytes=crowd.batch_bytes,
        row_limit=crowd.row_limit,
    )

    with STREAMS[crowd.way](crowd.place, None) as stream:

        def read_often(_: int) -> list[_Scan]:
            read = []
            for _repeat in range(crowd.repeats):
                read.append(_Scan())
                for batch in stream(ticket):
                    read[-1].take(batch)
                read[-1].end()
            return read

        cpu, started = time.process_time(), time.perf_counter()
        with futures.ThreadPoolExecutor(crowd.scans) as pool:
            read = [scan for each in pool.map(read_often, range(crowd.scans)) for scan in each]
        return _cost(read, started, cpu)


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
