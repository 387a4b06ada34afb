"""A table scan: the scans of its buckets, merged into one sequence of batches.

Invariants:

1. Every bucket of the plan is scanned once, or the scan fails; one failing bucket ends the others. A bucket
   that is cut goes on by itself first, as often as the plan or the client allows.
2. What the consumer has to hold is bounded: by push, the buckets' shares of the credit add up to no more than the
   credit (a byte each at least); by pull, by the page depth. A bucket gives its share back, to one that has not
   begun, when its last batch is consumed.
3. With a row limit, exactly so many rows come out if there are as many; then every stream is reset at once.
4. Leaving the block, however, ends every stream before it is left.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
import trio

from scanner.client.arguments import EPOCH
from scanner.client.connection import Connection
from scanner.client.retries import Attempts
from scanner.client.scan.batch_queue import HandOff
from scanner.client.scan.columns import AskedColumns
from scanner.client.scan.credit import ScanCredit
from scanner.client.scan.fetch import LogFetcher
from scanner.client.scan.fetch_receiver import FetchOptions, FetchReceiver
from scanner.client.scan.key_pruning import ranges_to_read
from scanner.client.scan.page_receiver import PageReceiver
from scanner.client.scan.plan import EARLIEST, END, ScanMode, ScanPlan, ScanSource
from scanner.client.scan.pull import BucketFetcher, PageSource
from scanner.client.scan.push import BucketReceiver
from scanner.client.scan.push_receiver import PushReceiver
from scanner.client.scan.requests import bucket_query, fetch_position, fetch_query, open_request
from scanner.client.scan.resume_position import BucketPosition, position_of
from scanner.client.scan.session_receiver import SessionReceiver
from scanner.client.scan.statistics import BucketProgress, ScanStatistics
from scanner.client.scan.turns import Delivery
from scanner.data.digest import combine_digests
from scanner.data.keys import ALL_KEYS
from scanner.errors import ArgumentInvalid, ScannerError, SourceUnsupported
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.tasks import acquired, bare
from scanner.wire import methods
from transport import CreditPool, ReceiveCredit, StallTimes

BUCKETS_IN_PARALLEL_MAX: Final = 64
"""Buckets of one scan that are open at once; below the caps of a server, so that a wide table can be scanned."""

_ROW_BYTES_LIKELY: Final = 4096
"""What a row of a scan with a limit hardly exceeds on average."""
_PAGE_MODELS: Final = {
    ScanMode.TOKEN: pb.PAGE_MODEL_TOKEN,
    ScanMode.CURSOR: pb.PAGE_MODEL_CURSOR,
    ScanMode.ASOF: pb.PAGE_MODEL_ASOF,
}


class Batches:
    """The batches of a running scan: an asynchronous iterator for one consumer.

    A batch counts as consumed when the next one is asked for; only then is its credit given back. Its memory is the
    message that brought it and lives as long as the batch or a view of it does.
    """

    def __init__(self, plan: ScanPlan, growth: CreditPool) -> None:
        self._plan = plan
        self._progress = {
            bucket: BucketProgress(bucket=bucket, key_range=key_range)
            for bucket, key_range in ranges_to_read(plan).items()
        }
        self._positions: dict[int, int] = {}
        self._snapshot_ends: dict[int, int] = {}
        self._commit_time_floors_us: dict[int, int] = {}
        self._rows_left = plan.row_limit
        self._behind: dict[int, BucketPosition] = {}
        """By bucket, where it stands behind what was handed out of it; of the others their progress tells it."""
        if plan.resume_at is not None:
            for bucket, position in plan.resume_at.buckets:
                if bucket in self._progress:
                    self._go_on(self._progress[bucket], position)
        self._unread = [each for each in self._progress.values() if each.reason is None]
        if plan.resume_at is not None and self._limit_reached:
            self._unread = []
        # A tail does not end by itself, so none can wait for another one's end.
        most = len(self._unread) if plan.source.has_changes else BUCKETS_IN_PARALLEL_MAX
        self._parallel = max(1, min(len(self._unread), most))
        self._credit = ScanCredit(plan.credit_bytes, self._parallel, growth)
        limit = None if plan.source.has_changes else plan.row_limit
        self._few_rows = limit is not None and limit * _ROW_BYTES_LIKELY <= self._credit.bucket_bytes
        """Whether the credit of one bucket covers as many rows as are asked for, in all likelihood."""
        self._rows_wanted = self._rows_left
        self._hand_off = HandOff(producers=len(self._unread))
        self._has_changes = plan.source.has_changes
        # `statistics` may be asked for by another thread, which has no trio.
        self._clock = trio.lowlevel.current_clock()
        self._started_at = self._clock.current_time()
        self._tasks = trio.CancelScope()
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        """By bucket, what has come of commits whose end has not (`with_whole_commits`)."""
        self.bucket: int | None = None
        """The bucket that the newest batch is of; None: none has come."""

    def _go_on(self, progress: BucketProgress, position: BucketPosition) -> None:
        """Take where another run of this scan left a bucket."""
        bucket = progress.bucket
        progress.log_offset, progress.history = position.log_offset, position.history
        if position.reason is not None:
            progress.reason = position.reason
            progress.digest, progress.stored_bytes = position.digest, position.stored_bytes
        if self._rows_left is not None:
            self._rows_left = max(0, self._rows_left - position.rows)
        if position.commit_end is not None:
            self._positions[bucket] = position.commit_end
        if position.behind_snapshot:
            self._snapshot_ends[bucket] = position.log_offset
        if position.commit_time_floor_us is not None:
            self._commit_time_floors_us[bucket] = position.commit_time_floor_us
        progress.begun = position

    @property
    def _limit_reached(self) -> bool:
        # Each bucket is asked for the limit, so the others may have more to give. A single one ends by itself.
        return self._rows_left == 0 and len(self._progress) > 1

    def resume_position(self) -> str:
        """Where the scan stands, for `Scan.resume_at`: behind the batch that was handed out last, of all buckets.

        Before the first batch, between two of them, after an error, behind the end and when the block was left: the
        rest is what has not been handed out. A scan that goes on there in another process needs the state to be
        there still, so the changelog has to reach back to it, or a lease to keep it.

        Returns:
            Text, of a few hundred octets and a key for each bucket. To be kept together with what became of the rows.

        Raises:
            ArgumentInvalid: A tail (source LOG) has `positions`, and the scans of other modes than push and asof have
                none.
            SourceUnsupported: The server makes no resume tokens.
        """
        return self.position_text(self._behind)

    @property
    def behind(self) -> dict[int, BucketPosition]:
        """By bucket, where it stands behind what was handed out of it; for `position_text`."""
        return dict(self._behind)

    def position_text(self, behind: Mapping[int, BucketPosition]) -> str:
        """As `resume_position`, behind what another thread has handed out; any thread may ask."""
        plan = self._plan
        _check_resumable(plan, "resume_position()")
        begun = {}
        for progress in self._progress.values():
            position = behind.get(progress.bucket, progress.begun)
            if position is None:
                continue
            if position.rows and position.reason is None and not position.token:
                raise SourceUnsupported(
                    f"{self._name(progress)}: the server makes no resume tokens, so the scan has no position"
                )
            begun[progress.bucket] = position
        return position_of(plan, begun).text()

    @property
    def positions(self) -> dict[int, int]:
        """LOG and HYBRID: by bucket, the end of the last commit of which every change was handed out.

        A scan that begins there, with `start_at`, repeats and leaves out nothing. A bucket is missing as long as
        nothing is known of it: before its first commit, or in its snapshot.
        """
        return dict(self._positions)

    @property
    def snapshot_ends(self) -> dict[int, int]:
        """HYBRID: by bucket, the offset that its snapshot is as of, once all rows of that were handed out."""
        return dict(self._snapshot_ends)

    def watermark(self) -> datetime.datetime | None:
        """LOG and HYBRID: the time (UTC) at or below which all buckets are complete.

        Every change that passes the filter and was committed at that time or before it was handed out, of every
        bucket. It never goes back. Commits move it, and over buckets where nothing happens heartbeats do; without
        `_commit_timestamp` among the columns heartbeats alone. A bucket that reached its stop holds it where that is.

        Returns:
            None: of some bucket nothing is known yet, because neither a change nor a heartbeat with a time has come, or
            because it is in its snapshot. In mode fetch always: it has no heartbeats.
        """
        if len(self._commit_time_floors_us) < len(self._progress) or not self._progress:
            return None
        return EPOCH + datetime.timedelta(microseconds=min(self._commit_time_floors_us.values()))

    @property
    def schema_outdated(self) -> bool:
        """LOG and HYBRID, by push: whether the table has got columns since the scan began; a new scan has them.

        A scan that selects its columns would have the same ones again: of it this is False.
        """
        return not self._plan.columns and any(each.schema_outdated for each in self._progress.values())

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._plan.schema

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch; it has at least one row.

        Raises:
            StopAsyncIteration: Every bucket came to its proven end, or the limit is reached; now and for ever.
            ScannerError: The scan failed, now and for ever: what was delivered is right, but not all.
            trio.ClosedResourceError: The scan was left before its end.
            trio.BusyResourceError: Another task is waiting for a batch.

        Waits:
            For the next batch of any bucket.

        Cancellation:
            Loses and repeats nothing: a poll with a timeout can be repeated.
        """
        while True:
            batch = self._taken(await self._hand_off.take())
            if batch.num_rows:
                return batch

    def next_nowait(self) -> pa.RecordBatch:
        """As `__anext__`, but never waits.

        Raises:
            trio.WouldBlock: No batch is there; the one before counts as consumed all the same.
        """
        while True:
            batch = self._taken(self._hand_off.take_nowait())
            if batch.num_rows:
                return batch

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """Have a function called once, as soon as `next_nowait`, which would have blocked, should be tried again.

        Args:
            callback: Does not raise. None: nobody waits any more.
        """
        self._hand_off.when_ready(callback)

    def _taken(self, delivery: Delivery | None) -> pa.RecordBatch:
        """What a delivery brings, perhaps without rows."""
        if delivery is None:
            raise StopAsyncIteration
        batch = self._within_limit(delivery.batch)
        # A batch that the limit cuts does not bring what its position stands behind.
        if self._has_changes and batch.num_rows == delivery.batch.num_rows:
            batch = self._note_changes(delivery)
        # What is kept of a commit was not handed out.
        if delivery.behind is not None and not self._gathered.get(delivery.bucket):
            self._behind[delivery.bucket] = self._with_times(delivery.bucket, delivery.behind)
        if batch.num_rows:
            self.bucket = delivery.bucket
            self._progress[delivery.bucket].rows += batch.num_rows
        return batch

    def _with_times(self, bucket: int, position: BucketPosition) -> BucketPosition:
        """A position with what is known of the commits before it."""
        if not self._has_changes:
            return position
        return replace(
            position,
            commit_end=self._positions.get(bucket),
            commit_time_floor_us=self._commit_time_floors_us.get(bucket),
        )

    def _gather(self, delivery: Delivery) -> pa.RecordBatch:
        """What a delivery makes whole: nothing, if it ends inside a commit."""
        if self._plan.source is ScanSource.HYBRID and delivery.bucket not in self._snapshot_ends:
            return delivery.batch
        parts = self._gathered.setdefault(delivery.bucket, [])
        if delivery.batch.num_rows:
            parts.append(delivery.batch)
        if delivery.position is None:
            return delivery.batch.slice(0, 0)
        del self._gathered[delivery.bucket]
        return pa.concat_batches(parts) if len(parts) > 1 else parts[0] if parts else delivery.batch

    def _note_changes(self, delivery: Delivery) -> pa.RecordBatch:
        """Note how far a delivery brings its bucket; what of it is handed out."""
        if delivery.position is not None:
            self._positions[delivery.bucket] = delivery.position
        if delivery.snapshot_end is not None:
            self._snapshot_ends[delivery.bucket] = delivery.snapshot_end
        batch = self._gather(delivery) if self._plan.whole_commits else delivery.batch
        # What is kept may have commits that are whole, in front of the one that is not.
        if delivery.commit_time_floor_us is not None and not self._gathered.get(delivery.bucket):
            self._commit_time_floors_us[delivery.bucket] = delivery.commit_time_floor_us
        return batch

    def _within_limit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._rows_left is None:
            return batch
        batch = batch.slice(0, min(self._rows_left, batch.num_rows))
        self._rows_left -= batch.num_rows
        if batch.num_rows and self._limit_reached:
            self._tasks.cancel()
            self._hand_off.end()
        return batch

    def statistics(self) -> ScanStatistics:
        """What the scan did until now; may be asked for during and after the scan."""
        progress = [self._progress[bucket] for bucket in sorted(self._progress)]
        first_put_at = self._hand_off.first_put_at
        digests = [each.digest for each in progress if each.digest is not None]
        return ScanStatistics(
            rows=sum(each.rows for each in progress),
            digest=combine_digests(digests) if len(digests) == len(progress) else None,
            buckets=tuple(each.freeze() for each in progress),
            buckets_skipped=tuple(sorted(set(self._plan.buckets) - set(self._progress))),
            bytes_received=sum(each.bytes_received for each in progress),
            requests=sum(each.requests for each in progress),
            credit_messages=sum(each.credit_messages for each in progress),
            resumes=sum(each.resumes for each in progress),
            first_batch_s=None if first_put_at is None else first_put_at - self._started_at,
            overrun_bytes=max((each.overrun_bytes for each in progress), default=0),
            held_bytes_max=self._hand_off.held_bytes_max,
            stalls=self._hand_off.stalls.times(self._clock.current_time()),
            server_stalls=sum(
                (each.server_stalls for each in progress if each.server_stalls is not None), StallTimes()
            ),
        )

    async def _receive(self, connection: Connection) -> None:
        """Scan all buckets. Failures go to the hand-off, where the consumer meets them."""
        if self._plan.mode is ScanMode.FETCH:
            with self._tasks:
                await self._fetch(connection)
            return
        attempts = connection.attempts(self._plan.retries)
        # The first bucket may have all of a few rows. If not, the others follow at once: each wave costs a round trip.
        slots = trio.Semaphore(1 if self._few_rows else self._parallel)
        self._slots_kept = self._parallel - 1 if self._few_rows else 0
        with self._tasks:
            if len(self._unread) == 1:
                (progress,) = self._unread
                await self._receive_bucket(connection, progress, slots, attempts)
                return
            async with trio.open_nursery() as nursery:
                for number, progress in enumerate(self._unread):
                    await acquired(slots)
                    if number and self._has_all_wanted:
                        self._hand_off.finish(len(self._unread) - number)
                        break
                    nursery.start_soon(self._receive_bucket, connection, progress, slots, attempts)

    async def _receive_bucket(
        self,
        connection: Connection,
        progress: BucketProgress,
        slots: trio.Semaphore,
        attempts: Attempts,
    ) -> None:
        credit = self._credit.of_bucket()
        try:
            if self._plan.mode is ScanMode.PUSH:
                await self._push(connection, progress, credit, attempts.sibling())
            else:
                await self._pull(connection, progress, attempts.sibling())
        except (ScannerError, MemoryError, trio.ClosedResourceError) as error:
            self._hand_off.fail(error)
            self._tasks.cancel()
            return
        self._hand_off.finish()
        if len(self._unread) > BUCKETS_IN_PARALLEL_MAX:
            await self._hand_off.wait_consumed(progress.bucket)
            credit.close()
        for _ in range(1 + self._slots_kept):
            slots.release()
        self._slots_kept = 0

    @property
    def _has_all_wanted(self) -> bool:
        """Whether as many rows have come as the limit allows; the consumer may not have taken them yet."""
        return self._rows_wanted is not None and self._hand_off.rows >= self._rows_wanted

    async def _fetch(self, connection: Connection) -> None:
        """Fetch the changes of all buckets."""
        plan, progress = self._plan, self._progress
        receiver = FetchReceiver(
            plan.table.name,
            fetch_query(plan),
            plan.schema,
            [fetch_position(plan, bucket) for bucket in progress],
            progress,
            FetchOptions(min_bytes=plan.min_bytes, max_wait_s=plan.max_wait_s, bucket_bytes=plan.page_bytes),
            stop_at_end=plan.stop_at == END,
            row_limit=plan.row_limit,
        )
        fetcher = LogFetcher(
            connection,
            receiver,
            progress[plan.buckets[0]],
            self._hand_off,
            plan.page_depth,
            plan.max_wait_s,
            plan.table.name,
            connection.attempts(plan.retries),
        )
        try:
            await fetcher.run()
        except (ScannerError, MemoryError, trio.ClosedResourceError) as error:
            self._hand_off.fail(error)
            return
        self._hand_off.finish(len(progress))

    async def _push(
        self, connection: Connection, progress: BucketProgress, credit: ReceiveCredit, attempts: Attempts
    ) -> None:
        plan, what = self._plan, self._name(progress)
        receiver = PushReceiver(what, plan.schema, credit, progress, attempts.progress, self._columns())
        if progress.begun is not None:
            receiver.go_on_at(progress.begun)
        bucket = BucketReceiver(
            connection,
            open_request(plan, progress.bucket, progress.key_range),
            receiver,
            progress,
            self._hand_off,
            attempts,
            what,
            # With a stop, one bucket can wait for the end of another.
            lasting=plan.source.has_changes and plan.stop_at is None,
            # A second call needs a place at the server anew, which may be taken then.
            one_call=self._few_rows and attempts.wanted,
            batches_per_stream=plan.resume_every_batches,
        )
        await bucket.run()

    async def _pull(self, connection: Connection, progress: BucketProgress, attempts: Attempts) -> None:
        plan, what = self._plan, self._name(progress)
        path, source = self._page_source(progress, what)
        bucket = BucketFetcher(
            connection, path, source, progress, self._hand_off, plan.page_depth, what, attempts
        )
        await bucket.run()

    def _page_source(self, progress: BucketProgress, what: str) -> tuple[str, PageSource]:
        """The path of the plan's pull model, and what is asked for there."""
        plan, columns = self._plan, self._columns()
        query = bucket_query(plan, progress.bucket, progress.key_range)
        if plan.mode is ScanMode.SESSION:
            return methods.SCAN_SESSION, SessionReceiver(
                what, query, plan.page_bytes, plan.schema, progress, columns
            )
        model, as_of = _PAGE_MODELS[plan.mode], plan.as_of_bucket(progress.bucket)
        history = plan.histories.get(progress.bucket, b"")
        receiver = PageReceiver(
            what, model, query, plan.page_bytes, plan.schema, progress, as_of, history, columns
        )
        if progress.begun is not None:
            receiver.go_on_at(progress.begun)
        return methods.SCAN_PAGE, receiver

    def _columns(self) -> AskedColumns:
        """What is asked of one bucket."""
        progress, resumed = self._progress.values(), self._plan.resume_at is not None
        return AskedColumns(
            self._plan.schema.names, lambda: resumed or any(each.log_offset is not None for each in progress)
        )

    def _name(self, progress: BucketProgress) -> str:
        return f"{self._plan.table.name} bucket {progress.bucket}"


@asynccontextmanager
async def open_scan(connection: Connection, plan: ScanPlan) -> AsyncIterator[Batches]:
    """Run a table scan for the length of a block.

    Args:
        connection: To the server; it is shared with whatever else runs on it.
        plan: What to scan.

    Yields:
        The batches. Nothing has been waited for: a refusal by the server comes with the first batch asked for.

    Raises:
        SourceUnsupported: The pull models have no source but LIVE_KV, and mode fetch none but LOG.
        ResumeTokenInvalid: It is to go on at a position of another scan.
        ArgumentInvalid: `as_of` does not go with the mode or the source, or leaves out a bucket.

    Cancellation:
        Ends every stream.
    """
    reads = ScanSource.LOG if plan.mode.of_changes else ScanSource.LIVE_KV
    if plan.mode is not ScanMode.PUSH and plan.source is not reads:
        raise SourceUnsupported(
            f"mode {plan.mode.value} reads {reads.name} only, not {plan.source.name}; use mode push"
        )
    check_plan(plan)
    batches = Batches(plan, connection.credit_growth)
    try:
        async with bare(trio.open_nursery()) as nursery:
            nursery.start_soon(batches._receive, connection)
            try:
                yield batches
            finally:
                batches._hand_off.close()
                batches._tasks.cancel()
    finally:
        batches._credit.close()


def _check_as_of(plan: ScanPlan) -> None:
    if plan.as_of is None:
        return
    if plan.source not in (ScanSource.LIVE_KV, ScanSource.HYBRID):
        own = "begins where start_at says" if plan.source is ScanSource.LOG else "has a state of its own"
        raise ArgumentInvalid(f"as_of is for sources LIVE_KV and HYBRID; {plan.source.name} {own}")
    if plan.mode not in (ScanMode.PUSH, ScanMode.ASOF):
        raise ArgumentInvalid(
            f"mode {plan.mode.value} reads what is there now, not as of an offset; use mode push or asof"
        )
    for bucket in plan.buckets:
        plan.as_of_bucket(bucket)


def check_plan(plan: ScanPlan) -> None:
    """See that the state that a scan is of, and where it begins and ends, go with its source and its mode.

    Raises:
        ArgumentInvalid: They do not.
        ResumeTokenInvalid: The scan is another one than the one whose position it is to go on at.
    """
    _check_as_of(plan)
    if plan.resume_at is not None:
        _check_resumable(plan, "resume_at()")
        plan.resume_at.require_of(plan)
    if plan.whole_commits:
        _check_whole_commits(plan)
    if plan.source is not ScanSource.LOG and plan.start_at != EARLIEST:
        raise ArgumentInvalid(f"start_at is for source LOG; {plan.source.name} begins with a state (as_of)")
    if not plan.source.has_changes:
        if plan.stop_at is not None:
            raise ArgumentInvalid(f"stop_at is for sources LOG and HYBRID; {plan.source.name} ends by itself")
        return
    if plan.key_range != ALL_KEYS:
        raise ArgumentInvalid(
            f"a key range goes with the rows of a table, not with source {plan.source.name}"
        )
    for bucket in plan.buckets:
        plan.log_start_of(bucket)
        plan.log_stop_of(bucket)


def _check_resumable(plan: ScanPlan, call: str) -> None:
    if plan.source is ScanSource.LOG:
        raise ArgumentInvalid(
            f"{call} is for scans that begin with a state; one of source LOG goes on with start_at(batches.positions)"
        )
    if plan.mode not in (ScanMode.PUSH, ScanMode.ASOF):
        raise ArgumentInvalid(
            f"{call} is for modes push and asof: mode {plan.mode.value} cannot go on in the same state elsewhere"
        )


def _check_whole_commits(plan: ScanPlan) -> None:
    if not plan.source.has_changes:
        raise ArgumentInvalid(
            f"with_whole_commits is for sources LOG and HYBRID; {plan.source.name} has no commits"
        )
    if plan.group:
        raise ArgumentInvalid("a reader of a group takes batches as they come; leave with_whole_commits away")
    if plan.mode is not ScanMode.PUSH:
        raise ArgumentInvalid(f"mode {plan.mode.value} hands out what an answer brings; use mode push")
    if plan.row_limit is not None:
        raise ArgumentInvalid("a limit ends inside a commit; end the scan with stop_at instead")
