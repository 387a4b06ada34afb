"""States of several buckets that are taken together have a version of a transaction whole, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from scanner.data.half_applied import HalfApplied
from scanner.errors import DataCorrupted, ScannerError, StoreFailed, TableNotFound
from scanner.proto.weir.v1 import admin_pb2 as pb
from scanner.server.auth.access import Access, Caller
from scanner.server.auth.principals import EVERYBODY
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_targets import Choice, Target
from scanner.server.services.checkpoints import CheckpointService
from scanner.server.transactions.completion import Applier
from scanner.server.transactions.names import VersionKey
from scanner.server.transactions.registry import Transactions
from scanner.storage.memory.store import MemoryStore
from scanner.tasks import inline
from tests.support.maintenance import TTL_MS, Kept, lease_of, open_maintenance, target
from tests.support.scans import description

if TYPE_CHECKING:
    from scanner.server.retention.lease_manager import Acquired

BUCKETS = 3
ROWS = 5
CONFIG = ScannerConfig()


class Applying:
    """What becomes of the shares of the buckets; a version of these tests deletes all rows."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        real = Applier._apply_share

        async def apply(*arguments: Any) -> Any:
            index, decision = arguments[3:5]
            if (decision.name, index) in self.refused:
                raise self.error("it cannot be applied")
            if index in self.held:
                self.waiting.append(index)
                await self.released.wait()
            return await real(*arguments)

        self.refused: set[tuple[str, int]] = set()
        """By name of the transaction and bucket."""
        self.error: type[ScannerError] = StoreFailed
        self.held: set[int] = set()
        self.waiting: list[int] = []
        self.released = trio.Event()
        patch.setattr(Applier, "_apply_share", apply)


@pytest.fixture
def applying(monkeypatch: pytest.MonkeyPatch) -> Applying:
    """Nothing is held or refused yet."""
    return Applying(monkeypatch)


class Served:
    """A table of full buckets, its transactions, and those who take its states."""

    def __init__(self, kept: Kept, transactions: Transactions, nursery: trio.Nursery) -> None:
        self.kept = kept
        self.transactions = transactions
        self._nursery = nursery
        self.ended: list[object] = []
        """What was begun and is over, in that order."""

    def begin(self, name: str, act: Callable[[], Any]) -> None:
        """Do something beside the test."""

        async def run() -> None:
            try:
                await act()
            except ScannerError as error:
                self.ended.append((name, type(error)))
            else:
                self.ended.append(name)

        self._nursery.start_soon(run)

    async def publish(self, version: int = 1, name: str = "load") -> None:
        """Publish a version that deletes every row."""
        await self.transactions.publish(VersionKey("items", 0, name, version), {}, overwrite=True)

    async def acquire(self, *targets: Target, lease_id: str = "one") -> Acquired:
        """Lease states."""
        key = lease_of("anna", lease_id)
        return await self.kept.maintenance.leases.acquire(key, targets, ttl_ms=TTL_MS, partial=False)


def rows_of(acquired: Acquired) -> tuple[int, ...]:
    """How many each of the leased states has, by bucket: each row is inserted once, and deleted once."""
    assert acquired.lease is not None
    return tuple(2 * ROWS - each.log_offset for each in acquired.lease.sorted_states())


@asynccontextmanager
async def serving(store: MemoryStore) -> AsyncIterator[Served]:
    """What a server has of it; it ends with the block, whatever is under way."""
    async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
        transactions = await Transactions(store, kept.catalog, CONFIG, nursery, inline, lambda: 0).load()
        yield Served(kept, transactions, nursery)
        nursery.cancel_scope.cancel()


def filled() -> MemoryStore:
    """A store with table `items`; it has no rows yet."""
    store = MemoryStore()
    store.create_table(description(buckets=BUCKETS))
    return store


async def fill(served: Served) -> None:
    """Write rows into all buckets."""
    for index in range(BUCKETS):
        await served.kept.write(range(ROWS), index)


def taken(choice: Choice) -> list[list[Target]]:
    """Two ways to name all buckets."""
    return [[target(choice)], [target(choice, index) for index in range(BUCKETS)]]


@pytest.mark.parametrize("targets", [*taken(Choice.LOG), *taken(Choice.NEW), *taken(Choice.NEWEST)])
async def test_a_lease_waits_until_a_version_is_whole(applying: Applying, targets: list[Target]) -> None:
    """And has it in all buckets then; a version that is decided meanwhile has to wait for it."""
    async with serving(filled()) as served:
        await fill(served)
        applying.held = {1}
        acquired = []

        async def acquire() -> None:
            acquired.append(await served.acquire(*targets))

        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        assert applying.waiting == [1]
        served.begin("leased", acquire)
        served.begin("published later", lambda: served.publish(1, "other"))
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == []
        applying.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["published", "leased", "published later"]
        assert rows_of(acquired[0]) == (0,) * BUCKETS
        assert acquired[0].half_applied == []


async def test_a_version_waits_until_the_states_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is decided meanwhile, and in none of them."""
    async with serving(filled()) as served:
        await fill(served)
        bucket, go_on = await served.kept.bucket(1), trio.Event()
        between = bucket.between_commits

        @asynccontextmanager
        async def slow(**options: bool) -> AsyncIterator[None]:
            await go_on.wait()
            async with between(**options):
                yield

        acquired = []

        async def acquire() -> None:
            acquired.append(await served.acquire(target(Choice.LOG)))

        with monkeypatch.context() as patch:
            patch.setattr(bucket, "between_commits", slow)
            served.begin("leased", acquire)
            await trio.testing.wait_all_tasks_blocked()
            served.begin("published", served.publish)
            await trio.testing.wait_all_tasks_blocked()
            assert (served.ended, served.transactions.unapplied) == ([], 1)
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["leased", "published"]
        assert rows_of(acquired[0]) == (ROWS,) * BUCKETS


async def test_checkpoints_on_demand_wait_until_a_version_is_whole(applying: Applying) -> None:
    """Those of all buckets; one of a single bucket does not."""
    async with serving(filled()) as served:
        await fill(served)
        catalog, made = served.kept.catalog, []
        caller = Caller(Access(None, catalog.activity), EVERYBODY)
        service = CheckpointService(catalog, served.kept.maintenance.checkpoints)

        async def checkpoint(bucket: int | None) -> None:
            request = pb.CheckpointRequest(table="items", bucket=bucket).SerializeToString()
            stream: Any = SimpleNamespace(caller=caller, peer="", path="")
            answer = pb.CheckpointResponse.FromString(await service.checkpoint(request, stream))
            made.append([each.log_offset for each in answer.checkpoints])

        applying.held = {1}
        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        await checkpoint(1)
        served.begin("made", lambda: checkpoint(None))
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == []
        applying.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert made == [[ROWS], [2 * ROWS] * BUCKETS]


async def test_checkpoints_wait_until_a_version_is_whole(applying: Applying) -> None:
    """Those that are made from time to time; without anything to make, nobody waits."""
    async with serving(filled()) as served:
        await fill(served)
        make_all = served.kept.maintenance.checkpoints.make_all
        await make_all()
        applying.held = set(range(BUCKETS))
        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        served.begin("nothing to make", make_all)
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["nothing to make"]
        await served.kept.write(range(100, 101), 0)
        served.begin("made", make_all)
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["nothing to make"]
        applying.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["nothing to make", "published", "made"]
        ends = [(await served.kept.bucket(index)).storage.log_end for index in range(BUCKETS)]
        newest = [(await served.kept.checkpoints(index)).newest for index in range(BUCKETS)]
        assert [each and each.log_offset for each in newest] == ends


@pytest.mark.parametrize(
    "wanted",
    [
        target(Choice.LOG, 0),
        target(Choice.NEWEST),
        target(Choice.NEWEST_EXISTING),
        target(Choice.OFFSET, 1, number=ROWS),
    ],
)
async def test_what_is_of_one_bucket_or_was_there_before_waits_for_nothing(
    applying: Applying, wanted: Target
) -> None:
    """Though another bucket is applying a version."""
    async with serving(filled()) as served:
        await fill(served)
        await served.kept.maintenance.checkpoints.make_all()
        applying.held = {1}
        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        served.begin("leased", lambda: served.acquire(wanted))
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["leased"]


async def test_a_version_that_cannot_be_applied_holds_up_nothing(
    applying: Applying, caplog: pytest.LogCaptureFixture
) -> None:
    """The states are taken all the same, and of which version they have a part is told; not once it is whole."""
    async with serving(filled()) as served:
        await fill(served)
        applying.refused = {("load", 1)}
        with pytest.raises(StoreFailed, match="is decided"):
            await served.publish()
        half = HalfApplied("items", "load", 1, (0, 2), (1,))
        acquired = await served.acquire(target(Choice.NEW))
        assert rows_of(acquired) == (0, ROWS, 0)
        assert acquired.half_applied == [half]
        assert f"states were taken all the same: {half}" in caplog.text
        # Of these two buckets that is whole; of the others it is in none, in the first one's state from before.
        before = target(Choice.OFFSET, 0, number=ROWS)
        for wanted in ([target(Choice.LOG, 0, 2)], [before, target(Choice.LOG, 1)]):
            assert (await served.acquire(*wanted, lease_id="two")).half_applied == []
        applying.refused.clear()
        await served.publish()
        assert not (await served.kept.catalog.table("items")).versions._unapplied
        acquired = await served.acquire(target(Choice.NEW))
        assert (rows_of(acquired), acquired.half_applied) == ((0,) * BUCKETS, [])


async def test_what_the_last_server_has_half_applied_is_seen_whole(applying: Applying) -> None:
    """By a lease that is acquired as soon as this one has started."""
    store = filled()
    applying.refused = {("load", 1)}
    async with serving(store) as served:
        await fill(served)
        with pytest.raises(StoreFailed):
            await served.publish()
    applying.refused, applying.held = set(), {1}
    async with serving(store) as served:
        acquired = []

        async def acquire() -> None:
            acquired.append(await served.acquire(target(Choice.LOG)))

        served.begin("leased", acquire)
        await trio.testing.wait_all_tasks_blocked()
        assert (served.ended, applying.waiting) == ([], [1])
        applying.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert rows_of(acquired[0]) == (0,) * BUCKETS


async def test_what_the_last_server_has_left_is_attempted_before_states_are_taken(
    applying: Applying,
) -> None:
    """All of it, also what has to wait for a version before; what cannot be applied holds up nothing."""
    store = filled()
    applying.error, applying.refused = DataCorrupted, {("load", 1), ("later", 1)}
    async with serving(store) as served:
        await fill(served)
        for name in ("load", "later"):
            with pytest.raises(DataCorrupted):
                await served.publish(1, name)
    applying.refused = {("load", 1)}
    async with serving(store) as served:
        acquired = await served.acquire(target(Choice.LOG))
        assert acquired.half_applied == [HalfApplied("items", "load", 1, (0, 2), (1,))]


async def test_a_table_that_is_dropped_while_a_lease_waits(applying: Applying) -> None:
    """Nobody waits any longer, and all are told."""
    async with serving(filled()) as served:
        await fill(served)
        applying.held = {1}
        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        served.begin("leased", lambda: served.acquire(target(Choice.LOG)))
        await trio.testing.wait_all_tasks_blocked()
        await served.kept.catalog.drop("items")
        applying.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == [("published", TableNotFound), "leased"]
        assert (await served.acquire(target(Choice.LOG))).lease is None


async def test_a_lease_that_is_given_up_while_it_waits(applying: Applying) -> None:
    """The versions behind it go on."""
    async with serving(filled()) as served:
        await fill(served)
        applying.held = {1}
        served.begin("published", served.publish)
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def acquire() -> None:
            with scope:
                await served.acquire(target(Choice.LOG))

        served.begin("given up", acquire)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert served.ended == ["given up"]
        applying.held = set()
        applying.released.set()
        await served.publish(2)
        assert served.ended == ["given up", "published"]
