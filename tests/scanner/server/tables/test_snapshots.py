"""Shared snapshots: counted, capped, lingering for a while, and gone with their bucket."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.errors import StoreClosed, TooManyScans
from scanner.server.tables.snapshots import SnapshotPool, SnapshotRegistry
from tests.support.scans import filled_store, mutations, sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scanner.storage.interface import Bucket

STORE = filled_store(0)


def commit(bucket: Bucket, number: int) -> None:
    """One more change."""
    bucket.commit([mutations(STORE, "items", sample([number]))])


async def passes(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time pass, and what was waiting for it happen."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def registry(
    *, snapshots_max: int = 10, linger_s: float = 10.0
) -> AsyncIterator[tuple[SnapshotRegistry, Bucket, SnapshotPool]]:
    """The registry of a bucket with ten rows."""
    bucket = filled_store(10).bucket("items", 0)
    async with trio.open_nursery() as nursery:
        pool = SnapshotPool(nursery, snapshots_max, linger_s)
        yield SnapshotRegistry(bucket, pool), bucket, pool
        nursery.cancel_scope.cancel()


async def test_scans_as_of_one_offset_share_a_snapshot(mock_clock: trio.testing.MockClock) -> None:
    """One snapshot is open however many hold it, and another one for another offset."""
    async with registry() as (snapshots, bucket, pool):
        one, two = snapshots.current(), snapshots.current()
        commit(bucket, 100)
        other = snapshots.current()
        assert (one.log_offset, two.log_offset, other.log_offset) == (10, 10, 11)
        assert one.snapshot is two.snapshot is not other.snapshot
        assert (len(snapshots), pool.snapshots_open, bucket.open_iterators) == (2, 2, 2)
        again = snapshots.acquire(10)
        assert again is not None
        assert again.snapshot is one.snapshot
        assert snapshots.acquire(9) is None


async def test_a_snapshot_lingers_after_its_last_hold(mock_clock: trio.testing.MockClock) -> None:
    """It can be had again for the linger time, which begins anew with every release; then it is closed."""
    async with registry(linger_s=10) as (snapshots, bucket, pool):
        one, two = snapshots.current(), snapshots.current()
        one.release()
        one.release()
        await passes(mock_clock, 100)
        assert list(snapshots.lingering) == []
        two.release()
        await passes(mock_clock, 9.9)
        assert len(snapshots.lingering) == 1
        again = snapshots.acquire(10)
        assert again is not None
        await passes(mock_clock, 100)
        assert (list(snapshots.lingering), bucket.open_iterators) == ([], 1)
        again.release()
        await passes(mock_clock, 9.9)
        assert bucket.open_iterators == 1
        await passes(mock_clock, 0.2)
        assert (bucket.open_iterators, len(snapshots), pool.snapshots_open) == (0, 0, 0)
        assert snapshots.acquire(10) is None


@pytest.mark.parametrize("held", [True, False], ids=["held", "let go of"])
async def test_who_is_done_with_it_takes_it_from_nobody(
    mock_clock: trio.testing.MockClock, held: bool
) -> None:
    """A scan that will not come back does not close what another one let linger, and does not prolong it either."""
    async with registry(linger_s=10) as (snapshots, bucket, _):
        cut_off, done = snapshots.current(), snapshots.current()
        cut_off.release()
        await passes(mock_clock, 4)
        done.release(linger=False)
        if not held:
            passing = snapshots.acquire(10)
            assert passing is not None
            passing.release(linger=False)
        await passes(mock_clock, 5.9)
        again = snapshots.acquire(10)
        assert again is not None
        again.release(linger=False)
        await passes(mock_clock, 0.2)
        assert (bucket.open_iterators, snapshots.acquire(10)) == (0, None)


async def test_needed_in_its_last_moment(mock_clock: trio.testing.MockClock) -> None:
    """Who takes hold of a snapshot just when its time is over has it, or a new one; never one that is then closed."""
    for _ in range(20):  # trio runs what wakes at the same time in random order
        async with registry(linger_s=10) as (snapshots, *_), trio.open_nursery() as nursery:
            snapshots.current().release()

            async def take_hold(
                snapshots: SnapshotRegistry = snapshots, at: float = trio.current_time()
            ) -> None:
                await trio.lowlevel.checkpoint()
                with trio.move_on_at(at + 10):
                    await trio.Event().wait()
                held = snapshots.current()
                await trio.testing.wait_all_tasks_blocked()
                assert len(held.snapshot.scan().read(100, 1 << 20)) == 10

            nursery.start_soon(take_hold)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(10)


@pytest.mark.parametrize(("linger_s", "linger"), [(0, True), (10, False)])
async def test_without_lingering_it_is_closed_with_its_last_hold(
    mock_clock: trio.testing.MockClock, linger_s: float, linger: bool
) -> None:
    """Who parks frees the files at once, unless somebody else reads the same state."""
    async with registry(linger_s=linger_s) as (snapshots, bucket, pool):
        one, two = snapshots.current(), snapshots.current()
        one.release(linger=linger)
        assert bucket.open_iterators == 1
        two.release(linger=linger)
        assert (bucket.open_iterators, pool.snapshots_open) == (0, 0)


async def test_the_cap_refuses_and_what_lingers_makes_room(mock_clock: trio.testing.MockClock) -> None:
    """One snapshot too many is refused, and changes nothing; the one that lingered longest goes first."""
    async with registry(snapshots_max=2) as (snapshots, bucket, pool):
        holds = [snapshots.current()]
        commit(bucket, 100)
        holds.append(snapshots.current())
        commit(bucket, 101)
        with pytest.raises(TooManyScans, match="2 snapshots are held"):
            snapshots.current()
        assert pool.snapshots_open == 2
        for hold in reversed(holds):
            hold.release()
        snapshots.current()
        assert snapshots.acquire(11) is None
        assert snapshots.acquire(10) is not None
        assert pool.snapshots_open == 2


async def test_the_cap_holds_however_often_room_is_made(mock_clock: trio.testing.MockClock) -> None:
    """Each new snapshot closes the one that lingers longest: never are more open than counted, nor than allowed."""
    async with registry(snapshots_max=2) as (snapshots, bucket, pool):
        for number in range(6):
            hold = snapshots.current()
            opened = min(2, number + 1)
            assert (bucket.open_iterators, pool.snapshots_open, len(snapshots)) == (opened,) * 3
            assert len(snapshots.lingering) == opened - 1
            hold.release()
            commit(bucket, 100 + number)
        holds = []
        for number in range(2):
            holds.append(snapshots.current())
            commit(bucket, 200 + number)
        with pytest.raises(TooManyScans, match="2 snapshots are held"):
            snapshots.current()
        assert (bucket.open_iterators, pool.snapshots_open) == (2, 2)


async def test_clearing_closes_what_lingers_and_nothing_else(mock_clock: trio.testing.MockClock) -> None:
    """An emptied registry has what is held, and no more."""
    async with registry() as (snapshots, bucket, pool):
        lingering = snapshots.current()
        commit(bucket, 100)
        held = snapshots.current()
        lingering.release()
        snapshots.clear()
        assert (len(snapshots), pool.snapshots_open, bucket.open_iterators) == (1, 1, 1)
        assert len(held.snapshot.scan().read(100, 1 << 20)) == 11


async def test_closing_ends_what_is_held(mock_clock: trio.testing.MockClock) -> None:
    """A registry that is closed leaves nothing open; who still reads is told, and may release."""
    async with registry() as (snapshots, bucket, pool):
        hold = snapshots.current()
        scan = hold.snapshot.scan()
        snapshots.close()
        assert (bucket.open_iterators, pool.snapshots_open, len(snapshots)) == (0, 0, 0)
        with pytest.raises(StoreClosed):
            scan.read(1, 1)
        hold.release()
        assert pool.snapshots_open == 0


async def test_a_snapshot_that_cannot_be_opened_is_not_counted(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A closed bucket opens none, and the cap keeps its room."""
    async with registry() as (snapshots, bucket, pool):
        bucket.close()  # type: ignore[attr-defined]
        with pytest.raises(StoreClosed):
            snapshots.current()
        assert pool.snapshots_open == 0
