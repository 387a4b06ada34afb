"""The page of evidence says what the benches' files say."""

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from bench.__main__ import main
from tools.write_evidence import PAGE, RESULTS, command_of, written_into

FILES = sorted(RESULTS.glob("*.json"))
TELLS_NOTHING = {"abuse", "as-of", "continuation", "scale", "tail", "tpch", "transport", "writes"}
"""Benches that write none of their options down."""


def test_the_evidence_is_that_of_the_results() -> None:
    """`python -m tools.write_evidence` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == written_into(page)


@pytest.mark.parametrize("result", FILES, ids=lambda result: result.stem)
def test_a_result_is_of_its_command(result: Path) -> None:
    """It is one of a bench, whose options it has; and what the file says of them by their names is what was asked."""
    bench, *words = shlex.split(command_of(result))[3:]
    command = main.commands[bench]
    asked = command.make_context(bench, words, parent=click.Context(main)).params
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    told = {**document, **document.get("scale", {})}
    if bench == "mutants":
        told["count"] = len(document["mutants"])
    both = [name for name in asked if isinstance(asked[name], int) and isinstance(told.get(name), int)]
    assert {name: asked[name] for name in both} == {name: told[name] for name in both}
    assert bool(both) != (bench in TELLS_NOTHING)
