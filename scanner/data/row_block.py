"""Stored rows of one scan step, joined: what is decoded at once and digested slice by slice.

A source reads some thousand rows, joins and decodes them once, and then hands out slices of the batch, as
many rows at a time as the credit allows. The block keeps the stored bytes of these rows at hand, for the
digest of the scan and for the key to continue from.

This module knows no row format and no storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from scanner.data.digest import DIGEST_EMPTY, checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec
    from scanner.data.rows import RowCodec

BLOCK_BYTES_MAX = 2**31 - 1
"""Rows that are decoded together: Arrow's 32-bit offsets reach no further."""

WorkOutKey: TypeAlias = Callable[[], bytes]
"""Works out the encoded key of a row."""


class RowBlock:
    """Some stored rows in one buffer.

    Slices share the memory. A slice `[a, b)` of a block corresponds to the slice `[a, b)` of the record batch
    that the block decodes to.

    Args:
        buffer: The rows, one after the other.
        starts: int64 array, where each row starts in `buffer`, and where the last one ends.
    """

    __slots__ = ("buffer", "starts")

    def __init__(self, buffer: bytes | memoryview, starts: NDArray[np.int64]) -> None:
        self.buffer = buffer
        """What the rows are in, shared by all slices; `starts` says where."""
        self.starts = starts
        """Where each row starts in `buffer`, and where the last one ends. Not to be modified."""

    @classmethod
    def join(cls, rows: Sequence[bytes]) -> RowBlock:
        """Copy rows together.

        Raises:
            ValueError: they take more than BLOCK_BYTES_MAX.
        """
        _require_size(sum(map(len, rows)))
        return cls.join_some(rows)

    @classmethod
    def join_some(cls, rows: Sequence[bytes]) -> RowBlock:
        """Copy as many of the first rows together as make a block, and one at least if there are any.

        Python does it sooner than an array that Arrow makes of the rows: that one grows while it is filled, and copies.
        """
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=starts[1:])
        if starts[-1] > BLOCK_BYTES_MAX:
            count = max(1, int(np.searchsorted(starts, BLOCK_BYTES_MAX, side="right")) - 1)
            rows, starts = rows[:count], starts[: count + 1]
        return cls(b"".join(rows), starts)

    @classmethod
    def concat(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """Copy blocks together; a single one is that one.

        Raises:
            ValueError: they take more than BLOCK_BYTES_MAX.
        """
        if len(blocks) == 1:
            return blocks[0]
        starts = np.zeros(sum(map(len, blocks)) + 1, np.int64)
        at, position = 0, 0
        for block in blocks:
            end = at + len(block)
            np.add(block.starts, position - block.starts[0], out=starts[at : end + 1])
            at, position = end, position + block.nbytes
        _require_size(position)
        return cls(b"".join([block.bytes(0, len(block)) for block in blocks]), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Stored bytes of the rows."""
        return int(self.starts[-1] - self.starts[0])

    @property
    def row_bytes_max(self) -> int:
        """Length of the longest row; there is at least one."""
        return int(np.diff(self.starts).max())

    def slice(self, start: int, stop: int) -> RowBlock:
        """The rows [start, stop), 0 <= start <= stop <= len(self), without a copy."""
        return RowBlock(self.buffer, self.starts[start : stop + 1])

    def fitting(self, bytes_max: int) -> int:
        """How many of the first rows take at most `bytes_max` together."""
        return int(np.searchsorted(self.starts, self.starts[0] + bytes_max, side="right")) - 1

    def to_list(self) -> list[bytes]:
        """Copies of the rows."""
        whole, starts = bytes(self.bytes(0, len(self))), (self.starts - self.starts[0]).tolist()
        return [whole[start:end] for start, end in itertools.pairwise(starts)]

    def row(self, index: int) -> bytes:
        """A copy of one row, 0 <= index < len(self)."""
        return bytes(self.buffer[self.starts[index] : self.starts[index + 1]])

    def bytes(self, start: int, stop: int) -> memoryview:
        """The stored bytes of the rows [start, stop), without a copy."""
        return memoryview(self.buffer)[self.starts[start] : self.starts[stop]]

    def digest(self, crc: int = DIGEST_EMPTY) -> int:
        """Continue the digest of a scan with the rows of this block."""
        return self.digest_of(0, len(self), crc)[0]

    def digest_of(self, start: int, stop: int, crc: int) -> tuple[int, int]:
        """Continue the digest of a scan with the rows [start, stop); and how many bytes they are."""
        octets = self.bytes(start, stop)
        return checksum(octets, crc), len(octets)

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """The rows as Arrow columns; see `RowCodec.decode_block`."""
        return codec.decode_block(self, columns)

    def encoded(self, schema: pa.Schema) -> None:
        """Stored rows are not encoded."""
        return

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """Works out the encoded key of a row when it is called, and keeps no other row.

        Raises:
            DataCorrupted: When called: the row is not one of the table.
        """
        row = self.row(index)
        return lambda: key_codec.encode_stored(codec.cells(row, key_codec.schema.names))


def _require_size(nbytes: int) -> None:
    if nbytes > BLOCK_BYTES_MAX:
        raise ValueError(f"{nbytes} bytes of rows in one block; at most {BLOCK_BYTES_MAX} are allowed")


def binary_view(buffer: Any, offsets: NDArray[np.int32]) -> pa.Array:
    """A binary array over a buffer, without a copy.

    Args:
        buffer: Anything with a buffer; the array keeps it alive.
        offsets: Where each element starts, and where the last one ends; inside the buffer, never decreasing.
    """
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )
