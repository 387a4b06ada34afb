"""Which small change of a module that carries a guarantee is noticed by no test?

Each mutant is one change of one place (`bench.mutation.operators`), drawn from a seed over all places of the modules
below. First all their tests run without any mutant, and coverage.py records which of them executes which line
(`bench.mutation.executions`). Then each mutant is written into a copy of the tree, and of the tests that execute its
statement those run that mirror its module, then the quickest of the others, for a minute at most, in one process up
to the first that fails; it is forked from one that has imported the libraries (`bench.mutation.forks`). A mutant that
fails a test is killed; so is one that hangs. What survives lacks a test, or changes nothing that can be seen: then it
is in `EQUIVALENT`, with the reason. What no test executes survives without a run. What is executed at the import of a
module is tried with the tests of the module: those that execute any of it, mirror it, import it, or are of its group.

Expected: 9 of 10 killed. A run costs a quarter of an hour of a processor for the tests without a mutant, then some
seconds for each mutant that is killed, and up to a minute for each that survives. A mutant counts as hung after many
times what its tests took before; look at those on a machine that became much busier in between.

`--again` tries the survivors of an earlier run once more, in the tree as it is by now, with the tests that were written
since; the others keep their verdicts, and the JSON says how many were tried in each run. `--map` keeps which test
executes what from one run to the next.

Why neither mutmut nor cosmic-ray: mutmut 3 mutates all functions at once behind trampolines, leaves out module level,
properties and most decorated functions, which here are much of the code, and forks processes that have run tests, with
pyarrow's and RocksDB's threads in them; it has no sample by seed. cosmic-ray runs one command for all
modules, and the command for all of ours takes half an hour a mutant; it has no sample either. Neither takes a lock
away from a block, which is what concurrent code must notice.
"""

from __future__ import annotations

import json
import queue
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.harness.bars import Bar, write_json
from bench.harness.errors import BenchFailed
from bench.mutation.guarantees import EQUIVALENT, ROOT, covering, modules
from bench.mutation.laboratory import Laboratory
from bench.mutation.operators import Mutation, executed_lines, find_mutations
from bench.mutation.survey import survey

if TYPE_CHECKING:
    from rich.console import Console

    from bench.mutation.executions import Executions

KILLED_SHARE_MIN: Final = 0.9


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutation of one module."""

    guarantee: str
    module: str
    mutation: Mutation


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What became of a mutant."""

    guarantee: str
    module: str
    line: int
    operator: str
    diff: list[str]
    verdict: str
    """`killed`, `hung` (killed as well), `survived`, `equivalent`, or `gone`: no more in the tree."""
    by: str
    """The test that failed, or why it is equivalent."""
    tests: int
    """How many would run if none failed."""
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether a test noticed."""
        return self.verdict in ("killed", "hung")


def draw(seed: int, count: int, only: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of a run: `count` of all that can be made, each with the same chance.

    Raises:
        BenchFailed: No module fits.
    """
    everything = []
    sources = {}
    for path, guarantee in modules(only).items():
        sources[path] = (ROOT / path).read_text()
        everything += [Mutant(guarantee.name, path, each) for each in find_mutations(sources[path])]
    random.Random(seed).shuffle(everything)
    drawn: list[Mutant] = []
    for mutant in everything:
        if len(drawn) == count:
            break
        if mutant.mutation.changes(sources[mutant.module]):
            drawn.append(mutant)
    return drawn


def find_again(trial: Trial) -> Mutant | None:
    """The mutant of an earlier trial, if the tree still has the text that it changes: the nearest to where it was."""
    if not (ROOT / trial.module).exists():
        return None
    source = (ROOT / trial.module).read_text()
    same = [
        each
        for each in find_mutations(source)
        if each.operator == trial.operator and each.diff(source) == trial.diff
    ]
    nearest = min(same, key=lambda each: abs(each.line - trial.line), default=None)
    return Mutant(trial.guarantee, trial.module, nearest) if nearest else None


def choose_tests(executions: Executions, mutant: Mutant) -> list[str]:
    """The tests that are run for a mutant, in their order; the docstring of this module has the rule."""
    mirrored, neighbours = covering(mutant.module)
    lines = executed_lines((ROOT / mutant.module).read_text(), mutant.mutation)
    if lines is None:
        tests = executions.tests_of_module(mutant.module, {*mirrored, *neighbours})
    else:
        # The head of a statement may compile to nothing, as that of `while True` does.
        own, everything = lines
        tests = executions.tests_of_lines(mutant.module, own)
        tests = tests or executions.tests_of_lines(mutant.module, everything)
    return executions.chosen(tests, mirrored)


def try_mutant(laboratory: Laboratory, mutant: Mutant, executions: Executions) -> Trial:
    """Run the tests of a mutant."""
    diff = mutant.mutation.diff((ROOT / mutant.module).read_text())
    reason = EQUIVALENT.get((mutant.module, "\n".join(line[0] + line[1:].strip() for line in diff)))
    verdict, by, tests = "survived", "", list[str]()
    started = time.perf_counter()
    if reason is not None:
        verdict, by = "equivalent", reason
    elif tests := choose_tests(executions, mutant):
        with laboratory.mutated(mutant.module, mutant.mutation):
            found, by = laboratory.run(tests, executions)
        verdict = {"passed": "survived", "failed": "killed", "hung": "hung"}[found]
    return Trial(
        guarantee=mutant.guarantee,
        module=mutant.module,
        line=mutant.mutation.line,
        operator=mutant.mutation.operator,
        diff=diff,
        verdict=verdict,
        by=by,
        tests=len(tests),
        seconds=round(time.perf_counter() - started, 1),
    )


def bars(trials: Sequence[Trial]) -> list[Bar]:
    """What must be so."""
    judged = [each for each in trials if each.verdict not in ("equivalent", "gone")]
    share = sum(each.killed for each in judged) / max(1, len(judged))
    return [
        Bar(
            f"killed of {len(judged)} mutants",
            f"{100 * share:.1f} %",
            f"at least {100 * KILLED_SHARE_MIN:.0f} %",
            share >= KILLED_SHARE_MIN,
        )
    ]


def run(
    output: Path | None,
    console: Console,
    *,
    seed: int,
    count: int,
    only: Sequence[str] = (),
    jobs: int = 1,
    kept: Path | None = None,
) -> list[Bar]:
    """Try mutants, print what survived, and judge.

    Args:
        output: Where the JSON goes, after each mutant; None: nowhere.
        console: To print on.
        seed: Draws the mutants.
        count: How many.
        only: Parts of the paths of the modules that are mutated; empty: all.
        jobs: How many are tried at a time, each in a copy of its own.
        kept: A file that keeps what the tests execute for the next run (`bench.mutation.survey`); None: none.

    Raises:
        BenchFailed: No module fits, or the tests cannot be run.
    """
    trials: list[Trial] = []
    for _, trial in _try_all(dict(enumerate(draw(seed, count, only))), jobs, kept, console):
        trials.append(trial)
        _write(output, seed, [len(trials)], trials)
    _print_modules(trials, console)
    return bars(trials)


def run_again(
    earlier: Path, output: Path | None, console: Console, *, jobs: int = 1, kept: Path | None = None
) -> list[Bar]:
    """Try the survivors of an earlier run in the tree as it is now, print those that still survive, and judge all.

    Args:
        earlier: The JSON of that run.
        output: Where the JSON of all its mutants goes, after each one; None: nowhere.
        console: To print on.
        jobs: How many are tried at a time, each in a copy of its own.
        kept: A file that keeps what the tests execute for the next run (`bench.mutation.survey`); None: none.

    Raises:
        BenchFailed: No survivor is left in the tree, or the tests cannot be run.
    """
    document = json.loads(earlier.read_text())
    trials = [Trial(**each) for each in document["mutants"]]
    places = {place: find_again(each) for place, each in enumerate(trials) if each.verdict == "survived"}
    for place, mutant in places.items():
        if mutant is None:
            trials[place] = replace(trials[place], verdict="gone")
    mutants = {place: mutant for place, mutant in places.items() if mutant is not None}
    if not mutants:
        raise BenchFailed(f"{earlier} has no survivor that is still in the tree")
    for place, trial in _try_all(mutants, jobs, kept, console):
        trials[place] = trial
        _write(output, document["seed"], [*document["tried"], len(mutants)], trials)
    _print_modules(trials, console)
    return bars(trials)


def _try_all(
    mutants: Mapping[int, Mutant], jobs: int, kept: Path | None, console: Console
) -> Iterator[tuple[int, Trial]]:
    """Try mutants, one in each laboratory at a time; in the order in which they are done.

    Returns:
        Each with its key.
    """
    files = {file for each in mutants.values() for some in covering(each.module) for file in some}
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        tempfile.TemporaryDirectory(prefix="weir-mutants-") as directory,
        ThreadPoolExecutor(jobs) as pool,
        ExitStack() as opened,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        laboratories = [
            opened.enter_context(Laboratory(Path(directory, str(number)))) for number in range(jobs)
        ]
        console.print(f"{len(mutants)} mutants; first the {len(files)} files of tests without any")
        executions, failed = survey(laboratories[0], files, jobs, kept)
        for test in failed:
            console.print(f"left out, for it fails without any mutant: {test}", markup=False)
        free = queue.SimpleQueue[Laboratory]()
        for laboratory in laboratories:
            free.put(laboratory)

        def attempt(mutant: Mutant) -> Trial:
            laboratory = free.get()
            try:
                return try_mutant(laboratory, mutant, executions)
            finally:
                free.put(laboratory)

        trials = {pool.submit(attempt, mutant): key for key, mutant in mutants.items()}
        try:
            for done in progress.track(as_completed(trials), total=len(trials), description=""):
                trial = done.result()
                if trial.verdict == "survived":
                    _print_survivor(trial, console)
                yield trials[done], trial
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _print_survivor(trial: Trial, console: Console) -> None:
    console.print(
        f"survived: {trial.guarantee}: {trial.module}:{trial.line} ({trial.operator})", highlight=False
    )
    for line in trial.diff:
        console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


def _print_modules(trials: Sequence[Trial], console: Console) -> None:
    table = Table("guarantee", "module", box=box.SIMPLE)
    names = ("mutants", "killed", "hung", "survived", "equivalent", "gone")
    for name in names:
        table.add_column(name, justify="right")
    rows = {(each.guarantee, each.module): Counter[str]() for each in trials}
    for each in trials:
        rows[each.guarantee, each.module].update((each.verdict, "mutants"))
    total: Counter[str] = Counter()
    for (guarantee, module), counts in sorted(rows.items()):
        table.add_row(guarantee, module, *(str(counts[name]) for name in names))
        total.update(counts)
    table.add_section()
    table.add_row("all", "", *(str(total[name]) for name in names))
    console.print(table)


def _write(output: Path | None, seed: int, tried: Sequence[int], trials: Sequence[Trial]) -> None:
    verdicts = Counter(each.verdict for each in trials)
    # `tried`: in the first run, in the second of what survived the first, and so on.
    write_json(output, bars(trials), seed=seed, tried=tried, verdicts=verdicts, mutants=trials)
