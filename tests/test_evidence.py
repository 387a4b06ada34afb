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
OPTIONS = ("cases", "images", "kills", "rows", "seed", "seeds")
"""Those that a bench writes down under their own names."""


def test_the_evidence_is_that_of_the_results() -> None:
    """`python -m tools.write_evidence` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == written_into(page)


@pytest.mark.parametrize("result", FILES, ids=lambda result: result.stem)
def test_a_result_is_of_its_command(result: Path) -> None:
    """It is one of a bench, and measures what the file says: as much of it, and with this seed."""
    bench, *words = shlex.split(command_of(result))[3:]
    command = main.commands[bench]
    asked = command.make_context(bench, words, parent=click.Context(main), resilient_parsing=True).params
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if bench == "mutants":
        document["count"] = len(document["mutants"])
    told = {name: document[name] for name in (*OPTIONS, "count") if isinstance(document.get(name), int)}
    assert {name: asked[name] for name in told.keys() & asked.keys()} == {
        name: told[name] for name in told.keys() & asked.keys()
    }
