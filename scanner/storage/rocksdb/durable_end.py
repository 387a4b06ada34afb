"""The durable end of a bucket's changelog, in a small file beside its database: how a lost tail is noticed.

A write-ahead log that lost its last records, or a file, is replayed as far as it goes, and nothing in it tells that
there was more. This file does: after each sync it gets the end that is durable now. It is not synced itself, so a
machine that loses power may leave it behind the log, never ahead of it.

    octets  0-3   "WEND"
            4     format, 3
            5-12  end, big-endian
            13-28 id of the history that it is of
            29-36 RocksDB's number of the newest durable write, big-endian
            37-40 CRC-32C of the bucket's identity and of what precedes

Format 2, which is read, has no such number. An older weir that goes on where a newer one was writes it over the head of
the file, so what is behind it says nothing. The identity is covered so that the file of another bucket says nothing of
this one.

This module knows no RocksDB.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from scanner.data.digest import checksum
from scanner.errors import StoreFailed, TooManyFiles
from scanner.storage.rocksdb.files import disk_errors

NAME: Final = "DURABLE-END"
_FIELDS: Final = struct.Struct(">4sBQ16sQ")
_FIELDS_2: Final = struct.Struct(">4sBQ16s")
_FORMAT_AT: Final = 4
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"WEND"
_FORMAT: Final = 3


class DurableEnd(NamedTuple):
    """What the file says."""

    end: int
    """One past the newest change that was durable."""
    history_id: bytes
    """The history that wrote it."""
    sequence: int = 0
    """RocksDB's number of the newest change of it that was durable, in rows, log or meta; 0: it is not known."""

    def is_reached(self, end: int, sequence: int) -> bool:
        """Whether a database has all that was durable; a commit that changes no row moves the number alone.

        Args:
            end: Where its changelog ends.
            sequence: RocksDB's number of its newest change.
        """
        return self.end <= end and self.sequence <= sequence


def write_durable_end(directory: Path, identity: bytes, durable: DurableEnd) -> None:
    """Write the file of a bucket; not synced. A disk that refuses is none of the commit's business: it is durable."""
    fields = _FIELDS.pack(_MAGIC, _FORMAT, *durable)
    try:
        descriptor = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, fields + _CHECKSUM.pack(checksum(fields, checksum(identity))), 0)
        finally:
            os.close(descriptor)
    except OSError:
        pass  # The next commit tries again; until then the file says less, which is true too.


def read_durable_end(directory: Path, identity: bytes) -> DurableEnd | None:
    """Read the file of a bucket; None if there is none, or it is not whole or not of this bucket: nothing is known.

    Raises:
        TooManyFiles: It could not be opened, which says nothing of it: what it knows would be written over.
    """
    path = directory / NAME
    try:
        with disk_errors(path):
            content = path.read_bytes()
        layout = {2: _FIELDS_2, _FORMAT: _FIELDS}[content[_FORMAT_AT]]
        fields = content[: layout.size]
        magic, _, *durable = layout.unpack(fields)
        (crc,) = _CHECKSUM.unpack_from(content, layout.size)
    except TooManyFiles:
        raise
    except (StoreFailed, IndexError, KeyError, struct.error):
        return None
    if (magic, crc) != (_MAGIC, checksum(fields, checksum(identity))):
        return None
    return DurableEnd(*durable)
