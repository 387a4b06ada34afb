"""Rows of a block of an image: Arrow columns, with the running digests of the stored rows that they were made of.

This module knows no scans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scanner.data.crc_shift import shifted
from scanner.data.digest import DIGEST_EMPTY
from scanner.data.octets import octets_of
from scanner.data.table import require_columns
from scanner.wire.arrow_ipc import EncodedRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.storage.images.reader import ImageBlock


_LISTED_KEY_BYTES: Final = 48
"""What a key takes as an object in a list, beside its octets."""


class ImageRows:
    """The rows [start, stop) of a block of an image. See `scanner.sources.interface.StoredRows`.

    Args:
        block: As it was read.
        batch: The block, decoded: all columns of the image.
        start: 0 or more.
        stop: `start` or more; at most as many rows as the block has.
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
        return int(self._sizes().max())

    def slice(self, start: int, stop: int) -> ImageRows:
        """See `StoredRows`."""
        return ImageRows(self._block, self._batch, self._start + start, self._start + stop)

    def digest_of(self, start: int, stop: int, crc: int) -> tuple[int, int]:
        """See `StoredRows`."""
        size = self._end_of(stop) - self._end_of(start)
        # Of the rows [0, start) and [0, stop) of the block it is known; what is in front of them is shifted out.
        return self._crc_of(stop) ^ shifted(crc ^ self._crc_of(start), size), size

    def bytes_before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stored bytes that the block has in front of each of some rows; `len(self)` is the one behind the last."""
        before = rows + (self._start - 1)
        return np.where(before < 0, 0, self._block.ends[before]).astype(np.int64)

    def crcs_before(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """CRC-32C of these bytes."""
        before = rows + (self._start - 1)
        return np.where(before < 0, np.uint32(DIGEST_EMPTY), self._block.crcs[before])

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

    def _sizes(self) -> NDArray[np.int64]:
        """Stored bytes of each row of the whole block."""
        ends = self._block.ends.astype(np.int64)
        ends[1:] -= ends[:-1].copy()
        return ends

    def _end_of(self, index: int) -> int:
        """Stored bytes of the block in front of a row of these."""
        number = self._start + index
        return int(self._block.ends[number - 1]) if number else 0

    def _crc_of(self, index: int) -> int:
        """CRC-32C of them."""
        number = self._start + index
        return int(self._block.crcs[number - 1]) if number else 0


class BlockKeys:
    """Finds keys among the rows of a block. Those of the rows are worked out when one is looked for.

    Args:
        batch: The block, decoded.
        key_codec: Of the table.
    """

    def __init__(self, batch: pa.RecordBatch, key_codec: KeyCodec) -> None:
        self._batch = batch
        self._codec = key_codec
        self._keys: list[bytes] | NDArray[np.bytes_] | None = None

    @property
    def size_bytes(self) -> int:
        """Memory that the rows' keys take here once one is looked for, about."""
        rows = len(self._batch)
        if self._codec.fixed_bytes is not None:
            return rows * self._codec.fixed_bytes
        listed: int = self._batch.select(self._codec.schema.names).nbytes
        return listed + rows * _LISTED_KEY_BYTES

    def find(self, keys: Sequence[bytes]) -> tuple[list[int], list[bool]]:
        """Where keys are, or would be: of each the number of the first row whose key is not smaller, and if it has it.

        Args:
            keys: Ascending.
        """
        if self._keys is None:
            self._keys = self._encoded()
        if isinstance(self._keys, list):
            rows = self._keys
            places = [bisect_left(rows, key) for key in keys]
            return places, [
                place < len(rows) and rows[place] == key for place, key in zip(places, keys, strict=True)
            ]
        return self._find_fixed(self._keys, keys)

    def _encoded(self) -> list[bytes] | NDArray[np.bytes_]:
        """All keys; as an array, without an object for each, where they have one length."""
        keys = self._codec.encode_array(self._batch)
        octets = octets_of(keys)
        if octets is None:
            listed: list[bytes] = keys.to_pylist()
            return listed
        return octets.view(f"S{octets.shape[1]}")[:, 0]

    @staticmethod
    def _find_fixed(rows: NDArray[np.bytes_], keys: Sequence[bytes]) -> tuple[list[int], list[bool]]:
        # Bounds of a range may be shorter than keys or longer. Here they are filled with zeros or cut off.
        sought = np.array(keys, rows.dtype)
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        places = np.searchsorted(rows, sought)
        equal = (places < len(rows)) & (rows[np.minimum(places, len(rows) - 1)] == sought)
        places += equal & (lengths > rows.itemsize)
        return places.tolist(), (equal & (lengths == rows.itemsize)).tolist()
