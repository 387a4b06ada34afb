"""A bucket as of a log offset that has passed, from its state now and the changes since.

Let S be the offset and E the log end when the live scan was opened. Of the changes in [S, E), the first one
of a key tells what the key had at S: nothing for `+I`, the row that it carries for `-U` and `-D`. This overlay
(`scanner.sources.overlay`) is built first, piece by piece. Then it is merged with the live scan in key order,
where an entry of the overlay stands in for the live row of its key, or for none.

The state as of S is what the changes with an offset below S produce, where `-U` and `-D` take a row away and
`+I` and `+U` put one. So it is defined for every S: where S is between `-U` and `+U` of one update, the
key is absent. No commit ends there, so offsets of scans, writes and tokens are never such a one.

Invariants:

1. The rows are those of the state as of S in the key range, each once, in key order, as they were stored. What
   is committed meanwhile does not show.
2. Keys outside the range take no memory. The rest is bounded by `OverlayLimits`, and by one read.
3. A read does a few milliseconds of work. One that has no rows to show for it is unfinished, not the end.
4. If the log loses changes of [S, E) before they are read, that is SnapshotLost; later it does not matter.
5. The end is said when the live scan has proven its own and the overlay is used up.

Cost: all changes of [S, E) are walked, whatever the range. With `python -m bench as-of`, a million changes
spread over a million rows: 600 000 changes, and then 560 000 decoded rows, a second of CPU, where a live scan
has 2 300 000 rows.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, compress, islice
from typing import TYPE_CHECKING, Final

import numpy as np

from scanner.errors import DataCorrupted, OffsetOutOfRange, ScannerError, SnapshotLost, StoreClosed
from scanner.sources.overlay import Overlay, OverlayLimits
from scanner.storage.interface import BucketScan, ChangeKind, Rows

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.sources.sorted_runs import Entries
    from scanner.storage.interface import Bucket, ChangeBlock, KeysOf

_MERGE_ENTRIES: Final = 1024
"""Entries of the overlay, about, that are merged at once: a millisecond or two."""

_MERGE_ROWS: Final = 2048
"""Live rows that are merged at once where changes are dense: two milliseconds, working out their keys."""


def _no_keys(rows: Sequence[bytes]) -> list[bytes]:
    assert not rows
    return []


_UNFINISHED: Final = Rows([], _no_keys, unfinished=True)


class AsOfScan:
    """One pass over a key range of a bucket as of a passed offset. See `BucketScan`.

    Args:
        bucket: Its changes since then are read.
        live: A scan of the same key range as of now, made between two commits. This scan owns it from now on;
            it is closed at once if this raises.
        log_offset: S: the changes with a smaller offset are shown, and no other.
        key_range: That of `live`.
        limits: Of memory and temporary disk.

    Raises:
        SnapshotLost: The log starts behind S.
        OffsetOutOfRange: S is past the offset of `live`.
    """

    def __init__(
        self, bucket: Bucket, live: BucketScan, log_offset: int, key_range: KeyRange, limits: OverlayLimits
    ) -> None:
        self._bucket = bucket
        self._live = live
        self._log_offset = log_offset
        self._range = key_range
        self._limits = limits
        self._overlay = Overlay(limits)
        self._next_change = log_offset
        self._built = False
        self._keys: list[bytes] = []
        self._rows: list[bytes] = []
        """Live rows that are read and not merged, and in `_keys` their keys."""
        self._bound: bytes | None = None
        """The key that merging goes up to before the live scan is read on; None: up to its end."""
        self._touched = False
        """Changes touch the block of live rows that was read last, so the next one is kept small."""
        self._live_ended = False
        self._keys_of: KeysOf = _no_keys
        self._ready: list[bytes] = []
        """Merged rows that were more than one read could give."""
        self._error: ScannerError | None = None
        try:
            if log_offset > live.log_offset:
                raise OffsetOutOfRange(
                    f"the log ends at {live.log_offset}; a scan as of {log_offset} is not possible yet",
                    oldest_offset=bucket.log_start,
                )
            if log_offset < bucket.log_start:
                raise self._lost()
        except ScannerError as error:
            self._fail(error)
            raise

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""
        return self._log_offset

    @property
    def overlay_bytes(self) -> int:
        """Estimate of the memory that the overlay takes now."""
        return self._overlay.memory_bytes

    @property
    def overlay_entries(self) -> int:
        """Entries that the overlay was built of so far."""
        return self._overlay.entries

    @property
    def spilled_bytes(self) -> int:
        """Bytes that the overlay has written to temporary files so far."""
        return self._overlay.spilled_bytes

    @property
    def building(self) -> bool:
        """Whether the overlay is still being built, so that reads give no rows."""
        return not self._built

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """See `BucketScan.read`.

        Raises:
            SnapshotLost: The log no longer holds the changes since S, or they take more disk than they may.
            DataCorrupted: A read failed its checks, or the end could not be proven.
            StoreFailed: The disk refused.
            StoreClosed: The scan, its bucket or its store was closed.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            if not self._built:
                self._build()
                return _UNFINISHED
            if not self._ready:
                untouched = self._read_on(rows_max, bytes_max)
                if untouched is not None:
                    return untouched
            return self._cut(rows_max, bytes_max)
        except ScannerError as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """See `BucketScan.close`."""
        self._fail(StoreClosed(f"this scan as of {self._log_offset} was closed"))

    def _fail(self, error: ScannerError) -> None:
        if self._error is None:
            self._error = error
        self._keys, self._rows, self._ready = [], [], []
        self._overlay.close()
        self._live.close()

    def _lost(self) -> SnapshotLost:
        oldest = self._bucket.log_start
        return SnapshotLost(
            f"the log starts at {oldest}, so the state as of {self._log_offset} can no longer be rebuilt;"
            f" start a new scan, or one as of {oldest} or later",
            oldest_offset=oldest,
        )

    def _build(self) -> None:
        """Do one piece of what makes the overlay."""
        if self._overlay.wants_step:
            self._overlay.step()
        elif self._next_change < self._live.log_offset:
            self._add_changes()
        else:
            self._overlay.finish()
            self._overlay.step()
        self._built = self._overlay.finished

    def _add_changes(self) -> None:
        start = self._next_change
        end = min(self._live.log_offset, start + self._limits.add_entries_max)
        try:
            changes = self._bucket.read_change_block(start, end, self._limits.add_bytes_max)
        except (OffsetOutOfRange, DataCorrupted) as error:
            # Changes that are dropped while they are read look like a damaged log.
            if self._bucket.log_start > start:
                raise self._lost() from error
            raise
        self._next_change += len(changes)
        keys, rows = first_values(changes, first=start == self._log_offset)
        low, high = self._range
        if low or high:
            inside = [index for index, key in enumerate(keys) if low <= key and (not high or key < high)]
            keys, rows = [keys[index] for index in inside], [rows[index] for index in inside]
        self._overlay.add(keys, rows)

    def _read_on(self, rows_max: int, bytes_max: int) -> Rows | None:
        """Merge what follows into `_ready`, after reading live rows if there are none left.

        Returns:
            None, or what is to be given as it is: rows that no change touches, or the end.
        """
        if self._bound is None and not self._live_ended:
            live = self._live.read(min(rows_max, _MERGE_ROWS) if self._touched else rows_max, bytes_max)
            if live.unfinished:
                return live
            self._keys_of = live.keys_of
            self._live_ended = not len(live)
            next_key = self._overlay.next_key
            if live.last_key is not None:
                self._touched = next_key is not None and next_key <= live.last_key
                if not self._touched:
                    return live
                self._bound = live.last_key
                self._keys, self._rows = live.keys_of(live.rows), live.rows
        if self._live_ended and self._overlay.next_key is None:
            self._overlay.close()
            return Rows([], self._keys_of)
        self._merge()
        return None

    def _merge(self) -> None:
        """Merge the next piece of the overlay with the live rows up to the same key."""
        entries, reached = self._overlay.take(self._bound, _MERGE_ENTRIES)
        keys, rows = self._keys, self._rows
        if reached == self._bound:
            self._keys, self._rows, self._bound = [], [], None
        elif reached is not None:
            count = bisect_right(keys, reached)
            self._keys, self._rows = keys[count:], rows[count:]
            keys, rows = keys[:count], rows[:count]
        self._ready = overlaid(keys, rows, entries)

    def _cut(self, rows_max: int, bytes_max: int) -> Rows:
        """Give what is ready, as far as it fits."""
        if not self._ready:
            return _UNFINISHED
        ends = list(accumulate(map(len, islice(self._ready, rows_max))))
        count = max(1, bisect_right(ends, bytes_max))
        rows, self._ready = self._ready[:count], self._ready[count:]
        return Rows(rows, self._keys_of)


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


def overlaid(keys: list[bytes], rows: list[bytes], entries: Entries) -> list[bytes]:
    """Rows in key order, with entries in place of the rows of the same keys, and between the others.

    Args:
        keys: Of the rows, ascending.
        rows: As many.
        entries: Keys ascending.
    """
    merged: dict[bytes, bytes | None] = dict(zip(keys, rows, strict=True))
    merged.update(zip(*entries, strict=True))
    # Without a new key the rows are in order; else the sort finds two sorted runs and merges them.
    values = merged.values() if len(merged) == len(keys) else map(merged.__getitem__, sorted(merged))
    return [row for row in values if row is not None]
