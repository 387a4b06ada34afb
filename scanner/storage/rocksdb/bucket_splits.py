"""Where the bytes of a bucket's rows are, by key: measured in the indexes of its files, without reading a row.

A file that is small beside a range counts as one piece. Of the others the index is read, and as many of its samples are
taken as the ranges need. What RocksDB has not flushed yet is in no file, and can only be walked: where it lies outside
of all files, as rows do whose keys ascend, and altogether where it is more than what is in files. Every row that is
walked counts, so the work is bounded by the number of files and of splits, and by what the write buffers hold. Who
knows the rows from elsewhere, from an image say, spares that: half a million small rows take 0.1 to 0.2 s.

Files are compressed, and rows in memory are not. So rows that are walked beside files count as much as they would take
there: else a range of them would get a fraction of the rows of another one.

What a file has of rows that were replaced or deleted counts until a compaction takes it away.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from scanner.data.key_ranges import intersection, is_empty
from scanner.data.keys import KeyRange, successor
from scanner.storage.rocksdb.database import rocksdb_errors
from scanner.storage.rocksdb.sst_files import SstFile, sst_files
from scanner.storage.rocksdb.sst_index import SstIndex
from scanner.storage.splits import BucketSplit, Piece, choose_cuts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scanner.data.key_ranges import SplitWish
    from scanner.storage.rocksdb.database import Database
    from scanner.storage.rocksdb.readers import Reading

_PIECES_PER_SPLIT: Final = 64
_PIECES_MIN: Final = 2048
"""A cut is off by half a piece for each file that lies over it: of few splits and ten files, a hundredth of a range."""
_PIECES_MAX: Final = 16 * 1024
"""For all splits together."""
_KNOWN_PER_SPLIT: Final = 8
"""Pieces that are known are taken if the largest is at most this part of a range: a cut is off by half of one."""
_LISTINGS: Final = 3
"""Tries at reading files that compactions take away; with the last one, a file that is gone is one piece."""
_UNFLUSHED_BYTES: Final = "rocksdb.cur-size-all-mem-tables"
_FILE_PROPERTIES: Final = "rocksdb.aggregated-table-properties"
_RAW_SIZE: Final = re.compile(r"raw (?:key|value) size=(\d+)")
_RAW_KEY_EXTRA_BYTES: Final = 8
"""Number and kind of an entry, behind its key."""
_UNFLUSHED_ROWS: Final = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")

_logger = logging.getLogger(__name__)
_END: Final = itemgetter(0)
"""End of a `Piece`."""
_IndexOf: TypeAlias = Callable[[SstFile], SstIndex | None]


class _Span(NamedTuple):
    """What a file has of the range."""

    file: SstFile
    size_bytes: int
    samples: SstIndex | None
    """None: it was not needed, or cannot be read."""
    first: int
    """Of the samples in the range, the first one."""
    end: int
    """One past the last one."""


def split_bucket(
    database: Database, reading: Reading, wish: SplitWish, key_range: KeyRange, known: Sequence[Piece]
) -> BucketSplit:
    """Cut the rows of a bucket, or of a range of its keys. Blocks on the disk.

    Args:
        database: Not closed meanwhile; commits and compactions may run.
        reading: How the rows that are walked are read.
        wish: How many ranges.
        key_range: What is cut.
        known: See `scanner.storage.interface.Bucket.split`.

    Raises:
        StoreFailed, DataCorrupted, StoreClosed: RocksDB cannot be read.
    """
    for _ in range(_LISTINGS - 1):
        with suppress(FileNotFoundError):
            return _split(database, reading, wish, key_range, known, _index_of)
    return _split(database, reading, wish, key_range, known, _index_if_there)


def _split(
    database: Database,
    reading: Reading,
    wish: SplitWish,
    key_range: KeyRange,
    known: Sequence[Piece],
    index_of: _IndexOf,
) -> BucketSplit:
    files = sst_files(database, database.kv)
    unflushed_rows, unflushed_bytes = _unflushed(database)
    # Files that compress well may hold many more rows in as many bytes.
    if unflushed_bytes > sum(file.size_bytes for file in files) and unflushed_rows >= sum(
        file.entries for file in files
    ):
        files = []
    outside = _outside(files, key_range) if unflushed_rows else []
    share = _stored_share(database, files)
    spans = [span for file in files if (span := _span(file, key_range, index_of)) is not None]
    filed_bytes = sum(span.size_bytes for span in spans)
    beside = _scaled([piece for each in outside for piece in _inside(known, each)], share)
    if not _are_fine(beside, filed_bytes, wish):
        beside = _scaled([piece for each in outside for piece in _walk(database, reading, each)], share)
    stored_bytes = filed_bytes + _size(beside)
    count = wish.count(stored_bytes)
    wanted = min(_PIECES_MAX, max(_PIECES_MIN, count * _PIECES_PER_SPLIT))
    piece_bytes = max(1, stored_bytes // wanted)
    pieces = [piece for span in spans for piece in _pieces(span, key_range, piece_bytes, index_of)]
    return BucketSplit(choose_cuts(pieces + beside, count, key_range), stored_bytes)


def _size(pieces: Sequence[Piece]) -> int:
    return sum(piece.size_bytes for piece in pieces)


def _scaled(pieces: Sequence[Piece], share: float) -> list[Piece]:
    return [Piece(piece.end, round(piece.size_bytes * share)) for piece in pieces]


def _inside(pieces: Sequence[Piece], key_range: KeyRange) -> Sequence[Piece]:
    """Those of ascending pieces that end in a range."""
    start = bisect_left(pieces, key_range.start, key=_END)
    return pieces[start : bisect_left(pieces, key_range.end, key=_END) if key_range.end else None]


def _are_fine(pieces: Sequence[Piece], others_bytes: int, wish: SplitWish) -> bool:
    """Whether pieces are known, and small enough to be cut between."""
    if not pieces:
        return False
    stored_bytes = others_bytes + _size(pieces)
    largest = max(piece.size_bytes for piece in pieces)
    return _KNOWN_PER_SPLIT * largest * wish.count(stored_bytes) <= stored_bytes


def _unflushed(database: Database) -> tuple[int, int]:
    """How many rows and deletions are in write buffers, and their bytes, about; an empty one takes some, too."""
    with rocksdb_errors(database.path):
        rows = sum(database.kv.property_int_value(name) or 0 for name in _UNFLUSHED_ROWS)
        return rows, (database.kv.property_int_value(_UNFLUSHED_BYTES) or 0) if rows else 0


def _stored_share(database: Database, files: Sequence[SstFile]) -> float:
    """What rows take in these files of their own length; 1 if they are not smaller there, or nothing is known."""
    with rocksdb_errors(database.path):
        properties = database.kv.property_value(_FILE_PROPERTIES) or ""
    raw_bytes = sum(map(int, _RAW_SIZE.findall(properties)))
    raw_bytes -= _RAW_KEY_EXTRA_BYTES * sum(file.entries for file in files)
    stored_bytes = sum(file.size_bytes for file in files)
    return stored_bytes / raw_bytes if 0 < stored_bytes < raw_bytes else 1.0


def _outside(files: Sequence[SstFile], key_range: KeyRange) -> list[KeyRange]:
    """The parts of a range that lie before and behind the keys of all files."""
    if not files:
        return [key_range]
    before = KeyRange(b"", min(file.start_key for file in files))
    behind = KeyRange(successor(max(file.end_key for file in files)), b"")
    # An end that is empty is none, and no key is before an empty one.
    parts = [intersection(key_range, each) for each in ([before] if before.end else []) + [behind]]
    return [part for part in parts if not is_empty(part)]


def _span(file: SstFile, key_range: KeyRange, index_of: _IndexOf) -> _Span | None:
    """What a file has of a range; None: nothing."""
    start, end = key_range
    if file.end_key < start or (end and file.start_key >= end):
        return None
    if start <= file.start_key and (not end or file.end_key < end):
        return _Span(file, file.size_bytes, None, 0, 0)
    whole = _Span(file, file.size_bytes, None, 0, 0)
    index = index_of(file)
    if index is None:
        return whole
    try:
        first = index.count_before(start)
        last = min(index.count_before(end) + 1, len(index)) if end else len(index)
        before = index.end_offset(first - 1) if first else 0
        size = index.end_offset(last - 1) - before if last > first else 0
        if not 0 <= size <= file.size_bytes:
            raise ValueError(f"{size} octets of {file.size_bytes}")
    except ValueError as error:
        _tell_coarser(file, error)
        return whole
    return _Span(file, size, index, first, last)


def _index_of(file: SstFile) -> SstIndex | None:
    """The index of a file; None if it cannot be read.

    Raises:
        FileNotFoundError: A compaction has replaced the file since it was listed.
    """
    try:
        return SstIndex.read(file.path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        _tell_coarser(file, error)
        return None


def _tell_coarser(file: SstFile, error: Exception) -> None:
    _logger.warning("%s: its index cannot be read, so splits are coarser: %s", file.path, error)


def _index_if_there(file: SstFile) -> SstIndex | None:
    """The index of a file; None if it cannot be read, or is gone."""
    try:
        return _index_of(file)
    except FileNotFoundError:
        return None


def _pieces(span: _Span, key_range: KeyRange, piece_bytes: int, index_of: _IndexOf) -> list[Piece]:
    """A span in pieces of about a size."""
    index, first, end = span.samples, span.first, span.end
    if index is None and span.size_bytes > piece_bytes and (index := index_of(span.file)) is not None:
        first, end = 0, len(index)
    if index is not None and end - first >= 2:
        step = max(1, (end - first) * piece_bytes // max(1, span.size_bytes))
        try:
            return _sampled(index, first, end, step)
        except ValueError as error:  # It is read sample by sample, and was not looked at before.
            _tell_coarser(span.file, error)
    last_key = span.file.end_key
    return [Piece(min(last_key, key_range.end) if key_range.end else last_key, span.size_bytes)]


def _sampled(index: SstIndex, first: int, end: int, step: int) -> list[Piece]:
    """Samples of an index in pieces of so many."""
    pieces = []
    before = index.end_offset(first - 1) if first else 0
    for number in [*range(first + step - 1, end - 1, step), end - 1]:
        after = index.end_offset(number)
        pieces.append(Piece(index.key(number), after - before))
        before = after
    return pieces


def _walk(database: Database, reading: Reading, key_range: KeyRange) -> list[Piece]:
    """The rows of a range, in a bounded number of pieces. One row is in memory at a time."""
    with rocksdb_errors(database.path):
        options = reading.options(database.kv, key_range)
        items = cast(
            "Iterator[tuple[bytes, bytes]]",
            database.kv.items(from_key=key_range.start or None, read_opt=options),
        )
        pieces: list[Piece] = []
        size = piece_bytes = 0
        key = b""
        try:
            for key, row in items:
                size += len(key) + len(row)
                if size < piece_bytes:
                    continue
                pieces.append(Piece(key, size))
                size = 0
                if len(pieces) > _PIECES_MAX:
                    pairs = [pieces[at : at + 2] for at in range(0, len(pieces), 2)]
                    pieces = [Piece(pair[-1].end, _size(pair)) for pair in pairs]
                    piece_bytes = _size(pieces) // len(pieces)
        finally:
            del items  # It keeps the directory locked.
    return [*pieces, Piece(key, size)] if size else pieces
