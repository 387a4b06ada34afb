"""`python -m bench cuts`: what it prints, what it writes, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.harness.errors import BenchFailed
from tests.simulation.test_broken import drop_row_after_resume

QUICK = ["cuts", "--rows", "150", "--positions", "30"]
"""So many that some scan is resumed in the middle of its rows, however the tasks take turns."""


def test_bars_and_json(tmp_path: Path) -> None:
    """Every bar is met, and the JSON tells the cut points of each scenario that was asked for."""
    output = tmp_path / "cuts.json"
    command = [*QUICK, "--only", "quiet", "--only", "asof", "--json", str(output)]
    result = CliRunner().invoke(main, command, catch_exceptions=False)

    document = json.loads(output.read_text())
    assert result.exit_code == 0, result.output
    assert "every bar is met" in result.output
    assert [each["scenario"] for each in document["scenarios"]] == ["quiet", "asof"]
    assert document["cut_points"] == sum(each["cut_points"] for each in document["scenarios"]) > 8
    assert all(bar["ok"] for bar in document["bars"])


def test_a_missed_bar_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is said, and makes the command fail."""
    drop_row_after_resume(monkeypatch)
    with pytest.raises(BenchFailed, match="rows lost"):
        CliRunner().invoke(main, [*QUICK, "--only", "quiet"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("option", "value", "there_is"),
    [("--only", "nothing", "there are quiet"), ("--positions", "some", "all, frames, or a number")],
)
def test_wrong_options_are_refused(option: str, value: str, there_is: str) -> None:
    """The message names what there is."""
    result = CliRunner().invoke(main, ["cuts", option, value])
    assert result.exit_code == 2
    assert there_is in result.output
