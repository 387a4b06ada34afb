"""One push stream: the responses of one bucket's scan, checked, and the credit that paces them.

`PushReceiver` is the pure part: it is given messages and tells what they mean. `receive_bucket` runs it on a stream.

Invariants:

1. A batch reaches the consumer only if its ordinal continues the one before and its checksum is right.
2. Data ends with `ScanEnd` and a matching total of rows, and with nothing else: whatever else ends the stream is a
   failure.
3. What arrived and was not consumed is at most the window and what the server may overrun it by: credit is granted
   on consumption, in message bytes, and a server that ignores it is cut off.
"""

from __future__ import annotations

import enum
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import DataCorrupted, InternalError, ScanIncomplete
from scanner.hand_off import Delivery, HandOff
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.sequence import RowSequence, require_rows, require_schema
from scanner.tasks import run_with_companion
from scanner.transport_errors import translated
from scanner.wire import RowBatch, decode_batch, decode_scan_response
from transport import FlowControlViolation, ReceiveCredit, TransportError

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from scanner.statistics import BucketProgress
    from transport import Client, Stream

SCAN_PATH: Final = "/weir.v1.Scanner/Scan"
_TRAILERS_TIMEOUT_S: Final = 1.0
"""How long a scan that came to its explicit end waits for the status; it decides nothing any more."""


class ReceiverState(enum.Enum):
    """Where a push stream is."""

    OPENING = "opening"
    """`ScanStarted` has not come."""
    SCANNING = "scanning"
    ENDED = "ended"
    """`ScanEnd` came and its total is right."""


class PushReceiver:
    """What the responses of one push stream mean.

    Args:
        what: Names the scan in errors, e.g. `orders bucket 2`.
        schema: What the batches must be.
        window_bytes: Message bytes that may wait for the consumer, >= 1.
        progress: Counters to keep.
    """

    def __init__(self, what: str, schema: pa.Schema, window_bytes: int, progress: BucketProgress) -> None:
        self._what = what
        self._schema = schema
        self._progress = progress
        self._sequence = RowSequence(what)
        self.credit = ReceiveCredit(window_bytes)
        self.state = ReceiverState.OPENING

    def receive(self, message: Buffer) -> tuple[pa.RecordBatch, int] | None:
        """Take one response.

        Args:
            message: As received; a batch is a view of it and keeps it alive.

        Returns:
            A batch and the bytes that it costs until it is consumed; None if the response carries no rows.

        Raises:
            DataCorrupted: The response cannot be read, is out of turn, or fails a check.
            InternalError: The server sent past the credit.
        """
        response = decode_scan_response(message)
        if self.state is ReceiverState.ENDED:
            raise DataCorrupted(f"{self._what}: the server sent more after the end of the scan")
        if isinstance(response, RowBatch):
            return self._batch(response)
        kind = response.WhichOneof("response")
        if kind == "started":
            self._started(response.started)
        elif kind == "end":
            self._end(response.end)
        elif kind == "snapshot_end":
            raise DataCorrupted(f"{self._what}: a snapshot's end in a scan that has no changes")
        # Heartbeats have done their work by arriving; kinds that this version does not know are for others.
        return None

    def end_of_stream(self) -> None:
        """Take the end of the stream.

        Raises:
            ScanIncomplete: It came without the scan's explicit end.
        """
        if self.state is not ReceiverState.ENDED:
            raise ScanIncomplete(
                f"{self._what}: the stream ended without the end of the scan, after {self._sequence.rows} rows"
            )

    def _started(self, started: pb.ScanStarted) -> None:
        if self.state is not ReceiverState.OPENING:
            raise DataCorrupted(f"{self._what}: the server started the scan twice")
        self._schema = require_schema(self._what, started.arrow_schema, self._schema)
        self._progress.log_offset = started.log_offset
        self.state = ReceiverState.SCANNING

    def _batch(self, batch: RowBatch) -> tuple[pa.RecordBatch, int]:
        if self.state is not ReceiverState.SCANNING:
            raise DataCorrupted(f"{self._what}: rows came before the start of the scan")
        size = batch.message_bytes
        try:
            self.credit.receive(size)
        except FlowControlViolation as error:
            raise InternalError(f"{self._what}: the server sent past the credit: {error}") from error
        finally:
            self._progress.bytes_received += size
            self._progress.overrun_bytes = self.credit.overrun_bytes
        self._sequence.accept(
            ordinal=batch.row_ordinal, count=batch.row_count, crc32c=batch.crc32c, payload=batch.payload
        )
        return require_rows(self._what, decode_batch(batch.payload, self._schema), batch.row_count), size

    def _end(self, end: pb.ScanEnd) -> None:
        if self.state is not ReceiverState.SCANNING:
            raise DataCorrupted(f"{self._what}: the end came before the start of the scan")
        self._sequence.finish(end.rows)
        self._progress.digest = end.digest
        self._progress.reason = pb.ScanEnd.Reason.Name(end.reason).removeprefix("REASON_")
        self.state = ReceiverState.ENDED


class _Grants:
    """Credit to announce: the consumer raises it, a task of the stream sends the latest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._announced = 0
        self._raised = trio.Event()

    def raise_limit(self, limit: int) -> None:
        self._limit = limit
        self._raised.set()

    async def send_all(self, stream: Stream, progress: BucketProgress) -> None:
        """Announce every rise; a rise that comes while one is being sent goes out with the next.

        Waits:
            Until it is cancelled, or the stream takes no more: then the receiving side tells why.
        """
        try:
            while True:
                if self._limit > self._announced:
                    limit = self._limit
                    await stream.send(demand_message(limit))
                    self._announced = limit
                    progress.credit_messages += 1
                    continue
                self._raised = trio.Event()
                await self._raised.wait()
        except (TransportError, trio.ClosedResourceError):
            return


def demand_message(bytes_limit: int) -> bytes:
    """The request that grants credit up to `bytes_limit`, cumulative message bytes."""
    return pb.ScanRequest(demand=pb.Demand(bytes_limit=bytes_limit)).SerializeToString()


async def receive_bucket(
    client: Client,
    scan_open: pb.ScanOpen,
    receiver: PushReceiver,
    progress: BucketProgress,
    hand_off: HandOff,
    what: str,
) -> None:
    """Scan one bucket by push, into the hand-off.

    Args:
        client: The connection.
        scan_open: What to ask for.
        receiver: Fresh; its credit is the window.
        progress: Counters to keep.
        hand_off: Takes the batches.
        what: Names the scan in errors.

    Raises:
        ScannerError: The scan failed; the stream is reset.

    Waits:
        For the stream's end. Never for the consumer: what it has to hold is bounded by the credit.

    Cancellation:
        Resets the stream.
    """
    grants = _Grants(receiver.credit.limit)
    with translated(f"the scan of {what}"):
        async with client.open_stream(SCAN_PATH) as stream:
            progress.requests += 1
            await stream.send(pb.ScanRequest(open=scan_open).SerializeToString())
            await run_with_companion(
                functools.partial(_receive_all, stream, receiver, progress.bucket, hand_off, grants),
                functools.partial(grants.send_all, stream, progress),
            )
            if stream.peer_stalls is not None:
                progress.add_server_stalls(stream.peer_stalls)


async def _receive_all(
    stream: Stream, receiver: PushReceiver, bucket: int, hand_off: HandOff, grants: _Grants
) -> None:
    def consume(size: int) -> None:
        limit = receiver.credit.consume(size)
        if limit is not None:
            grants.raise_limit(limit)

    while (message := await stream.receive()) is not None:
        taken = receiver.receive(message)
        if taken is not None:
            batch, size = taken
            hand_off.put(Delivery(bucket, batch, size, functools.partial(consume, size)))
        if receiver.state is ReceiverState.ENDED:
            return await _receive_status(stream, receiver)
    receiver.end_of_stream()


async def _receive_status(stream: Stream, receiver: PushReceiver) -> None:
    """Let the stream end in good order, so that it needs no reset. The scan is complete whatever happens."""
    with trio.move_on_after(_TRAILERS_TIMEOUT_S), suppress(TransportError):
        await stream.send_end()
        while (message := await stream.receive()) is not None:
            receiver.receive(message)
