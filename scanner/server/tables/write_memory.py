"""The memory of writes on their way to the disk: one bound for the whole server.

A write takes its share before it is decoded and gives it back when all its parts are settled, whatever became of the
stream that sent it. Invariants:

1. What is taken is at most the bound when a share is granted, unless a single write takes it all.
2. Shares are granted in the order in which they were asked for, so that small writes do not starve a large one.

This module knows no wire and no storage.
"""

from __future__ import annotations

from collections import deque

import trio


class WriteShare:
    """What one write takes. Made by `WriteMemory.take`."""

    def __init__(self, memory: WriteMemory, size: int) -> None:
        self._memory = memory
        self._size = size
        self._parts = 0

    def resize(self, size: int) -> None:
        """Say what it really takes, now that this is known; does not wait."""
        self._memory._change(size - self._size)
        self._size = size

    def split(self, parts: int) -> None:
        """Say in how many parts it goes on: it is released when `part_done` was called as often."""
        self._parts = parts

    def part_done(self) -> None:
        """One part is settled."""
        self._parts -= 1
        if self._parts <= 0:
            self.release()

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self._memory._change(-self._size)
        self._size = 0


class WriteMemory:
    """Grants shares of a bound.

    Args:
        bytes_max: The bound, above 0.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, trio.Event]] = deque()
        self.bytes_taken = 0
        """Octets of writes that are not settled."""

    async def take(self, size: int) -> WriteShare:
        """Take a share.

        Args:
            size: Octets, 0 or more; one above the bound waits until nothing else is taken.

        Waits:
            For room, behind those who wait already.

        Cancellation:
            Nothing is taken.
        """
        if self._waiting or not self._has_room(size):
            entry = (size, trio.Event())
            self._waiting.append(entry)
            try:
                await entry[1].wait()
            except BaseException:
                if entry[1].is_set():  # granted in the same moment
                    self._change(-size)
                else:
                    self._waiting.remove(entry)
                    self._change(0)  # those behind may fit
                raise
        else:
            self.bytes_taken += size
        return WriteShare(self, size)

    def _has_room(self, size: int) -> bool:
        return not self.bytes_taken or self.bytes_taken + size <= self._bytes_max

    def _change(self, size: int) -> None:
        self.bytes_taken += size
        while self._waiting and self._has_room(self._waiting[0][0]):
            granted, event = self._waiting.popleft()
            self.bytes_taken += granted
            event.set()
