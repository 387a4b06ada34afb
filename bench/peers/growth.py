"""How the time of a full scan grows: with the rows, their width, and the buckets that they are spread over."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness.bars import Bar, at_most
from bench.harness.errors import BenchFailed
from bench.harness.processes import Worker, running_worker
from bench.harness.server import running_server
from bench.harness.spread import exponent
from bench.peers.reading import Cost, Reading, reader
from bench.peers.rows import WIDTHS
from bench.peers.servers import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXPONENT_MAX: Final = 1.1
"""Of the time by the rows."""
BUCKETS: Final = (1, 4, 16, 64)
_PART_OF: Final = 10**6


@dataclass(kw_only=True, slots=True)
class Grown:
    """Scans by push of one table."""

    by: str
    """What grows: `rows`, `width` or `buckets`."""
    rows: int
    width: str
    buckets: int
    seconds: list[float] = field(default_factory=list)

    @property
    def table(self) -> str:
        """Its name."""
        return f"{self.by}_{self.rows}_{self.width}_{self.buckets}"

    @property
    def size(self) -> int:
        """Of what grows."""
        return {"rows": self.rows, "width": int(self.width), "buckets": self.buckets}[self.by]


def cases(rows: int) -> list[Grown]:
    """Up to `rows` rows, in powers of ten from 10 000; the other tables have a quarter of that, or of a million."""
    powers = [10**power for power in range(4, len(str(rows)))]
    part = max(1, min(rows, _PART_OF) // 4)
    return [
        *(Grown(by="rows", rows=count, width="86", buckets=1) for count in powers),
        *(Grown(by="width", rows=part // 8, width=width, buckets=1) for width in WIDTHS),
        *(Grown(by="buckets", rows=part, width="86", buckets=count) for count in BUCKETS),
    ]


def measure(rows: int, rounds: int, log: Callable[[str], object]) -> list[Grown]:
    """Load the tables, and scan each in every round.

    Raises:
        BenchFailed: A scan read another number of rows, or a process did not answer.
    """
    found = cases(rows)
    with tempfile.TemporaryDirectory() as directory, running_server(Path(directory)) as server:
        for case in found:
            log(f"growth: loading {case.table}")
            load(server.endpoint, WIDTHS[case.width], case.rows, case.buckets, table=case.table)
        with running_worker(reader) as worker:
            for number in range(rounds + 1):  # The first one warms up.
                log(f"growth: round {number} of {rounds}")
                for case in found:
                    seconds = _scan(worker, server.endpoint, case)
                    if number:
                        case.seconds.append(round(seconds, 5))
    return found


def _scan(worker: Worker[Reading, Cost], endpoint: str, case: Grown) -> float:
    cost = worker.do(Reading(way="push", place=endpoint, table=case.table, buckets=case.buckets))
    if cost.rows != case.rows:
        raise BenchFailed(f"a scan of {case.table} read {cost.rows} rows")
    return cost.seconds


def exponents(found: Sequence[Grown]) -> dict[str, float]:
    """By what grows: the power of it by which the time grows, fitted to all sizes."""
    fitted = {}
    for by in dict.fromkeys(each.by for each in found):
        power = exponent({each.size: each.seconds for each in found if each.by == by})
        if power is not None:
            fitted[by] = power
    return fitted


def judge(found: Sequence[Grown]) -> list[Bar]:
    """What must hold: twice the rows take no more than about twice the time."""
    exponent = exponents(found).get("rows")
    if exponent is None:
        return []
    name = "time of a scan by its rows, exponent"
    return [at_most(name, exponent, EXPONENT_MAX)]
