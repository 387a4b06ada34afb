"""The hand-off between the tasks that receive the buckets of a table scan and its one consumer.

Invariants:

1. What waits here is bounded by its producers: a push stream by its credit, a session by its page depth. Neither
   gets room back before the consumer asks for the batch after (`Delivery.consumed`).
2. The end is reported once every producer has finished and every batch is taken, and stays reported.
3. A failure is reported at once, stays reported, and is never an end; batches that wait are dropped with it.
4. Buckets take turns (`scanner.client.scan.turns`): one that has much does not hold up one that has little.
5. State changes are synchronous; `take` waits only for something to report, so cancelling it loses nothing. A consumer
   in another thread waits without a task (`when_ready`).

Where the scan's time goes is accounted here: CONSUMER while a batch waits and nobody asks for it, PEER while the
consumer waits for one, RUNNING otherwise. Of transport this module knows that account, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from scanner.client.scan.turns import Turns
from transport import StallAccount, StallReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.client.scan.turns import Delivery


class HandOff:
    """A queue of batches, in turns between buckets, with an explicit end and a lasting failure.

    Args:
        producers: How many have to call `finish` before the end, >= 0.
    """

    def __init__(self, producers: int) -> None:
        self._unfinished = producers
        self._waiting = Turns()
        self._in_hand: Delivery | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._cut_short = False
        """Whether it was ended before its producers had finished: they may not know yet."""
        self._taking = False
        self._changed = trio.Event()
        self._when_ready: Callable[[], None] | None = None
        self.rows = 0
        """Rows of all batches that were put."""
        self.held_bytes = 0
        """Message bytes that wait here or are in the consumer's hands."""
        self.held_bytes_max = 0
        self.first_put_at: float | None = None
        """When the first batch was put, in seconds of `trio.current_time()`; None until then."""
        self._consumed = trio.Event()
        self.stalls = StallAccount(trio.current_time())
        """Ends when the end or a failure is reported, or the scan is left."""

    def put(self, delivery: Delivery) -> None:
        """Add a batch. After a failure, `end` or a close it is dropped."""
        if self._failure is not None or self._closed or self._cut_short:
            return
        if self.first_put_at is None and delivery.size:
            self.first_put_at = trio.current_time()
        self._waiting.put(delivery)
        self.rows += delivery.batch.num_rows
        if not self._taking and not self.stalls.behind:
            self.stalls.fall_behind(trio.current_time())
        self.held_bytes += delivery.size
        self.held_bytes_max = max(self.held_bytes_max, self.held_bytes)
        self._tell()

    def finish(self, producers: int = 1) -> None:
        """Say that so many producers have put their last batch."""
        self._unfinished -= producers
        self._tell()

    def take_back_finish(self) -> bool:
        """Let one that has finished put more, unless everything was taken.

        Returns:
            Whether it may; else the end stays.
        """
        if not self._waiting.ready:
            return False
        self._unfinished += 1
        return True

    def fail(self, error: Exception) -> None:
        """End with a failure; the first one counts, and none after the end."""
        if self._failure is None and not self._closed and not self._ended:
            self._failure = error
            self._drop()

    def end(self) -> None:
        """End now, in good order: drop what waits and what still comes, report the end."""
        self._unfinished, self._cut_short = 0, True
        self._drop()

    def close(self) -> None:
        """Drop everything. An end or a failure that was reported stays so."""
        if not self._ended:
            self._closed = True
        self.stalls.finish(trio.current_time())
        self._drop()

    @property
    def waits(self) -> bool:
        """Whether `take` would wait."""
        return not self._reportable

    @property
    def _ended(self) -> bool:
        return self._unfinished <= 0 and not self._waiting.ready

    @property
    def _reportable(self) -> bool:
        return bool(self._waiting.ready or self._closed or self._failure or self._ended)

    def _drop(self) -> None:
        self._waiting.clear()
        self._in_hand = None
        self.held_bytes = 0
        self._consumed.set()
        self._tell()

    def _tell(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        if self._when_ready is not None and self._reportable:
            callback = self._when_ready
            self.when_ready(None)
            callback()

    def release(self) -> None:
        """Count the batch in the consumer's hands, if there is one, as consumed."""
        delivery, self._in_hand = self._in_hand, None
        if delivery is not None:
            self.held_bytes -= delivery.size
            self._consumed.set()
            delivery.consumed()

    async def wait_consumed(self, bucket: int) -> None:
        """Wait until nothing of this bucket waits or is in the consumer's hands.

        Cancellation:
            No effect.
        """
        while self._waiting.has(bucket) or (self._in_hand is not None and self._in_hand.bucket == bucket):
            if self._consumed.is_set():  # Several buckets may wait on the same event.
                self._consumed = trio.Event()
            await self._consumed.wait()

    async def take(self) -> Delivery | None:
        """Count the batch taken before as consumed, and take the next.

        Returns:
            The next batch; None at the end, now and for ever.

        Raises:
            Exception: The failure, now and for ever.
            trio.ClosedResourceError: The scan was left before its end.
            trio.BusyResourceError: Another task is taking.

        Waits:
            For a batch, the end or a failure.

        Cancellation:
            Loses and repeats nothing.
        """
        if self._taking:
            raise trio.BusyResourceError("another task is waiting for the next batch of this scan")
        self.release()
        self._taking = True
        try:
            await trio.lowlevel.checkpoint()
            if not self._reportable:
                self.stalls.enter(StallReason.PEER, trio.current_time())
                try:
                    while not self._reportable:
                        self._changed = trio.Event()
                        await self._changed.wait()
                finally:
                    self.stalls.leave(StallReason.PEER, trio.current_time())
        finally:
            self._taking = False
        return self._next()

    def take_nowait(self) -> Delivery | None:
        """As `take`, but never waits.

        Raises:
            trio.WouldBlock: There is nothing to report; the batch taken before counts as consumed all the same.
        """
        if self._taking:
            raise trio.BusyResourceError("another task is waiting for the next batch of this scan")
        self.release()
        if not self._reportable:
            raise trio.WouldBlock
        return self._next()

    def when_ready(self, callback: Callable[[], None] | None) -> None:
        """Have a function called once, as soon as there is something to report: a wait without a task.

        Args:
            callback: After `take_nowait` would have blocked; called amidst whatever brings it about, so it does not
                raise. None: nobody waits any more.
        """
        self._when_ready, self._taking = callback, callback is not None
        note = self.stalls.leave if callback is None else self.stalls.enter
        note(StallReason.PEER, trio.current_time())

    def _next(self) -> Delivery | None:
        ready = self._waiting.ready
        if not ready:
            self._report_end()
            return None
        delivery = self._in_hand = self._waiting.take()
        if not ready and self.stalls.behind:
            self.stalls.catch_up(trio.current_time())
        return delivery

    def _report_end(self) -> None:
        """Nothing waits, and nothing will: return if that is the end, else raise why."""
        self.stalls.finish(trio.current_time())
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise trio.ClosedResourceError("the scan was left; execute it again")
