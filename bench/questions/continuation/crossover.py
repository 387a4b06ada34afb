"""From how many changes on does a rebuilt state cost more than a pinned one?

Two tables of the same rows get the same updates, step by step. A scan by token pins the state of the first as it was
before them all; pages of `asof` rebuild that of the second. At each step: the time of a page either way, and the time
of a whole push scan as of then from the pinned snapshot, rebuilt, and as of now.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bench.harness.errors import BenchFailed
from bench.questions.continuation.orders import create
from bench.questions.continuation.scanning import Way, open_client
from bench.questions.continuation.writing import Writer

if TYPE_CHECKING:
    import scanner
    from bench.questions.continuation.serving import ServerProcess

PAGES = 3
"""Of each model and step."""
PINNED, REBUILT = "pinned", "rebuilt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """After so many changes."""

    changes: int
    """Since the offset; an update is two."""
    ratio: float
    """Rows that were updated, over the rows of the table."""
    pinned_page_ms: float
    rebuilt_page_ms: float
    pinned_scan_s: float
    """A whole push scan from the snapshot that is held."""
    rebuilt_scan_s: float
    """A whole push scan, rebuilt."""
    rebuilt_first_row_ms: float
    """Of that, until the first row."""
    live_scan_s: float
    """A whole push scan as of now, of the table whose state nobody pins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """All steps."""

    rows: int
    page_bytes: int
    steps: list[Step]

    def first_above(self, factor: float) -> int | None:
        """The changes from which on a rebuilt page takes `factor` times a pinned one; None: it never did.

        Between two steps it is read off the line through them.
        """
        before = None
        for step in self.steps:
            ratio = step.rebuilt_page_ms / step.pinned_page_ms
            if ratio >= factor:
                if before is None:
                    return step.changes
                low, low_ratio = before
                share = (factor - low_ratio) / (ratio - low_ratio)
                return round(low + share * (step.changes - low))
            before = (step.changes, ratio)
        return None


def measure(
    server: ServerProcess,
    rows: int,
    page_bytes: int,
    ratios: Sequence[float],
    rounds: int,
    advance: Callable[[], None],
) -> Crossover:
    """Measure every step.

    Args:
        server: Without lingering snapshots, so that what is rebuilt is rebuilt.
        rows: Of each table, created here.
        page_bytes: So small that a table has one page and `PAGES` for each step, and some more.
        ratios: Updated rows over rows, cumulative and ascending.
        rounds: Whole scans of each kind and step.
        advance: Told of each step.
    """
    for name in (PINNED, REBUILT):
        create(server, name, rows)
    with Writer(server.endpoint, PINNED, rows) as first, Writer(server.endpoint, REBUILT, rows) as second:
        steps = trio.run(_measure, server, rows, page_bytes, ratios, rounds, (first, second), advance)
    return Crossover(rows=rows, page_bytes=page_bytes, steps=steps)


async def _measure(
    server: ServerProcess,
    rows: int,
    page_bytes: int,
    ratios: Sequence[float],
    rounds: int,
    writers: tuple[Writer, Writer],
    advance: Callable[[], None],
) -> list[Step]:
    steps = []
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(open_client(server.endpoint, Way(model="push")))
        tables = {name: await client.table(name) for name in (PINNED, REBUILT)}
        offsets = {name: (await table.offsets())[0].end_offset for name, table in tables.items()}
        pages = {}
        for name, mode in ((PINNED, "token"), (REBUILT, "asof")):
            scan = tables[name].new_scan().with_mode(mode).with_page_bytes(page_bytes).with_page_depth(0)
            pages[name] = await stack.enter_async_context(scan.execute())
            await anext(pages[name])
        written = 0
        for ratio in ratios:
            for writer in writers if round(ratio * rows) > written else ():
                await trio.to_thread.run_sync(writer.write, round(ratio * rows) - written)
            written = round(ratio * rows)
            times = {name: await _page_ms(batches) for name, batches in pages.items()}
            steps.append(await _step(tables, offsets, times, rows, rounds))
            advance()
    return steps


async def _page_ms(batches: scanner.Batches) -> float:
    took = []
    for _ in range(PAGES):
        started = time.perf_counter()
        await anext(batches)
        took.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(took), 2)


async def _step(
    tables: dict[str, scanner.Table],
    offsets: dict[str, int],
    page_ms: dict[str, float],
    rows: int,
    rounds: int,
) -> Step:
    pinned, rebuilt, first, live = [], [], [], []
    for _ in range(rounds):
        pinned.append((await _scan_s(tables[PINNED], rows, offsets[PINNED]))[0])
        seconds, first_s = await _scan_s(tables[REBUILT], rows, offsets[REBUILT])
        rebuilt.append(seconds)
        first.append(first_s * 1000)
        live.append((await _scan_s(tables[REBUILT], rows, None))[0])
    end = (await tables[REBUILT].offsets())[0].end_offset
    changes = end - offsets[REBUILT]
    return Step(
        changes=changes,
        ratio=round(changes / 2 / rows, 4),
        pinned_page_ms=page_ms[PINNED],
        rebuilt_page_ms=page_ms[REBUILT],
        pinned_scan_s=round(statistics.median(pinned), 4),
        rebuilt_scan_s=round(statistics.median(rebuilt), 4),
        rebuilt_first_row_ms=round(statistics.median(first), 2),
        live_scan_s=round(statistics.median(live), 4),
    )


async def _scan_s(table: scanner.Table, rows: int, as_of: int | None) -> tuple[float, float]:
    """Seconds of a whole scan by push, and of those until its first row."""
    scan = table.new_scan() if as_of is None else table.new_scan().as_of(as_of)
    started, first_s, count = time.perf_counter(), 0.0, 0
    async with scan.execute() as batches:
        async for batch in batches:
            first_s = first_s or time.perf_counter() - started
            count += batch.num_rows
    if count != rows:
        raise BenchFailed(f"{table.name} as of {as_of} has {count} rows, must be {rows}")
    return time.perf_counter() - started, first_s
