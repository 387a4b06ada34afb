"""The simulation bench: what it counts, what it says of a seed that fails, and how that is run again."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.__main__ import main
from bench.harness.bars import failures
from bench.harness.errors import BenchFailed
from bench.questions.simulate import COVERING_SEEDS, MUST_HAPPEN, Simulated, bars, run
from bench.simulation.world import simulate
from scanner.sources.interface import EndReason
from scanner.sources.kv import KvSource

SEED = 10


@pytest.fixture
def ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scan says that it is exhausted before its first row."""
    monkeypatch.setattr(KvSource, "end", EndReason.EXHAUSTED)


def test_seeds_are_counted(tmp_path: Path) -> None:
    """A few seeds: no violation, and the JSON has bars, counts and errors."""
    output, said = tmp_path / "simulate.json", io.StringIO()
    found = run(output, Console(file=said, width=200), seeds=4, first_seed=SEED, verbose=False)
    assert failures(found) == [], said.getvalue()
    assert "4 seeds from 10" in said.getvalue()
    document = json.loads(output.read_text())
    assert {bar["name"] for bar in document["bars"]} == {"seeds", "violations"}
    assert (document["seeds"], document["first_seed"], document["violations"]) == (4, SEED, [])
    assert document["happened"]["scans"] == document["scans"] > 0


def test_what_was_measured_is_written_though_nobody_reads(tmp_path: Path) -> None:
    """Who reads the tables may be gone when they come."""
    output, said = tmp_path / "simulate.json", io.StringIO()
    said.close()
    with pytest.raises(ValueError, match="closed file"):
        run(output, Console(file=said), seeds=1, first_seed=SEED, verbose=False)
    assert json.loads(output.read_text())["seeds"] == 1


@pytest.mark.usefixtures("ends_at_once")
def test_failing_seed_is_one_line(tmp_path: Path) -> None:
    """A seed that fails is one line: its number, the validator, and the command that runs it again."""
    output, said = tmp_path / "simulate.json", io.StringIO()
    found = run(output, Console(file=said, width=200), seeds=1, first_seed=SEED, verbose=False)
    (line,) = (line for line in said.getvalue().splitlines() if line.startswith("seed "))
    assert any(line.startswith(f"seed {SEED}: {name}: scanner ") for name in ("complete", "resumable"))
    assert line.endswith(f"python -m bench simulate --seed {SEED} -v")
    assert [bar.name for bar in found if not bar.ok] == ["violations"]
    violations = json.loads(output.read_text())["violations"]
    assert {violation["seed"] for violation in violations} == {SEED}
    assert "complete" in {violation["validator"] for violation in violations}


@pytest.mark.usefixtures("ends_at_once")
def test_command_fails() -> None:
    """The command ends with an error if a validator objects."""
    done = CliRunner().invoke(main, ["simulate", "--seed", str(SEED)])
    assert isinstance(done.exception, BenchFailed)


def test_replay_shows_the_history() -> None:
    """With -v every event of the seed is printed, and the fingerprint of the same run elsewhere."""
    done = CliRunner().invoke(main, ["simulate", "--seed", str(SEED), "-v"])
    assert done.exit_code == 0
    outcome = simulate(SEED)
    assert all(str(event) in done.output for event in outcome.history.events)
    assert outcome.fingerprint in done.output


def test_run_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that raises is a violation of its seed, and the next seeds are run."""

    def broken(_self: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr("bench.simulation.actors.Actors.load", broken)
    said = io.StringIO()
    found = run(None, Console(file=said, width=200), seeds=2, first_seed=SEED, verbose=False)
    assert said.getvalue().count("sound: the run: ") == 2
    assert not all(bar.ok for bar in found)


def test_everything_must_happen_in_many_seeds() -> None:
    """From 500 seeds on, a kind of fault that never happened misses its bar."""
    simulated = Simulated(0, seeds=COVERING_SEEDS)
    assert {bar.name for bar in bars(simulated) if not bar.ok} == set(MUST_HAPPEN.values())
    simulated.happened.update(MUST_HAPPEN.keys())
    assert failures(bars(simulated)) == []
