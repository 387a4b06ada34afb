"""What an image's file is made of, as bytes.

An image is the rows of one bucket as of one log offset, in key order, as Arrow IPC record batch messages. Its file is
written once and never changed. Little-endian, every part as long as a multiple of 8 bytes:

    head        magic, length and CRC-32C of what follows; table id, bucket, schema id, log offset, history, and the
                Arrow schema message of all columns
    blocks      each: an Arrow IPC record batch message (the payload), then for each of its rows u32 the CRC-32C, and
                then for each u32 the length, of the block's stored rows up to and with it
    index       a record of each block, then the encoded key of each block's last row, and then the statistics of the
                blocks (`scanner.storage.images.statistics`)
    tail        magic, place and length of the index, its CRC-32C, counts, and a CRC-32C of the tail

Invariants:

1. Every byte of a file is under a CRC-32C, or compared: whatever is damaged, lost or added is found, that of a block
   when the block is read and all else when the file is opened.
2. The digest of any stretch of rows follows from the running CRC-32Cs (`scanner.data.crc_shift`), so a scan of an image
   has the digest of one of the stored rows, at every row. That of a whole block follows from its record alone.

This module knows no files and no buckets. The format is stored; a golden file in the tests holds it in place.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

from scanner.data.digest import DIGEST_EMPTY, checksum
from scanner.storage.lineage import HISTORY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.row_block import RowBlock

BLOCK_BYTES_MAX: Final = 2 * 1024 * 1024
BLOCK_BYTES_MIN: Final = 256 * 1024
_BLOCKS_OF_TABLE_BYTES: Final = 8 * 1024 * 1024
_AROUND_BYTES: Final = 4 * 1024
"""More than what a message has around a block: so credit of 4 MiB holds two of nearly 2 MiB."""
BLOCK_ROWS_MAX: Final = 32 * 1024
"""Rows of a block at most: what goes out whole must not be more than a batch may have."""

_ALIGNMENT: Final = 8
_HEAD_MAGIC: Final = b"weirimg\x02"
_TAIL_MAGIC: Final = b"weirend\x01"
_HEAD: Final = struct.Struct("<8sII")
"""Magic, and of the rest of the head length and CRC-32C."""
_FIELDS: Final = struct.Struct(f"<QIIQ{HISTORY_BYTES}sQ")
"""Table id, bucket, schema id, log offset, history, and the length of the schema message."""
_TAIL: Final = struct.Struct("<8sQQQQII")
"""Magic, place and length of the index, blocks, rows, CRC-32C of the index, and of the tail up to here."""
_BLOCK: Final = np.dtype(
    [
        ("at", "<u8"),
        ("payload_bytes", "<u4"),
        ("payload_crc32c", "<u4"),
        ("rows", "<u4"),
        ("table_crc32c", "<u4"),
        ("key_bytes", "<u4"),
        ("row_bytes_max", "<u4"),
        ("stored_bytes", "<u4"),
        ("stored_crc32c", "<u4"),
    ]
)
HEAD_PREFIX_BYTES: Final = _HEAD.size
TAIL_BYTES: Final = _TAIL.size
ROW_BYTES: Final = 8
"""What a row takes behind the payload."""


FileId: TypeAlias = tuple[int, int]
"""Which file it is, whatever its name: device and inode."""


def block_payload_bytes(buckets: int) -> int:
    """Payload of a block at most, unless it is one row.

    What a block costs both ends beside its octets is spread over its rows, and the credit of a scan of all buckets
    shall hold two whole blocks of each: it is 8 MiB at first, or 4 MiB a bucket, and 32 MiB at most. `python -m bench
    peers --part scans --width 86 --buckets 1`, "push, image": 6.5 M rows/s with blocks of 256 KiB, 13.0 with 1 MiB;
    with 2 MiB a fifth less of the server's CPU than with 1 MiB, and a quarter more rows a second. Of four buckets, in
    the same minutes, a sixth less of the server's CPU with 2 MiB than with 1, and a fifth less time.

    Args:
        buckets: Of the table.
    """
    return min(BLOCK_BYTES_MAX, max(BLOCK_BYTES_MIN, _BLOCKS_OF_TABLE_BYTES // buckets)) - _AROUND_BYTES


class ImageDamaged(Exception):
    """What is read is not what was written; the row store has it all."""

    file_id: FileId | None = None
    """The file that could not be opened for it; None: that is open, or not known."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What an image is of."""

    table_id: int
    bucket: int
    schema_id: int
    """Of the columns: older rows have nulls in those that they lack."""
    log_offset: int
    """The image shows the changes with a smaller offset, and no other."""
    history: bytes
    """The history of the bucket that this state is of."""
    schema: pa.Schema
    """All columns of the table, in their order."""

    def encode(self) -> bytes:
        """The head of a file."""
        message = self.schema.serialize().to_pybytes()
        fields = _FIELDS.pack(
            self.table_id, self.bucket, self.schema_id, self.log_offset, self.history, len(message)
        )
        body = _padded(fields + message)
        return _HEAD.pack(_HEAD_MAGIC, len(body), checksum(body)) + body


def head_body_bytes(prefix: bytes) -> int:
    """How many bytes of the head follow its first `HEAD_PREFIX_BYTES`.

    Raises:
        ImageDamaged: This is no head.
    """
    if len(prefix) != _HEAD.size or not prefix.startswith(_HEAD_MAGIC):
        raise ImageDamaged("it does not begin as an image of this format does")
    return int(_HEAD.unpack(prefix)[1])


def decode_header(head: bytes) -> ImageHeader:
    """Read the whole head.

    Raises:
        ImageDamaged: It is not what was written.
    """
    body = head[_HEAD.size :]
    size = head_body_bytes(head[: _HEAD.size])
    # The checksum of nothing is 0: zeros in front of a head would say of themselves that they are one.
    if not _FIELDS.size <= len(body) == size or checksum(body) != _HEAD.unpack_from(head)[2]:
        raise ImageDamaged("its head is damaged")
    table_id, bucket, schema_id, log_offset, history, length = _FIELDS.unpack_from(body)
    message = body[_FIELDS.size : _FIELDS.size + length]
    return ImageHeader(
        table_id, bucket, schema_id, log_offset, history, pa.ipc.read_schema(pa.py_buffer(message))
    )


_PLACE_FIELDS: Final = tuple(name for name in _BLOCK.names or () if name != "key_bytes")


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block is in a file."""

    at: int
    payload_bytes: int
    payload_crc32c: int
    rows: int
    table_crc32c: int
    """Of what is behind the payload."""
    row_bytes_max: int
    """Length of the longest of its stored rows."""
    stored_bytes: int
    """Length of all of them."""
    stored_crc32c: int
    """Of all of them."""
    last_key: bytes
    """Encoded key of its last row."""

    @property
    def size_bytes(self) -> int:
        """Of payload and table."""
        return self.payload_bytes + ROW_BYTES * self.rows


def row_table(stored: RowBlock) -> NDArray[Any]:
    """What stands behind the payload of a block: running CRC-32Cs, then running lengths, of its stored rows.

    Raises:
        ValueError: The rows take 4 GiB or more.
    """
    lengths = np.cumsum(np.diff(stored.starts))
    if len(lengths) and int(lengths[-1]) >= 1 << 32:
        raise ValueError("the rows of a block take 4 GiB or more")
    crcs = list(accumulate(stored.to_list(), google_crc32c.extend, initial=DIGEST_EMPTY))[1:]
    return np.array([crcs, lengths], "<u4")


def encode_end(places: list[BlockPlace], statistics: bytes, index_at: int) -> bytes:
    """Index and tail.

    Args:
        places: The blocks.
        statistics: Theirs, encoded.
        index_at: Where the last of them ends.
    """
    records = np.zeros(len(places), _BLOCK)
    for name in _PLACE_FIELDS:
        records[name] = [getattr(place, name) for place in places]
    records["key_bytes"] = [len(place.last_key) for place in places]
    index = _padded(records.tobytes() + b"".join(place.last_key for place in places)) + _padded(statistics)
    rows = sum(place.rows for place in places)
    tail = _TAIL.pack(_TAIL_MAGIC, index_at, len(index), len(places), rows, checksum(index), 0)[:-4]
    return index + tail + checksum(tail).to_bytes(4, "little")


def decode_tail(tail: bytes, file_bytes: int) -> tuple[int, int]:
    """Where the index is, and its length.

    Args:
        tail: The last `TAIL_BYTES` of the file.
        file_bytes: Its length.

    Raises:
        ImageDamaged: It is not what was written.
    """
    if len(tail) != _TAIL.size or checksum(tail[:-4]) != int.from_bytes(tail[-4:], "little"):
        raise ImageDamaged("its end is damaged or missing")
    magic, index_at, index_bytes, _, _, _, _ = _TAIL.unpack(tail)
    if magic != _TAIL_MAGIC or index_at + index_bytes + _TAIL.size != file_bytes:
        raise ImageDamaged(f"it has {file_bytes} bytes, and was written with another length")
    return index_at, index_bytes


def decode_index(index: bytes, tail: bytes, first_at: int) -> tuple[list[BlockPlace], bytes]:
    """The blocks, and their statistics as they were encoded.

    Args:
        index: As it is in the file.
        tail: The same; checked already.
        first_at: Where the head ends.

    Raises:
        ImageDamaged: The index is not what was written, or does not cover the file.
    """
    _, index_at, _, count, rows, crc, _ = _TAIL.unpack(tail)
    if checksum(index) != crc:
        raise ImageDamaged("its index is damaged")
    records = np.frombuffer(index, _BLOCK, count)
    ends = [count * _BLOCK.itemsize, *(count * _BLOCK.itemsize + np.cumsum(records["key_bytes"])).tolist()]
    keys = [index[start:end] for start, end in pairwise(ends)]
    fields = (records[name].tolist() for name in _PLACE_FIELDS)
    places = [BlockPlace(*parts) for parts in zip(*fields, keys, strict=True)]
    at = first_at
    for place in places:
        if place.at != at:
            raise ImageDamaged("its blocks are not where one ends and the next begins")
        at += place.size_bytes
    if at != index_at or sum(place.rows for place in places) != rows:
        raise ImageDamaged("its index does not cover it")
    return places, index[ends[-1] + -ends[-1] % _ALIGNMENT :]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
