"""One bucket on RocksDB: rows in `kv`, changes in `log`, the log's range in `meta`.

A commit is one atomic `WriteBatch` over the three, written to the write-ahead log and synced once. So
whatever a crash leaves, the log is dense, ends where `meta` says, and replaying it gives `kv`. A truncation
is one over `log` and `meta`.

Invariants:

1. `log_end` is what is durable; it moves after the sync, never before. `log_start` moves before anything
   is dropped, so that whoever misses a change can tell why.
2. After a failed write or sync nobody knows what is on disk. The bucket then refuses commits and new scans
   until it is reopened; scans opened before go on over their iterators.
3. Every open scan and snapshot is known here, and is closed before the database is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rocksdict import WriteBatch

from scanner.errors import DataCorrupted, OffsetOutOfRange, ScannerError, StoreClosed, StoreFailed
from scanner.keys import ALL_KEYS
from scanner.storage.changelog import (
    LogRange,
    change_header,
    decode_change_block,
    decode_changes,
    encode_log_range,
    log_key,
    log_keys,
    timestamp_of,
)
from scanner.storage.checkpoints import make_checkpoint, next_checkpoint_id, note_checkpoint
from scanner.storage.interface import Change, ChangeBlock, ChangeKind, Checkpoint, KeyRange, KeysOf, Mutation
from scanner.storage.readers import CheckedIterator, Reading, ValuesReader, stored_values
from scanner.storage.rocks import Database, RocksResources, compact_database, open_database, translated
from scanner.storage.rocks_log import LOG_RANGE_KEY, load_log_range, read_log, read_record, stored_bytes
from scanner.storage.scan import RocksScan
from scanner.storage.snapshot import RocksSnapshot

_CHANGES_CHUNK = 1024
"""Change records that are read and decoded at once."""


def clock_us() -> int:
    """Microseconds since 1970 UTC."""
    return time.time_ns() // 1000


class RocksBucket:
    """See `scanner.storage.interface.Bucket`.

    Args:
        path: Directory of the bucket's database.
        resources: Of the store.
        keys_of: Keys of stored rows.
        create: Make the bucket, which must not exist; else it must.
        clock: Microseconds since 1970 UTC, for commit timestamps.

    Raises:
        StoreLocked: the directory is open elsewhere.
        DataCorrupted: the database is damaged or gone, or log and range disagree.
        StoreFailed: the disk refused.
    """

    def __init__(
        self,
        path: Path,
        resources: RocksResources,
        keys_of: KeysOf,
        *,
        create: bool = False,
        clock: Callable[[], int] = clock_us,
    ) -> None:
        self._path = path
        self._keys_of = keys_of
        self._clock = clock
        self._reading = Reading.of(resources.config)
        self._scans: set[RocksScan] = set()
        self._snapshots: set[RocksSnapshot] = set()
        self._failure: ScannerError | None = None
        self._committing = threading.Lock()
        self._compacting = threading.Lock()
        self._closing = False
        self._database: Database | None = open_database(path, resources, create=create)
        try:
            if create:
                self._write_first_range()
            self._range = load_log_range(self._database)
        except BaseException:
            self.close()
            raise

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""
        return self._range.start

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""
        return self._range.end

    @property
    def log_bytes(self) -> int:
        """See `Bucket.log_bytes`; asks RocksDB for its list of files, a millisecond where there are hundreds."""
        return stored_bytes(self._open_database(), self._range)

    @property
    def open_iterators(self) -> int:
        """See `Bucket.open_iterators`."""
        held_by_scans = sum(scan.iterators for scan in self._scans)
        return held_by_scans + sum(snapshot.iterators for snapshot in self._snapshots)

    def commit(self, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        with self._committing:
            return self._commit(self._usable(), groups)

    def open_scan(self, key_range: KeyRange = ALL_KEYS) -> RocksScan:
        """See `Bucket.open_scan`."""
        database = self._usable()
        checked = CheckedIterator(database.kv, self._path, self._reading, key_range)
        values = stored_values(database.kv, self._path, self._reading, key_range)
        reader = ValuesReader(values, checked, key_range, self._keys_of, owns_checked=True)
        scan = RocksScan(reader, self._path, self._range.end, self._keys_of, self._scans.discard)
        self._scans.add(scan)
        return scan

    def open_snapshot(self) -> RocksSnapshot:
        """See `Bucket.open_snapshot`."""
        log_offset = self._range.end
        snapshot = RocksSnapshot(
            CheckedIterator(self._usable().kv, self._path, self._reading),
            log_offset,
            self._keys_of,
            partial(self._values_as_of, log_offset),
            self._snapshots.discard,
        )
        self._snapshots.add(snapshot)
        return snapshot

    def read_changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        """See `Bucket.read_changes`."""
        self._open_database()
        if not self.log_start <= start_offset <= end_offset <= self.log_end:
            raise self._out_of_range(start_offset, end_offset)
        return self._changes(start_offset, end_offset)

    def read_change_block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """See `Bucket.read_change_block`."""
        self._open_database()
        if not self.log_start <= start_offset <= end_offset <= self.log_end:
            raise self._out_of_range(start_offset, end_offset)
        values = self._read_values(start_offset, end_offset - start_offset, bytes_max)
        return decode_change_block(start_offset, values, self._keys_of)

    def offset_at(self, timestamp_us: int) -> int:
        """See `Bucket.offset_at`."""
        database = self._open_database()
        low, high = self.log_start, self.log_end
        while low < high:
            middle = (low + high) // 2
            value = read_record(database, middle)
            if value is None and middle >= self.log_start:
                raise self._missing(middle)
            # What was truncated meanwhile is out of the question.
            if value is None or timestamp_of(middle, value) < timestamp_us:
                low = middle + 1
            else:
                high = middle
        return max(low, self.log_start)

    def truncate_log(self, start_offset: int) -> None:
        """See `Bucket.truncate_log`."""
        with self._committing:
            database = self._usable()
            start = min(start_offset, self._range.end)
            if start <= self._range.start:
                return
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(log_key(0), log_key(start), database.log_family)
            self._range = self._range._replace(start=start)
            batch.put(LOG_RANGE_KEY, encode_log_range(self._range), database.meta_family)
            self._make_durable(database, batch)

    def create_checkpoint(self, directory: Path) -> Checkpoint:
        """Keep the state as of now in a directory of the bucket's checkpoints. See `Store.create_checkpoint`."""
        with self._committing:
            database = self._usable()
            checkpoint = Checkpoint(next_checkpoint_id(database), self._range.end, self._clock())
            batch = WriteBatch(raw_mode=True)
            note_checkpoint(database, batch, checkpoint)
            self._make_durable(database, batch)
            make_checkpoint(database, directory, checkpoint)
            return checkpoint

    def compact(self) -> None:
        """See `Bucket.compact`."""
        with self._compacting:
            compact_database(self._usable())
            if self._closing:
                raise StoreClosed(f"bucket {self._path} was closed")

    def close(self) -> None:
        """Close every scan and snapshot, then the database; its directory is free when this returns. Idempotent.

        Lets a commit that is running in another thread finish first, and ends a compaction.
        """
        for snapshot in list(self._snapshots):
            snapshot.close()
        for scan in list(self._scans):
            scan.close()
        with self._committing:
            database, self._database = self._database, None
            if database is None:
                return
            self._closing = True
            if self._compacting.locked():
                database.rocks.cancel_all_background(False)
            with self._compacting:
                database.close()

    def flush(self) -> None:
        """Write everything from memory into files, as RocksDB does by itself when its buffers are full.

        Raises:
            StoreFailed: the disk refused.
        """
        database = self._usable()
        with translated(self._path):
            database.kv.flush()
            database.log.flush()

    def _open_database(self) -> Database:
        if self._database is None:
            raise StoreClosed(f"bucket {self._path} was closed")
        return self._database

    def _usable(self) -> Database:
        database = self._open_database()
        if self._failure is not None:
            raise StoreFailed(
                f"an earlier write failed, restart to recover: {self._failure}"
            ) from self._failure
        return database

    def _values_as_of(self, log_offset: int, key_range: KeyRange) -> Iterator[bytes] | None:
        """The rows of a range, if they still are as of an offset."""
        # A running commit shows its rows before it moves log_end, and a failed one may.
        if not self._committing.acquire(blocking=False):
            return None
        try:
            database = self._database
            if database is None or self._failure is not None or self._range.end != log_offset:
                return None
            return stored_values(database.kv, self._path, self._reading, key_range)
        finally:
            self._committing.release()

    def _commit(self, database: Database, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        before = self._read_rows(
            database, dict.fromkeys(mutation.key for group in groups for mutation in group)
        )
        timestamp_us = max(self._clock(), self._range.timestamp_us)
        batch = WriteBatch(raw_mode=True)
        after, offsets = self._write_changes(database, batch, groups, before, timestamp_us)
        end = offsets[-1][1] if offsets else self._range.end
        if end == self._range.end:
            return offsets
        self._write_rows(database, batch, before, after)
        new_range = LogRange(self._range.start, end, timestamp_us)
        batch.put(LOG_RANGE_KEY, encode_log_range(new_range), database.meta_family)
        self._make_durable(database, batch)
        self._range = new_range
        return offsets

    def _read_rows(self, database: Database, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        distinct: list[Any] = list(keys)
        with translated(self._path):
            return dict(zip(distinct, database.kv.get(distinct) or (), strict=True))

    def _write_changes(
        self,
        database: Database,
        batch: WriteBatch,
        groups: Sequence[Sequence[Mutation]],
        before: dict[bytes, bytes | None],
        timestamp_us: int,
    ) -> tuple[dict[bytes, bytes | None], list[tuple[int, int]]]:
        """Append the change records; what the batch did to a key before is seen by what follows in it."""
        insert, old, new, delete = (
            change_header(kind, timestamp_us)
            for kind in (
                ChangeKind.INSERT,
                ChangeKind.UPDATE_BEFORE,
                ChangeKind.UPDATE_AFTER,
                ChangeKind.DELETE,
            )
        )
        log, put = database.log_family, batch.put
        after = dict(before)
        offset = self._range.end
        offsets = []
        for group in groups:
            start = offset
            for key, row in group:
                was = after[key]
                if row is not None:
                    if was is None:
                        put(log_key(offset), insert + row, log)
                    else:
                        put(log_key(offset), old + was, log)
                        offset += 1
                        put(log_key(offset), new + row, log)
                elif was is None:
                    continue
                else:
                    put(log_key(offset), delete + was, log)
                offset += 1
                after[key] = row
            offsets.append((start, offset))
        return after, offsets

    def _write_rows(
        self,
        database: Database,
        batch: WriteBatch,
        before: dict[bytes, bytes | None],
        after: dict[bytes, bytes | None],
    ) -> None:
        kv = database.kv_family
        for key, row in after.items():
            if row == before[key]:
                continue
            if row is None:
                batch.delete(key, kv)
            else:
                batch.put(key, row, kv)

    def _make_durable(self, database: Database, batch: WriteBatch) -> None:
        try:
            with translated(self._path):
                database.rocks.write(batch)
                database.rocks.flush_wal(sync=True)
        except ScannerError as error:
            self._failure = error
            raise StoreFailed(f"nothing of this write is promised: {error}") from error

    def _write_first_range(self) -> None:
        database = self._open_database()
        batch = WriteBatch(raw_mode=True)
        batch.put(LOG_RANGE_KEY, encode_log_range(LogRange(0, 0, 0)), database.meta_family)
        self._make_durable(database, batch)

    def _changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        for offset in range(start_offset, end_offset, _CHANGES_CHUNK):
            count = min(_CHANGES_CHUNK, end_offset - offset)
            yield from decode_changes(offset, self._read_values(offset, count), self._keys_of)

    def _read_values(self, offset: int, count: int, bytes_max: int = sys.maxsize) -> list[bytes]:
        database = self._open_database()
        records = read_log(database, offset, count, bytes_max)
        if offset < self.log_start:
            raise self._out_of_range(offset, offset + count)
        if b"".join([key for key, _ in records]) != log_keys(offset, len(records)):
            keys = {key for key, _ in records}
            raise self._missing(
                next(each for each in range(offset, offset + count) if log_key(each) not in keys)
            )
        values = [value for _, value in records]
        if len(records) < count and sum(map(len, values)) < bytes_max:
            # A read error looks like this too; a point read tells.
            read_record(database, offset + len(records))
            raise self._missing(offset + len(records))
        return values

    def _missing(self, offset: int) -> DataCorrupted:
        return DataCorrupted(f"{self._path}: the change at offset {offset} is missing")

    def _out_of_range(self, start_offset: int, end_offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"changes [{start_offset}, {end_offset}) are not in the log [{self.log_start}, {self.log_end})",
            oldest_offset=self.log_start,
        )
