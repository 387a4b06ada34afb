"""Full scans from an image over a line of 0 and of 50 ms: push beside `session`, and push to a consumer of 100 MB/s."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

import scanner
import scanner.sync
from bench.harness.bars import Bar, at_least
from bench.harness.errors import BenchFailed
from bench.harness.links import Link
from bench.harness.processes import answer_all, running_worker
from bench.harness.server import running_server
from bench.harness.spread import ratio
from bench.peers.rows import WIDTHS
from bench.peers.servers import TABLE, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

FAR_S: Final = 0.05
LIMITED_BYTES_PER_S: Final = 100e6
OVER_NEAR_MIN: Final = 0.95
OVER_SESSION_MIN: Final = 6
_PAGE_BYTES: Final = 4 << 20


@dataclass(kw_only=True, slots=True)
class Far:
    """One way to scan over one line, over all rounds."""

    mode: str
    round_trip_s: float
    bytes_per_s: float
    """What the consumer takes of Arrow's bytes; 0: as many as come."""
    rows: int
    """Of the table."""
    rows_per_s: list[float] = field(default_factory=list)
    first_batch_ms: list[float] = field(default_factory=list)
    server_us_per_row: list[float] = field(default_factory=list)
    server_resident_bytes: int = 0


CASES: Final = (
    ("push", 0.0, 0.0),
    ("push", FAR_S, 0.0),
    ("session", 0.0, 0.0),
    ("session", FAR_S, 0.0),
    ("push", 0.0, LIMITED_BYTES_PER_S),
    ("push", FAR_S, LIMITED_BYTES_PER_S),
)


def far_reader(commands: Connection) -> None:
    """Scan as is told over a pipe, until None comes; answers with rows, seconds, and seconds to the first batch."""
    answer_all(commands, lambda asked: trio.run(_scan, *asked))


async def _scan(
    endpoint: str, mode: str, round_trip_s: float, bytes_per_s: float
) -> tuple[int, float, float]:
    async with trio.open_nursery() as nursery:
        link = Link(endpoint, nursery, round_trip_s)
        async with scanner.connect(endpoint, dial=link.dial) as client:
            scan = (await client.table(TABLE)).new_scan().with_mode(mode)
            if mode != "push":
                scan = scan.with_page_bytes(_PAGE_BYTES).with_page_depth(1)
            rows, taken_bytes, first_s, started = 0, 0, 0.0, time.perf_counter()
            async with scan.execute() as batches:
                async for batch in batches:
                    first_s = first_s or time.perf_counter() - started
                    rows += batch.num_rows
                    taken_bytes += batch.nbytes
                    if bytes_per_s:
                        await trio.sleep(max(0.0, started + taken_bytes / bytes_per_s - time.perf_counter()))
            seconds = time.perf_counter() - started
        nursery.cancel_scope.cancel()
    return rows, seconds, first_s


def measure(rows: int, rounds: int, log: Callable[[str], object]) -> list[Far]:
    """Load a table, make its image, and scan it by every way in every round.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    found = [Far(mode=mode, round_trip_s=line, bytes_per_s=limit, rows=rows) for mode, line, limit in CASES]
    with tempfile.TemporaryDirectory() as directory, running_server(Path(directory)) as server:
        log("far: loading, and making an image")
        load(server.endpoint, WIDTHS["86"], rows, 1)
        with scanner.sync.connect(server.endpoint) as client:
            client.make_images(TABLE)
        with running_worker(far_reader) as worker:
            for number in range(rounds):
                log(f"far: round {number + 1} of {rounds}")
                for each in found:
                    cpu_s = server.cpu_s()
                    read, seconds, first_s = worker.do(
                        (server.endpoint, each.mode, each.round_trip_s, each.bytes_per_s)
                    )
                    if read != rows:
                        raise BenchFailed(f"{each.mode} read {read} rows of {rows}")
                    each.rows_per_s.append(round(rows / seconds))
                    each.first_batch_ms.append(round(first_s * 1e3, 2))
                    each.server_us_per_row.append(round((server.cpu_s() - cpu_s) * 1e6 / rows, 4))
                    each.server_resident_bytes = max(each.server_resident_bytes, server.resident_bytes())
    return found


def judge(found: Sequence[Far]) -> list[Bar]:
    """What must hold of distance."""
    rates = {(each.mode, each.round_trip_s, each.bytes_per_s): each.rows_per_s for each in found}
    if not rates:
        return []
    limited = ratio(rates["push", FAR_S, LIMITED_BYTES_PER_S], rates["push", 0.0, LIMITED_BYTES_PER_S])
    session = ratio(rates["push", FAR_S, 0.0], rates["session", FAR_S, 0.0])
    return [
        at_least("push at 50 ms over itself at 0, 100 MB/s taken", limited, OVER_NEAR_MIN),
        at_least(f"push over session at 50 ms, image, {found[0].rows:,} rows", session, OVER_SESSION_MIN),
    ]
