"""What every bench does with its bars and its figures."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from bench.__main__ import main
from bench.harness import spread
from bench.harness.bars import Bar, at_least, at_most, write_json
from bench.harness.errors import BenchFailed
from bench.questions import abuse, image_building, neighbours, tail

README = Path(__file__).resolve().parents[2] / "bench/README.md"
BAR = Bar("rows", 3, "= 3", ok=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure."""

    rows: int


def test_what_only_its_rounding_would_meet_is_missed() -> None:
    """A figure is shown with three digits behind the point, and judged with all that it has."""
    assert at_least("rate", 0.9496, 0.95) == Bar("rate", 0.95, ">= 0.95", ok=False)
    assert at_most("time", 1.50004, 1.5) == Bar("time", 1.5, "<= 1.5", ok=False)
    assert spread.ratio([1899.0, 1.0, 3.0], [2000.0, 1.0, 4.0]) < 0.95


def test_the_json_has_bars_figures_and_machine(tmp_path: Path) -> None:
    """A directory that is missing is made: nobody waits ten minutes for figures that cannot be written."""
    output = tmp_path / "new" / "figures.json"
    write_json(output, [BAR], measured={"push": Measured(3)}, seed=7)
    document = json.loads(output.read_text())
    assert document["bars"] == [{"name": "rows", "value": 3, "bar": "= 3", "ok": True}]
    assert (document["measured"], document["seed"]) == ({"push": {"rows": 3}}, 7)
    assert document["machine"]["cores"] > 0


def test_the_json_has_the_options_of_its_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were given and those by default: figures of other sizes are not to be compared."""
    output = tmp_path / "figures.json"
    monkeypatch.setattr(neighbours, "run", lambda output, *_, **__: write_json(output, [BAR]))
    assert CliRunner().invoke(main, ["neighbours", "--json", str(output)]).exit_code == 0
    assert json.loads(output.read_text())["options"] == {"rounds": 5}
    assert CliRunner().invoke(main, ["neighbours", "--rounds", "9", "--json", str(output)]).exit_code == 0
    assert json.loads(output.read_text())["options"] == {"rounds": 9}


def test_a_json_that_cannot_be_made_leaves_the_one_before(tmp_path: Path) -> None:
    """Whole or not at all."""
    output = tmp_path / "figures.json"
    write_json(output, [BAR])
    with pytest.raises(TypeError):
        write_json(output, [BAR], measured=object())
    assert json.loads(output.read_text())["bars"]


def test_a_json_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """And nothing lies beside it."""
    output = tmp_path / "figures.json"
    output.mkdir()
    with pytest.raises(BenchFailed, match=r"^the measurements are not in .*figures\.json: "):
        write_json(output, [BAR])
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize(("option", "place"), [("--json", "file/figures.json"), ("--plots", "file/plots")])
def test_where_nothing_can_be_written_nothing_is_measured(
    option: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody learns that after ten minutes."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(tail, "run", lambda *_, **__: pytest.fail("measured"))
    done = CliRunner().invoke(main, ["tail", option, str(tmp_path / place)])
    assert (done.exit_code, "cannot write into" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("number", "in_background"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_a_bench_that_is_ended_in_a_nursery_says_so(
    number: signal.Signals,
    in_background: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 1 would say that a bar is missed. One in a shell's background ignores Ctrl-C, and no SIGTERM."""

    async def wait() -> None:
        async with trio.open_nursery():
            with trio.fail_after(100):
                signal.raise_signal(number)
                await trio.sleep_forever()

    monkeypatch.setattr(tail, "run", lambda *_, **__: trio.run(wait))
    monkeypatch.setattr(sys, "argv", ["bench", "tail"])
    monkeypatch.delitem(sys.modules, "bench.__main__")
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    if in_background:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("bench", run_name="__main__")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (ended.value.code, capsys.readouterr().err) == (130, "bench: interrupted\n")


def test_a_run_without_bars_does_not_say_that_they_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some parts only measure."""
    monkeypatch.setattr(tail, "run", lambda *_, **__: [])
    done = CliRunner().invoke(main, ["tail", "--part", "throughput"])
    assert (done.exit_code, done.output) == (0, "nothing that these options measure has a bar\n")


def test_an_attack_that_there_is_not_is_one_line() -> None:
    """It says which there are."""
    with pytest.raises(BenchFailed, match=r"^no attack has absent in its name; there are .*flood"):
        abuse.run(None, Console(quiet=True), only=("absent",))


def test_what_is_over_too_soon_is_not_measured() -> None:
    """An image that was made before ten scans says nothing about them."""
    with pytest.raises(BenchFailed, match=r"^an image was over .* take more --rows$"):
        image_building._measure(None, 1000, "an image", lambda: False)  # type: ignore[arg-type]


def test_every_bench_is_on_the_page() -> None:
    """With its question."""
    page = README.read_text(encoding="utf-8")
    assert [name for name in main.commands if f"`{name}`" not in page] == []
