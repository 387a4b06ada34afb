"""What a scan waits for beside others: ten rows alone, and whole tables by 1 to 64 scans, alone and beside a writer."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.harness.bars import Bar, at_least, at_most
from bench.harness.errors import BenchFailed
from bench.harness.processes import Peer, Worker, running_worker, running_writer
from bench.harness.spread import as_document, exponent
from bench.peers.crowds import Crowd, CrowdCost, crowd_reader, writer
from bench.peers.rows import WIDTHS
from bench.peers.servers import TABLE, running_servers, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TEN: Final = 10
TEN_FIRST_MS_MAX: Final = 1.5
CROWD_FIRST_MS_MAX: Final = 250
AGGREGATE_MIN: Final = 0.9
"""Of the best number of scans."""


@dataclass(kw_only=True, slots=True)
class Crowded:
    """So many scans at once by one way, over all rounds."""

    way: str
    scans: int
    row_limit: int
    """Of each; 0: all rows."""
    writing: bool
    """Whether a writer changed the table meanwhile."""
    first_batch_ms: list[float] = field(default_factory=list)
    """Of every scan of every round."""
    rows_per_s: list[float] = field(default_factory=list)
    """Of all scans together, by round."""
    slowest_by_median: list[float] = field(default_factory=list)
    """How much longer than the median scan the last one took, by round: 1 is fair."""
    seconds: list[float] = field(default_factory=list)
    """Until all had ended, by round."""
    least_share: list[float] = field(default_factory=list)
    """When the first one ended: the least rows that one of them had, by the most, by round: 1 is fair."""
    written_rows_per_s: list[float] = field(default_factory=list)
    server_us_per_row: list[float] = field(default_factory=list)
    """Of the rows that were read; by round, the writing beside them included."""
    client_us_per_row: list[float] = field(default_factory=list)
    server_resident_bytes: int = 0

    def add(self, cost: CrowdCost, server_cpu_s: float) -> None:
        """One more round."""
        seconds, rows = [run.seconds for run in cost.runs], sum(run.rows for run in cost.runs)
        self.first_batch_ms += [round(run.first_batch_s * 1e3, 3) for run in cost.runs]
        self.rows_per_s.append(round(rows / cost.seconds))
        self.slowest_by_median.append(round(max(seconds) / statistics.median(seconds), 3))
        self.seconds.append(round(cost.seconds, 4))
        self.least_share.append(cost.least_share)
        self.server_us_per_row.append(round(server_cpu_s * 1e6 / rows, 4))
        self.client_us_per_row.append(round(cost.cpu_s * 1e6 / rows, 4))

    def first_ms(self, share: float) -> float:
        """The first batch came within so many milliseconds for this share of the scans."""
        ordered = sorted(self.first_batch_ms)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


@contextmanager
def _serving(rows: int) -> Iterator[dict[str, Peer]]:
    """Every server, with the same narrow rows in one bucket."""
    with tempfile.TemporaryDirectory() as directory:
        stored = store(Path(directory), WIDTHS["86"], rows, 1)
        with running_servers(stored) as servers:
            yield {"push": servers.weir, "push, image": servers.image, **servers.peers}


def measure_first(rows: int, repeats: int, rounds: int, log: Callable[[str], object]) -> list[Crowded]:
    """Ten rows, one scan after another.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    with _serving(rows) as peers:
        ways = {**peers, "session": peers["push"]}
        del ways["push, image"]  # Ten rows are read from the row store.
        found = [Crowded(way=way, scans=1, row_limit=TEN, writing=False) for way in ways]
        with ExitStack() as stack:
            workers = {way: stack.enter_context(running_worker(crowd_reader)) for way in ways}
            for number in range(rounds + 1):  # The first one warms up.
                log(f"ten rows: round {number} of {rounds}")
                for crowded in found:
                    crowd = Crowd(
                        way=crowded.way.partition(",")[0],
                        place=ways[crowded.way].endpoint,
                        table=TABLE,
                        scans=1,
                        repeats=repeats if number else 10,
                        row_limit=TEN,
                        batch_bytes=64 << 10,
                    )
                    _run(workers[crowded.way], crowd, TEN, crowded if number else None, ways[crowded.way])
        return found


def measure_crowds(
    rows: int, crowds: Sequence[int], rounds: int, log: Callable[[str], object]
) -> list[Crowded]:
    """The whole table by so many scans at once, of weir beside a writer, too.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    with _serving(rows) as peers:
        found = [
            Crowded(way=way, scans=count, row_limit=0, writing=False) for count in crowds for way in peers
        ]
        found += [Crowded(way="push", scans=count, row_limit=0, writing=True) for count in crowds]
        with ExitStack() as stack:
            workers = {way: stack.enter_context(running_worker(crowd_reader)) for way in peers}
            for number in range(rounds):
                for crowded in _in_turns(found, crowds, number):
                    log(
                        f"{crowded.scans} scans by {crowded.way}{', beside a writer' * crowded.writing}:"
                        f" round {number + 1} of {rounds}"
                    )
                    peer = peers[crowded.way]
                    way = crowded.way.partition(",")[0]
                    crowd = Crowd(way=way, place=peer.endpoint, table=TABLE, scans=crowded.scans)
                    # As in `scans`: the second one counts.
                    _run(workers[crowded.way], crowd, rows, None, peer)
                    if not crowded.writing:
                        _run(workers[crowded.way], crowd, rows, crowded, peer)
                        continue
                    with running_writer(writer, peer.endpoint, TABLE, rows) as beside:
                        _run(workers[crowded.way], crowd, rows, crowded, peer)
                    crowded.written_rows_per_s.append(round(beside.rows / beside.seconds))
        return found


def _in_turns(found: Sequence[Crowded], crowds: Sequence[int], number: int) -> list[Crowded]:
    """In each round another crowd is the first: what a writer leaves in the memtable, the next ones have to pass."""
    return sorted(found, key=lambda each: (each.writing, (crowds.index(each.scans) - number) % len(crowds)))


def _run(
    worker: Worker[Crowd, CrowdCost], crowd: Crowd, rows: int, crowded: Crowded | None, peer: Peer
) -> None:
    before = peer.cpu_s()
    cost = worker.do(crowd)
    wrong = {run.rows for run in cost.runs} - {rows}
    if wrong:
        raise BenchFailed(f"{crowd.way} read {wrong} rows of {rows}")
    if crowded is not None:
        crowded.add(cost, peer.cpu_s() - before)
        crowded.server_resident_bytes = max(crowded.server_resident_bytes, peer.resident_bytes())


def judge(found: Sequence[Crowded]) -> list[Bar]:
    """What must hold of ten rows, and of crowds."""
    bars = []
    for each in found:
        if each.row_limit == TEN and each.way == "push":
            value = each.first_ms(0.5)
            bars.append(at_most("ten rows, first batch, ms, p50", value, TEN_FIRST_MS_MAX))
    for writing in (False, True):
        crowds = [
            each for each in found if each.way == "push" and not each.row_limit and each.writing == writing
        ]
        if crowds:
            bars += _crowd_bars(crowds, " beside a writer" * writing)
    return bars


def _crowd_bars(crowds: Sequence[Crowded], beside: str) -> list[Bar]:
    most = max(crowds, key=lambda each: each.scans)
    best = max(statistics.median(each.rows_per_s) for each in crowds)
    share = statistics.median(most.rows_per_s) / best
    first = most.first_ms(0.99)
    return [
        at_most(f"{most.scans} scans{beside}, first batch, ms, p99", first, CROWD_FIRST_MS_MAX),
        at_least(
            f"{most.scans} scans{beside}, rows a second by the best number of scans", share, AGGREGATE_MIN
        ),
    ]


def as_documents(found: Sequence[Crowded]) -> list[dict[str, Any]]:
    """For the JSON: instead of every scan's first batch, how soon they came."""
    return [
        as_document(each)
        | {
            "first_batch_ms": {
                name: each.first_ms(share)
                for name, share in (("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            }
        }
        for each in found
    ]


def exponents(found: Sequence[Crowded]) -> dict[str, float]:
    """By way: the power of the number of scans by which the time until all have ended grows; 1 is a fixed sum."""
    fitted = {}
    for way, writing in dict.fromkeys((each.way, each.writing) for each in found):
        these = [each for each in found if (each.way, each.writing) == (way, writing)]
        power = exponent({each.scans: each.seconds for each in these})
        if power is not None:
            fitted[way + ", beside a writer" * writing] = power
    return fitted
