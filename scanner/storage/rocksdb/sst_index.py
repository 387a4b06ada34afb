"""The index of a table file of RocksDB: where in the file the rows of a key are, block by block.

rocksdict offers no approximate sizes, but a file's index has them: for each block a key that separates it from the
next one, and where the block lies. It takes about a 500th of the file. Read from the file itself, as RocksDB 10 writes
it with format version 5:

    footer      53 octets: checksum type, handle of the metaindex, handle of the index, padding to 41; version; magic
    handle      two varints: offset and size of a block; five octets behind it: compression, checksum
    block       compressed: a varint, the size before, goes first. Entries; offsets of the entries that stand by
                themselves (restart points), four octets each; how many these are
    entry       at a restart point: varint 0, varint length of the key, key, handle

The index is a hint: what is not understood is an error that the caller goes on without.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import pyarrow as pa

_FOOTER_BYTES: Final = 53
_TRAILER_BYTES: Final = 5
_MAGIC: Final = 0x88E241B785F4CFF7
_VERSIONS: Final = (4, 5)
_CODECS: Final = {0: None, 4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_INDEX_BYTES_MAX: Final = 256 * 1024 * 1024
_RESTARTS_MASK: Final = (1 << 31) - 1


class SstIndex:
    """An index that was read: `len` samples of the file, in key order.

    Args:
        block: The index block, decompressed.

    Raises:
        ValueError: It is none.
    """

    def __init__(self, block: bytes) -> None:
        if len(block) < 4:
            raise ValueError("an index of less than four octets")
        (count,) = struct.unpack("<I", block[-4:])
        count &= _RESTARTS_MASK
        entries_end = len(block) - 4 * (count + 1)
        if not count or entries_end <= 0:
            raise ValueError("an index without entries")
        self._block = block
        self._restarts = struct.unpack(f"<{count}I", block[entries_end:-4])

    @classmethod
    def read(cls, path: Path) -> SstIndex:
        """Read the index of a file. Blocks on the disk.

        Raises:
            OSError: The disk refused, or the file is gone.
            ValueError: It is not such a file.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            footer = os.pread(descriptor, _FOOTER_BYTES, max(0, size - _FOOTER_BYTES))
            offset, length = _index_handle(footer)
            if not 0 < length <= min(size, _INDEX_BYTES_MAX):
                raise ValueError(f"an index of {length} octets")
            stored = os.pread(descriptor, length + _TRAILER_BYTES, offset)
        finally:
            os.close(descriptor)
        if len(stored) != length + _TRAILER_BYTES:
            raise ValueError("the index is not in the file")
        return cls(_decompressed(stored[:length], stored[length]))

    def __len__(self) -> int:
        return len(self._restarts)

    def key(self, number: int) -> bytes:
        """A key that no row of the sample's block is above, and every row of the next block is.

        Raises:
            ValueError: The index is damaged.
        """
        return self._entry(number)[0]

    def end_offset(self, number: int) -> int:
        """Where in the file the sample's block ends.

        Raises:
            ValueError: The index is damaged.
        """
        return self._entry(number)[1]

    def count_before(self, key: bytes) -> int:
        """How many samples end before a key.

        Raises:
            ValueError: The index is damaged.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, number: int) -> tuple[bytes, int]:
        block, position = self._block, self._restarts[number]
        shared, position = _varint(block, position)
        length, position = _varint(block, position)
        key = block[position : position + length]
        if shared or len(key) < length:
            raise ValueError("a restart point without a whole key")
        offset, position = _varint(block, position + length)
        size, _ = _varint(block, position)
        return key, offset + size + _TRAILER_BYTES


def _index_handle(footer: bytes) -> tuple[int, int]:
    """Where the index is: offset and size."""
    if len(footer) != _FOOTER_BYTES:
        raise ValueError("the file is too short")
    version, magic = struct.unpack("<IQ", footer[-12:])
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError(f"a file of version {version}, magic {magic:x}")
    position = 1
    for _ in range(2):
        _, position = _varint(footer, position)
    offset, position = _varint(footer, position)
    size, _ = _varint(footer, position)
    return offset, size


def _decompressed(stored: bytes, compression: int) -> bytes:
    if compression not in _CODECS:
        raise ValueError(f"compression {compression}")
    codec = _CODECS[compression]
    if codec is None:
        return stored
    size, position = _varint(stored, 0)
    if size > _INDEX_BYTES_MAX:
        raise ValueError(f"an index of {size} octets")
    try:
        return bytes(pa.decompress(stored[position:], size, codec=codec, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"the index cannot be decompressed: {error}") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and the position behind it."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        octet = data[position]
        position += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, position
        shift += 7
