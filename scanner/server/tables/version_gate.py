"""Keeps the states of a table's buckets that are taken together free of half a version of a transaction.

A version is applied bucket by bucket, and the states of several buckets are taken one after another: for a lease, a
backup, checkpoints. Each waits here for the other.

Invariants:

1. While states are taken no version is being applied, and the other way round. Several versions may be applied at once,
   and states taken for several callers.
2. First come, first served: neither a stream of versions nor one of callers keeps the other side out.
3. What is applied is applied in one attempt, or the attempt fails. After a failure states are taken all the same, and
   `half_applied` says of which version they have a part: one that cannot be applied holds up no backup.
4. What an earlier server may have left half applied is attempted once before any states are taken.
5. Nobody inside waits for somebody who is to come in. So versions wait for earlier ones before they come in.

This module knows no storage.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from scanner.data.half_applied import HalfApplied
from scanner.server.tables.write_queue import TransactionShare, applied_share

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket

_LONG_S: Final = 10.0
"""A wait that is longer is logged."""

_logger = logging.getLogger(__name__)


class _Side(enum.Enum):
    APPLYING = "a version of a transaction waits until states of table %r are taken"
    TAKING = "a lease, a backup or checkpoints of table %r wait until a version of a transaction is applied"


@dataclass(slots=True, eq=False)
class _Waiter:
    side: _Side
    admitted: trio.Event = field(default_factory=trio.Event)


class VersionGate:
    """Between the versions and the states of one table.

    Args:
        table: Its name.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._inside = dict.fromkeys(_Side, 0)
        self._waiting: deque[_Waiter] = deque()
        self._left_over: list[trio.Event] = []
        self._unapplied: dict[str, tuple[int, tuple[int, ...]]] = {}

    def decided(self, name: str, version: int, buckets: tuple[int, ...]) -> None:
        """A version of a transaction is to be applied.

        Args:
            name: Of the transaction.
            version: Which.
            buckets: Those that have something to apply.
        """
        self._unapplied[name] = (version, buckets)

    def left_over(self, attempted: trio.Event) -> None:
        """Such a version was decided by an earlier server, which may have applied it in part.

        Args:
            attempted: Set when this server has applied it, or could not.
        """
        self._left_over.append(attempted)

    def applied(self, name: str) -> None:
        """Every bucket has applied what was decided of a transaction."""
        self._unapplied.pop(name, None)

    @asynccontextmanager
    async def applying(self) -> AsyncIterator[None]:
        """Run the block, which applies a version, while no states are taken.

        Waits:
            For those that take states, and have come before.

        Cancellation:
            The block does not run.
        """
        await self._enter(_Side.APPLYING)
        try:
            yield
        finally:
            self._leave(_Side.APPLYING)

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Run the block, which takes the states of several buckets, while no version is being applied.

        Waits:
            For the versions that are being applied, however large they are, and for those that have come before.

        Cancellation:
            The block does not run.
        """
        # Outside: one of them may wait for another one that has failed, and comes in again.
        while self._left_over:
            await self._left_over[0].wait()
            self._left_over = [each for each in self._left_over if not each.is_set()]
        await self._enter(_Side.TAKING)
        try:
            yield
        finally:
            self._leave(_Side.TAKING)

    def half_applied(
        self, buckets: Mapping[int, ServedBucket], offsets: Mapping[int, int]
    ) -> list[HalfApplied]:
        """The versions of which states have a part. For who is taking them; each is logged.

        Args:
            buckets: Of the table.
            offsets: By bucket, the state that was taken.
        """
        found = []
        for name, (version, changed) in sorted(self._unapplied.items()):
            has: dict[bool, list[int]] = {True: [], False: []}
            for index in changed:
                if index in offsets:
                    share = applied_share(
                        buckets[index].storage.applied_shares, TransactionShare(name, version)
                    )
                    has[share is not None and share.end <= offsets[index]].append(index)
            if has[True] and has[False]:
                found.append(HalfApplied(self._table, name, version, tuple(has[True]), tuple(has[False])))
        for each in found:
            _logger.warning("states were taken all the same: %s", each)
        return found

    async def _enter(self, side: _Side) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        waiter = _Waiter(side)
        self._waiting.append(waiter)
        self._admit()
        if waiter.admitted.is_set():
            return
        try:
            with trio.move_on_after(_LONG_S):
                await waiter.admitted.wait()
            if not waiter.admitted.is_set():
                _logger.warning(side.value, self._table)
                await waiter.admitted.wait()
        except BaseException:
            # Somebody may have let it in after it was cancelled.
            if waiter.admitted.is_set():
                self._leave(side)
            else:
                self._waiting.remove(waiter)
                self._admit()
            raise

    def _leave(self, side: _Side) -> None:
        self._inside[side] -= 1
        self._admit()

    def _admit(self) -> None:
        """Let in who waits, in their order, up to the first that has to wait for the other side."""
        while self._waiting:
            waiter = self._waiting[0]
            if any(count for side, count in self._inside.items() if side is not waiter.side):
                return
            self._waiting.popleft()
            self._inside[waiter.side] += 1
            waiter.admitted.set()
