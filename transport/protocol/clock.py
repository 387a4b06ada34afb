"""The time of a connection: what its shell said last. Nothing in the core reads a clock."""

from __future__ import annotations


class Clock:
    """Shared by the parts of one connection.

    Args:
        now: Seconds of any monotonic clock.
    """

    __slots__ = ("now",)

    def __init__(self, now: float) -> None:
        self.now = now
        """Set by the shell before a verb that begins, blocks or ends a stream, and with all that it receives."""
