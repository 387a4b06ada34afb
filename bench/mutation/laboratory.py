"""A copy of the tree in which a module can be another one, and the tests that run in it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest

from bench.harness.errors import BenchFailed
from bench.mutation.executions import Executions, file_of
from bench.mutation.guarantees import ROOT

if TYPE_CHECKING:
    from bench.mutation.operators import Mutation

SURVEY_TIMEOUT_S: Final = 3600.0
TEST_TIMEOUT_S: Final = 60.0
"""For one test, beside `SLOWER` times what the slowest of its trial took without a mutant."""
TRIAL_TIMEOUT_S: Final = 300.0
"""For all tests of a mutant together, beside `SLOWER` times what they took without one."""
SLOWER: Final = 10
"""By how much a busy machine may be slower than it was when the time was taken."""
COPIED: Final = (
    "weir",
    "transport",
    "scanner",
    "spark_source",
    "pyspark_weir",
    "bench",
    "tests",
    "tools",
    "docs",
)
COPIED_FILES: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")


class Laboratory:
    """A copy of the tree, in which one module at a time is another one.

    Args:
        directory: Made by this class, not removed by it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tree = directory / "tree"
        self._tree.mkdir(parents=True)
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(ROOT / name, self._tree / name, ignore=ignored)
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, self._tree)

        self._forks: subprocess.Popen[str] | None = None
        self._written: Final = itertools.count(time.time_ns() // 1_000_000_000 + 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process that runs the tests, and what it runs."""
        if self._forks is not None:
            self._forks.terminate()
            self._forks.communicate()

    @contextmanager
    def mutated(self, path: str, mutation: Mutation) -> Iterator[None]:
        """Change a module for the length of a block."""
        source = (self._tree / path).read_text()
        self._write(path, mutation.apply(source))
        try:
            yield
        finally:
            self._write(path, source)

    def _write(self, path: str, source: str) -> None:
        """Write a module; what Python has compiled of it is known to be older by a time in whole seconds."""
        (self._tree / path).write_text(source)
        second = next(self._written)
        os.utime(self._tree / path, (second, second))

    def survey(
        self, files: Collection[str], modules: Collection[str], jobs: int
    ) -> tuple[Executions, list[str]]:
        """Run files of tests without a mutant, and record what they execute.

        Args:
            files: The files of tests.
            modules: The modules whose lines are recorded.
            jobs: How many processes run the tests.

        Returns:
            What they did; those that failed are left out, and told of: they would kill every mutant.

        Raises:
            BenchFailed: The tests cannot be run.
        """
        configuration, database, told = (self._directory / name for name in ("coverage", "executed", "told"))
        included = "".join(f"\n    {each}" for each in modules)
        # Python 3.14's own way to watch tells of a line once, and of the second test that executes it never.
        configuration.write_text(
            f"[run]\ncore = ctrace\nrelative_files = true\ndata_file = {database}\ninclude ={included}\n"
        )
        for each in (database, told):
            each.unlink(missing_ok=True)
        _, failed = self._pytest(
            f"--numprocesses={jobs}", "--dist=loadfile", "--cov", f"--cov-config={configuration}",
            "--cov-context=test", "--cov-report=", f"--told-to={told}", *files,
            timeout_s=SURVEY_TIMEOUT_S,
        )  # fmt: skip
        if not (told.exists() and database.exists()):
            raise BenchFailed(f"the tests cannot be run: {failed}")
        document = json.loads(told.read_text())
        for test in document["failed"]:
            document["seconds"].pop(test, None)
        return Executions.read(database, document["seconds"]), document["failed"]

    def run(self, tests: Sequence[str], executions: Executions) -> tuple[str, str]:
        """Run tests, in their order, up to the first that fails.

        Returns:
            `passed`, `failed` or `hung`; and which test failed, if pytest could say so.
        """
        chosen = self._directory / "chosen"
        chosen.write_text(json.dumps(tests))
        seconds = [executions.seconds[each] for each in tests]
        return self._pytest(
            "--exitfirst", f"--chosen={chosen}", f"--timeout={TEST_TIMEOUT_S + SLOWER * max(seconds)}",
            *dict.fromkeys(map(file_of, tests)),
            timeout_s=TRIAL_TIMEOUT_S + SLOWER * sum(seconds),
        )  # fmt: skip

    def _pytest(self, *arguments: str, timeout_s: float) -> tuple[str, str]:
        command = {
            "arguments": [
                "--quiet", "--no-header", "--tb=no", "-p", "no:cacheprovider",
                "-p", "bench.mutation.pytest_plugin", "-m", "not slow and not spark",
                "-W", "ignore::pytest.PytestAssertRewriteWarning",  # Of what `forks` has imported.
                *arguments,
            ],
            "timeout_s": timeout_s,
        }  # fmt: skip
        if self._forks is None:
            self._forks = self._start_forks()
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(command) + "\n")
        self._forks.stdin.flush()
        answer = json.loads(self._forks.stdout.readline())
        return _verdict(answer["status"], answer["said"])

    def _start_forks(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(self._tree), "HYPOTHESIS_PROFILE": "mutants"}
        return subprocess.Popen(
            [sys.executable, "-m", "bench.mutation.forks"],
            cwd=self._tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _verdict(status: int, said: str) -> tuple[str, str]:
    # Without a test where a mutant has changed the names of the chosen ones: that is no failure.
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return "passed", ""
    if status == -signal.SIGKILL:
        return "hung", "all of it"
    verdict = "hung" if "+++ Timeout +++" in said or "Timeout (>" in said else "failed"
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", said, re.MULTILINE)
    last = said.strip().splitlines()[-1:] or [f"exit status {status}"]
    return verdict, failed[1] if failed else last[0]
