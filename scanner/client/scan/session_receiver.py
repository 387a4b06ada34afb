"""The client's side of the session model: opens an iterator at the server, continues it by number. Pure.

`scanner.client.scan.pull` runs it. A session outlives the connection: its last page can be asked for again over
another one.

Invariants:

1. Call 0 opens, 1, 2, 3... continue; a number is used again until its page was received.
2. Data ends with a last page and a matching total of rows, and with nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.client.scan.columns import AskedColumns
from scanner.client.scan.sequence import RowSequence, require_bucket, require_rows, require_schema
from scanner.errors import DataCorrupted, ScanIncomplete
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import decode_batch
from scanner.wire.batches import decode_session_page

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.client.scan.pull import Taken
    from scanner.client.scan.statistics import BucketProgress


class SessionReceiver:
    """The requests of one session, and what its responses mean.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
        query: What to scan.
        page_bytes: Size of the pages to ask for, >= 1.
        schema: What the pages must be.
        progress: Counters to keep.
        columns: Which ones are asked for.
    """

    def __init__(
        self,
        what: str,
        query: pb.ScanQuery,
        page_bytes: int,
        schema: pa.Schema,
        progress: BucketProgress,
        columns: AskedColumns,
    ) -> None:
        self._what = what
        self._query = query
        self.columns = columns
        """See `PageSource`."""
        self._page_bytes = page_bytes
        self._schema = schema
        self._progress = progress
        self._sequence = RowSequence(what)
        self._call_seq_id = 0
        self._scanner_id = b""
        self.ended = False
        """Whether the last page has come."""

    @property
    def behind(self) -> None:
        """See `PageSource`: a session goes on in its own client alone."""
        return None

    @property
    def keeps(self) -> bool:
        """The first page makes the server keep a session."""
        return True

    @property
    def is_open(self) -> bool:
        """Whether the server keeps a session for us, as far as we know."""
        return bool(self._scanner_id) and not self.ended

    def next_request(self) -> pb.ScanSessionRequest:
        """See `PageSource`."""
        if not self._scanner_id:
            self.columns.open_anew()
            self.columns.put_into(self._query)
            return pb.ScanSessionRequest(query=self._query, call_seq_id=0, batch_size_bytes=self._page_bytes)
        return pb.ScanSessionRequest(
            scanner_id=self._scanner_id, call_seq_id=self._call_seq_id, batch_size_bytes=self._page_bytes
        )

    def release_request(self) -> pb.ScanSessionRequest:
        """The request that closes the session."""
        return pb.ScanSessionRequest(scanner_id=self._scanner_id, call_seq_id=self._call_seq_id, close=True)

    def receive(self, message: Buffer) -> Taken:
        """Take the response to `next_request`.

        Args:
            message: As received; a batch is a view of it and keeps it alive.

        Returns:
            A batch and its message bytes; None if the page has no rows.

        Raises:
            DataCorrupted: It cannot be read, belongs to another session, or fails a check.
            SchemaMismatch: The table was replaced by another meanwhile.
            ScanIncomplete: The last page does not say how many rows there were.
        """
        page = decode_session_page(message)
        fields = page.fields
        if not fields.has_more_results and not (fields.HasField("rows") and fields.HasField("digest")):
            raise ScanIncomplete(f"{self._what}: the last page does not say how many rows the scan had")
        if not self._scanner_id:
            self._opened(fields)
        elif fields.scanner_id != self._scanner_id:
            raise DataCorrupted(f"{self._what}: a page of another session arrived")
        self._call_seq_id += 1
        self._progress.bytes_received += page.message_bytes
        batch = None
        if fields.row_count:
            self._sequence.accept(
                ordinal=fields.row_ordinal, count=fields.row_count, crc32c=fields.crc32c, payload=page.payload
            )
            batch = require_rows(self._what, decode_batch(page.payload, self._schema), fields.row_count)
        if not fields.has_more_results:
            self._finish(fields)
        return None if batch is None else (batch, page.message_bytes)

    def _opened(self, fields: pb.ScanSessionResponse) -> None:
        if not fields.HasField("log_offset"):
            raise DataCorrupted(f"{self._what}: the server opened a session without a log offset")
        if fields.has_more_results and not fields.scanner_id:
            raise DataCorrupted(f"{self._what}: the server opened a session without an id")
        require_bucket(self._what, fields, self._query)
        # In front of the id: a session of other columns is not confirmed, so the server drops it by itself.
        self._schema = require_schema(self._what, fields.arrow_schema, self._schema)
        self._scanner_id = fields.scanner_id
        self.columns.opened()
        self._progress.log_offset, self._progress.history = fields.log_offset, fields.history
        self._progress.add_read_source(fields.read_source)

    def _finish(self, fields: pb.ScanSessionResponse) -> None:
        self.ended = True  # The server has released the session, whatever else is wrong.
        self._sequence.finish(fields.rows)
        limited = self._query.HasField("row_limit") and fields.rows == self._query.row_limit
        self._progress.reason = "LIMIT" if limited else "EXHAUSTED"
        self._progress.digest, self._progress.stored_bytes = fields.digest, fields.stored_bytes
