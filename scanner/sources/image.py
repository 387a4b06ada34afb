"""A scan of an image: rows that are Arrow already, with the running digests of the stored rows that they were made of.

Invariants:

1. It yields what a scan of the row store as of the same offset yields: rows, order, and the stored bytes' length and
   digest up to every row. So positions, and the tokens made of them, are those of the row store.
2. What was changed since the image is laid over it; a block without a change in it goes out as it lies.
3. A block that is damaged, or cannot be read, is not used. From its first row on the row store is read; so it is where
   the changes cannot be had.
4. A block is read whole, whatever is asked for: 256 KiB as a rule.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scanner.data.crc_shift import shifted
from scanner.data.keys import KeyRange, successor
from scanner.data.row_block import RowBlock
from scanner.data.table import require_columns
from scanner.errors import DataCorrupted, StoreClosed
from scanner.sources.merged_rows import merged
from scanner.storage.images.format import ImageDamaged
from scanner.wire.batches import EncodedRows, decode_batch

if TYPE_CHECKING:
    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.sources.image_delta import DeltaView
    from scanner.sources.interface import ReadRows, StoredRows
    from scanner.storage.images.reader import Image, ImageBlock
    from scanner.storage.interface import BucketScan

_TAIL_ROWS: Final = 2048
"""Rows behind the last block that are read at once."""


class ImageRows:
    """The rows [start, stop) of a block of an image. See `scanner.sources.interface.StoredRows`.

    Args:
        block: As it was read.
        batch: The block, decoded: all columns of the image.
        start: 0 or more.
        stop: Above `start`; at most as many rows as the block has.
    """

    __slots__ = ("_batch", "_block", "_start", "_stop")

    def __init__(self, block: ImageBlock, batch: pa.RecordBatch, start: int, stop: int) -> None:
        self._block = block
        self._batch = batch
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def row_bytes_max(self) -> int:
        """See `StoredRows`; of the whole block."""
        return int(np.diff(self._block.ends.astype(np.int64), prepend=0).max())

    def slice(self, start: int, stop: int) -> ImageRows:
        """See `StoredRows`."""
        return ImageRows(self._block, self._batch, self._start + start, self._start + stop)

    def size_of(self, start: int, stop: int) -> int:
        """See `StoredRows`."""
        return self._end_of(stop) - self._end_of(start)

    def digest_of(self, start: int, stop: int, crc: int) -> int:
        """See `StoredRows`."""
        # Of the rows [0, start) and [0, stop) of the block it is known; what is in front of them is shifted out.
        return self._crc_of(stop) ^ shifted(crc ^ self._crc_of(start), self.size_of(start, stop))

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """See `StoredRows`; a column that the image lacks was added later, and is null in all of its rows."""
        require_columns(codec.schema, columns)
        names = columns or codec.schema.names
        rows = self._batch.slice(self._start, len(self))
        if list(names) == rows.schema.names:
            return rows
        has = set(rows.schema.names)
        schema = pa.schema([codec.schema.field(name) for name in names])
        arrays = [
            rows.column(field.name) if field.name in has else pa.nulls(len(self), field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def encoded(self, schema: pa.Schema) -> EncodedRows | None:
        """See `StoredRows`: a whole block is."""
        if len(self) < len(self._block) or not self._batch.schema.equals(schema):
            return None
        return EncodedRows(self._block.payload, self._block.payload_crc32c)

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """See `StoredRows`."""
        number = self._start + index
        if number == len(self._block) - 1:
            last_key = self._block.last_key
            return lambda: last_key
        # Copied: a slice would keep the whole block.
        cells = self._batch.select(key_codec.schema.names).take(pa.array([number]))
        return lambda: key_codec.encode_batch(cells)[0]

    def _end_of(self, index: int) -> int:
        """Stored bytes of the block in front of a row of these."""
        number = self._start + index
        return int(self._block.ends[number - 1]) if number else 0

    def _crc_of(self, index: int) -> int:
        """CRC-32C of them."""
        number = self._start + index
        return int(self._block.crcs[number - 1]) if number else 0


class RowsRead:
    """What a read yields. See `scanner.sources.interface.ReadRows`.

    Args:
        rows: None: there are none.
        unfinished: That is not the end.
    """

    __slots__ = ("_rows", "unfinished")

    def __init__(self, rows: StoredRows | None = None, *, unfinished: bool = False) -> None:
        self._rows = rows
        self.unfinished = unfinished

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    @property
    def block(self) -> StoredRows:
        """The rows."""
        assert self._rows is not None
        return self._rows


class ImageScan:
    """One pass over a key range of an image. See `scanner.sources.interface.RowScan`.

    Args:
        image: Held until this is closed or has ended.
        key_range: What of it.
        key_codec: Of the table.
        from_rows: Opens the row store as of the same offset, from a key on, when the image fails.
        on_damage: Told when it does; called once.
        changes: What was changed between the image and the offset that is shown; None: the image is of that offset.
    """

    def __init__(
        self,
        image: Image,
        key_range: KeyRange,
        key_codec: KeyCodec,
        from_rows: Callable[[KeyRange], BucketScan],
        on_damage: Callable[[ImageDamaged], None],
        changes: DeltaView | None = None,
    ) -> None:
        self._image: Image | None = image
        image.hold()
        self._schema = image.header.schema
        self._range = key_range
        self._key_codec = key_codec
        self._from_rows = from_rows
        self._on_damage = on_damage
        self._first = self._next = image.block_of(key_range.start)
        self._changes = changes
        self._changes_left: tuple[int, int] | None = None
        """Numbers of the changes that were not merged yet, [start, end); None: they are not ready."""
        self._fetched: ImageBlock | ImageDamaged | None = None
        """What `fetch` has found, for the next read."""
        self.fetch: Callable[[], None] | None = None
        """Reads what the next read needs, and blocks on the disk: meant for a thread. None: nothing need be waited for.
        A read without it does it by itself."""
        self._rows: BucketScan | None = None
        """The row store, where the image has failed."""
        self._closed = False
        self.log_offset = image.header.log_offset if changes is None else changes.log_offset
        """The scan shows the changes with a smaller offset, and no other."""

    def read(self, rows_max: int, bytes_max: int) -> ReadRows:
        """Read the next block, whatever its size.

        Raises:
            ScannerError: The image failed, and so did the row store.
            StoreClosed: This was closed.
        """
        if self._closed:
            raise StoreClosed(f"this scan of an image as of {self.log_offset} was closed")
        if self._rows is None:
            try:
                return self._read()
            except ImageDamaged as error:
                self._fall_back(error)
        assert self._rows is not None
        return self._rows.read(rows_max, bytes_max)

    def close(self) -> None:
        """Release image and row store. Idempotent."""
        self._closed = True
        self.fetch = None
        self._release()
        if self._rows is not None:
            self._rows.close()

    def _read(self) -> RowsRead:
        if self._changes is not None and self._changes_left is None:
            if not self._changes.ready:
                self._changes.step()
                return RowsRead(unfinished=True)
            self._changes_left = self._changes.bounds(self._range)
        while self._image is not None:
            block = self._next_block(self._image)
            if self.fetch is not None:
                return RowsRead(unfinished=True)
            rows = None if block is None else self._of_block(block)
            if rows is not None:
                return RowsRead(rows)
        return RowsRead(self._read_tail())

    def _next_block(self, image: Image) -> ImageBlock | None:
        """The next block; None: there are none left, or it has to be fetched first."""
        if self._next == len(image) or self._is_past_end(image):
            self._release()
            return None
        if self.fetch is not None and self._fetched is None:
            self.fetch()
        found, self.fetch, self._fetched = self._fetched, None, None
        if isinstance(found, ImageDamaged):
            raise found
        found = found or image.read_block(self._next)
        if found is None:
            self.fetch = functools.partial(self._fetch, image, self._next)
        return found

    def _fetch(self, image: Image, number: int) -> None:
        # The scan may be closed meanwhile, and the file with it; then nobody takes what is found.
        try:
            self._fetched = image.fetch(number)
        except ImageDamaged as error:
            self._fetched = error

    def _of_block(self, block: ImageBlock) -> StoredRows | None:
        """The rows of the next block that are in the range, with their changes; None: there are none."""
        batch = self._decoded(block)
        start, stop = self._inside(batch, block.last_key, first=self._next == self._first)
        self._next += 1
        return self._merged(block, batch, start, stop)

    def _merged(self, block: ImageBlock, batch: pa.RecordBatch, start: int, stop: int) -> StoredRows | None:
        """The rows [start, stop) of a block with the changes up to its last key; None: there are none."""
        rows = ImageRows(block, batch, start, stop)
        if self._changes is not None and self._changes_left is not None:
            first, end = self._changes_left
            behind = self._changes.up_to(first, end, block.last_key)
            if first < behind:
                self._changes_left = behind, end
                return merged(
                    rows, self._keys(batch.slice(start, stop - start)), self._changes.entries(first, behind)
                )
        return rows if len(rows) else None

    def _read_tail(self) -> StoredRows | None:
        """Some of the rows that were added behind the last block; None: there are none left."""
        while self._changes is not None and self._changes_left is not None:
            first, end = self._changes_left
            if first == end:
                break
            behind = min(end, first + _TAIL_ROWS)
            self._changes_left = behind, end
            rows = [row for row in self._changes.entries(first, behind).rows if row is not None]
            if rows:
                return RowBlock.join(rows)
        return None

    def _decoded(self, block: ImageBlock) -> pa.RecordBatch:
        try:
            batch = decode_batch(block.payload, self._schema)
        except DataCorrupted as error:
            raise ImageDamaged(error.message) from error
        if batch.num_rows != len(block):
            raise ImageDamaged(f"a block has {batch.num_rows} rows, and digests of {len(block)}")
        return batch

    def _is_past_end(self, image: Image) -> bool:
        """Whether the block in front of the next one reaches to the end of the range."""
        end = self._range.end
        if not end:
            return False
        return end <= self._range.start or (
            self._next > 0 and successor(image.last_key(self._next - 1)) >= end
        )

    def _inside(self, batch: pa.RecordBatch, last_key: bytes, *, first: bool) -> tuple[int, int]:
        """Which rows of a block are in the range."""
        low, high = self._range
        cuts_start, cuts_end = first and bool(low), bool(high) and last_key >= high
        if not (cuts_start or cuts_end):
            return 0, batch.num_rows
        keys = self._keys(batch)
        return (
            bisect_left(keys, low) if cuts_start else 0,
            bisect_left(keys, high) if cuts_end else batch.num_rows,
        )

    def _keys(self, batch: pa.RecordBatch) -> list[bytes]:
        return self._key_codec.encode_batch(batch.select(self._key_codec.schema.names)) if len(batch) else []

    def _fall_back(self, error: ImageDamaged) -> None:
        assert self._image is not None
        start = self._range.start
        if self._next > self._first:
            start = max(start, successor(self._image.last_key(self._next - 1)))
        self._rows = self._from_rows(KeyRange(start, self._range.end))
        self._release()
        self._on_damage(error)

    def _release(self) -> None:
        if self._image is not None:
            image, self._image = self._image, None
            image.release()
