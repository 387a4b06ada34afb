"""How the connections and calls of one event loop share it.

One task runs at a time, and the others wait until it reaches a checkpoint. trio runs every task that is ready once in a
round; so a task that does much between two checkpoints takes more than its share, and the peer that makes it work
decides how much. What is shared out, to whom, and where:

1. *Frames received*, among connections. A reader hands on one turn of frames, about a millisecond whatever the peer
   sends (`protocol/reader.py`), and then lets the others run.
2. *Time*, among connections. A turn that took longer all the same is paid for with as many rounds of the others:
   `TurnDebt`. A peer that is cut off for the work that it made pays before it may come back.
3. *Beginnings of calls*, among connections. The calls of one connection begin one after another, with rounds of the
   others in between: `CallStarts`. So a thousand calls opened at once delay a call of another connection by one.
4. *DATA frames*, among the streams of a connection: one frame each in turn (`protocol/send_queue.py`).

A round costs microseconds where no other task is ready. So a peer that has a server for itself loses nothing.
"""

from __future__ import annotations

from typing import Final

import trio

_ROUND_S: Final = 0.000_25
"""Time of a turn that is paid for with one round."""
_ROUNDS_MAX: Final = 100
_ROUNDS_BEFORE_CALL: Final = 6
"""What a call does first costs about a millisecond."""


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


class CallStarts:
    """The order in which the calls of one connection begin."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = trio.Lock()

    @property
    def waiting(self) -> bool:
        """Whether a call waits for its beginning."""
        return self._next.locked()

    async def wait_turn(self) -> None:
        """Wait until the calls before this one have begun, and the other connections have had their turns.

        Cancellation:
            The next call has its turn.
        """
        async with self._next:
            await give_rounds(_ROUNDS_BEFORE_CALL)
