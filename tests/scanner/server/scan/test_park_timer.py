"""The one timer of scans whose peers take nothing."""

from __future__ import annotations

import math
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from scanner.server.scan.park_timer import ParkTimer


class Scan:
    """Notes when it is parked."""

    def __init__(self) -> None:
        self.parked_at: list[float] = []

    def park(self) -> None:
        """See `Parkable`."""
        self.parked_at.append(trio.current_time())


@asynccontextmanager
async def running() -> AsyncIterator[ParkTimer]:
    """A timer for the length of a block."""
    timer = ParkTimer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        yield timer
        nursery.cancel_scope.cancel()


async def wait(timer: ParkTimer, scan: Scan, park_after_s: float, wait_s: float) -> None:
    """Wait for a peer."""
    with timer.parks(scan, trio.current_time() + park_after_s), trio.move_on_after(wait_s):
        await trio.sleep_forever()


async def test_a_scan_that_waits_too_long_is_parked_once(autojump_clock: trio.testing.MockClock) -> None:
    """At its time, while it waits; who waits less is not."""
    long, short, never = Scan(), Scan(), Scan()
    start = trio.current_time()
    async with running() as timer, trio.open_nursery() as nursery:
        nursery.start_soon(wait, timer, long, 5, 60)
        nursery.start_soon(wait, timer, short, 5, 4.9)
        nursery.start_soon(wait, timer, never, math.inf, 60)
    assert [at - start for at in long.parked_at] == [5]
    assert short.parked_at == never.parked_at == []


async def test_a_scan_that_is_over_is_not_held(autojump_clock: trio.testing.MockClock) -> None:
    """By the timer that has parked it, though nobody waits too long ever after: with it goes its connection."""
    scan = Scan()
    over = weakref.ref(scan)
    async with running() as timer:
        timer.begin(scan, trio.current_time() + 5)
        with trio.move_on_after(60):
            await trio.sleep_forever()
        assert scan.parked_at
        del scan
        assert over() is None


async def test_the_earliest_is_first(autojump_clock: trio.testing.MockClock) -> None:
    """One that begins later, and is due earlier, is not late; nor is one that waits again behind another wait."""
    first, second = Scan(), Scan()
    start = trio.current_time()
    async with running() as timer, trio.open_nursery() as nursery:
        nursery.start_soon(wait, timer, first, 5, 60)
        await trio.testing.wait_all_tasks_blocked()
        await wait(timer, second, 2, 1)
        await wait(timer, second, 1.5, 10)
    assert [at - start for at in first.parked_at] == [5]
    assert [at - start for at in second.parked_at] == [2.5]


async def test_scans_that_are_due_together(autojump_clock: trio.testing.MockClock) -> None:
    """All of them are parked, also if one ends the wait of another."""
    scans = [Scan() for _ in range(5)]
    async with running() as timer:
        due = trio.current_time() + 1
        for scan in scans:
            timer.begin(scan, due)
        await wait(timer, Scan(), math.inf, 2)
        for scan in scans:
            timer.end(scan)
    assert all(scan.parked_at == [due] for scan in scans)
