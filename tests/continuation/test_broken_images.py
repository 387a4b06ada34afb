"""A test that the campaign of cuts can fail: images that are read wrong are found by what it judges."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bench.cutting.setting import ImageFate, Scenario, open_campaign
from bench.cutting.stream import Cut, Direction
from bench.questions.cuts import run_cuts
from scanner.storage.memory.store import MemoryStore
from tests.support.broken_images import BROKEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import trio

    from bench.cutting.campaign import Tally

KEYS = 150
KEPT = Scenario(name="kept", image=ImageFate.KEPT, writes_before=20, write_every=5, writes_between=3)
DAMAGED = Scenario(name="damaged", image=ImageFate.DAMAGED)


async def cut_thrice(images: Path, scenario: Scenario) -> Tally:
    """Three scans, cut at several places."""
    async with open_campaign(MemoryStore(images=images), KEYS, scenario, random.Random(4)) as campaign:
        octets = (await campaign.record()).ends[Direction.DOWN][-1]
        cuts = [Cut(Direction.DOWN, octets=octets * number // 5) for number in (1, 2, 3)]
        return await run_cuts(campaign, cuts)


@pytest.mark.parametrize("scenario", [KEPT, DAMAGED], ids=lambda scenario: scenario.name)
async def test_sound_images(
    tmp_path: Path, scenario: Scenario, autojump_clock: trio.testing.MockClock
) -> None:
    """With nothing broken nothing is found: what the other tests find is the defect."""
    tally = await cut_thrice(tmp_path, scenario)
    assert tally.resumes >= 2
    assert tally.perfect, str(tally)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_broken_images(
    tmp_path: Path,
    broken: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each is found, by the validator that is there for it."""
    broken(monkeypatch)
    scenario = DAMAGED if broken.__name__.startswith("fall_back") else KEPT
    assert BROKEN[broken] in (await cut_thrice(tmp_path, scenario)).violated
