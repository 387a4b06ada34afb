"""What does weir say when its files are damaged, moved, replaced or withheld behind its back?

Each case is a copy of a data directory that a seeded history made through the real server, and one fault in it: a
document, a write-ahead log, a table file, a manifest, a checkpoint or an image cut, emptied, changed by one bit,
deleted, duplicated, swapped or replaced by an older copy; a directory renamed, swapped, copied beside, or replaced by
an older copy; a permission taken away; descriptors or the size of files limited. Then the server starts on it,
everything is read in every model, with tokens and leases of before, something is written, the server starts again, and
everything is read again.

Judged by plain dicts (`bench.faulting.truth`), which share nothing with the product. Expected: each answer is an
error of weir's own, or exactly a state that was acknowledged. Lost changes are in the log, by their number, and
counted by the bucket; a table that is not served is in the log. A crash or a hang is wrong, and so is an error that
nobody can read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.progress import Progress

from bench.faulting.campaign import run_cases
from bench.faulting.damage import KINDS
from bench.harness.bars import Bar, none_of, some_of, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from bench.faulting.case import Verdict

_WRONG_SHOWN: Final = 2
"""Of the wrong things of one case."""


@dataclass(slots=True)
class Found:
    """What came of the cases."""

    seed: int
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Cases by what was among their answers: each case counts once under each."""
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[Verdict] = field(default_factory=list)
    silent: int = 0
    """Cases that lost something without a word."""

    def take(self, verdict: Verdict) -> None:
        """Count a case."""
        self.cases += 1
        self.kinds[verdict.kind] += 1
        self.outcomes.update(verdict.outcomes.keys())
        self.outcomes["all right"] += set(verdict.outcomes) <= {"right", "kept as", "kept lease"}
        if verdict.wrong:
            self.wrong.append(verdict)
        self.silent += any("in silence" in what for what in verdict.wrong)


def run_all(
    seed: int, cases: range, done: Callable[[Verdict], None] | None = None, *, jobs: int = 1
) -> Found:
    """Run cases.

    Args:
        seed: Chooses histories and faults.
        cases: Their numbers.
        done: Told of each.
        jobs: How many at a time.
    """
    found = Found(seed)
    for verdict in run_cases(seed, cases, jobs):
        found.take(verdict)
        if done is not None:
            done(verdict)
    return found


def replay_command(seed: int, case: int) -> str:
    """What runs a case again."""
    return f"python -m bench faults --seed {seed} --case {case}"


def line_of(seed: int, verdict: Verdict) -> str:
    """What is said of a case that is wrong."""
    more = len(verdict.wrong) - _WRONG_SHOWN
    what = "; ".join(verdict.wrong[:_WRONG_SHOWN]) + (f" (and {more} more)" if more > 0 else "")
    return (
        f"seed {seed}, case {verdict.case}, {verdict.kind} ({verdict.what}): {what};"
        f" to see it: {replay_command(seed, verdict.case)}"
    )


def bars(found: Found) -> list[Bar]:
    """What must hold."""
    judged = [
        some_of("cases", found.cases),
        none_of("wrong", len(found.wrong)),
        none_of("silent losses", found.silent),
    ]
    if found.cases >= len(KINDS):
        missing = len(set(KINDS) - set(found.kinds))
        judged.append(none_of("kinds of faults that did not happen", missing))
    return judged


def run(output: Path | None, console: Console, *, seed: int, cases: range, jobs: int = 1) -> list[Bar]:
    """Run the cases, write the JSON, and print what came of them."""
    started = time.monotonic()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("faults", total=len(cases))

        def done(verdict: Verdict) -> None:
            if verdict.wrong:
                _say(progress.console, line_of(seed, verdict))
            elif len(cases) == 1:
                _say(
                    progress.console,
                    f"{verdict.kind}: {verdict.what}; {dict(verdict.outcomes)} {verdict.refused}",
                )
            progress.advance(task)

        found = run_all(seed, cases, done, jobs=jobs)
    seconds = time.monotonic() - started
    judged = write_json(output, bars(found), **_document(found), seconds=round(seconds, 1))
    _say(
        console,
        f"seed {seed}: {found.cases} cases of {len(found.kinds)} kinds, {len(found.wrong)} wrong,"
        f" {found.silent} silent; took {seconds:.0f} s",
    )
    _say(
        console,
        "cases by answer: " + ", ".join(f"{name} {count}" for name, count in found.outcomes.most_common()),
    )
    return judged


def _document(found: Found) -> dict[str, object]:
    return {
        "seed": found.seed,
        "cases": found.cases,
        "kinds": dict(sorted(found.kinds.items())),
        "outcomes": dict(found.outcomes.most_common()),
        "wrong": [
            {"case": each.case, "kind": each.kind, "what": each.what, "wrong": each.wrong}
            | {"replay": replay_command(found.seed, each.case)}
            for each in found.wrong
        ],
    }


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
