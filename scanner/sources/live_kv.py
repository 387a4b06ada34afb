"""LIVE_KV: the rows of one bucket as of the log offset at which the scan was opened, in key order.

Invariants:

1. The rows delivered are those of the snapshot that are in the key range and pass the filter, each once,
   in key order, cut off after the row limit.
2. The position is just behind the last row delivered, or, where all that was read is delivered, behind the
   last row read. `digest` is the CRC-32C of the stored rows (as stored: whole, before projection and filter)
   from the start of the range to the position, concatenated. So it does not depend on how the rows were cut
   into blocks and batches. At the end it covers the whole range if the reason is EXHAUSTED, and everything
   up to and including the last row delivered if it is LIMIT.
3. Storage is read in `step` only. The iterator is freed as soon as nothing more will be read.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.digest import checksum
from scanner.filters import Filter
from scanner.sources.interface import Batch, EndReason
from scanner.wire import batch_size_bytes

if TYPE_CHECKING:
    from scanner.query import ScanQuery
    from scanner.rows import RowCodec
    from scanner.storage.interface import Bucket
    from scanner.table import TableDescription


@dataclass(slots=True)
class _Block:
    """Rows of one step: as stored, and those of them that pass, decoded."""

    stored: list[bytes]
    """Stored rows of the step, up to where the limit cuts them off."""
    passing: pa.RecordBatch
    """Rows not yet delivered."""
    indices: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    """For each row of the whole step that passes, its number among the stored rows; None: all pass."""
    taken: int = 0
    """Rows delivered."""
    digested: int = 0
    """Stored rows of the step that are in the digest."""

    def stored_up_to(self, taken: int) -> int:
        """How many of the step's stored rows come before the end of its first `taken` passing ones."""
        return taken if self.indices is None else int(self.indices[taken - 1]) + 1


class LiveKvSource:
    """One scan of one bucket. See `scanner.sources.interface.Source` for what callers may rely on.

    Must be made between two commits of the bucket. Free it with `close`.

    Args:
        bucket: What to read.
        table: Of the bucket.
        codec: Of the table's rows.
        query: What to deliver; its table and bucket have been looked at by the caller.
        block_rows_max: Rows read and decoded in one step, above 0.
        block_bytes_max: Stored bytes read and decoded in one step, above 0; one row may be larger.

    Raises:
        ColumnNotFound: The query names a column that the table has not; nothing was opened.
        ArgumentInvalid: A literal of the filter does not fit its column; nothing was opened.
        StoreClosed: The bucket was closed.
    """

    def __init__(
        self,
        bucket: Bucket,
        table: TableDescription,
        codec: RowCodec,
        query: ScanQuery,
        *,
        block_rows_max: int,
        block_bytes_max: int,
    ) -> None:
        self.schema: pa.Schema = table.project(query.columns)
        self._filter = Filter(query.predicates, table.schema)
        wanted = tuple(self.schema.names)
        self._decoded = wanted + tuple(name for name in self._filter.columns if name not in wanted)
        self._codec = codec
        self._block_rows_max = block_rows_max
        self._block_bytes_max = block_bytes_max
        self._rows_left = query.row_limit
        """Passing rows still to be read, None: no limit."""
        self._blocks: deque[_Block] = deque()
        self._exhausted = False
        self.rows = 0
        self.digest = 0
        self._envelope_bytes = batch_size_bytes(pa.RecordBatch.from_pylist([], self.schema))
        """Of an Arrow IPC message, beside its rows."""
        self._pending_body_bytes = 0
        self._scan = bucket.open_scan(query.range)
        self.log_offset = self._scan.log_offset
        if self._limit_read:
            self._scan.close()

    @property
    def pending_bytes(self) -> int:
        """Arrow bytes decoded and not yet taken, to within the padding of the blocks; 0: nothing to take."""
        return self._envelope_bytes + self._pending_body_bytes if self._blocks else 0

    @property
    def wants_step(self) -> bool:
        """Whether there is more to read."""
        return not self._exhausted and not self._limit_read

    @property
    def end(self) -> EndReason | None:
        """Why nothing more will come, or None."""
        if self.wants_step or self._blocks:
            return None
        return EndReason.LIMIT if self._limit_read else EndReason.EXHAUSTED

    def step(self) -> None:
        """Read one more block; a block of which nothing passes only moves the position.

        Raises:
            DataCorrupted: A read failed its checks, a row cannot be decoded, or the end cannot be proven.
            StoreClosed: The scan was closed.
        """
        rows_max = self._block_rows_max
        if self._rows_left is not None and not self._filter:
            rows_max = min(rows_max, self._rows_left)
        stored = self._scan.read(rows_max, self._block_bytes_max).rows
        if not stored:
            self._exhausted = True
            self._scan.close()
            return
        block = self._decode(stored)
        if self._rows_left is not None:
            self._cut_to_limit(block, self._rows_left)
            self._rows_left -= block.passing.num_rows
            if self._limit_read:
                self._scan.close()
        self._blocks.append(block)
        self._settle()
        self._pending_body_bytes += self._body_bytes(block)

    def take(self, payload_bytes_max: int, rows_max: int) -> Batch | None:
        """Cut the next batch: as many rows as fit into both bounds, and at least one; None if there are none."""
        if not self._blocks:
            return None
        whole = self._pending()
        count, size = _fit(whole, payload_bytes_max, rows_max)
        batch = Batch(row_ordinal=self.rows, rows=whole.slice(0, count), payload_bytes=size)
        self.rows += count
        self._advance(count)
        self._pending_body_bytes = sum(self._body_bytes(block) for block in self._blocks)
        return batch

    def close(self) -> None:
        """Free the iterator, the snapshot and what is decoded. Idempotent; a further step raises StoreClosed."""
        self._scan.close()
        self._blocks.clear()

    @property
    def _limit_read(self) -> bool:
        return self._rows_left == 0

    def _decode(self, stored: list[bytes]) -> _Block:
        rows = self._codec.decode(stored, self._decoded)
        indices = None
        if self._filter:
            mask = self._filter.mask(rows)
            if mask.true_count < len(stored):
                rows = rows.filter(mask)
                indices = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if len(self._decoded) > len(self.schema):
            rows = rows.select(self.schema.names)
        return _Block(stored=stored, passing=rows, indices=indices)

    @staticmethod
    def _cut_to_limit(block: _Block, rows_left: int) -> None:
        """Forget what is behind the last row that the limit allows, so that the digest ends there as well."""
        if block.passing.num_rows < rows_left:
            return
        block.passing = block.passing.slice(0, rows_left)
        del block.stored[block.stored_up_to(rows_left) :]

    def _body_bytes(self, block: _Block) -> int:
        return batch_size_bytes(block.passing) - self._envelope_bytes

    def _pending(self) -> pa.RecordBatch:
        batches = [block.passing for block in self._blocks if block.passing.num_rows]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _advance(self, count: int) -> None:
        """Move the position behind the next `count` undelivered rows."""
        while count:
            block = self._blocks[0]
            taken = min(count, block.passing.num_rows)
            block.taken += taken
            block.passing = block.passing.slice(taken)
            count -= taken
            if taken:
                self._digest_up_to(block, block.stored_up_to(block.taken))
            self._settle()

    def _settle(self) -> None:
        """Drop the blocks in front of which nothing is left to deliver, and move the position behind them."""
        while self._blocks and not self._blocks[0].passing.num_rows:
            block = self._blocks.popleft()
            self._digest_up_to(block, len(block.stored))

    def _digest_up_to(self, block: _Block, stored_rows: int) -> None:
        self.digest = checksum(b"".join(block.stored[block.digested : stored_rows]), self.digest)
        block.digested = stored_rows


def _fit(rows: pa.RecordBatch, payload_bytes_max: int, rows_max: int) -> tuple[int, int]:
    """Find how many leading rows fit, at least one, and the length of their Arrow IPC message."""
    most = min(rows.num_rows, rows_max)
    size = batch_size_bytes(rows.slice(0, most))
    if size <= payload_bytes_max or most == 1:
        return most, size
    # The size grows with the rows, if not by the same amount for each.
    fitting = bisect.bisect_right(
        range(1, most), payload_bytes_max, key=lambda count: batch_size_bytes(rows.slice(0, count))
    )
    count = max(fitting, 1)
    return count, batch_size_bytes(rows.slice(0, count))
