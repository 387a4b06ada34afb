"""Retention: by age, by size, never past a pin, and the cap on what pins may keep."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
import pytest
import trio
import trio.testing

from scanner.errors import DataCorrupted, DiskFull, LeaseNotFound, SlowConsumer, SnapshotLost, StoreFailed
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.clock import WallClock
from scanner.server.config import ScannerConfig
from scanner.server.retention import log_retention
from scanner.server.retention.lease_targets import Choice
from scanner.server.retention.log_retention import Retention, walk_expired
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.log import cut_files
from scanner.storage.rocksdb.store import RocksStore
from scanner.tasks import inline
from scanner.wire.queries import ScanQuery
from scanner.wire.statuses import from_call_failed
from tests.support.maintenance import WALL_S, Kept, lease_of, open_maintenance, refuse, target
from tests.support.scans import (
    SCAN,
    description,
    failure,
    filled_store,
    mutations,
    open_scan,
    sample,
    serving,
    write,
    write_request,
)
from transport import CallFailed

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = pytest.mark.rocks

ITEMS = ScanQuery(table="items")
KEEPS_NOTHING = ScannerConfig(log_retention_s=0.001)
FOREVER_S = 1e12

T = TypeVar("T")


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with table `items` of one bucket; its commits are long ago."""
    if request.param == "memory":
        store: MemoryStore | RocksStore = MemoryStore(clock=lambda: 1)
    else:
        store = RocksStore.open(tmp_path / "data")
    store.create_table(description())
    yield store
    store.close()


async def test_changes_go_when_they_are_old() -> None:
    """By their commit times: those before the limit go, those after it stay; a sweep without any changes nothing."""
    now_us = round(WALL_S * 1e6)
    times = [now_us - 3_000_000_000, now_us - 1_000_000_000, now_us]
    store = MemoryStore(clock=lambda: times[0])
    store.create_table(description())
    async with open_maintenance(store, ScannerConfig(log_retention_s=2000)) as kept:
        bucket = await kept.bucket()
        for number in range(3):
            await kept.write(range(number * 10, number * 10 + 10))
            times.append(times.pop(0))
        for _ in range(2):
            await kept.maintenance.retention.sweep()
            assert (bucket.storage.log_start, bucket.storage.log_end) == (10, 30)


def test_a_change_goes_when_it_is_older_than_that_and_not_before() -> None:
    """Exactly as old as may be, it stays; a microsecond older, it goes."""
    store = MemoryStore(clock=lambda: 5_000)
    store.create_table(description())
    bucket = store.bucket("items", 0)
    bucket.commit([mutations(store, "items", sample(range(10)))])
    assert [walk_expired(bucket, oldest_us, 9_000).end for oldest_us in (5_000, 5_001)] == [0, 10]


async def test_changes_go_when_there_are_too_many(store: Store) -> None:
    """What is beyond the size goes, oldest first, and no more than that; writing more lets more go."""
    row_bytes = await bytes_per_row(store)
    config = ScannerConfig(log_retention_s=FOREVER_S, log_retention_bytes=round(500 * row_bytes))
    async with open_maintenance(store, config) as kept:
        bucket = (await kept.bucket()).storage
        for number in range(1, 4):
            await write_to_disk(kept, number * 1000, 1000)
            await kept.maintenance.retention.sweep()
            assert bucket.log_bytes == pytest.approx(config.log_retention_bytes, rel=0.1)
            start = bucket.log_start
            await kept.maintenance.retention.sweep()
            assert bucket.log_start - start <= 10, "a sweep without writes takes no more"


@pytest.mark.parametrize(("old", "new"), [(10_000, 10), (10, 10_000)])
async def test_no_more_goes_than_what_is_beyond_the_size(old: int, new: int) -> None:
    """However unlike the changes are: those that fit stay, of large old ones and small new ones, too."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store) as kept:
        served = await kept.bucket()
        for id_, size in ((0, old), (100, new)):
            rows = sample(range(id_, id_ + 100)).set_column(1, "name", pa.array(["x" * size] * 100))
            for row in range(100):
                await served.submit(mutations(store, "items", rows.slice(row, 1))).wait_durable()
        bucket = served.storage
        fits = bucket.log_bytes_from(50)
        await retention_with(kept, log_retention_s=FOREVER_S, log_retention_bytes=fits).sweep()
        assert (bucket.log_start, bucket.log_bytes) == (50, fits)


async def test_what_a_pin_keeps_is_what_its_changes_take() -> None:
    """A scan that keeps many small changes is not taken for one that keeps as many of the large ones before them."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store) as kept:
        served = await kept.bucket()
        large = sample(range(10)).set_column(1, "name", pa.array(["x" * 10_000] * 10))
        await served.submit(mutations(store, "items", large)).wait_durable()
        keeper = served.pins.pin(0, "operator", "a test", None)
        opened = await kept.opener.open(ITEMS, "anna")
        await kept.write(range(10, 100))
        limit = served.storage.log_bytes_from(10)
        ends = []
        for bytes_max in (limit, limit - 1):
            await retention_with(kept, log_pinned_bytes_max=bytes_max).sweep()
            ends.append(opened.scan.ended_by)
        assert ends[0] is None
        assert isinstance(ends[1], SlowConsumer)
        assert f"kept {limit} bytes" in ends[1].message
        keeper.release()
        opened.scan.close()


async def test_the_disk_of_old_changes_is_given_back_though_nothing_is_written(tmp_path: Path) -> None:
    """A sweep does not leave that to RocksDB, which would wait for more to write."""
    draw = random.Random(1)
    small = StorageConfig(bucket_write_buffer_bytes=64 * 1024, write_buffers_bytes=1024 * 1024)
    with RocksStore.open(tmp_path / "data", small) as store:
        store.create_table(description())
        async with open_maintenance(store, KEEPS_NOTHING) as kept:
            bucket = await kept.bucket()
            for number in range(40):
                names = pa.array([draw.randbytes(1000).hex() for _ in range(100)])
                rows = sample(range(100 * number, 100 * number + 100)).set_column(1, "name", names)
                await bucket.submit(mutations(store, "items", rows)).wait_durable()
            await kept.maintenance.retention.sweep()
            assert isinstance(bucket.storage, RocksBucket)
            assert bucket.storage.log_start == 4000
            with bucket.storage._lifetime.using() as database:
                assert cut_files(database, bucket.storage._state.log_range) == []


async def test_changes_kept_for_ever_have_a_size_all_the_same() -> None:
    """No age is too old then; what is beyond the size goes."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    config = ScannerConfig(log_retention_s=math.inf)
    async with open_maintenance(store, config) as kept:
        for first in range(0, 100, 5):
            await kept.write(range(first, first + 5))
        await kept.maintenance.retention.sweep()
        bucket = (await kept.bucket()).storage
        assert bucket.log_start == 0
        await retention_with(
            kept, log_retention_s=math.inf, log_retention_bytes=bucket.log_bytes // 2
        ).sweep()
        assert 40 <= bucket.log_start <= 60


async def test_nothing_goes_that_a_scan_needs(store: Store) -> None:
    """A running scan and a parked one keep the log from their offset on; when they are closed it goes."""
    async with open_maintenance(store, KEEPS_NOTHING) as kept:
        bucket = (await kept.bucket()).storage
        await kept.write(range(20))
        running = await kept.opener.open(ITEMS, "anna")
        await kept.write(range(20, 40))
        parked = await kept.opener.open(ITEMS, "bert")
        parked.scan.park()
        await kept.write(range(40, 60))
        for scan, kept_from in ((running, 20), (parked, 40)):
            await kept.maintenance.retention.sweep()
            assert bucket.log_start == kept_from
            if scan is parked:
                await kept.opener.reopen(parked)
            assert await kept.scan(scan) == list(range(kept_from))
        await kept.maintenance.retention.sweep()
        assert bucket.log_start == bucket.log_end == 60


async def test_no_commit_waits_until_what_is_cut_is_read() -> None:
    """A log that is to go as a whole is read first, which may take seconds; then it is cut as far as it was wanted."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store, KEEPS_NOTHING) as kept, trio.open_nursery() as nursery:
        await kept.write(range(20))
        bucket, gate = await kept.bucket(), trio.Event()

        async def wait(function: Callable[[], T]) -> T:
            """The disk takes its time to read."""
            if function == bucket.storage.log_is_readable:
                await gate.wait()
            return await inline(function)

        retention = Retention(kept.catalog, KEEPS_NOTHING, wait, WallClock(lambda: WALL_S))
        nursery.start_soon(retention.sweep)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(kept.write, range(20, 25))
        await trio.testing.wait_all_tasks_blocked()
        assert (bucket.storage.log_start, bucket.storage.log_end) == (0, 25)
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (bucket.storage.log_start, bucket.storage.log_end) == (20, 25)


async def test_nothing_is_opened_beside_a_truncation() -> None:
    """A scan of the past that comes while the log is being cut is refused, not opened over a log that then goes."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store, KEEPS_NOTHING) as kept, trio.open_nursery() as nursery:
        await kept.write(range(20))
        bucket, gate = await kept.bucket(), trio.Event()
        opened: list[object] = []

        async def wait(function: Callable[[], T]) -> T:
            """The disk takes its time to cut."""
            if getattr(function, "func", None) == bucket.storage.truncate_log:
                await gate.wait()
            return await inline(function)

        async def open_it() -> None:
            try:
                opened.append(await kept.opener.open(ITEMS, "anna", log_offset=10))
            except SnapshotLost as error:
                opened.append(error)

        retention = Retention(kept.catalog, KEEPS_NOTHING, wait, WallClock(lambda: WALL_S))
        nursery.start_soon(retention.sweep)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(open_it)
        nursery.start_soon(kept.write, range(20, 25))
        await trio.testing.wait_all_tasks_blocked()
        assert (opened, bucket.storage.log_start, bucket.storage.log_end) == ([], 0, 20)
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [type(each) for each in opened] == [SnapshotLost]
        assert (bucket.storage.log_start, bucket.storage.log_end) == (20, 25)


async def test_the_longest_pin_ends_when_a_principal_keeps_too_much(store: Store) -> None:
    """SLOW_CONSUMER for the scan that keeps the most; younger ones and those of others go on, and the log is cut."""
    async with open_maintenance(store, KEEPS_NOTHING) as kept:
        bucket = (await kept.bucket()).storage
        opened = {}
        for name in ("anna", "bert"):
            opened[f"old {name}"] = await kept.opener.open(ITEMS, name)
        for number in range(2):
            await write_to_disk(kept, number * 400, 400)
            opened[f"young {number}"] = await kept.opener.open(ITEMS, "anna")
        token = opened["old anna"].token()
        await kept.maintenance.retention.sweep()
        assert not any(each.scan.ended_by for each in opened.values()), "within the limit"
        await write_to_disk(kept, 800, 400)
        opened["old bert"].scan.close()
        await retention_with(kept, log_pinned_bytes_max=round(bucket.log_bytes * 0.8)).sweep()
        ended = opened["old anna"].scan.ended_by
        assert isinstance(ended, SlowConsumer)
        assert "the scan kept" in ended.message
        assert [name for name, each in opened.items() if each.scan.ended_by] == ["old anna"]
        assert bucket.log_start == 400
        opened["old anna"].scan.close()
        state = kept.tokens.read(token, ITEMS, "anna")
        with pytest.raises(SnapshotLost) as lost:
            await kept.opener.open(ITEMS, "anna", log_offset=state.log_offset, position=state.position)
        assert lost.value.oldest_offset == 400
        for name, rows in (("young 0", 400), ("young 1", 800)):
            assert await kept.scan(opened[name]) == list(range(rows))


async def test_an_ended_scan_goes_on_as_long_as_its_log_is_there(store: Store) -> None:
    """The last token resumes, if somebody else's pin happens to keep the log."""
    config = ScannerConfig(log_retention_s=0.001, log_pinned_bytes_max=20_000)
    async with open_maintenance(store, config) as kept:
        await kept.write(range(100))
        opened = await kept.opener.open(ITEMS, "anna")
        keeper = (await kept.bucket()).pins.pin(100, "operator", "a test", None)
        await kept.write(range(100, 1200))
        await kept.maintenance.retention.sweep()
        assert isinstance(opened.scan.ended_by, SlowConsumer)
        offset, position = opened.log_offset, opened.scan.source.position
        opened.scan.close()
        resumed = await kept.opener.open(ITEMS, "anna", log_offset=offset, position=position)
        keeper.release()
        assert await kept.scan(resumed) == list(range(100))


async def test_a_bucket_that_is_closed_for_being_idle_is_cut_once_its_changes_are_old(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Once in a while it is opened for that, and closed again; before, and without a changelog, it stays closed."""
    config = ScannerConfig(log_retention_s=100.0)
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(description())
        async with open_maintenance(store, config, wall_s=time.time()) as kept:
            await kept.write(range(20))
            bucket = await kept.bucket()
            sweep = kept.maintenance.retention.sweep
            for jump_s, start in ((9.0, 0), (82.0, 0), (10.0, 20), (500.0, 20)):
                await bucket.close_idle(0)
                mock_clock.jump(jump_s)
                await sweep()
                assert not bucket.is_open
                assert bucket.storage.log_start == start
            assert bucket.storage.log_end == 20


async def test_upkeep_keeps_no_bucket_from_being_closed_for_being_idle(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Its log is looked at and cut, it has its checkpoint, its image's changes are read: that is no use of it."""
    config = ScannerConfig(log_retention_s=60.0)
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(description())
        async with open_maintenance(store, config, wall_s=time.time()) as kept:
            bucket, maintenance = await kept.bucket(), kept.maintenance
            await kept.write(range(10))
            await maintenance.images.make(await kept.catalog.table("items"), 0)
            await kept.write(range(20))
            bucket.pins.pin(10, "anna", "lease")
            await maintenance.checkpoints.make_all()
            passed_s = 0.0
            while passed_s < config.bucket_idle_close_s:
                assert bucket.is_open
                await maintenance.retention.sweep()
                await maintenance.checkpoints.make_all()
                await maintenance.deltas.extend_all()
                mock_clock.jump(config.retention_interval_s)
                passed_s += config.retention_interval_s
            await maintenance.disk.close_idle()
            assert not bucket.is_open
            assert bucket.storage.log_start == 10


async def test_a_look_at_an_idle_bucket_takes_its_room_for_files_from_another(tmp_path: Path) -> None:
    """It is opened as for any other use: no more buckets are open than may be."""
    config = ScannerConfig(buckets_open_max=1)
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(description(buckets=2))
        async with open_maintenance(store, config) as kept:
            for index in range(2):
                await kept.write(range(20), index)
            idle, other = await kept.bucket(0), await kept.bucket(1)
            await idle.close_idle(0)
            await other.wake()
            assert (idle.is_open, other.is_open) == (False, True)
            await kept.maintenance.retention.wanted_start(idle)
            assert (idle.is_open, other.is_open) == (True, False)


async def test_a_bucket_that_was_closed_under_a_look_has_its_image_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes its room, and the look opens storage alone: the next use opens the image, with room for it."""
    config = ScannerConfig(buckets_open_max=1)
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(description(buckets=2))
        async with open_maintenance(store, config) as kept:
            await kept.write(range(20), 1)
            await kept.write(range(20), 0)
            bucket, other, retention = await kept.bucket(0), await kept.bucket(1), kept.maintenance.retention
            await bucket.wake()
            await kept.maintenance.images.make(await kept.catalog.table("items"), 0)
            run_blocking = retention._run_blocking

            async def closed_first(look: Callable[[], T]) -> T:
                await other.wake()
                assert not bucket.is_open
                return await run_blocking(look)

            monkeypatch.setattr(retention, "_run_blocking", closed_first)
            await retention.wanted_start(bucket)
            assert (bucket.is_open, bucket.image.current, other.is_open) == (True, None, True)
            await bucket.wake()
            assert bucket.image.current is not None
            assert not other.is_open


async def test_a_cut_on_demand_names_what_keeps_the_rest(store: Store) -> None:
    """In front of the oldest pin, at the end of a commit; what would have gone, too, is counted, with whose it is."""
    async with open_maintenance(store, ScannerConfig()) as kept:
        for start in (0, 10, 20):
            await kept.write(range(start, start + 10))
        bucket = await kept.bucket()
        lease = bucket.pins.pin(20, "bert", "lease")
        tail = bucket.pins.pin(10, "anna", "scan of the changelog")
        bucket.pins.pin(30, "carl", "scan of the changelog")
        cut = kept.maintenance.retention.cut
        done = await cut("items", 0, bucket, 30)
        assert (done.start, done.end, done.dropped, done.pinned) == (10, 30, 10, 20)
        assert done.pins == (tail, lease)
        tail.release()
        done = await cut("items", 0, bucket, 19)  # inside a commit, which stays
        assert (done.start, done.dropped, done.pinned, done.pins) == (10, 0, 0, ())
        done = await cut("items", 0, bucket, 30)
        assert (done.start, done.dropped, done.pinned, done.pins) == (20, 10, 10, (lease,))
        lease.release()
        done = await cut("items", 0, bucket, 30)
        assert (done.start, done.dropped, done.pinned, done.pins) == (30, 10, 0, ())
        assert kept.catalog.activity.log_changes_dropped == 30


async def test_a_changelog_that_is_cut_under_a_look_is_looked_at_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a cut on demand, say: neither who looks nor the log is told of changes that are not there."""
    async with open_maintenance(store, KEEPS_NOTHING) as kept:
        for number in range(3):
            await kept.write([number])
        bucket = await kept.bucket()
        storage = bucket.storage
        offset_at, begun = storage.offset_at, list[int]()

        def cut_behind(timestamp_us: int) -> int:
            begun.append(offset_at(0))
            if len(begun) == 1:
                storage.truncate_log(2)
            return begun[-1]

        monkeypatch.setattr(storage, "offset_at", cut_behind)
        assert await kept.maintenance.retention.wanted_start(bucket) == 3
        assert begun == [0, 2]
        await kept.maintenance.retention.sweep()
        assert storage.log_start == 3
        assert caplog.text == ""


async def test_of_a_version_of_a_transaction_all_goes_or_nothing(store: Store) -> None:
    """By size, on demand, and in front of a pin: where a log begins is never between two commits of one version."""
    async with open_maintenance(store) as kept:
        await kept.write(range(100))
        bucket = await kept.bucket()
        storage = bucket.storage
        for first in (100, 200, 300):
            piece = storage.prepare([mutations(store, "items", sample(range(first, first + 100)))])
            storage.commit_prepared(piece, unfinished=first < 300)
        await write_to_disk(kept, 400, 100)
        retention = retention_with(
            kept, log_retention_s=FOREVER_S, log_retention_bytes=storage.log_bytes_from(270)
        )
        assert await retention.wanted_start(bucket) == 100
        await retention.sweep()
        assert storage.log_start == (await retention.cut("items", 0, bucket, 399)).start == 100
        pin = bucket.pins.pin(350, "anna", "scan of the changelog")
        assert (await retention.cut("items", 0, bucket, 500)).start == 100
        pin.release()
        assert (await retention.cut("items", 0, bucket, 405)).start == 400


async def test_the_start_of_a_version_is_looked_for_beside_everything_else(store: Store) -> None:
    """A large version has thousands of entries, each of which is read from the disk: not on the event loop."""
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        await kept.write(range(10, 20))
        bucket, called = await kept.bucket(), list[object]()

        async def note(function: Callable[[], T]) -> T:
            called.append(getattr(function, "func", function))
            return await inline(function)

        retention = Retention(kept.catalog, KEEPS_NOTHING, note, WallClock(lambda: WALL_S))
        assert (await retention.cut("items", 0, bucket, 15)).start == 10
        assert called == [bucket.storage.share_start, bucket.storage.truncate_log]


async def test_a_lease_ends_when_it_keeps_too_much(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """As a whole, of all its buckets; a renewal tells why, and another acquisition begins anew."""
    config = ScannerConfig(log_retention_s=0.001, log_pinned_bytes_max=20_000)
    async with open_maintenance(store, config) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target())
        await kept.write(range(1000))
        with caplog.at_level(logging.WARNING):
            await kept.maintenance.retention.sweep()
        assert "lease report of anna was ended" in caplog.text
        with pytest.raises(LeaseNotFound, match=r"the lease kept \d+ bytes"):
            await kept.maintenance.leases.renew(lease_of("anna", "report"))
        assert kept.maintenance.leases.leases() == []
        bucket = await kept.bucket()
        assert bucket.storage.log_start == bucket.storage.log_end
        await kept.acquire("report", target(Choice.NEW))
        await kept.maintenance.leases.sweep()
        assert len(bucket.pins) == 1
        await kept.maintenance.leases.renew(lease_of("anna", "report"))


async def test_an_ended_lease_lets_go_of_all_its_buckets() -> None:
    """At once, so that their logs are cut as well; leased again, what is still there is kept again.

    What other leases keep of them stays.
    """
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description(buckets=2))
    config = ScannerConfig(log_retention_s=0.001, log_pinned_bytes_max=20_000)
    async with open_maintenance(store, config) as kept:
        buckets = [await kept.bucket(index) for index in range(2)]
        await kept.acquire("report", target(Choice.LOG))
        await kept.write(range(1000), 0)
        await kept.write(range(10), 1)
        keeper = buckets[0].pins.pin(0, "operator", "a test", None)
        await kept.acquire("report", target(Choice.LOG, 1), principal="bert")
        await kept.maintenance.retention.sweep()
        assert [bucket.storage.log_start for bucket in buckets] == [0, 10]
        await kept.acquire("report", target(Choice.OFFSET, 0, number=0))
        keeper.release()
        assert [len(bucket.pins) for bucket in buckets] == [1, 1]
        await kept.maintenance.leases.sweep()
        assert [len(bucket.pins) for bucket in buckets] == [1, 1]


async def test_an_ended_lease_is_gone_after_a_restart() -> None:
    """What was not written down before a crash is found out at the start: its log is gone, and so is all of it."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description(buckets=2))
    config = ScannerConfig(log_retention_s=0.001, log_pinned_bytes_max=20_000)
    async with open_maintenance(store, config) as kept:
        await kept.write(range(10))
        await kept.acquire("report", target())
        await kept.write(range(1000))
        await kept.maintenance.retention.sweep()
    async with open_maintenance(MemoryStore(disk=store.disk), config) as kept:
        assert kept.maintenance.leases.leases() == []
        assert [len((await kept.bucket(index)).pins) for index in range(2)] == [0, 0]
        with pytest.raises(LeaseNotFound, match="cannot be kept"):
            await kept.maintenance.leases.renew(lease_of("anna", "report"))
        await kept.maintenance.leases.sweep()
    async with open_maintenance(MemoryStore(disk=store.disk), config) as kept:
        assert kept.maintenance.leases.leases() == []


async def test_a_table_that_is_dropped_during_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its changelog is gone, which is no failure, and nothing is logged."""
    store = RocksStore.open(tmp_path)
    store.create_table(description(buckets=2))
    async with open_maintenance(store, KEEPS_NOTHING) as kept:
        for index in range(2):
            await kept.write(range(10), index)
        cut = Retention.cut

        async def cut_late(self: Retention, *arguments: Any) -> Any:
            if kept.catalog.has("items", 0):
                await kept.catalog.drop("items")
            return await cut(self, *arguments)

        monkeypatch.setattr(Retention, "cut", cut_late)
        await kept.maintenance.retention.sweep()
        assert not kept.catalog.has("items", 0)
        assert caplog.text == ""
    store.close()


async def test_a_bucket_that_cannot_be_cut_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure goes to the log, and the next sweep tries again."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description(buckets=2))

    async with open_maintenance(store, KEEPS_NOTHING) as kept:
        buckets = [(await kept.bucket(index)).storage for index in range(2)]
        for index in range(2):
            await kept.write(range(10), index)
        with monkeypatch.context() as patch:
            patch.setattr(buckets[0], "truncate_log", refuse)
            await kept.maintenance.retention.sweep()
        assert [bucket.log_start for bucket in buckets] == [0, 10]
        assert "items[0] is not cut: no space left on the test" in caplog.text
        await kept.maintenance.retention.sweep()
        assert [bucket.log_start for bucket in buckets] == [10, 10]


async def test_it_is_done_from_time_to_time(autojump_clock: trio.testing.MockClock) -> None:
    """The intervals of a running server: checkpoints, retention and expired leases come by themselves."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    config = ScannerConfig(log_retention_s=0.001, checkpoint_interval_s=100, retention_interval_s=10)
    async with open_maintenance(store, config) as kept, trio.open_nursery() as nursery:
        await kept.write(range(10))
        await kept.acquire("report", target(Choice.LOG))
        await kept.write(range(20))
        kept.maintenance.start(nursery)
        bucket = await kept.bucket()
        await passes(15)
        assert (bucket.storage.log_start, await kept.ids()) == (10, [])
        await passes(75)
        assert (bucket.storage.log_start, len(bucket.pins)) == (bucket.storage.log_end, 0)
        await passes(115)
        assert len(await kept.ids()) == 1
        await passes(415)
        assert len(await kept.ids()) == 1, "nothing was written since"
        await kept.write(range(5))
        await passes(515)
        assert len(await kept.ids()) == 2
        nursery.cancel_scope.cancel()


async def passes(until_s: float) -> None:
    """Let the clock jump, from one thing to be done to the next."""
    with trio.move_on_at(until_s):
        await trio.sleep_forever()


async def bytes_per_row(store: Store) -> float:
    """What an insert takes in the log, on the disk."""
    async with open_maintenance(store) as kept:
        await write_to_disk(kept, 0, 400)
        return (await kept.bucket()).storage.log_bytes / 400


async def write_to_disk(kept: Kept, start: int, count: int) -> None:
    """Insert rows, and leave nothing in memory, where sizes are rough."""
    for first in range(start, start + count, 10):
        await kept.write(range(first, first + 10))
    (await kept.bucket()).storage.compact()


def retention_with(kept: Kept, **limits: float) -> Retention:
    """Retention with other limits, over the same buckets."""
    config = dataclasses.replace(KEEPS_NOTHING, **limits)  # type: ignore[arg-type]
    return Retention(kept.catalog, config, inline, WallClock(lambda: WALL_S))


async def test_a_failure_from_time_to_time_ends_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Expected or not, it goes to the log, and the next time it is tried again."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    config = ScannerConfig(log_retention_s=0.001, retention_interval_s=10)
    failures: list[Exception] = [StoreFailed("of the disk"), RuntimeError("of ours")]

    def refuse(_: int) -> int:
        raise failures.pop(0)

    async with open_maintenance(store, config) as kept, trio.open_nursery() as nursery:
        await kept.write(range(10))
        bucket = (await kept.bucket()).storage
        kept.maintenance.start(nursery)
        with monkeypatch.context() as patch:
            patch.setattr(bucket, "offset_at", refuse)
            await passes(25)
        assert (failures, bucket.log_start) == ([], 0)
        await passes(35)
        assert bucket.log_start == 10
        assert "items[0] is not cut: of the disk" in caplog.text
        assert "the cutting of changelogs failed in an unforeseen way" in caplog.text
        nursery.cancel_scope.cancel()


@pytest.mark.socket
async def test_a_stalled_scan_is_told_with_its_last_token() -> None:
    """Over the wire: SLOW_CONSUMER and the token of the last row; the token is then SNAPSHOT_LOST, with an offset."""
    config = ScannerConfig(
        block_rows_max=100,
        log_retention_s=0.001,
        log_pinned_bytes_max=20_000,
        retention_interval_s=0.02,
        heartbeat_interval_s=0.05,
        snapshot_linger_s=0,
        checkpoint_interval_s=0,
    )
    store = filled_store(1000)
    async with serving(store, config) as (_, client):
        async with open_scan(client, credit=2000) as scan:
            while not scan.heartbeats:
                await scan.receive()
            await write(client, write_request(sample(range(2000))))
            with pytest.raises(CallFailed) as caught:
                await scan.receive_all()
        ended = from_call_failed(caught.value)
        assert isinstance(ended, SlowConsumer)
        assert ended.resume_token
        assert ended.metadata["rows"] == str(scan.rows)
        bucket = store.bucket("items", 0)
        with trio.fail_after(100):
            while bucket.log_start < bucket.log_end:
                await trio.lowlevel.checkpoint()
        opening = pb.ScanOpen(
            source=pb.SCAN_SOURCE_LIVE_KV,
            query=pb.ScanQuery(table="items"),
            resume_token=ended.resume_token,
        )

        async def resume() -> None:
            async with client.open_stream(SCAN) as stream:
                await stream.send(pb.ScanRequest(open=opening).SerializeToString())
                await stream.receive()

        lost = await failure(resume)
        assert isinstance(lost, SnapshotLost)
        assert lost.oldest_offset == bucket.log_end


async def test_a_sweep_joins_the_files_of_each_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there was something to cut or not."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        bucket, joined = await kept.bucket(), list[int]()
        monkeypatch.setattr(bucket.storage, "join_log", lambda: joined.append(bucket.storage.log_end))
        await kept.maintenance.retention.sweep()
    assert joined == [10]


async def test_a_bucket_whose_compaction_failed_takes_writes_at_once_and_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses each time does not have what reads it parked every minute."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        async with open_maintenance(store) as kept:
            await kept.write(range(10))
            bucket, tried = await kept.bucket(), list[int]()
            storage = store.bucket("items", 0)

            def refuse() -> NoReturn:
                tried.append(storage.log_end)
                storage._lifetime.fail(StoreFailed("of the test"))
                raise StoreFailed("of the test")

            monkeypatch.setattr(storage, "join_log", refuse)
            for first in (10, 20):
                await kept.maintenance.retention.sweep()
                assert bucket.storage.failure is None
                await kept.write(range(first, first + 10))
            assert tried == [10]
            monkeypatch.setattr(log_retention, "_REST_S", 0.0)
            kept.maintenance.retention._rests.clear()
            for _ in range(2):
                await kept.maintenance.retention.sweep()
            assert tried == [10, 30, 30]


@pytest.mark.parametrize(
    ("work", "not_done", "done"),
    [
        (
            "free_log",
            "what is cut of the changelog of items[0] still takes disk",
            "what is cut of the changelog of items[0] takes no disk",
        ),
        (
            "join_log",
            "small files of the changelog of items[0] are not joined",
            "the changelog of items[0] can be joined again",
        ),
    ],
)
async def test_a_changelog_with_damaged_files_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, work: str, not_done: str, done: str
) -> None:
    """Once; it is cut all the same."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())

    def damaged() -> bool:
        raise DataCorrupted("damaged")

    async with open_maintenance(store) as kept:
        await kept.write(range(10))
        bucket = await kept.bucket()
        monkeypatch.setattr(bucket.storage, work, damaged)
        for _ in range(2):
            await kept.maintenance.retention.sweep()
        monkeypatch.setattr(bucket.storage, work, lambda: False)
        await kept.maintenance.retention.sweep()
    assert [record.getMessage() for record in caplog.records] == [f"{not_done}: damaged", done]


async def test_a_failure_that_lasts_is_told_once_and_so_is_its_end(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is tried in vain, the log has a line for each cause, and one when it is over."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    config = ScannerConfig(log_retention_s=0.001, retention_interval_s=10)

    async with open_maintenance(store, config) as kept, trio.open_nursery() as nursery:
        await kept.write(range(10))
        bucket = (await kept.bucket()).storage
        kept.maintenance.start(nursery)
        for error, until_s in (
            (StoreFailed("of the disk"), 25),
            (StoreFailed("of the line"), 45),
            (DiskFull("3 bytes are free"), 65),
            (DiskFull("2 bytes are free"), 85),
            (RuntimeError("of ours"), 125),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(bucket, "offset_at", functools.partial(_fail, error))
                await passes(until_s)
        assert bucket.log_start == 0
        told = [record.getMessage() for record in caplog.records]
        assert told == [
            "the changelog of items[0] is not cut: of the disk",
            "the changelog of items[0] is not cut: of the line",
            "the changelog of items[0] is not cut: 3 bytes are free",
            "the cutting of changelogs failed in an unforeseen way, and is tried again",
        ]
        await passes(165)
        assert bucket.log_start == 10
        told = [record.getMessage() for record in caplog.records[4:]]
        assert told == [
            "the changelog of items[0] is cut again, where it has to be",
            "the cutting of changelogs goes well again",
        ]
        nursery.cancel_scope.cancel()


def _fail(error: Exception, _: int) -> int:
    raise error
