"""A bucket as of a log offset that has passed, from its state now and the changes since.

Let S be the offset and E the log end when the live scan was opened. What the changes in [S, E) have undone
(`scanner.sources.past`) is collected first, piece by piece. Then it is merged with the live scan in key order,
where an entry stands in for the live row of its key, or for none.

The state as of S is what the changes with an offset below S produce, where `-U` and `-D` take a row away and
`+I` and `+U` put one. So it is defined for every S: where S is between `-U` and `+U` of one update, the
key is absent. No commit ends there, so offsets of scans, writes and tokens are never such a one.

Invariants:

1. The rows are those of the state as of S in the key range, each once, in key order, as they were stored. What
   is committed meanwhile does not show.
2. What it takes is bounded by `OverlayLimits`, and by one read; `scanner.sources.past` says what is shared.
3. A read does a few milliseconds of work. One that has no rows to show for it is unfinished, not the end.
4. If the log loses changes of [S, E) before they are read, that is SnapshotLost; later it does not matter.
5. The end is said when the live scan has proven its own and the overlay is used up.

Cost: all changes of [S, E) are walked, whatever the range. With `python -m bench as-of`, a million changes
spread over a million rows: 600 000 changes, and then 560 000 decoded rows, a second of CPU, where a live scan
has 2 300 000 rows.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final

from scanner.errors import OffsetOutOfRange, ScannerError, StoreClosed
from scanner.sources.past import PastChanges
from scanner.storage.interface import BucketScan, Rows

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.sources.past import SharedPast
    from scanner.sources.sorted_runs import Entries
    from scanner.storage.interface import KeysOf

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
        live: A scan of the same key range as of now, made between two commits. This scan owns it from now on;
            it is closed at once if this raises.
        shared: Of all scans of the bucket that show S.
        key_range: That of `live`.

    Raises:
        SnapshotLost: The log starts behind S.
        OffsetOutOfRange: S is past the offset of `live`.
    """

    def __init__(self, live: BucketScan, shared: SharedPast, key_range: KeyRange) -> None:
        self._live = live
        self.log_offset = shared.log_offset
        """The scan shows the changes with a smaller offset, and no other."""
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
            if self.log_offset > live.log_offset:
                raise OffsetOutOfRange(
                    f"the log ends at {live.log_offset}; a scan as of {self.log_offset} is not possible yet",
                    oldest_offset=shared.bucket.log_start,
                )
            self.past = PastChanges(shared, live.log_offset, key_range)
            """The changes since S; until they are `ready`, reads give no rows."""
        except ScannerError:
            live.close()
            raise

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
            if not self.past.ready:
                self.past.step()
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
        self._fail(StoreClosed(f"this scan as of {self.log_offset} was closed"))

    def _fail(self, error: ScannerError) -> None:
        if self._error is None:
            self._error = error
        self._keys, self._rows, self._ready = [], [], []
        self.past.close()
        self._live.close()

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
            self._live_ended = live.last or not len(live)
            next_key = self.past.next_key
            if live.last_key is not None:
                self._touched = next_key is not None and next_key <= live.last_key
                if not self._touched:
                    live.last = self._used_up
                    return live
                self._bound = live.last_key
                self._keys, self._rows = live.keys_of(live.rows), live.rows
        if self._used_up:
            self.past.close()
            return Rows([], self._keys_of)
        self._merge()
        return None

    @property
    def _used_up(self) -> bool:
        """Whether there is nothing left to merge."""
        return self._live_ended and self._bound is None and self.past.next_key is None

    def _merge(self) -> None:
        """Merge the next piece of the overlay with the live rows up to the same key."""
        entries, reached = self.past.take(self._bound, _MERGE_ENTRIES, sys.maxsize)
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
        return Rows(rows, self._keys_of, last=not self._ready and self._used_up)


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
