"""One scan of the table by one model over one line, measured and checked for what it lost or repeated.

The consumer takes batches as fast as they come and keeps their keys. What the model's client does by itself when
the line breaks is left to it. Where it cannot help, because what the server kept is gone, the consumer does
what a user has to: it throws away what it has and begins again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt
import trio

import scanner
from bench.harness.errors import BenchFailed
from bench.harness.links import Link
from bench.questions.continuation.orders import KEY, lost_and_repeated
from scanner.tasks import bare

MODELS = ("push", "session", "token", "cursor", "asof")
MIB = 1024 * 1024
SCAN_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How a table is scanned."""

    model: str
    page_bytes: int = 4 * MIB
    page_depth: int = 1
    round_trip_s: float = 0.0
    cut_bytes: float = math.inf
    credit_bytes: int | None = None
    """Of push; None: it sizes itself."""
    ranges: int = 1
    """Of keys, each scanned by itself at the same time, as of one offset: push and `asof`."""


@dataclass(kw_only=True, slots=True)
class Cost:
    """What one scan took."""

    seconds: float = 0.0
    first_row_s: float = 0.0
    """From the scan's start, on a connection that is there."""
    rows: int = 0
    message_bytes: int = 0
    """Of batches and pages that were taken, throughout."""
    sent_bytes: int = 0
    """That the server wrote to its sockets, also those that were lost on their way."""
    requests: int = 0
    seeks: int = 0
    """Of the server's storage."""
    states: int = 0
    """Log offsets that the rows are as of."""
    cuts: int = 0
    """Times that the line or the server broke."""
    restarts: int = 0
    """Times that the consumer had to begin again."""
    rows_again: int = 0
    """Rows that it had, threw away, and had to read again."""
    lost: int = 0
    """Keys that did not come."""
    repeated: int = 0
    """Keys that came more than once."""
    recoveries_s: list[float] = field(default_factory=list)
    """From each break to the next rows on a line."""
    written: int = 0
    """Rows that a writer wrote meanwhile."""

    @property
    def rows_per_s(self) -> float:
        """Of the whole scan."""
        return self.rows / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Message bytes of the rows as if each had come once."""
        return self.message_bytes / max(1, self.rows + self.rows_again) * self.rows / self.seconds / 1e6


@asynccontextmanager
async def open_client(endpoint: str, way: Way, seed: int = 7) -> AsyncIterator[tuple[scanner.Client, Link]]:
    """Connect over a line for the length of a block; the seed draws where it breaks, and the delays after it."""
    async with trio.open_nursery() as nursery:
        link = Link(endpoint, nursery, way.round_trip_s, way.cut_bytes, Random(seed))
        async with scanner.connect(endpoint, dial=link.dial, rng=Random(seed)) as client:
            yield client, link
        nursery.cancel_scope.cancel()


def planned(table: scanner.Table, way: Way) -> scanner.Scan:
    """The scan of a whole table that `way` describes."""
    scan = table.new_scan().with_mode(way.model).with_credit(way.credit_bytes or "auto")
    return scan.with_page_bytes(way.page_bytes).with_page_depth(way.page_depth)


async def scan_once(endpoint: str, table_name: str, rows: int, way: Way, seed: int = 7) -> Cost:
    """Scan a table of `rows` rows to its end.

    Raises:
        BenchFailed: It did not end in two minutes.
    """
    cost = Cost()
    async with open_client(endpoint, way, seed) as (client, link):
        table = await client.table(table_name)
        with trio.move_on_after(SCAN_TIMEOUT_S) as scope:
            await _scan_to_end(table, way, rows, cost)
        if scope.cancelled_caught:
            raise BenchFailed(f"a scan by {way.model} took longer than {SCAN_TIMEOUT_S:.0f} s: {way}")
        cost.cuts = link.cuts
        cost.recoveries_s = link.recoveries_s
    return cost


async def _scan_to_end(table: scanner.Table, way: Way, rows: int, cost: Cost) -> None:
    started = time.perf_counter()
    scans = [planned(table, way)]
    if way.ranges > 1:  # of a table of one bucket
        (offsets,) = await table.offsets()
        whole = scans[0].bucket(0).as_of(offsets.end_offset)
        scans = [whole.within(part) for part in await table.split(0, splits=way.ranges)]
    ids: list[npt.NDArray[np.int64]] = []
    async with bare(trio.open_nursery()) as nursery:
        for scan in scans:
            nursery.start_soon(_scan_part, scan, started, cost, ids)
    cost.seconds = time.perf_counter() - started
    cost.rows = sum(map(len, ids))
    cost.lost, cost.repeated = lost_and_repeated(ids, rows)


async def _scan_part(
    scan: scanner.Scan, started: float, cost: Cost, all_ids: list[npt.NDArray[np.int64]]
) -> None:
    """Scan, from the beginning again wherever that is the only way on, and add what it took to `cost`."""
    while True:
        ids: list[npt.NDArray[np.int64]] = []
        try:
            async with scan.execute() as batches:
                async for batch in batches:
                    if not cost.first_row_s:
                        cost.first_row_s = time.perf_counter() - started
                    ids.append(np.array(batch.column(KEY)))
        except (scanner.SessionUnknown, scanner.SessionExpired, scanner.SnapshotLost):
            cost.restarts += 1
            cost.rows_again += sum(map(len, ids))
            _add(cost, batches.statistics())
            continue
        break
    all_ids += ids
    _add(cost, batches.statistics())
    cost.states = max(cost.states, *(each.states for each in batches.statistics().buckets))


def _add(cost: Cost, found: scanner.ScanStatistics) -> None:
    cost.requests += found.requests
    cost.message_bytes += found.bytes_received


@dataclass(frozen=True, kw_only=True, slots=True)
class Median:
    """Several scans of the same kind."""

    scans: int
    seconds: float
    rows_per_s: float
    mb_per_s: float
    first_row_ms: float
    requests: float
    seeks: float
    states: float
    written_per_s: float
    """Rows a second that the writer came to."""
    slowest_s: float
    fastest_s: float
    lost: int
    """The sum of all."""
    repeated: int
    """The sum of all."""


def median_of(costs: Sequence[Cost]) -> Median:
    """The middle of each figure, one by one."""

    def middle(values: Sequence[float]) -> float:
        return float(f"{statistics.median(values):.5g}")

    return Median(
        scans=len(costs),
        seconds=middle([each.seconds for each in costs]),
        rows_per_s=middle([each.rows_per_s for each in costs]),
        mb_per_s=middle([each.mb_per_s for each in costs]),
        first_row_ms=middle([each.first_row_s * 1000 for each in costs]),
        requests=middle([each.requests for each in costs]),
        seeks=middle([each.seeks for each in costs]),
        states=middle([each.states for each in costs]),
        written_per_s=middle([each.written / each.seconds for each in costs]),
        slowest_s=middle([max(each.seconds for each in costs)]),
        fastest_s=middle([min(each.seconds for each in costs)]),
        lost=sum(each.lost for each in costs),
        repeated=sum(each.repeated for each in costs),
    )
