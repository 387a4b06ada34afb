"""The client of the session model: opens an iterator at the server, fetches its pages one after another, releases it.

`SessionReceiver` is the pure part: which request comes next and what a response means. `fetch_bucket` runs it.

Invariants:

1. One request of a session is in flight at most; call 0 opens, 1, 2, 3... continue.
2. Pages that arrived or are on their way and are not consumed: `page_depth` + 1 at most, the one in the consumer's
   hands included. With a depth of 1 the next page is asked for as soon as one arrives.
3. A session that was opened and has not ended by itself is released, once; one that ended gets no request more.
   An open that is cancelled half-way waits for its answer, for a bounded time, to release what it opened.
4. Only a refusal of the open by a cap is tried again. Every other failure ends the scan.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from scanner.errors import DataCorrupted, ScanIncomplete, ScannerError, TooManyScans
from scanner.hand_off import Delivery, HandOff
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.sequence import RowSequence, require_rows, require_schema
from scanner.tasks import run_with_companion
from scanner.transport_errors import translated
from scanner.wire import decode_batch, decode_session_page

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.statistics import BucketProgress
    from transport import Client

SESSION_PATH: Final = "/weir.v1.Scanner/ScanSession"
OPEN_RETRY_DELAYS_S: Final = (0.1, 0.2, 0.4)
"""Pauses before an open that a cap refused is tried again."""
_RELEASE_TIMEOUT_S: Final = 2.0
"""How long leaving a scan waits for the release to be acknowledged; without it the TTL reclaims the session."""


class SessionReceiver:
    """The requests of one session, and what its responses mean.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
        query: What to scan.
        page_bytes: Size of the pages to ask for, >= 1.
        schema: What the pages must be.
        progress: Counters to keep.
    """

    def __init__(
        self, what: str, query: pb.ScanQuery, page_bytes: int, schema: pa.Schema, progress: BucketProgress
    ) -> None:
        self._what = what
        self._query = query
        self._page_bytes = page_bytes
        self._schema = schema
        self._progress = progress
        self._sequence = RowSequence(what)
        self._call_seq_id = 0
        self._scanner_id = b""
        self.ended = False
        """Whether the last page has come."""

    @property
    def is_open(self) -> bool:
        """Whether the server keeps a session for us, as far as we know."""
        return bool(self._scanner_id) and not self.ended

    def next_request(self) -> pb.ScanSessionRequest:
        """The request that fetches the next page; the same again until a page is received."""
        if not self._scanner_id:
            return pb.ScanSessionRequest(query=self._query, call_seq_id=0, batch_size_bytes=self._page_bytes)
        return pb.ScanSessionRequest(
            scanner_id=self._scanner_id, call_seq_id=self._call_seq_id, batch_size_bytes=self._page_bytes
        )

    def release_request(self) -> pb.ScanSessionRequest:
        """The request that closes the session."""
        return pb.ScanSessionRequest(scanner_id=self._scanner_id, call_seq_id=self._call_seq_id, close=True)

    def receive(self, message: Buffer) -> tuple[pa.RecordBatch, int] | None:
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
        self._scanner_id = fields.scanner_id
        self._schema = require_schema(self._what, fields.arrow_schema, self._schema)
        self._progress.log_offset = fields.log_offset

    def _finish(self, fields: pb.ScanSessionResponse) -> None:
        self.ended = True  # The server has released the session, whatever else is wrong.
        if not (fields.HasField("rows") and fields.HasField("digest")):
            raise ScanIncomplete(f"{self._what}: the last page does not say how many rows the scan had")
        self._sequence.finish(fields.rows)
        limited = self._query.HasField("row_limit") and fields.rows == self._query.row_limit
        self._progress.reason = "LIMIT" if limited else "EXHAUSTED"
        self._progress.digest = fields.digest


_Page: TypeAlias = "tuple[pa.RecordBatch, int] | None"
"""What `SessionReceiver.receive` returns."""


class _PagesAhead:
    """Counts the pages that are not consumed, and holds the next request back while there are too many."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._unconsumed = 0
        self._dropped = trio.Event()

    def add(self) -> None:
        self._unconsumed += 1

    def consumed(self) -> None:
        self._unconsumed -= 1
        self._dropped.set()

    async def wait_room(self) -> None:
        while self._unconsumed > self._depth:
            self._dropped = trio.Event()
            await self._dropped.wait()


async def fetch_bucket(
    client: Client,
    receiver: SessionReceiver,
    progress: BucketProgress,
    hand_off: HandOff,
    page_depth: int,
    what: str,
) -> None:
    """Scan one bucket page by page, into the hand-off.

    Args:
        client: The connection.
        receiver: Fresh.
        progress: Counters to keep.
        hand_off: Takes the batches.
        page_depth: Pages fetched ahead of the consumer, >= 0.
        what: Names the scan in errors.

    Raises:
        ScannerError: The scan failed.

    Waits:
        For the server, and while more than `page_depth` pages are not consumed.

    Cancellation:
        Releases the session, for which it waits a bounded time.
    """
    pages = _PagesAhead(page_depth)
    try:
        taken = await _open(client, receiver, progress, what)
        while True:
            if taken is not None:
                batch, size = taken
                pages.add()
                hand_off.put(Delivery(progress.bucket, batch, size, pages.consumed))
            if receiver.ended:
                return
            await pages.wait_room()
            taken = receiver.receive(await _call(client, receiver.next_request(), progress, what))
    finally:
        if receiver.is_open:
            with trio.move_on_after(_RELEASE_TIMEOUT_S, shield=True), suppress(ScannerError):
                await _call(client, receiver.release_request(), progress, what)


async def _open(client: Client, receiver: SessionReceiver, progress: BucketProgress, what: str) -> _Page:
    for delay_s in OPEN_RETRY_DELAYS_S:
        try:
            return await _open_once(client, receiver, progress, what)
        except TooManyScans:
            await trio.sleep(delay_s)
    return await _open_once(client, receiver, progress, what)


async def _open_once(client: Client, receiver: SessionReceiver, progress: BucketProgress, what: str) -> _Page:
    """Open the session. When cancelled meanwhile, learn its id first, so that it can be released.

    The server cannot tell an answer that was never read from one that was: it would keep the session for its TTL.
    """
    pages: list[_Page] = []
    call = trio.CancelScope(shield=True)

    async def open_session() -> None:
        with call:
            pages.append(receiver.receive(await _call(client, receiver.next_request(), progress, what)))

    async def limit_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            call.deadline = trio.current_time() + _RELEASE_TIMEOUT_S

    await run_with_companion(open_session, limit_when_cancelled)
    await trio.lowlevel.checkpoint_if_cancelled()
    return pages[0]


async def _call(
    client: Client, request: pb.ScanSessionRequest, progress: BucketProgress, what: str
) -> Buffer:
    progress.requests += 1
    with translated(f"the scan of {what}"):
        page: Buffer = await client.call(
            SESSION_PATH, request.SerializeToString(), told_stalls=progress.add_server_stalls
        )
        return page
