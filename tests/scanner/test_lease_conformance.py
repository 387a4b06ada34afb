"""The portable checklist of leases and snapshots, item by item (docs/leases.md), over both stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.errors import (
    BucketNotFound,
    LeaseNotFound,
    OffsetOutOfRange,
    SnapshotLost,
    TableNotFound,
)
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_registry import LEASES_DOCUMENT, CheckpointKey, LeaseRegistry
from scanner.server.retention.lease_targets import Choice
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.changes import read_changes
from tests.support.maintenance import TTL_MS, Kept, churn, lease_of, open_maintenance, target
from tests.support.scans import description

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = pytest.mark.rocks

BUCKETS = 3
REPORT = lease_of("anna", "report")
NOTHING_IN_TIME = ScannerConfig(log_retention_s=0.001, lease_buckets_max=1000)
"""Retention that keeps nothing that is not needed."""


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with table `items` of three buckets; the commits of the one in memory are long ago."""
    if request.param == "memory":
        store: MemoryStore | RocksStore = MemoryStore(clock=lambda: 1)
    else:
        store = RocksStore.open(tmp_path / "data")
    store.create_table(description(buckets=BUCKETS))
    yield store
    store.close()


async def test_item_36_a_snapshot_scan_returns_exactly_the_snapshots_rows_again(store: Store) -> None:
    """Its rows are the checkpoint's, also when there are newer ones, and the newest scan has the newest rows."""
    async with open_maintenance(store) as kept:
        await kept.write(range(50))
        await kept.acquire("report", target())
        for newer in range(3):
            await kept.write([100 + newer])
            await (await kept.checkpoints()).create()
            assert await kept.snapshot_ids("report") == list(range(50))
            assert (await kept.snapshot_ids())[50:] == [100 + each for each in range(newer + 1)]
        await kept.write([999])
        assert 999 not in await kept.snapshot_ids()


async def test_item_45_acquiring_again_adds_and_moves_buckets(store: Store) -> None:
    """Under one id each bucket is counted once; moving it to a newer state lets go of the old one."""
    async with open_maintenance(store) as kept:
        for index in range(BUCKETS):
            await kept.write(range(10), index)
        await kept.acquire("report", target(Choice.NEWEST, 0))
        first, _ = await kept.acquire("report", target(Choice.NEWEST, 0, 1))
        assert first is not None
        assert [state.bucket for state in first.sorted_states()] == [0, 1]
        assert len((await kept.bucket(0)).pins) == 1
        old = first.sorted_states()[0].checkpoint_key
        assert old is not None
        assert kept.maintenance.leases.references(old) == 1
        await kept.write([77])
        moved, _ = await kept.acquire("report", target(Choice.NEW, 0))
        assert moved is not None
        assert [state.bucket for state in moved.sorted_states()] == [0, 1]
        assert kept.maintenance.leases.references(old) == 0
        await churn(kept)
        assert old.checkpoint_id not in await kept.ids(0)
        assert 77 in await kept.snapshot_ids("report")


async def test_item_46_a_state_stays_until_the_last_of_two_leases_is_gone(store: Store) -> None:
    """Two leases on one checkpoint are counted; it is dropped with the second."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        for lease_id in ("one", "two"):
            lease, _ = await kept.acquire(lease_id, target(Choice.NEWEST, 0))
        assert lease is not None
        key = lease.sorted_states()[0].checkpoint_key
        assert key is not None
        await churn(kept)
        for lease_id, references in (("one", 1), ("two", 0)):
            assert key.checkpoint_id in await kept.ids()
            await kept.maintenance.leases.drop(lease_of("anna", lease_id))
            assert kept.maintenance.leases.references(key) == references
        assert key.checkpoint_id not in await kept.ids()
        assert len(await kept.ids()) == 2


async def test_item_47_what_cannot_be_leased_is_named(store: Store) -> None:
    """Every table, bucket, checkpoint and offset that is not there; nothing is leased, or with `partial` the rest."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        bucket = await kept.bucket()
        wanted = [
            target(Choice.NEWEST, 0),
            target(Choice.NEWEST_EXISTING, 1),
            target(Choice.NEWEST, 9),
            target(Choice.CHECKPOINT, 2, number=1234),
            target(Choice.OFFSET, 2, number=5),
            target(table="other"),
        ]
        for partial in (False, True):
            lease, missing = await kept.acquire("report", *wanted, partial=partial)
            assert [(each.table, each.bucket, type(each.error)) for each in missing] == [
                ("items", 1, SnapshotLost),
                ("items", 9, BucketNotFound),
                ("items", 2, SnapshotLost),
                ("items", 2, OffsetOutOfRange),
                ("other", None, TableNotFound),
            ]
            assert (lease is not None) == partial == (len(bucket.pins) == 1)
        assert lease is not None
        assert [state.bucket for state in lease.sorted_states()] == [0]


async def test_item_47_existence_is_checked_in_the_moment_of_the_acquisition(store: Store) -> None:
    """A table that is dropped while other buckets are looked at is not leased; nothing of it stays held."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        store.create_table(description("other", 1))
        other = await kept.bucket(table="other")
        asked: list[Kept] = []

        async def drop_while_looking() -> None:
            async with other.between_commits():
                acquired = trio.Event()
                nursery.start_soon(acquire, acquired)
                await trio.testing.wait_all_tasks_blocked()
                # It holds bucket 0 of `items`, and waits for `other`.
                await kept.catalog.drop("items")
            await acquired.wait()

        async def acquire(done: trio.Event) -> None:
            lease, missing = await kept.acquire("report", target(Choice.NEWEST, 0), target(table="other"))
            assert lease is None
            assert [(each.table, type(each.error)) for each in missing] == [("items", TableNotFound)]
            asked.append(kept)
            done.set()

        async with trio.open_nursery() as nursery:
            await drop_while_looking()
        assert asked
        assert (len(other.pins), kept.maintenance.leases.leases()) == (0, [])


async def test_item_48_renewing_a_lease_that_is_gone(
    store: Store, mock_clock: trio.testing.MockClock
) -> None:
    """Unknown, dropped, released and expired: LEASE_NOT_FOUND each time, and no lease comes of it."""
    if not isinstance(store, MemoryStore):
        return  # Threads and a clock that jumps do not go together.
    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases
        with pytest.raises(LeaseNotFound, match="never acquired"):
            await leases.renew(REPORT)
        await kept.acquire("report", target())
        await leases.renew(REPORT)
        await leases.release(REPORT, [("items", ())])
        with pytest.raises(LeaseNotFound):
            await leases.renew(REPORT)
        await kept.acquire("report", target())
        mock_clock.jump(TTL_MS / 1000)
        with pytest.raises(LeaseNotFound):
            await leases.renew(REPORT)
        assert leases.leases() == []


async def test_item_49_release_and_drop_are_idempotent(store: Store) -> None:
    """What is not kept can be let go of; the last bucket takes the lease along; an unknown one is no error."""
    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases
        assert await leases.release(REPORT, [("items", (0,))]) is None
        assert await leases.drop(REPORT) is False
        await kept.acquire("report", target())
        for _ in range(2):
            left = await leases.release(REPORT, [("items", (0, 2)), ("unknown", ())])
            assert left is not None
            assert [state.bucket for state in left.sorted_states()] == [1]
        assert await leases.release(REPORT, [("items", ())]) is None
        assert leases.leases() == []
        assert [len((await kept.bucket(index)).pins) for index in range(BUCKETS)] == [0, 0, 0]


async def test_item_50_expired_leases_go_and_others_stay(mock_clock: trio.testing.MockClock) -> None:
    """At its end a lease is gone for its holder; what it kept is free after the next sweep."""
    store = MemoryStore()
    store.create_table(description(buckets=BUCKETS))
    async with open_maintenance(store) as kept:
        leases = kept.maintenance.leases
        await kept.acquire("early", target(Choice.NEWEST, 0))
        mock_clock.jump(TTL_MS / 2000)
        await kept.acquire("late", target(Choice.NEWEST, 0))
        mock_clock.jump(TTL_MS / 2000)
        assert [lease.key.lease_id for lease in leases.leases()] == ["late"]
        await leases.sweep()
        assert len((await kept.bucket()).pins) == 1
        mock_clock.jump(TTL_MS / 2000)
        await leases.sweep()
        assert len((await kept.bucket()).pins) == 0
        assert LeaseRegistry.from_document(store.read_document(LEASES_DOCUMENT), 0).leases(0) == []


async def test_item_50_leases_survive_a_restart(tmp_path: Path) -> None:
    """With the same contents, the time that is left by the wall's clock, and everything held before anything else."""
    path, start = tmp_path / "data", 4_000_000_000.0
    with RocksStore.open(path) as store:
        store.create_table(description(buckets=BUCKETS))
        async with open_maintenance(store, wall_s=start) as kept:
            await kept.write(range(20))
            await kept.acquire("report", target(Choice.NEWEST, 0), target(Choice.LOG, 1))
            before = kept.maintenance.leases.get(REPORT)
            await churn(kept)
    with RocksStore.open(path) as store:
        async with open_maintenance(store, NOTHING_IN_TIME, wall_s=start + 20) as kept:
            after = kept.maintenance.leases.get(REPORT)
            assert before is not None
            assert after is not None
            assert after == before
            assert kept.maintenance.leases.remaining_ms(after) == pytest.approx(TTL_MS - 20_000, abs=5000)
            await churn(kept)
            await kept.maintenance.retention.sweep()
            assert await kept.snapshot_ids("report") == list(range(20))
            assert await kept.snapshot_ids("report", 1) == []
    with RocksStore.open(path) as store:
        async with open_maintenance(store, wall_s=start + 200) as kept:
            assert kept.maintenance.leases.leases() == []


async def test_item_51_a_leased_state_outlives_retention_and_so_does_its_log(store: Store) -> None:
    """The checkpoint stays beside the newest two, and no change from its offset on leaves the log; then both go."""
    async with open_maintenance(store, NOTHING_IN_TIME) as kept:
        await kept.write(range(20))
        lease, _ = await kept.acquire("report", target(Choice.NEWEST, 0))
        assert lease is not None
        (state,) = lease.sorted_states()
        await churn(kept)
        bucket = (await kept.bucket()).storage
        await kept.maintenance.retention.sweep()
        assert bucket.log_start == state.log_offset == 20
        assert len(list(read_changes(bucket, 20, bucket.log_end))) == 3
        assert state.checkpoint_id in await kept.ids()
        assert await kept.snapshot_ids("report") == list(range(20))
        await kept.maintenance.leases.drop(REPORT)
        await kept.maintenance.retention.sweep()
        assert bucket.log_start == bucket.log_end == 23
        assert state.checkpoint_id not in await kept.ids()


@pytest.mark.parametrize("seed", range(2))
async def test_item_52_concurrent_calls_under_churn_stay_consistent(store: Store, seed: int) -> None:
    """Whatever runs at once: what leases keep can be scanned, references add up, and in the end nothing is left."""
    rng = Random(seed)
    async with open_maintenance(store, NOTHING_IN_TIME) as kept:
        leases, ids = kept.maintenance.leases, ["a", "b", "c"]
        for index in range(BUCKETS):
            await kept.write(range(5), index)
        writing = trio.Event()

        async def write() -> None:
            for number in range(15):
                index = rng.randrange(BUCKETS)
                await kept.write([100 + number], index)
                await (await kept.checkpoints(index)).create()
                await kept.maintenance.retention.sweep()
            writing.set()

        async def use() -> None:
            while not writing.is_set():
                key = lease_of("anna", rng.choice(ids))
                buckets = tuple(rng.sample(range(BUCKETS), rng.randint(1, BUCKETS)))
                act = rng.randrange(5)
                try:
                    if act < 2:
                        choice = rng.choice([Choice.NEWEST, Choice.NEW, Choice.LOG, Choice.NEWEST_EXISTING])
                        await kept.acquire(key.lease_id, target(choice, *buckets), partial=rng.random() < 0.5)
                    elif act == 2:
                        await leases.renew(key)
                    elif act == 3:
                        await leases.release(key, [("items", buckets)])
                    else:
                        await leases.drop(key)
                except LeaseNotFound:
                    await trio.lowlevel.checkpoint()
                await check_readable(kept)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for _ in range(3):
                nursery.start_soon(use)
        await check_counts(kept)
        for lease_id in ids:
            await leases.drop(lease_of("anna", lease_id))
        await check_counts(kept)
        await kept.maintenance.retention.sweep()
        for index in range(BUCKETS):
            bucket = await kept.bucket(index)
            assert (len(bucket.pins), len(await kept.ids(index)) <= 2) == (0, True)
            assert bucket.storage.log_start == bucket.storage.log_end


async def check_readable(kept: Kept) -> None:
    """Everything that is leased now is there: the checkpoint on the list, and the log from its offset on."""
    for lease in kept.maintenance.leases.leases():
        for state in lease.states.values():
            checkpoints = await kept.checkpoints(state.bucket)
            if kept.maintenance.leases.get(lease.key) is not lease:
                break  # It changed while we looked.
            assert checkpoints.bucket.storage.log_start <= state.log_offset
            assert state.checkpoint_id is None or checkpoints.get(state.checkpoint_id)


async def check_counts(kept: Kept) -> None:
    """References are the sum of what leases keep, pins too, and each state scans as a state."""
    kept_states = [state for lease in kept.maintenance.leases.leases() for state in lease.states.values()]
    counted = Counter(state.checkpoint_key for state in kept_states)
    pinned = Counter(state.bucket for state in kept_states)
    for index in range(BUCKETS):
        key = await kept.key(index)
        for each in await kept.checkpoints(index):
            at = CheckpointKey(*key, each.checkpoint_id)
            assert kept.maintenance.leases.references(at) == counted.pop(at, 0)
        assert len((await kept.bucket(index)).pins) == pinned[index]
    counted.pop(None, None)
    assert not counted, "a lease keeps a checkpoint that is not there"
    for lease in kept.maintenance.leases.leases():
        for state in lease.states.values():
            assert await kept.snapshot_ids(lease.key.lease_id, state.bucket)
