"""Rows of an image of which no one passes the filter, as its statistics say: counted and digested, and not read.

This module knows no scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.data.crc_shift import shifted
from scanner.data.table import require_columns

if TYPE_CHECKING:
    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.storage.images.format import BlockPlace


class SkippedRows:
    """All rows of some adjacent blocks. See `scanner.sources.interface.StoredRows`; they are not cut.

    Args:
        places: Of the blocks, at least one.
    """

    __slots__ = ("_places", "_rows")

    def __init__(self, places: Sequence[BlockPlace]) -> None:
        self._places = places
        self._rows = sum(place.rows for place in places)

    def __len__(self) -> int:
        return self._rows

    @property
    def row_bytes_max(self) -> int:
        """See `StoredRows`."""
        return max(place.row_bytes_max for place in self._places)

    def slice(self, start: int, stop: int) -> SkippedRows:
        """See `StoredRows`."""
        self._require_all(start, stop)
        return self

    def digest_of(self, start: int, stop: int, crc: int) -> tuple[int, int]:
        """See `StoredRows`; a few microseconds a block."""
        self._require_all(start, stop)
        for place in self._places:
            crc = place.stored_crc32c ^ shifted(crc, place.stored_bytes)
        return crc, sum(place.stored_bytes for place in self._places)

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """See `StoredRows`: none of them, since none passes."""
        require_columns(codec.schema, columns)
        names = columns or codec.schema.names
        return pa.RecordBatch.from_pylist([], schema=pa.schema([codec.schema.field(name) for name in names]))

    def encoded(self, schema: pa.Schema) -> None:
        """See `StoredRows`; they are not."""
        return

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """See `StoredRows`; of the last one."""
        self._require_all(0, index + 1)
        last_key = self._places[-1].last_key
        return lambda: last_key

    def _require_all(self, start: int, stop: int) -> None:
        if (start, stop) != (0, self._rows):
            raise IndexError(
                f"rows [{start}, {stop}) of {self._rows} that were not read cannot be told apart"
            )
