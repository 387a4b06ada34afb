"""A snapshot with its changes, and changes alone, cut after every frame: they fold to the table, each change once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bench.cutting.setting import HYBRID, LOG, Scenario
from bench.questions.cuts import run_scenario
from scanner.server.log.opener import LogOpener
from scanner.storage.memory.store import MemoryStore

if TYPE_CHECKING:
    import trio

    from scanner.server.log.log_scan import LogScan
    from tests.continuation.conftest import CutPoints

KEYS = 60
SEED = 4


@pytest.fixture
def resumed_in(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """In which part of it a HYBRID went on, and how often."""
    found: Counter[str] = Counter()
    real = LogOpener.resume_hybrid

    async def resume(self: LogOpener, query: object, principal: str, state: object) -> object:
        next_offset, snapshot = state.next_offset, state.log_offset  # type: ignore[attr-defined]
        found["snapshot" if not next_offset else "boundary" if next_offset == snapshot else "changes"] += 1
        return await real(self, query, principal, state)  # type: ignore[arg-type]

    monkeypatch.setattr(LogOpener, "resume_hybrid", resume)
    return found


async def test_a_hybrid_cut_after_every_frame(
    autojump_clock: trio.testing.MockClock, cut_points: CutPoints, resumed_in: Counter[str]
) -> None:
    """In its snapshot, in its changes, and between the two: 0 lost, 0 repeated, and the fold is the table."""
    found = await run_scenario(HYBRID, MemoryStore(), KEYS, "frames", 0, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes > 0.6 * found.frames
    assert resumed_in["snapshot"] > 5
    assert resumed_in["changes"] > 5


async def test_a_log_cut_after_every_frame(
    autojump_clock: trio.testing.MockClock, cut_points: CutPoints
) -> None:
    """Its first commit alone is many frames: it goes on in the middle of it."""
    found = await run_scenario(LOG, MemoryStore(), KEYS, "frames", 0, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes > 0.6 * found.frames


def lose_a_change(patch: pytest.MonkeyPatch) -> None:
    """A tail that goes on one change behind where it stood."""
    resume = LogOpener.resume

    async def skip(self: LogOpener, query: object, principal: str, state: object) -> LogScan:
        scan = await resume(self, query, principal, state)  # type: ignore[arg-type]
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
