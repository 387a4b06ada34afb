"""What does a server hold for a consumer that has stopped reading, while somebody writes?

Each model has a server and a table of its own. The consumer takes one batch and no more; a paced writer updates rows;
what the server holds is looked at every fifth of a second. Then the writer stops, and when compaction has nothing
more to do the consumer reads on: what is deleted only then was kept for the stalled scan alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from bench.questions.continuation.orders import KEY, create, lost_and_repeated, wait_quiet
from bench.questions.continuation.scanning import MIB, Way, open_client, planned
from bench.questions.continuation.serving import ServerProcess, Settings
from bench.questions.continuation.writing import Writer

NOBODY = "nobody"
"""No scan at all: what the writer alone makes a server hold."""
CREDIT_BYTES = MIB
PAGE_BYTES = MIB
_SAMPLE_S = 0.2
_LINGER_S = 1.0
"""How long the snapshot of a scan that has ended lingers; what it keeps is freed after that."""
_FREED_S = 0.7
_PARKED_WITHIN_S = 60.0
"""Far longer than it takes: a scan that is not parked by then never will be, and the bars say so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What a server held at one moment."""

    at_s: float
    """Since the consumer stopped."""
    snapshots: int
    """RocksDB snapshots, by Admin.ListSnapshots: held and lingering."""
    iterators: int
    parked: int
    table_file_bytes: int
    resident_bytes: int
    written: int
    """Rows that the writer had written since then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalled:
    """One model."""

    model: str
    seconds: float
    park_after_s: float
    samples: list[Sample]
    written: int
    kept_bytes: int
    """Of table files that were deleted only when the scan was over."""
    rest_s: float
    """What reading the rest took."""
    rows: int
    lost: int
    repeated: int
    read_sources: dict[str, int]

    @property
    def snapshots_at_end(self) -> int:
        """That were open when the stall ended."""
        return self.samples[-1].snapshots

    @property
    def iterators_at_end(self) -> int:
        """That were open when the stall ended."""
        return self.samples[-1].iterators


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How the stall goes."""

    rows: int
    seconds: float
    park_after_s: float
    rows_per_s: float
    write_buffer_bytes: int = 2 * MIB


def measure(course: Course, models: Sequence[str], advance: Callable[[], None]) -> list[Stalled]:
    """Stall a consumer of each model, one after another."""
    found = []
    for model in (NOBODY, *models):
        settings = Settings(
            images="off",
            park_after_s=course.park_after_s,
            linger_s=_LINGER_S,
            write_buffer_bytes=course.write_buffer_bytes,
        )
        with (
            tempfile.TemporaryDirectory(prefix="weir-stalled-") as folder,
            ServerProcess(Path(folder, "data"), settings) as server,
        ):
            create(server, "orders", course.rows)
            with Writer(server.endpoint, "orders", course.rows) as writer:
                found.append(trio.run(_stall, server, model, course, writer))
        advance()
    return found


async def _stall(server: ServerProcess, model: str, course: Course, writer: Writer) -> Stalled:
    kept_bytes, rest_s, lost, repeated = 0, 0.0, 0, 0
    if model == NOBODY:
        samples, written = await _watch(server, model, course, writer)
    else:
        way = Way(model=model, page_bytes=PAGE_BYTES, page_depth=0)
        async with open_client(server.endpoint, way) as (client, _):
            scan = planned(await client.table("orders"), way).with_credit(CREDIT_BYTES)
            async with scan.execute() as batches:
                ids = [np.array((await anext(batches)).column(KEY))]
                samples, written = await _watch(server, model, course, writer)
                await trio.to_thread.run_sync(wait_quiet, server)
                with_scan = server.table_file_bytes()
                started = time.perf_counter()
                ids += [np.array(batch.column(KEY)) async for batch in batches]
                rest_s = time.perf_counter() - started
        await trio.sleep(_LINGER_S + _FREED_S)
        lost, repeated = lost_and_repeated(ids, course.rows)
        kept_bytes = with_scan - server.table_file_bytes()
    return Stalled(
        model=model,
        seconds=course.seconds,
        park_after_s=course.park_after_s,
        samples=samples,
        written=written,
        kept_bytes=max(0, kept_bytes),
        rest_s=round(rest_s, 3),
        rows=course.rows,
        lost=lost,
        repeated=repeated,
        read_sources=dict(server.held().read_sources),
    )


async def _watch(
    server: ServerProcess, model: str, course: Course, writer: Writer
) -> tuple[list[Sample], int]:
    """For the seconds of the course; a push scan is parked by then, also where the machine is slow."""
    samples: list[Sample] = []
    before = writer.written
    writer.set_rate(course.rows_per_s)
    started = trio.current_time()

    def is_over() -> bool:
        last = samples[-1]
        parked = model != "push" or last.parked or last.at_s >= course.seconds + _PARKED_WITHIN_S
        return last.at_s >= course.seconds and bool(parked)

    async with open_client(server.endpoint, Way(model="push")) as (admin, _):
        while not samples or not is_over():
            if samples:
                await trio.sleep(_SAMPLE_S)
            at_s = trio.current_time() - started
            held = server.held()  # First: a scan that is parked here has no snapshot in the list.
            listed = await admin.list_snapshots()
            samples.append(
                Sample(
                    at_s=round(at_s, 3),
                    snapshots=len(listed),
                    iterators=held.iterators,
                    parked=held.parked,
                    table_file_bytes=server.table_file_bytes(),
                    resident_bytes=server.resident_bytes(),
                    written=writer.written - before,
                )
            )
    await trio.to_thread.run_sync(writer.stop)
    return samples, writer.written - before
