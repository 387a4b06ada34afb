"""The changes of one bucket from a log offset on, in the order in which they were made.

Invariants:

1. The rows delivered are those of the changes in [start, end) that pass the filter, each once, in offset order, where
   `end` is the stop offset, or the end of the log by and by; cut off after the row limit.
2. `next_offset` says how far the source has come: every change before it that passes was taken. It moves over
   changes that do not pass, and stands inside an entry only where a batch ended there.
3. A batch ends where an entry ends if one ends in it, and says so. It covers every change from the end of the batch
   before it on, those that do not pass included: a reader can tell that nothing was left out.
4. Storage is read in `step` only, and nothing of it is held between two steps.

This module knows no transport, no task and no clock. The caller waits for the next commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scanner.data.changes import ChangeRange
from scanner.data.position import START, Position
from scanner.errors import StoreClosed
from scanner.sources.interface import Batch, EndReason
from scanner.wire.arrow_ipc import batch_size_bytes, fitting_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.sources.log_blocks import LogBlock, LogBlocks


class LogSource:
    """One scan of one bucket's changelog. See `scanner.sources.interface.Source` for what callers may rely on.

    Args:
        blocks: Where the changes come from; shared with other sources.
        offset: Of the first change.
        stop_offset: An entry's end, at or behind `offset`, where the scan ends; None: it never does.
        bookmark: The last entry end at or before `offset`; None: `offset` is one.
        covered: Where the last batch that was taken ended, at or before `offset`; None: at `offset`.
        row_limit: Rows delivered at most, those in front of `position` included; None: no limit.
        position: Its rows are those delivered before; its digest is handed on.
    """

    def __init__(
        self,
        blocks: LogBlocks,
        offset: int,
        *,
        stop_offset: int | None = None,
        bookmark: int | None = None,
        covered: int | None = None,
        row_limit: int | None = None,
        position: Position = START,
    ) -> None:
        self.blocks = blocks
        """Where its changes come from."""
        self._stop_offset = stop_offset
        self._row_limit = row_limit
        self._position = position
        self._block: LogBlock | None = None
        """What was read and is not taken yet; some row of it passes."""
        self._taken = 0
        """Rows of the block that were taken."""
        self._closed = False
        self.schema: pa.Schema = blocks.schema
        self.log_offset = offset
        """Where it began."""
        self.next_offset = offset
        """Every change before it that passes was taken."""
        self.bookmark = offset if bookmark is None else bookmark
        """The last entry end at or before `next_offset`."""
        self.covered = offset if covered is None else covered
        """Where the batches that were taken end; what lies between it and `next_offset` does not pass."""
        self.rows = position.rows

    @property
    def position(self) -> Position:
        """The rows delivered, and the digest of the snapshot in front of the changes."""
        return Position(b"", self.rows, self._position.digest, self._position.stored_bytes)

    @property
    def digest(self) -> int:
        """What it was given: changes are checked batch by batch, and have no digest."""
        return self._position.digest

    @property
    def stored_bytes(self) -> int:
        """What it was given."""
        return self._position.stored_bytes

    @property
    def pending_bytes(self) -> int:
        """Arrow bytes that can be taken; 0: none."""
        if self._block is None:
            return 0
        if not self._taken:
            return self._block.payload_bytes
        return batch_size_bytes(self._block.rows.slice(self._taken))

    @property
    def wants_step(self) -> bool:
        """Whether there are changes that were not read."""
        return self._block is None and not self._at_limit and self.next_offset < self._stop

    @property
    def end(self) -> EndReason | None:
        """Why nothing more will come, or None."""
        if self._at_limit:
            return EndReason.LIMIT
        if self._block is None and self._stop_offset is not None and self.next_offset >= self._stop_offset:
            return EndReason.STOP_OFFSET
        return None

    @property
    def fetch(self) -> None:
        """See `Source`; the changelog is read in its steps."""
        return

    def step(self, bytes_max: int | None = None) -> None:
        """Read one more block; one of which nothing passes only moves the position.

        Args:
            bytes_max: Stored bytes that are enough, above 0; None: a whole block. A block that others have read is
                taken as it is.

        Raises:
            OffsetOutOfRange: Retention has passed the position.
            DataCorrupted, StoreFailed, StoreClosed: Storage failed, or the source was closed.
        """
        if self._closed:
            raise StoreClosed("the scan of the changelog was closed")
        if not self.wants_step:
            return
        block = (
            self.blocks.read(self.next_offset, self._stop)
            if bytes_max is None
            else self.blocks.read(self.next_offset, self._stop, bytes_max)
        )
        if block.rows.num_rows:
            self._block, self._taken = block, 0
        else:
            self._move_to(block, block.end)

    def take(self, payload_bytes_max: int, rows_max: int) -> Batch | None:
        """Cut the next batch: as many rows as fit into both bounds, and at least one; None if there are none."""
        block = self._block
        if block is None:
            return None
        if self._row_limit is not None:
            rows_max = min(rows_max, self._row_limit - self.rows)
        whole = (
            not self._taken and block.rows.num_rows <= rows_max and block.payload_bytes <= payload_bytes_max
        )
        if whole:
            count, rows, size = block.rows.num_rows, block.rows, block.payload_bytes
        else:
            count, end = self._cut(block, payload_bytes_max, rows_max)
            rows = block.rows.slice(self._taken, count)
            size = batch_size_bytes(rows)
        end = block.end if self._taken + count == block.rows.num_rows else end
        covered, self.covered = self.covered, end
        self._move_to(block, end)
        batch = Batch(
            row_ordinal=self.rows,
            rows=rows,
            payload_bytes=size,
            changes=ChangeRange(covered, end, self.bookmark == end),
            encoded=block.encoded if whole else None,
        )
        self.rows += count
        self._taken += count
        if self._taken == block.rows.num_rows:
            self._block = None
        return batch

    def close(self) -> None:
        """Free what was read. Idempotent; a further step raises StoreClosed."""
        self._closed = True
        self._block = None

    @property
    def _stop(self) -> int:
        """Up to where can be read now."""
        end = self.blocks.log_end
        return end if self._stop_offset is None else min(end, self._stop_offset)

    @property
    def _at_limit(self) -> bool:
        return self._row_limit is not None and self.rows >= self._row_limit

    def _cut(self, block: LogBlock, payload_bytes_max: int, rows_max: int) -> tuple[int, int]:
        """How many of the rows that were not taken make the next batch, and the offset at which it ends."""
        rest = block.rows.slice(self._taken)
        count, _ = fitting_rows(rest, payload_bytes_max, rows_max)
        if count == rest.num_rows:
            return count, block.end
        # What follows the last row and does not pass belongs to the next batch: nobody has looked at how far it goes.
        end = int(block.offsets[self._taken + count - 1]) + 1
        entry_end = block.newest_entry_end(end)
        if entry_end is not None:
            before = int(np.searchsorted(block.offsets, entry_end)) - self._taken
            if before > 0:
                return before, entry_end
        return count, end

    def _move_to(self, block: LogBlock, offset: int) -> None:
        self.next_offset = offset
        entry_end = block.newest_entry_end(offset)
        if entry_end is not None:
            self.bookmark = entry_end
