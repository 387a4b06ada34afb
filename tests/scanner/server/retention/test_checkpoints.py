"""Checkpoints: made once per state, the newest kept, whole or not there, whatever the disk says."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
import trio.testing

from scanner.errors import SnapshotLost, StoreClosed, StoreFailed, TableNotFound, TooManyScans
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_targets import Choice
from scanner.server.tables.write_queue import TransactionShare
from scanner.storage.interface import GroupState, Mutation
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery
from tests.support.maintenance import open_maintenance, refuse, target
from tests.support.scans import description

if TYPE_CHECKING:
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Store

pytestmark = pytest.mark.rocks

T = TypeVar("T")


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with table `items` of two buckets."""
    store: MemoryStore | RocksStore
    store = MemoryStore() if request.param == "memory" else RocksStore.open(tmp_path / "data")
    store.create_table(description(buckets=2))
    yield store
    store.close()


async def test_the_newest_are_kept(store: Store) -> None:
    """Of four states the last two; the state of the newest is made once only."""
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=2)) as kept:
        checkpoints = await kept.checkpoints()
        made = []
        for number in range(4):
            await kept.write(range(number, number + 1))
            made.append(await checkpoints.create())
            assert await checkpoints.create() == made[-1]
        assert [each.log_offset for each in made] == [1, 2, 3, 4]
        assert list(checkpoints) == store.checkpoints("items", 0) == made[2:]
        assert checkpoints.as_of(3) == made[2]
        assert checkpoints.as_of(1) is None


async def test_one_of_the_same_rows_replaces_the_oldest_alone(store: Store) -> None:
    """Made anew since a group has a position, or since nobody knows after a restart: the newest two stay, as ever."""
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=2)) as kept:
        checkpoints, bucket = await kept.checkpoints(), await kept.bucket()
        for number in range(2):
            await kept.write([number])
            await checkpoints.create()
        await bucket.submit((), group_states={"billing": GroupState(1, 2)}).wait_durable()
        await checkpoints.create()
        assert await kept.ids() == [1, 2]
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=2)) as kept:
        await (await kept.checkpoints()).create()
        assert await kept.ids() == [2, 3]


async def test_a_restart_finds_them(store: Store) -> None:
    """What is on the disk is on the list again, and more than are kept go with the next sweep."""
    async with open_maintenance(store) as kept:
        for number in range(2):
            await kept.write([number])
            await (await kept.checkpoints()).create()
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=1)) as kept:
        checkpoints = await kept.checkpoints()
        assert [each.log_offset for each in checkpoints] == [1, 2]
        await kept.maintenance.checkpoints.prune_all()
        assert [each.log_offset for each in checkpoints] == [2]
        assert await kept.snapshot_ids() == [0, 1]


@pytest.mark.parametrize("foreign", [{"log_offset": 9}, {"history": b"another history."}])
async def test_one_that_is_not_of_the_bucket_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, foreign: dict[str, Any]
) -> None:
    """The bucket has lost its newest commits, or was put back from another copy: it has other rows."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        await (await kept.checkpoints()).create()
    (made,) = store.checkpoints("items", 0)
    monkeypatch.setattr(store, "checkpoints", lambda *_: [made._replace(**foreign)])
    async with open_maintenance(store) as kept:
        assert (await kept.checkpoints()).newest is None
        assert "of another history of the bucket: it is not used" in caplog.text


async def test_of_buckets_that_were_written_only(store: Store) -> None:
    """From time to time each bucket in use gets one, if something was written to it since."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        await kept.bucket(1)
        for _ in range(2):
            await kept.maintenance.checkpoints.make_all()
        assert [len(await kept.ids(index)) for index in range(2)] == [1, 1]
        await kept.write(range(9), 1)
        await kept.maintenance.checkpoints.make_all()
        assert [len(await kept.ids(index)) for index in range(2)] == [1, 2]


def no_pieces() -> Generator[Sequence[Mutation], None, None]:
    """The share of a version that changes nothing."""
    yield from ()


async def test_one_on_demand_has_what_changes_without_a_row(store: Store) -> None:
    """Positions of groups, say: backups are made of it. Those from time to time are for rows, and wait for some."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        checkpoints, bucket = await kept.checkpoints(), await kept.bucket()
        first = await checkpoints.create()
        await bucket.submit((), group_states={"billing": GroupState(1, 5)}).wait_durable()
        await kept.maintenance.checkpoints.make_all()
        assert checkpoints.newest == first
        second = await checkpoints.create()
        assert second.checkpoint_id > first.checkpoint_id
        assert await checkpoints.create() == second
        await bucket.submit_pieces(no_pieces(), TransactionShare("load", 1)).wait_durable()
        third = await checkpoints.create()
        assert third.checkpoint_id > second.checkpoint_id
        await bucket.submit((), group_states={"billing": None}).wait_durable()
    async with open_maintenance(store) as kept:
        await kept.bucket()
        await kept.maintenance.checkpoints.make_all()
        checkpoints = await kept.checkpoints()
        assert checkpoints.newest == third
        assert (await checkpoints.create()).checkpoint_id > third.checkpoint_id


async def test_none_keeps_disk_that_was_given_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same state is made, and those before it go then, but for leased ones; from then on it is as ever."""
    async with open_maintenance(store) as kept:
        for number in range(3):
            await kept.write([number])
            await (await kept.checkpoints()).create()
            if not number:
                await kept.acquire("mine", target())
        make_all = kept.maintenance.checkpoints.make_all
        await make_all()
        assert await kept.ids() == [0, 1, 2]
        (await kept.bucket()).log_freed += 1
        with monkeypatch.context() as patch:
            patch.setattr(store, "create_checkpoint", refuse)
            await make_all()
            await kept.maintenance.checkpoints.prune_all()
        assert await kept.ids() == [0, 1, 2]
        for _ in range(2):
            await make_all()
            assert await kept.ids() == [0, 3]
        assert await kept.snapshot_ids() == [0, 1, 2]
        assert await kept.snapshot_ids("mine") == [0]
        await kept.write([3])
        await make_all()
        assert await kept.ids() == [0, 3, 4]


async def test_a_table_that_is_dropped_meanwhile_is_no_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is done from time to time comes to a bucket whose table has just gone: there is nothing to tell."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        catalog = kept.maintenance.catalog
        found = list(catalog.open_buckets())
        await catalog.drop("items")
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "open_buckets", lambda: found)
            for _, _, bucket in found:
                patch.setattr(bucket.image, "current", object())
                bucket.image.use.used_at = trio.current_time()
            await kept.maintenance.checkpoints.make_all()
            await kept.maintenance.deltas.extend_all()
            store.create_table(description(buckets=1))
            patch.setattr(catalog, "open_buckets", lambda: [("items", 1, None)])
            await kept.maintenance.checkpoints.make_all()
    assert caplog.text == ""


async def test_a_disk_that_refuses(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is typed, nothing is on the list, writes go on, and the next attempt succeeds."""
    async with open_maintenance(store) as kept:
        await kept.write(range(5))
        checkpoints = await kept.checkpoints()
        with monkeypatch.context() as patch:
            patch.setattr(store, "create_checkpoint", refuse)
            with pytest.raises(StoreFailed):
                await checkpoints.create()
            await kept.maintenance.checkpoints.make_all()
        assert "no checkpoint of items[0]: no space left on the test" in caplog.text
        assert (list(checkpoints), await kept.ids()) == ([], [])
        await kept.write(range(5, 10))
        await checkpoints.create()
        with monkeypatch.context() as patch:
            patch.setattr(store, "drop_checkpoint", refuse)
            for number in range(3):
                await kept.write([100 + number])
                await checkpoints.create()
        assert "stays on the disk" in caplog.text
        assert (len(list(checkpoints)), len(await kept.ids())) == (2, 4)
    async with open_maintenance(store) as kept:
        await kept.checkpoints()
        await kept.maintenance.checkpoints.prune_all()
        assert len(await kept.ids()) == 2


async def test_a_scan_outlives_its_checkpoint(store: Store) -> None:
    """A scan that reads a checkpoint goes on when it is dropped; scans of one state share one snapshot."""
    async with open_maintenance(store) as kept:
        await kept.write(range(30))
        await (await kept.checkpoints()).create()
        query = ScanQuery(table="items")
        first, second = [await kept.snapshots.open(query, "anna") for _ in range(2)]
        bucket = await kept.bucket()
        assert len(bucket.snapshots) == 1
        for number in range(3):
            await kept.write([100 + number])
            await (await kept.checkpoints()).create()
        assert (await kept.checkpoints()).as_of(30) is None
        assert await kept.scan(first) == await kept.scan(second) == list(range(30))


async def test_one_snapshot_for_all_who_open_a_state(store: Store) -> None:
    """Opened twice at once, one stays; one more than the server allows is refused. Nothing is left open."""
    async with open_maintenance(store, ScannerConfig(snapshots_max=1)) as kept:
        await kept.write(range(3))
        checkpoints, pool = await kept.checkpoints(), kept.catalog.snapshots
        first = await checkpoints.create()
        snapshots = [store.open_checkpoint("items", 0, first.checkpoint_id) for _ in range(2)]
        registry = (await kept.bucket()).snapshots
        holds = [registry.adopt(each) for each in snapshots]
        assert pool.snapshots_open == 1
        with pytest.raises(StoreClosed):
            snapshots[1].scan()
        await kept.write(range(5))
        second = store.open_checkpoint("items", 0, (await checkpoints.create()).checkpoint_id)
        with pytest.raises(TooManyScans):
            registry.adopt(second)
        with pytest.raises(StoreClosed):
            second.scan()
        for hold in holds:
            hold.snapshot.scan().close()
            hold.release(linger=False)
        assert pool.snapshots_open == 0


async def test_a_dropped_table_takes_them_along(store: Store) -> None:
    """A table of the same name begins without; the old list is forgotten."""
    async with open_maintenance(store) as kept:
        await kept.write(range(3))
        old = await kept.checkpoints()
        made = await old.create()
        await kept.catalog.drop("items")
        with pytest.raises(TableNotFound):
            await old.create()
        store.create_table(description())
        await kept.maintenance.checkpoints.prune_all()
        assert list(await kept.checkpoints()) == []
        with pytest.raises(SnapshotLost, match="weir checkpoint items"):
            await kept.snapshot_ids()
        assert (await kept.checkpoints()).get(made.checkpoint_id) is None


async def test_a_checkpoint_that_is_leased_beside_a_prune_stays(store: Store) -> None:
    """While one that is not kept is being dropped, the next one is leased: that one stays, also after a restart."""
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=9)) as kept:
        for number in range(4):
            await kept.write([number])
            await (await kept.checkpoints()).create()
    async with (
        open_maintenance(store, ScannerConfig(checkpoints_kept=1)) as kept,
        trio.open_nursery() as nursery,
    ):
        checkpoints, gate = await kept.checkpoints(), trio.Event()
        run_blocking = kept.maintenance.checkpoints.run_blocking

        async def wait_first(function: Callable[[], T]) -> T:
            await gate.wait()
            return await run_blocking(function)

        kept.maintenance.checkpoints.run_blocking = wait_first
        nursery.start_soon(checkpoints.prune)
        await trio.testing.wait_all_tasks_blocked()
        _, missing = await kept.acquire("report", target(Choice.CHECKPOINT, 0, number=1))
        assert not missing
        gate.set()
        await checkpoints.prune()
        assert await kept.ids() == [each.checkpoint_id for each in checkpoints] == [1, 3]
        assert await kept.snapshot_ids("report") == [0, 1]
    async with open_maintenance(store) as kept:
        assert await kept.snapshot_ids("report") == [0, 1]


async def test_a_checkpoint_that_is_made_for_a_lease_stays_until_it_is_leased(store: Store) -> None:
    """While an older one is being dropped for it, a newer one is made: the lease gets the one that was made for it."""
    async with (
        open_maintenance(store, ScannerConfig(checkpoints_kept=1)) as kept,
        trio.open_nursery() as nursery,
    ):
        checkpoints, dropping, gate = await kept.checkpoints(), trio.Event(), trio.Event()
        await kept.write([0])
        await checkpoints.create()
        await kept.write([1])
        run_blocking = kept.maintenance.checkpoints.run_blocking
        made: list[int] = []

        async def wait_to_drop(function: Callable[[], T]) -> T:
            if len(made):
                dropping.set()
                await gate.wait()
            result = await run_blocking(function)
            made.append(len(made))
            return result

        async def lease() -> None:
            _, missing = await kept.acquire("report", target(Choice.NEW, 0))
            assert not missing

        kept.maintenance.checkpoints.run_blocking = wait_to_drop
        async with trio.open_nursery() as leasing:
            leasing.start_soon(lease)
            await dropping.wait()
            kept.maintenance.checkpoints.run_blocking = run_blocking
            await kept.write([2])
            nursery.start_soon(checkpoints.create)
            while checkpoints.as_of(3) is None:
                await trio.lowlevel.checkpoint()
            gate.set()
        assert await kept.snapshot_ids("report") == [0, 1]


async def test_the_log_behind_a_checkpoint_that_is_made_for_a_lease_stays_until_it_is_leased(
    store: Store,
) -> None:
    """While an older one is being dropped for it, rows are written, and retention has something to cut."""
    config = ScannerConfig(checkpoints_kept=1, log_retention_bytes=1)
    async with open_maintenance(store, config) as kept, trio.open_nursery() as nursery:
        checkpoints, dropping, gate = await kept.checkpoints(), trio.Event(), trio.Event()
        await kept.write([0])
        await checkpoints.create()
        await kept.write([1])
        run_blocking = kept.maintenance.checkpoints.run_blocking

        async def wait_to_drop(function: Callable[[], T]) -> T:
            if checkpoints.as_of(2) is not None:
                dropping.set()
                await gate.wait()
            return await run_blocking(function)

        async def lease() -> None:
            _, missing = await kept.acquire("report", target(Choice.NEW, 0))
            assert not missing

        kept.maintenance.checkpoints.run_blocking = wait_to_drop
        nursery.start_soon(lease)
        await dropping.wait()
        await kept.write([2])
        await kept.maintenance.retention.sweep()
        gate.set()


async def test_a_prune_that_is_cancelled_forgets_none(store: Store) -> None:
    """As by the reset of the call that dropped their leases: the next one drops the rest, without a new start."""
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=9)) as kept:
        for number in range(4):
            await kept.write([number])
            await (await kept.checkpoints()).create()
    async with open_maintenance(store, ScannerConfig(checkpoints_kept=1)) as kept:
        checkpoints, scope = await kept.checkpoints(), trio.CancelScope()
        run_blocking = kept.maintenance.checkpoints.run_blocking

        async def cancel_after(function: Callable[[], T]) -> T:
            result = await run_blocking(function)
            scope.cancel()
            return result

        kept.maintenance.checkpoints.run_blocking = cancel_after
        with scope:
            await checkpoints.prune()
        assert scope.cancelled_caught
        assert await kept.ids() == [each.checkpoint_id for each in checkpoints] == [1, 2, 3]
        kept.maintenance.checkpoints.run_blocking = run_blocking
        await checkpoints.prune()
        assert await kept.ids() == [3]


async def test_checkpoints_of_a_table_are_opened_in_one_thread(store: Store) -> None:
    """Storage opens one at a time, and lets the others wait in their threads, which are those of all tables."""
    async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
        each = [await kept.checkpoints(index) for index in range(2)]
        made = []
        for index in range(2):
            await kept.write(range(3), index)
            made.append(await each[index].create())
            await kept.write(range(3, 6), index)  # What is as of now would not be opened from the disk.
        gate = trio.Semaphore(0)
        opened: list[int] = []

        async def wait(function: Callable[[], T]) -> T:
            await gate.acquire()
            return function()

        async def open_it(index: int) -> None:
            hold = await each[index].open(made[index])
            opened.append(index)
            hold.release()

        kept.maintenance.checkpoints.run_blocking = wait
        for index in range(2):
            nursery.start_soon(open_it, index)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.statistics().tasks_waiting == 1
        gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(opened), gate.statistics().tasks_waiting) == (1, 1)
        gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(opened) == [0, 1]


async def test_a_checkpoint_is_opened_once_for_all_who_wait_for_it(store: Store) -> None:
    """As the splits of a bucket as of a lease do; who waits for another one's opening has what that has opened."""
    async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
        checkpoints = await kept.checkpoints(0)
        await kept.write(range(3), 0)
        made = await checkpoints.create()
        await kept.write(range(3, 6), 0)  # What is as of now would not be opened from the disk.
        gate, openings = trio.Event(), 0

        async def wait(function: Callable[[], T]) -> T:
            nonlocal openings
            openings += 1
            await gate.wait()
            return function()

        async def open_it() -> None:
            hold = await checkpoints.open(made)
            await trio.testing.wait_all_tasks_blocked()
            hold.release()

        kept.maintenance.checkpoints.run_blocking = wait
        for _ in range(5):
            nursery.start_soon(open_it)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert openings == 1


async def test_a_checkpoint_that_is_being_opened_stays(store: Store) -> None:
    """Newer ones are made while the disk takes its time to open it: it is dropped after it was read, not before."""
    async with (
        open_maintenance(store, ScannerConfig(checkpoints_kept=1)) as kept,
        trio.open_nursery() as nursery,
    ):
        await kept.write(range(3))
        checkpoints, gate = await kept.checkpoints(), trio.Event()
        oldest = await checkpoints.create()
        run_blocking = kept.maintenance.checkpoints.run_blocking
        opened: list[SnapshotHold] = []

        async def open_it() -> None:
            opened.append(await checkpoints.open(oldest))

        async def wait(function: Callable[[], T]) -> T:
            kept.maintenance.checkpoints.run_blocking = run_blocking
            await gate.wait()
            return await run_blocking(function)

        # Written to: what is as of now is shared with every scan, and would not be opened from the disk.
        await kept.write(range(3, 6))
        kept.maintenance.checkpoints.run_blocking = wait
        nursery.start_soon(open_it)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2):
            await kept.write([number])
            await checkpoints.create()
        assert oldest.checkpoint_id in await kept.ids()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        while not opened:
            await trio.lowlevel.checkpoint()
        assert (opened[0].log_offset, len(opened[0].snapshot.scan().read(100, 1 << 20))) == (3, 3)
        opened[0].release()
        await checkpoints.prune()
        assert [each.log_offset for each in checkpoints] == [10]
        assert len(await kept.ids()) == 1


async def test_a_drop_whose_files_stay_is_a_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk refuses to remove files: that is told, the table is gone, and its name is free for a new one."""

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        async with open_maintenance(store) as kept:
            await kept.write(range(3))
            await (await kept.checkpoints()).create()
            with monkeypatch.context() as patch:
                patch.setattr(shutil, "rmtree", refuse)
                with pytest.raises(StoreFailed, match="Input/output error"):
                    await kept.catalog.drop("items")
            with pytest.raises(TableNotFound, match="no table 'items'"):
                await kept.bucket()
            store.create_table(description())
            await kept.write(range(7))
            await (await kept.checkpoints()).create()
            assert await kept.snapshot_ids() == list(range(7))
    with RocksStore.open(tmp_path):
        assert [len(os.listdir(tmp_path / kind)) for kind in ("tables", "checkpoints")] == [1, 1]


async def test_a_new_table_of_the_name_keeps_its_checkpoints(store: Store) -> None:
    """What a lease kept of a dropped table goes without touching the new one's, which have the same ids."""
    async with open_maintenance(store) as kept:
        await kept.write(range(3))
        await kept.acquire("old", target(Choice.NEW, 0))
        old = await kept.checkpoints()
        old.hold(0)  # Somebody is just opening it.
        for number in range(2):
            await kept.write([100 + number])
            await old.create()
        await kept.catalog.drop("items")
        store.create_table(description())
        await kept.write(range(7))
        await kept.acquire("new", target(Choice.NEW, 0))
        await kept.maintenance.leases.sweep()
        old.release(0)
        await old.prune()
        assert [each.checkpoint_id for each in old] == [1, 2], (
            "the old list let go of what the old lease kept"
        )
        assert await kept.ids() == [0]
        assert await kept.snapshot_ids("new") == list(range(7))
        newest = old.newest
        assert newest is not None
        with pytest.raises(TableNotFound):
            await old.open(newest)
