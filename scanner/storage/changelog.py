"""Change records as they are stored: key and value of the `log` column family, and the log's range in `meta`.

    log key    u64 big-endian offset, so that key order is offset order
    log value  u8 kind, i64 little-endian commit time in microseconds since 1970 UTC, the stored row
    meta value u64 log start, u64 log end, i64 commit time of the newest change, all big-endian

The primary key is not stored with a change: every change carries a whole row, `-U` and `-D` the old one,
and the key is worked out from it when the log is read.

This module knows no RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scanner.errors import DataCorrupted
from scanner.storage.records import Change, ChangeBlock, ChangeKind, KeysOf

_OFFSET = struct.Struct(">Q")
_HEADER = struct.Struct("<Bq")
_RANGE = struct.Struct(">QQq")


class LogRange(NamedTuple):
    """What `meta` says of the log: committed in the same atomic batch as the changes themselves."""

    start: int
    """The oldest offset that is kept."""
    end: int
    """One past the newest."""
    timestamp_us: int
    """Commit time of the newest change; 0 before the first."""


def log_key(offset: int) -> bytes:
    """Key of the change at an offset."""
    return _OFFSET.pack(offset)


def offset_of_key(key: bytes) -> int:
    """The offset of the change under a key.

    Raises:
        DataCorrupted: it is no key of a change.
    """
    try:
        (offset,) = _OFFSET.unpack(key)
    except struct.error as error:
        raise DataCorrupted(f"the log holds the key {key.hex()}, which is no offset") from error
    return int(offset)


def timestamp_of(offset: int, value: bytes) -> int:
    """Commit time of one change record, in microseconds since 1970 UTC.

    Raises:
        DataCorrupted: the record is too short.
    """
    try:
        _, timestamp_us = _HEADER.unpack_from(value)
    except struct.error as error:
        raise DataCorrupted(f"the change at offset {offset} is damaged: {error}") from error
    return int(timestamp_us)


def log_keys(offset: int, count: int) -> bytes:
    """Keys of adjacent changes, joined."""
    return np.arange(offset, offset + count, dtype=">u8").tobytes()


def change_header(kind: ChangeKind, timestamp_us: int) -> bytes:
    """What precedes the row in the value of a change; the same for all changes of a kind in one commit."""
    return _HEADER.pack(kind, timestamp_us)


def decode_changes(offset: int, values: Sequence[bytes], keys_of: KeysOf) -> list[Change]:
    """Decode adjacent change records.

    Args:
        offset: Offset of the first one.
        values: The stored values, in offset order.
        keys_of: Works out the primary keys.

    Raises:
        DataCorrupted: a record is too short, of an unknown kind, or carries no row of the table.
    """
    rows = [value[_HEADER.size :] for value in values]
    keys = keys_of(rows)
    changes = []
    for index, value in enumerate(values):
        try:
            kind, timestamp_us = _HEADER.unpack_from(value)
            change = Change(offset + index, ChangeKind(kind), timestamp_us, keys[index], rows[index])
        except (struct.error, ValueError) as error:
            raise DataCorrupted(f"the change at offset {offset + index} is damaged: {error}") from error
        changes.append(change)
    return changes


def decode_change_block(offset: int, values: Sequence[bytes], keys_of: KeysOf) -> ChangeBlock:
    """Decode adjacent change records, all at once; their rows are not looked into.

    Args:
        offset: Offset of the first one.
        values: The stored values, in offset order.
        keys_of: Works out the primary keys.

    Raises:
        DataCorrupted: a record is too short, or of an unknown kind.
    """
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    if len(values) and sizes.min() < _HEADER.size:
        raise DataCorrupted(
            f"the change at offset {offset + int(sizes.argmin())} is damaged: it is too short"
        )
    starts = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(values), np.uint8)
    headers = raw[starts[:, None] + np.arange(_HEADER.size)]
    kinds = headers[:, 0]
    unknown = np.flatnonzero((kinds < min(ChangeKind)) | (kinds > max(ChangeKind)))
    if len(unknown):
        raise DataCorrupted(
            f"the change at offset {offset + int(unknown[0])} is damaged: {kinds[unknown[0]]} is no kind"
        )
    timestamps = np.ascontiguousarray(headers[:, 1:]).view("<i8").ravel()
    return ChangeBlock(offset, kinds, timestamps, [value[_HEADER.size :] for value in values], keys_of)


def encode_log_range(log_range: LogRange) -> bytes:
    """The value that `meta` holds."""
    return _RANGE.pack(*log_range)


def decode_log_range(value: bytes) -> LogRange:
    """Read what `meta` holds.

    Raises:
        DataCorrupted: it is not a range.
    """
    try:
        log_range = LogRange(*_RANGE.unpack(value))
    except struct.error as error:
        raise DataCorrupted(f"the log range {value.hex()} is damaged: {error}") from error
    if log_range.start > log_range.end:
        raise DataCorrupted(f"the log range [{log_range.start}, {log_range.end}) runs backwards")
    return log_range
