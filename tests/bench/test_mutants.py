"""The mutation bench: what it changes, that a test which notices is found, and that one which does not is told of."""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.harness.errors import BenchFailed
from bench.mutation import executions, guarantees, laboratory
from bench.mutation import survey as survey_module
from bench.mutation.executions import Executions
from bench.mutation.guarantees import ROOT, Guarantee, covering, modules
from bench.mutation.laboratory import Laboratory
from bench.mutation.operators import executed_lines, find_mutations
from bench.mutation.survey import survey
from bench.questions import mutants
from bench.questions.mutants import Mutant, draw, run, run_again

SOURCE = '''"""Docs are left alone: 1 < 2."""

LIMIT: int = 10


class Box:
    """Docs too."""

    def __init__(self, size: int = 3, owner: str | None = None) -> None:
        self._size = size
        self.items: list[int] = []
        assert size > 0

    def add(self, item: int) -> int:
        """And here."""
        with self.lock:
            if item < LIMIT and not self.full:
                self.items.append(max(item, 1))
                return len(self.items) + 1
        _logger.info("1 + 1 is left alone")
        raise ValueError(f"{item + 1} is no item, and {1 + 1} is left alone")
        return self.items[1:]
'''


def changed(source: str) -> set[tuple[str, str]]:
    """What each mutation puts in the place of what, without brackets and indentation."""
    found = set()
    for each in find_mutations(source):
        if each.changes(source):
            there = source.encode()[each.start : each.end].decode()
            found.add((" ".join(there.split()), " ".join(each.text.strip("()").split())))
    return found


def test_every_kind_of_change_is_made_once() -> None:
    """Comparisons, conditions, arithmetic, constants, returns, statements, slices, locks; and nothing that is said."""
    found = changed(SOURCE)
    for change in {
        ("10", "11"),
        ("3", "4"),
        ("None", "0"),
        ("item < LIMIT", "item <= LIMIT"),
        ("item < LIMIT and not self.full", "item < LIMIT or not self.full"),
        ("item < LIMIT and not self.full", "not (item < LIMIT and (not self.full"),
        ("not self.full", "self.full"),
        ("max", "min"),
        ("self.items.append(max(item, 1))", "pass"),
        ("return len(self.items) + 1", "return None"),
        ("len(self.items) + 1", "len(self.items) - 1"),
        ("1:", ":"),
    }:
        assert change in found, change
    assert any(there.startswith("with self.lock") and text.startswith("if True") for there, text in found)
    assert any(there.startswith("raise") and text == "pass" for there, text in found)
    said = ("Docs", "left alone", "size > 0", "int = 3", "self._size")
    for there, _ in found:
        assert there.startswith(("with", "raise")) or not any(words in there for words in said), there


def test_a_mutant_is_one_place_of_a_module_that_compiles() -> None:
    """Of a module with everything in it: each has a diff, and the original comes back from none of them."""
    source = (ROOT / "scanner/server/retention/log_retention.py").read_text()
    for each in find_mutations(source)[::5]:
        if each.changes(source):
            compile(each.apply(source), "mutant", "exec")
            assert each.diff(source), each


def test_the_same_seed_draws_the_same_mutants() -> None:
    """Another one draws others; each is of a module that was asked for."""
    first, again, other = (draw(seed, 20, ["scanner/data/keys.py"]) for seed in (1, 1, 2))
    assert first == again != other
    assert {each.module for each in first} == {"scanner/data/keys.py"}
    assert len(set(first)) == 20


def test_every_guarantee_has_its_modules_and_tests() -> None:
    """No pattern has gone stale: it names a file that is there, and every module has tests."""
    for guarantee in guarantees.GUARANTEES:
        for pattern in (*guarantee.modules, *guarantee.tests):
            assert list(ROOT.glob(pattern)), pattern
    assert all(any(covering(path)) for path in modules())
    with pytest.raises(BenchFailed, match="no module has nothing"):
        modules(["nothing"])


def test_a_change_is_executed_where_its_statement_is() -> None:
    """On the lines of the innermost statement, without those of the statements in it; or at the import."""
    lines = ("def f(a=1):", " if (a >", "  2):", "  return 3", " while True:", "  a += [", "   4]", "")
    source = "\n".join(lines)
    by_number = {}
    for each in find_mutations(source):
        if each.operator == "constant":
            by_number[source[each.start : each.end]] = executed_lines(source, each)
    assert by_number == {
        "1": None,
        "2": ({2, 3}, {2, 3, 4}),
        "3": ({4}, {4}),
        "True": ({5}, {5, 6, 7}),
        "4": ({6, 7}, {6, 7}),
    }


def test_the_quickest_tests_are_run_after_the_mirrored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the mirrored ones, and of the others as many as the budget allows."""
    monkeypatch.setattr(executions, "BUDGET_S", 10)
    seconds = {
        "a.py::slow": 9.0,
        "a.py::quick": 0.5,
        "b.py::slow": 8.0,
        "b.py::quick": 0.1,
        "c.py::quick": 0.2,
    }
    executed = Executions(seconds, {"m.py": {1: frozenset(seconds), 2: frozenset({"b.py::slow"})}})
    assert executed.tests_of_lines("m.py", {2, 3}) == {"b.py::slow"}
    assert executed.tests_of_module("m.py", {"c.py"}) == set(seconds)
    assert executed.chosen(seconds, ["a.py"]) == ["a.py::quick", "a.py::slow", "b.py::quick", "c.py::quick"]
    assert executed.chosen(seconds, ["a.py", "b.py"])[3:] == ["a.py::slow"]


@pytest.fixture
def small_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one module, half of which is tested."""
    tree = tmp_path / "tree"
    for name in ("scanner", "tests/scanner"):
        (tree / name).mkdir(parents=True)
        (tree / name / "__init__.py").touch()
    (tree / "tests/__init__.py").touch()
    (tree / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["-ra"]\nmarkers = ["slow: x", "spark: x"]\n'
    )
    (tree / "scanner/small.py").write_text(
        "LIMIT = 7\n\n\n"
        "def is_small(a: int) -> bool:\n    return a < 5\n\n\ndef is_large(a: int) -> bool:\n    return a < 7\n\n\n"
        "def count(a: int) -> int:\n    while a > 0:\n        a -= 1\n    return a\n\n\n"
        "def is_huge(a: int) -> bool:\n    return a < 9\n"
    )
    (tree / "tests/scanner/test_small.py").write_text(
        "import threading\n\nfrom scanner.small import count, is_large, is_small\n\n\n"
        "def test_small() -> None:\n"
        "    assert (is_small(4), is_small(5), count(3)) == (True, False, 0)\n"
        "    assert is_large(3)\n\n\n"
        "def test_in_a_thread() -> None:\n"
        "    thread = threading.Thread(target=is_large, args=(3,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    for module in (mutants, guarantees, laboratory, survey_module):
        monkeypatch.setattr(module, "ROOT", tree)
    for module in (laboratory, survey_module):
        monkeypatch.setattr(module, "COPIED", ("scanner", "tests"))
    monkeypatch.setattr(laboratory, "COPIED_FILES", ("pyproject.toml",))
    small = Guarantee(name="small", modules=("scanner/small.py",), tests=())
    monkeypatch.setattr(guarantees, "GUARANTEES", (small,))
    monkeypatch.setattr(laboratory, "TEST_TIMEOUT_S", 5)
    return tree


@pytest.mark.slow
def test_what_no_test_notices_survives(
    small_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change with a test is killed, an endless loop hangs, what has no test survives; the tree stays as it was."""
    before = (small_tree / "scanner/small.py").read_text()
    by_change = {each.mutation.diff(before)[-1].strip("+ "): each for each in draw(1, 100)}
    with Laboratory(tmp_path / "copy") as copy:
        executed, _ = copy.survey(["tests/scanner/test_small.py"], ["scanner/small.py"], jobs=1)
        for change, verdict, tests in (
            ("return (a <= 5)", "killed", 1),
            ("pass", "hung", 1),
            ("return (a <= 7)", "survived", 2),
            ("return (a <= 9)", "survived", 0),
            ("LIMIT = 8", "survived", 2),
        ):
            with monkeypatch.context() as patch:
                if verdict == "hung":  # However long it is given.
                    patch.setattr(laboratory, "TEST_TIMEOUT_S", 0.2)
                trial = mutants.try_mutant(copy, by_change[change], executed)
            assert (trial.verdict, trial.tests) == (verdict, tests), change
    assert (small_tree / "scanner/small.py").read_text() == before
    assert (tmp_path / "copy/tree/scanner/small.py").read_text() == before


@pytest.mark.slow
def test_a_survivor_is_told_of_and_tried_again(small_tree: Path, tmp_path: Path) -> None:
    """With its place and its diff, and the bar is missed; then a test that was written since kills it.

    Though its line has moved; others keep their verdicts, or are gone.
    """
    output, kept, said = tmp_path / "out.json", tmp_path / "map", io.StringIO()
    console = Console(file=said, width=200)
    change = "+    return (a <= 7)"
    seed = next(each for each in range(1000) if changed_line(draw(each, 1)[0], small_tree) == change)
    (missed,) = run(output, console, seed=seed, count=1, kept=kept)
    assert not missed.ok
    document = json.loads(output.read_text())
    (survivor,) = document["mutants"]
    assert (survivor["diff"], survivor["verdict"]) == (["-    return a < 7", change], "survived")
    assert f"scanner/small.py:{survivor['line']} (comparison)" in said.getvalue()
    killed = {**survivor, "verdict": "killed", "line": 1}
    removed = {**survivor, "diff": ["-gone", "+away"]}
    output.write_text(json.dumps({**document, "mutants": [killed, survivor, removed]}))
    module, tests = small_tree / "scanner/small.py", small_tree / "tests/scanner/test_small.py"
    module.write_text("# One line more.\n" + module.read_text())
    tests.write_text(tests.read_text() + "\n\ndef test_edge() -> None:\n    assert not is_large(7)\n")
    (met,) = run_again(output, output, console, kept=kept)
    document = json.loads(output.read_text())
    assert met.ok
    assert document["tried"] == [1, 1]
    first, again, third = document["mutants"]
    assert first == killed
    assert (again["verdict"], again["line"], again["by"]) == (
        "killed", survivor["line"] + 1, "tests/scanner/test_small.py::test_edge",
    )  # fmt: skip
    assert third["verdict"] == "gone"


def changed_line(mutant: Mutant, tree: Path) -> str:
    """What a mutant puts in the place of its last line."""
    return mutant.mutation.diff((tree / mutant.module).read_text())[-1]


@pytest.mark.slow
def test_only_changed_tests_are_run_for_the_map(small_tree: Path, tmp_path: Path) -> None:
    """Or all, where what they execute has changed; one that fails is left out, since it would kill every mutant."""
    (small_tree / "tests/scanner/test_other.py").write_text(
        "from scanner.small import is_huge\n\n\ndef test_other() -> None:\n    is_huge(1)\n"
    )
    files = ["tests/scanner/test_small.py", "tests/scanner/test_other.py"]
    surveyed = []

    def surveys(number: int) -> tuple[Executions, list[str]]:
        with Laboratory(tmp_path / str(number)) as copy:
            survey_files = copy.survey

            def noticed(some: Collection[str], *args: Any) -> tuple[Executions, list[str]]:
                surveyed.append(list(some))
                return survey_files(some, *args)

            copy.survey = noticed  # type: ignore[assignment, method-assign]
            return survey(copy, files, 1, tmp_path / "map")

    first, failed = surveys(1)
    again, _ = surveys(2)
    assert again == first
    assert failed == []
    tests = small_tree / files[0]
    tests.write_text(tests.read_text() + "\n\ndef test_red() -> None:\n    assert is_large(9)\n")
    without_red, failed = surveys(3)
    assert failed == ["tests/scanner/test_small.py::test_red"]
    assert without_red.tests_by_line == first.tests_by_line
    (small_tree / "scanner/small.py").write_text("# New.\n" + (small_tree / "scanner/small.py").read_text())
    surveys(4)
    assert surveyed == [sorted(files), [files[0]], sorted(files)]


def test_what_is_argued_as_equivalent_is_still_there() -> None:
    """An argument about lines that are no more in their module is taken off the list."""
    for (module, diff), reason in guarantees.EQUIVALENT.items():
        lines = {line.strip() for line in (ROOT / module).read_text().splitlines()}
        removed = [line[1:] for line in diff.splitlines() if line.startswith("-")]
        assert removed, reason
        assert lines.issuperset(removed), (module, diff)


def test_an_argued_equivalent_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the list with its reason is neither run nor judged."""
    mutant = draw(1, 1, ["scanner/data/keys.py"])[0]
    assert isinstance(mutant, Mutant)
    diff = mutant.mutation.diff((ROOT / mutant.module).read_text())
    key = (mutant.module, "\n".join(line[0] + line[1:].strip() for line in diff))
    monkeypatch.setattr(mutants, "EQUIVALENT", {key: "a test says so"})
    unused: Laboratory = object.__new__(Laboratory)
    trial = mutants.try_mutant(unused, mutant, Executions({}, {}))
    assert (trial.verdict, trial.by) == ("equivalent", "a test says so")
    assert mutants.bars([trial])[0].name == "killed of 0 mutants"
