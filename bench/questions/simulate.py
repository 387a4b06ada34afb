"""Does a scan survive everything that we can think of, together, a few hundred times over?

Each seed is one run of `bench.simulation`: the real server and client on a virtual clock, over pipes that clog, cut
and reset, with writers, stalled consumers, restarts and truncated logs. Every scan of it is judged row by row against a
model that was told of every commit. A seed that fails is one line here, and one command that runs it again, event for
event.

Expected: nothing. What a run costs is some tens of milliseconds of a processor for minutes of virtual time.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from rich.progress import Progress

from bench.harness.bars import Bar, some_of, write_json
from bench.simulation.history import History
from bench.simulation.validators import Violation
from bench.simulation.workload import VISITS, State, TailStart
from bench.simulation.world import Outcome, simulate
from scanner import ScanMode

if TYPE_CHECKING:
    from rich.console import Console

COVERING_SEEDS: Final = 500
"""Runs after which each of `MUST_HAPPEN` has happened; with fewer it is only counted."""
MUST_HAPPEN: Final[dict[str, str]] = {
    "clog": "connections clogged",
    "cut": "connections cut",
    "reset": "connections reset",
    "silence": "connections gone silent",
    "swizzled": "clogs of all connections at once",
    "killed": "servers killed",
    "drained": "servers drained",
    "truncated": "logs truncated",
    "emptied": "snapshot registries emptied",
    "imaged": "images made",
    "image_dropped": "images dropped",
    "image_damaged": "images damaged",
    "parks": "scans parked",
    "duplicate writes": "writes sent again after they were applied",
    "repeats_demand": "demands repeated",
    "stalls": "consumers stalled",
    "resumed from snapshot": "resumed from a snapshot",
    "resumed from as_of": "resumed by an as-of rebuild",
    "resumed from image": "resumed from an image",
    "ended after resumes": "scans resumed and ended",
    **{f"ended {mode.value}": f"{mode.value} scans ended" for mode in ScanMode if not mode.of_changes},
    **{f"ended as of {state.value}": f"scans of state {state.value} ended" for state in State},
    "ended raw": "push scans by a raw client ended",
    "log by product": "scans of the changelog by the product's client",
    "log by raw": "scans of the changelog by a raw client",
    "hybrid by product": "snapshots with their changes by the product's client",
    "hybrid by raw": "snapshots with their changes by a raw client",
    **{f"log from {start.value}": f"scans of the changelog from {start.value}" for start in TailStart},
    "log ended after resumes": "scans of the changelog resumed and ended",
    "hybrid ended after resumes": "snapshots with their changes resumed and ended",
    "has_all": "tails without an end that had everything",
    "returns": "tails left and begun again at their positions",
    "fetch by product": "scans of the changelog by long poll",
    "fetch ended after resumes": "scans of the changelog by long poll cut in the middle",
    "freezes": "readers of a group frozen",
    "group moves": "buckets of a reader group moved to another reader",
    "group moves from dead": "buckets of a reader group moved from a reader that died",
    "refused": "stale positions of a reader group refused",
    "group restarts": "reader groups that went on after a server's end",
    "published": "versions of transactions published",
    "aborted": "versions of transactions aborted",
    "held": "steps of storage held",
    "write_fails": "writes that the disk refused",
    "opens_anew": "buckets opened anew after that",
    **{f"visit {call}": f"calls of a visitor that {call.replace('_', ' ')}" for call in VISITS},
    "torn cursors": "cursor scans of no single state",
    "error SnapshotLost": "SNAPSHOT_LOST seen",
    "error OffsetOutOfRange": "OFFSET_OUT_OF_RANGE seen",
}
"""What a history counts, and what people call it."""
GROWTH_BYTES_MAX: Final = 60_000_000
WARM_UP_SEEDS: Final = 20
"""Runs after which everything that is loaded once is loaded."""


@dataclass
class Simulated:
    """What the runs were."""

    first_seed: int
    seeds: int = 0
    events: int = 0
    scans: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """Events by what they are, over all runs."""
    violations: dict[int, list[Violation]] = field(default_factory=dict)
    """By seed."""
    warm_bytes: int = 0
    """Resident memory after the first runs."""
    end_bytes: int = 0

    def take(self, outcome: Outcome) -> None:
        """Count a run."""
        self.seeds += 1
        self.events += len(outcome.history.events)
        self.scans += len(outcome.history.scans)
        self.happened += outcome.history.counts
        if outcome.violations:
            self.violations[outcome.seed] = outcome.violations


def run_seeds(first_seed: int, seeds: int, done: Callable[[Outcome], None] | None = None) -> Simulated:
    """Run seeds, one after another.

    Args:
        first_seed: The others follow it.
        seeds: How many.
        done: Told of each.
    """
    simulated = Simulated(first_seed)
    for seed in range(first_seed, first_seed + seeds):
        outcome = _run_seed(seed)
        simulated.take(outcome)
        if done is not None:
            done(outcome)
        if simulated.seeds % WARM_UP_SEEDS == 0:
            gc.collect()
        if simulated.seeds == WARM_UP_SEEDS:
            simulated.warm_bytes = _resident_bytes()
    simulated.end_bytes = _resident_bytes()
    return simulated


def _run_seed(seed: int) -> Outcome:
    try:
        return simulate(seed)
    except Exception as error:
        # The run itself has failed: no judgement, but a finding, and the other seeds go on.
        what = "".join(traceback.format_exception_only(error)).strip()
        return Outcome(seed, History(), [Violation("sound", "the run", what)])


def replay_command(seed: int) -> str:
    """What runs a seed again, and shows it."""
    return f"python -m bench simulate --seed {seed} -v"


def line_of(seed: int, violations: list[Violation]) -> str:
    """What is said of a seed that failed."""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f"seed {seed}: {violations[0]}{more}; to see it: {replay_command(seed)}"


def bars(simulated: Simulated) -> list[Bar]:
    """What must hold."""
    found = [violation for violations in simulated.violations.values() for violation in violations]
    first = f"; the first: {found[0].validator}" if found else ""
    judged = [
        some_of("seeds", simulated.seeds),
        Bar("violations", f"{len(found)}{first}", "= 0", not found),
    ]
    if simulated.seeds > WARM_UP_SEEDS:
        grown = simulated.end_bytes - simulated.warm_bytes
        bound = f"<= {GROWTH_BYTES_MAX / 1e6:.0f}"
        judged.append(
            Bar(
                "resident memory gained by the runs, MB",
                round(grown / 1e6, 1),
                bound,
                grown <= GROWTH_BYTES_MAX,
            )
        )
    if simulated.seeds >= COVERING_SEEDS:
        judged += [some_of(name, simulated.happened[what]) for what, name in MUST_HAPPEN.items()]
    return judged


def run(output: Path | None, console: Console, *, seeds: int, first_seed: int, verbose: bool) -> list[Bar]:
    """Simulate, write the JSON, and print what happened."""
    started = time.monotonic()
    with Progress(console=console, disable=verbose or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("simulating", total=seeds)

        def done(outcome: Outcome) -> None:
            if verbose:
                _show(outcome, progress.console)
            elif outcome.violations:
                _say(progress.console, line_of(outcome.seed, outcome.violations))
            progress.advance(task)

        simulated = run_seeds(first_seed, seeds, done)
    seconds = time.monotonic() - started
    judged = write_json(output, bars(simulated), **_document(simulated), seconds=round(seconds, 1))
    _print(console, simulated, seconds)
    return judged


def _show(outcome: Outcome, console: Console) -> None:
    for line in (*outcome.history.events, f"fingerprint {outcome.fingerprint}", *outcome.violations):
        _say(console, str(line))


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _print(console: Console, simulated: Simulated, seconds: float) -> None:
    happened = [
        f"{name} {count}" for what, name in MUST_HAPPEN.items() if (count := simulated.happened[what])
    ]
    errors = ", ".join(f"{name} {count}" for name, count in _errors(simulated).items()) or "none"
    console.print(
        f"{simulated.seeds} seeds from {simulated.first_seed}: {simulated.scans} scans, {simulated.events} events,"
        f" {sum(map(len, simulated.violations.values()))} violations in {len(simulated.violations)} seeds"
    )
    console.print(", ".join(happened) or "nothing much happened")
    console.print(f"scans that failed with a reason, by error: {errors}")
    console.print(f"took {seconds:.0f} s")


def _errors(simulated: Simulated) -> dict[str, int]:
    prefix = "error "
    return {
        what.removeprefix(prefix): count
        for what, count in sorted(simulated.happened.items())
        if what.startswith(prefix)
    }


def _document(simulated: Simulated) -> dict[str, object]:
    return {
        "first_seed": simulated.first_seed,
        "seeds": simulated.seeds,
        "scans": simulated.scans,
        "events": simulated.events,
        "violations": [
            {**asdict(violation), "seed": seed, "replay": replay_command(seed)}
            for seed, violations in simulated.violations.items()
            for violation in violations
        ],
        "happened": dict(sorted(simulated.happened.items())),
        "errors": _errors(simulated),
        "warm_bytes": simulated.warm_bytes,
        "end_bytes": simulated.end_bytes,
    }


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
