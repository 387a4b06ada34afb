"""A store in memory: a verified fake. It passes the same contract suite as the one on RocksDB.

For tests that must not touch a disk or a thread, such as those on a virtual clock. Written for
obviousness, and on purpose without any code of the real one: where they agree, both are right.

Nothing in it blocks, so a commit needs no worker thread.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from scanner.errors import (
    BucketNotFound,
    OffsetOutOfRange,
    StoreClosed,
    TableExists,
    TableNotFound,
)
from scanner.keys import ALL_KEYS, KeyCodec
from scanner.rows import RowCodec, keys_of_rows
from scanner.storage.interface import Change, ChangeKind, KeyRange, KeysOf, Mutation, Rows

if TYPE_CHECKING:
    from scanner.table import TableDescription


class MemoryStore:
    """See `scanner.storage.interface.Store`.

    Args:
        clock: Microseconds since 1970 UTC, for commit timestamps.
    """

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock = clock
        self._tables: dict[str, _MemoryTable] = {}
        self._closed = False

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""
        return [self._tables[name].description for name in sorted(self._tables)]

    def table(self, name: str) -> TableDescription:
        """See `Store.table`."""
        return self._table(name).description

    def key_codec(self, name: str) -> KeyCodec:
        """See `Store.key_codec`."""
        return self._table(name).key_codec

    def row_codec(self, name: str) -> RowCodec:
        """See `Store.row_codec`."""
        return self._table(name).row_codec

    def create_table(self, description: TableDescription) -> None:
        """See `Store.create_table`."""
        self._require_open()
        if description.name in self._tables:
            raise TableExists(
                f"table {description.name!r} exists already; drop it first, or choose another name"
            )
        self._tables[description.name] = _MemoryTable(description, self._clock)

    def drop_table(self, name: str) -> None:
        """See `Store.drop_table`."""
        self._require_open()
        table = self._table(name)
        del self._tables[name]
        table.close()

    def bucket(self, name: str, index: int) -> MemoryBucket:
        """See `Store.bucket`."""
        self._require_open()
        buckets = self._table(name).buckets
        if not 0 <= index < len(buckets):
            raise BucketNotFound(f"table {name!r} has the buckets 0 to {len(buckets) - 1}, not {index}")
        return buckets[index]

    def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        for table in self._tables.values():
            table.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store in memory was closed")

    def _table(self, name: str) -> _MemoryTable:
        if name not in self._tables:
            known = ", ".join(sorted(self._tables)) or "there are none"
            raise TableNotFound(f"no table {name!r}; the tables are: {known}")
        return self._tables[name]


class _MemoryTable:
    def __init__(self, description: TableDescription, clock: Callable[[], int]) -> None:
        self.description = description
        self.key_codec = KeyCodec(description)
        self.row_codec = RowCodec(description.schema)
        self.buckets = [MemoryBucket(self.keys_of, clock) for _ in range(description.buckets)]

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes]:
        return keys_of_rows(rows, self.row_codec, self.key_codec)

    def close(self) -> None:
        for bucket in self.buckets:
            bucket.close()


class MemoryBucket:
    """See `scanner.storage.interface.Bucket`.

    Args:
        keys_of: Keys of stored rows.
        clock: Microseconds since 1970 UTC.
    """

    def __init__(self, keys_of: KeysOf, clock: Callable[[], int]) -> None:
        self._keys_of = keys_of
        self._clock = clock
        self._rows: dict[bytes, bytes] = {}
        self._log: list[Change] = []
        self._scans: list[MemoryScan] = []
        self._closed = False

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""
        return 0

    @property
    def log_end(self) -> int:
        """One past the newest change."""
        return len(self._log)

    def commit(self, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        self._require_open()
        timestamp_us = max(self._clock(), self._log[-1].timestamp_us if self._log else 0)
        offsets = []
        for group in groups:
            start = len(self._log)
            for mutation in group:
                self._apply(mutation, timestamp_us)
            offsets.append((start, len(self._log)))
        return offsets

    def open_scan(self, key_range: KeyRange = ALL_KEYS) -> MemoryScan:
        """See `Bucket.open_scan`."""
        self._require_open()
        keys = sorted(self._rows)
        start = bisect_left(keys, key_range.start)
        end = bisect_left(keys, key_range.end) if key_range.end else len(keys)
        rows = [self._rows[key] for key in keys[start:end]]
        scan = MemoryScan(rows, self.log_end, self._keys_of)
        self._scans.append(scan)
        return scan

    def read_changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        """See `Bucket.read_changes`."""
        self._require_open()
        if not self.log_start <= start_offset <= end_offset <= self.log_end:
            raise OffsetOutOfRange(
                f"changes [{start_offset}, {end_offset}) are not in the log [{self.log_start}, {self.log_end})",
                oldest_offset=self.log_start,
            )
        return iter(self._log[start_offset:end_offset])

    def close(self) -> None:
        """Close every scan and refuse everything from now on. Idempotent."""
        self._closed = True
        for scan in self._scans:
            scan.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("the bucket in memory was closed")

    def _apply(self, mutation: Mutation, timestamp_us: int) -> None:
        key, row = mutation
        was = self._rows.get(key)
        if row is None:
            if was is not None:
                self._append(ChangeKind.DELETE, timestamp_us, key, was)
                del self._rows[key]
            return
        if was is None:
            self._append(ChangeKind.INSERT, timestamp_us, key, row)
        else:
            self._append(ChangeKind.UPDATE_BEFORE, timestamp_us, key, was)
            self._append(ChangeKind.UPDATE_AFTER, timestamp_us, key, row)
        self._rows[key] = row

    def _append(self, kind: ChangeKind, timestamp_us: int, key: bytes, row: bytes) -> None:
        self._log.append(Change(len(self._log), kind, timestamp_us, key, row))


class MemoryScan:
    """See `scanner.storage.interface.BucketScan`."""

    def __init__(self, rows: list[bytes], log_offset: int, keys_of: KeysOf) -> None:
        self._rows = rows
        self._position = 0
        self._log_offset = log_offset
        self._keys_of = keys_of
        self._closed = False

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""
        return self._log_offset

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """See `BucketScan.read`."""
        if self._closed:
            raise StoreClosed("this scan in memory was closed")
        rows: list[bytes] = []
        size = 0
        for row in self._rows[self._position : self._position + rows_max]:
            size += len(row)
            if rows and size > bytes_max:
                break
            rows.append(row)
        self._position += len(rows)
        return Rows(rows, self._keys_of)

    def close(self) -> None:
        """See `BucketScan.close`."""
        self._closed = True
        self._rows = []
