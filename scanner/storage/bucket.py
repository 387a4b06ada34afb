"""One bucket on RocksDB: rows in `kv`, changes in `log`, the log's range in `meta`.

A commit is one atomic `WriteBatch` over the three, written to the write-ahead log and synced once. So
whatever a crash leaves, the log is dense, ends where `meta` says, and replaying it gives `kv`.

Invariants:

1. `log_end` is what is durable; it moves after the sync, never before.
2. After a failed write or sync nobody knows what is on disk. The bucket then refuses commits and new scans
   until it is reopened; scans opened before go on over their iterators.
3. Every open scan is known here, and is closed before the database is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import ReadOptions, WriteBatch

from scanner.errors import DataCorrupted, OffsetOutOfRange, ScannerError, StoreClosed, StoreFailed
from scanner.keys import ALL_KEYS
from scanner.storage.changelog import (
    LogRange,
    change_header,
    decode_changes,
    decode_log_range,
    encode_log_range,
    log_key,
)
from scanner.storage.interface import Change, ChangeKind, KeyRange, KeysOf, Mutation
from scanner.storage.rocks import Database, RocksResources, open_database, translated
from scanner.storage.scan import RocksScan

_LOG_RANGE_KEY = b"log_range"
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
        self._readahead_bytes = resources.config.scan_readahead_bytes
        self._scans: set[RocksScan] = set()
        self._failure: ScannerError | None = None
        self._committing = threading.Lock()
        self._database: Database | None = open_database(path, resources, create=create)
        try:
            if create:
                self._write_first_range()
            self._range = self._read_range()
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

    def commit(self, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        with self._committing:
            return self._commit(self._usable(), groups)

    def open_scan(self, key_range: KeyRange = ALL_KEYS) -> RocksScan:
        """See `Bucket.open_scan`."""
        database = self._usable()
        scan = RocksScan(
            database.kv,
            self._path,
            key_range,
            self._range.end,
            self._readahead_bytes,
            self._keys_of,
            self._scans.discard,
        )
        self._scans.add(scan)
        return scan

    def read_changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        """See `Bucket.read_changes`."""
        self._open_database()
        if not self.log_start <= start_offset <= end_offset <= self.log_end:
            raise OffsetOutOfRange(
                f"changes [{start_offset}, {end_offset}) are not in the log [{self.log_start}, {self.log_end})",
                oldest_offset=self.log_start,
            )
        return self._changes(start_offset, end_offset)

    def close(self) -> None:
        """Close every scan, then the database; its directory is free when this returns. Idempotent.

        Lets a commit that is running in another thread finish first.
        """
        for scan in list(self._scans):
            scan.close()
        with self._committing:
            database, self._database = self._database, None
            if database is not None:
                # RocksDB repeats an error of an earlier write here. What was acknowledged is durable already.
                with suppress(StoreFailed):
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
        batch.put(_LOG_RANGE_KEY, encode_log_range(new_range), database.meta_family)
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
        batch.put(_LOG_RANGE_KEY, encode_log_range(LogRange(0, 0, 0)), database.meta_family)
        self._make_durable(database, batch)

    def _read_range(self) -> LogRange:
        database = self._open_database()
        with translated(self._path):
            stored = database.meta.get(_LOG_RANGE_KEY)
            newest: Any = next(database.log.keys(backwards=True), None)
        if stored is None:
            raise DataCorrupted(f"{self._path} holds no log range")
        log_range = decode_log_range(stored)
        expected = log_key(log_range.end - 1) if log_range.end > log_range.start else None
        if newest != expected:
            raise DataCorrupted(
                f"{self._path}: the log should end at offset {log_range.end}, but its last key is"
                f" {'missing' if newest is None else newest.hex()}"
            )
        self._require_dense(database, log_range)
        return log_range

    def _require_dense(self, database: Database, log_range: LogRange) -> None:
        """Refuse a log with holes: the rows of the missing changes would be missing too.

        RocksDB's estimate is exact where keys are only ever added, so counting is hardly ever needed.
        """
        count = log_range.end - log_range.start
        with translated(self._path):
            if database.log.property_int_value("rocksdb.estimate-num-keys") == count:
                return
            keys: Iterator[object] = database.log.keys()
            found = sum(1 for _ in keys)
        if found != count:
            raise DataCorrupted(
                f"{self._path}: {count - found} of the {count} changes are missing, and so are their rows;"
                " restore the files from a copy"
            )

    def _changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        for offset in range(start_offset, end_offset, _CHANGES_CHUNK):
            count = min(_CHANGES_CHUNK, end_offset - offset)
            # No iterator lives across a yield: an abandoned generator must not keep the directory locked.
            yield from decode_changes(offset, self._read_log(offset, count), self._keys_of)

    def _read_log(self, offset: int, count: int) -> list[bytes]:
        database = self._open_database()
        with translated(self._path):
            items = list(islice(database.log.items(from_key=log_key(offset), read_opt=ReadOptions()), count))
            for index, (key, _) in enumerate(items):
                if key != log_key(offset + index):
                    raise DataCorrupted(f"{self._path}: the change at offset {offset + index} is missing")
            if len(items) < count:
                missing = offset + len(items)
                database.log.get(log_key(missing))
                raise DataCorrupted(f"{self._path}: the change at offset {missing} is missing")
        return [value for _, value in items]
