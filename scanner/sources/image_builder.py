"""Makes an image of a bucket from a scan of its rows, a block at a time.

The caller drives it: `read` reads a few milliseconds' worth of rows, where the scan has to be read; `write` encodes and
writes them, in a thread.

This module knows no tasks and no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from scanner.data.row_block import RowBlock
from scanner.storage.images.format import BLOCK_ROWS_MAX
from scanner.wire.arrow_ipc import batch_size_bytes, fitting_rows

if TYPE_CHECKING:
    from scanner.data.keys import KeyCodec
    from scanner.data.rows import RowCodec
    from scanner.storage.interface import BucketScan

_READ_ROWS: Final = 8192
_READ_BYTES: Final = 256 * 1024
FIRST_BLOCK_BYTES: Final = 128 * 1024
"""Payload of the first of several blocks at most. Blocks go out whole, and the first rows of many scans that begin
together wait for one of each: as row by row, where the first step is as small (`scanner.server.fairness`)."""


class BlockWriter(Protocol):
    """Gets the blocks: a `scanner.storage.images.writer.ImageWriter`."""

    def add(self, rows: pa.RecordBatch, stored: RowBlock, last_key: bytes) -> None:
        """Write a block."""


class ImageBuilder:
    """One image that is being made.

    Args:
        scan: Of all rows; not closed by this class.
        writer: Gets them; neither finished nor aborted by this class.
        codec: Of the table's rows, with the columns of the image.
        key_codec: Of its keys.
        block_bytes: Payload of a block at most, unless it is one row.
    """

    def __init__(
        self, scan: BucketScan, writer: BlockWriter, codec: RowCodec, key_codec: KeyCodec, block_bytes: int
    ) -> None:
        self._scan = scan
        self._writer = writer
        self._codec = codec
        self._key_codec = key_codec
        self._block_bytes = block_bytes
        self._stored = RowBlock.join([])
        """Rows that are read and not written; fewer than a block has, after `write`."""
        self._rows = codec.decode_block(self._stored)
        self._ended = False
        self.rows_written = 0

    @property
    def waiting_bytes(self) -> int:
        """Stored octets of the rows that are read and not written."""
        return self._stored.nbytes

    def read(self) -> bool:
        """Read some more rows, a few milliseconds long.

        Returns:
            Whether there may be more; False: the end was proven.

        Raises:
            ScannerError: Storage failed.
        """
        read = self._scan.read(_READ_ROWS, _READ_BYTES)
        if len(read):
            self._stored = RowBlock.concat([self._stored, read.block]) if len(self._stored) else read.block
        self._ended = not len(read) and not read.unfinished
        return not self._ended

    def write(self) -> None:
        """Encode and write the blocks that are full; at the end, what is left. Blocks on the disk.

        Raises:
            DataCorrupted: A row is not one of the table.
            StoreFailed: The disk refused.
        """
        fresh = self._stored.slice(self._rows.num_rows, len(self._stored))
        if len(fresh):
            decoded = self._codec.decode_block(fresh)
            self._rows = pa.concat_batches([self._rows, decoded]) if self._rows.num_rows else decoded
        while self._rows.num_rows and (
            self._ended
            or batch_size_bytes(self._rows) > self._block_bytes
            or self._rows.num_rows > BLOCK_ROWS_MAX
        ):
            self._write_block()

    def _write_block(self) -> None:
        several = batch_size_bytes(self._rows) > self._block_bytes
        first = several and not self.rows_written
        block_bytes = min(FIRST_BLOCK_BYTES, self._block_bytes) if first else self._block_bytes
        count, _ = fitting_rows(self._rows, block_bytes, BLOCK_ROWS_MAX)
        rows, stored = self._rows.slice(0, count), self._stored.slice(0, count)
        last_key = stored.key_of(count - 1, self._codec, self._key_codec)()
        self._writer.add(rows, stored, last_key)
        self.rows_written += count
        self._rows = self._rows.slice(count)
        self._stored = self._stored.slice(count, len(self._stored))
