"""What changes have undone: of each key that the changes [S, E) touch, what it had at S.

The first change of a key tells: nothing for `+I`, the row that it carries for `-U` and `-D`. They are walked piece by
piece, from S on, and collected in an overlay (`scanner.sources.overlay`). Laid over the state as of E, in key order,
it makes that of S: over a live scan (`scanner.sources.as_of`), or over an image (`scanner.sources.image`).

Invariants:

1. Keys outside the range take no memory. The rest is bounded by `OverlayLimits`.
2. A step and a take are a few milliseconds of work.
3. If the log loses changes of [S, E) before they are read, that is SnapshotLost; later it does not matter.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, compress
from typing import TYPE_CHECKING

import numpy as np

from scanner.errors import DataCorrupted, OffsetOutOfRange, ScannerError, SnapshotLost
from scanner.sources.overlay import Overlay
from scanner.sources.sorted_runs import Entries
from scanner.storage.interface import ChangeKind

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.sources.overlay import OverlayLimits
    from scanner.storage.interface import Bucket, ChangeBlock


class PastChanges:
    """See the module. An error is raised again by every further step.

    Args:
        bucket: Whose changelog is walked.
        log_offset: S.
        end: E, at or above S.
        key_range: What of it.
        limits: Of memory and temporary disk.

    Raises:
        SnapshotLost: The log starts behind S.
    """

    def __init__(
        self, bucket: Bucket, log_offset: int, end: int, key_range: KeyRange, limits: OverlayLimits
    ) -> None:
        self._bucket = bucket
        self.log_offset = log_offset
        self._end = end
        self._range = key_range
        self._limits = limits
        self._next = log_offset
        self.overlay = Overlay(limits)
        """What is collected; it tells what that takes."""
        self._left = Entries([], [])
        """Entries that are taken from the overlay, and were more than could be given."""
        self._reached: bytes | None = None
        """What the overlay has told of them."""
        self._error: ScannerError | None = None
        if log_offset < bucket.log_start:
            raise self._lost()

    @property
    def ready(self) -> bool:
        """Whether everything is collected, so that entries can be taken."""
        return self.overlay.finished

    @property
    def next_key(self) -> bytes | None:
        """The smallest key that has not been taken; None: there is none."""
        return self._left.keys[0] if self._left.keys else self.overlay.next_key

    def step(self) -> None:
        """Do a piece of what makes it ready.

        Raises:
            SnapshotLost: The log no longer holds the changes since S, or they take more disk than they may.
            DataCorrupted: A read failed its checks.
            StoreFailed: The disk refused.
            StoreClosed: The bucket or its store was closed.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            if self.overlay.wants_step:
                self.overlay.step()
            elif self._next < self._end:
                self._add_changes()
            else:
                self.overlay.finish()
                self.overlay.step()
        except ScannerError as error:
            self._error = error
            raise

    def take(self, last_key: bytes | None, count: int, bytes_max: int) -> tuple[Entries, bytes | None]:
        """Remove some of the next entries; see `scanner.sources.image.Changes.take`.

        Raises:
            StoreFailed: The disk refused a read.
            DataCorrupted: The disk gave something else than was written.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            if not self._left.keys:
                self._left, self._reached = self.overlay.take(last_key, count)
        except ScannerError as error:
            self._error = error
            raise
        keys, rows = self._left
        ends = list(accumulate(0 if row is None else len(row) for row in rows))
        fitting = max(1, min(count, bisect_right(ends, bytes_max)))
        self._left = Entries(keys[fitting:], rows[fitting:])
        reached = keys[fitting - 1] if self._left.keys else self._reached
        return Entries(keys[:fitting], rows[:fitting]), reached

    def close(self) -> None:
        """Drop everything. Idempotent."""
        self.overlay.close()
        self._left = Entries([], [])

    def _lost(self) -> SnapshotLost:
        oldest = self._bucket.log_start
        return SnapshotLost(
            f"the log starts at {oldest}, so the state as of {self.log_offset} can no longer be rebuilt;"
            f" start a new scan, or one as of {oldest} or later",
            oldest_offset=oldest,
        )

    def _add_changes(self) -> None:
        start = self._next
        end = min(self._end, start + self._limits.add_entries_max)
        try:
            changes = self._bucket.read_change_block(start, end, self._limits.add_bytes_max)
        except (OffsetOutOfRange, DataCorrupted) as error:
            # Changes that are dropped while they are read look like a damaged log.
            if self._bucket.log_start > start:
                raise self._lost() from error
            raise
        self._next += len(changes)
        keys, rows = first_values(changes, first=start == self.log_offset)
        low, high = self._range
        if low or high:
            inside = [index for index, key in enumerate(keys) if low <= key and (not high or key < high)]
            keys, rows = [keys[index] for index in inside], [rows[index] for index in inside]
        self.overlay.add(keys, rows)


def first_values(changes: ChangeBlock, *, first: bool) -> tuple[list[bytes], list[bytes | None]]:
    """What the changes of a block tell of the state in front of them.

    Args:
        changes: Adjacent changes.
        first: They are the first ones that are walked.

    Returns:
        Keys, in the order of their changes, and what each had before its change: a row, or None if it was absent.

    Raises:
        DataCorrupted: A row is not one of the table.
    """
    # A `+U` follows its `-U`, which was the key's first change already. Only the very first may stand alone.
    telling = changes.kinds != ChangeKind.UPDATE_AFTER
    if first:
        telling[:1] = True
    told = list(compress(changes.rows, telling.tolist()))
    if not told:
        return [], []
    kinds = changes.kinds[telling]
    rows: list[bytes | None] = list(told)
    for index in np.flatnonzero((kinds == ChangeKind.INSERT) | (kinds == ChangeKind.UPDATE_AFTER)).tolist():
        rows[index] = None
    return changes.keys_of(told), rows
