"""How fast is each model, for which pages, tables, lines and writers?

Every cell is one way to scan one table beside one writer; all cells are measured in turn, round after round, each
round in another order, and each has the median of its rounds.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bench.questions.continuation.scanning import MIB, MODELS, Cost, Median, Way, median_of, scan_once
from bench.questions.continuation.writing import FLAT_OUT, STOPPED, Writer
from scanner.server.config import ScannerConfig

if TYPE_CHECKING:
    from bench.questions.continuation.serving import ServerProcess

ROUND_TRIP_S = 0.05
PACED_ROWS_PER_S = 3_000.0
PAGE_SIZES = (256 * 1024, MIB, 4 * MIB)
PAGE_DEPTHS = (0, 1, 4)
PAGE_BYTES_MAX = ScannerConfig().session_page_bytes_max
RANGES = 4
_WRITER_SETTLES_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Rows of the tables; each has one bucket, but `wide` the rows of `large` in four.

    `huge` is for rates: the round trip of 50 ms for its open is a small part of its scan.
    """

    small: int
    medium: int
    large: int
    huge: int

    def rows_of(self, name: str) -> int:
        """Rows of a table."""
        return {
            "small": self.small,
            "medium": self.medium,
            "large": self.large,
            "wide": self.large,
            "huge": self.huge,
        }[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One way to scan one table beside one writer."""

    table: str
    way: Way
    writer: float = STOPPED
    """Rows a second that it is told to write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """A cell, measured."""

    cell: Cell
    median: Median


def cells() -> list[Cell]:
    """All of them, each once."""
    found = [Cell(table=table, way=Way(model=model)) for table in ("small", "medium") for model in MODELS]
    for model in MODELS:
        found += [
            Cell(table="large", way=Way(model=model, round_trip_s=round_trip_s))
            for round_trip_s in (0.0, ROUND_TRIP_S)
        ]
        found += [
            Cell(table="medium", way=Way(model=model), writer=rate) for rate in (PACED_ROWS_PER_S, FLAT_OUT)
        ]
    for model in MODELS[1:]:
        ways = [Way(model=model, page_bytes=size) for size in PAGE_SIZES]
        ways += [Way(model=model, page_bytes=MIB, page_depth=depth) for depth in PAGE_DEPTHS]
        found += [Cell(table="medium", way=way) for way in ways]
    for model in ("push", "session"):
        found.append(Cell(table="wide", way=Way(model=model, round_trip_s=ROUND_TRIP_S)))
        found.append(Cell(table="small", way=Way(model=model, round_trip_s=ROUND_TRIP_S)))
        found += [
            Cell(table="huge", way=Way(model=model, round_trip_s=round_trip_s))
            for round_trip_s in (0.0, ROUND_TRIP_S)
        ]
    # Over a long line by other means: the largest page, several ranges of keys, less credit.
    found += [
        Cell(table="large", way=Way(model=model, round_trip_s=ROUND_TRIP_S, **means))
        for model, means in (
            ("session", {"page_bytes": PAGE_BYTES_MAX}),
            ("asof", {"ranges": RANGES}),
            ("push", {"ranges": RANGES}),
            ("push", {"credit_bytes": 8 * MIB}),
        )
    ]
    # Every page of asof undoes all changes since the first one: more pages, more undoing.
    for model in ("token", "asof"):
        found.append(Cell(table="medium", way=Way(model=model, page_bytes=MIB), writer=PACED_ROWS_PER_S))
    return list(dict.fromkeys(found))


def is_judged(cell: Cell) -> bool:
    """Whether a bar depends on it."""
    return cell.table == "huge"


def measure(
    server: ServerProcess,
    tables: Tables,
    wanted: Sequence[Cell],
    rounds: int,
    judged_rounds: int,
    advance: Callable[[], None],
) -> list[Speed]:
    """Measure every cell in every round.

    Args:
        server: Serves tables of the names that the cells have.
        tables: Their rows.
        wanted: What to measure.
        rounds: How often.
        judged_rounds: How often those that bars depend on, at least `rounds`.
        advance: Told of each scan.
    """
    costs: dict[Cell, list[Cost]] = {cell: [] for cell in wanted}
    rng = random.Random(rounds)
    with Writer(server.endpoint, "medium", tables.medium) as writer:
        for number in range(judged_rounds):
            # The quiet ones first: what a writer leaves for compaction must not be theirs.
            for quiet in (True, False):
                order = [
                    cell
                    for cell in wanted
                    if (cell.writer == STOPPED) is quiet and (number < rounds or is_judged(cell))
                ]
                rng.shuffle(order)
                for cell in order:
                    costs[cell].append(_measure(server, tables, cell, writer))
                    advance()
    return [Speed(cell=cell, median=median_of(found)) for cell, found in costs.items()]


def _measure(server: ServerProcess, tables: Tables, cell: Cell, writer: Writer) -> Cost:
    if cell.writer != STOPPED:
        writer.set_rate(cell.writer)
        time.sleep(_WRITER_SETTLES_S)
    before, seeks = writer.written, server.held().seeks
    rows = tables.rows_of(cell.table)
    cost = trio.run(functools.partial(scan_once, server.endpoint, cell.table, rows, cell.way))
    cost.written = writer.written - before
    cost.seeks = server.held().seeks - seeks
    if cell.writer != STOPPED:
        writer.stop()
    return cost
