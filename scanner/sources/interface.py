"""What the push scan and the pull models know of a source.

The caller drives it: while `wants_step`, `step()` reads and decodes one more bounded block; `take()` cuts
the next batch from what is decoded; `end` tells when there is nothing left of either. Every call returns
within a few milliseconds and none of them waits, so the caller decides when others get their turn.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scanner.proto.weir.v1 import scanner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from scanner.data.changes import ChangeRange
    from scanner.data.keys import KeyCodec
    from scanner.data.row_block import WorkOutKey
    from scanner.data.rows import RowCodec
    from scanner.wire.arrow_ipc import EncodedRows


class EndReason(enum.Enum):
    """Why a scan ended; the value is the number on the wire."""

    EXHAUSTED = pb.ScanEnd.REASON_EXHAUSTED
    """Every row of the range was delivered or filtered out, and that this is the end was proven."""
    LIMIT = pb.ScanEnd.REASON_LIMIT
    """The row limit is reached."""
    STOP_OFFSET = pb.ScanEnd.REASON_STOP_OFFSET
    """The stop offset of a scan of the changelog is reached."""
    DRAINED = pb.ScanEnd.REASON_DRAINED
    """The consumer asked for an early end, or will grant no further credit. Set by the caller, never by a source."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The next rows of a scan."""

    row_ordinal: int
    """Rows delivered before this batch."""
    rows: pa.RecordBatch
    """At least one row, of the source's schema."""
    payload_bytes: int
    """Length of `rows` as an Arrow IPC message."""
    changes: ChangeRange | None = None
    """Of the changelog; None: the rows are those of a state."""
    encoded: EncodedRows | None = None
    """`rows` as that message, where it was made already for others; None: it was not."""


class StoredRows(Protocol):
    """Some rows of a bucket in key order, however they are kept: what one step reads."""

    def __len__(self) -> int: ...

    @property
    def row_bytes_max(self) -> int:
        """Length of the longest of them as a stored row; there is at least one."""

    def slice(self, start: int, stop: int) -> StoredRows:
        """The rows [start, stop), without a copy."""

    def digest_of(self, start: int, stop: int, crc: int) -> tuple[int, int]:
        """Continue the digest of a scan with the rows [start, stop), as stored rows; and how many bytes those are."""

    def decode(self, codec: RowCodec, columns: Sequence[str]) -> pa.RecordBatch:
        """The rows as Arrow columns, in the order of these names; none, where it is known that none passes the filter.

        Raises:
            ColumnNotFound: The table has no such column.
            DataCorrupted: Some row is not one of the table.
        """

    def encoded(self, schema: pa.Schema) -> EncodedRows | None:
        """The rows with these columns as they go out, if they are encoded already; None: they are not."""

    def key_of(self, index: int, codec: RowCodec, key_codec: KeyCodec) -> WorkOutKey:
        """Works out the encoded key of a row when it is called, and keeps no other row.

        Raises:
            DataCorrupted: When called: the row is not one of the table.
        """


class ReadRows(Protocol):
    """What one read of a `RowScan` yields; no rows: the proven end, unless unfinished."""

    @property
    def unfinished(self) -> bool:
        """There are no rows yet, but this is not the end: read again."""

    @property
    def last(self) -> bool:
        """Nothing follows them: the next read gives no rows. False: not known."""

    @property
    def block(self) -> StoredRows:
        """The rows."""

    def __len__(self) -> int: ...


class RowScan(Protocol):
    """One pass over a key range of a bucket as of one log offset, whatever the rows are read from."""

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""

    def read(self, rows_max: int, bytes_max: int) -> ReadRows:
        """Read on; see `scanner.storage.interface.BucketScan.read`. A block of an image may be more than is asked for.

        Raises:
            ScannerError: Storage failed, or the scan was closed.
        """

    def close(self) -> None:
        """Free everything. Idempotent."""


class Source(Protocol):
    """One scan of one bucket."""

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""

    @property
    def rows(self) -> int:
        """Rows delivered so far."""

    @property
    def digest(self) -> int:
        """CRC-32C over the stored rows scanned up to the position: see `KvSource`."""

    @property
    def stored_bytes(self) -> int:
        """Length of the rows that the digest covers."""

    @property
    def pending_bytes(self) -> int:
        """Arrow bytes decoded and not yet taken, as one message, give or take padding; 0: nothing to take."""

    @property
    def wants_step(self) -> bool:
        """Whether `step` would find out something new."""

    @property
    def end(self) -> EndReason | None:
        """Why nothing more will come; None as long as something may."""

    @property
    def fetch(self) -> Callable[[], None] | None:
        """What should be run in a thread before the next step, which would block on the disk else; None: nothing."""

    def step(self, bytes_max: int | None = None) -> None:
        """Read, decode and filter one more block; what passes is added to what can be taken.

        Args:
            bytes_max: Stored bytes to read at most, above 0, if that is less than the source would by itself; one
                row, or one block of an image, may be larger. None: as many as it would.

        Raises:
            ScannerError: Storage failed, or the source was closed; raised again by every further step.
        """

    def take(self, payload_bytes_max: int, rows_max: int) -> Batch | None:
        """Cut the next batch from what is decoded.

        Args:
            payload_bytes_max: Of its Arrow IPC message, except that a single row may be larger.
            rows_max: Rows at most, above 0.

        Returns:
            The batch, or None if nothing is decoded.
        """

    def close(self) -> None:
        """Free the iterator, the snapshot and what is decoded. Idempotent."""
