"""A snapshot with its changes, and changes alone, cut where frames end: they fold to the table, each change once."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from bench.cutting.setting import HYBRID, LOG, Scenario, open_campaign
from bench.cutting.stream import Cut, Direction
from bench.questions.cuts import run_cuts, run_scenario
from scanner.client.scan.push_receiver import PushReceiver
from scanner.errors import ServerUnavailable
from scanner.server.log.opener import LogOpener
from scanner.storage.memory.store import MemoryStore
from tests.support.nightly import everyday

if TYPE_CHECKING:
    import trio

    from scanner.server.log.log_scan import LogScan
    from scanner.server.scan.tokens import TokenState
    from tests.continuation.conftest import CutPoints

KEYS = 80
PLACES = everyday("40", nightly="frames")
"""Ends of frames, spread evenly; at night all, as `python -m bench cuts` has it with more rows."""
SEED = 4


@pytest.fixture
def resumed_in(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """In which part of it a HYBRID went on, and how often."""
    found: Counter[str] = Counter()
    real = LogOpener.resume_hybrid

    async def resume(self: LogOpener, query: Any, principal: str, state: TokenState) -> object:
        whole = not state.next_offset and state.position.rows == KEYS
        found["boundary" if whole else "changes" if state.next_offset else "snapshot"] += 1
        return await real(self, query, principal, state)

    monkeypatch.setattr(LogOpener, "resume_hybrid", resume)
    return found


async def test_a_hybrid_cut_after_its_frames(
    autojump_clock: trio.testing.MockClock, cut_points: CutPoints, resumed_in: Counter[str]
) -> None:
    """In its snapshot, in its changes, and between the two: 0 lost, 0 repeated, and the fold is the table."""
    found = await run_scenario(HYBRID, MemoryStore(), KEYS, everyday("73", nightly="frames"), 0, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    # Cuts on the way up often come before the scan is opened, or after its end.
    assert found.tally.resumes > 0.4 * found.tally.scans
    assert resumed_in["snapshot"] > 0
    assert resumed_in["changes"] > 0


@pytest.mark.parametrize("lost", ["_snapshot_end", "_batch"])
async def test_a_hybrid_cut_exactly_at_the_boundary(
    lost: str,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    resumed_in: Counter[str],
) -> None:
    """The line breaks before the end of the snapshot has come, or right behind it: once, and nothing is lost."""
    take = getattr(PushReceiver, lost)
    broken: list[bool] = []

    def cut(self: PushReceiver, message: Any) -> Any:
        if not broken and (lost == "_snapshot_end" or self._behind_snapshot):
            broken.append(True)
            raise ServerUnavailable("the line broke at the boundary")
        return take(self, message)

    monkeypatch.setattr(PushReceiver, lost, cut)
    async with open_campaign(MemoryStore(), KEYS, HYBRID, random.Random(SEED)) as campaign:
        tally = await run_cuts(campaign, [Cut(Direction.DOWN, frames=10_000)])

    assert tally.perfect, str(tally)
    assert tally.resumes == 1
    assert resumed_in == {"boundary": 1}


async def test_a_log_cut_after_its_frames(
    autojump_clock: trio.testing.MockClock, cut_points: CutPoints
) -> None:
    """Its first commit alone is many frames: it goes on in the middle of it."""
    found = await run_scenario(LOG, MemoryStore(), KEYS, PLACES, 0, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes > 0.4 * found.tally.scans


def lose_a_change(patch: pytest.MonkeyPatch) -> None:
    """A tail that goes on one change behind where it stood."""
    resume = LogOpener.resume

    async def skip(self: LogOpener, *arguments: Any) -> LogScan:
        scan = await resume(self, *arguments)
        scan.scan.source.next_offset += 1
        scan.scan.source.covered += 1
        return scan

    patch.setattr(LogOpener, "resume", skip)


@pytest.mark.parametrize("scenario", [HYBRID, LOG], ids=lambda scenario: scenario.name)
async def test_a_server_that_loses_a_change(
    scenario: Scenario, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that counts offsets finds it at once: no such scan comes to its end."""
    lose_a_change(monkeypatch)
    found = await run_scenario(scenario, MemoryStore(), KEYS, "8", 0, SEED)
    assert found.tally.violated == {"resumable"}
    assert any("lost" in failure for failure in found.tally.failed)
