"""What changes have undone: of each key that the changes [S, E) touch, what it had at S.

The first change of a key tells: nothing for `+I`, the row that it carries for `-U` and `-D`. They are walked piece by
piece, from S on, and collected in an overlay (`scanner.sources.overlay`). Laid over the state as of E, in key order,
it makes that of S: over a live scan (`scanner.sources.as_of`), or over an image (`scanner.sources.image`).

Scans of one bucket as of the same S share what they collect (`SharedPast`), but for the first of them: one alone keeps
its range only, and may use the disk. What changes behind a scan's E have undone does no harm: a key that they are the
first to touch had at S what it has at E.

Invariants:

1. Of a scan that collects for itself keys outside the range take no memory. The rest is bounded by `OverlayLimits`,
   and so is what is shared, by as much of memory; scans that it does not suffice for collect for themselves.
2. A step and a take are a few milliseconds of work.
3. If the log loses changes of [S, E) before they are read, that is SnapshotLost; later it does not matter.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Final

import numpy as np

from scanner.data.keys import successor
from scanner.errors import DataCorrupted, OffsetOutOfRange, ScannerError, SnapshotLost
from scanner.sources.overlay import Overlay
from scanner.sources.sorted_keys import SortedKeys
from scanner.sources.sorted_runs import ENTRY_BYTES, Entries
from scanner.storage.interface import ChangeKind

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.sources.overlay import OverlayLimits
    from scanner.storage.interface import Bucket, ChangeBlock

_SORTED_AT_ONCE: Final = 1024
"""Entries, about, that are put in order at once: a millisecond or two."""


class SharedPast:
    """What changes from S on have undone in a bucket, in memory, for all scans that show S. Not of one that has ended.

    It is collected once, up to the E of whichever scan asks, and sorted. What a scan with a later E has to add to it is
    put between.

    Args:
        bucket: Whose changelog is walked.
        log_offset: S.
        limits: Of its memory; and of the memory and temporary disk of each scan that collects for itself.
    """

    def __init__(self, bucket: Bucket, log_offset: int, limits: OverlayLimits) -> None:
        self.bucket = bucket
        self.log_offset = log_offset
        self.limits = limits
        self._scans = 0
        self._begin()

    def _begin(self) -> None:
        self._collected: Overlay | None = Overlay(self.limits)
        """Until it is sorted; None: it is."""
        self._rows: dict[bytes, bytes | None] = {}
        self._keys = SortedKeys()
        """Those of `_rows`."""
        self._late: dict[bytes, int] = {}
        """Those of them that were put between: where the log ended for it before."""
        self._end = self.log_offset
        """The changes with a smaller offset are in it."""
        self.memory_bytes = 0
        """Estimate of what it takes."""

    def join(self) -> bool:
        """Count a scan of S that has begun; whether it is to use this, as others show S, too. It calls `leave` once."""
        self._scans += 1
        return self._scans > 1 and not self.is_full

    def leave(self) -> None:
        """Count a scan that has ended; with the last one all is dropped."""
        self._scans -= 1
        if not self._scans:  # The traceback of an error may keep this until Python looks for cycles.
            if self._collected is not None:
                self._collected.close()
            self._begin()

    @property
    def is_full(self) -> bool:
        """Whether it takes as much as it may, and gets no more."""
        return self.memory_bytes >= self.limits.bytes_max * 3 // 4

    def ready(self, end: int) -> bool:
        """Whether it has the changes up to an offset, in order. Once it has, that stays so."""
        return self._collected is None and self._end >= end

    def step(self, end: int) -> None:
        """Do a piece of what makes it ready; it is not full.

        Raises:
            ScannerError: As `PastChanges.step`.
        """
        collected = self._collected
        if collected is None:
            self._put_between(end)
        elif collected.wants_step:
            collected.step()
        elif collected.next_key is not None:
            entries, _ = collected.take(None, _SORTED_AT_ONCE)
            self._rows.update(zip(*entries, strict=True))
            self._keys.append(entries.keys)
        elif collected.finished:
            self._collected = None
        elif self._end < end:
            collected.add(*self._read(end))
            self.memory_bytes = collected.memory_bytes
            if self.is_full:  # Nobody uses it yet, and nobody will.
                collected.close()
        else:
            collected.finish()

    def keys(self, start: bytes, end: bytes, count: int) -> list[bytes]:
        """The first keys of a range, ascending: `count` of them, or all that there are."""
        keys = self._keys.first(start, count)
        return keys[: bisect_left(keys, end)] if end else keys

    def entries(self, keys: list[bytes], end: int) -> Entries:
        """What some of its keys had, but for those that came when it was ready for this E: a scan may be past them."""
        if self._late:
            keys = [key for key in keys if self._late.get(key, -1) < end]
        return Entries(keys, list(map(self._rows.__getitem__, keys)))

    def _read(self, end: int) -> tuple[list[bytes], list[bytes | None]]:
        count, keys, rows = read_first_values(self.bucket, self.log_offset, self._end, end, self.limits)
        self._end += count
        return keys, rows

    def _put_between(self, end: int) -> None:
        start = self._end
        for key, row in zip(*self._read(end), strict=True):
            if key not in self._rows:
                self._rows[key] = row
                self._keys.add(key)
                self._late[key] = start
                self.memory_bytes += 2 * ENTRY_BYTES + len(key) + len(row or b"")


class PastChanges:
    """See the module. An error is raised again by every further step.

    Args:
        shared: Of all scans of the bucket that show S.
        end: E, at or above S.
        key_range: What of it.

    Raises:
        SnapshotLost: The log starts behind S.
    """

    def __init__(self, shared: SharedPast, end: int, key_range: KeyRange) -> None:
        self._bucket = shared.bucket
        self.log_offset = shared.log_offset
        self._end = end
        self._range = key_range
        self._limits = shared.limits
        self._next = shared.log_offset
        self.overlay = Overlay(shared.limits)
        """What is collected for this scan alone; it tells what that takes."""
        self._left = Entries([], [])
        """Entries that are taken from the overlay, and were more than could be given."""
        self._reached: bytes | None = None
        """What the overlay has told of them."""
        self._start = key_range.start
        """Keys before it are not in the range, or were taken from what is shared."""
        self._error: ScannerError | None = None
        if self.log_offset < self._bucket.log_start:
            raise lost(self._bucket, self.log_offset)
        self._present: SharedPast | None = shared
        """Kept where it is not used, too: who comes meanwhile finds it, and is the second. None: this is closed."""
        self._shared = shared if shared.join() else None
        """None: this scan collects for itself."""

    @property
    def ready(self) -> bool:
        """Whether everything is collected, so that entries can be taken."""
        return self.overlay.finished if self._shared is None else self._shared.ready(self._end)

    @property
    def next_key(self) -> bytes | None:
        """The smallest key that has not been taken; None: there is none."""
        if self._left.keys:
            return self._left.keys[0]
        if self._shared is not None:
            return next(iter(self._shared.keys(self._start, self._range.end, 1)), None)
        return self.overlay.next_key

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
            if self._shared is not None and self._shared.is_full:
                self._shared = None
            if self._shared is not None:
                self._shared.step(self._end)
            elif self.overlay.wants_step:
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
                self._left, self._reached = self._take(last_key, count)
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
        if self._present is not None:
            self._present.leave()
        self._present = self._shared = None
        self._next = self._end

    def _take(self, last_key: bytes | None, count: int) -> tuple[Entries, bytes | None]:
        """As `Overlay.take`."""
        if self._shared is None:
            return self.overlay.take(last_key, count)
        keys = self._shared.keys(self._start, self._range.end, count + 1)
        there = len(keys) if last_key is None else bisect_right(keys, last_key)
        reached = last_key if there <= count else keys[count - 1]
        del keys[min(there, count) :]
        if keys:
            self._start = successor(keys[-1])
        return self._shared.entries(keys, self._end), reached

    def _add_changes(self) -> None:
        count, keys, rows = read_first_values(
            self._bucket, self.log_offset, self._next, self._end, self._limits
        )
        self._next += count
        low, high = self._range
        if low or high:
            inside = [index for index, key in enumerate(keys) if low <= key and (not high or key < high)]
            keys, rows = [keys[index] for index in inside], [rows[index] for index in inside]
        self.overlay.add(keys, rows)


def lost(bucket: Bucket, log_offset: int) -> SnapshotLost:
    """The error for a state that the log no longer reaches back to."""
    oldest = bucket.log_start
    return SnapshotLost(
        f"the log starts at {oldest}, so the state as of {log_offset} can no longer be rebuilt;"
        f" start a new scan, or one as of {oldest} or later",
        oldest_offset=oldest,
    )


def read_first_values(
    bucket: Bucket, log_offset: int, start: int, end: int, limits: OverlayLimits
) -> tuple[int, list[bytes], list[bytes | None]]:
    """Read some changes that follow an offset, as many as may be added at once.

    Args:
        bucket: Whose changelog is read.
        log_offset: S.
        start: Of the first change, at or above S.
        end: Behind the last one that is wanted, above `start`.
        limits: What may be added.

    Returns:
        How many changes were read, and what they tell; see `first_values`.

    Raises:
        ScannerError: As `PastChanges.step`.
    """
    try:
        changes = bucket.read_change_block(
            start, min(end, start + limits.add_entries_max), limits.add_bytes_max
        )
    except (OffsetOutOfRange, DataCorrupted) as error:
        # Changes that are dropped while they are read look like a damaged log.
        if bucket.log_start > start:
            raise lost(bucket, log_offset) from error
        raise
    return len(changes), *first_values(changes, first=start == log_offset)


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
