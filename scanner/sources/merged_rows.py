"""Rows of an image and changed rows, merged in key order: what a step yields where something was changed.

This module knows no scans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.data.row_block import RowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.sources.interface import StoredRows
    from scanner.sources.sorted_runs import Entries


def merged(base: StoredRows, keys: Sequence[bytes], entries: Entries) -> MergedRows | None:
    """Rows with entries in place of those of the same keys, and between the others; None: no row is left.

    Args:
        base: In key order.
        keys: Of these rows.
        entries: At least one; keys ascending. A row of None takes the row away.
    """
    order = np.arange(len(keys))
    rows: list[bytes] = []
    inserted_at: list[int] = []
    inserted: list[int] = []
    for key, row in zip(entries.keys, entries.rows, strict=True):
        place = bisect_left(keys, key)
        number = -1
        if row is not None:
            number = len(keys) + len(rows)
            rows.append(row)
        if place < len(keys) and keys[place] == key:
            order[place] = number
        elif number >= 0:
            inserted_at.append(place)
            inserted.append(number)
    if inserted:
        order = np.insert(order, inserted_at, inserted)
    order = order[order >= 0]
    return MergedRows(base, len(keys), RowBlock.join(rows), order) if len(order) else None


class MergedRows:
    """See `scanner.sources.interface.StoredRows`. Made by `merged`.

    Args:
        base: Some rows.
        count: How many they are.
        changed: Stored rows, numbered behind those.
        order: Which rows these are, at least one, in key order.
    """

    __slots__ = ("_base", "_changed", "_count", "_order")

    def __init__(self, base: StoredRows, count: int, changed: RowBlock, order: NDArray[np.int64]) -> None:
        self._base = base
        self._count = count
        self._changed = changed
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def row_bytes_max(self) -> int:
        """See `StoredRows`; of all that they were merged of."""
        return max(part.row_bytes_max for part in (self._base, self._changed) if len(part))

    def slice(self, start: int, stop: int) -> MergedRows:
        """See `StoredRows`."""
        return MergedRows(self._base, self._count, self._changed, self._order[start:stop])

    def size_of(self, start: int, stop: int) -> int:
        """See `StoredRows`."""
        return sum(part.size_of(first, end) for part, first, end in self._stretches(start, stop))

    def digest_of(self, start: int, stop: int, crc: int) -> int:
        """See `StoredRows`; some microseconds for every stretch of rows that were together before."""
        for part, first, end in self._stretches(start, stop):
            crc = part.digest_of(first, end, crc)
        return crc

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """See `StoredRows`."""
        parts = [part.decode(codec, columns) for part in (self._base, self._changed) if len(part)]
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return rows.take(pa.array(self._order))

    def encoded(self, schema: pa.Schema) -> None:
        """See `StoredRows`; they are not."""
        return

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """See `StoredRows`."""
        number = int(self._order[index])
        if number < self._count:
            return self._base.key_of(number, codec, key_codec)
        return self._changed.key_of(number - self._count, codec, key_codec)

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[StoredRows, int, int]]:
        """The rows [start, stop) as stretches of one part: the part, and which of its rows."""
        order = self._order[start:stop]
        if not len(order):
            return
        breaks = (np.diff(order) != 1) | (order[1:] == self._count)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
        firsts = order[edges[:-1]].tolist()
        for first, begin, end in zip(firsts, edges, edges[1:], strict=False):
            length = end - begin
            if first < self._count:
                yield self._base, first, first + length
            else:
                yield self._changed, first - self._count, first - self._count + length
