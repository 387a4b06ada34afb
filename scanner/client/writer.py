"""Writing to a table: rows and deletes as a pipeline of requests, on one stream as long as it lasts.

Invariants:

1. At most `REQUESTS_IN_FLIGHT_MAX` requests (`scanner.client.request_rows`) are sent and not acknowledged, and at most
   two that together have as much as so many to a table of one bucket.
2. Acknowledgements come in the order of the requests; `rows_acknowledged` counts rows that are durable.
3. Requests are numbered. When a stream breaks off, those that are not acknowledged are sent again with their numbers on
   another one, and the server applies each once (`scanner.storage.writers`).
4. A failure says how many rows were acknowledged before it. Of what was in flight, any part may have been applied.
5. Ids of writers are used again for the same table, one after another (`WriterIds`), also those of writers that failed:
   what is still on its way of these is refused by every bucket that a later one of that id has reached.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import trio

from scanner.client.arrow_input import Rows, read_arrow
from scanner.client.connection import Connection, Lasting
from scanner.client.failures import as_write_error, translated
from scanner.client.offsets import OffsetRange
from scanner.client.request_rows import (
    REQUEST_BYTES_MAX,
    REQUEST_ROWS_MAX,
    BucketShares,
    conformed,
    request_scale,
)
from scanner.client.writer_ids import WriterId
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError, ServerUnavailable, error_row
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods
from scanner.wire.answers import parse_answer
from scanner.wire.arrow_ipc import encode_stream
from scanner.wire.seals import sealed
from transport import TransportError

if TYPE_CHECKING:
    from typing_extensions import Buffer


REQUESTS_IN_FLIGHT_MAX: Final = 8

OnAcknowledged: TypeAlias = Callable[[int], None]
"""Told the rows acknowledged so far."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did."""

    rows: int
    """Rows or keys acknowledged."""
    ranges: tuple[OffsetRange, ...]
    """The changes made, in order; of each bucket ascending, and what adjoins as one. A write that changes nothing makes
    none."""


@dataclass(slots=True)
class _Sent:
    """A request that is not acknowledged."""

    sequence: int
    rows: int
    message: bytes
    times: int = 0
    """How often it has gone out."""


class Writer:
    """Sends rows to one table. Made by `open_writer`; for one task.

    Args:
        connection: To the server.
        calls: Holds the newest stream, and releases it at the end.
        table: The table.
        table_id: Which one of that name.
        operation: What to do with the rows.
        writer_id: Its own.
        on_acknowledged: Called whenever more rows are durable; must not block.
        lasting: What its call is to the connection; None: it is given all rows at once.
    """

    def __init__(
        self,
        connection: Connection,
        calls: AsyncExitStack,
        table: TableDescription,
        table_id: int,
        operation: pb.WriteRequest.Operation,
        writer_id: WriterId,
        on_acknowledged: OnAcknowledged | None,
        lasting: Lasting | None,
    ) -> None:
        self._connection = connection
        self._lasting = lasting
        self._calls = calls
        self._attempts = connection.attempts()
        self._table = table
        self._table_id = table_id
        self._operation = operation
        deletes = operation == pb.WriteRequest.OPERATION_DELETE
        conform = table.conform_keys if deletes else table.conform
        # A commit holds what its deletes remove, and nobody here knows how much that is.
        scale = 1 if deletes else request_scale(table.buckets)
        self._conformed = functools.partial(conformed, conform=conform, scale=scale)
        self._shares = BucketShares(table)
        self._writer_id = writer_id
        self._on_acknowledged = on_acknowledged
        self._in_flight: deque[_Sent] = deque()
        self._opened = False
        """There was a stream. One that begins with nothing is ended by the server, so the first request opens it."""
        self._ended = False
        """Nothing more will be sent."""
        self._left = False
        """Its id is another one's by now."""
        self._numbered = True
        """The server answers with the numbers of requests, as far as is known: it recognises what comes again."""
        self._ranges: list[OffsetRange] = []
        self._newest: dict[int, int] = {}
        """By bucket, which of these is its last."""
        self.rows_acknowledged = 0
        """Rows that are durable."""

    @property
    def result(self) -> WriteResult:
        """What is acknowledged until now; all of it once the block of `open_writer` is left."""
        return WriteResult(self.rows_acknowledged, tuple(self._ranges))

    async def open(self) -> None:
        """See that the server can be reached.

        Raises:
            ScannerError: It cannot.
        """
        try:
            with translated(self._what):
                async with self._connection.client(retries=None):
                    pass
        except ScannerError as error:
            raise self._with_progress(error) from error

    async def write(self, rows: Rows) -> None:
        """Send rows; those of one key are applied in their order.

        Args:
            rows: All columns of the table by name, or the key columns for deletes.

        Raises:
            SchemaMismatch: Columns do not fit; nothing of `rows` was sent.
            KeyInvalid: A key is null; nothing of `rows` was sent.
            TypeError: `rows` are no rows.
            ScannerError: The server failed, or refused a row for its size (KeyInvalid, SchemaMismatch). The writer
                cannot be used any more; `rows_acknowledged` are durable.
            trio.ClosedResourceError: The block of `open_writer` was left.

        Waits:
            While too much is not acknowledged.

        Cancellation:
            May have sent part of the rows, some requests in their order; the writer can go on.
        """
        rows = await read_arrow(rows)
        if self._left:
            raise trio.ClosedResourceError(
                f"{self._what} is over, since its block was left; open another writer"
            )
        # All are looked at before the first is sent. Several are made once more: kept, they may be a copy of all rows.
        pieces: Iterable[pa.RecordBatch] = ()
        for index, piece in enumerate(self._conformed(rows)):
            pieces = self._conformed(rows) if index else [piece]
            if index:
                await trio.lowlevel.checkpoint()
        if not pieces:  # What may wait passes a checkpoint: a loop over nothing lets the other tasks run.
            await trio.lowlevel.checkpoint()
        for piece in pieces:
            for part in self._shares.cut(piece):
                while self._is_full:
                    await self._receive()
                await self._send(part)
                await self._receive_ready()

    async def flush(self) -> None:
        """Wait until everything sent is durable.

        Raises:
            ScannerError: It is not; the message says how many rows are.
        """
        while self._in_flight:
            await self._receive()

    async def close(self) -> None:
        """Flush, and end the stream in good order.

        Raises:
            ScannerError: Not everything is durable; the message says how many rows are.
        """
        self._ended = True
        if not self._opened:
            return
        try:
            await self._stream.send_end()
        except TransportError as error:
            if self._in_flight:
                await self._go_on(error)
        await self.flush()
        try:
            more = await self._stream.receive()
        except TransportError:
            return  # Everything is acknowledged: how the stream ends makes no difference.
        if more is not None:
            raise DataCorrupted(
                f"{self._what} was acknowledged more often than it was sent: some acknowledgement came twice, and"
                " nobody knows what is durable"
            )

    @property
    def _is_full(self) -> bool:
        """Whether an acknowledgement is waited for before the next request."""
        sent = self._in_flight
        if len(sent) < 2:
            return False
        return (
            len(sent) >= REQUESTS_IN_FLIGHT_MAX
            or sum(each.rows for each in sent) >= REQUESTS_IN_FLIGHT_MAX * REQUEST_ROWS_MAX
            or sum(len(each.message) for each in sent) >= REQUESTS_IN_FLIGHT_MAX * REQUEST_BYTES_MAX
        )

    def leave(self) -> None:
        """Send nothing any more."""
        self._left = True

    async def _open_stream(self, retries: int | None) -> None:
        await self._calls.aclose()
        with translated(self._what):
            connected = self._connection.client(retries=retries, lasting=self._lasting)
            self._client = await self._calls.enter_async_context(connected)
            self._stream = await self._calls.enter_async_context(self._client.open_stream(methods.WRITE))
        self._opened = True

    async def _send(self, batch: pa.RecordBatch) -> None:
        request = pb.WriteRequest(
            table=self._table.name,
            table_id=self._table_id,
            operation=self._operation,
            arrow_stream=encode_stream(batch),
            writer_id=self._writer_id.octets,
            sequence=self._writer_id.next_sequence(),
        )
        sent = _Sent(request.sequence, batch.num_rows, sealed(request.SerializeToString()))
        try:
            if not self._opened:
                await self._open_stream(retries=None)
            await self._put(sent)
        except (TransportError, ServerUnavailable) as error:
            self._in_flight.append(sent)
            try:
                await self._go_on(error)
            finally:
                if not self._opened:  # Nothing has gone out, and nothing will be acknowledged.
                    self._in_flight.clear()
        else:
            self._in_flight.append(sent)

    async def _put(self, sent: _Sent) -> None:
        sent.times += 1
        await self._stream.send(sent.message)

    async def _receive(self) -> None:
        try:
            self._acknowledge(await self._stream.receive())
        except (TransportError, ServerUnavailable) as error:
            await self._go_on(error)

    async def _receive_ready(self) -> None:
        try:
            while self._in_flight:
                self._acknowledge(self._stream.receive_nowait())
        except trio.WouldBlock:
            return
        except (TransportError, ServerUnavailable) as error:
            await self._go_on(error)

    async def _go_on(self, error: TransportError | ScannerError) -> None:
        """Send again what is not acknowledged, on another stream, until that can be done.

        Raises:
            ScannerError: It is of no use, or was tried often enough; the message says how many rows are durable.
        """
        while True:
            failure = await self._reason(error)
            if not self._may_go_on(failure):
                raise self._with_progress(failure) from error
            try:
                await self._attempts.wait_retry(failure)
            except ScannerError as last:
                raise self._with_progress(last) from error
            try:
                await self._open_stream(retries=0)
                for sent in self._in_flight:
                    await self._put(sent)
                if self._ended:
                    await self._stream.send_end()
            except (TransportError, ScannerError) as again:
                error = again
            except BaseException:
                if self._opened:
                    self._stream.reset()  # A part is of no use: whoever goes on begins with another stream.
                raise
            else:
                return

    def _may_go_on(self, failure: ScannerError) -> bool:
        """Whether the server may be there again, and would recognise what it has."""
        return self._numbered and error_row(type(failure)).status == "UNAVAILABLE"

    async def _reason(self, error: TransportError | ScannerError) -> ScannerError:
        """Why it broke off: the status, if the server gave one. What was acknowledged before counts."""
        if isinstance(error, ScannerError):
            return error
        try:
            while (message := await self._stream.receive()) is not None and self._in_flight:
                self._acknowledge(message)
        except TransportError as reason:
            error = reason
        replaced = self._connection.token_replaced(self._client, error)
        return replaced or as_write_error(error, self._what)

    def _acknowledge(self, message: Buffer | None) -> None:
        if message is None:
            raise ServerUnavailable(f"the server ended {self._what} before it acknowledged everything")
        response = parse_answer(pb.WriteResponse, message, f"an acknowledgement of {self._what}")
        sent = self._in_flight[0]
        self._numbered = bool(response.sequence)
        if not self._numbered and sent.times > 1:
            raise ServerUnavailable(
                f"{self._what} was cut off, and the server, which is older than this client, does not recognise what"
                " was sent again: rows may have been written twice, the second time over newer ones; look at them"
            )
        if response.sequence not in (0, sent.sequence):
            raise self._with_progress(
                DataCorrupted(
                    f"{self._what}: request {response.sequence} of this writer is acknowledged where"
                    f" {sent.sequence} would be next"
                )
            )
        for each in response.ranges:
            self._take_range(OffsetRange(each.bucket, each.start_offset, each.end_offset))
        self._in_flight.popleft()
        self._attempts.progress()
        self.rows_acknowledged += sent.rows
        if self._on_acknowledged is not None:
            self._on_acknowledged(self.rows_acknowledged)

    def _take_range(self, changed: OffsetRange) -> None:
        """Take the changes that a request made; they are behind those of the requests before it.

        Raises:
            DataCorrupted: They are not: an acknowledgement came twice, or the server has an older copy of its data now.
        """
        at = self._newest.get(changed.bucket)
        end = 0 if at is None else self._ranges[at].end_offset
        if not end <= changed.start_offset < changed.end_offset:
            raise self._with_progress(
                DataCorrupted(
                    f"{self._what}: changes [{changed.start_offset}, {changed.end_offset}) of bucket {changed.bucket}"
                    f" are acknowledged after those up to {end}: an acknowledgement came twice, or the server's data"
                    " was put back from an older copy, without rows that were acknowledged"
                )
            )
        if at is not None and end == changed.start_offset:
            # A writer that is open for days would keep one of every request.
            self._ranges[at] = self._ranges[at]._replace(end_offset=changed.end_offset)
            return
        self._newest[changed.bucket] = len(self._ranges)
        self._ranges.append(changed)

    @property
    def _what(self) -> str:
        return f"the write to {self._table.name}"

    def _with_progress(self, error: ScannerError) -> ScannerError:
        message = error.message + shown_progress(self.rows_acknowledged)
        return error.reworded(message, rows_acknowledged=str(self.rows_acknowledged))


def shown_progress(acknowledged: int) -> str:
    """How the message of a write that failed ends, which had so many rows acknowledged."""
    return f" ({acknowledged} rows of this write were acknowledged before)"


@asynccontextmanager
async def open_writer(
    connection: Connection,
    table: TableDescription,
    table_id: int,
    operation: pb.WriteRequest.Operation,
    on_acknowledged: OnAcknowledged | None,
    lasting: Lasting | None = None,
) -> AsyncIterator[Writer]:
    """Open a write stream for the length of a block; leaving the block waits until everything is durable.

    Raises:
        ArgumentInvalid: `on_acknowledged` cannot be called.
        ScannerError: The server cannot be reached, or not everything is durable.

    Cancellation:
        Resets the stream, as does an exception of the block; what was in flight may have been applied.
    """
    if on_acknowledged is not None and not callable(on_acknowledged):
        raise ArgumentInvalid(f"on_acknowledged is a function, not {on_acknowledged!r}")
    writer_id = connection.writer_ids.take(table_id)
    try:
        with translated(f"the write to {table.name}"):
            async with AsyncExitStack() as calls:
                writer = Writer(
                    connection, calls, table, table_id, operation, writer_id, on_acknowledged, lasting
                )
                try:
                    await writer.open()
                    yield writer
                    await writer.close()
                finally:
                    writer.leave()
    finally:
        connection.writer_ids.give_back(table_id, writer_id)
