"""What a scan waits for beside others: ten rows alone, and whole tables by 1 to 64 scans, alone and beside a writer."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.harness.bars import Bar
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server
from bench.peers.crowds import Crowd, CrowdCost, crowd_reader, writer
from bench.peers.processes import Peer, Worker, running_peer, running_worker, running_writer
from bench.peers.rows import WIDTHS
from bench.peers.scans import load
from bench.peers.serving import serve_flight, serve_grpcio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

TEN: Final = 10
TEN_FIRST_MS_MAX: Final = 1.5
CROWD_FIRST_MS_MAX: Final = 250.0
AGGREGATE_MIN: Final = 0.9
"""Of the best number of scans."""
_TABLE: Final = "rows"


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
    written_rows_per_s: list[float] = field(default_factory=list)
    server_cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    server_resident_bytes: int = 0

    def add(self, cost: CrowdCost) -> None:
        """One more round."""
        seconds = [run.seconds for run in cost.runs]
        self.first_batch_ms += [round(run.first_batch_s * 1e3, 3) for run in cost.runs]
        self.rows_per_s.append(round(sum(run.rows for run in cost.runs) / cost.seconds))
        self.slowest_by_median.append(round(max(seconds) / statistics.median(seconds), 3))
        self.client_cpu_s = round(self.client_cpu_s + cost.cpu_s, 3)

    def first_ms(self, share: float) -> float:
        """The first batch came within so many milliseconds for this share of the scans."""
        ordered = sorted(self.first_batch_ms)
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


@contextmanager
def _serving(scratch: Path, rows: int) -> Iterator[dict[str, Peer]]:
    """Every server, with the same narrow rows in one bucket."""
    data = scratch / "weir"
    with running_server(data) as server:
        load(server.endpoint, WIDTHS["86"], rows, 1)
    copies = {name: Path(shutil.copytree(data, scratch / name)) for name in ("flight", "grpcio")}
    with ExitStack() as stack:
        weir = stack.enter_context(running_server(data))
        yield {
            "push": Peer.of(weir.pid, weir.endpoint),
            "flight": stack.enter_context(running_peer(serve_flight, copies["flight"])),
            "grpcio": stack.enter_context(running_peer(serve_grpcio, copies["grpcio"])),
        }


def measure_first(rows: int, repeats: int, rounds: int, console: Console) -> list[Crowded]:
    """Ten rows, one scan after another.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    with tempfile.TemporaryDirectory() as directory, _serving(Path(directory), rows) as peers:
        ways = {**peers, "session": peers["push"]}
        found = [Crowded(way=way, scans=1, row_limit=TEN, writing=False) for way in ways]
        with ExitStack() as stack:
            workers = {way: stack.enter_context(running_worker(crowd_reader)) for way in ways}
            for number in range(rounds + 1):  # The first one warms up.
                console.log(f"ten rows: round {number} of {rounds}")
                for crowded in found:
                    crowd = Crowd(
                        way=crowded.way,
                        place=ways[crowded.way].endpoint,
                        table=_TABLE,
                        scans=1,
                        repeats=repeats if number else 10,
                        row_limit=TEN,
                        batch_bytes=64 << 10,
                    )
                    _run(workers[crowded.way], crowd, TEN, crowded if number else None, ways[crowded.way])
        return found


def measure_crowds(rows: int, crowds: Sequence[int], rounds: int, console: Console) -> list[Crowded]:
    """The whole table by so many scans at once, of weir beside a writer, too.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    with tempfile.TemporaryDirectory() as directory, _serving(Path(directory), rows) as peers:
        found = [
            Crowded(way=way, scans=count, row_limit=0, writing=False) for count in crowds for way in peers
        ]
        found += [Crowded(way="push", scans=count, row_limit=0, writing=True) for count in crowds]
        with ExitStack() as stack:
            workers = {way: stack.enter_context(running_worker(crowd_reader)) for way in peers}
            for number in range(rounds):
                for crowded in found:
                    console.log(
                        f"{crowded.scans} scans by {crowded.way}{', beside a writer' * crowded.writing}:"
                        f" round {number + 1} of {rounds}"
                    )
                    peer = peers[crowded.way]
                    crowd = Crowd(way=crowded.way, place=peer.endpoint, table=_TABLE, scans=crowded.scans)
                    if not crowded.writing:
                        _run(workers[crowded.way], crowd, rows, crowded, peer)
                        continue
                    with running_writer(writer, peer.endpoint, _TABLE, rows) as beside:
                        _run(workers[crowded.way], crowd, rows, crowded, peer)
                    crowded.written_rows_per_s.append(round(beside.rows / beside.seconds))
        return found


def _run(
    worker: Worker[Crowd, CrowdCost], crowd: Crowd, rows: int, crowded: Crowded | None, peer: Peer
) -> None:
    before = peer.cpu_s()
    cost = worker.do(crowd)
    wrong = {run.rows for run in cost.runs} - {rows}
    if wrong:
        raise BenchFailed(f"{crowd.way} read {wrong} rows of {rows}")
    if crowded is not None:
        crowded.add(cost)
        crowded.server_cpu_s = round(crowded.server_cpu_s + peer.cpu_s() - before, 3)
        crowded.server_resident_bytes = max(crowded.server_resident_bytes, peer.resident_bytes())


def judge(found: Sequence[Crowded]) -> list[Bar]:
    """What must hold of ten rows, and of crowds."""
    bars = []
    for each in found:
        if each.row_limit == TEN and each.way == "push":
            value = each.first_ms(0.5)
            bars.append(
                Bar(
                    "ten rows, first batch, ms, p50",
                    value,
                    f"<= {TEN_FIRST_MS_MAX}",
                    value <= TEN_FIRST_MS_MAX,
                )
            )
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
    share = round(statistics.median(most.rows_per_s) / best, 2)
    first = most.first_ms(0.99)
    return [
        Bar(
            f"{most.scans} scans{beside}, first batch, ms, p99",
            first,
            f"<= {CROWD_FIRST_MS_MAX:g}",
            first <= CROWD_FIRST_MS_MAX,
        ),
        Bar(
            f"{most.scans} scans{beside}, rows a second by the best number of scans",
            share,
            f">= {AGGREGATE_MIN}",
            share >= AGGREGATE_MIN,
        ),
    ]


def show(found: Sequence[Crowded]) -> Table:
    """All of them."""
    title = "ten rows" if found[0].row_limit else "whole tables at once"
    table = Table(title=f"{title}: medians", padding=0)
    for heading in ("", "scans", "first ms p50", "p99", "M rows/s", "slowest/median", "written k/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for each in found:
        written = each.written_rows_per_s
        table.add_row(
            each.way,
            str(each.scans),
            f"{each.first_ms(0.5):.2f}",
            f"{each.first_ms(0.99):.2f}",
            f"{statistics.median(each.rows_per_s) / 1e6:.2f}",
            f"{statistics.median(each.slowest_by_median):.2f}",
            f"{statistics.median(written) / 1e3:.0f}" if written else "",
        )
    return table


def as_document(found: Sequence[Crowded]) -> list[dict[str, object]]:
    """For the JSON: instead of every scan's first batch, how soon they came."""
    return [
        {
            **{key: value for key, value in asdict(each).items() if key != "first_batch_ms"},
            "first_batch_ms": {
                name: each.first_ms(share)
                for name, share in (("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        }
        for each in found
    ]
