"""The timer of the tails that wait for a commit: one for all of a server, since none of them has one of its own.

Invariants:

1. A tail that is idle sends a heartbeat before its interval is over, give or take the time of one round.
2. Heartbeats of one connection are made in one turn, or few, so they leave in one write, or few.
3. The commit-time floor that they tell was made durable in the same round, or a little before.

An idle tail costs its place in a dict, and one comparison a round. This module knows no stream and no message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, Protocol

import trio

from scanner.server.fairness import pass_turn

_ROUNDS: Final = 10
"""In one interval: a heartbeat comes early by up to a round, and tails of one connection soon have theirs together."""
_BEATS_IN_TURN: Final = 64
"""A few milliseconds of work."""
_FLOOR_AGE: Final = 0.1
"""Of the interval; a floor that is newer is told again."""


class IdleTail(Protocol):
    """A scan that waits for a commit."""

    @property
    def sent_at(self) -> float:
        """When it sent something last; seconds of trio's clock."""

    def beat(self) -> None:
        """Send a heartbeat, or have its task see why it cannot; does not wait."""


class IdleTails:
    """The idle tails of one server.

    Args:
        interval_s: The longest silence of one, seconds.
        refresh_floor: Makes a commit-time floor durable that is not older than so many microseconds.
    """

    def __init__(self, interval_s: float, refresh_floor: Callable[[int], Awaitable[None]]) -> None:
        self._interval_s = interval_s
        self._refresh_floor = refresh_floor
        self._tails: dict[int, dict[IdleTail, None]] = {}
        """By connection."""

    @contextmanager
    def idle(self, connection_id: int, tail: IdleTail) -> Iterator[None]:
        """Count a tail as idle for the time of the block.

        Args:
            connection_id: Number of its connection.
            tail: Woken when its heartbeat is due.
        """
        tails = self._tails.setdefault(connection_id, {})
        tails[tail] = None
        try:
            yield
        finally:
            del tails[tail]
            if not tails and self._tails.get(connection_id) is tails:
                del self._tails[connection_id]

    async def run(self) -> NoReturn:
        """Have every idle tail send its heartbeats.

        Waits:
            Between two rounds; for the disk, for the floor.

        Cancellation:
            No effect; this is how it ends.
        """
        round_s = self._interval_s / _ROUNDS
        while True:
            await trio.sleep(round_s)
            # Those whose silence would be too long at the next round.
            silent_since = trio.current_time() + round_s - self._interval_s
            if not any(self._due(tails, silent_since) for tails in self._tails.values()):
                continue
            await self._refresh_floor(round(self._interval_s * _FLOOR_AGE * 1_000_000))
            for tails in list(self._tails.values()):
                await self._beat(tails, silent_since)

    async def _beat(self, tails: dict[IdleTail, None], silent_since: float) -> None:
        # Not in `run`, which would hold the last of them, and their connection, until others are due.
        due = self._due(tails, silent_since)
        for begin in range(0, len(due), _BEATS_IN_TURN):
            for tail in due[begin : begin + _BEATS_IN_TURN]:
                if tail in tails:
                    tail.beat()
            await pass_turn()

    @staticmethod
    def _due(tails: dict[IdleTail, None], silent_since: float) -> list[IdleTail]:
        return [tail for tail in tails if tail.sent_at < silent_since]
