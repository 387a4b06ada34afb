"""Blocks of a changelog, decoded and filtered once for all scans that want the same.

Tails of one bucket that ask for the same columns and filter share one `LogBlocks`. The first tail that comes for a new
commit reads, decodes and filters its changes, and encodes them when it sends them; the others take what it made. The
newest blocks stay in a ring, bounded in bytes. A tail that has fallen behind the ring reads for itself, up to where a
block of the ring begins, and is back among the others.

Invariants:

1. The blocks in the ring are adjacent: each begins where the one before it ends.
2. A block ends where an entry ends, unless it is a part of one entry that is larger than a block.
3. What a block holds depends on its range, columns and filter alone, so any number of scans may share it.
4. The ring holds at most `ring_bytes_max`, or one block. All rings of a server hold at most their budget: each scan may
   have a filter of its own.

This module knows no wire beyond the length of a batch, no task and no clock.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scanner.data.changes import change_rows, table_columns
from scanner.wire.arrow_ipc import EncodedRows, batch_size_bytes, encode_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.data.filters import Filter
    from scanner.data.rows import RowCodec
    from scanner.storage.interface import Bucket

_BLOCK_BYTES_MAX: Final = 256 * 1024
"""Stored bytes of a block, about: what a batch may cost that all tails have to hold credit for."""


@dataclass(frozen=True)
class LogBlock:
    """The changes of [start, end): those that pass the filter, decoded."""

    start: int
    end: int
    rows: pa.RecordBatch
    """Of the columns that are asked for; perhaps none."""
    offsets: NDArray[np.int64]
    """Of each of the rows, in the changelog; ascending."""
    entry_ends: NDArray[np.int64]
    """Where entries end in (start, end], ascending."""

    @cached_property
    def payload_bytes(self) -> int:
        """Length of `encoded.payload`."""
        return batch_size_bytes(self.rows)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes in a ring: its rows, and the message that is made of them."""
        return 2 * self.payload_bytes

    @cached_property
    def encoded(self) -> EncodedRows:
        """All rows; encoded when it is first asked for."""
        return encode_rows(self.rows)

    def newest_entry_end(self, offset: int) -> int | None:
        """The last entry end in (start, offset]; None: there is none."""
        index = int(self.entry_ends.searchsorted(offset, side="right"))
        return int(self.entry_ends[index - 1]) if index else None


class RingBudget:
    """What the rings of a server may hold together; the largest ones make room.

    Args:
        bytes_max: Memory, in bytes, above 0.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rings = weakref.WeakSet[LogBlocks]()

    @property
    def held_bytes(self) -> int:
        """Memory that all rings take, in bytes."""
        return sum(each.ring_bytes for each in self._rings)

    def join(self, blocks: LogBlocks) -> None:
        """Count a ring from now on, for as long as it lives."""
        self._rings.add(blocks)

    def make_room(self) -> None:
        """Drop the oldest blocks of the largest rings until the budget is kept to."""
        held = self.held_bytes
        while held > self._bytes_max:
            largest = max(self._rings, key=lambda each: each.ring_bytes)
            held -= largest.drop_oldest()


class LogBlocks:
    """Reads one bucket's changelog for the scans that want the same columns and filter.

    Args:
        bucket: Of the storage.
        schema: The columns that are wanted (`scanner.data.changes.change_schema`).
        row_filter: What passes; those of other buckets may have the same.
        codec: The table's codec of now: it reads rows of every schema that the table ever had.
        ring_bytes_max: Memory for the newest blocks, in bytes, above 0.
        budget: Of all rings of the server; None: this one is alone.
        on_decode: Called for each block that is read and decoded.
    """

    def __init__(
        self,
        bucket: Bucket,
        schema: pa.Schema,
        row_filter: Filter,
        codec: Callable[[], RowCodec],
        *,
        ring_bytes_max: int,
        budget: RingBudget | None = None,
        on_decode: Callable[[], None] | None = None,
    ) -> None:
        self._bucket = bucket
        self.schema = schema
        self._codec = codec
        self._filter = row_filter
        wanted = table_columns(schema.names)
        self._decoded = wanted + tuple(name for name in self._filter.columns if name not in wanted)
        self._ring: deque[LogBlock] = deque()
        self.ring_bytes = 0
        """Memory that the ring takes."""
        self._ring_bytes_max = ring_bytes_max
        self._budget = budget
        if budget is not None:
            budget.join(self)
        self._on_decode = on_decode

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""
        return self._bucket.log_end

    def read(self, offset: int, stop: int, bytes_max: int = _BLOCK_BYTES_MAX) -> LogBlock:
        """The next block from an offset on.

        Args:
            offset: Of the first change, below `stop`.
            stop: One past the last change that is wanted; an entry's end, at most `log_end`.
            bytes_max: Stored bytes that are enough, above 0, where it is read for this caller alone.

        Returns:
            Changes from `offset` on, at least one, whether or not any of them passes the filter.

        Raises:
            OffsetOutOfRange: Retention has passed the offset.
            DataCorrupted, StoreFailed, StoreClosed: Storage failed.
        """
        shared = self._at(offset)
        if shared is not None and shared.end <= stop:
            return shared
        ring_end = self._ring[-1].end if self._ring else offset
        if offset < ring_end:
            next_shared = min((block.start for block in self._ring if block.start > offset), default=stop)
            return self._decode(offset, min(stop, next_shared), min(bytes_max, _BLOCK_BYTES_MAX))
        block = self._decode(offset, stop, _BLOCK_BYTES_MAX)
        self._keep(block)
        return block

    def _at(self, offset: int) -> LogBlock | None:
        for block in reversed(self._ring):
            if block.start <= offset:
                return block if block.start == offset else None
        return None

    def _keep(self, block: LogBlock) -> None:
        """Put a block behind the newest one; if changes are missing between them, start anew with it."""
        if self._ring and self._ring[-1].end != block.start:
            self._ring.clear()
            self.ring_bytes = 0
        self._ring.append(block)
        self.ring_bytes += block.held_bytes
        while self.ring_bytes > self._ring_bytes_max and len(self._ring) > 1:
            self.drop_oldest()
        if self._budget is not None:
            self._budget.make_room()

    def drop_oldest(self) -> int:
        """Drop the oldest block of the ring: a tail that needs it reads for itself.

        Returns:
            The memory that it took, in bytes.
        """
        size = self._ring.popleft().held_bytes
        self.ring_bytes -= size
        return size

    def _decode(self, offset: int, stop: int, bytes_max: int) -> LogBlock:
        if self._on_decode is not None:
            self._on_decode()
        changes = self._bucket.read_change_block(offset, stop, bytes_max)
        end = int(changes.entry_ends[-1]) if len(changes.entry_ends) else changes.end
        count = end - offset
        decoded = self._codec().decode_block(changes.stored.slice(0, count), self._decoded)
        indices = None
        if self._filter:
            indices = np.flatnonzero(self._filter.mask(decoded).to_numpy(zero_copy_only=False))
        rows = change_rows(decoded, self.schema, changes.kinds[:count], offset, changes.timestamps_us[:count])
        offsets = np.arange(offset, end, dtype=np.int64)
        if indices is not None and len(indices) < count:
            rows, offsets = rows.take(pa.array(indices)), offsets[indices]
        return LogBlock(offset, end, rows, offsets, changes.entry_ends)
