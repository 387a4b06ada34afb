"""The time limit on the first message of a call.

A call without a message costs its client a frame and its server a task, and its handler waits. The table of streams is
in the order in which they were opened, so a search ends at the first one that still has time; there is at most one
search every quarter of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from transport.protocol.state import StreamState

if TYPE_CHECKING:
    from transport.protocol.stream import StreamCore


class FirstMessages:
    """The time limit on first messages.

    Args:
        limit_s: Seconds from a call's opening; 0: none.
    """

    __slots__ = ("_limit_s", "deadline")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.deadline = math.inf
        """When `overdue` next may have something; infinity: never."""

    def opened(self, now: float) -> None:
        """A call was opened."""
        if self._limit_s and self.deadline == math.inf:
            self.deadline = now + self._limit_s

    def overdue(self, streams: Iterable[StreamCore], now: float) -> list[StreamCore]:
        """The calls that have said nothing for too long; to be called when the deadline has come."""
        if now < self.deadline:
            return []
        found, self.deadline = [], math.inf
        for stream in streams:
            if stream.body_bytes or stream.state is not StreamState.OPEN or stream.end_requested:
                continue
            due = now + self._limit_s - stream.stalls.lifetime_ns(now) / 1e9
            if due > now + 1e-6:  # lifetimes are whole nanoseconds
                self.deadline = max(due, now + self._limit_s / 4)
                break
            found.append(stream)
        return found
