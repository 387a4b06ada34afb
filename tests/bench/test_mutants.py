"""The mutation bench: what it changes, that a test which notices is found, and that one which does not is told of."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.harness.errors import BenchFailed
from bench.mutation import guarantees
from bench.mutation.guarantees import ROOT, Guarantee, covering, modules
from bench.mutation.operators import find_mutations
from bench.questions import mutants
from bench.questions.mutants import Mutant, draw, run

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
        "def is_small(a: int) -> bool:\n    return a < 5\n\n\ndef is_large(a: int) -> bool:\n    return a < 7\n\n\n"
        "def count(a: int) -> int:\n    while a > 0:\n        a -= 1\n    return a\n"
    )
    (tree / "tests/scanner/test_small.py").write_text(
        "from scanner.small import count, is_large, is_small\n\n\n"
        "def test_small() -> None:\n"
        "    assert (is_small(4), is_small(5), count(3)) == (True, False, 0)\n"
        "    assert is_large(3)\n"
    )
    for module in (mutants, guarantees):
        monkeypatch.setattr(module, "ROOT", tree)
    monkeypatch.setattr(mutants, "_COPIED", ("scanner", "tests"))
    monkeypatch.setattr(mutants, "_COPIED_FILES", ("pyproject.toml",))
    small = Guarantee(name="small", modules=("scanner/small.py",), tests=())
    monkeypatch.setattr(guarantees, "GUARANTEES", (small,))
    monkeypatch.setattr(mutants, "TEST_TIMEOUT_S", 5)
    return tree


@pytest.mark.slow
def test_what_no_test_notices_survives(small_tree: Path, tmp_path: Path) -> None:
    """A change with a test is killed, an endless loop hangs, what has no test survives; the tree stays as it was."""
    before = (small_tree / "scanner/small.py").read_text()
    by_change = {each.mutation.diff(before)[-1].strip("+ "): each for each in draw(1, 100)}
    (tmp_path / "copy").mkdir()
    laboratory = mutants.Laboratory(tmp_path / "copy")
    for change, verdict in (("return (a <= 5)", "killed"), ("pass", "hung"), ("return (a <= 7)", "survived")):
        assert mutants.try_mutant(laboratory, by_change[change]).verdict == verdict, change
    assert (small_tree / "scanner/small.py").read_text() == before
    assert (tmp_path / "copy/scanner/small.py").read_text() == before


@pytest.mark.slow
def test_a_survivor_is_told_of(small_tree: Path, tmp_path: Path) -> None:
    """With its place and its diff, on the terminal and in the JSON; and the bar is missed."""
    path = small_tree / "scanner/small.py"
    path.write_text("LIMIT = 7\n\n\n" + path.read_text())
    said, output = io.StringIO(), tmp_path / "out.json"
    # The one place of the first line, among others that are not drawn.
    seed = next(each for each in range(1000) if draw(each, 1)[0].mutation.line == 1)
    (bar,) = run(output, Console(file=said, width=200), seed=seed, count=1)
    assert not bar.ok
    assert "scanner/small.py:1 (constant)" in said.getvalue()
    (trial,) = json.loads(output.read_text())["mutants"]
    assert (trial["diff"], trial["verdict"]) == (["-LIMIT = 7", "+LIMIT = 8"], "survived")


@pytest.mark.slow
def test_tests_that_fail_anyhow_are_refused(small_tree: Path) -> None:
    """A red test would kill every mutant: the run ends before the first one."""
    path = small_tree / "tests/scanner/test_small.py"
    path.write_text(path.read_text() + "\n\ndef test_red() -> None:\n    assert False\n")
    with pytest.raises(BenchFailed, match="test_red fails without any mutant"):
        run(None, Console(file=io.StringIO()), seed=1, count=1)


def test_an_argued_equivalent_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the list with its reason is neither run nor judged."""
    mutant = draw(1, 1, ["scanner/data/keys.py"])[0]
    assert isinstance(mutant, Mutant)
    diff = mutant.mutation.diff((ROOT / mutant.module).read_text())
    key = (mutant.module, "\n".join(line[0] + line[1:].strip() for line in diff))
    monkeypatch.setattr(mutants, "EQUIVALENT", {key: "a test says so"})
    laboratory: mutants.Laboratory = object.__new__(mutants.Laboratory)
    trial = mutants.try_mutant(laboratory, mutant)
    assert (trial.verdict, trial.by) == ("equivalent", "a test says so")
    assert mutants.bars([trial])[0].name == "killed of 0 mutants"
