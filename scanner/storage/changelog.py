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

from scanner.errors import DataCorrupted
from scanner.storage.interface import Change, ChangeKind, KeysOf

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
