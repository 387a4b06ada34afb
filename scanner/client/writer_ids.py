"""The ids by which a server recognises what a client's writers send again.

Invariants:

1. An id is one writer's at a time, and its numbers only rise. Two writers of one id and number would be taken for one.
2. A server remembers a limited number of writers for each bucket. So a client reuses ids, and draws for each table only
   as many as it has writers at a time. The id that was returned last is taken first: a write that repeats a failed one
   then has its id, so what the failed one left in the network arrives too late to be applied. Writers of other tables
   have other ids: they would reach none of its buckets.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

_WRITER_ID_BYTES: Final = 16


class WriterId:
    """An id, and the numbers that were given to its requests."""

    def __init__(self) -> None:
        self.octets = secrets.token_bytes(_WRITER_ID_BYTES)
        self._sequence = 0

    def next_sequence(self) -> int:
        """The number of the next request, from 1 on."""
        self._sequence += 1
        return self._sequence


class WriterIds:
    """The ids of one client that no writer has now."""

    def __init__(self) -> None:
        self._free: dict[int, list[WriterId]] = {}
        """By table."""
        self._process = os.getpid()

    def take(self, table_id: int) -> WriterId:
        """An id for one writer of a table; `give_back` it when it sends nothing any more."""
        if self._process != os.getpid():
            # A forked process has the ids of its parent, which keeps counting.
            self._free.clear()
            self._process = os.getpid()
        free = self._free.get(table_id)
        return free.pop() if free else WriterId()

    def give_back(self, table_id: int, writer_id: WriterId) -> None:
        """Let another writer of the table have it."""
        self._free.setdefault(table_id, []).append(writer_id)
