"""Is what each model delivers one state of a table, while somebody writes? And if not, in how many rows?

The flights of the demo, its writer and its oracle: every scan is judged row by row against the state at the log offset
that it claims; a scan by cursor claims that of its first page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

import scanner.sync
from bench.harness import flights
from bench.harness.isolation import check_under_writes
from bench.harness.loading import histories, load
from bench.harness.writer import Writer
from bench.questions.continuation.scanning import MODELS

if TYPE_CHECKING:
    from bench.questions.continuation.serving import ServerProcess


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """Scans by one model beside a writer."""

    model: str
    scans: int
    rows: int
    commits_meanwhile_min: int
    """Commits to its bucket between a scan's offset and its end, the fewest."""
    violations: int
    """Rows that were not as of the scan's offset, all scans."""
    scans_violated: int
    kinds: dict[str, int] = field(default_factory=dict)


def measure(server: ServerProcess, rows: int, rounds: int, advance: Callable[[], None]) -> list[Isolation]:
    """Scan every bucket by every model, beside a writer that never stops.

    Args:
        server: Has no such table yet.
        rows: Flights to load, the first of the year.
        rounds: Scans of each bucket and model.
        advance: Told of each round of a model.
    """
    loaded = flights.read_flights(flights.csv_text()).slice(0, rows)
    found = []
    with scanner.sync.connect(server.endpoint) as client:
        ends = load(client, loaded, Console(quiet=True))
        known = histories(client, loaded, ends)
        with Writer(server.endpoint, flights.TABLE, known, seed=4) as writer:
            for model in MODELS:
                scans = check_under_writes(client, writer, known, (model,), rounds)
                kinds: dict[str, int] = {}
                for scan in scans:
                    for violation in scan.violations:
                        kinds[violation.kind] = kinds.get(violation.kind, 0) + 1
                found.append(
                    Isolation(
                        model=model,
                        scans=len(scans),
                        rows=sum(scan.rows for scan in scans),
                        commits_meanwhile_min=min(scan.commits_meanwhile for scan in scans),
                        violations=sum(kinds.values()),
                        scans_violated=sum(bool(scan.violations) for scan in scans),
                        kinds=kinds,
                    )
                )
                advance()
    return found
