"""One reader group by itself, over buckets that are no more than their states: no server, no clock."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from scanner.errors import StoreFailed
from scanner.server.groups.coordinator import Member, ReaderGroup
from scanner.server.tables.write_queue import PendingWrite, Settled
from scanner.storage.group_states import FORGOTTEN
from scanner.storage.interface import GroupState
from tests.support.groups import CONFIG, GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from scanner.server.tables.bucket import ServedBucket


class Bucket:
    """What a group needs of a bucket; each write is durable at once.

    Args:
        state: Of the group; None: there is none.
        left: What a commit that was said to have failed has left of it; it shows once storage is opened anew.
    """

    def __init__(self, state: GroupState | None = None, left: GroupState | None = None) -> None:
        self._left = left
        self.storage = SimpleNamespace(group_states={} if state is None else {GROUP: state})

    @asynccontextmanager
    async def between_commits(self) -> AsyncIterator[None]:
        """Open storage anew."""
        await trio.lowlevel.checkpoint()
        if self._left is not None:
            self.storage.group_states[GROUP], self._left = self._left, None
        yield

    def submit(self, _mutations: object, *, group_states: Mapping[str, GroupState | None]) -> PendingWrite:
        """Write."""
        for name, state in group_states.items():
            self.storage.group_states.pop(name, None)
            if state is not None:
                self.storage.group_states[name] = state
        write = PendingWrite((), Settled(), offsets=(0, 0))
        write.settled.set()
        return write


def group_of(*buckets: Bucket) -> ReaderGroup:
    """A group without members, at a time that is 100."""
    served = cast("list[ServedBucket]", list(buckets))
    return ReaderGroup(GROUP, "items", served, CONFIG, lambda: 100, lambda: None, lambda: None)


def owned_by(group: ReaderGroup, name: str) -> Member:
    """A member that has the first bucket."""
    member = group._seats[0].owner = group.join(name, bytes(16))
    return member


async def test_a_scan_is_admitted_when_the_one_before_is_closed() -> None:
    """It is ended for that, and may take its time: two would read the bucket at once."""
    group = group_of(Bucket(GroupState(7)))
    owned_by(group, "a")
    happened: list[str] = []

    async def scan(name: str, closing: trio.Event) -> None:
        async with group.admitted(0, 7):
            happened.append(f"{name} begins")
            await closing.wait()
            happened.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        closing = trio.Event()
        for name in ("one", "other"):
            nursery.start_soon(scan, name, closing)
            await wait_all_tasks_blocked()
        assert happened == ["one begins"]
        closing.set()
    assert happened == ["one begins", "one ends", "other begins", "other ends"]


async def test_who_gets_a_bucket_begins_behind_what_a_failed_write_has_left() -> None:
    """The position is there, though its reader was told that it is not, and no older one takes its place."""
    bucket = Bucket(GroupState(7, 10), left=GroupState(7, 20))
    group = group_of(bucket)
    member = group.join("a", bytes(16))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.balance)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert group.assignment(member)[0].epoch == 100
    assert bucket.storage.group_states == {GROUP: GroupState(100, 20)}


async def test_what_a_failed_write_has_left_of_a_group_is_deleted_with_it() -> None:
    """Else it would come back when storage is opened anew."""
    bucket = Bucket(left=GroupState(7, 20))
    await group_of(bucket).forget()
    assert bucket.storage.group_states == {FORGOTTEN: GroupState(7)}


async def test_a_group_that_one_bucket_cannot_forget_waits_for_the_others() -> None:
    """Whoever joins when it has failed is behind their writes, and is not forgotten by them."""
    held = PendingWrite((), Settled(), offsets=(0, 0))

    class Holding(Bucket):
        def submit(
            self, _mutations: object, *, group_states: Mapping[str, GroupState | None]
        ) -> PendingWrite:
            return held

    class Refusing(Bucket):
        def submit(
            self, _mutations: object, *, group_states: Mapping[str, GroupState | None]
        ) -> PendingWrite:
            raise StoreFailed("a write has failed")

    group = group_of(Holding(GroupState(7)), Refusing(GroupState(7)))
    ended: list[str] = []

    async def forget() -> None:
        with pytest.raises(StoreFailed):
            await group.forget()
        ended.append("forgotten in a part")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forget)
        await wait_all_tasks_blocked()
        assert not ended
        held.settled.set()
    assert ended


async def test_a_bucket_that_was_to_go_to_one_who_has_left_may_go_to_anybody() -> None:
    """Nobody is through who may get it."""
    group = group_of(Bucket(GroupState(7)), Bucket(GroupState(7)))
    member, other = owned_by(group, "a"), group.join("b", bytes(16))
    group._plan(0.0)
    assert not group.more(member)
    assert group.more(other)
    group.remove(other)
    assert group.more(member)
