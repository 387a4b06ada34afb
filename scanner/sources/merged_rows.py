"""Rows of an image and changed rows, merged in key order: what a step yields where something was changed.

This module knows no scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.data.crc_shift import shifted, shifted_each
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
    if not len(order):
        return None
    changed = RowBlock.join(rows)
    sizes = np.append(base.sizes, np.diff(changed.starts))
    crcs = np.fromiter(map(checksum, rows), np.uint32, len(rows))
    return MergedRows(base, changed, crcs, sizes, order)


class MergedRows:
    """See `scanner.sources.interface.StoredRows`. Made by `merged`.

    Args:
        base: Some rows.
        changed: Stored rows, numbered behind those.
        crcs: CRC-32C of each of these.
        sizes: Stored bytes of each row of both.
        order: Which rows these are, at least one, in key order.
    """

    __slots__ = ("_base", "_changed", "_crcs", "_order", "_sizes")

    def __init__(
        self,
        base: ImageRows,
        changed: RowBlock,
        crcs: NDArray[np.uint32],
        sizes: NDArray[np.int64],
        order: NDArray[np.int64],
    ) -> None:
        self._base = base
        self._changed = changed
        self._crcs = crcs
        self._sizes = sizes
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def row_bytes_max(self) -> int:
        """See `StoredRows`; of all that they were merged of."""
        return max(part.row_bytes_max for part in (self._base, self._changed) if len(part))

    def slice(self, start: int, stop: int) -> MergedRows:
        """See `StoredRows`."""
        return MergedRows(self._base, self._changed, self._crcs, self._sizes, self._order[start:stop])

    def size_of(self, start: int, stop: int) -> int:
        """See `StoredRows`."""
        return int(self._sizes[self._order[start:stop]].sum())

    def digest_of(self, start: int, stop: int, crc: int) -> int:
        """See `StoredRows`; the more time, the more rows are changed and the more stretches of others that makes."""
        order, base = self._order[start:stop], len(self._base)
        # The rows as stretches: of the base those that were together before, and each of the others by itself.
        begins = np.flatnonzero(np.concatenate([[True], (np.diff(order) != 1) | (order[1:] >= base)]))
        ends = np.append(begins[1:], len(order))
        firsts, lasts = order[begins], order[ends - 1]
        of_base = firsts < base
        befores, afters = np.zeros((2, len(firsts)), np.uint32)
        befores[of_base], afters[of_base] = self._base.crcs_around(firsts[of_base], lasts[of_base] + 1)
        afters[~of_base] = self._crcs[firsts[~of_base] - base]
        # Of the base the digest is known with what is in front of it, which is shifted out, as in `ImageRows`.
        passed = np.append(0, np.cumsum(self._sizes[order]))
        size = int(passed[-1])
        behind = np.append(size - passed[begins], size - passed[ends])
        parts = shifted_each(np.append(befores, afters), behind)
        return shifted(crc, size) ^ int(np.bitwise_xor.reduce(parts))

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
