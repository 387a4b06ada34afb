"""The rows of one bucket as of one log offset, in key order: what a scan of the live table or of a past state delivers.

Invariants:

1. The rows delivered are those of the state that are in the key range, behind the position that the source was
   made with, and pass the filter, each once, in key order, cut off after the row limit.
2. The position is just behind the last row delivered, or, where all that was read is delivered, behind the
   last row read. Its digest is the CRC-32C of the stored rows (as stored: whole, before projection and filter)
   from the start of the range to the position, concatenated. So it does not depend on how the rows were cut
   into blocks and batches. At the end it covers the whole range if the reason is EXHAUSTED, and everything
   up to and including the last row delivered if it is LIMIT.
3. A source made with the position of another one, over the same state and with the same query, goes on where
   that one stood: rows, ordinals, digest and end are those of a source that was never interrupted.
4. Storage is read in `step` only. The scan is closed as soon as nothing more will be read.

This module knows no transport, no task and no clock, and not how the state came about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.data.changes import change_schema, insert_rows, table_columns
from scanner.data.filters import Filter
from scanner.data.keys import KeyCodec
from scanner.data.position import START, Position
from scanner.sources.image import ImageScan
from scanner.sources.interface import Batch, EndReason
from scanner.wire.arrow_ipc import batch_size_bytes, envelope_size_bytes, fitting_rows

if TYPE_CHECKING:
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.data.table import TableDescription
    from scanner.sources.interface import RowScan, StoredRows
    from scanner.wire.arrow_ipc import EncodedRows
    from scanner.wire.queries import ScanQuery


@dataclass(slots=True)
class _Block:
    """Rows of one step: as stored, and those of them that pass, decoded."""

    stored: StoredRows
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


class KvSource:
    """One scan of one bucket. See `scanner.sources.interface.Source` for what callers may rely on.

    Free it with `close`.

    Args:
        scan: What to read: the state, restricted to `position.remaining(query.range)`. The source owns it from
            now on; it is closed at once if this raises.
        table: Of the bucket.
        codec: Of the table's rows.
        query: What to deliver; its table and bucket have been looked at by the caller.
        position: Where to go on. The row limit and the ordinals count the rows in front of it.
        block_rows_max: Rows read and decoded in one step, above 0.
        block_bytes_max: Stored bytes read and decoded in one step, above 0; one row may be larger.
        as_changes: Deliver the rows as inserts, with the columns of a change (`scanner.data.changes`); the query's
            columns may then name those, too.

    Raises:
        ColumnNotFound: The query names a column that the table has not.
        ArgumentInvalid: A literal of the filter does not fit its column.
    """

    def __init__(
        self,
        scan: RowScan,
        table: TableDescription,
        codec: RowCodec,
        query: ScanQuery,
        *,
        position: Position = START,
        block_rows_max: int,
        block_bytes_max: int,
        as_changes: bool = False,
    ) -> None:
        self._scan = scan
        self._as_changes = as_changes
        try:
            self.schema: pa.Schema = (
                change_schema(table, query.columns) if as_changes else table.project(query.columns)
            )
            self._filter = Filter(query.predicates, table.schema)
        except BaseException:
            scan.close()
            raise
        wanted = table_columns(self.schema.names) if as_changes else tuple(self.schema.names)
        self._decoded = wanted + tuple(name for name in self._filter.columns if name not in wanted)
        self._codec = codec
        self._key_codec = KeyCodec(table)
        self._block_rows_max = block_rows_max
        self._block_bytes_max = block_bytes_max
        self._rows_left = None if query.row_limit is None else max(0, query.row_limit - position.rows)
        """Passing rows still to be read, None: no limit."""
        self._blocks: deque[_Block] = deque()
        self._exhausted = False
        self.log_offset = scan.log_offset
        self.rows = position.rows
        self.digest = position.digest
        self.stored_bytes = position.stored_bytes
        self._last_key = position.last_key
        self._last_key_of: WorkOutKey | None = None
        """Works out the key of the row in front of the position; None: `_last_key` is it."""
        self._envelope_bytes = envelope_size_bytes(self.schema)
        """Of an Arrow IPC message, beside its rows."""
        self._pending_body_bytes = 0
        if self._limit_read:
            scan.close()

    @property
    def position(self) -> Position:
        """Where the scan stands; its key is worked out when asked for, in some tens of microseconds.

        Raises:
            DataCorrupted: The row in front of it is not one of the table.
        """
        if self._last_key_of is not None:
            self._last_key = self._last_key_of()
            self._last_key_of = None
        return Position(self._last_key, self.rows, self.digest, self.stored_bytes)

    @property
    def pending_bytes(self) -> int:
        """Arrow bytes decoded and not yet taken, to within the padding of the blocks; 0: nothing to take."""
        return self._envelope_bytes + self._pending_body_bytes if self._blocks else 0

    @property
    def key_bytes_max(self) -> int:
        """No key of a row that can be taken is longer: what its table's keys take, or what its blocks' rows allow."""
        if self._key_codec.fixed_bytes is not None:
            return self._key_codec.fixed_bytes
        longest = max((block.stored.row_bytes_max for block in self._blocks), default=0)
        return self._key_codec.bytes_max(longest)

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

    @property
    def fetch(self) -> Callable[[], None] | None:
        """What should be run in a thread before the next step; see `Source`."""
        return self._scan.fetch if isinstance(self._scan, ImageScan) else None

    def step(self, bytes_max: int | None = None) -> None:
        """Read one more block; a block of which nothing passes only moves the position.

        A scan that has work to do before its next row does a piece of it, and nothing changes here.

        Args:
            bytes_max: Stored bytes that are enough, above 0; one row may be larger. None: a whole block.

        Raises:
            DataCorrupted: A read failed its checks, a row cannot be decoded, or the end cannot be proven.
            SnapshotLost: The state can no longer be rebuilt.
            StoreFailed: The disk refused.
            StoreClosed: The scan was closed.
        """
        rows_max = self._block_rows_max
        if self._rows_left is not None and not self._filter:
            rows_max = min(rows_max, self._rows_left)
        read = self._scan.read(rows_max, min(bytes_max or self._block_bytes_max, self._block_bytes_max))
        block = self._decode(read.block) if len(read) else None
        if read.last or (block is None and not read.unfinished):
            self._exhausted = True
            self._scan.close()
        if block is None:
            return
        if self._rows_left is not None:
            self._cut_to_limit(block, self._rows_left)
            self._rows_left -= block.passing.num_rows
            if self._limit_read:
                self._scan.close()
        self._blocks.append(block)
        self._settle()
        self._pending_body_bytes += self._body_bytes(block)

    def whole_bytes(self, rows_max: int) -> int:
        """Payload of the next batch if it is encoded already and can go out as it lies; 0: it is to be encoded."""
        encoded = self._whole(rows_max) if self._blocks else None
        return 0 if encoded is None else encoded.payload.size

    def take(self, payload_bytes_max: int, rows_max: int) -> Batch | None:
        """Cut the next batch: as many rows as fit into both bounds, and at least one; None if there are none."""
        if not self._blocks:
            return None
        batch = self._encoded(payload_bytes_max, rows_max) or self._cut(payload_bytes_max, rows_max)
        self.rows += batch.rows.num_rows
        self._advance(batch.rows.num_rows)
        self._pending_body_bytes = sum(self._body_bytes(block) for block in self._blocks)
        return batch

    def close(self) -> None:
        """Close the scan and free what is decoded. Idempotent; a further step raises StoreClosed."""
        self._scan.close()
        self._blocks.clear()

    @property
    def _limit_read(self) -> bool:
        return self._rows_left == 0

    def _whole(self, rows_max: int) -> EncodedRows | None:
        """All that can be taken, if that is one block, which is whole, and is encoded already."""
        block = self._blocks[0]
        if len(self._blocks) > 1 or block.taken or block.indices is not None or len(block.stored) > rows_max:
            return None
        return block.stored.encoded(self.schema)

    def _encoded(self, payload_bytes_max: int, rows_max: int) -> Batch | None:
        """The same, if it fits."""
        encoded = self._whole(rows_max)
        if encoded is None or encoded.payload.size > payload_bytes_max:
            return None
        return Batch(self.rows, self._blocks[0].passing, encoded.payload.size, encoded=encoded)

    def _cut(self, payload_bytes_max: int, rows_max: int) -> Batch:
        whole = self._pending()
        count, size = fitting_rows(whole, payload_bytes_max, rows_max)
        return Batch(self.rows, whole.slice(0, count), size)

    def _decode(self, stored: StoredRows) -> _Block:
        rows = stored.decode(self._codec, self._decoded)
        indices = None
        if self._filter:
            mask = self._filter.mask(rows)
            if mask.true_count < len(stored):
                rows = rows.filter(mask)
                indices = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if self._as_changes:
            rows = insert_rows(rows, self.schema)
        elif len(self._decoded) > len(self.schema):
            rows = rows.select(self.schema.names)
        return _Block(stored=stored, passing=rows, indices=indices)

    @staticmethod
    def _cut_to_limit(block: _Block, rows_left: int) -> None:
        """Forget what is behind the last row that the limit allows, so that the digest ends there as well."""
        if block.passing.num_rows < rows_left:
            return
        block.passing = block.passing.slice(0, rows_left)
        block.stored = block.stored.slice(0, block.stored_up_to(rows_left))

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
            self._digest_up_to(block, block.stored_up_to(block.taken))
            self._settle()

    def _settle(self) -> None:
        """Drop the blocks in front of which nothing is left to deliver, and move the position behind them."""
        while self._blocks and not self._blocks[0].passing.num_rows:
            block = self._blocks.popleft()
            self._digest_up_to(block, len(block.stored))

    def _digest_up_to(self, block: _Block, stored_rows: int) -> None:
        if stored_rows > block.digested:
            self.digest, size = block.stored.digest_of(block.digested, stored_rows, self.digest)
            self.stored_bytes += size
            self._last_key_of = block.stored.key_of(stored_rows - 1, self._codec, self._key_codec)
            block.digested = stored_rows
