"""Writes on their way to the disk, and the queue in which they wait for their commit.

Invariants:

1. Writes are taken in the order in which they were appended; those that are taken together share a commit.
2. Every write is settled once: with its offsets or with an error, also when its waiter has gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from scanner.storage.transactions import AppliedShare
from scanner.storage.writers import WRITERS_MAX, RequestNumber

if TYPE_CHECKING:
    from scanner.errors import ScannerError
    from scanner.storage.interface import GroupState, Mutation

FORGOTTEN: Final = -1
"""Instead of a transaction's version: the bucket forgets what it has applied of it."""


class Settled:
    """An event that also calls a function, once.

    Args:
        when_set: Called when it is set.
    """

    __slots__ = ("_event", "_when_set")

    def __init__(self, when_set: Callable[[], None] | None = None) -> None:
        self._event = trio.Event()
        self._when_set = when_set

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._event.is_set()

    def set(self) -> None:
        """Set it. Idempotent."""
        self._event.set()
        when_set, self._when_set = self._when_set, None
        if when_set is not None:
            when_set()

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()


class TransactionShare(NamedTuple):
    """A transaction of which a bucket applies its share."""

    name: str
    version: int


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write on its way to the disk."""

    mutations: Sequence[Mutation]
    settled: Settled
    group_states: Mapping[str, GroupState | None] = field(default_factory=dict)
    """What becomes of reader groups in the same commit."""
    transaction: TransactionShare | None = None
    """The transaction whose share it is; None: it is none's."""
    number: RequestNumber | None = None
    """By which it is recognised if it comes again; None: it is not."""
    refusal: ScannerError | None = None
    """What a numbered request fails with, unless it was applied before; None: it is written."""
    pieces: Generator[Sequence[Mutation], None, None] | None = None
    """What to write instead of `mutations`, where that is too much for one commit. Blocks on the disk."""
    offsets: tuple[int, int] | None = None
    """[start, end) of its changes, once it is durable."""
    error: ScannerError | None = None

    async def wait_durable(self) -> tuple[int, int]:
        """Wait until the write is durable.

        Returns:
            The offsets of its changes, [start, end); equal if nothing changed.

        Raises:
            ScannerError: It was not written.

        Waits:
            For its commit.

        Cancellation:
            No effect on the write: it is committed all the same.
        """
        await self.settled.wait()
        if self.error is not None:
            raise type(self.error)(self.error.message, metadata=self.error.metadata) from self.error
        assert self.offsets is not None
        return self.offsets


def applied_share(shares: Mapping[str, AppliedShare], transaction: TransactionShare) -> AppliedShare | None:
    """What a bucket has applied of a decided version; None: nothing yet."""
    share = shares.get(transaction.name)
    if share is None or share.version < transaction.version:
        return None
    return share if share.version == transaction.version else AppliedShare(transaction.version, 0, 0)


class WriteQueue:
    """The writes of a bucket that are not durable yet.

    Args:
        requests_max: As many may wait; `wait_room` keeps to it.
        commit_rows_max: Rows of a commit; one write may have more.
    """

    def __init__(self, requests_max: int, commit_rows_max: int) -> None:
        self._requests_max = requests_max
        self._commit_rows_max = commit_rows_max
        self._waiting: deque[PendingWrite] = deque()
        self.taken: list[PendingWrite] = []
        """Those that are being prepared or committed."""
        self._room = trio.Event()

    def __len__(self) -> int:
        """How many wait for a commit."""
        return len(self._waiting)

    @property
    def unsettled(self) -> bool:
        """Whether any wait, or are being committed."""
        return bool(self._waiting or self.taken)

    def append(self, write: PendingWrite) -> None:
        """Have a write wait for a commit."""
        self._waiting.append(write)

    async def wait_room(self) -> None:
        """Wait until there is room.

        Waits:
            For a commit to take some of those that wait.

        Cancellation:
            No effect.
        """
        while len(self._waiting) >= self._requests_max:
            # Made by who waits, and only when the last one was set: none is replaced while others wait for it. What is
            # queued without waiting, such as a share of a transaction, may come when there is no room.
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    def wake_waiters(self) -> None:
        """Have those look again who wait for room."""
        self._room.set()

    def take(self) -> list[PendingWrite]:
        """Take what the next commit writes: at least one write, if any waits."""
        taken: list[PendingWrite] = []
        newest = dict[bytes, int]()  # By writer, the number of its last request that is taken.
        rows = 0
        while self._waiting and (
            not taken
            or (
                taken[0].pieces is self._waiting[0].pieces is None
                and rows + len(self._waiting[0].mutations) <= self._commit_rows_max
                and len(newest) < WRITERS_MAX
                # What comes again, or too late, is recognised in the next commit, when those before it are durable.
                and _is_ahead(self._waiting[0].number, newest)
            )
        ):
            write = self._waiting.popleft()
            rows += len(write.mutations)
            if write.number is not None:
                newest[write.number.writer_id] = write.number.sequence
            taken.append(write)
        self.taken = taken
        self.wake_waiters()
        return taken

    def fail_waiting(self, error: ScannerError) -> None:
        """Settle those that wait with an error: none of them is written."""
        settle(tuple(self._waiting), error)
        self._waiting.clear()


def settle(writes: Iterable[PendingWrite], error: ScannerError) -> None:
    """Settle with an error those that are not settled yet."""
    for write in writes:
        if not write.settled.is_set():
            write.error = error
            write.settled.set()


def _is_ahead(number: RequestNumber | None, newest: Mapping[bytes, int]) -> bool:
    return number is None or number.sequence > newest.get(number.writer_id, 0)
