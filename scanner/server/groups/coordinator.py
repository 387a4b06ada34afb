"""One reader group of a table: its members, who reads which bucket by which epoch, and the positions.

Invariants:

1. Epochs of a bucket ascend, over restarts, too: each is durable before anybody is told, and above the one before and
   the time of the clock in milliseconds. So is one of a restored copy, or of a group that was deleted and begun anew,
   above those that were handed out before, as far as the clock is right.
2. A bucket has one scan for the group at a time, of its newest epoch and of a member that is there; the one before is
   closed before another is admitted.
3. A position is stored only by the bucket's newest epoch, in a commit of the bucket, and is durable before it is
   acknowledged. It is the end of an entry, or of one that retention has taken since its reader got it and that the
   position before does not stand behind. By an epoch that an earlier server gave out, it is at most where the newest
   history ends that the bucket had begun then: who got further was reading another copy of the bucket, or commits that
   were lost.
4. A bucket that is to move from a member that is there waits until that has released it, at most
   `group_handover_s`. That saves repeats, and is not needed for 1 to 3.
5. A member that is out has no bucket.
6. A position that is to go forward only takes nothing back, though its request was late, or came twice.

This module knows no wire and no stream.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    GroupEpochStale,
    InternalError,
    ScanIncomplete,
    ScannerError,
    TableNotFound,
    TooManyScans,
)
from scanner.server.groups.assignment import assign
from scanner.server.log.bounds import require_entry_end
from scanner.storage.group_states import FORGOTTEN
from scanner.storage.interface import GroupState

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.open_scan import OpenScan
    from scanner.server.tables.write_queue import PendingWrite

_logger = logging.getLogger(__name__)
_RETRY_S: Final = 1.0
"""How long a bucket whose epoch could not be written waits until that is tried again."""


class AssignedBucket(NamedTuple):
    """One bucket of a member."""

    bucket: int
    epoch: int
    moving: bool
    """It is to go to another member, which waits for the release."""


class Member:
    """A reader that is in a group. Made by `ReaderGroup.join`.

    Args:
        name: Within the group.
        instance: Tells a reader that comes again from another one of its name.
    """

    def __init__(self, name: str, instance: bytes) -> None:
        self.name = name
        self.instance = instance
        self.ended_by: ScannerError | None = None
        """Why it is out; None: it is in, or has left by itself."""
        self._changed = trio.Event()
        self._alive = False
        self.expects_more = False
        """Whether it was told that more buckets may come."""

    def answer_alive(self) -> None:
        """It has said that it lives, and is owed an answer; one for all that it has said since the last."""
        self._alive = True
        self.wake()

    def take_alive(self) -> bool:
        """Whether it is owed an answer, which is given now."""
        alive, self._alive = self._alive, False
        return alive

    def wake(self) -> None:
        """Its assignment may have changed, or it is out."""
        self._changed.set()
        self._changed = trio.Event()

    def end(self, error: ScannerError) -> None:
        """Take it out."""
        self.ended_by = error
        self.wake()

    async def wait_change(self) -> None:
        """Wait until its assignment may have changed, or it is out.

        Cancellation:
            No effect.
        """
        await self._changed.wait()


class GroupScan:
    """The scan of a bucket that a group has admitted. Made by `ReaderGroup.admitted`.

    Args:
        epoch: Of the assignment.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.closed = trio.Event()
        self._ended_by: ScannerError | None = None
        self._scan: OpenScan[Any] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether something was opened, and not ended."""
        return self._scan is not None and self._scan.ended_by is None

    def occupy(self, scan: OpenScan[Any]) -> None:
        """Say what was opened, so that it can be ended.

        Raises:
            ScannerError: It has been ended meanwhile.
        """
        if self._ended_by is not None:
            raise self._ended_by
        self._scan = scan

    def end(self, error: ScannerError) -> None:
        """End the scan; `closed` is set when it has ended."""
        self._ended_by = error
        if self._scan is not None:
            self._scan.end(error)


class _Seat:
    """One bucket of a group.

    Args:
        index: Of the bucket.
        bucket: It.
        group: Name of the group.
    """

    def __init__(self, index: int, bucket: ServedBucket, group: str) -> None:
        self.index = index
        self.bucket = bucket
        self._group = group
        self.owner: Member | None = None
        self.owner_before = ""
        """Who has it, is to get it, or had it last."""
        self.handing_over = False
        """Whether it is on its way to a member: its epoch is being written."""
        self.moves_at: float | None = None
        """When it goes to another member at the latest, by trio's clock; None: it stays."""
        self.released = False
        """Whether its owner has given it back, so that it can move."""
        self.given_epoch = 0
        """The newest epoch that this server gave out; 0: it gave none."""
        self.retry_at = 0.0
        self.failing = False
        self.scan: GroupScan | None = None
        self.writing = trio.Lock()
        """Held from the look at the state until the next one is durable."""

    @property
    def state(self) -> GroupState:
        """What is durable."""
        return self.bucket.storage.group_states.get(self._group, GroupState(0))

    @property
    def epoch_max(self) -> int:
        """The highest epoch that the bucket was ever assigned by, for this group or for one that was deleted."""
        forgotten = self.bucket.storage.group_states.get(FORGOTTEN, GroupState(0))
        return max(self.state.epoch, forgotten.epoch)

    def vacate(self, error: ScannerError) -> None:
        """Take the bucket from its owner, if it has one: its scan ends."""
        self.owner, self.moves_at, self.released = None, None, False
        if self.scan is not None:
            self.scan.end(error)

    async def write(self, state: GroupState) -> None:
        """Make a state durable.

        Cancellation:
            None: it takes as long as the disk takes. Otherwise the next reader of the state might miss it.
        """
        with trio.CancelScope(shield=True):
            await self.bucket.submit((), group_states={self._group: state}).wait_durable()


class ReaderGroup:
    """One group of one table.

    Args:
        name: Of the group.
        table: Name of its table, for messages.
        buckets: All of the table's, in order.
        config: Bounds.
        now_ms: Tells the time, milliseconds since 1970 UTC.
        on_assigned: Called whenever a bucket was given to a member.
        on_refused: Called whenever a scan or a position was refused because its epoch was old.
    """

    def __init__(
        self,
        name: str,
        table: str,
        buckets: Sequence[ServedBucket],
        config: ScannerConfig,
        now_ms: Callable[[], int],
        on_assigned: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        self.name = name
        self._what = f"reader group {name} of table {table!r}"
        self._seats = [_Seat(index, bucket, name) for index, bucket in enumerate(buckets)]
        self._config = config
        self._now_ms = now_ms
        self._on_assigned = on_assigned
        self._on_refused = on_refused
        self._members: dict[str, Member] = {}
        self._target: dict[int, str] = {}
        """Who is to have each bucket, as planned last."""
        self._changed = trio.Event()
        self.balancing = False
        """Whether `balance` runs, or is about to."""

    @property
    def members(self) -> list[str]:
        """Names of the members that are in, ascending."""
        return sorted(self._members)

    @property
    def stored(self) -> bool:
        """Whether any bucket has a state of the group."""
        return any(self.name in seat.bucket.storage.group_states for seat in self._seats)

    def owners(self) -> list[str]:
        """The member that has each bucket, in order; empty: nobody."""
        return ["" if seat.owner is None else seat.owner.name for seat in self._seats]

    def states(self) -> list[GroupState]:
        """What is stored of each bucket, in order."""
        return [seat.state for seat in self._seats]

    def storages(self) -> list[Any]:
        """The storage of each bucket, in order."""
        return [seat.bucket.storage for seat in self._seats]

    def join(self, name: str, instance: bytes) -> Member:
        """Take a reader in. One that is in under its name is out: the same one comes again, or another took its place.

        Raises:
            TooManyScans: The group has as many members as it may have.
        """
        before = self._members.get(name)
        if before is None and len(self._members) >= self._config.group_members_max:
            raise TooManyScans(f"{self._what} has {len(self._members)} members, and no more are allowed")
        if before is not None:
            again = before.instance == instance
            self.remove(
                before,
                ScanIncomplete("the membership was replaced by a newer call of the same reader")
                if again
                else GroupEpochStale(f"another reader has joined {self._what} as {name}; this one is out"),
            )
        member = self._members[name] = Member(name, instance)
        self._wake()
        return member

    def remove(self, member: Member, error: ScannerError | None = None) -> None:
        """A member has left, or is taken out: its buckets are free, and its scans end. Idempotent.

        Args:
            member: It.
            error: Why it is out; None: it left.
        """
        if self._members.get(member.name) is not member:
            return
        del self._members[member.name]
        for seat in self._seats:
            if seat.owner is member:
                seat.vacate(self._stale(seat))
        if error is not None:
            member.end(error)
        self._wake()

    def end(self, error: ScannerError) -> None:
        """Take every member out."""
        for member in list(self._members.values()):
            self.remove(member, error)

    def drain(self, error: ScannerError) -> None:
        """Take out the members of whom no scan goes on: a server that drains has ended the scans that have no end."""
        reading = {seat.owner for seat in self._seats if seat.scan is not None and seat.scan.goes_on}
        for member in list(self._members.values()):
            if member not in reading:
                self.remove(member, error)

    def release(self, member: Member, buckets: Iterable[tuple[int, int]]) -> None:
        """A member gives buckets back that are to move; what is not its own, or is not to move, is passed over.

        Args:
            member: Who.
            buckets: Index and epoch of each.
        """
        for index, epoch in buckets:
            seat = self._seats[index] if index < len(self._seats) else None
            if seat is None or seat.owner is not member or seat.state.epoch != epoch:
                continue
            seat.released = seat.moves_at is not None
        self._wake()

    def assignment(self, member: Member) -> tuple[AssignedBucket, ...]:
        """The buckets of a member, ascending."""
        return tuple(
            AssignedBucket(seat.index, seat.state.epoch, seat.moves_at is not None)
            for seat in self._seats
            if seat.owner is member
        )

    def more(self, member: Member) -> bool:
        """Whether buckets may be on their way to a member: free ones, and those that another one is to give back."""
        for seat in self._seats:
            if seat.owner is member or (seat.owner is not None and seat.moves_at is None):
                continue
            name = self._target.get(seat.index, "")
            if name == member.name or name not in self._members:  # Whose it is to be is not known yet.
                return True
        return False

    def position(self, bucket: int) -> int | None:
        """Where the group's reading of a bucket goes on; None: nothing is stored."""
        return self._seats[bucket].state.position

    async def begin(self, index: int, epoch: int, position: int) -> None:
        """Store where the first scan of a bucket begins, if no position is stored.

        Else a scan that begins with the next commit, and dies before it has stored anything, would be followed by one
        that begins later: what was committed in between would be lost to the group.

        Raises:
            ScannerError: As `commit`.

        Waits:
            As `commit`.
        """
        if self._seat(index).state.position is None:
            await self.commit(index, epoch, position)

    async def commit(self, index: int, epoch: int, position: int, *, forward_only: bool = False) -> None:
        """Store a position, by the newest epoch of its bucket. Its member need not be in any more.

        Args:
            index: Of the bucket.
            epoch: By which it was read.
            position: An entry's end.
            forward_only: Whether it must not be before the one that is stored.

        Raises:
            BucketNotFound: There is no such bucket.
            GroupEpochStale: The bucket has another epoch; or its epoch is an earlier server's, and the position is of
                what was written since, or is not there.
            ArgumentInvalid: The position is inside a commit; or `forward_only`, and before the one that is stored.
            OffsetOutOfRange: It is past the changelog's end, or before its start and the position that is stored.
            ScannerError: Storage failed.

        Waits:
            For the commit.

        Cancellation:
            The position may be stored.
        """
        seat = self._seat(index)
        async with seat.writing:
            async with seat.bucket.between_commits():
                before, storage = seat.state, seat.bucket.storage
                if not before.epoch or epoch != before.epoch:
                    raise self._refusal(seat, epoch)
                self._require_read(seat, before, position)
                # A reader may deal with what it was given for longer than the changelog keeps that.
                if before.position is None or not before.position <= position < storage.log_start:
                    require_entry_end(storage, position, "the position")
                if forward_only and before.position is not None and position < before.position:
                    raise ArgumentInvalid(
                        f"{self._what}: position {before.position} of bucket {seat.index} is stored, and {position},"
                        " which is to go forward only, is before it"
                    )
                history = storage.lineage.history_of(position)
            state = before._replace(position=position, history=history)
            if state != before:
                await seat.write(state)

    def _require_read(self, seat: _Seat, state: GroupState, position: int) -> None:
        """Refuse what no reader of the epoch can have read here.

        The rule goes by histories, and not by where the log ended when this server began: a restored copy may have been
        written on, and started again, since it parted from what the reader read.
        """
        storage = seat.bucket.storage
        end = storage.lineage.end_of(state.epoch_history, storage.log_end)
        # By one of this server's own, which have no such end, what is not there is the program's mistake.
        if position > end and state.epoch != seat.given_epoch:
            self._on_refused()
            raise GroupEpochStale(
                f"{self._what}: epoch {state.epoch} of bucket {seat.index} is an earlier server's, and {position} is"
                f" behind {end}, where the changes end here that it can have read; join again"
            )

    async def forget(self) -> None:
        """Delete what is stored of the group, which has no members. No commit and no scan of it outlives that.

        Raises:
            ScannerError: Storage failed; the group may be forgotten in a part of the buckets.

        Waits:
            For positions that are being stored, the ends of scans, and storage.

        Cancellation:
            None once it writes: it takes as long as the disk takes.
        """
        for seat in self._seats:
            if seat.scan is not None:
                await seat.scan.closed.wait()
        async with AsyncExitStack() as stack:
            for seat in self._seats:
                await stack.enter_async_context(seat.writing)
            for seat in self._seats:
                async with seat.bucket.between_commits():
                    pass  # It shows what a write has left that was said to have failed.
            writes: list[PendingWrite] = []
            try:
                for seat in self._seats:
                    if self.name in seat.bucket.storage.group_states:
                        forgotten = {self.name: None, FORGOTTEN: GroupState(seat.epoch_max)}
                        writes.append(seat.bucket.submit((), group_states=forgotten))
            finally:
                # All of them, also where a bucket takes none: the group that is deleted next goes by the highest epoch
                # that this one leaves, and who joins now is not to be forgotten.
                with trio.CancelScope(shield=True):
                    for write in writes:
                        await write.settled.wait()
            for write in writes:
                await write.wait_durable()

    @asynccontextmanager
    async def admitted(self, index: int, epoch: int) -> AsyncIterator[GroupScan]:
        """Admit a scan of a bucket for the length of a block. Another one of the bucket is ended, and closed, before.

        Raises:
            BucketNotFound: There is no such bucket.
            GroupEpochStale: The epoch is not the bucket's, or its member is out.
            SnapshotLost: The stored position is of another history of the bucket.

        Waits:
            For the end of the scan before.

        Cancellation:
            No scan was admitted; the one before may have ended.
        """
        seat = self._seat(index)
        while True:
            state = seat.state
            if seat.owner is None or state.epoch != epoch:
                raise self._refusal(seat, epoch)
            if seat.scan is None:
                break
            seat.scan.end(ScanIncomplete("the scan was replaced by a newer one of the same member"))
            await seat.scan.closed.wait()
        if state.position is not None:
            storage = seat.bucket.storage
            what = f"the position of {self._what} in bucket {index}"
            storage.lineage.require(state.history, state.position, storage.log_end, what)
        scan = seat.scan = GroupScan(epoch)
        try:
            yield scan
        finally:
            if seat.scan is scan:
                seat.scan = None
            scan.closed.set()

    async def balance(self) -> None:
        """Give buckets to members as they come and go, until there are none. One task runs it (`balancing`).

        Waits:
            For members, releases and storage.

        Cancellation:
            Nothing is given out any more.
        """
        try:
            while self._members:
                async with trio.open_nursery() as nursery:
                    await self._give_out(nursery)
        except Exception as error:
            _logger.exception("%s failed in an unforeseen way; its members are out", self._what)
            self.end(
                InternalError(f"{self._what} failed ({type(error).__name__}); the server's log has more")
            )
        finally:
            self.balancing = False

    async def _give_out(self, nursery: trio.Nursery) -> None:
        """Hand buckets over until there are no members, and none is on its way.

        None waits for another one, whose commits may wait for a whole share of a transaction.
        """
        while self._members or any(seat.handing_over for seat in self._seats):
            changed = self._changed
            due, wake_at = self._plan(trio.current_time())
            for seat, name in due:
                seat.handing_over, seat.owner_before = True, name
                nursery.start_soon(self._hand_over, seat, name)
            for member in self._members.values():
                if member.expects_more and not self.more(member):
                    member.wake()
            with trio.move_on_at(wake_at):
                await changed.wait()

    def _plan(self, now: float) -> tuple[list[tuple[_Seat, str]], float]:
        """Which buckets go to whom now, and when the next ones may have to."""
        owners = {seat.index: seat.owner_before for seat in self._seats}
        target = self._target = assign(owners, self._members, owners)
        due: list[tuple[_Seat, str]] = []
        wake_at = math.inf
        for seat in self._seats:
            if seat.handing_over or not target:
                continue
            name = target[seat.index]
            if seat.owner is None:
                at = seat.retry_at
            elif seat.moves_at is not None:
                at = now if seat.released else seat.moves_at
            elif seat.owner.name == name:
                continue
            else:
                at = seat.moves_at = now + self._config.group_handover_s
                seat.owner.wake()
            if at <= now:
                due.append((seat, name))
            else:
                wake_at = min(wake_at, at)
        return due, wake_at

    async def _hand_over(self, seat: _Seat, name: str) -> None:
        try:
            await self._give(seat, name)
        finally:
            seat.handing_over = False
            self._wake()

    async def _give(self, seat: _Seat, name: str) -> None:
        """Give a bucket to a member, by a new epoch that is durable before anybody is told."""
        before = seat.owner
        seat.vacate(self._stale(seat))
        if before is not None:
            before.wake()
        try:
            async with seat.writing:
                if name not in self._members:
                    return  # It left meanwhile, and the group may be deleted; the next round finds another.
                async with seat.bucket.between_commits():
                    state = seat.state  # With what a write has left that was said to have failed.
                epoch = max(seat.epoch_max + 1, self._now_ms())
                await seat.write(state._replace(epoch=epoch))
                seat.given_epoch = epoch
        except ScannerError as error:
            seat.retry_at = trio.current_time() + _RETRY_S
            # The readers of a table that is dropped are told so.
            if not (seat.failing or isinstance(error, TableNotFound)):
                seat.failing = True
                _logger.warning("%s: bucket %d has no reader: %s", self._what, seat.index, error)
            return
        if seat.failing:
            seat.failing = False
            _logger.warning("%s: bucket %d has a reader again", self._what, seat.index)
        member = self._members.get(name)
        if member is None:
            return  # It left meanwhile; the next round finds another.
        seat.owner = member
        self._on_assigned()
        member.wake()

    def _seat(self, index: int) -> _Seat:
        if index >= len(self._seats):
            raise BucketNotFound(f"the table has buckets 0..{len(self._seats) - 1}, not {index}")
        return self._seats[index]

    def _refusal(self, seat: _Seat, epoch: int) -> GroupEpochStale:
        self._on_refused()
        return GroupEpochStale(
            f"{self._what}: epoch {epoch} is not that of bucket {seat.index} now; another reader may have it"
        )

    def _stale(self, seat: _Seat) -> GroupEpochStale:
        return GroupEpochStale(f"{self._what}: bucket {seat.index} was taken from this reader")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
