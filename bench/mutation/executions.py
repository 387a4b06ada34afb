"""Which test executes which line of the mutated modules, how long each takes, and which of them a mutant is tried with.

Recorded with coverage.py, whose context is the test that runs. It follows threads, so trio's worker threads as well. It
does not follow other processes: what only a server in its own process executes counts as not executed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coverage import CoverageData

BUDGET_S: Final = 60.0
"""For the tests of a mutant together, beyond those that mirror its module."""


@dataclass(frozen=True, slots=True)
class Executions:
    """What the tests did in the run without a mutant."""

    seconds: Mapping[str, float]
    """By test (pytest's node id): what it took, with setup and teardown."""
    tests_by_line: Mapping[str, Mapping[int, frozenset[str]]]
    """By path of a module, by line from 1: the tests that execute it."""

    @classmethod
    def read(cls, database: Path, seconds: Mapping[str, float]) -> Executions:
        """Read what coverage.py recorded.

        Args:
            database: Its data file, with relative paths and pytest-cov's contexts.
            seconds: By test; what others did is left out.
        """
        data = CoverageData(str(database))
        data.read()
        tests_by_line = {}
        for path in data.measured_files():
            contexts = data.contexts_by_lineno(path)
            # A context is a test and one of its phases: `tests/test_x.py::test_y|run`; at an import it is empty.
            tests_by_line[path] = {
                line: frozenset(each.rpartition("|")[0] for each in some) & seconds.keys()
                for line, some in contexts.items()
            }
        return cls(seconds, tests_by_line)

    def without(self, files: Collection[str]) -> Executions:
        """Forget the tests of some files."""
        return Executions(
            {test: each for test, each in self.seconds.items() if file_of(test) not in files},
            {
                module: {
                    line: frozenset(test for test in tests if file_of(test) not in files)
                    for line, tests in by_line.items()
                }
                for module, by_line in self.tests_by_line.items()
            },
        )

    def joined(self, other: Executions) -> Executions:
        """Together with what other tests did."""
        return Executions(
            {**self.seconds, **other.seconds},
            {
                module: {
                    line: one.get(line, frozenset()) | another.get(line, frozenset())
                    for line in {*one, *another}
                }
                for module in {*self.tests_by_line, *other.tests_by_line}
                for one in [self.tests_by_line.get(module, {})]
                for another in [other.tests_by_line.get(module, {})]
            },
        )

    def to_json(self) -> dict[str, Any]:
        """For a file; the tests are numbered there."""
        numbers = {test: number for number, test in enumerate(self.seconds)}
        return {
            "seconds": self.seconds,
            "lines": {
                module: {line: sorted(map(numbers.__getitem__, some)) for line, some in by_line.items()}
                for module, by_line in self.tests_by_line.items()
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Executions:
        """What `to_json` made."""
        tests = list(document["seconds"])
        return cls(
            document["seconds"],
            {
                module: {int(line): frozenset(map(tests.__getitem__, some)) for line, some in by_line.items()}
                for module, by_line in document["lines"].items()
            },
        )

    def tests_of_lines(self, module: str, lines: Collection[int]) -> set[str]:
        """The tests that execute one of some lines."""
        by_line = self.tests_by_line.get(module, {})
        return set().union(*(by_line.get(line, frozenset()) for line in lines))

    def tests_of_module(self, module: str, files: Collection[str]) -> set[str]:
        """The tests of some files, and all that execute any line of a module."""
        of_files = {test for test in self.seconds if file_of(test) in files}
        return of_files | self.tests_of_lines(module, self.tests_by_line.get(module, {}))

    def chosen(self, tests: Iterable[str], mirrored: Collection[str]) -> list[str]:
        """What is run of some tests, in this order: those of the mirrored files, then the quickest of the others.

        The others end where all together would take more than `BUDGET_S`.
        """
        chosen: list[str] = []
        total = 0.0
        for test in sorted(tests, key=lambda each: (file_of(each) not in mirrored, self.seconds[each], each)):
            total += self.seconds[test]
            if total > BUDGET_S and file_of(test) not in mirrored:
                break
            chosen.append(test)
        return chosen


def file_of(test: str) -> str:
    """The path of the file that a test is in."""
    return test.partition("::")[0]
