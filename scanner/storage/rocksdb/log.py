"""The changelog of a bucket in RocksDB: its range, whether it is dense, its chunks, its size.

Chunks are written once, with ascending ordinals, and go away from the front only. So a table file without deletions
whose entries are as many as its ordinals holds each of them, and what it holds no other file can hide,
unless that one has deletions in the same range. RocksDB knows both numbers of every file by heart. That
makes it cheap to find out whether the log is dense, however long it is and however often it was truncated:
only what such files do not vouch for is counted, a few write buffers at most.

This module knows no rows and no scans; what it is given is open for as long as the call takes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocksdict import ReadOptions

from scanner.errors import DataCorrupted
from scanner.storage.lineage import Lineage, decode_lineage
from scanner.storage.records import EntrySize
from scanner.storage.rocksdb.changelog import (
    ChunkDecoder,
    LogRange,
    count_of,
    decode_log_range,
    last_key,
    log_key,
    measure_chunk,
    offset_of_key,
    ordinal_of_key,
)
from scanner.storage.rocksdb.database import Database, rocksdb_errors
from scanner.storage.rocksdb.sst_files import SstFile, sst_files

if TYPE_CHECKING:
    from rocksdict import RdictIter, WriteBatch

LOG_RANGE_KEY = b"log_range"
"""In `meta`."""
LINEAGE_KEY = b"lineage"
"""In `meta`."""
_TRUNCATED_KEY = b"log_truncated"
"""In `meta`: where the log began when it was truncated, and the time of the newest commit before. An older weir that
truncates it leaves this as it is, so it is of use only where the log still begins there."""
_TRUNCATED = struct.Struct(">Qq")
CHUNKS_AT_ONCE: Final = 1024
"""Decoded without a turn of others, some microseconds each: a commit of one row has a chunk of its own."""
_TOTAL = re.compile(r"# (entries|deletions|range deletions)=(\d+)")
"""In RocksDB's list of what the files of a level have together."""
_FILES_MAX: Final = 16
"""So many files are left as they are, and one more for each `_BYTES_A_FILE`: so the octets of a large log are written
again about once. Those of one of a few MiB are up to ten times, which is little."""
_BYTES_A_FILE: Final = 16 * 1024 * 1024
_JOINED_MIN: Final = 8
_JOINED_MAX: Final = 32
"""Files that become one."""
_JOINED_BYTES_MAX: Final = 64 * 1024 * 1024
"""As large as RocksDB makes a file. That takes a second or two, and other compactions wait for it."""


class LogFile(SstFile):
    """A table file of the log: its entries are chunks and deletions."""

    @property
    def start(self) -> int:
        """The smallest ordinal of its chunks and deletions."""
        return ordinal_of_key(self.start_key)

    @property
    def end(self) -> int:
        """One past the largest."""
        return ordinal_of_key(self.end_key) + 1

    @property
    def is_dense(self) -> bool:
        """Every chunk with an ordinal of [start, end) is here."""
        return self.deletions == 0 and self.entries == self.end - self.start


class KeySpan(NamedTuple):
    """Chunks by ordinal, and a key from which on they are."""

    start: int
    end: int
    start_key: bytes
    """None of them has a smaller key; some before them may have a larger one."""


def load_log_range(database: Database) -> LogRange:
    """Read the log's range, and make sure that the log has just that.

    Raises:
        DataCorrupted: there is no range, the log ends elsewhere, or changes are missing.
        StoreFailed: the disk refused.
    """
    log_range = require_log_range(database)
    _require_ends(database, log_range)
    _require_dense(database, log_range)
    return log_range


def require_log_range(database: Database) -> LogRange:
    """Read the log's range as `meta` has it.

    Raises:
        DataCorrupted: There is none, or it is damaged.
        StoreFailed: The disk refused.
    """
    log_range = read_log_range(database)
    if log_range is None:
        raise DataCorrupted(f"{database.path} holds no log range")
    return log_range


def read_log_range(database: Database) -> LogRange | None:
    """As `require_log_range`; None where there is none."""
    stored = database.read_meta(LOG_RANGE_KEY)
    return None if stored is None else decode_log_range(stored)


def put_truncated(database: Database, batch: WriteBatch, start: int, timestamp_us: int) -> None:
    """Add to a truncation the time of the newest commit that it drops."""
    batch.put(_TRUNCATED_KEY, _TRUNCATED.pack(start, timestamp_us), database.meta_family)


def read_truncated(database: Database, start: int) -> int | None:
    """The time of the newest commit before the start of the log; None: it is not known.

    Raises:
        StoreFailed: The disk refused.
    """
    stored = database.read_meta(_TRUNCATED_KEY)
    if stored is None or len(stored) != _TRUNCATED.size:
        return None
    noted, timestamp_us = _TRUNCATED.unpack(stored)
    return timestamp_us if noted == start else None


def read_lineage(database: Database) -> Lineage:
    """Read the lineage of the log; an empty one, if no commit was ever made.

    Raises:
        DataCorrupted: It is damaged.
        StoreFailed: The disk refused.
    """
    return decode_lineage(database.read_meta(LINEAGE_KEY))


def read_chunks(
    database: Database, offset: int, end_offset: int, bytes_max: int
) -> tuple[ChunkDecoder, bool]:
    """Read adjacent chunks, from the one that holds an offset on.

    Args:
        database: Of the bucket.
        offset: Of the first change that is wanted.
        end_offset: One past the last one; above `offset`.
        bytes_max: Stop when their rows take this much, >= 1, those in front of `offset` too; at most a chunk late.

    Returns:
        The chunks, `CHUNKS_AT_ONCE` at most, and whether they are adjacent and reach as far as was asked for. If not,
        something is missing.

    Raises:
        DataCorrupted: a chunk is damaged.
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    chunks = ChunkDecoder()
    size = 0
    iterator = _iterator_at(database, offset)
    try:
        with rocksdb_errors(database.path):
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                if chunks.entries and offset_of_key(key) != chunks.end:
                    return chunks, False
                size += chunks.add(key, value)
                if chunks.end <= offset:
                    return chunks, False
                if chunks.end >= end_offset or size >= bytes_max or len(chunks.entries) == CHUNKS_AT_ONCE:
                    return chunks, True
                iterator.next()
            iterator.status()
    finally:
        # An error is kept, its traceback keeps this frame, and the frame would keep the directory locked.
        del iterator
    return chunks, False


def read_entry_sizes(
    database: Database, offset: int, end_offset: int, entries_max: int, bytes_max: int
) -> tuple[list[EntrySize], bool]:
    """Measure adjacent entries by the headers of their chunks.

    Args:
        database: Of the bucket.
        offset: Where the first entry begins.
        end_offset: Where the last one ends; above `offset`.
        entries_max: Stop after so many, >= 1.
        bytes_max: Stop when their rows take this much, >= 1; at most an entry late.

    Returns:
        The entries, and whether they are adjacent and reach as far as was asked for. If not, something is missing.

    Raises:
        DataCorrupted: a chunk is damaged.
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    sizes: list[EntrySize] = []
    size, at, entry_start, entry_size = 0, offset, offset, 0
    iterator = _iterator_at(database, offset)
    try:
        with rocksdb_errors(database.path):
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                entry, count, row_bytes = measure_chunk(key, value)
                if offset_of_key(key) != at or entry.start != entry_start:
                    return sizes, False
                at += count
                entry_size += row_bytes
                if at == entry.end:
                    sizes.append(EntrySize(at, entry_size, entry.timestamp_us))
                    size, entry_start, entry_size = size + entry_size, at, 0
                    if at >= end_offset or size >= bytes_max or len(sizes) == entries_max:
                        return sizes, True
                iterator.next()
            iterator.status()
    finally:
        # As in `read_chunks`.
        del iterator
    return sizes, False


def read_chunk(database: Database, offset: int) -> tuple[bytes, bytes] | None:
    """Key and value of the chunk that holds an offset; None if it is missing.

    Raises:
        DataCorrupted: it cannot be read.
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    found = _at(_iterator_at(database, offset), database)
    if found is None:
        return None
    key, value = found
    return found if offset < offset_of_key(key) + count_of(key, value) else None


def _iterator_at(database: Database, offset: int) -> RdictIter:
    """An iterator on the chunk that holds an offset, or on one before it."""
    with rocksdb_errors(database.path):
        iterator: RdictIter = database.log.iter(ReadOptions())
        iterator.seek_for_prev(last_key(offset))
        return iterator


def _at(iterator: RdictIter, database: Database) -> tuple[bytes, bytes] | None:
    """Key and value under an iterator, None if there is nothing, as is proven."""
    try:
        with rocksdb_errors(database.path):
            if iterator.valid():
                return iterator.key(), iterator.value()
            iterator.status()
            return None
    finally:
        del iterator


def stored_bytes(database: Database, log_range: LogRange) -> int:
    """Rough size of the log's range, in bytes: the share that its chunks have in files and in memory.

    Raises:
        StoreClosed: the database was closed.
    """
    size = 0.0
    files = log_files(database)
    for file in files:
        size += file.size_bytes * _share(_first_chunk(file), file.end, log_range)
    with rocksdb_errors(database.path):
        unflushed = database.log.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
    flushed_end = max((file.end for file in files), default=0)
    return round(size + unflushed * _share(flushed_end, log_range.end_ordinal, log_range))


def cut_files(database: Database, log_range: LogRange) -> list[LogFile]:
    """The files with chunks in front of the log's range, in the order of their keys.

    Raises:
        StoreClosed: the database was closed.
    """
    files = [file for file in log_files(database) if _cut_share(file, log_range)]
    return sorted(files, key=lambda file: file.start_key)


def cut_bytes(files: Sequence[LogFile], log_range: LogRange) -> tuple[int, int]:
    """What files take of chunks in front of the log's range, and of others, in bytes."""
    size = sum(file.size_bytes for file in files)
    cut = round(sum(file.size_bytes * _cut_share(file, log_range) for file in files))
    return cut, size - cut


def log_files(database: Database) -> list[LogFile]:
    """The files of the log, in no order.

    Raises:
        StoreClosed: the database was closed.
    """
    return [LogFile(*file) for file in sst_files(database, database.log)]


def files_to_join(files: Sequence[LogFile]) -> Sequence[LogFile]:
    """Adjacent files that are to become one: those for which the least is written for each file that goes.

    Each flush leaves a file of the log, and RocksDB joins none whose keys do not overlap: it moves them to the last
    level as they are. What is joined overlaps no other file, since RocksDB would write that one again, too.

    Returns:
        In the order of their keys; none where there are few files, or all are large.
    """
    if len(files) <= _FILES_MAX + sum(file.size_bytes for file in files) // _BYTES_A_FILE:
        return ()
    ordered = sorted(files, key=lambda file: file.start_key)
    apart, reached = [True], ordered[0].end_key
    for file in ordered[1:]:
        # Whether no file before this one reaches into it, or behind it.
        apart.append(reached < file.start_key)
        reached = max(reached, file.end_key)
    apart.append(True)
    best, best_cost = range(0), math.inf
    for first in range(len(ordered)):
        size = 0
        for end in range(first + 1, min(first + _JOINED_MAX, len(ordered)) + 1):
            size += ordered[end - 1].size_bytes
            # Those of level 0 are about to be moved.
            if size > _JOINED_BYTES_MAX or not ordered[end - 1].level or not apart[first]:
                break
            count = end - first
            if apart[end] and count >= _JOINED_MIN and size / (count - 1) < best_cost:
                best, best_cost = range(first, end), size / (count - 1)
    return ordered[best.start : best.stop]


def require_readable(
    database: Database, files: Sequence[LogFile], on_chunk: Callable[[], None] = lambda: None
) -> None:
    """Read adjacent files of the log: RocksDB takes no more writes once a compaction has found a damaged block.

    Args:
        database: Of the bucket.
        files: In the order of their keys.
        on_chunk: Called with each chunk; what it raises ends the reading.

    Raises:
        DataCorrupted: They cannot be read to their end.
        StoreFailed, StoreClosed: the disk refused, or the database was closed.
    """
    if not files:
        return
    options, end = ReadOptions(), files[-1].end_key
    options.fill_cache(False)  # type: ignore[call-arg]  # Its stub has no argument.
    with rocksdb_errors(database.path):
        iterator: RdictIter = database.log.iter(options)
        try:
            iterator.seek(files[0].start_key)
            while iterator.valid() and iterator.key() < end:
                on_chunk()
                iterator.next()
            if not iterator.valid():  # The last keys may be deleted ones, and nothing be behind them.
                iterator.status()
        finally:
            del iterator  # As in `read_chunks`.


def _first_chunk(file: LogFile) -> int:
    """The ordinal of a file's first chunk. Where it has deletions, they may reach further back than its chunks."""
    return max(file.start, file.end - file.entries) if file.entries else file.start


def _cut_share(file: LogFile, log_range: LogRange) -> float:
    # What is behind the log is not cut: a share of a transaction that is being applied.
    front = log_range._replace(start_ordinal=0, end_ordinal=log_range.start_ordinal)
    return _share(_first_chunk(file), file.end, front)


def _share(start: int, end: int, log_range: LogRange) -> float:
    """How much of the ordinals [start, end) is in the log's range, 0 to 1."""
    inside = min(end, log_range.end_ordinal) - max(start, log_range.start_ordinal)
    return max(0, inside) / (end - start) if end > start else 0.0


def _counted(database: Database, files: list[LogFile]) -> list[LogFile]:
    """The files, with the entries of those of which RocksDB has not read them: after an open it has of twenty.

    A level's total tells of all of its files at once: if that is what dense files would have, all are dense. If it is
    not, the files are taken for some with deletions, which vouch for nothing.
    """
    unknown = {file.level for file in files if not file.entries}
    dense = {level for level in unknown if _is_dense_level(database, level, files)}
    return [
        file
        if file.level not in unknown
        else file._replace(entries=file.end - file.start, deletions=int(file.level not in dense))
        for file in files
    ]


def _is_dense_level(database: Database, level: int, files: list[LogFile]) -> bool:
    with rocksdb_errors(database.path):
        totals = database.log.property_value(f"rocksdb.aggregated-table-properties-at-level{level}") or ""
    counts = {name: int(count) for name, count in _TOTAL.findall(totals)}
    expected = sum(file.end - file.start for file in files if file.level == level)
    return counts.get("entries") == expected and not (
        counts.get("deletions", 1) or counts.get("range deletions", 0)
    )


def _require_ends(database: Database, log_range: LogRange) -> None:
    """Refuse a log whose first or last chunk is another than the range says."""
    newest = _at(_iterator_at(database, 2**64 - 1), database)
    if log_range.start == log_range.end:
        if newest is not None:
            raise _ends_elsewhere(database, log_range, newest[0])
        return
    if newest is None:
        raise _ends_elsewhere(database, log_range, None)
    key, value = newest
    end, end_ordinal = offset_of_key(key) + count_of(key, value), ordinal_of_key(key) + 1
    if (end, end_ordinal) != (log_range.end, log_range.end_ordinal):
        raise _ends_elsewhere(database, log_range, key)
    oldest = read_chunk(database, log_range.start)
    if oldest is None or oldest[0] != log_key(log_range.start, log_range.start_ordinal):
        raise DataCorrupted(
            f"{database.path}: the first changes of the log, at offset {log_range.start}, are missing"
        )


def _ends_elsewhere(database: Database, log_range: LogRange, key: bytes | None) -> DataCorrupted:
    return DataCorrupted(
        f"{database.path}: the log should end at offset {log_range.end}, but its last key is"
        f" {'missing' if key is None else key.hex()}"
    )


def _require_dense(database: Database, log_range: LogRange) -> None:
    """Refuse a log with holes: the rows of the missing changes would be missing too."""
    missing = 0
    for span in unproven_spans(_counted(database, log_files(database)), log_range):
        missing += span.end - span.start - _count_chunks(database, span)
    if missing:
        raise DataCorrupted(
            f"{database.path}: {missing} of the {log_range.end_ordinal - log_range.start_ordinal} pieces of the log are"
            " missing, and so are the rows of their changes; restore the files from a copy"
        )


def _count_chunks(database: Database, span: KeySpan) -> int:
    """How many chunks of a span there are."""
    count = 0
    with rocksdb_errors(database.path):
        keys: Iterator[Any] = database.log.keys(from_key=span.start_key)
        try:
            for key in keys:
                ordinal = ordinal_of_key(key)
                if ordinal >= span.end:
                    break
                count += ordinal >= span.start
        finally:
            del keys  # As in `read_chunks`.
    return count


def unproven_spans(files: list[LogFile], log_range: LogRange) -> list[KeySpan]:
    """The chunks of the log that no dense file vouches for, or that a file with deletions may hide.

    The keys of files with deletions say nothing of where chunks are: after a share of a transaction was undone, its
    ordinals went to chunks that can have other offsets. Those of dense files that nothing hides are keys of chunks.

    Returns:
        Disjoint spans, ascending.
    """
    # Sweep over where files begin and end: how many dense ones, and how many others, cover each stretch.
    edges = sorted(
        edge
        for file in files
        for edge in (
            (file.start, file.start_key, file.is_dense, file.deletions > 0),
            (file.end, log_key(offset_of_key(file.end_key) + 1), -file.is_dense, -(file.deletions > 0)),
        )
    )
    unproven: list[KeySpan] = []
    dense = hiding = 0
    at, proven = log_range.start_ordinal, False  # Whether the stretch that ends there is proven.
    # No chunk from `at` on has a smaller key than `known_key`; the dense file of `start_key` begins at `started`.
    known_key = start_key = log_key(log_range.start)
    started = at
    for ordinal, key, dense_change, hiding_change in (*edges, (log_range.end_ordinal, b"", 0, 0)):
        until = min(ordinal, log_range.end_ordinal)
        if until > at:
            proven = dense > 0 and not hiding
            if proven:
                known_key = max(known_key, start_key) if started == at else known_key
            elif unproven and unproven[-1].end == at:
                unproven[-1] = unproven[-1]._replace(end=until)
            else:
                unproven.append(KeySpan(at, until, known_key))
            at = until
        if dense_change > 0:
            started, start_key = ordinal, key
        elif dense_change < 0 and proven:
            known_key = max(known_key, key)
        dense += dense_change
        hiding += hiding_change
    return unproven
