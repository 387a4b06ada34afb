"""Batches of a running scan, one by one, to a caller that an interrupt may stop at any moment."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

import trio

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.sync.portal import Portal

PlaceT = TypeVar("PlaceT")


@runtime_checkable
class ReadyBatches(Protocol):
    """Batches that can be taken without a task that waits for them."""

    def next_nowait(self) -> pa.RecordBatch:
        """The next batch. Raises trio.WouldBlock: it is not there yet."""

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """See `Takeable`."""


class HandOver(Generic[PlaceT]):
    """Takes batches from the portal's thread; an interrupt neither loses nor repeats one.

    Args:
        portal: Runs what takes them.
        batches: Those of the running scan.
        place_of: Tells how far the scan has come; what it returns is not changed later.
    """

    def __init__(
        self, portal: Portal, batches: AsyncIterator[pa.RecordBatch], place_of: Callable[[], PlaceT]
    ) -> None:
        self._portal = portal
        self._batches = batches
        self._ready = batches if isinstance(batches, ReadyBatches) else None
        self._place_of = place_of
        self._taken: tuple[pa.RecordBatch, PlaceT] | None = None
        """A batch that nobody has got yet, since an interrupt came when it was there, and how far the scan is with it.
        Looked at in the portal's thread before another one is taken: a caller that is interrupted twice goes on before
        its call has ended, which may yet bring this."""
        self._passed: PlaceT | None = None
        """How far the scan came since without a batch, so that nobody misses rows; None: it is not known to have come
        further. What waits in `_taken` came behind it."""
        self._taking = trio.Lock()
        self._caller: dict[str, int] = {}
        """The thread that is in `next`, if one is. A dict, of which `setdefault` looks and says so in one step."""
        self._place = place_of()
        """As of the newest batch that the caller has got."""

    @property
    def place(self) -> PlaceT:
        """As of the newest batch that the caller has got, and what without rows came behind it; for any thread."""
        passed = self._passed  # Once: the caller's thread clears it.
        return self._place if passed is None else passed

    @property
    def waits(self) -> bool:
        """Whether there is a batch that the caller has not got."""
        return self._taken is not None

    def next(self) -> pa.RecordBatch:
        """The next batch; the one before counts as consumed.

        Raises:
            StopIteration: There is none any more.
            trio.BusyResourceError: Another thread is at it.
            SystemExit: The interpreter is ending, and this is a daemon thread.
            Exception: Whatever the scan raises.

        Cancellation:
            KeyboardInterrupt loses and repeats nothing: the next call goes on.
        """
        me = threading.get_ident()
        if self._caller.setdefault("thread", me) != me:
            raise trio.BusyResourceError("another thread is taking the next batch of this scan")
        try:
            return self._next()
        finally:
            self._caller = {}  # Not `clear()`, behind which Python looks for signals: the batch is taken.

    def _next(self) -> pa.RecordBatch:
        while self._taken is None:  # Again where a signal handler of this thread has taken what came.
            try:
                if self._ready is None:
                    self._portal.read(self._take)
                else:
                    self._portal.take(self)
            except StopAsyncIteration:
                raise StopIteration from None
        # From here on nothing in C is called, behind which Python looks for signals.
        (batch, self._place), self._taken, self._passed = self._taken, None, None
        return batch

    async def _take(self) -> None:
        async with self._taking:
            if self._taken is None:
                try:
                    batch = await anext(self._batches)
                except BaseException:
                    self._passed = self._place_of()
                    raise
                self._taken = batch, self._place_of()

    def take_nowait(self) -> None:
        """Called in the portal's thread: take the next batch, if it is there, for `next`."""
        assert self._ready is not None
        if self._taken is None:
            try:
                batch = self._ready.next_nowait()
            except BaseException:
                self._passed = self._place_of()
                raise
            self._taken = batch, self._place_of()

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """Called in the portal's thread. See `Takeable`."""
        assert self._ready is not None
        self._ready.when_ready(callback)
