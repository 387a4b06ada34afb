"""Rows of an image and changed rows, merged in key order: what a step yields where something was changed.

This module knows no scans.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.crc_shift import shifted, shifted_each
from scanner.data.digest import DIGEST_EMPTY, checksum
from scanner.data.row_block import RowBlock
from scanner.storage.images.reader import ImageBlock
from scanner.wire.arrow_ipc import encode_rows

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
    changed = RowBlock.join([row for row in entries.rows if row is not None])
    kept = np.fromiter((row is not None for row in entries.rows), np.int64, len(entries.rows))
    at = np.array(places, np.int64)
    # In turns: what is left of the base in front of an entry, and the entry.
    firsts = np.zeros(2 * len(at) + 1, np.int64)
    firsts[1::2] = len(base) + np.cumsum(kept) - kept
    firsts[2::2] = at + np.array(found, np.int64)
    counts = np.empty_like(firsts)
    counts[1::2] = kept
    counts[::2] = np.append(at, len(base)) - firsts[::2]
    firsts, counts = firsts[counts > 0], counts[counts > 0]
    if not len(firsts):
        return None
    begins = np.append(True, (firsts[1:] != firsts[:-1] + counts[:-1]) | (firsts[1:] == len(base)))
    passed = np.append(0, np.cumsum(counts))
    return MergedRows(base, changed, firsts[begins], np.append(passed[:-1][begins], passed[-1]))


class MergedRows:
    """See `scanner.sources.interface.StoredRows`. Made by `merged`.

    They are kept as stretches of rows that lie together, of the base or of the changed ones: what is worked out for
    each row of a block takes longer than its reading.

    Args:
        base: Some rows.
        changed: Stored rows, numbered behind those.
        firsts: Number of the first row of each stretch; at least one, in key order. None has rows of both.
        passed: How many rows are in front of each stretch, and in all.
    """

    __slots__ = ("_base", "_changed", "_firsts", "_passed")

    def __init__(
        self, base: ImageRows, changed: RowBlock, firsts: NDArray[np.int64], passed: NDArray[np.int64]
    ) -> None:
        self._base = base
        self._changed = changed
        self._firsts = firsts
        self._passed = passed

    def __len__(self) -> int:
        return int(self._passed[-1])

    @property
    def row_bytes_max(self) -> int:
        """See `StoredRows`; of all that they were merged of."""
        return max(part.row_bytes_max for part in (self._base, self._changed) if len(part))

    @property
    def changed_bytes(self) -> int:
        """Stored bytes of the changed rows that they were merged of."""
        return self._changed.nbytes

    def slice(self, start: int, stop: int) -> MergedRows:
        """See `StoredRows`."""
        first = self._stretch_of(start)
        last = max(first + 1, int(np.searchsorted(self._passed, stop)))
        passed = np.clip(self._passed[first : last + 1], start, stop) - start
        firsts = self._firsts[first:last].copy()
        firsts[0] += start - self._passed[first]
        return MergedRows(self._base, self._changed, firsts, passed)

    def digest_of(self, start: int, stop: int, crc: int) -> tuple[int, int]:
        """See `StoredRows`; the more stretches, the more time it takes."""
        rows = self if (start, stop) == (0, len(self)) else self.slice(start, stop)
        ends = np.cumsum(rows._sizes())
        size, of_base = int(ends[-1]), rows._firsts < len(self._base)
        # Of the base the digest is known with what is in front of it, which is shifted out, as in `ImageRows`.
        befores = self._base.crcs_before(rows._firsts[of_base])
        behind = np.append((size - np.append(0, ends[:-1]))[of_base], size - ends)
        parts = shifted_each(np.append(befores, rows._crcs(of_base)), behind)
        return shifted(crc, size) ^ int(np.bitwise_xor.reduce(parts)), size

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """See `StoredRows`."""
        parts = [part.decode(codec, columns) for part in (self._base, self._changed) if len(part)]
        rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return pc.take(rows, pa.array(self._numbers()), boundscheck=False)

    def encoded(self, schema: pa.Schema) -> None:
        """See `StoredRows`; they are not."""
        return

    def as_block(self, codec: RowCodec, key_codec: KeyCodec) -> ImageBlock:
        """A block of these rows with all columns of the table, as if an image had been made of them.

        Raises:
            DataCorrupted: Some row is not one of the table.
        """
        encoded = encode_rows(self.decode(codec, ()))
        crcs, ends = self._running_digests()
        last_key = self.key_of(len(self) - 1, codec, key_codec)()
        return ImageBlock(encoded.payload, encoded.crc32c, crcs, ends, last_key)

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """See `StoredRows`."""
        stretch = self._stretch_of(index)
        number = int(self._firsts[stretch] + index - self._passed[stretch])
        if number < len(self._base):
            return self._base.key_of(number, codec, key_codec)
        return self._changed.key_of(number - len(self._base), codec, key_codec)

    def _stretch_of(self, index: int) -> int:
        """Which stretch has a row; the last one: none behind it has."""
        return min(int(np.searchsorted(self._passed, index, "right")), len(self._firsts)) - 1

    def _running_digests(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Of each row: CRC-32C of these up to and with it, and their length."""
        base, changed, numbers = self._base, self._changed, self._numbers()
        is_base, sizes = numbers < len(base), self._sizes()
        lengths = np.append(np.diff(base.bytes_before(np.arange(len(base) + 1))), np.diff(changed.starts))
        ends = np.cumsum(lengths[numbers])
        differences, of_changed = self._differences(sizes)
        counts, in_front = np.diff(self._passed), np.cumsum(sizes) - sizes
        crcs = shifted_each(np.repeat(differences, counts), ends - np.repeat(in_front, counts))
        crcs[is_base] ^= base.crcs_before(numbers[is_base] + 1)
        crcs[~is_base] = of_changed
        return crcs, ends.astype(np.uint32)

    def _differences(self, sizes: NDArray[np.int64]) -> tuple[NDArray[np.uint32], list[int]]:
        """Of each stretch: how the digest in front of it differs from the base's; and the digests at changed rows."""
        of_base, ends = self._firsts < len(self._base), self._ends()
        before, after = np.zeros((2, len(sizes)), np.uint32)
        before[of_base] = self._base.crcs_before(self._firsts[of_base])
        after[of_base] = self._base.crcs_before(ends[of_base])
        rows, counts = iter(self._changed_rows(of_base, ends)), np.diff(self._passed)
        differences, of_changed, crc = [], [], DIGEST_EMPTY
        for is_base, crc_before, crc_after, size, count in zip(
            of_base.tolist(), before.tolist(), after.tolist(), sizes.tolist(), counts.tolist(), strict=True
        ):
            differences.append(crc ^ crc_before if is_base else 0)
            if is_base:
                crc = crc_after ^ shifted(crc ^ crc_before, size)
                continue
            for row in islice(rows, count):
                crc = checksum(row, crc)
                of_changed.append(crc)
        return np.array(differences, np.uint32), of_changed

    def _changed_rows(self, of_base: NDArray[np.bool_], ends: NDArray[np.int64]) -> list[bytes]:
        """Those of the changed rows that are among these: they lie together."""
        numbers = np.append(self._firsts[~of_base], ends[~of_base]) - len(self._base)
        return self._changed.slice(int(numbers.min()), int(numbers.max())).to_list() if len(numbers) else []

    def _numbers(self) -> NDArray[np.int64]:
        """Of each row."""
        return np.repeat(self._firsts - self._passed[:-1], np.diff(self._passed)) + np.arange(len(self))

    def _ends(self) -> NDArray[np.int64]:
        """Number behind the last row of each stretch."""
        return self._firsts + np.diff(self._passed)

    def _sizes(self) -> NDArray[np.int64]:
        """Stored bytes of each stretch."""
        sizes = np.empty(len(self._firsts), np.int64)
        of_base, firsts, ends = self._firsts < len(self._base), self._firsts, self._ends()
        sizes[of_base] = self._base.bytes_before(ends[of_base]) - self._base.bytes_before(firsts[of_base])
        starts, others = self._changed.starts, ~of_base
        sizes[others] = starts[ends[others] - len(self._base)] - starts[firsts[others] - len(self._base)]
        return sizes

    def _crcs(self, of_base: NDArray[np.bool_]) -> NDArray[np.uint32]:
        """CRC-32C of each stretch; of one of the base with what its block has in front of it."""
        crcs, ends = np.empty(len(self._firsts), np.uint32), self._ends()
        crcs[of_base] = self._base.crcs_before(ends[of_base])
        starts, stops = (
            self._changed.starts[numbers[~of_base] - len(self._base)].tolist()
            for numbers in (self._firsts, ends)
        )
        if starts:
            octets, at = bytes(self._changed.buffer[starts[0] : stops[-1]]), starts[0]
            crcs[~of_base] = [
                checksum(octets[start - at : stop - at]) for start, stop in zip(starts, stops, strict=True)
            ]
        return crcs
