"""How the connections and calls of one event loop share it.

One task runs at a time, and the others wait until it reaches a checkpoint. trio runs every task that is ready once in a
round; so a task that does much between two checkpoints takes more than its share, and the peer that makes it work
decides how much. What is shared out, to whom, and where:

1. *Frames received*, among connections. A reader hands on one turn of frames, about a millisecond whatever the peer
   sends (`protocol/reader.py`), and then lets the others run.
2. *Time*, among connections. A turn that took longer all the same is paid for with as many rounds of the others:
   `TurnDebt`. A peer that is cut off for the work that it made pays before it may come back.
3. *Beginnings of calls*, among connections. The calls of one connection begin in batches of about a millisecond, with
   rounds of the others in between: `CallStarts`. So a thousand calls opened at once delay a call of another connection
   by one batch, which is one call where calls are dear.
4. *DATA frames*, among the streams of a connection: one frame each in turn (`protocol/send_queue.py`).

A round costs microseconds where no other task is ready. So a peer that has a server for itself loses nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import trio

ROUNDS_TO_READ: Final = 3
"""Before the peer is judged by what was read, since the loop may have been held up: in the first round a reader that is
new begins to wait, in the second it learns that there is something to read."""
_ROUND_S: Final = 0.000_25
"""Time of a turn that is paid for with one round."""
_ROUNDS_MAX: Final = 100
_ROUNDS_AFTER_BATCH: Final = 6
_BATCH_S: Final = 0.001
"""What the calls of a batch may do first, all of them, before the next batch is made smaller."""
_BATCH_CALLS_MAX: Final = 16


async def give_rounds(count: int) -> None:
    """Let every other task that is ready run `count` times.

    Cancellation:
        The rounds that are left are not given.
    """
    for _ in range(count):
        await trio.lowlevel.checkpoint()


class TurnDebt:
    """The rounds that a connection owes the others for its reader's last turn, one for a quarter of a millisecond."""

    __slots__ = ("_rounds",)

    def __init__(self) -> None:
        self._rounds = 0

    async def pay_for(self, seconds: float) -> None:
        """Give the rounds for a turn that took so long."""
        self._rounds = min(int(seconds / _ROUND_S), _ROUNDS_MAX)
        for _ in range(self._rounds):  # not `give_rounds`: after every read, one coroutine is less
            await trio.lowlevel.checkpoint()

    async def pay_again(self) -> None:
        """Give the rounds for the last turn once more: before a connection that has failed is closed."""
        await give_rounds(self._rounds)


class Call(Protocol):
    """A call that was accepted, and has not begun."""

    @property
    def over(self) -> bool:
        """Whether it has ended before it began."""

    def begin(self) -> None:
        """Start its task, unless the call is over."""

    def drop(self) -> None:
        """It will not begin: the connection is gone."""


class CallStarts:
    """The order in which the calls of one connection begin: in batches, with rounds for the other connections between.

    What calls do first decides how many a batch has. It begins with one, doubles while they take less than half a
    millisecond together, and is cut back in proportion when they take more than one, the rounds of others included.

    A call that was reset counts until its task has ended. One that was opened in its place waits for that, and is not
    refused: a stream that was reset is closed (RFC 9113 section 5.1.2), so its peer may open another one.

    Args:
        calls_max: Calls that run at a time.
    """

    __slots__ = ("_batch_calls", "_beginning", "_calls_max", "_ended", "_running", "_waiting")

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._running = 0
        self._ended = trio.Event()
        """Set when a call ends."""
        self._waiting: deque[Call] = deque()
        self._batch_calls = 1
        self._beginning = False

    @property
    def waiting(self) -> bool:
        """Whether a call waits for its beginning."""
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no call runs, and none waits."""
        return not self._running and not self._waiting

    def begun(self) -> None:
        """The task of a call was started."""
        self._running += 1

    def ended(self) -> None:
        """It has ended."""
        self._running -= 1
        self._ended.set()

    def add(self, call: Call, nursery: trio.Nursery) -> None:
        """Let a call begin in its turn; the order among the calls of a batch is trio's.

        Args:
            call: `begin` or `drop` will be called, once.
            nursery: For the task that lets calls begin, while there are any.
        """
        if len(self._waiting) >= self._calls_max:
            self._drop_over()
        self._waiting.append(call)
        if not self._beginning:
            self._beginning = True
            nursery.start_soon(self._begin_all, name="calls begin")

    async def _begin_all(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                while self._running >= self._calls_max:
                    self._ended = trio.Event()
                    await self._ended.wait()
                began = trio.current_time()
                for _ in range(min(self._batch_calls, len(waiting), self._calls_max - self._running)):
                    waiting.popleft().begin()
                await give_rounds(2)  # in the first of which all of them have begun
                self._fit_batch(trio.current_time() - began)
                await give_rounds(_ROUNDS_AFTER_BATCH - 2)
        finally:
            self._beginning = False
            while waiting:  # cancelled
                waiting.popleft().drop()

    def _drop_over(self) -> None:
        """Of calls that are not over there are no more than streams; a peer may open and reset any number meanwhile."""
        for _ in range(len(self._waiting)):
            call = self._waiting.popleft()
            if call.over:
                call.drop()
            else:
                self._waiting.append(call)

    def _fit_batch(self, seconds: float) -> None:
        if seconds > _BATCH_S:
            self._batch_calls = max(1, int(self._batch_calls * _BATCH_S / seconds))
        elif seconds < _BATCH_S / 2:
            self._batch_calls = min(2 * self._batch_calls, _BATCH_CALLS_MAX)
