"""One push scan on one stream: what the client says, what goes out, and when.

Invariants:

1. Sent minus limit is at most one row's message: a batch goes out only while sent < limit, and one of more than
   one row fits into the credit left.
2. Storage is read only while there is credit, and one decoded block is held at most.
3. Whatever the scan does, something is sent within the heartbeat interval, unless the peer's window is shut.
4. Data ends with `ScanEnd` or with an error, never otherwise.
5. Between two steps of the source every other task gets its turn.

This module knows no storage and no tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from scanner.digest import checksum
from scanner.errors import ArgumentInvalid, CreditInvalid, ScannerError
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.query import parse_request
from scanner.sources.interface import EndReason, Source
from scanner.tasks import run_with_companion
from scanner.wire import encode_batch, encode_row_batch, encode_schema, row_batch_overhead
from transport import CREDIT_BYTES_MAX, StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.buckets import OpenScan, ServedBucket
    from transport import ServerStream


_GOODBYE_S: Final = 1.0
"""How long the call of a client that has not half-closed outlives its scan's end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PushLimits:
    """What one push scan keeps to."""

    payload_bytes_max: int
    """Arrow payload of a batch, above 0; a single row may be larger."""
    rows_max: int
    """Rows of a batch, above 0."""
    heartbeat_interval_s: float
    """The longest silence."""


class RequestSide:
    """What the client has said since its open. Pure: it is given messages and remembers what they mean."""

    def __init__(self) -> None:
        self.limit: int | None = 0
        """Message bytes of batches that may have been sent; None: as many as HTTP/2 lets through."""
        self.draining = False
        """The client asked for an early end."""
        self.half_closed = False
        """The client will say nothing more, so no credit will come either."""
        self._demanded = False

    def receive(self, message: Buffer) -> None:
        """Take a message after the open.

        Raises:
            ArgumentInvalid: It is a second open, empty, of a kind that is not known here, or not a message.
            CreditInvalid: It demands more than can be counted.
        """
        request = parse_request(pb.ScanRequest, message)
        match request.WhichOneof("request"):
            case "demand":
                self._demand(request.demand.bytes_limit)
            case "drain":
                self.draining = True
            case "open":
                raise ArgumentInvalid("this stream has its scan; open another one on another stream")
            case _:
                raise ArgumentInvalid(
                    "a request of a running scan is a demand or a drain, and this is neither"
                )

    def receive_end(self) -> None:
        """Take the end of the request side. Without a demand before, HTTP/2 windows alone hold the scan back."""
        self.half_closed = True
        if not self._demanded:
            self.limit = None

    def _demand(self, limit: int) -> None:
        if limit > CREDIT_BYTES_MAX:
            raise CreditInvalid(
                f"a demand of {limit} bytes is more than the {CREDIT_BYTES_MAX} that can be counted"
            )
        self._demanded = True
        self.limit = max(self.limit or 0, limit)


class PushScan:
    """Drives one source into one stream.

    Args:
        stream: Its open has been received.
        scan: Not closed by this class.
        bucket: Of the scan, for its high watermark.
        limits: To be kept.
    """

    def __init__(
        self, stream: ServerStream, scan: OpenScan[Source], bucket: ServedBucket, limits: PushLimits
    ) -> None:
        self._stream = stream
        self._scan = scan
        self._source = scan.source
        self._bucket = bucket
        self._limits = limits
        self._requests = RequestSide()
        self._changed = trio.Event()
        self._sent_at = trio.current_time()
        self._scope = trio.CancelScope()
        self.end_reason: EndReason | None = None
        """Why the scan came to its explicit end; None until then."""

    @property
    def rows(self) -> int:
        """Rows delivered so far."""
        return self._source.rows

    async def run(self) -> None:
        """Send the scan, up to its end.

        Raises:
            ScannerError: The source failed, the client broke the rules, or the bucket ended the scan.
            TransportError: The stream or the connection is gone.

        Waits:
            For credit, and for the stream to take what is sent.

        Cancellation:
            The scan stops; nothing more is sent.
        """
        self._scan.when_ended(self._stop)
        with self._scope:
            await run_with_companion(self._send_all, self._receive_all)
        if self._scope.cancelled_caught and self._scan.ended_by is not None:
            raise self._scan.ended_by

    def stop(self, error: ScannerError) -> None:
        """End the scan with an error, whatever it is waiting for."""
        self._scan.end(error)

    def _stop(self, _error: ScannerError) -> None:
        self._scope.cancel()

    async def _receive_all(self) -> None:
        credit = self._stream.credit
        # Beside the sending task, which does the stream's work: waiting here holds nothing up.
        while (message := await self._stream.receive(attributed=False)) is not None:
            self._requests.receive(message)
            if self._requests.limit is not None:
                credit.raise_limit(self._requests.limit)
            self._wake()
            # Receiving does not wait while something is there, and one DATA frame may have hundreds of demands.
            await trio.lowlevel.checkpoint()
        self._requests.receive_end()
        if self._requests.limit is None:
            credit.remove_limit()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _send_all(self) -> None:
        await self._send(
            pb.ScanResponse(
                started=pb.ScanStarted(
                    arrow_schema=encode_schema(self._source.schema),
                    log_offset=self._source.log_offset,
                    heartbeat_interval_ms=round(self._limits.heartbeat_interval_s * 1000),
                )
            )
        )
        while (reason := self._end_reason()) is None:
            if not self._has_credit:
                await self._wait_changed()
            elif not self._stream.writable:
                await self._stream.wait_writable()  # nothing is read for a peer that takes nothing
            elif self._source.pending_bytes:
                await self._send_batch()
            else:
                with self._stream.blocked_on(StallReason.STORAGE):
                    self._source.step()
                await trio.lowlevel.checkpoint()
                await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)
        await self._send(
            pb.ScanResponse(
                end=pb.ScanEnd(reason=reason.value, rows=self._source.rows, digest=self._source.digest)
            )
        )
        self.end_reason = reason
        await self._wait_half_closed()

    async def _wait_half_closed(self) -> None:
        """Let a client that grants credit read the end before its call ends.

        Its next demand may be on the way, and some libraries (grpc.aio) make a failure of a whole call when a message
        can no more be sent.
        """
        with trio.move_on_after(_GOODBYE_S):
            while not self._requests.half_closed:
                await self._changed.wait()

    @property
    def _has_credit(self) -> bool:
        return self._stream.credit.available > 0

    def _end_reason(self) -> EndReason | None:
        if self._source.end is not None:
            return self._source.end
        if self._requests.draining and not (self._source.pending_bytes and self._has_credit):
            return EndReason.DRAINED
        if self._requests.half_closed and not self._has_credit:
            return EndReason.DRAINED
        return None

    async def _send_batch(self) -> None:
        rows_max, payload_max = self._limits.rows_max, self._limits.payload_bytes_max
        credit_left = self._stream.credit.available
        overhead = row_batch_overhead(self._source.rows, rows_max, payload_max)
        batch = self._source.take(min(payload_max, credit_left - overhead), rows_max)
        assert batch is not None  # Something is pending.
        payload = encode_batch(batch.rows)
        parts = encode_row_batch(batch.row_ordinal, batch.rows.num_rows, checksum(payload), payload)
        await self._stream.send_counted(*parts)
        self._sent_at = trio.current_time()
        # Sending does not wait while the send buffer has room, and a block may be cut into many batches.
        await trio.lowlevel.checkpoint()

    async def _wait_changed(self) -> None:
        with self._stream.blocked_on(StallReason.CREDIT):
            with trio.move_on_at(self._sent_at + self._limits.heartbeat_interval_s):
                await self._changed.wait()
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_WAITING_CREDIT)

    async def _send_heartbeat_if_due(self, state: pb.Heartbeat.State) -> None:
        if trio.current_time() < self._sent_at + self._limits.heartbeat_interval_s:
            return
        await self._send(
            pb.ScanResponse(
                heartbeat=pb.Heartbeat(
                    state=state, high_watermark=self._bucket.storage.log_end, rows=self._source.rows
                )
            )
        )

    async def _send(self, response: pb.ScanResponse) -> None:
        await self._stream.send(response.SerializeToString())
        self._sent_at = trio.current_time()
