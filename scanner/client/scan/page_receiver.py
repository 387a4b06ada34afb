"""The client's side of the models by page (`token`, `cursor`, `asof`): each page's token fetches the next. Pure.

`scanner.client.scan.pull` runs it.

Invariants:

1. Pages continue each other: their ordinals and, but for `cursor`, their log offset say so, or the scan fails.
2. A response that cannot be used is asked for again, with the same token, where that may help; a damaged one ends the
   scan, and none is read before its checksum was.
3. Data ends with a last page and a matching total of rows, and with nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.client.scan.columns import AskedColumns
from scanner.client.scan.resume_position import BucketPosition
from scanner.client.scan.sequence import RowSequence, require_bucket, require_rows, require_schema
from scanner.errors import DataCorrupted, ScanIncomplete
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import decode_batch
from scanner.wire.batches import decode_scan_page

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.client.scan.pull import Taken
    from scanner.client.scan.statistics import BucketProgress


class PageReceiver:
    """The requests of one scan of one bucket, and what their responses mean.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
        model: How it is continued.
        query: What to scan.
        page_bytes: Size of the pages to ask for, >= 1.
        schema: What the pages must be.
        progress: Counters to keep.
        as_of: Log offset to scan as of (`asof` only); None: as of the first page's.
        history: The history of the bucket that `as_of` is of; empty: whichever it is.
        columns: Which ones are asked for.
    """

    def __init__(
        self,
        what: str,
        model: pb.PageModel,
        query: pb.ScanQuery,
        page_bytes: int,
        schema: pa.Schema,
        progress: BucketProgress,
        as_of: int | None,
        history: bytes,
        columns: AskedColumns,
    ) -> None:
        self._what = what
        self._request = pb.ScanPageRequest(
            model=model, query=query, batch_size_bytes=page_bytes, as_of=as_of, as_of_history=history
        )
        self.columns = columns
        """See `PageSource`."""
        self._schema = schema
        self._progress = progress
        self._sequence = RowSequence(what)
        self._begun = False
        self._log_offset: int | None = as_of
        """Of the page before, or what the first one must have."""
        self._history = b""
        """Of the page before."""
        self.ended = False
        """Whether the last page has come."""

    def go_on_at(self, at: BucketPosition) -> None:
        """Go on where another scan stood, before the first page is asked for."""
        self._log_offset, self._history = at.log_offset, at.history
        if not at.token:
            self._request.as_of, self._request.as_of_history = at.log_offset, at.history
            return
        self._request.ClearField("as_of")
        self._request.ClearField("as_of_history")
        self._request.resume_token, self._sequence.rows = at.token, at.rows
        self._begun = True
        self._progress.resumes += 1

    @property
    def behind(self) -> BucketPosition | None:
        """See `PageSource`: only `asof` goes on in the same state for as long as the changelog reaches back."""
        if self._request.model != pb.PAGE_MODEL_ASOF or not self._begun:
            return None
        assert self._log_offset is not None  # A page has come.
        return BucketPosition(
            log_offset=self._log_offset,
            history=self._history,
            token=b"" if self.ended else self._request.resume_token,
            rows=self._sequence.rows,
            reason=self._progress.reason,
            digest=self._progress.digest or 0,
            stored_bytes=self._progress.stored_bytes or 0,
        )

    @property
    def keeps(self) -> bool:
        """Whether the first page makes the server keep something, until the last one."""
        return self._request.model == pb.PAGE_MODEL_TOKEN

    @property
    def is_open(self) -> bool:
        """Whether the server keeps something for us, as far as we know."""
        return self.keeps and bool(self._request.resume_token) and not self.ended

    def next_request(self) -> pb.ScanPageRequest:
        """See `PageSource`."""
        if not self._begun:
            self.columns.open_anew()
            self.columns.put_into(self._request.query)
        return self._request

    def release_request(self) -> pb.ScanPageRequest:
        """The request that releases what the server keeps."""
        request = pb.ScanPageRequest(close=True)
        request.MergeFrom(self._request)
        return request

    def receive(self, message: Buffer) -> Taken:
        """Take the response to `next_request`.

        Args:
            message: As received; a batch is a view of it and keeps it alive.

        Returns:
            A batch and its message bytes; None if the page has no rows.

        Raises:
            DataCorrupted: It cannot be read, is as of another offset, or fails a check.
            SchemaMismatch: The table was replaced by another meanwhile.
            ScanIncomplete: It is neither the last page, with how many rows there were, nor says how to go on.
        """
        page = decode_scan_page(message)
        fields = page.fields
        self._check(fields)
        if not self._begun:
            require_bucket(self._what, fields, self._request.query)
            self._schema = require_schema(self._what, fields.arrow_schema, self._schema)
        batch = None
        if fields.row_count:
            self._sequence.accept(
                ordinal=fields.row_ordinal, count=fields.row_count, crc32c=fields.crc32c, payload=page.payload
            )
            batch = require_rows(self._what, decode_batch(page.payload, self._schema), fields.row_count)
        self._count(fields, page.message_bytes)
        if fields.has_more_results:
            self._request.resume_token = fields.resume_token
        else:
            self._finish(fields)
        return None if batch is None else (batch, page.message_bytes)

    def _check(self, fields: pb.ScanPageResponse) -> None:
        if fields.has_more_results and not fields.resume_token:
            raise ScanIncomplete(f"{self._what}: a page that is not the last does not say how to go on")
        if not fields.has_more_results and not (fields.HasField("rows") and fields.HasField("digest")):
            raise ScanIncomplete(f"{self._what}: the last page does not say how many rows the scan had")
        isolated = self._request.model != pb.PAGE_MODEL_CURSOR
        if isolated and self._log_offset not in (None, fields.log_offset):
            raise DataCorrupted(
                f"{self._what}: a page is as of log offset {fields.log_offset}, not {self._log_offset}"
            )
        # The server checks what the first page asks for: later histories than the offset's own hold that state, too. An
        # older one, which does not, names none.
        unnamed = self._request.as_of_history and not fields.history
        if isolated and (unnamed or fields.history != (self._history or fields.history)):
            raise DataCorrupted(
                f"{self._what}: a page is of another history of the bucket than the one before it"
            )

    def _count(self, fields: pb.ScanPageResponse, message_bytes: int) -> None:
        progress = self._progress
        if not self._begun:
            progress.log_offset, progress.history = fields.log_offset, fields.history
            progress.begun = BucketPosition(log_offset=fields.log_offset, history=fields.history)
        if not self._begun or fields.log_offset != self._log_offset:
            progress.states += 1
        self._begun = True
        self.columns.opened()
        self._log_offset, self._history = fields.log_offset, fields.history
        progress.add_read_source(fields.read_source)
        progress.bytes_received += message_bytes

    def _finish(self, fields: pb.ScanPageResponse) -> None:
        self.ended = True
        self._sequence.finish(fields.rows)
        query = self._request.query
        limited = query.HasField("row_limit") and fields.rows == query.row_limit
        self._progress.reason = "LIMIT" if limited else "EXHAUSTED"
        self._progress.digest, self._progress.stored_bytes = fields.digest, fields.stored_bytes
