"""Reads of a bucket's changelog: changes in blocks, entries, and where a time is.

Invariants:

1. What is read is [start, end) of the range that the bucket names at that moment; a truncation that overtakes a read is
   told as OffsetOutOfRange, never as a change that is missing.
2. The database is held for one read at a time, and never between two.

This module knows no commit: the bucket says what its log's range is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scanner.data.row_block import RowBlock
from scanner.errors import DataCorrupted, OffsetOutOfRange
from scanner.storage.interface import ChangeBlock, Entry, EntrySize, KeysOf
from scanner.storage.rocksdb.changelog import LogRange, entry_of
from scanner.storage.rocksdb.log import read_chunk, read_chunks, read_entry_sizes

if TYPE_CHECKING:
    from scanner.storage.rocksdb.database import Database


class LogReader:
    """Reads the changelog of one bucket.

    Args:
        path: Of the bucket, for messages.
        keys_of: Keys of stored rows.
        using: The database, which is not closed before the block ends.
        require_open: Raises StoreClosed if the bucket is closed.
        log_range: The range of the log, now.
    """

    def __init__(
        self,
        path: Path,
        keys_of: KeysOf,
        using: Callable[[], AbstractContextManager[Database]],
        require_open: Callable[[], None],
        log_range: Callable[[], LogRange],
    ) -> None:
        self._path = path
        self._keys_of = keys_of
        self._using = using
        self._require_open = require_open
        self._log_range = log_range

    def block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """See `Bucket.read_change_block`."""
        self._require_open()
        self._require_range(start_offset, end_offset)
        if start_offset == end_offset:
            return ChangeBlock(
                start_offset,
                np.empty(0, np.uint8),
                np.empty(0, np.int64),
                RowBlock.join([]),
                start_offset,
                self._keys_of,
            )
        return self._read_block(start_offset, end_offset, bytes_max)

    def offset_at(self, timestamp_us: int) -> int:
        """See `Bucket.offset_at`."""
        self._require_open()
        log_range = self._log_range()
        low, high = log_range.start, log_range.end
        while low < high:
            try:
                entry = self.entry_at((low + high) // 2)[0]
            except OffsetOutOfRange:
                # What was truncated meanwhile is out of the question, and what a bucket that was opened anew has lost.
                log_range = self._log_range()
                low, high = max(low, log_range.start), min(high, log_range.end)
                continue
            if entry.timestamp_us < timestamp_us:
                low = entry.end
            else:
                high = entry.start
        return self.share_start(min(low, self._log_range().end))

    def share_start(self, offset: int) -> int:
        """See `Bucket.share_start`."""
        self._require_open()
        try:
            while self._log_range().start < offset < self._log_range().end:
                entry = self.entry_at(offset)[0]
                if not entry.continues:
                    return entry.start
                offset = entry.start - 1
        except OffsetOutOfRange:
            pass  # What was truncated meanwhile is out of the question.
        return max(offset, self._log_range().start)

    def entry_at(self, offset: int) -> tuple[Entry, bytes]:
        """The entry that holds an offset, and the key of the chunk of it that does."""
        self._require_open()
        log_range = self._log_range()
        if not log_range.start <= offset < log_range.end:
            raise self._out_of_range(offset, offset + 1)
        with self._using() as database:
            found = read_chunk(database, offset)
        if found is None:
            if offset < self._log_range().start:
                raise self._out_of_range(offset, offset + 1)
            raise self._missing(offset)
        key, value = found
        return entry_of(key, value), key

    def entry_sizes(self, start_offset: int, entries_max: int, bytes_max: int) -> list[EntrySize]:
        """See `Bucket.measure_entries`."""
        self._require_open()
        self._require_range(start_offset, log_end := self._log_range().end)
        if start_offset == log_end:
            return []
        with self._using() as database:
            sizes, whole = read_entry_sizes(database, start_offset, log_end, entries_max, bytes_max)
        if start_offset < self._log_range().start:
            raise self._out_of_range(start_offset, log_end)
        if not whole:
            raise self._missing(sizes[-1].end if sizes else start_offset)
        return sizes

    def _read_block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """At least one change of a range of the log that is not empty."""
        with self._using() as database:
            chunks, whole = read_chunks(database, start_offset, end_offset, bytes_max)
        if start_offset < self._log_range().start:
            raise self._out_of_range(start_offset, end_offset)
        if not whole:
            raise self._missing(max(start_offset, chunks.end))
        kinds, rows = chunks.changes()
        first = start_offset - chunks.offset
        wanted = rows.slice(first, min(len(rows), end_offset - chunks.offset))
        wanted = wanted.slice(0, max(1, wanted.fitting(bytes_max)))
        last = first + len(wanted)
        counts = np.diff(chunks.ends, prepend=0)
        timestamps = np.array([entry.timestamp_us for entry in chunks.entries], np.int64)
        return ChangeBlock(
            start_offset,
            kinds[first:last],
            timestamps.repeat(counts)[first:last],
            wanted,
            chunks.entries[bisect_left(chunks.ends, last)].end,
            self._keys_of,
        )

    def _require_range(self, start_offset: int, end_offset: int) -> None:
        log_range = self._log_range()
        if not log_range.start <= start_offset <= end_offset <= log_range.end:
            raise self._out_of_range(start_offset, end_offset)

    def _missing(self, offset: int) -> DataCorrupted:
        return DataCorrupted(f"{self._path}: the change at offset {offset} is missing")

    def _out_of_range(self, start_offset: int, end_offset: int) -> OffsetOutOfRange:
        log_range = self._log_range()
        return OffsetOutOfRange(
            f"changes [{start_offset}, {end_offset}) are not in the log [{log_range.start}, {log_range.end})",
            oldest_offset=log_range.start,
        )
