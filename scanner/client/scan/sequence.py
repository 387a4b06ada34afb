"""Proof that a scan of one bucket delivers every row that the server sent, once, in order, unharmed.

Pure, and the same for every model: batches of a push stream and pages of a session carry the ordinal of their first
row and the checksum of their payload; the end carries the total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from scanner.data.digest import checksum
from scanner.errors import ArgumentInvalid, DataCorrupted, SchemaMismatch
from scanner.wire.arrow_ipc import decode_schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.proto.weir.v1 import scanner_pb2 as pb


_BINARY: Final = pa.binary()
_STRING_ID: Final = pa.string().id


class RowSequence:
    """Counts and checks the rows of one scan of one bucket.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
    """

    __slots__ = ("_what", "rows")

    def __init__(self, what: str) -> None:
        self._what = what
        self.rows = 0
        """Rows accepted so far; the ordinal that the next batch must have."""

    def accept(self, *, ordinal: int, count: int, crc32c: int, payload: Buffer) -> None:
        """Take the next batch.

        Args:
            ordinal: Rows that the server says it sent before this batch.
            count: Rows of this batch.
            crc32c: What the checksum of `payload` must be.
            payload: The encoded rows; not retained.

        Raises:
            DataCorrupted: A gap, a repetition or a wrong checksum; nothing has changed.
        """
        if ordinal != self.rows:
            raise DataCorrupted(
                f"{self._what}: rows lost or repeated on the way: a batch starts at row {ordinal}, expected {self.rows}"
            )
        actual = checksum(payload)
        if actual != crc32c:
            raise DataCorrupted(
                f"{self._what}: the batch at row {ordinal} arrived damaged:"
                f" its checksum is {actual:08x}, expected {crc32c:08x}"
            )
        self.rows += count

    def finish(self, rows: int) -> None:
        """Take the end.

        Args:
            rows: Rows that the server says the whole scan delivered.

        Raises:
            DataCorrupted: Another number arrived.
        """
        if rows != self.rows:
            raise DataCorrupted(f"{self._what}: {self.rows} rows arrived, but the server sent {rows}")


def require_bucket(
    what: str, begun: pb.ScanStarted | pb.ScanPageResponse | pb.ScanSessionResponse, query: pb.ScanQuery
) -> None:
    """See that a scan reads what was asked for, if the server says what it reads; an older one does not.

    Raises:
        DataCorrupted: It reads another bucket, or another table.
    """
    scanned = begun.scanned
    other_table = query.HasField("table_id") and scanned.table_id != query.table_id
    if begun.HasField("scanned") and (other_table or scanned.bucket != query.bucket):
        raise DataCorrupted(
            f"{what}: bucket {query.bucket} of table {query.table_id} was asked for, and the answer is of bucket"
            f" {scanned.bucket} of table {scanned.table_id}"
        )


def require_schema(what: str, encoded: Buffer, wanted: pa.Schema) -> pa.Schema:
    """Read the schema that a server announces for a scan.

    Args:
        what: Names the scan in errors.
        encoded: Arrow IPC schema message.
        wanted: What the client took the table for.

    Raises:
        SchemaMismatch: It is another: the table was dropped and created anew meanwhile.
        DataCorrupted: The bytes are no schema.
    """
    try:
        announced = decode_schema(encoded)
    except ArgumentInvalid as error:
        raise DataCorrupted(f"{what}: {error}") from error
    if not announced.equals(wanted):
        raise SchemaMismatch(
            f"{what}: the table has changed since it was opened; ask the client for it again"
        )
    return announced


def require_rows(what: str, batch: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    """Check a decoded batch against its announcement.

    Whether text is UTF-8 is not looked at: that takes longer than all the rest, and Python says so when it reads it.

    Raises:
        DataCorrupted: It has another number of rows, or buffers that contradict each other.
    """
    if batch.num_rows != rows:
        raise DataCorrupted(f"{what}: a batch of {batch.num_rows} rows was announced as {rows}")
    try:
        batch.validate()
        for column in batch.columns:
            # Offsets that go past the octets would have their reader read past them.
            if column.type.id == _STRING_ID:
                column.view(_BINARY).validate(full=True)
            elif not pa.types.is_primitive(column.type) and not pa.types.is_decimal(column.type):
                column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataCorrupted(f"{what}: a batch is not valid: {error}") from error
    return batch


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
