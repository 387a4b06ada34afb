"""A bucket as the service sees it: group commit, what happens between commits, and an end that waits for its scans.

Invariants:

1. One commit is prepared and written at a time, in a worker thread where storage blocks. A scan is opened while none
   is written, so it shows durable changes only; it does not wait for the preparation, which takes most of the time.
   Changes below the log's end are durable at any time.
2. A retired bucket opens no scan and takes no write, and is retired when its last scan has been closed.
3. A bucket whose storage has failed opens its next scan from storage opened anew; scans that ran are parked then, and
   go on as of the same state; tails get what the failed commit has left all the same. Unused storage is closed
   (`close_idle`); pins and scans that are parked stay.
4. What it tells as its commit-time floor is below the time of every commit that becomes durable afterwards.
5. What a transaction writes in pieces is seen whole or not at all; scans are opened before it or after it. A drop ends
   it between two pieces, and should the table stay, what was written of it is undone before anything else is done.
6. A share of a transaction is written once, also if the commit that has written it was said to have failed. So is a
   request that has a number, however often it comes.

What waits for a commit is in `write_queue`, what is being read in `open_scan`, what opens and closes its files in
`bucket_files`. This module knows no wire, no transport and no Arrow.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import trio

from scanner.errors import InternalError, ScannerError, SequenceInvalid, StoreClosed, StoreFailed
from scanner.server.counters import Activity
from scanner.server.tables.bucket_files import BucketFiles
from scanner.server.tables.images import BucketImage
from scanner.server.tables.log_pins import LogPins
from scanner.server.tables.open_scan import OpenScan, SourceT
from scanner.server.tables.snapshots import SnapshotHold, SnapshotPool, SnapshotRegistry
from scanner.server.tables.write_queue import (
    FORGOTTEN,
    PendingWrite,
    Settled,
    TransactionShare,
    WriteQueue,
    applied_share,
    settle,
)
from scanner.sources.past import SharedPast
from scanner.storage.transactions import AppliedShare
from scanner.storage.writers import AppliedRequest, RequestNumber, find_request
from scanner.tasks import acquired

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.commit_floor import CommitTimeFloor
    from scanner.sources.overlay import OverlayLimits
    from scanner.storage.interface import (
        Bucket,
        BucketSplit,
        GroupState,
        Mutation,
        PreparedCommit,
        SplitWish,
    )
    from scanner.tasks import RunBlocking

_logger = logging.getLogger(__name__)
_RECOVER_DELAY_S_MIN: Final = 1.0
_RECOVER_DELAY_S_MAX: Final = 60.0
"""How long a bucket that cannot take writes waits before it tries again."""


def _applied(transaction: TransactionShare, start: int, end: int) -> AppliedShare | None:
    """What the bucket remembers of a transaction once its share is written."""
    return None if transaction.version == FORGOTTEN else AppliedShare(transaction.version, start, end)


class ServedBucket:
    """One bucket of a running server.

    Args:
        bucket: Of the storage.
        config: Bounds of queue and commit.
        nursery: Runs the commits; must outlive the bucket's writes.
        run_blocking: Runs one commit.
        activity: Counts the commits.
        pool: Of the server, for its snapshots; None: one of its own.
        clock_us: Stamps the commits: microseconds since 1970 UTC. None: storage's own clock.
        floor: What commits are stamped later than; None: no floors are told.
        image: What whole scans read instead of its rows, if there is one; None: there never is.
        room: Held while storage is opened: makes room for its files. None: there always is.
    """

    def __init__(
        self,
        bucket: Bucket,
        config: ScannerConfig,
        nursery: trio.Nursery,
        run_blocking: RunBlocking,
        activity: Activity | None = None,
        pool: SnapshotPool | None = None,
        clock_us: Callable[[], int] | None = None,
        floor: CommitTimeFloor | None = None,
        image: BucketImage | None = None,
        room: Callable[[], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        self.storage = bucket
        self._floor = floor
        self._floor_us = 0
        self._clock_us = clock_us
        self.snapshots = SnapshotRegistry(
            bucket, pool or SnapshotPool(nursery, config.snapshots_max, config.snapshot_linger_s)
        )
        self.pins = LogPins()
        """What keeps its log."""
        self.image = image or BucketImage()
        """What whole scans read instead of its rows, if there is one."""
        self._files = BucketFiles(bucket, self.image, run_blocking, room, self.check_served)
        self._nursery = nursery
        self._run_blocking = run_blocking
        self.activity = activity or Activity()
        self._commits = trio.Lock()
        """Held by a commit, and by what must not run beside one."""
        self._writes = WriteQueue(config.write_queue_requests_max, config.commit_rows_max)
        self._committing = False
        self._at_work = False
        """Whether a commit has storage open, and must not lose it; one that waits for room for files has not."""
        self._writing = False
        """Whether a commit is being written; its thread moves the log's end, and nothing is closed or reopened."""
        self._stamped_us: float = math.inf
        """What the clock said when the commit under way was stamped, or its newest piece; infinity: none is stamped."""
        self._stamped_anew = trio.Event()
        """Set when that changes: the commit has ended, or another piece is stamped."""
        self._commits_ended = 0
        self._way: trio.Event | None = None
        """Set when storage was closed between two commits for others; None: nobody waits for that."""
        self._cut_off = False
        """Whether storage has pieces of a share that a drop has ended: it goes with them, or is opened anew first."""
        self._scans: set[OpenScan[Any]] = set()
        self.point_reads = 0
        """Those that run: each holds storage open."""
        self._on_commit: dict[object, Callable[[], None]] = {}
        self._pasts: WeakValueDictionary[tuple[int, int], SharedPast] = WeakValueDictionary()
        """By opening of storage and offset, while a scan as of it is open."""
        self.storage_openings = 0
        """How often storage was opened anew after a failure: what was read of it before may not be there any more."""
        self.log_freed = 0
        """How often the disk that changes took which were cut was given back."""
        self.commits_begun = 0
        """How many commits were begun, also those that change only what is remembered, as of reader groups."""
        self._idle = trio.Event()
        self._retired_by: ScannerError | None = None
        self.used_at = trio.current_time()
        """When storage was last used for anything but a scan that is open, and upkeep."""
        self.written_at = -math.inf
        """When a write was last queued."""
        self._recover_at = 0.0
        self._recover_delay_s = _RECOVER_DELAY_S_MIN

    @property
    def is_open(self) -> bool:
        """Whether its files are open, and not just being opened."""
        return not (self.storage.idle or self._files.under_way)

    @property
    def commit_time_floor_us(self) -> int:
        """Every commit that is not durable yet is later, in microseconds since 1970 UTC. 0: nothing is known."""
        if not self._writes.taken:  # A commit under way has its times from before.
            self._raise_floor()
        return max(self._floor_us, self.storage.newest_commit_us)

    def _raise_floor(self) -> int:
        """Take the directory's floor; not after a failure: the commit that failed may yet turn out to be durable."""
        if self._floor is not None and self.storage.failure is None:
            self._floor_us = self._floor.floor_us
        return self._floor_us

    async def wait_stamped_before(self, time_us: int) -> None:
        """Wait until every commit that is older than a time, which has passed, is in the log.

        Commits that begin later have later times, those of a later server, too: the floor is raised for that, unless
        the disk refuses. So what the log tells of that time then, it tells for ever.

        Args:
            time_us: Microseconds since 1970 UTC, by the clock that stamps the commits.

        Raises:
            ScannerError: The bucket is retired, or cannot be opened again; this says why.
            StoreFailed: A commit that has failed may be older, and is kept from readers.

        Waits:
            For the commit that runs now, if one does, or for the next piece of a share that changes something: a time
            between two of them means the first. For storage, if that was closed meanwhile, or a commit has failed and
            may be there; for the disk, if the time is newer than the commits.

        Cancellation:
            No effect.
        """
        if self._floor is not None and self.storage.newest_commit_us < time_us:
            await self._floor.cover(time_us)
        ended = self._commits_ended
        while self._stamped_us < time_us and self._commits_ended == ended:
            await self._stamped_anew.wait()
            self.check_served()
            await self.wake()
        if not self.storage.readable and self.storage.newest_commit_us < time_us:
            async with self.between_commits():
                pass  # It is open anew, and shows whether the commit that has failed is there all the same.
        if self.storage.newest_commit_us < time_us:
            self._require_known("what is older than that time")

    def _require_known(self, what: str) -> None:
        if self.storage.hides:
            raise StoreFailed(
                "a write has failed, and whether it is there all the same shows when the bucket takes writes again;"
                f" until then it is not known {what}"
            )

    @property
    def open_scans(self) -> tuple[OpenScan[Any], ...]:
        """Scans that are not closed, parked ones included, in no order."""
        return tuple(self._scans)

    @asynccontextmanager
    async def between_commits(self, *, upkeep: bool = False) -> AsyncIterator[None]:
        """Run the block while no commit runs, so that `storage` shows one state, all of it durable.

        Args:
            upkeep: The server does that from time to time, for nobody: an open bucket is no less unused for it.

        Raises:
            ScannerError: The bucket is retired; this says why.

        Waits:
            For the commit that runs now, if one does.

        Cancellation:
            The block does not run.
        """
        await self._acquire_open(upkeep=upkeep)
        try:
            if not self.storage.readable:
                await self._reopen(writable=False)
                self.check_served()  # Who retires it has ended the scans that there were.
            yield
            if not upkeep:
                self.used_at = trio.current_time()
        finally:
            self._commits.release()

    async def _acquire_open(self, *, upkeep: bool) -> None:
        """Take the lock of commits with storage open.

        Nobody who holds the lock waits for room for files: whoever makes it may be waiting for a commit of this bucket.
        """
        while True:
            self.check_served()
            await self.wake(upkeep=upkeep)
            await acquired(self._commits)
            try:
                self.check_served()
                if not self._files.closed and not self._cut_off:
                    return
            except BaseException:
                self._commits.release()
                raise
            self._commits.release()  # It was closed again meanwhile, or there is something to undo.

    @asynccontextmanager
    async def beside_commits(self) -> AsyncIterator[None]:
        """Run the block, which does not suspend, with storage open; a commit may be written beside it.

        Only the log may be read, up to `log_end`: that much is durable. A snapshot would show rows that are not yet.

        Raises:
            ScannerError: The bucket is retired; this says why.

        Waits:
            For whatever else must not run beside a commit, and for storage if it is not open.

        Cancellation:
            The block does not run.
        """
        if self._writing and self.storage.readable:
            self.check_served()
            yield
        else:
            async with self.between_commits():
                yield

    async def split(self, wish: SplitWish, key_range: KeyRange) -> BucketSplit:
        """See `scanner.storage.interface.Bucket.split`.

        Raises:
            ScannerError: The bucket is retired, or cannot be read.

        Waits:
            For storage; commits go on meanwhile.

        Cancellation:
            Waits for storage.
        """
        async with self.beside_commits():  # It is open and readable now.
            known = self.image.pieces(self.storage.log_end)
        return await self._run_blocking(functools.partial(self.storage.split, wish, key_range, known))

    async def recover(self, *, at_once: bool = False) -> None:
        """Try to take writes again, if one has failed. If that fails too, scans are still served.

        Each try parks what runs, so the next one is due later and later, until a write was taken.

        Args:
            at_once: Try also if it is not due: something has changed.

        Raises:
            ScannerError: Nothing can be read.

        Waits:
            For the commit that runs now, if one does, and for storage.
        """
        if self.storage.failure is None or not (at_once or trio.current_time() >= self._recover_at):
            return
        async with self._commits:
            if self._retired_by is None and self.storage.failure is not None:
                self._recover_at = trio.current_time() + self._recover_delay_s
                self._recover_delay_s = min(2 * self._recover_delay_s, _RECOVER_DELAY_S_MAX)
                await self._reopen(writable=True)

    async def wake(self, *, upkeep: bool = False) -> None:
        """Open storage that was closed for being idle, and anew if it has pieces that are to be undone.

        Args:
            upkeep: See `between_commits`; opening is a use all the same.

        Raises:
            TooManyFiles: There is no room for its files.
            ScannerError: It cannot be opened, or the bucket is retired; this says why.

        Waits:
            For room, and for storage.
        """
        if self.storage.idle or not upkeep:
            self.used_at = trio.current_time()
        await self._files.open()
        self.check_served()  # The table may have been dropped meanwhile.
        if self._cut_off:
            async with self._commits:
                self.check_served()
                if self._cut_off:
                    await self._reopen(writable=True)

    async def fetch(self, read: Callable[[], None]) -> None:
        """Run what a scan has to read from the disk."""
        await self._run_blocking(read)

    async def close_idle(self, idle_s: float) -> None:
        """Close storage and image until the bucket is used again, if it was not for a while and no scan reads it.

        Args:
            idle_s: For how long, seconds.

        Waits:
            For storage.
        """
        if not self._is_idle(idle_s):
            return
        async with self._commits:
            if self._is_idle(idle_s):
                await self._files.close()

    async def close_unused(self) -> None:
        """Close storage and image as `close_idle` does, unless something must not run beside that now.

        Snapshots that linger go with them: nobody may come back for them.

        Waits:
            For storage. Never for users of the bucket: they may be waiting for the caller.
        """
        if not (self._is_held or self._writes.unsettled or self._commits.locked()):
            self.snapshots.clear()
            await self.close_idle(0)

    @property
    def only_written(self) -> bool:
        """Whether it is used for writes alone: storage could be closed when they are done, unless one has failed."""
        if self._is_read or not self.is_open or self.storage.failure is not None:
            return False
        return self._at_work or (self._retired_by is None and self._writes.unsettled)

    @property
    def unwritten(self) -> bool:
        """Whether nothing was ever written to it, nothing is being written, and no write may have succeeded unseen."""
        return not (self.storage.log_end or self._writes.unsettled or self.storage.failure)

    @property
    def _is_read(self) -> bool:
        return self._is_held or bool(self.snapshots.lingering)

    @property
    def _is_held(self) -> bool:
        """Whether somebody reads it; who read what lingers may come back, or not."""
        held = len(self.snapshots) > len(self.snapshots.lingering)
        return held or bool(self.point_reads) or any(not scan.parked for scan in self._scans)

    def _is_idle(self, idle_s: float) -> bool:
        busy = self._is_read or self._writes.unsettled or self.storage.idle
        return not busy and trio.current_time() - self.used_at >= idle_s

    async def give_way(self) -> None:
        """Have storage closed behind the commit that is under way, though more may be queued; of a bucket in use.

        What is queued waits for room for files then, as others do. Unless it is read by then.

        Waits:
            For that commit, unless it waits for room itself.

        Cancellation:
            It is closed all the same.
        """
        if not self._at_work:
            await self._close_for_others()
            return
        if self._way is None:
            self._way = trio.Event()
        await self._way.wait()

    async def _reopen(self, *, writable: bool) -> None:
        """Park what runs, and open storage anew. No commit runs.

        Tails look whether there is more: the commit that failed may turn out to be durable.
        """
        for scan in self.open_scans:
            if not scan.parked:
                scan.park()
        self.snapshots.close()
        self.storage_openings += 1
        await self._run_blocking(functools.partial(self.storage.reopen, writable=writable))
        self._cut_off = False
        self.wake_tails()

    def past_of(self, log_offset: int, limits: OverlayLimits) -> SharedPast:
        """What changes since an offset have undone, for all scans as of it."""
        # What was read before storage was opened anew may have been lost.
        key = (self.storage_openings, log_offset)
        past = self._pasts.get(key)
        if past is None:
            past = self._pasts[key] = SharedPast(self.storage, log_offset, limits)
        return past

    async def wait_room(self) -> None:
        """Wait until the queue of writes has room.

        Waits:
            For a commit to take some of them.

        Cancellation:
            No effect.
        """
        await self._writes.wait_room()

    def submit(
        self,
        mutations: Sequence[Mutation],
        when_settled: Callable[[], None] | None = None,
        group_states: Mapping[str, GroupState | None] | None = None,
        transaction: TransactionShare | None = None,
        number: RequestNumber | None = None,
        refusal: ScannerError | None = None,
    ) -> PendingWrite:
        """Queue a write; its turn comes after those submitted before.

        Args:
            mutations: What to write.
            when_settled: Called once, when it is durable or has failed.
            group_states: What becomes of reader groups, by name, in the same commit; None: it is forgotten.
            transaction: What the bucket remembers from the same commit on that it has applied.
            number: Of the request. A duplicate of one that was applied is settled with the original offsets.
            refusal: What the request fails with if it is no such duplicate; None: it is written.

        Raises:
            StoreFailed: A commit that has failed may yet show what is stored of the groups.
            ScannerError: The bucket is retired; this says why.
        """
        if group_states:
            # They go by those of now; storage could show newer ones, and take writes, before this is written.
            self._require_known("what is stored of its reader groups")
        return self._enqueue(
            PendingWrite(mutations, Settled(when_settled), group_states or {}, transaction, number, refusal)
        )

    def submit_pieces(
        self, pieces: Generator[Sequence[Mutation], None, None], transaction: TransactionShare
    ) -> PendingWrite:
        """Queue the share of a transaction that is too much for one commit. Nobody sees a part of it.

        No scan is opened while it is written. If it fails, it is undone.

        Args:
            pieces: The share, in order; they are read in a worker thread.
            transaction: Whose share it is.

        Raises:
            ScannerError: The bucket is retired; this says why.
        """
        return self._enqueue(PendingWrite((), Settled(), transaction=transaction, pieces=pieces))

    def forget_transaction(self, name: str) -> PendingWrite:
        """Queue that the bucket forgets what it has applied of a transaction.

        Raises:
            ScannerError: The bucket is retired; this says why.
        """
        return self._enqueue(PendingWrite((), Settled(), transaction=TransactionShare(name, FORGOTTEN)))

    def _enqueue(self, write: PendingWrite) -> PendingWrite:
        self.check_served()
        self.written_at = trio.current_time()
        self._writes.append(write)
        if not self._committing:
            self._committing = True
            self._nursery.start_soon(self._commit_queued)
        return write

    def admit(self, source: SourceT, hold: SnapshotHold | None = None) -> OpenScan[SourceT]:
        """Take a source, made between two commits, for one of this bucket's scans.

        Args:
            source: The scan's own from now on.
            hold: What the source reads; the scan's own from now on.
        """
        scan = OpenScan(self, source, hold)
        self._scans.add(scan)
        return scan

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called after each commit that made changes, and by `wake_tails`; it does not wait.

        Returns:
            Ends that; idempotent.
        """
        key = object()
        self._on_commit[key] = callback

        def end() -> None:
            self._on_commit.pop(key, None)

        return end

    def wake_tails(self) -> None:
        """Have the scans that wait for a commit look whether there is something to say."""
        for callback in tuple(self._on_commit.values()):
            callback()

    def forget(self, scan: OpenScan[Any]) -> None:
        """A scan of this bucket has been closed."""
        self._scans.discard(scan)
        if not self._scans:
            self._idle.set()

    def serve_again(self) -> None:
        """Take back `retire`: storage did not let the bucket go."""
        self._retired_by = None

    def refuse(self, reason: ScannerError) -> None:
        """Refuse new scans and writes with `reason` from now on; `retire` comes next."""
        self._retired_by = reason

    async def retire(self, reason: ScannerError) -> None:
        """End every scan with `reason`, refuse new ones, and let no commit be under way.

        Waits:
            Until the scans are closed, what was submitted is settled, and nobody is opening its files.

        Cancellation:
            The bucket stays retired; scans may still be open.
        """
        self.refuse(reason)
        for scan in list(self._scans):
            scan.end(reason)
        async with self._commits:
            self._writes.fail_waiting(reason)
            self._writes.wake_waiters()
        for write in list(self._writes.taken):
            await write.settled.wait()
        while self._scans:
            self._idle = trio.Event()
            await self._idle.wait()
        await self._files.settled()
        self.snapshots.close()

    def check_served(self) -> None:
        """See that the bucket is not retired.

        Raises:
            ScannerError: It is; this says why.
        """
        retired_by = self._retired_by  # A thread may ask, too.
        if retired_by is not None:
            raise type(retired_by)(retired_by.message)

    async def _commit_queued(self) -> None:
        """Commit until the queue is empty: a task for as long as there is something to write."""
        try:
            while self._writes:
                await self._commit(self._writes.take())
                if self._way is not None:
                    await self._close_for_others()
        finally:
            self._committing = False
            self._writes.taken = []
            self._end_way()
            # Only if the server goes down first.
            self._writes.fail_waiting(StoreClosed("the server went down before the write; it was not done"))

    async def _close_for_others(self) -> None:
        """Between two commits: otherwise a writer without a pause would keep the bucket's files from all others."""
        async with self._commits:
            if not self._is_read and not self._at_work and self._retired_by is None:
                await self._files.close()
        self._end_way()

    def _end_way(self) -> None:
        if self._way is not None:
            self._way.set()
            self._way = None

    async def _commit(self, writes: list[PendingWrite]) -> None:
        error: ScannerError = StoreClosed("the server went down during the write; it may not have been done")
        started_at, commits_before = trio.current_time(), self.commits_begun
        try:
            if writes[0].pieces is not None:
                await self._commit_pieces(writes[0], writes[0].pieces)
            else:
                await self._commit_together(writes)
            if any(write.offsets is not None and write.offsets[0] < write.offsets[1] for write in writes):
                self.wake_tails()
            for write in writes:
                write.settled.set()
            self._recover_delay_s = _RECOVER_DELAY_S_MIN
            if self.commits_begun > commits_before:  # Else all of it had been committed before.
                self.activity.commits.observe(trio.current_time() - started_at)
        except ScannerError as failure:
            # What a drop has ended has not failed.
            self.activity.commits_failed += self._retired_by is None
            error = failure
        except Exception as failure:
            self.activity.commits_failed += 1
            _logger.exception("a commit of %d writes failed in an unforeseen way", len(writes))
            error = InternalError(
                f"the commit failed ({type(failure).__name__}); the server's log has the details"
            )
        finally:
            self._at_work = False
            self._commits_ended += 1
            self._stamp(math.inf)
            settle(writes, error)

    async def _commit_together(self, writes: list[PendingWrite]) -> None:
        await self.wake()  # Storage would open itself, whether there is room for its files or not.
        self._at_work = True
        # Before the disk is asked for room: what was applied needs none.
        writes = self._not_applied(writes)
        if not writes:
            return
        prepared = await self._prepare([each.mutations for each in writes], self._raise_floor())
        # Storage that was opened anew knows by now what a commit that failed has left all the same.
        fresh = self._not_refused(self._not_applied(writes))
        if len(fresh) < len(writes):
            if fresh:
                await self._commit_together(fresh)
            return
        groups = {name: state for write in writes for name, state in write.group_states.items()}
        applied = {
            write.transaction.name: _applied(write.transaction, *prepared.offsets[index])
            for index, write in enumerate(writes)
            if write.transaction is not None and index not in prepared.refusals
        }
        requests: dict[bytes, list[AppliedRequest]] = {}
        for index, write in enumerate(writes):
            if write.number is not None and index not in prepared.refusals:
                writer_id, sequence, check = write.number
                request = AppliedRequest(sequence, *prepared.offsets[index], check)
                requests.setdefault(writer_id, []).append(request)
        # Only the write and its sync keep scans from being opened.
        async with self.between_commits():
            self.commits_begun += 1
            self._writing = True
            try:
                await self._run_blocking(
                    functools.partial(self.storage.commit_prepared, prepared, groups, applied, requests)
                )
            finally:
                self._writing = False
        for index, (write, offsets) in enumerate(zip(writes, prepared.offsets, strict=True)):
            write.offsets, write.error = offsets, prepared.refusals.get(index)
            if write.error is None:
                self.activity.commit_writes += bool(write.mutations)
                self.activity.commit_rows += len(write.mutations)

    def _not_applied(self, writes: list[PendingWrite]) -> list[PendingWrite]:
        """Those that are to be written; the others are settled."""
        fresh = []
        for write in writes:
            if self._was_applied(write):
                write.settled.set()
            else:
                fresh.append(write)
        return fresh

    @staticmethod
    def _not_refused(writes: list[PendingWrite]) -> list[PendingWrite]:
        """Those that are to be written, of writes that were not applied; the others are settled."""
        fresh = []
        for write in writes:
            if write.refusal is None:
                fresh.append(write)
            else:
                write.error = write.refusal
                write.settled.set()
        return fresh

    def _was_applied(self, write: PendingWrite) -> bool:
        """Whether the bucket has applied it before, and it has its offsets, or it comes too late, and has its error."""
        if write.number is not None:
            return self._came_before(write, write.number)
        if write.transaction is None or write.transaction.version == FORGOTTEN:
            return False
        share = applied_share(self.storage.applied_shares, write.transaction)
        if share is not None:
            write.offsets = (share.start, share.end)
        return share is not None

    def _came_before(self, write: PendingWrite, number: RequestNumber) -> bool:
        try:
            request = find_request(self.storage.requests_of(number.writer_id), number)
        except SequenceInvalid as too_late:
            write.error = too_late
            return True
        if request is None:
            return False
        write.offsets = (request.start, request.end)
        self.activity.duplicate_writes += 1
        return True

    async def _commit_pieces(
        self, write: PendingWrite, pieces: Generator[Sequence[Mutation], None, None]
    ) -> None:
        assert write.transaction is not None
        async with self.between_commits():
            if self._was_applied(write):
                pieces.close()
                return
            self.commits_begun += 1
            self._at_work = self._writing = True
            took_writes = self.storage.failure is None
            try:
                try:
                    write.offsets = await self._apply_pieces(pieces, write.transaction)
                finally:
                    self._writing = False
                    pieces.close()  # It may hold a snapshot, and files.
            except Exception:
                # What was written of it is undone, here and now or when storage takes writes again: nothing can be
                # read before. That takes as long as writing it, so a drop does not wait for it.
                if self._retired_by is not None:
                    self._cut_off = True
                elif took_writes:
                    with suppress(ScannerError):
                        await self._reopen(writable=True)
                raise

    async def _apply_pieces(
        self, pieces: Generator[Sequence[Mutation], None, None], transaction: TransactionShare
    ) -> tuple[int, int]:
        """Write a share piece by piece, invisibly, and show it with the last commit.

        Raises:
            ScannerError: Storage has failed, or the bucket is retired meanwhile; a part may be written.
        """
        # The same for all pieces: a floor that is told meanwhile must be below all of their times.
        after_us = self._raise_floor()
        start, rows = self.storage.log_end, 0
        while (piece := await self._run_blocking(functools.partial(next, pieces, None))) is not None:
            self.check_served()
            waiting = [piece] if len(piece) else []
            while waiting:
                part = waiting.pop()
                prepared = await self._prepare([part], after_us)
                if prepared.refusals:
                    # With what it replaces it is too much for one entry; one mutation never is.
                    waiting += (part[len(part) // 2 :], part[: len(part) // 2])
                    continue
                await self._run_blocking(
                    functools.partial(self.storage.commit_prepared, prepared, unfinished=True)
                )
                rows += len(part)
        # It has no time of its own: the last piece's counts until it is shown.
        last = await self._prepare([], after_us)
        applied = {transaction.name: _applied(transaction, start, last.start)}
        await self._run_blocking(functools.partial(self.storage.commit_prepared, last, applied=applied))
        # Not piece by piece: of a share that fails all is undone, and written again.
        self.activity.commit_writes += bool(rows)
        self.activity.commit_rows += rows
        return start, last.start

    async def _prepare(self, groups: list[Sequence[Mutation]], after_us: int) -> PreparedCommit:
        clock_us = None if self._clock_us is None else self._clock_us()
        if self._stamped_us == math.inf:
            self._stamp(clock_us or 0)
        prepared = await self._run_blocking(
            functools.partial(self.storage.prepare, groups, clock_us, after_us)
        )
        # A later piece that changes nothing has no time: the one before it may be the last of its share.
        if any(start < end for start, end in prepared.offsets):
            self._stamp(clock_us or 0)
        return prepared

    def _stamp(self, clock_us: float) -> None:
        self._stamped_us = clock_us
        self._stamped_anew.set()
        self._stamped_anew = trio.Event()
