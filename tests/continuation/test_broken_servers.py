"""A test that the tests can fail: servers broken on purpose, each caught by the name of what it does wrong.

The defects are those of the simulation, which finds them by its own validators; here cut scans, and a scan that counts
its credit, find them as well.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bench.cutting.setting import QUIET, SCENARIOS, open_campaign
from bench.cutting.stream import Cut, Direction
from bench.questions.cuts import run_cuts
from scanner.errors import InternalError
from scanner.storage.memory.store import MemoryStore
from tests.simulation.test_broken import (
    drop_row_after_resume,
    end_early,
    reuse_fresh_snapshot,
    send_past_credit,
)
from tests.support.conformance import open_items
from tests.support.models import PUSH
from tests.support.scans import open_scan

if TYPE_CHECKING:
    import trio

    from bench.cutting.campaign import Tally

KEYS = 300
EMPTIED = next(scenario for scenario in SCENARIOS if scenario.name == "emptied-registry")


async def cut_in_the_middle(emptied: bool) -> Tally:
    """One scan, cut when half of its octets have come: how many frames they are differs from run to run."""
    scenario = EMPTIED if emptied else QUIET
    async with open_campaign(MemoryStore(), KEYS, scenario, random.Random(4)) as campaign:
        octets = (await campaign.record()).ends[Direction.DOWN][-1]
        return await run_cuts(campaign, [Cut(Direction.DOWN, octets=octets // 2)])


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_sound_server(emptied: bool, autojump_clock: trio.testing.MockClock) -> None:
    """With nothing broken nothing is found: what the other tests find is the defect."""
    tally = await cut_in_the_middle(emptied)
    assert tally.resumes == 1
    assert tally.perfect, str(tally)


async def test_a_server_that_drops_a_row_after_a_resume(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its ordinals and checksums are right, and yet one row is lost, and the digest is another."""
    drop_row_after_resume(monkeypatch)
    tally = await cut_in_the_middle(emptied=False)
    assert (tally.resumes, tally.lost) == (1, 1)
    assert tally.violated == {"complete", "resumable"}


async def test_a_server_that_reuses_a_fresh_snapshot(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """It claims the offset of before, and shows rows of another time."""
    reuse_fresh_snapshot(monkeypatch)
    tally = await cut_in_the_middle(emptied=True)
    assert tally.resumes == 1
    assert {"isolated", "resumable"} <= tally.violated


async def test_a_server_that_ends_early(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its total is that of the rows that it sent, so its client believes it; the rows that did not come are lost."""
    end_early(monkeypatch)
    async with open_campaign(MemoryStore(), KEYS, QUIET, random.Random(4)) as campaign:
        tally = await run_cuts(campaign, [Cut(Direction.DOWN, frames=1_000)])
    assert tally.lost > KEYS / 2
    assert tally.violated == {"complete", "resumable"}


@pytest.mark.socket
async def test_a_server_that_sends_past_the_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw client counts more than a row's message past its limit; weir's own client cuts the server off."""
    limit, row_message_bytes = 3_000, 700
    async with open_items(MemoryStore()) as items:
        async with open_scan(items.raw, credit=limit) as scan:
            await scan.receive_credit(limit)
        assert scan.received_bytes <= limit + row_message_bytes
        send_past_credit(monkeypatch)
        async with open_scan(items.raw, credit=limit) as scan:
            while scan.end is None:
                await scan.receive()
        assert scan.received_bytes > limit + row_message_bytes
        async with PUSH.scan(items.table).execute() as batches:
            await anext(batches)
            await items.released()  # the client has reset the stream
            with pytest.raises(InternalError, match="past the credit"):
                await anext(batches)
