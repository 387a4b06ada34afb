"""The changelog of a bucket in RocksDB: its range, whether it is dense, its records, its size.

Offsets are written once, in order, and go away from the front only. So a table file without deletions
whose entries are as many as its offsets holds each of them, and what it holds no other file can hide,
unless that one has deletions in the same range. RocksDB knows both numbers of every file by heart. That
makes it cheap to find out whether the log is dense, however long it is and however often it was truncated:
only what such files do not vouch for is counted, a few write buffers at most.

This module knows no rows and no scans; what it is given is open for as long as the call takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from rocksdict import ReadOptions

from scanner.errors import DataCorrupted
from scanner.storage.changelog import LogRange, decode_log_range, log_key, offset_of_key
from scanner.storage.rocks import Database, translated

LOG_RANGE_KEY = b"log_range"
"""In `meta`."""
_PIECE_RECORDS = 256
"""Records read at once: bounds what is read past `bytes_max` when they suddenly get larger."""
_PIECE_GROWTH = 4
"""A piece has at most so many times the records before it. The first has one: a row may have megabytes."""
_FILE_OF_FAMILY = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)
"""The number of a file in RocksDB's list of one column family's files."""


class LogFile(NamedTuple):
    """What RocksDB knows of one table file of the log."""

    start: int
    """The smallest offset of its records and deletions."""
    end: int
    """One past the largest."""
    entries: int
    """Its records and deletions."""
    deletions: int
    """Those that are deletions; one of a whole range counts as one."""
    size_bytes: int

    @property
    def is_dense(self) -> bool:
        """Every offset of [start, end) has its record here."""
        return self.deletions == 0 and self.entries == self.end - self.start


def load_log_range(database: Database) -> LogRange:
    """Read the log's range, and make sure that the log has just that.

    Raises:
        DataCorrupted: there is no range, the log ends elsewhere, or changes are missing.
        StoreFailed: the disk refused.
    """
    with translated(database.path):
        stored = database.meta.get(LOG_RANGE_KEY)
        newest: Any = next(database.log.keys(backwards=True), None)
    if stored is None:
        raise DataCorrupted(f"{database.path} holds no log range")
    log_range = decode_log_range(stored)
    expected = log_key(log_range.end - 1) if log_range.end > log_range.start else None
    if newest != expected:
        raise DataCorrupted(
            f"{database.path}: the log should end at offset {log_range.end}, but its last key is"
            f" {'missing' if newest is None else newest.hex()}"
        )
    _require_dense(database, log_range)
    return log_range


def read_log(database: Database, offset: int, count: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
    """Read adjacent records: keys and values, from an offset on.

    Args:
        database: Of the bucket.
        offset: Of the first one.
        count: How many.
        bytes_max: Stop when the values take this much, >= 1; a few records late where sizes vary.

    Returns:
        The records. Fewer than `count` and than `bytes_max`, or others: the rest is missing.

    Raises:
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    with translated(database.path):
        # No iterator lives longer than this: an abandoned reader must not keep the directory locked.
        items: Iterator[Any] = database.log.items(from_key=log_key(offset), read_opt=ReadOptions())
        records: list[tuple[bytes, bytes]] = []
        size, want = 0, 1
        while len(records) < count and size < bytes_max:
            part = list(islice(items, min(want, count - len(records))))
            if not part:
                break
            records += part
            size += sum([len(value) for _, value in part])
            fitting = 1 + max(0, bytes_max - size) * len(records) // max(1, size)
            want = min(fitting, _PIECE_RECORDS, _PIECE_GROWTH * len(records))
        return records


def read_record(database: Database, offset: int) -> bytes | None:
    """The value of one record; None if it is missing.

    Raises:
        DataCorrupted: it cannot be read.
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    with translated(database.path):
        value: bytes | None = database.log.get(log_key(offset))
        return value


def stored_bytes(database: Database, log_range: LogRange) -> int:
    """Rough size of the log's range, in bytes: the share that its offsets have in files and in memory.

    Raises:
        StoreClosed: the database was closed.
    """
    size = 0.0
    files = _files_of(database)
    for file in files:
        size += file.size_bytes * _share(max(file.start, file.end - file.entries), file.end, log_range)
    with translated(database.path):
        unflushed = database.log.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
    flushed_end = max((file.end for file in files), default=0)
    return round(size + unflushed * _share(flushed_end, log_range.end, log_range))


def _share(start: int, end: int, log_range: LogRange) -> float:
    """How much of [start, end) is in the log's range, 0 to 1."""
    inside = min(end, log_range.end) - max(start, log_range.start)
    return max(0, inside) / (end - start) if end > start else 0.0


def _files_of(database: Database) -> list[LogFile]:
    with translated(database.path):
        # The list of all files names no column family, and the one of the family counts no entries.
        family = database.log.property_value("rocksdb.sstables") or ""
        numbers = {int(number) for number in _FILE_OF_FAMILY.findall(family)}
        files = database.rocks.live_files()
    return [
        LogFile(
            offset_of_key(file["start_key"]),
            offset_of_key(file["end_key"]) + 1,
            file["num_entries"],
            file["num_deletions"],
            file["size"],
        )
        for file in files
        if int(file["name"].removeprefix("/").removesuffix(".sst")) in numbers
    ]


def _require_dense(database: Database, log_range: LogRange) -> None:
    """Refuse a log with holes: the rows of the missing changes would be missing too."""
    missing = 0
    for start, end in unproven_ranges(_files_of(database), log_range):
        options = ReadOptions()
        options.set_iterate_upper_bound(log_key(end))
        with translated(database.path):
            keys: Iterator[object] = database.log.keys(from_key=log_key(start), read_opt=options)
            missing += end - start - sum(1 for _ in keys)
    if missing:
        raise DataCorrupted(
            f"{database.path}: {missing} of the {log_range.end - log_range.start} changes are missing, and so"
            " are their rows; restore the files from a copy"
        )


def unproven_ranges(files: list[LogFile], log_range: LogRange) -> list[tuple[int, int]]:
    """The offsets of the log that no dense file vouches for, or that a file with deletions may hide.

    Returns:
        Disjoint ranges [start, end), ascending.
    """
    # Sweep over where files begin and end: how many dense ones, and how many others, cover each stretch.
    edges = sorted(
        edge
        for file in files
        for edge in (
            (file.start, file.is_dense, file.deletions > 0),
            (file.end, -file.is_dense, -(file.deletions > 0)),
        )
    )
    unproven: list[tuple[int, int]] = []
    dense = hiding = 0
    at = log_range.start
    for offset, dense_change, hiding_change in (*edges, (log_range.end, 0, 0)):
        until = min(offset, log_range.end)
        if until > at:
            if not dense or hiding:
                if unproven and unproven[-1][1] == at:
                    unproven[-1] = (unproven[-1][0], until)
                else:
                    unproven.append((at, until))
            at = until
        dense += dense_change
        hiding += hiding_change
    return unproven
