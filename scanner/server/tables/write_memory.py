"""The memory of writes on their way to the disk: one bound for the whole server, of which each table leaves some.

A write takes its share before it is decoded and gives it back when all its parts are settled, whatever became of the
stream that sent it. Invariants:

1. What is taken is at most the bound when a share is granted, unless a single write takes it all.
2. A table that has some gets more only as long as it has no more then than is free before: the writes that wait for one
   busy bucket leave half, those for a second one half of that, and the writers of other tables go on.
3. Of a table, shares are granted in the order in which they were asked for; tables take turns. One that has nothing
   waits for no table behind it, so that small writes do not starve a large one.

This module knows no wire and no storage.
"""

from __future__ import annotations

from collections import Counter, deque

import trio


class WriteShare:
    """What one write takes. Made by `WriteMemory.take`."""

    def __init__(self, memory: WriteMemory, table: str, size: int) -> None:
        self._memory = memory
        self._table = table
        self._size = size
        self._parts = 0

    def resize(self, size: int) -> None:
        """Say what it really takes, now that this is known; does not wait."""
        self._memory._change(self._table, size - self._size)
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
        self.resize(0)


class WriteMemory:
    """Grants shares of a bound.

    Args:
        bytes_max: The bound, above 0.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._taken = Counter[str]()
        """By table."""
        self._waiting: dict[str, deque[tuple[int, trio.Event]]] = {}
        """By table, in the order of their turns."""
        self.bytes_taken = 0
        """Octets of writes that are not settled."""

    async def take(self, size: int, table: str) -> WriteShare:
        """Take a share.

        Args:
            size: Octets, 0 or more; one above the bound waits until nothing else is taken.
            table: Whose rows they are; empty where they are staged, and wait for no bucket.

        Waits:
            For room, behind those of the table who wait already.

        Cancellation:
            Nothing is taken.
        """
        entry = (size, trio.Event())
        waiting = self._waiting.setdefault(table, deque())
        waiting.append(entry)
        self._grant()
        if not entry[1].is_set():
            try:
                await entry[1].wait()
            except BaseException:
                if entry[1].is_set():  # granted in the same moment
                    self._change(table, -size)
                else:
                    waiting.remove(entry)
                    if not waiting:
                        del self._waiting[table]
                    self._grant()  # those behind may fit
                raise
        return WriteShare(self, table, size)

    def _change(self, table: str, size: int) -> None:
        self._add(table, size)
        self._grant()

    def _add(self, table: str, size: int) -> None:
        self.bytes_taken += size
        self._taken[table] += size
        if not self._taken[table]:
            del self._taken[table]

    def _grant(self) -> None:
        while (table := self._next()) is not None:
            waiting = self._waiting.pop(table)
            size, event = waiting.popleft()
            if waiting:
                self._waiting[table] = waiting  # behind the other tables
            self._add(table, size)
            event.set()

    def _next(self) -> str | None:
        """The first table that gets what it waits for; None: there is none."""
        free = self._bytes_max - self.bytes_taken
        for table, waiting in self._waiting.items():
            size, taken = waiting[0][0], self._taken[table]
            if taken + size <= free or not self.bytes_taken:
                return table
            if not taken:
                return None  # It gets what is given back next.
        return None
