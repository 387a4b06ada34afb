"""Group commit and retirement, without a network or a clock."""

from __future__ import annotations

import functools
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from scanner.data.key_ranges import SplitWish
from scanner.data.keys import ALL_KEYS
from scanner.errors import (
    ArgumentInvalid,
    DiskFull,
    InternalError,
    ScannerError,
    SequenceInvalid,
    StoreFailed,
    TableNotFound,
    TooManyFiles,
)
from scanner.server.config import ScannerConfig
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.catalog import Catalog
from scanner.server.tables.images import BucketImage
from scanner.server.tables.write_queue import PendingWrite, TransactionShare
from scanner.sources.kv import KvSource
from scanner.storage.group_states import GroupState
from scanner.storage.interface import ChangeKind, Mutation
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.writers import AppliedRequest, RequestNumber
from scanner.tasks import inline
from scanner.wire.queries import ScanQuery
from tests.support.changes import read_changes
from tests.support.scans import description, filled_store, mutations, sample
from tests.support.unsynced import syncs_fail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from rocksdict import WriteBatch

    from scanner.server.tables.commit_floor import CommitTimeFloor
    from scanner.server.tables.open_scan import OpenScan
    from scanner.storage.interface import Bucket, BucketScan, PreparedCommit
    from scanner.storage.rocksdb.database import Database

T = TypeVar("T")
STORE = filled_store(0)
BATCHES = [mutations(STORE, "items", sample([number])) for number in range(20)]
SHOWN: Final = (ChangeKind.INSERT, ChangeKind.UPDATE_AFTER)
"""Changes whose row is there afterwards."""


@dataclass
class Disk:
    """Runs commits one at a time, when it is let; what prepares them is not held up."""

    let: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(0))
    failure: Exception | None = None

    async def __call__(self, function: Callable[[], T]) -> T:
        called = function.func if isinstance(function, functools.partial) else function
        if getattr(called, "__name__", "") == "prepare":
            await trio.lowlevel.checkpoint()
            return function()
        await self.let.acquire()
        if self.failure is not None:
            raise self.failure
        return function()

    def release(self, times: int = 1) -> None:
        """Let commits through."""
        for _ in range(times):
            self.let.release()


@dataclass
class Recorder:
    """A bucket in memory that notes the groups of each commit."""

    bucket: Bucket
    commits: list[int] = field(default_factory=list)
    idle: bool = False
    """Whether its files are closed, as if it had any."""
    failure: ScannerError | None = None
    """Why it takes no writes."""

    def wake(self) -> None:
        """Open them."""
        self.idle = False

    def close_idle(self) -> None:
        """Close them."""
        self.idle = True

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """Prepare a commit, and note it."""
        self.commits.append(len(groups))
        return self.bucket.prepare(groups, clock_us, after_us)

    def __getattr__(self, name: str) -> object:
        return getattr(self.bucket, name)


class OpenedImage(BucketImage):
    """An image that tells whether it was opened."""

    is_open = False

    def open(self) -> None:
        """Note it."""
        self.is_open = True


@asynccontextmanager
async def no_wait() -> AsyncIterator[None]:
    """There is room for files."""
    yield


@asynccontextmanager
async def served(
    room: Callable[[], AbstractAsyncContextManager[None]] = no_wait, *, idle: bool = False, **limits: int
) -> AsyncIterator[tuple[ServedBucket, Recorder, Disk]]:
    """A bucket of its own, on a disk that waits to be let."""
    disk = Disk()
    recorder = Recorder(filled_store(0).bucket("items", 0), idle=idle)
    async with trio.open_nursery() as nursery:
        bucket = ServedBucket(recorder, ScannerConfig(**limits), nursery, disk, room=room)  # type: ignore[arg-type]
        yield bucket, recorder, disk


async def open_source(bucket: ServedBucket) -> OpenScan[KvSource]:
    """A scan of everything."""
    async with bucket.between_commits():
        hold = bucket.snapshots.current()
        return bucket.admit(make_source(hold.snapshot.scan()), hold)


def make_source(scan: BucketScan) -> KvSource:
    """A scan of everything, on a scan of the storage."""
    return KvSource(
        scan,
        STORE.table("items"),
        STORE.row_codec("items"),
        ScanQuery(table="items"),
        block_rows_max=10,
        block_bytes_max=1000,
    )


async def test_what_waits_for_the_disk_shares_a_commit() -> None:
    """The first write commits alone; those that came meanwhile commit together, in order."""
    async with served() as (bucket, recorder, disk):
        first = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        others = [bucket.submit(batch) for batch in BATCHES[1:6]]
        disk.release(2)
        offsets = [await write.wait_durable() for write in (first, *others)]

    assert recorder.commits == [1, 5]
    assert offsets == [(number, number + 1) for number in range(6)]


async def test_a_commit_is_bounded_by_rows() -> None:
    """Writes past the bound wait for the next commit; one that is larger goes alone."""
    async with served(commit_rows_max=2) as (bucket, recorder, disk):
        writes = [bucket.submit(batch) for batch in ([*BATCHES[0], *BATCHES[1], *BATCHES[2]], *BATCHES[3:8])]
        disk.release(10)
        for write in writes:
            await write.wait_durable()

    assert recorder.commits == [1, 2, 2, 1]


async def test_writers_wait_for_room_in_the_queue() -> None:
    """With the queue full a writer waits until a commit takes some."""
    async with served(write_queue_requests_max=2) as (bucket, _, disk):
        bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        bucket.submit(BATCHES[1])
        await bucket.wait_room()
        bucket.submit(BATCHES[2])
        waited = trio.Event()

        async def wait() -> None:
            await bucket.wait_room()
            waited.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not waited.is_set()
            disk.release(3)
        assert waited.is_set()


async def test_who_waits_for_room_for_files_holds_up_no_commit() -> None:
    """A reader that came while storage was closed, and waits for room, is passed by writes once storage is open.

    Who has the room to give may wait for those writes.
    """
    room = trio.Event()

    @asynccontextmanager
    async def room_for_files() -> AsyncIterator[None]:
        await room.wait()
        yield

    async def read(bucket: ServedBucket) -> None:
        async with bucket.between_commits():
            assert bucket.storage.log_end == 1

    async with (
        served(room_for_files, idle=True) as (bucket, recorder, disk),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, bucket)
        await wait_all_tasks_blocked()
        recorder.wake()  # A commit has opened it.
        write = bucket.submit(BATCHES[0])
        disk.release()
        await wait_all_tasks_blocked()
        assert write.settled.is_set()
        room.set()


async def test_one_of_those_who_need_a_bucket_open_waits_for_room() -> None:
    """The others go on as soon as it is open, whoever waits for room for another bucket's files meanwhile."""
    asked, woken = list[trio.Event](), list[int]()

    @asynccontextmanager
    async def room_for_files() -> AsyncIterator[None]:
        asked.append(trio.Event())
        await asked[-1].wait()
        yield

    async def wake(number: int) -> None:
        await bucket.wake()
        woken.append(number)

    async with served(room_for_files, idle=True) as (bucket, _, disk), trio.open_nursery() as nursery:
        disk.release(2)
        nursery.start_soon(wake, 0)
        nursery.start_soon(wake, 1)
        await wait_all_tasks_blocked()
        asked[0].set()
        await wait_all_tasks_blocked()
        assert sorted(woken) == [0, 1]
        assert len(asked) == 1
        nursery.cancel_scope.cancel()


async def test_a_bucket_whose_table_is_dropped_while_its_files_are_opened() -> None:
    """Is not found: who took it for open would read what is gone, or wait for ever for what happens in it."""

    async def open_and_drop(function: Callable[[], T]) -> T:
        found = function()
        bucket.refuse(TableNotFound("table 'items' was dropped"))
        return found

    async with trio.open_nursery() as nursery:
        recorder = Recorder(filled_store(0).bucket("items", 0), idle=True)
        bucket = ServedBucket(recorder, ScannerConfig(), nursery, open_and_drop)  # type: ignore[arg-type]
        with pytest.raises(TableNotFound, match="was dropped"):
            await bucket.wake()


async def test_nobody_waits_for_the_writes_of_a_bucket_that_is_being_closed() -> None:
    """They will wait for room to open it again: who makes room would wait for who waits for it."""
    closed = trio.Event()

    async def run_blocking(function: Callable[[], T]) -> T:
        await closed.wait()
        return function()

    async with trio.open_nursery() as nursery:
        storage = filled_store(0).bucket("items", 0)
        bucket = ServedBucket(storage, ScannerConfig(), nursery, run_blocking)
        nursery.start_soon(bucket.close_idle, 0)
        await wait_all_tasks_blocked()
        write = bucket.submit(BATCHES[0])
        nursery.start_soon(bucket.give_way)
        await wait_all_tasks_blocked()
        assert not write.settled.is_set()
        closed.set()
        await write.wait_durable()


async def test_who_goes_away_while_files_are_opened_leaves_them_known_and_whole() -> None:
    """The bucket is among those whose files can be closed, and its image is open as its storage is."""
    going = trio.CancelScope()

    async def run_blocking(function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        found = function()
        going.cancel()  # As a thread, it ends all the same.
        return found

    async with trio.open_nursery() as nursery:
        catalog = Catalog(filled_store(0), ScannerConfig(), nursery, run_blocking)
        table = await catalog.table("items")
        with trio.CancelScope() as going:
            await catalog.bucket(table, 0)
        assert list(table.buckets) == [0]

        recorder = Recorder(filled_store(0).bucket("items", 0), idle=True)
        image = OpenedImage()
        bucket = ServedBucket(recorder, ScannerConfig(), nursery, run_blocking, image=image)  # type: ignore[arg-type]
        with trio.CancelScope() as going:
            await bucket.wake()
        assert (bucket.is_open, image.is_open) == (True, True)


async def test_writers_are_woken_whatever_is_queued_while_they_wait() -> None:
    """One that waits for room goes on after others, who wait for none, have filled the queue further."""
    async with served(write_queue_requests_max=2) as (bucket, _, disk):
        bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        bucket.submit(BATCHES[1])
        bucket.submit(BATCHES[2])
        waited: list[int] = []

        async def wait(number: int) -> None:
            await bucket.wait_room()
            waited.append(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 0)
            await wait_all_tasks_blocked()
            bucket.submit_pieces((piece for piece in BATCHES[3:5]), TransactionShare("load", 1))
            nursery.start_soon(wait, 1)
            await wait_all_tasks_blocked()
            assert not waited
            # The writes, each piece of the share as it is read and written, and what shows them.
            disk.release(20)
            await wait_all_tasks_blocked()
            assert sorted(waited) == [0, 1]
            nursery.cancel_scope.cancel()


async def test_a_waiter_that_goes_away_does_not_stop_its_write() -> None:
    """A cancelled waiter's write is committed, and those after it too."""
    async with served() as (bucket, recorder, disk):
        write = bucket.submit(BATCHES[0])
        with trio.move_on_after(0):
            await write.wait_durable()
        disk.release(2)
        assert await write.wait_durable() == (0, 1)
        assert await bucket.submit(BATCHES[1]).wait_durable() == (1, 2)

    assert recorder.log_end == 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(StoreFailed("the disk is full"), StoreFailed), (ZeroDivisionError("bug"), InternalError)],
)
async def test_a_failed_commit_fails_all_its_writes(failure: Exception, kind: type[ScannerError]) -> None:
    """Each waiter gets an error of its own, typed, and the next commit is tried."""
    async with served() as (bucket, _, disk):
        disk.failure = failure
        disk.release()
        writes = [bucket.submit(batch) for batch in BATCHES[:3]]
        errors = []
        for write in writes:
            with pytest.raises(kind) as caught:
                await write.wait_durable()
            errors.append(caught.value)
        assert len({id(error) for error in errors}) == 3
        disk.failure = None
        disk.release()
        assert await bucket.submit(BATCHES[3]).wait_durable() == (0, 1)


async def test_a_scan_is_opened_between_commits() -> None:
    """While a commit runs an open waits, and then shows what is durable."""
    async with served() as (bucket, _, disk):
        bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        offsets = []

        async def open_scan() -> None:
            scan = await open_source(bucket)
            offsets.append(scan.source.log_offset)
            scan.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_scan)
            await wait_all_tasks_blocked()
            assert offsets == []
            disk.release()

    assert offsets == [1]


async def test_the_log_is_read_beside_a_commit() -> None:
    """What is below the log's end is durable; so who wants no more than that does not wait for the commit that runs."""
    async with served() as (bucket, _, disk):
        disk.release()
        await bucket.submit(BATCHES[0]).wait_durable()
        write = bucket.submit(BATCHES[1])
        await wait_all_tasks_blocked()
        ends = []
        with trio.CancelScope() as scope:
            scope.cancel()  # Whatever waits fails.
            async with bucket.beside_commits():
                ends.append(bucket.storage.log_end)
        disk.release()
        await write.wait_durable()
        async with bucket.beside_commits():
            ends.append(bucket.storage.log_end)
        assert ends == [1, 2]


async def test_a_bucket_is_split_beside_a_commit() -> None:
    """Cuts are an estimate: nobody has to wait for minutes until a large share is applied."""
    async with served() as (bucket, _, disk):
        write = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bucket.split, SplitWish(splits=2), ALL_KEYS)
            await wait_all_tasks_blocked()
            assert disk.let.statistics().tasks_waiting == 2  # The commit, and the splitting itself.
            disk.release(2)
        await write.wait_durable()


async def test_nothing_is_read_beside_a_share_that_is_undone() -> None:
    """Storage is opened anew for that, and who read the log meanwhile would hold up the event loop."""

    def pieces() -> Generator[Sequence[Mutation], None, None]:
        yield BATCHES[0]
        raise DiskFull("there is no room for more")

    async with served() as (bucket, _, disk):
        write = bucket.submit_pieces(pieces(), TransactionShare("load", 1))
        disk.release(3)  # The first piece is read and written, the second one fails; the undoing waits.
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()  # Whatever waits fails.
            async with bucket.beside_commits():
                pass
        assert scope.cancelled_caught
        disk.release()
        with pytest.raises(DiskFull):
            await write.wait_durable()


async def test_what_a_drop_has_left_of_a_share_is_undone_whoever_gives_up() -> None:
    """The table stays. Who comes first leaves before storage is opened anew, and the next one does it."""
    async with served() as (bucket, recorder, disk):
        share = bucket.submit_pieces((each for each in BATCHES[:3]), TransactionShare("load", 1))
        disk.release(2)  # The first piece is read and written.
        await wait_all_tasks_blocked()
        bucket.refuse(TableNotFound("table 'items' was dropped"))
        disk.release()
        with pytest.raises(TableNotFound):
            await share.wait_durable()
        bucket.serve_again()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bucket.wake)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        disk.release(100)
        assert await bucket.submit(BATCHES[3]).wait_durable() == (0, 1)
        assert recorder.bucket.log_end == 1


@pytest.mark.parametrize("order", ["ab", "ab--", "--ab", "a--b"])
async def test_what_is_told_of_a_time_while_a_share_is_applied_stays_true(order: str) -> None:
    """A time between two pieces that change something means the first; one behind the last waits for the share."""
    times, told = itertools.count(1), dict[int, int]()

    async def ask(time_us: int) -> None:
        await bucket.wait_stamped_before(time_us)
        told[time_us] = bucket.storage.offset_at(time_us)

    disk = Disk()
    async with trio.open_nursery() as nursery:
        storage = filled_store(0).bucket("items", 0)
        bucket = ServedBucket(storage, ScannerConfig(), nursery, disk, clock_us=lambda: next(times))
        pieces = {"a": BATCHES[0], "b": BATCHES[1], "-": [Mutation(b"absent", None)]}
        write = bucket.submit_pieces((pieces[each] for each in order), TransactionShare("load", 1))
        while not write.settled.is_set():
            disk.release()
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, next(times))
            await wait_all_tasks_blocked()
    assert told == {time_us: storage.offset_at(time_us) for time_us in told}
    assert set(told.values()) == {0, 2}


async def test_who_asks_for_a_time_waits_for_one_commit_at_most() -> None:
    """Later ones have later times, also if the clock is behind it, so that writers without a pause hold up nobody."""
    async with served() as (bucket, _, disk), trio.open_nursery() as nursery:
        writes = [bucket.submit(BATCHES[0])]
        await wait_all_tasks_blocked()
        nursery.start_soon(bucket.wait_stamped_before, 2**62)
        await wait_all_tasks_blocked()
        for number in range(1, 10):
            writes.append(bucket.submit(BATCHES[number]))
            disk.release()
            await wait_all_tasks_blocked()
        assert not nursery.child_tasks
        disk.release()
        await writes[-1].wait_durable()


async def test_a_scan_does_not_wait_for_what_a_commit_has_to_work_out() -> None:
    """While a commit is prepared scans are opened, as of what is durable; only its write and sync keep them waiting."""
    worked_out, written = trio.Event(), trio.Event()

    async def run(function: Callable[[], T]) -> T:
        await (worked_out if function.func.__name__ == "prepare" else written).wait()  # type: ignore[attr-defined]
        return function()

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            bucket = ServedBucket(filled_store(3).bucket("items", 0), ScannerConfig(), nursery, run)
            write = bucket.submit(BATCHES[9])
            await wait_all_tasks_blocked()
            scan = await open_source(bucket)
            assert scan.source.log_offset == 3
            scan.close()
            worked_out.set()
            await wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_when_blocked, scope)
                await open_source(bucket)
            assert scope.cancelled_caught
            written.set()
            assert await write.wait_durable() == (3, 4)


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_a_request_that_is_refused_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that share a commit only the one whose entry would be too large fails."""
    monkeypatch.setattr("scanner.storage.memory.bucket.ENTRY_BYTES_MAX", 100)
    async with served() as (bucket, recorder, disk):
        first = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        large = bucket.submit([each for batch in BATCHES[1:9] for each in batch])
        small = bucket.submit(BATCHES[9])
        disk.release(2)
        assert await first.wait_durable() == (0, 1)
        with pytest.raises(ArgumentInvalid, match="too large"):
            await large.wait_durable()
        assert await small.wait_durable() == (1, 2)
        assert (bucket.activity.commit_writes, bucket.activity.commit_rows) == (2, 2)
    assert recorder.commits == [1, 2]


async def test_a_request_that_was_refused_is_refused_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes it for applied because it had a number."""
    monkeypatch.setattr("scanner.storage.memory.bucket.ENTRY_BYTES_MAX", 100)
    async with served() as (bucket, recorder, disk):
        disk.release(100)
        for _ in range(2):
            large = [each for batch in BATCHES[:9] for each in batch]
            with pytest.raises(ArgumentInvalid, match="too large"):
                await bucket.submit(large, number=RequestNumber(bytes(16), 1, 0)).wait_durable()
        assert recorder.bucket.log_end == 0


async def test_a_share_that_was_refused_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not applied; and of a piece that is too large itself the rows of one key come in their order."""
    monkeypatch.setattr("scanner.storage.memory.bucket.ENTRY_BYTES_MAX", 100)
    share = TransactionShare("load", 2)
    ((key, _),) = BATCHES[0]
    versions = [Mutation(key, row) for batch in BATCHES[:9] for _, row in batch]
    async with served() as (bucket, recorder, disk):
        disk.release(100)
        with pytest.raises(ArgumentInvalid, match="too large"):
            await bucket.submit(versions, transaction=share).wait_durable()
        assert await bucket.submit_pieces((each for each in [versions]), share).wait_durable() == (0, 17)
        written = list(read_changes(recorder.bucket, 0, 17))
        assert [each.row for each in written if each.kind in SHOWN] == [row for _, row in versions]


async def test_a_request_that_turns_out_to_be_applied_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Storage may have been opened anew since it was looked for, and know what a commit that failed has left."""
    number = RequestNumber(bytes(16), 1, 0)
    async with served() as (bucket, recorder, disk):
        disk.release(100)
        real, storage = recorder.prepare, recorder.bucket

        def prepare(groups: Sequence[Sequence[Mutation]], *arguments: int) -> PreparedCommit:
            if not storage.log_end:
                left = {number.writer_id: [AppliedRequest(1, 0, 1, 0)]}
                storage.commit_prepared(storage.prepare(groups), requests=left)
            return real(groups, *arguments)

        monkeypatch.setattr(recorder, "prepare", prepare)
        assert await bucket.submit(BATCHES[0], number=number).wait_durable() == (0, 1)
        assert storage.log_end == 1


async def test_no_newer_floor_is_told_before_a_share_is_there() -> None:
    """Its first pieces may be older."""
    floor, told = SimpleNamespace(floor_us=10), list[int]()

    def pieces() -> Generator[Sequence[Mutation], None, None]:
        for number in range(3):
            yield BATCHES[number]
            floor.floor_us = 1_000
            told.append(bucket.commit_time_floor_us)

    disk = Disk()
    disk.release(100)
    async with trio.open_nursery() as nursery:
        storage = filled_store(0).bucket("items", 0)
        bucket = ServedBucket(
            storage, ScannerConfig(), nursery, disk, clock_us=lambda: 5, floor=cast("CommitTimeFloor", floor)
        )
        await bucket.submit_pieces(pieces(), TransactionShare("load", 1)).wait_durable()
        first, *_ = read_changes(storage, 0, 3)
        assert max(told) < first.timestamp_us
        assert bucket.commit_time_floor_us == 1_000


async def test_no_newer_floor_is_told_behind_a_failed_commit() -> None:
    """It may be there all the same, with the time that it had."""
    floor = SimpleNamespace(floor_us=10)
    async with trio.open_nursery() as nursery:
        storage = Recorder(filled_store(0).bucket("items", 0))
        bucket = ServedBucket(
            cast("Bucket", storage), ScannerConfig(), nursery, Disk(), floor=cast("CommitTimeFloor", floor)
        )
        assert bucket.commit_time_floor_us == 10
        floor.floor_us, storage.failure = 1_000, StoreFailed("its sync failed")
        assert bucket.commit_time_floor_us == 10
        storage.failure = None
        assert bucket.commit_time_floor_us == 1_000


async def test_a_share_that_was_written_is_not_written_again() -> None:
    """Not beside other writes, not in pieces, and not if a newer version was: what came between stays."""
    share = TransactionShare("load", 2)
    async with served() as (bucket, recorder, disk):
        disk.release(100)
        assert await bucket.submit(BATCHES[0], transaction=share).wait_durable() == (0, 1)
        again = bucket.submit(BATCHES[0], transaction=share), bucket.submit(BATCHES[1])
        assert [await write.wait_durable() for write in again] == [(0, 1), (1, 2)]
        pieces = (batch for batch in BATCHES[:1])
        assert await bucket.submit_pieces(pieces, share).wait_durable() == (0, 1)
        older = TransactionShare("load", 1)
        assert await bucket.submit(BATCHES[2], transaction=older).wait_durable() == (0, 0)
        assert recorder.bucket.log_end == 2


async def test_a_request_that_waits_twice_for_the_disk_is_written_once() -> None:
    """What comes again does not share a commit with the first; nor does what comes after a later one, and it fails."""

    def numbered(sequence: int) -> RequestNumber:
        return RequestNumber(bytes(16), sequence, sequence)

    async with served() as (bucket, recorder, disk):
        first = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        writes = [bucket.submit(BATCHES[each], number=numbered(each)) for each in (1, 3, 3, 4, 2, 5)]
        disk.release(10)
        await first.wait_durable()
        late = writes.pop(4)
        assert [await write.wait_durable() for write in writes] == [(1, 2), (2, 3), (2, 3), (3, 4), (4, 5)]
        with pytest.raises(SequenceInvalid, match="request 2 of this writer comes after its request 4"):
            await late.wait_durable()
        assert recorder.bucket.log_end == 5
        assert bucket.activity.duplicate_writes == 1
        commits = bucket.activity.commits.freeze().count
        assert await bucket.submit(BATCHES[5], number=numbered(5)).wait_durable() == (4, 5)
        assert bucket.activity.duplicate_writes == 2
        # Nothing was written, so this was no commit that took no time.
        assert bucket.activity.commits.freeze().count == commits
        assert (bucket.activity.commit_writes, bucket.activity.commit_rows) == (5, 5)


async def test_a_request_that_failed_is_new_when_it_comes_again() -> None:
    """Nothing was written of it, and nothing is remembered."""
    number = RequestNumber(bytes(16), 1, 0)
    async with served() as (bucket, _, disk):
        disk.failure = StoreFailed("the disk refused")
        disk.release(1)
        with pytest.raises(StoreFailed):
            await bucket.submit(BATCHES[0], number=number).wait_durable()
        disk.failure = None
        disk.release(1)
        assert await bucket.submit(BATCHES[0], number=number).wait_durable() == (0, 1)


async def test_a_request_that_was_applied_needs_no_room_when_it_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a full disk it is answered, and what shares its commit is refused."""

    def refuse(*_: object) -> NoReturn:
        raise DiskFull("the disk is full")

    number = RequestNumber(bytes(16), 1, 0)
    async with served() as (bucket, recorder, disk):
        disk.release(10)
        offsets = await bucket.submit(BATCHES[0], number=number).wait_durable()
        monkeypatch.setattr(recorder, "prepare", refuse)
        again, another = bucket.submit(BATCHES[0], number=number), bucket.submit(BATCHES[1])
        assert await again.wait_durable() == offsets
        with pytest.raises(DiskFull):
            await another.wait_durable()


async def test_a_bucket_is_unwritten_until_somebody_begins_to_write() -> None:
    """Not only until the row is there: what waits for the disk may be acknowledged."""
    async with served() as (bucket, _, disk):
        seen = [bucket.unwritten]
        waiting = bucket.submit(BATCHES[0])
        seen.append(bucket.unwritten)
        await wait_all_tasks_blocked()
        seen.append(bucket.unwritten)
        disk.release()
        await waiting.wait_durable()
        seen.append(bucket.unwritten)

    assert seen == [True, False, False, False]


async def test_retiring_ends_scans_and_writes_and_waits_for_them() -> None:
    """Scans are told and waited for, the commit that runs is finished, queued writes fail with the reason."""
    reason = TableNotFound("table 'items' was dropped")
    async with served() as (bucket, _, disk):
        scan = await open_source(bucket)
        told: list[ScannerError] = []
        scan.when_ended(told.append)
        running = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        queued = bucket.submit(BATCHES[1])
        retired = trio.Event()

        async def retire() -> None:
            await bucket.retire(reason)
            retired.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(retire)
            await wait_all_tasks_blocked()
            assert told == [reason]
            disk.release()
            await wait_all_tasks_blocked()
            assert not retired.is_set()
            assert bucket.open_scans == (scan,)
            scan.close()
            scan.close()
        assert await running.wait_durable() == (0, 1)
        with pytest.raises(TableNotFound, match="dropped"):
            await queued.wait_durable()


async def test_a_retired_bucket_takes_nothing_new() -> None:
    """Writes and scans of a dropped table fail with the reason."""
    async with served() as (bucket, _, _disk):
        await bucket.retire(TableNotFound("table 'items' was dropped"))

        with pytest.raises(TableNotFound, match="dropped"):
            bucket.submit(BATCHES[0])
        with pytest.raises(TableNotFound, match="dropped"):
            await open_source(bucket)


async def test_a_server_that_goes_down_settles_every_write() -> None:
    """Nobody waits for ever for a write that will not be done."""
    disk = Disk()
    writes = []
    async with trio.open_nursery() as nursery:
        bucket = ServedBucket(filled_store(0).bucket("items", 0), ScannerConfig(), nursery, disk)
        writes.append(bucket.submit(BATCHES[0]))
        await wait_all_tasks_blocked()
        writes.append(bucket.submit(BATCHES[1]))
        nursery.cancel_scope.cancel()

    for write, says in zip(writes, ("may not have been done", "was not done"), strict=True):
        with pytest.raises(ScannerError, match=says):
            await write.wait_durable()


@pytest.mark.rocks
async def test_a_bucket_whose_table_is_being_dropped_says_so(tmp_path: Path) -> None:
    """Its files are closed, and the table has its name still: that is no failure of the store."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, inline)
            table = await catalog.table("items")
            served = await catalog.bucket(table, 0)
            await served.retire(TableNotFound("table 'items' was dropped"))
            store.bucket("items", 0).suspend(leaving=True)
            with pytest.raises(TableNotFound, match="was dropped"):
                await catalog.bucket(table, 0)
            store.drop_table("items")()
            with pytest.raises(TableNotFound, match="was dropped"):
                await catalog.bucket(table, 0)
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_tails_get_what_a_failed_commit_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync fails, and its rows are there all the same: they are found when storage is opened anew."""
    async with bucket_with_a_failed_commit(tmp_path, monkeypatch) as bucket:
        seen: list[int] = []
        bucket.on_commit(lambda: seen.append(bucket.storage.log_end))
        await bucket.recover(at_once=True)
        assert seen == [1]


@pytest.mark.rocks
async def test_writes_are_tried_again_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Each try parks the scans that run; at once where the disk has room again."""
    async with bucket_with_a_failed_commit(tmp_path, monkeypatch) as bucket:
        tried: list[float] = []

        async def reopen(*, writable: bool) -> None:
            tried.append(trio.current_time())

        with monkeypatch.context() as patch:
            patch.setattr(bucket, "_reopen", reopen)
            began_at = trio.current_time()
            for _ in range(20):
                await bucket.recover()
                mock_clock.jump(0.5)
            await bucket.recover(at_once=True)
        assert [each - began_at for each in tried] == [0, 1, 3, 7, 10]


@pytest.mark.rocks
async def test_what_is_told_of_a_time_behind_a_failed_commit_stays_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks finds out whether it is there."""
    async with bucket_with_a_failed_commit(tmp_path, monkeypatch) as bucket:
        time_us = 2**62
        await bucket.wait_stamped_before(time_us)
        assert bucket.storage.offset_at(time_us) == 1


@pytest.mark.rocks
async def test_nobody_is_told_of_what_a_failed_sync_has_left(tmp_path: Path) -> None:
    """Whoever reads, asks for its time or publishes it again, until writes are taken: it could go with the power."""
    share, number = TransactionShare("load", 1), RequestNumber(bytes(16), 1, 0)
    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, inline)
            bucket = await catalog.bucket(await catalog.table("items"), 0)
            with syncs_fail(), pytest.raises(StoreFailed):
                await bucket.submit(BATCHES[0], transaction=share, number=number).wait_durable()
            async with bucket.between_commits():
                assert (bucket.storage.log_end, bucket.storage.newest_commit_us) == (0, 0)
            for again in ({"transaction": share}, {"number": number}):
                with pytest.raises(StoreFailed, match="until it is reopened"):
                    await bucket.submit(BATCHES[0], **again).wait_durable()
            with pytest.raises(StoreFailed, match="what is older than that time"):
                await bucket.wait_stamped_before(2**62)
            with pytest.raises(StoreFailed, match="what is stored of its reader groups"):
                bucket.submit((), group_states={"billing": GroupState(1)})
            await bucket.recover(at_once=True)
            await bucket.wait_stamped_before(2**62)
            assert bucket.storage.offset_at(2**62) == 1
            for again in ({"transaction": share}, {"number": number}):
                assert await bucket.submit(BATCHES[0], **again).wait_durable() == (0, 1)
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_a_bucket_that_is_retired_while_its_storage_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is opened behind the end of its scans: nobody would end it, and the drop would wait for it."""
    let = trio.Event()

    async def when_let(function: Callable[[], T]) -> T:
        await let.wait()
        return function()

    async with bucket_with_a_failed_commit(tmp_path, monkeypatch) as bucket:
        monkeypatch.setattr(bucket, "_run_blocking", when_let)
        opened: list[OpenScan[KvSource]] = []
        refused: list[ScannerError] = []

        async def open_one() -> None:
            try:
                opened.append(await open_source(bucket))
            except TableNotFound as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_one)
            await wait_all_tasks_blocked()
            nursery.start_soon(bucket.retire, TableNotFound("table 'items' was dropped"))
            await wait_all_tasks_blocked()
            let.set()
            await wait_all_tasks_blocked()
            ended = [scan.ended_by is not None for scan in opened]
            for scan in opened:
                scan.close()
        assert (ended, len(refused)) == ([], 1)


@asynccontextmanager
async def bucket_with_a_failed_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServedBucket]:
    """Its first one, which is durable all the same."""
    make_durable = RocksBucket._make_durable

    def fail_behind_the_write(bucket: RocksBucket, database: Database, batch: WriteBatch) -> None:
        make_durable(bucket, database, batch)
        bucket._lifetime.fail(StoreFailed("the disk refused the sync"))
        raise StoreFailed("nothing of this write is promised")

    with RocksStore.open(path) as store:
        store.create_table(description())
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, inline)
            bucket = await catalog.bucket(await catalog.table("items"), 0)
            with monkeypatch.context() as patched:
                patched.setattr(RocksBucket, "_make_durable", fail_behind_the_write)
                with pytest.raises(StoreFailed):
                    await bucket.submit(BATCHES[0]).wait_durable()
            assert bucket.storage.log_end == 0
            yield bucket
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_a_share_that_the_disk_cuts_off_keeps_nobody_from_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync of a piece fails once: what came before it is undone at once, and nobody has to wait for that."""
    make_durable = RocksBucket._make_durable
    syncs: list[int] = []

    def fail_at_the_third(bucket: RocksBucket, database: Database, batch: WriteBatch) -> None:
        syncs.append(bucket.log_end)
        if len(syncs) == 3:
            bucket._lifetime.fail(StoreFailed("the disk refused the sync"))
            raise StoreFailed("nothing of this write is promised")
        make_durable(bucket, database, batch)

    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(), nursery, inline)
            bucket = await catalog.bucket(await catalog.table("items"), 0)
            share = TransactionShare("load", 1)
            monkeypatch.setattr(RocksBucket, "_make_durable", fail_at_the_third)
            with pytest.raises(StoreFailed, match="nothing of this write is promised"):
                await bucket.submit_pieces((piece for piece in BATCHES[:4]), share).wait_durable()
            async with bucket.between_commits():
                assert bucket.storage.log_end == 0
            assert await bucket.submit_pieces((piece for piece in BATCHES[:4]), share).wait_durable() == (
                0,
                4,
            )
            # Of the first attempt nothing counts.
            assert (bucket.activity.commit_writes, bucket.activity.commit_rows) == (1, 4)
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_a_bucket_that_is_written_without_a_pause_gives_way(tmp_path: Path) -> None:
    """Another one is opened behind a commit of it, though the next one is queued; what is queued is written later."""
    writes: list[PendingWrite] = []
    with RocksStore.open(tmp_path) as store:
        store.create_table(description(buckets=2))
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=1), nursery, inline)
            table = await catalog.table("items")
            written = await catalog.bucket(table, 0)
            last = trio.Event()

            def write_again() -> None:
                if len(writes) < 100:
                    writes.append(written.submit(BATCHES[len(writes) % 20], write_again))
                else:
                    last.set()

            write_again()
            other = await catalog.bucket(table, 1)
            assert (len(writes) < 100, other.is_open, written.is_open) == (True, True, False)
            await last.wait()
            assert (other.is_open, written.is_open) == (False, True)
            assert [write.error for write in writes] == [None] * 100
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_a_snapshot_that_lingers_makes_room_for_files(tmp_path: Path) -> None:
    """Its scan was cut off and may go on; the other bucket is needed now. One that is held keeps its files."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description(buckets=2))
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=1), nursery, inline)
            table = await catalog.table("items")
            read = await catalog.bucket(table, 0)
            async with read.between_commits():
                hold = read.snapshots.current()
            with pytest.raises(TooManyFiles):
                await catalog.bucket(table, 1)
            hold.release()
            assert len(read.snapshots.lingering) == 1
            other = await catalog.bucket(table, 1)
            assert (len(read.snapshots), read.is_open, other.is_open) == (0, False, True)
            nursery.cancel_scope.cancel()


@pytest.mark.rocks
async def test_nobody_waits_for_room_that_a_failed_bucket_cannot_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage stays open, however its writes end: another bucket is refused, though somebody goes on writing."""

    def fail(bucket: RocksBucket, database: Database, batch: WriteBatch) -> None:
        bucket._lifetime.fail(StoreFailed("the disk refused the sync"))
        raise StoreFailed("nothing of this write is promised")

    writes: list[PendingWrite] = []
    with RocksStore.open(tmp_path) as store:
        store.create_table(description(buckets=2))
        async with trio.open_nursery() as nursery:
            catalog = Catalog(store, ScannerConfig(buckets_open_max=1), nursery, inline)
            table = await catalog.table("items")
            failed = await catalog.bucket(table, 0)
            monkeypatch.setattr(RocksBucket, "_make_durable", fail)

            def write_again() -> None:
                if len(writes) < 1000:
                    writes.append(failed.submit(BATCHES[0], write_again))

            write_again()
            with pytest.raises(StoreFailed):
                await writes[0].wait_durable()
            with pytest.raises(TooManyFiles):
                await catalog.bucket(table, 1)
            assert len(writes) < 1000
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def closed_bucket() -> AsyncIterator[tuple[ServedBucket, Recorder, trio.Semaphore]]:
    """A bucket whose storage is closed, and what lets one more opening have room."""
    room = trio.Semaphore(0)

    @asynccontextmanager
    async def room_for_files() -> AsyncIterator[None]:
        await room.acquire()
        yield

    async with served(room_for_files, idle=True) as (bucket, recorder, disk):
        disk.release(20)
        yield bucket, recorder, room


async def test_a_commit_does_not_wait_for_room_when_others_have_opened_storage() -> None:
    """Who is to have the room next may wait for just this commit."""

    async def read(bucket: ServedBucket) -> None:
        async with bucket.between_commits():
            pass

    async with closed_bucket() as (bucket, _, room), trio.open_nursery() as nursery:
        nursery.start_soon(read, bucket)
        await wait_all_tasks_blocked()
        write = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        room.release()
        await wait_all_tasks_blocked()
        assert write.settled.is_set()


async def test_nobody_waits_for_a_commit_that_waits_for_room() -> None:
    """Storage that has opened itself meanwhile is closed at once for who has room to make."""
    async with closed_bucket() as (bucket, recorder, room):
        write = bucket.submit(BATCHES[0])
        await wait_all_tasks_blocked()
        recorder.wake()
        assert bucket.only_written
        await bucket.give_way()
        assert (bucket.is_open, write.settled.is_set()) == (False, False)
        room.release()
        assert await write.wait_durable() == (0, 1)
