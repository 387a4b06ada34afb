"""A reader of a group: the scans of the buckets that are its own now, one sequence of batches, and its positions.

Invariants:

1. A bucket is read by the epoch of its newest assignment, from the position that came with it. What another epoch has
   brought, and was not handed out, is dropped.
2. What is stored is what was handed out, by the epoch that it was handed out for: a position of a bucket that another
   reader has since is refused by the server, and told.
3. A membership that is lost is begun anew, with every bucket that it had: none is read without one.
4. A bucket that is to move is read no further, and is given back as soon as nothing of it is left to commit.
5. Leaving the block, however, leaves the group.
6. A reader with a stop has ended well when what waits was handed out, too: a bucket that is lost before that is read
   anew if it comes back, and one that comes before that is read.
7. What the filter passes over is stored without `commit`, and never behind what was handed out and is not stored.
"""

from __future__ import annotations

import functools
import math
import platform
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import trio

from scanner.client.arguments import offsets_by_bucket, require_kind
from scanner.client.calls import call_unary, require_about
from scanner.client.connection import Connection, Lasting
from scanner.client.failures import translated
from scanner.client.retries import Attempts, retried
from scanner.client.scan.batch_queue import HandOff
from scanner.client.scan.credit import START_BYTES_MAX
from scanner.client.scan.group_positions import GroupPositions, Handed
from scanner.client.scan.plan import ScanMode, ScanPlan, ScanSource
from scanner.client.scan.push import BucketReceiver
from scanner.client.scan.push_receiver import PushReceiver
from scanner.client.scan.requests import open_request
from scanner.client.scan.statistics import BucketProgress
from scanner.client.scan.table_scan import check_plan
from scanner.errors import (
    ArgumentInvalid,
    GroupEpochStale,
    InternalError,
    OffsetOutOfRange,
    ScannerError,
    ServerUnavailable,
    SourceUnsupported,
    error_row_of_reason,
)
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.tasks import bare, run_with_companion
from scanner.wire import methods
from scanner.wire.answers import parse_answer
from scanner.wire.seals import sealed
from transport import ReceiveCredit, Stream

_INSTANCE_BYTES: Final = 16
_ALIVE_PER_SESSION: Final = 3
_SESSION_S_UNKNOWN: Final = 30.0
"""Until the server has said how long a member may be silent."""
_AUTO_COMMIT_INTERVAL_S: Final = 1.0
"""How often positions are stored by themselves while batches come one after another; with auto_commit at once when none
waits."""
_LEAVE_TIMEOUT_S: Final = 1.0
"""How long leaving waits until the server knows. It finds out anyway."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A bucket that is this reader's now."""

    bucket: int
    epoch: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of the scan."""
    moving: bool = False
    """It is to be given back."""
    done: bool = False
    """Its scan has come to its stop."""
    furthest: int | None = None
    """The position that is stored, or may be, as far as is known: one before it goes back. None: none is known."""
    progress: BucketProgress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = BucketProgress(bucket=self.bucket)


class GroupBatches:
    """The batches of a reader of a group: an asynchronous iterator for one consumer. Made by `GroupScan.execute`.

    A batch counts as consumed when the next one is asked for. It counts as dealt with when its position is stored
    (`commit`): what was handed out and not stored comes again, to this reader or to another.

    Args:
        plan: What to read.
        connection: To the server.
    """

    def __init__(self, plan: ScanPlan, connection: Connection) -> None:
        self._plan = plan
        self._connection = connection
        self._what = f"reader group {plan.group} of {plan.table.name}"
        self._instance = secrets.token_bytes(_INSTANCE_BYTES)
        self._hand_off = HandOff(producers=1)
        self._rows_left = plan.row_limit
        self._tasks = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._block: trio.Nursery | None = None
        """Runs what lasts as long as the block; None: that was left."""
        self._seats: dict[int, _Seat] = {}
        self._positions = GroupPositions()
        self._releases: dict[int, _Seat] = {}
        """By bucket, what is to be given back: once, though the server assigns it again until it has heard of it."""
        self._more = False
        """Whether more buckets may be on their way."""
        self._schema_outdated = False
        """As the scans that are over were told."""
        self._to_say = trio.Event()
        self._session_s = _SESSION_S_UNKNOWN
        self._finished = False
        self._leaving = False
        self._left = trio.Event()
        """Set when the server knows that this reader has left, or nothing will be said to it any more."""
        self._committed_at = trio.current_time()
        self._storing = trio.Lock()
        """Held while positions are on their way: of two commits the later one counts."""
        self._stored = trio.Event()
        """Not set while positions are on their way that a batch waits for, or that were passed over."""
        self._stored.set()
        self._not_stored: Exception | None = None
        """Why they are not stored, until somebody is told."""
        self._retry_at = -math.inf
        """When what was passed over may be stored again."""
        self._got: Mapping[int, int] | None = None
        """What to store at the end; None: what was handed out."""
        self.member = plan.member or _member_name()
        """Names this reader within the group."""
        self.bucket: int | None = None
        """The bucket that the newest batch is of; None: none has come."""
        self.epoch: int | None = None
        """The epoch that the newest batch is of: a sink that stores it with the bucket, and refuses a smaller one, is
        safe from readers that were taken for dead. None: none has come."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._plan.schema

    @property
    def positions(self) -> dict[int, int]:
        """By bucket, the end of the last commit of which every change was handed out, since it is this reader's."""
        return self._positions.ends

    @property
    def assigned(self) -> dict[int, int]:
        """The buckets that are this reader's now, and the epoch of each. Those that are about to move are not."""
        return {bucket: seat.epoch for bucket, seat in sorted(self._seats.items()) if not seat.moving}

    @property
    def schema_outdated(self) -> bool:
        """Whether the table has got columns since the reader began; one that begins now has them.

        A reader that selects its columns would have the same ones again: of it this is False.
        """
        seats = list(self._seats.values())  # Another thread may ask than the one that changes them.
        told = self._schema_outdated or any(seat.progress.schema_outdated for seat in seats)
        return told and not self._plan.columns

    def __aiter__(self) -> GroupBatches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch of any bucket that is this reader's; it has at least one row.

        Raises:
            StopAsyncIteration: Every bucket that is this reader's came to its stop, and none is on its way to it; or
                the limit is reached. Now and for ever.
            GroupEpochStale: Another reader has joined under this one's name.
            TableNotFound: The table was dropped, though its name may have gone to another one.
            OffsetOutOfRange: Retention has passed the position of a bucket.
            SnapshotLost: The position of a bucket is of another history of it.
            ScannerError: The scan failed, now and for ever.
            trio.ClosedResourceError: The scan was left before its end.
            trio.BusyResourceError: Another task is waiting for a batch.

        Waits:
            For the next batch, through moves and reconnections; with auto_commit, first for the positions to be stored.

        Cancellation:
            Loses and repeats nothing: a poll with a timeout can be repeated.
        """
        while True:
            await self._commit_if_due()
            with trio.move_on_after(self._due_in_s) as due:
                delivery = await self._hand_off.take()
            if due.cancelled_caught:
                continue
            if delivery is None:
                await self._wait_stored()
                self._begin_storing(self._commit_passed_over)
                await self._wait_stored()
                raise StopAsyncIteration
            seat = self._seats.get(delivery.bucket)
            if seat is None or seat.moving or seat.epoch != delivery.epoch:
                continue
            batch = self._within_limit(delivery.batch)
            if batch.num_rows:
                self._positions.take_rows(delivery.bucket)
            if delivery.position is not None and batch.num_rows == delivery.batch.num_rows:
                self._positions.take_position(delivery.bucket, delivery.epoch, delivery.position)
                if seat.furthest is None:
                    seat.furthest = delivery.position
            if batch.num_rows:
                self.bucket, self.epoch = delivery.bucket, delivery.epoch
                return batch

    async def commit(self, positions: Mapping[int, int] | None = None) -> tuple[int, ...]:
        """Store positions, durably: who reads a bucket next begins there.

        Args:
            positions: By bucket, ends of commits, as `positions` has told them. One before what is stored takes the
                group back. None: what was handed out and is not stored, the newest batch included.

        Returns:
            The buckets of which a position is not known to be stored, because they were given to a reader anew since it
            was told: to another one, or to this one when it joined again. That reader gets what came behind the
            position that was stored last. That may be this one, if the answer to an earlier call was lost: then nothing
            comes again, so do not undo what was done. Each is told once, also when something newer of the bucket is
            stored by now. Empty: all is stored.

        Raises:
            ArgumentInvalid: A position is inside a commit, or of a bucket that the table does not have.
            OffsetOutOfRange: A position is past the changelog's end, or before its start and what is stored.
            GroupNotFound: The group was deleted.
            DataCorrupted: The answer is about other positions; nobody knows what is stored.
            ScannerError: The server could not be reached, or storage failed. It can be tried again.

        Waits:
            For the server, and between attempts.

        Cancellation:
            The positions may be stored.
        """
        wanted, lost = self._to_commit(positions)
        if wanted:
            async with self._storing:
                lost = (*lost, *await self._store(wanted, self._plan.retries))
        return self._positions.lost(lost, all_meant=positions is None)

    async def _store(self, wanted: Mapping[int, Handed], retries: int | None) -> list[int]:
        """Store positions, holding `_storing`; the buckets that have another epoch since."""
        request = pb.CommitPositionsRequest(
            table=self._plan.table.name,
            table_id=self._plan.table_id,
            group=self._plan.group,
            positions=[self._to_send(bucket, each) for bucket, each in wanted.items()],
        )
        reply = await retried(
            self._connection.attempts(retries),
            lambda: call_unary(
                self._connection,
                methods.GROUPS + "CommitPositions",
                request,
                pb.CommitPositionsResponse,
                retries=retries or None,  # Who asks once connects as any call does.
            ),
        )
        self._committed_at = trio.current_time()
        return self._take_answer(wanted, reply)

    def _to_send(self, bucket: int, position: Handed) -> pb.BucketPosition:
        """A position as the server is told it: whether it is meant to go back, or must not."""
        forward_only, seat = True, self._seats.get(bucket)
        if seat is not None and seat.epoch == position.epoch:
            forward_only = seat.furthest is not None and position.position >= seat.furthest
            if forward_only:
                seat.furthest = position.position
        return pb.BucketPosition(
            bucket=bucket, epoch=position.epoch, position=position.position, forward_only=forward_only
        )

    def _to_commit(self, positions: Mapping[int, int] | None) -> tuple[dict[int, Handed], tuple[int, ...]]:
        """What to store, and the buckets that are known to be another reader's."""
        if positions is None:
            return self._positions.not_stored, ()
        require_kind("positions", positions, Mapping)
        wanted: dict[int, Handed] = {}
        asked = offsets_by_bucket(positions, self._plan.table.buckets, "positions")
        for bucket, position in asked.items():
            seat = self._seats.get(bucket)
            epoch = self._positions.epoch_of(bucket, position, None if seat is None else seat.epoch)
            if epoch is not None:
                wanted[bucket] = Handed(epoch, position)
        return wanted, tuple(bucket for bucket in asked if bucket not in wanted)

    def _take_answer(self, wanted: Mapping[int, Handed], reply: pb.CommitPositionsResponse) -> list[int]:
        refused = {each.bucket: each for each in reply.refused}
        if reply.HasField("group"):
            asked = self._plan.table_id or 0, self._plan.group, sorted(wanted)
            told = reply.group.table_id, reply.group.group, sorted([*reply.stored, *refused])
            require_about("CommitPositions", asked, told)
        lost: list[int] = []
        failure: ScannerError | None = None
        for bucket, each in wanted.items():
            if bucket not in refused:
                self._positions.take_stored(bucket, each)
                seat = self._seats.get(bucket)
                if seat is not None and seat.epoch == each.epoch:
                    seat.furthest = each.position
                continue
            reason = refused[bucket].reason
            if reason == GroupEpochStale.reason:
                if each.owed:
                    lost.append(bucket)
                self._positions.take_stale(bucket, each)
                continue
            if reason == ArgumentInvalid.reason and self._positions.was_told_before(bucket, each.position):
                lost.append(bucket)
                continue
            row = error_row_of_reason(reason)
            failure = (InternalError if row is None else row.exception)(refused[bucket].message)
        self._release_moved()
        if failure is not None:
            raise failure
        return lost

    @property
    def _due_in_s(self) -> float:
        """How long what was passed over may wait; infinity: there is nothing, or a batch is there first.

        Each time is a commit of a bucket, and a table may be busy.
        """
        if self._plan.auto_commit or not self._hand_off.waits or not self._positions.passed_over:
            return math.inf
        due_at = self._retry_at
        if not any(seat.moving for seat in self._seats.values()):
            due_at = max(due_at, self._committed_at + _AUTO_COMMIT_INTERVAL_S)
        return max(0.0, due_at - trio.current_time())

    async def _commit_if_due(self) -> None:
        if not self._plan.auto_commit:
            if self._due_in_s == 0:
                self._retry_at = trio.current_time() + _AUTO_COMMIT_INTERVAL_S
                self._begin_storing(self._commit_passed_over)
            return
        if not self._positions.all_stored:
            late = trio.current_time() >= self._committed_at + _AUTO_COMMIT_INTERVAL_S
            if late or self._hand_off.waits or any(seat.moving for seat in self._seats.values()):
                self._begin_storing(self.commit)
        await self._wait_stored()

    async def _commit_passed_over(self) -> None:
        async with self._storing:
            # Looked at when the commit before is over, which may have taken the group back.
            passed = self._positions.passed_over
            if passed:
                # Tried once: it comes again, and a batch that is there by now is not to wait for a server that is away.
                with suppress(ScannerError):
                    await self._store(passed, retries=0)

    def _begin_storing(self, store: Callable[[], Awaitable[object]]) -> None:
        """Store positions in a task of the block, unless it does: the answer counts, though who waits may be cancelled.

        Else a reader that is polled more often than the server answers would never know, and give no bucket back.
        """
        if self._block is not None and self._stored.is_set():
            self._stored = trio.Event()
            self._block.start_soon(self._run_store, store)

    async def _run_store(self, store: Callable[[], Awaitable[object]]) -> None:
        try:
            await store()
        except (ScannerError, trio.ClosedResourceError) as error:
            self._not_stored = error
        finally:
            self._stored.set()

    async def _wait_stored(self) -> None:
        await self._stored.wait()
        failure, self._not_stored = self._not_stored, None
        if failure is not None:
            raise failure

    def _within_limit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._rows_left is None:
            return batch
        batch = batch.slice(0, min(self._rows_left, batch.num_rows))
        self._rows_left -= batch.num_rows
        if self._rows_left == 0:
            self._finished = True
            self._hand_off.end()
            for seat in self._seats.values():
                seat.scope.cancel()
        return batch

    async def _run(self) -> None:
        """Be a member, as long as the block lasts. Failures go to the hand-off, where the consumer meets them."""
        try:
            with self._tasks:
                async with trio.open_nursery() as self._nursery:
                    attempts = self._connection.attempts(self._plan.retries)
                    try:
                        while not self._leaving:
                            await attempts.wait_retry(await self._be_member(attempts))
                    except (ScannerError, trio.ClosedResourceError) as error:
                        self._fail(error)
        finally:
            self._left.set()

    async def _leave(self) -> None:
        """Leave the group, and wait until the server knows."""
        self._leaving = True
        self._to_say.set()
        await self._left.wait()

    def hold_back(self, positions: Mapping[int, int]) -> None:
        """Store no more than this when the block ends well: what came behind it was handed out, but nobody has got it.

        Args:
            positions: As `positions` told them before.
        """
        self._got = positions

    async def _commit_rest(self) -> None:
        if self._plan.auto_commit:
            await self.commit(self._got)

    def _fail(self, error: Exception) -> None:
        self._hand_off.fail(error)
        self._tasks.cancel()

    async def _be_member(self, attempts: Attempts) -> ScannerError:
        """One membership; what ended it."""
        try:
            with translated(f"the membership in {self._what}"):
                await self._join(attempts)
        except ScannerError as error:
            return error
        finally:
            if self._leaving:
                self._left.set()
            self._lose_all()
        return ServerUnavailable(f"the server ended the membership in {self._what}")

    async def _join(self, attempts: Attempts) -> None:
        plan = self._plan
        join = pb.Join(
            table=plan.table.name,
            table_id=plan.table_id,
            group=plan.group,
            member=self.member,
            instance=self._instance,
        )
        async with (
            self._connection.client(lasting=Lasting.FOR_EVER) as client,
            client.open_stream(methods.JOIN) as stream,
        ):
            await stream.send(sealed(pb.JoinRequest(join=join).SerializeToString()))
            await run_with_companion(
                functools.partial(self._listen, stream, attempts), functools.partial(self._speak, stream)
            )

    async def _listen(self, stream: Stream, attempts: Attempts) -> None:
        while (response := await self._next_response(stream)) is not None:
            match response.WhichOneof("response"):
                case "joined":
                    if response.joined.instance:
                        require_about("Join", self._instance.hex(), response.joined.instance.hex())
                    self._session_s = max(0.001, response.joined.session_timeout_ms / 1000)
                    self._to_say.set()
                case "assignment":
                    if response.assignment.buckets:
                        attempts.progress()
                    self._take_assignment(response.assignment)
                case _:
                    attempts.progress()  # A member without a bucket is there for the day that one comes.

    async def _next_response(self, stream: Stream) -> pb.JoinResponse | None:
        # Every word of ours is answered; behind a proxy the line may live longer than the server.
        with trio.move_on_after(self._session_s):
            message = await stream.receive()
            if message is None:
                return None
            return parse_answer(pb.JoinResponse, message, "a response to the membership")
        raise ServerUnavailable(
            f"the server said nothing to a member of {self._what} for {self._session_s:g} s"
        )

    async def _speak(self, stream: Stream) -> None:
        while True:
            with trio.move_on_after(self._session_s / _ALIVE_PER_SESSION):
                await self._to_say.wait()
            self._to_say = trio.Event()
            if self._leaving:
                return await stream.send_end()
            released, self._releases = self._releases, {}
            if released:
                held = [pb.HeldBucket(bucket=seat.bucket, epoch=seat.epoch) for seat in released.values()]
                request = pb.JoinRequest(release=pb.Release(buckets=held))
            else:
                request = pb.JoinRequest(alive=pb.Alive())
            await stream.send(sealed(request.SerializeToString()))

    def _take_assignment(self, assignment: pb.Assignment) -> None:
        now = {each.bucket: each for each in assignment.buckets}
        for seat in list(self._seats.values()):
            if seat.bucket not in now or now[seat.bucket].epoch != seat.epoch:
                self._lose(seat)
        for each in now.values():
            seat_before = self._seats.get(each.bucket)
            if seat_before is None:
                self._begin(each)
            elif each.moving and not seat_before.moving:
                seat_before.moving = True
                seat_before.scope.cancel()
        self._more = assignment.more
        self._release_moved()
        self._finish_if_done()

    def _begin(self, assigned: pb.AssignedBucket) -> None:
        seat = self._seats[assigned.bucket] = _Seat(assigned.bucket, assigned.epoch, moving=assigned.moving)
        seat.furthest = assigned.position if assigned.HasField("position") else None
        self._positions.begin_epoch(assigned.bucket)
        if seat.moving:
            return
        self._take_back_finish()
        if not self._finished:
            assert self._nursery is not None
            self._nursery.start_soon(self._read, seat, seat.furthest)

    def _lose(self, seat: _Seat) -> None:
        seat.scope.cancel()
        self._schema_outdated |= seat.progress.schema_outdated
        if self._seats.get(seat.bucket) is seat:
            del self._seats[seat.bucket]
        self._take_back_finish()  # What waits of it is dropped.

    def _take_back_finish(self) -> None:
        """Be no longer through, unless everything was handed out; at the limit nothing that waits counts."""
        if self._finished and self._rows_left != 0 and self._hand_off.take_back_finish():
            self._finished = False

    def _lose_all(self) -> None:
        for seat in list(self._seats.values()):
            self._lose(seat)
        self._releases.clear()

    def _release_moved(self) -> None:
        """Give back what is to move and of which nothing is left to commit."""
        for seat in list(self._seats.values()):
            if seat.moving and self._positions.is_stored(seat.bucket):
                self._lose(seat)
                self._releases[seat.bucket] = seat
                self._to_say.set()

    async def _read(self, seat: _Seat, position: int | None) -> None:
        """Read a bucket for as long as it is this reader's."""
        try:
            with seat.scope:
                await self._receiver(seat, position).run()
                seat.done = True
                self._finish_if_done()
        except GroupEpochStale:
            # The assignment says so, too, or will; until then nobody knows whether the bucket comes back.
            self._more |= self._seats.get(seat.bucket) is seat
            self._lose(seat)
        except (ScannerError, MemoryError, trio.ClosedResourceError) as error:
            if self._seats.get(seat.bucket) is not seat:
                return
            # It may also be the stop that the changelog does not have.
            if (
                isinstance(error, OffsetOutOfRange)
                and position is not None
                and position < (error.oldest_offset or 0)
            ):
                error = error.reworded(
                    f"{error.message}; that is where {self._what} stood: delete the group and start a new one"
                )
            self._fail(error)

    def _receiver(self, seat: _Seat, position: int | None) -> BucketReceiver:
        plan = self._plan
        scan_open = open_request(plan, seat.bucket, plan.key_range)
        scan_open.group, scan_open.group_epoch = plan.group, seat.epoch
        # By name: the table may get columns before the bucket becomes this reader's.
        scan_open.query.columns[:] = plan.schema.names
        if position is not None:
            scan_open.log_start.offset = position
        what = f"{plan.table.name} bucket {seat.bucket} for reader group {plan.group}"
        attempts = self._connection.attempts(plan.retries)
        # Buckets come and go: each keeps an even share.
        credit = ReceiveCredit(max(1, (plan.credit_bytes or START_BYTES_MAX) // plan.table.buckets))
        receiver = PushReceiver(what, plan.schema, credit, seat.progress, attempts.progress)
        return BucketReceiver(
            self._connection,
            scan_open,
            receiver,
            seat.progress,
            self._hand_off,
            attempts,
            what,
            lasting=True,
            batches_per_stream=plan.resume_every_batches,
        )

    def _finish_if_done(self) -> None:
        if self._finished or self._more or not self._seats:
            return
        if all(seat.done for seat in self._seats.values()):
            self._finished = True
            self._hand_off.finish()


def _member_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_.:-]", "-", platform.node())[:60] or "reader"
    return f"{host}-{secrets.token_hex(4)}"


@asynccontextmanager
async def open_group_scan(connection: Connection, plan: ScanPlan) -> AsyncIterator[GroupBatches]:
    """Be a member of a reader group for the length of a block.

    Args:
        connection: To the server; it is shared with whatever else runs on it.
        plan: What to read, and for which group.

    Yields:
        The batches. Nothing has been waited for: a refusal by the server comes with the first batch asked for.

    Raises:
        ArgumentInvalid: The plan is none of a group.
        SourceUnsupported: A group reads source LOG, by push.

    Cancellation:
        Leaves the group.
    """
    if plan.source is not ScanSource.LOG or plan.mode is not ScanMode.PUSH:
        raise SourceUnsupported(
            f"a reader group reads changes, by push: with_source('log'), not {plan.source.value} by {plan.mode.value}"
        )
    if plan.bucket is not None:
        raise ArgumentInvalid("a reader group shares all buckets out; leave bucket(...) away")
    check_plan(plan)
    batches = GroupBatches(plan, connection)
    async with bare(trio.open_nursery()) as nursery:
        batches._block = nursery
        nursery.start_soon(batches._run)
        try:
            yield batches
            await batches._commit_rest()
        finally:
            try:
                with trio.move_on_after(_LEAVE_TIMEOUT_S, shield=True):
                    await batches._leave()
            finally:
                batches._hand_off.close()
                batches._block = None
                nursery.cancel_scope.cancel()
