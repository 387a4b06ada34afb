"""Rows of an image and changed rows, merged in key order: what a step yields where something was changed.

This module knows no scans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.data.crc_shift import shifted
from scanner.data.digest import checksum
from scanner.data.row_block import RowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.sources.image_rows import ImageRows
    from scanner.sources.sorted_runs import Entries


def merged(
    base: ImageRows, places: Sequence[int], found: Sequence[bool], entries: Entries
) -> MergedRows | None:
    """Rows with entries in place of those of the same keys, and between the others; None: no row is left.

    Args:
        base: In key order.
        places: Where the key of each entry is among these rows, or would be.
        found: If it is there.
        entries: At least one; keys ascending. A row of None takes the row away.
    """
    order = np.arange(len(base))
    rows: list[bytes] = []
    inserted_at: list[int] = []
    inserted: list[int] = []
    for place, is_there, row in zip(places, found, entries.rows, strict=True):
        number = -1
        if row is not None:
            number = len(base) + len(rows)
            rows.append(row)
        if is_there:
            order[place] = number
        elif number >= 0:
            inserted_at.append(place)
            inserted.append(number)
    if inserted:
        order = np.insert(order, inserted_at, inserted)
    order = order[order >= 0]
    return MergedRows(base, RowBlock.join(rows), order) if len(order) else None


class MergedRows:
    """See `scanner.sources.interface.StoredRows`. Made by `merged`.

    Args:
        base: Some rows.
        changed: Stored rows, numbered behind those.
        order: Which rows these are, at least one, in key order.
    """

    __slots__ = ("_base", "_changed", "_order")

    def __init__(self, base: ImageRows, changed: RowBlock, order: NDArray[np.int64]) -> None:
        self._base = base
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
        return MergedRows(self._base, self._changed, self._order[start:stop])

    def size_of(self, start: int, stop: int) -> int:
        """See `StoredRows`."""
        _, base, changed = self._stretches(start, stop)
        return sum(size for _, _, size in base) + sum(end - begin for begin, end in changed)

    def digest_of(self, start: int, stop: int, crc: int) -> int:
        """See `StoredRows`; a few microseconds for every stretch of rows that were together before."""
        of_base, base, changed = self._stretches(start, stop)
        data = memoryview(self._changed.buffer)
        for is_of_base in of_base:
            if is_of_base:
                before, after, size = next(base)
                crc = after ^ shifted(crc ^ before, size)
            else:
                begin, end = next(changed)
                crc = checksum(data[begin:end], crc)
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
        if number < len(self._base):
            return self._base.key_of(number, codec, key_codec)
        return self._changed.key_of(number - len(self._base), codec, key_codec)

    def _stretches(
        self, start: int, stop: int
    ) -> tuple[list[bool], Iterator[tuple[int, int, int]], Iterator[tuple[int, int]]]:
        """The rows [start, stop) as stretches of rows that were together before.

        Returns:
            Of each, whether it is of the base; the pieces of these (`ImageRows.pieces`); and where each of the others
            begins and ends in the buffer of the changed rows.
        """
        order, count = self._order[start:stop], len(self._base)
        breaks = np.flatnonzero((np.diff(order) != 1) | (order[1:] == count)) + 1
        firsts = order[np.concatenate([[0], breaks])] if len(order) else order
        ends = firsts + np.diff(np.concatenate([[0], breaks, [len(order)]]))[: len(firsts)]
        of_base = firsts < count
        others, starts = ~of_base, self._changed.starts
        changed = zip(
            starts[firsts[others] - count].tolist(), starts[ends[others] - count].tolist(), strict=True
        )
        return of_base.tolist(), self._base.pieces(firsts[of_base], ends[of_base]), changed
