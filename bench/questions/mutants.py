"""Which small change of a module that carries a guarantee is noticed by no test?

Each mutant is one change of one place (`bench.mutation.operators`), drawn from a seed over all places of the modules
below. It is written into a copy of the tree, where the tests run that mirror the module, then their neighbours: those
that import it, and those of its group. A mutant that fails a test is killed; so is one that hangs. What survives lacks
a test, or changes nothing that can be seen: then it is in `EQUIVALENT`, with the reason.

Expected: 9 of 10 killed. What a run costs is some ten seconds of a processor for each mutant that is killed, and a
minute for each that survives.

Why neither mutmut nor cosmic-ray: mutmut 3 mutates all functions at once behind trampolines, leaves out module level,
properties and most decorated functions, which here are much of the code, and needs all tests to pass in processes that
it forks, with pyarrow's and RocksDB's threads in them; it has no sample by seed. cosmic-ray runs one command for all
modules, and the command for all of ours takes half an hour a mutant; it has no sample either. Neither takes a lock
away from a block, which is what concurrent code must notice.
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.harness.bars import Bar, machine
from bench.harness.errors import BenchFailed
from bench.mutation.guarantees import EQUIVALENT, ROOT, covering, modules
from bench.mutation.operators import Mutation, find_mutations

if TYPE_CHECKING:
    from rich.console import Console

KILLED_SHARE_MIN: Final = 0.9
TRIAL_TIMEOUT_S: Final = 600.0
"""For all tests of a mutant together."""
TEST_TIMEOUT_S: Final = 100
"""For one test; the slowest of those that are run takes some ten seconds."""
_COPIED: Final = ("weir", "transport", "scanner", "spark_source", "bench", "tests", "tools", "docs")
_COPIED_FILES: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")


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
    """`killed`, `hung` (killed as well), `survived` or `equivalent`."""
    by: str
    """The test that failed, or why it is equivalent."""
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


class Laboratory:
    """A copy of the tree, in which one module at a time is another one.

    Args:
        directory: Made by this class, not removed by it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        for name in _COPIED:
            shutil.copytree(
                ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "results")
            )
        for name in _COPIED_FILES:
            shutil.copy(ROOT / name, directory)

    @contextmanager
    def mutated(self, path: str, mutation: Mutation) -> Iterator[None]:
        """Change a module for the length of a block."""
        there = self._directory / path
        source = there.read_text()
        there.write_text(mutation.apply(source))
        try:
            yield
        finally:
            there.write_text(source)

    def run(self, tests: Sequence[str], timeout_s: float = TRIAL_TIMEOUT_S) -> tuple[str, str]:
        """Run tests up to the first that fails.

        Returns:
            `passed`, `failed` or `hung`; and which test failed, if pytest could say so.
        """
        command = [
            sys.executable, "-m", "pytest", "--exitfirst", "--quiet", "--no-header", "--tb=no",
            "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}", "-m", "not slow and not spark", *tests,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "mutants",
        }
        # A session of its own, so that what hangs goes with all that it started.
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return "hung", f"all of it, for {timeout_s:.0f} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
        if process.returncode == 0:
            return "passed", ""
        verdict = "hung" if "+++ Timeout +++" in said or "Timeout (>" in said else "failed"
        failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", said, re.MULTILINE)
        last = said.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        return verdict, failed[1] if failed else last[0]


def try_mutant(laboratory: Laboratory, mutant: Mutant) -> Trial:
    """Run the tests of a mutant."""
    source = (ROOT / mutant.module).read_text()
    diff = mutant.mutation.diff(source)
    reason = EQUIVALENT.get((mutant.module, "\n".join(line[0] + line[1:].strip() for line in diff)))
    verdict, by = "survived", ""
    started = time.perf_counter()
    if reason is not None:
        verdict, by = "equivalent", reason
    else:
        with laboratory.mutated(mutant.module, mutant.mutation):
            for tests in covering(mutant.module):
                found, by = laboratory.run(tests) if tests else ("passed", "")
                if found != "passed":
                    verdict = "hung" if found == "hung" else "killed"
                    break
    return Trial(
        guarantee=mutant.guarantee,
        module=mutant.module,
        line=mutant.mutation.line,
        operator=mutant.mutation.operator,
        diff=diff,
        verdict=verdict,
        by=by,
        seconds=round(time.perf_counter() - started, 1),
    )


def bars(trials: Sequence[Trial]) -> list[Bar]:
    """What must be so."""
    judged = [each for each in trials if each.verdict != "equivalent"]
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
) -> list[Bar]:
    """Try mutants, print what survived, and judge.

    Args:
        output: Where the JSON goes, after each mutant; None: nowhere.
        console: To print on.
        seed: Draws the mutants.
        count: How many.
        only: Parts of the paths of the modules that are mutated; empty: all.
        jobs: How many are tried at a time, each in a copy of its own.

    Raises:
        BenchFailed: No module fits, or the tests fail without any mutant.
    """
    mutants = draw(seed, count, only)
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="weir-mutants-") as directory:
        laboratories = [Laboratory(Path(directory, str(number))) for number in range(jobs)]
        _require_green(laboratories[0], mutants, console)
        columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(mutants))
            for trial in _try_all(laboratories, mutants):
                trials.append(trial)
                progress.advance(task)
                if trial.verdict == "survived":
                    _print_survivor(trial, console)
                if output is not None:
                    _write(output, seed, trials)
    _print_modules(trials, console)
    return bars(trials)


def _try_all(laboratories: Sequence[Laboratory], mutants: Sequence[Mutant]) -> Iterator[Trial]:
    """Try mutants, one in each laboratory at a time; in the order in which they are done."""
    free = queue.SimpleQueue[Laboratory]()
    for laboratory in laboratories:
        free.put(laboratory)

    def attempt(mutant: Mutant) -> Trial:
        laboratory = free.get()
        try:
            return try_mutant(laboratory, mutant)
        finally:
            free.put(laboratory)

    with ThreadPoolExecutor(len(laboratories)) as pool:
        trials = [pool.submit(attempt, mutant) for mutant in mutants]
        try:
            for trial in as_completed(trials):
                yield trial.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _require_green(laboratory: Laboratory, mutants: Sequence[Mutant], console: Console) -> None:
    """A test that fails anyhow would kill every mutant."""
    tests: dict[str, None] = {}
    for mutant in mutants:
        for some in covering(mutant.module):
            tests.update(dict.fromkeys(some))
    console.print(f"{len(mutants)} mutants; first the {len(tests)} files of tests without any")
    found, failed = laboratory.run(list(tests), timeout_s=3 * TRIAL_TIMEOUT_S)
    if found != "passed":
        raise BenchFailed(f"{failed} fails without any mutant; repair it first")


def _print_survivor(trial: Trial, console: Console) -> None:
    console.print(
        f"survived: {trial.guarantee}: {trial.module}:{trial.line} ({trial.operator})", highlight=False
    )
    for line in trial.diff:
        console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


def _print_modules(trials: Sequence[Trial], console: Console) -> None:
    table = Table("guarantee", "module", box=box.SIMPLE)
    names = ("mutants", "killed", "hung", "survived", "equivalent")
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


def _write(output: Path, seed: int, trials: Sequence[Trial]) -> None:
    document = {
        "seed": seed,
        "machine": machine(),
        "verdicts": Counter(each.verdict for each in trials),
        "bars": [asdict(bar) for bar in bars(trials)],
        "mutants": [asdict(each) for each in trials],
    }
    output.write_text(json.dumps(document, indent=1))
