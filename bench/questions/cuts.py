"""Is anything lost, repeated or changed when the connection of a scan is cut at any place?

The places are every octet that ends a frame, in both directions, and random ones inside frames (`bench.cutting`). For
each of them a scan of the same table is cut exactly there, once, and goes on by itself over a new connection. It must
end with every row of the state that it began with, once and in order, and with the digest of an uninterrupted scan.

Expected: nothing. In the scenarios in memory everything runs on a virtual clock, so that the client's pauses cost
nothing; there a scan takes tens of milliseconds. The last one kills a real server process with every cut.

A session cannot be had back after its last page was made, by its contract: where the cut hides that page from its
client, it must fail, and say so. Such places are counted by themselves.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
import trio.testing
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import scanner
from bench.cutting.campaign import Campaign, Recording, Tally
from bench.cutting.setting import SCENARIOS, Scenario, open_campaign, open_killed_campaign
from bench.harness.bars import Bar, none_of, some_of, write_json
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.data_directory import begin
from scanner.storage.rocksdb.store import RocksStore

if TYPE_CHECKING:
    from rich.console import Console

    from bench.cutting.stream import Cut
    from scanner.storage.interface import Store

KILLED: Final = "killed"
KILLS: Final = 12
KILLED_ROWS: Final = 3_000
NAMES: Final = (*(scenario.name for scenario in SCENARIOS), KILLED)
SCAN_TIMEOUT_S: Final = 600.0

SESSION: Final = "session"
JUDGED: Final = {
    "lost": "rows lost",
    "repeated": "rows repeated",
    "wrong": "rows of another time",
    "disordered": "scans out of order",
    "digests_wrong": "digests that differ",
}
"""What is counted, and what people call it."""

Told = Callable[[str, int, int], None]
"""Told the scenario, the cuts done, and all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What became of one scenario."""

    scenario: str
    frames: int
    """Of the uninterrupted scan, both ways."""
    seconds: float
    tally: Tally


async def run_cuts(campaign: Campaign, cuts: list[Cut], told: Callable[[int], None] | None = None) -> Tally:
    """Run one scan for each cut.

    Args:
        campaign: Where.
        cuts: Where in it.
        told: Told how many are done.

    Raises:
        trio.TooSlowError: A scan hangs.
    """
    tally = Tally()
    for cut in cuts:
        with trio.fail_after(SCAN_TIMEOUT_S):
            try:
                tally.outcomes.append(await campaign.run(cut))
            except scanner.SessionUnknown:
                tally.refused.append(cut)
            except scanner.ScannerError as error:
                tally.failed.append(f"{cut}: {error}")
        if told is not None:
            told(tally.scans)
    return tally


def chosen(recording: Recording, positions: str, inside: int, rng: random.Random) -> list[Cut]:
    """Where to cut.

    Args:
        recording: Of the uninterrupted scan.
        positions: `frames`, every end of a frame; `all`, those and places inside; or how many ends, spread evenly.
        inside: How many places inside frames.
        rng: Choose them.
    """
    ends = list(recording.at_frames())
    if positions.isdecimal():
        count = min(int(positions), len(ends))
        return [ends[len(ends) * at // count] for at in range(count)]
    return ends if positions == "frames" else [*ends, *recording.inside_frames(inside, rng)]


async def run_scenario(
    scenario: Scenario,
    store: Store,
    keys: int,
    positions: str,
    inside: int,
    seed: int,
    told: Told | None = None,
) -> Found:
    """Cut the scans of one scenario.

    Args:
        scenario: What happens around the cuts.
        store: Empty.
        keys: Rows of the table.
        positions: As of `chosen`.
        inside: As of `chosen`.
        seed: Chooses whatever is left to chance.
        told: Told how far it is.
    """
    rng, started = random.Random(f"{seed} {scenario.name}"), time.perf_counter()
    async with open_campaign(store, keys, scenario, rng) as campaign:
        recording = await campaign.record()
        cuts = chosen(recording, positions, inside, rng)
        return await _run_campaign(campaign, scenario.name, recording, cuts, started, told)


async def run_killed(data: Path, keys: int, kills: int, seed: int, told: Told | None = None) -> Found:
    """Cut scans, and kill the server each time.

    Args:
        data: A directory for the server's data.
        keys: Rows of the table.
        kills: How often, spread over the scan.
        seed: Chooses whatever is left to chance.
        told: Told how far it is.
    """
    rng, started = random.Random(seed), time.perf_counter()
    async with open_killed_campaign(data, keys, rng) as campaign:
        recording = await campaign.record()
        cuts = list(recording.spread(kills))
        return await _run_campaign(campaign, KILLED, recording, cuts, started, told)


async def _run_campaign(
    campaign: Campaign, name: str, recording: Recording, cuts: list[Cut], started: float, told: Told | None
) -> Found:
    def report(done: int) -> None:
        if told is not None:
            told(name, done, len(cuts))

    tally = await run_cuts(campaign, cuts, report)
    if recording.failed:
        tally.failed.append(recording.failed)
    seconds = round(time.perf_counter() - started, 1)
    return Found(scenario=name, frames=recording.frames, seconds=seconds, tally=tally)


def bars(found: list[Found]) -> list[Bar]:
    """What must be so."""
    cut_points = sum(each.tally.struck for each in found)
    idle = sum(not each.tally.resumes for each in found)
    stopped = sum(len(each.tally.failed) for each in found)
    stopped += sum(len(each.tally.refused) for each in found if each.scenario != SESSION)
    judged = [
        some_of("cut points", cut_points),
        none_of("scenarios in which no scan was resumed", idle),
        none_of("scans that could not go on", stopped),
    ]
    for what, name in JUDGED.items():
        count = sum(getattr(each.tally, what) for each in found)
        judged.append(none_of(name, count))
    return judged


def run(
    output: Path | None,
    console: Console,
    *,
    keys: int,
    positions: str,
    inside: int,
    rocks: bool,
    names: tuple[str, ...],
    seed: int,
) -> list[Bar]:
    """Run the scenarios, print each as it ends, and write the JSON; `positions` and `inside` are those of `chosen`."""
    found: list[Found] = []

    def ended(each: Found) -> None:
        found.append(each)
        line = f"{each.scenario}: {each.tally}; {each.seconds:.0f} s"
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with _progress(console) as told:
        for scenario in SCENARIOS:
            if scenario.name in (names or NAMES):
                with _store(rocks=rocks) as store:
                    arguments = (scenario, store, keys, positions, inside, seed, told)
                    clock = trio.testing.MockClock(autojump_threshold=0)
                    ended(trio.run(run_scenario, *arguments, clock=clock))
        if KILLED in (names or NAMES):
            with tempfile.TemporaryDirectory() as directory:
                ended(trio.run(run_killed, Path(directory) / "data", KILLED_ROWS, KILLS, seed, told))
    judged = bars(found)
    write_json(
        output,
        judged,
        scenarios=[_to_dict(each) for each in found],
        cut_points=sum(each.tally.struck for each in found),
        rows=keys,
        store="rocks" if rocks else "memory",
        seed=seed,
    )
    console.print(_table(found))
    return judged


@contextmanager
def _store(*, rocks: bool) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as directory:
        if not rocks:
            yield MemoryStore(images=Path(directory))
            return
        data = Path(directory) / "data"
        begin(data, first_table_id=0)
        with RocksStore.open(data) as store:
            yield store


@contextmanager
def _progress(console: Console) -> Iterator[Told]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def told(name: str, done: int, cuts: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=cuts)
            progress.update(tasks[name], completed=done)

        yield told


def _table(found: list[Found]) -> Table:
    caption = "Over: sessions whose last page the cut hid; digests: those that differ."
    table = Table(caption=caption, title="scans that were cut, and resumed", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("scenario", no_wrap=True)
    for heading in ("frames", "cuts", "resumes", "lost", "twice", "wrong", "digests", "over", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        tally = each.tally
        cells = (
            each.frames, tally.struck, tally.resumes, tally.lost, tally.repeated, tally.wrong,
            tally.digests_wrong, len(tally.refused), each.seconds,
        )  # fmt: skip
        table.add_row(each.scenario, *map(str, cells))
    return table


def _to_dict(found: Found) -> dict[str, object]:
    tally = found.tally
    return {
        "scenario": found.scenario,
        "frames": found.frames,
        "cut_points": tally.struck,
        "resumes": tally.resumes,
        "lost": tally.lost,
        "repeated": tally.repeated,
        "wrong": tally.wrong,
        "disordered": tally.disordered,
        "digests_wrong": tally.digests_wrong,
        "refused": list(map(str, tally.refused)),
        "failed": tally.failed,
        "written_meanwhile": sum(outcome.commits_meanwhile for outcome in tally.outcomes),
        "seconds": found.seconds,
    }
