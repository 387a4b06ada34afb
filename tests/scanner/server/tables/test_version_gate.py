"""The gate between versions and states: one side at a time, in order, and nobody waits for somebody who has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from scanner.data.half_applied import HalfApplied
from scanner.server.tables.version_gate import VersionGate
from scanner.server.tables.write_queue import TransactionShare
from scanner.storage.memory.store import MemoryStore
from tests.support.maintenance import open_maintenance
from tests.support.scans import description, mutations, sample


class Visitor:
    """Somebody who is inside until told to leave."""

    def __init__(self, side: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._side = side
        self._leave = trio.Event()
        self.scope = trio.CancelScope()
        self.inside = False

    async def visit(self) -> None:
        """Come in, and stay."""
        with self.scope:
            async with self._side():
                self.inside = True
                await self._leave.wait()
        self.inside = False

    async def leave(self) -> None:
        """Go, and let the others do what they can do then."""
        self._leave.set()
        await trio.testing.wait_all_tasks_blocked()

    async def give_up(self) -> None:
        """Be cancelled, inside or not."""
        self.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def visitors(gate: VersionGate, order: str) -> AsyncIterator[list[Visitor]]:
    """Visitors that come one after another: `a` applies a version, `t` takes states."""
    sides = {"a": gate.applying, "t": gate.taking}
    found = [Visitor(sides[each]) for each in order]
    async with trio.open_nursery() as nursery:
        for each in found:
            nursery.start_soon(each.visit)
            await trio.testing.wait_all_tasks_blocked()
        yield found
        nursery.cancel_scope.cancel()


def inside(found: list[Visitor]) -> list[int]:
    """Which of them are."""
    return [number for number, each in enumerate(found) if each.inside]


async def test_one_side_at_a_time_first_come_first_served() -> None:
    """Several of one side are inside at once, but none that came behind somebody of the other side."""
    async with visitors(VersionGate("t"), "aattata") as found:
        assert inside(found) == [0, 1]
        await found[0].leave()
        assert inside(found) == [1]
        await found[1].leave()
        assert inside(found) == [2, 3]
        await found[3].leave()
        await found[2].leave()
        assert inside(found) == [4]
        await found[4].leave()
        assert inside(found) == [5]
        await found[5].leave()
        assert inside(found) == [6]


@pytest.mark.parametrize("order", ["ata", "tat"])
async def test_who_gives_up_holds_up_nobody(order: str) -> None:
    """Neither outside, where others wait behind, nor inside."""
    async with visitors(VersionGate("t"), order) as found:
        await found[1].give_up()
        assert inside(found) == [0, 2]
    async with visitors(VersionGate("t"), order) as found:
        await found[0].give_up()
        assert inside(found) == [1]


async def test_who_is_cancelled_in_the_moment_of_admission_holds_up_nobody() -> None:
    """It may have been let in already, and does not know."""
    gate = VersionGate("t")
    async with trio.open_nursery() as nursery:
        visitor = Visitor(gate.taking)
        async with gate.applying():
            nursery.start_soon(visitor.visit)
            await trio.testing.wait_all_tasks_blocked()
            visitor.scope.cancel()
    async with visitors(gate, "a") as found:
        assert inside(found) == [0]


async def test_what_was_left_over_is_attempted_before_states_are_taken() -> None:
    """Who waits for that is outside: a version that comes later goes first, since the other one may wait for it."""
    gate, attempted = VersionGate("t"), [trio.Event(), trio.Event()]
    for each in attempted:
        gate.left_over(each)
    async with visitors(gate, "ta") as (taking, applying):
        assert (taking.inside, applying.inside) == (False, True)
        attempted[1].set()
        await applying.leave()
        assert not taking.inside
        attempted[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert taking.inside


async def test_a_state_from_before_a_share_lacks_the_version() -> None:
    """Though its bucket has it by now: a checkpoint that is leased may be older."""
    store = MemoryStore()
    store.create_table(description(buckets=2))
    gate = VersionGate("items")
    gate.decided("load", 1, (0, 1))
    async with open_maintenance(store) as kept:
        buckets = {index: await kept.bucket(index) for index in range(2)}
        for bucket in buckets.values():
            share = mutations(store, "items", sample(range(5)))
            await bucket.submit(share, transaction=TransactionShare("load", 1)).wait_durable()
        assert gate.half_applied(buckets, {0: 5, 1: 5}) == gate.half_applied(buckets, {0: 0, 1: 0}) == []
        assert gate.half_applied(buckets, {0: 5, 1: 0}) == [HalfApplied("items", "load", 1, (0,), (1,))]


async def test_a_long_wait_is_logged(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, by each of the two sides; a short one is not."""
    gate = VersionGate("orders")

    async def hold(
        side: Callable[[], AbstractAsyncContextManager[None]],
        time_s: float,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with side():
            task_status.started()
            with trio.move_on_after(time_s):
                await trio.sleep_forever()

    for first, second in ((gate.applying, gate.taking), (gate.taking, gate.applying)):
        for time_s in (9, 30):
            async with trio.open_nursery() as nursery:
                await nursery.start(hold, first, time_s)
                await hold(second, 0)
    assert [record.message for record in caplog.records] == [
        "a lease, a backup or checkpoints of table 'orders' wait until a version of a transaction is applied",
        "a version of a transaction waits until states of table 'orders' are taken",
    ]
