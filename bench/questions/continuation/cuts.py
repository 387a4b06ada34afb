"""What does it cost when the line breaks every so many octets, and what when the server is killed?

A cut line is made again by the model's client, which goes on. A killed server is started again on the same
directory and port; where the scan was something that it kept, the consumer begins again.
"""

from __future__ import annotations

import functools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import trio

import scanner
from bench.harness.errors import BenchFailed
from bench.harness.links import Link
from bench.questions.continuation.orders import KEY, lost_and_repeated
from bench.questions.continuation.scanning import MODELS, Cost, Way, planned, scan_once

if TYPE_CHECKING:
    from bench.questions.continuation.serving import ServerProcess

RETRIES = 60
"""A server that starts on busy processors may take longer than the default waits."""
KILLED_AT = 0.4
"""Of the rows."""
CREDIT_BYTES_PER_ROW = 10
"""Where a table is small: a row has about 110 octets, so that less than a tenth of it is on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutCost:
    """Scans by one model over lines that break."""

    model: str
    every_bytes: float
    """Of one line; infinite: it does not break."""
    scans: int
    cuts: float
    """Of one scan, median."""
    seconds: float
    """Of one scan, median."""
    recovery_ms: float
    """From a cut to the next rows on the line, median of all; 0: none."""
    again_mb_per_cut: float
    """That the server sent more than without a cut, for each cut, median; what was still under way counts."""
    restarts: int
    """Times that a consumer had to begin again, all scans."""
    rows_again: int
    """Rows that it then had to read again, all scans."""
    lost: int
    repeated: int
    requests: float


def measure_cuts(
    server: ServerProcess,
    table: str,
    rows: int,
    every_bytes: Sequence[float],
    rounds: int,
    advance: Callable[[], None],
) -> list[CutCost]:
    """Scan by each model without a cut, and with one every so many octets, in turn."""
    rates = (math.inf, *every_bytes)
    costs: dict[tuple[str, float], list[Cost]] = {(model, rate): [] for rate in rates for model in MODELS}
    for seed in range(rounds):
        for model, rate in costs:
            way = Way(model=model, cut_bytes=rate, page_bytes=page_bytes_between(rate))
            before = server.held().sent_bytes
            cost = trio.run(functools.partial(scan_once, server.endpoint, table, rows, way, seed))
            cost.sent_bytes = server.held().sent_bytes - before
            costs[model, rate].append(cost)
            advance()
    whole = {model: statistics.median(each.sent_bytes for each in costs[model, math.inf]) for model in MODELS}
    return [_cut_cost(model, rate, found, whole[model]) for (model, rate), found in costs.items()]


def page_bytes_between(rate: float) -> int:
    """The page of one who knows his line: as always, but at most a quarter of what comes between two cuts.

    A page comes whole or not at all. One that does not fit between two cuts never comes.
    """
    return round(min(Way(model="token").page_bytes, rate / 4))


def _cut_cost(model: str, rate: float, costs: Sequence[Cost], whole_bytes: float) -> CutCost:
    recoveries = [each for cost in costs for each in cost.recoveries_s]
    again = [(cost.sent_bytes - whole_bytes) / max(1, cost.cuts) for cost in costs]
    return CutCost(
        model=model,
        every_bytes=rate,
        scans=len(costs),
        cuts=statistics.median(cost.cuts for cost in costs),
        seconds=round(statistics.median(cost.seconds for cost in costs), 3),
        recovery_ms=round(statistics.median(recoveries) * 1000, 1) if recoveries else 0.0,
        again_mb_per_cut=round(statistics.median(again) / 1e6, 2) if recoveries else 0.0,
        restarts=sum(cost.restarts for cost in costs),
        rows_again=sum(cost.rows_again for cost in costs),
        lost=sum(cost.lost for cost in costs),
        repeated=sum(cost.repeated for cost in costs),
        requests=statistics.median(cost.requests for cost in costs),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A scan by one model whose server was killed in the middle, and started again."""

    model: str
    rows: int
    had_rows: int
    """That the consumer had when it was cut off."""
    rows_again: int
    """Of these, how many it had to read again."""
    down_s: float
    """From the kill until the server listened again."""
    back_s: float
    """From the kill until the consumer had more rows than before it."""
    read_source: str
    """What the scan was continued from: its read source; empty: it was begun again."""
    lost: int
    repeated: int


class _Killer:
    """Kills the server and starts it again, beside the consumer."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._thread = threading.Thread(target=self._restart, daemon=True)
        self._listened_at = 0.0
        self.killed_at = 0.0

    def strike(self) -> None:
        """Begin."""
        self._server.kill()
        self.killed_at = time.perf_counter()
        self._thread.start()

    def _restart(self) -> None:
        self._server.start()
        self._listened_at = time.perf_counter()

    def down_s(self) -> float:
        """How long nobody listened; waits until somebody does.

        Raises:
            BenchFailed: It was not started again.
        """
        self._thread.join()
        if not self._listened_at:
            raise BenchFailed("the server did not start again")
        return self._listened_at - self.killed_at


def measure_losses(
    server: ServerProcess,
    table: str,
    rows: int,
    models: Sequence[str],
    rounds: int,
    advance: Callable[[], None],
) -> list[Loss]:
    """Kill the server in the middle of a scan by each model, in turn."""
    found = []
    for _ in range(rounds):
        for model in models:
            found.append(trio.run(_scan_killed, server, table, rows, Way(model=model)))
            advance()
    return found


async def _scan_killed(server: ServerProcess, table_name: str, rows: int, way: Way) -> Loss:
    killer = _Killer(server)
    async with trio.open_nursery() as nursery:
        link = Link(server.endpoint, nursery)
        connecting = scanner.connect(server.endpoint, dial=link.dial, retries=RETRIES, rng=Random(7))
        async with connecting as client:
            table = await client.table(table_name)
            scan = planned(table, way)
            # A server that has already sent everything cannot be killed in the middle.
            credit_bytes = rows * CREDIT_BYTES_PER_ROW
            scan = scan.with_credit(min(scan.plan.credit_bytes or credit_bytes, credit_bytes))
            had, back_at, again, ids = await _consume(scan, link, killer, rows)
        nursery.cancel_scope.cancel()
    down_s = killer.down_s()
    lost, repeated = lost_and_repeated(ids, rows)
    return Loss(
        model=way.model,
        rows=rows,
        had_rows=had,
        rows_again=again,
        down_s=round(down_s, 3),
        back_s=round(back_at - killer.killed_at, 3),
        read_source="" if again else ", ".join(server.held().read_sources) or "now",
        lost=lost,
        repeated=repeated,
    )


async def _consume(
    scan: scanner.Scan, link: Link, killer: _Killer, rows: int
) -> tuple[int, float, int, list[npt.NDArray[np.int64]]]:
    """Rows had when it was cut off, when there were more, rows read again, and all keys."""
    had = again = 0
    back_at = 0.0
    while True:
        ids: list[npt.NDArray[np.int64]] = []
        count = 0
        try:
            async with scan.execute() as batches:
                async for batch in batches:
                    if link.recoveries_s and not had:
                        had = count
                    ids.append(np.array(batch.column(KEY)))
                    count += batch.num_rows
                    if had and not back_at and count > had:
                        back_at = time.perf_counter()
                    if not killer.killed_at and count >= KILLED_AT * rows:
                        killer.strike()
        except (scanner.SessionUnknown, scanner.SessionExpired, scanner.SnapshotLost):
            had, again = count, again + count
            continue
        return had, back_at, again, ids
