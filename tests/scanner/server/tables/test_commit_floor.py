"""Whatever clocks do, and however often the server begins anew: nothing is committed below a floor that was told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import trio
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from scanner.errors import DataCorrupted, StoreFailed
from scanner.server.config import ScannerConfig
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.commit_floor import FLOOR_DOCUMENT, CommitTimeFloor
from scanner.storage.memory.store import MemoryDisk, MemoryStore
from tests.support.nightly import everyday
from tests.support.scans import description, mutations, sample

T = TypeVar("T")
BEGIN_US = 1_000_000


@dataclass
class World:
    """A data directory, its clock, and what was told of its one bucket."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now_us: int = BEGIN_US
    rows: int = 0
    told: list[tuple[int, int]] = field(default_factory=list)
    """The log's end, and the time that no later commit may have: a floor, or one that somebody asked for."""

    def clock(self) -> int:
        """The time, which may have been set back."""
        return self.now_us

    def broken_promises(self) -> list[tuple[int, int, int]]:
        """End of the log, floor, and the time of a later commit that is not above it."""
        entries = self.disk.tables["items"].buckets[0].entries
        return [
            (end, floor_us, entry.timestamp_us)
            for end, floor_us in self.told
            for entry in entries
            if entry.start >= end and entry.timestamp_us <= floor_us
        ]


@dataclass
class Gate:
    """Runs what storage does; a preparation that has its times may be held up before it is written."""

    held: trio.Event | None = None

    async def __call__(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        result = function()
        if self.held is not None and getattr(function, "func", function).__name__ == "prepare":
            await self.held.wait()
        return result


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["commit", "tell", "ask", "restart", "hold", "release"]), st.just(0)),
        st.tuples(st.just("clock"), st.integers(-50, 50)),
    ),
    max_size=14,
)


async def _ask(world: World, bucket: ServedBucket) -> None:
    """Ask where this moment is in the log, as ListOffsets does."""
    time_us = world.now_us
    await bucket.wait_stamped_before(time_us)
    world.told.append((bucket.storage.offset_at(time_us), time_us - 1))


async def _serve(
    world: World, steps: list[Step], bucket_kind: type[ServedBucket], floor_kind: type[CommitTimeFloor]
) -> int:
    """Take steps up to the next restart; returns how many."""
    store = MemoryStore(disk=world.disk)
    gate = Gate()
    async with trio.open_nursery() as nursery:
        floor = await floor_kind.load(store, gate, world.clock)
        storage = store.bucket("items", 0)
        bucket = bucket_kind(storage, ScannerConfig(), nursery, gate, clock_us=world.clock, floor=floor)
        for taken, (step, by) in enumerate(steps, 1):
            if step == "commit":
                bucket.submit(mutations(store, "items", sample([world.rows])))
                world.rows += 1
            elif step == "clock":
                world.now_us += by
            elif step == "tell":
                await floor.refresh(1)
                world.told.append((storage.log_end, bucket.commit_time_floor_us))
            elif step == "ask":
                nursery.start_soon(_ask, world, bucket)
            elif step == "hold" and gate.held is None:
                gate.held = trio.Event()
            elif step == "release" and gate.held is not None:
                gate.held.set()
                gate.held = None
            await wait_all_tasks_blocked()
            if step == "restart":
                nursery.cancel_scope.cancel()
                return taken
        if gate.held is not None:
            gate.held.set()
    return len(steps)


def broken_promises(
    steps: list[Step],
    *,
    bucket_kind: type[ServedBucket] = ServedBucket,
    floor_kind: type[CommitTimeFloor] = CommitTimeFloor,
) -> list[tuple[int, int, int]]:
    """Take the steps; what was told and does not hold."""
    world = World()
    MemoryStore(disk=world.disk).create_table(description())
    while steps:
        taken = trio.run(functools.partial(_serve, world, steps, bucket_kind, floor_kind))
        steps = steps[taken:]
    return world.broken_promises()


@settings(deadline=None, max_examples=everyday(50, nightly=5000))
@given(STEPS)
def test_nothing_is_committed_at_or_below_a_floor_that_was_told(steps: list[Step]) -> None:
    """With clocks set back, servers killed, and floors told while a commit that has its times is not yet durable."""
    assert not broken_promises(steps)


class ForgetfulFloor(CommitTimeFloor):
    """Tells what is not on the disk."""

    async def _raise(self, now_us: int) -> None:
        """Raise it in memory alone."""
        await trio.lowlevel.checkpoint()
        self.floor_us = now_us


class HastyBucket(ServedBucket):
    """Tells the newest floor also while a commit has its times already."""

    @property
    def commit_time_floor_us(self) -> int:
        """The floor of the directory."""
        assert self._floor is not None
        return self._floor.floor_us


class ImpatientBucket(ServedBucket):
    """Tells of a time what is there."""

    async def wait_stamped_before(self, time_us: int) -> None:
        """Wait for nobody, and write nothing down."""


@pytest.mark.parametrize(
    "variant",
    [{"floor_kind": ForgetfulFloor}, {"bucket_kind": HastyBucket}, {"bucket_kind": ImpatientBucket}],
    ids=["forgetful", "hasty", "impatient"],
)
def test_a_server_that_breaks_the_promise_is_caught(variant: dict[str, Any]) -> None:
    """The check above finds one that writes no floor down, and one that does not wait for the commit under way."""
    steps = find(
        STEPS,
        lambda steps: bool(broken_promises(steps, **variant)),
        settings=settings(deadline=None, max_examples=5000, database=None, phases=[Phase.generate]),
    )
    assert not broken_promises(steps)


async def test_a_floor_is_raised_when_it_is_old_only() -> None:
    """One write of the document serves all who ask within the interval; the floor is what the document says."""
    world = World()
    store = MemoryStore(disk=world.disk)
    floor = await CommitTimeFloor.load(store, Gate(), world.clock)
    assert floor.floor_us == 0
    found = []
    for now_us in (BEGIN_US, BEGIN_US + 99, BEGIN_US + 100, BEGIN_US - 5):
        world.now_us = now_us
        await floor.refresh(100)
        found.append(floor.floor_us)
        assert (await CommitTimeFloor.load(store, Gate(), world.clock)).floor_us == floor.floor_us
    assert found == [BEGIN_US, BEGIN_US, BEGIN_US + 100, BEGIN_US + 100]


async def test_a_question_raises_the_floor_if_its_time_is_newer() -> None:
    """Not for a time that a commit or the floor has passed already, nor for one in the future."""
    world = World()
    store = MemoryStore(disk=world.disk)
    floor = await CommitTimeFloor.load(store, Gate(), world.clock)
    found = []
    for now_us, time_us in ((0, 1), (0, -7), (3, 0), (3, 5), (10, 9)):
        world.now_us = BEGIN_US + now_us
        await floor.cover(BEGIN_US + time_us)
        found.append(floor.floor_us)
        assert (await CommitTimeFloor.load(store, Gate(), world.clock)).floor_us == floor.floor_us
    assert found == [0, BEGIN_US, BEGIN_US, BEGIN_US, BEGIN_US + 10]


async def test_a_disk_that_refuses_lets_the_floor_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, and once when the disk takes it again; nothing is told that is not on the disk."""
    world = World()
    store = MemoryStore(disk=world.disk)
    floor = await CommitTimeFloor.load(store, Gate(), world.clock)
    take = store.write_document

    def refuse(name: str, content: bytes) -> None:
        raise StoreFailed("the disk is full")

    store.write_document = refuse  # type: ignore[method-assign]
    await floor.refresh(1)
    await floor.refresh(1)
    assert floor.floor_us == 0
    store.write_document = take  # type: ignore[method-assign]
    await floor.refresh(1)
    assert floor.floor_us == BEGIN_US
    assert [record.getMessage() for record in caplog.records] == [
        "watermarks over idle buckets stand still, and what is told of times does not bind the next server: the disk is"
        " full",
        "watermarks over idle buckets move again",
    ]


@pytest.mark.parametrize(
    "document", [b"", b"{}", b'{"floor_us": "1"}', b'{"floor_us": -1}', b"[]", b'{"floor_us": true}']
)
async def test_a_document_that_is_no_floor_is_refused(document: bytes) -> None:
    """A floor that is not understood binds nobody, so no server starts with it."""
    store = MemoryStore()
    store.write_document(FLOOR_DOCUMENT, document)
    with pytest.raises(DataCorrupted, match=f"{FLOOR_DOCUMENT} .*; restore it from a copy, or remove it"):
        await CommitTimeFloor.load(store, Gate(), lambda: 0)
