"""What every bench does with its bars and its figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.harness.bars import Bar, write_json

BAR = Bar("rows", 3, "= 3", ok=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure."""

    rows: int


def test_the_json_has_bars_figures_and_machine(tmp_path: Path) -> None:
    """A directory that is missing is made: nobody waits ten minutes for figures that cannot be written."""
    output = tmp_path / "new" / "figures.json"
    write_json(output, [BAR], measured={"push": Measured(3)}, seed=7)
    document = json.loads(output.read_text())
    assert document["bars"] == [{"name": "rows", "value": 3, "bar": "= 3", "ok": True}]
    assert (document["measured"], document["seed"]) == ({"push": {"rows": 3}}, 7)
    assert document["machine"]["cores"] > 0


def test_a_json_that_cannot_be_made_leaves_the_one_before(tmp_path: Path) -> None:
    """Whole or not at all."""
    output = tmp_path / "figures.json"
    write_json(output, [BAR])
    with pytest.raises(TypeError):
        write_json(output, [BAR], measured=object())
    assert json.loads(output.read_text())["bars"]
