"""One push scan on one stream: what the client says, what goes out, and when.

Invariants:

1. Sent minus limit is at most one row's message: a batch goes out only while sent < limit, and one of more than
   one row fits into the credit left.
2. Storage is read only while there is credit, and one decoded block is held at most.
3. Whatever the scan does, something is sent within the heartbeat interval, unless the peer's window is shut.
4. Data ends with `ScanEnd` or with an error, never otherwise.
5. Between two steps of the source every other task gets its turn.
6. A scan that could send nothing for the park time, for want of credit or window, holds no iterator, no snapshot and
   no rows, until it can send again. It never fails for being slow.
7. Every batch, heartbeat and end carries the token that continues the scan right after it, and so does an error after
   which the scan can go on.

This module knows no storage and no tables.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from scanner.data.digest import checksum
from scanner.errors import ScannerError, SlowConsumer, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.push_requests import RequestSide
from scanner.server.scan.tokens import TOKEN_OVERHEAD_BYTES
from scanner.sources.interface import EndReason, Source
from scanner.tasks import run_with_companion
from scanner.wire.batches import encode_batch, encode_row_batch, encode_schema, row_batch_overhead
from transport import StallReason

if TYPE_CHECKING:
    from scanner.server.tables.bucket import OpenScan, ServedBucket
    from transport import ServerStream


_GOODBYE_S: Final = 1.0
"""How long the call of a client that has not half-closed outlives its scan's end."""
_TURNS_OF_OTHERS: Final = 8
"""Behind each demand."""
_REOPEN_INTERVAL_S: Final = 1.0
"""How often a parked scan that finds no room for its snapshot looks again."""
_STEP_BYTES_MIN: Final = 64 * 1024
"""Stored bytes of a first step however little the credit is: less would be all overhead."""
_STEP_BYTES_MAX: Final = 1 << 30
"""More than any source reads in one go."""
_ORDINAL_MAX: Final = 2**64 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PushLimits:
    """What one push scan keeps to."""

    payload_bytes_max: int
    """Arrow payload of a batch, above 0; a single row may be larger."""
    rows_max: int
    """Rows of a batch, above 0."""
    heartbeat_interval_s: float
    """The longest silence."""
    park_after_s: float
    """The longest time for which storage is held and nothing can be sent."""


class PushScan:
    """Drives one source into one stream.

    Args:
        stream: Its open has been received.
        scan: Not closed by this class.
        bucket: Of the scan, for its high watermark.
        limits: To be kept.
        history: The history of the bucket that the scan's state is of.
        token: Makes the token that continues the scan where it stands.
        reopen: Opens the scan again that was parked. Raises TooManyScans where there is no room for it now.
    """

    def __init__(
        self,
        stream: ServerStream,
        scan: OpenScan[Any],
        bucket: ServedBucket,
        limits: PushLimits,
        *,
        history: bytes,
        token: Callable[[], bytes],
        reopen: Callable[[], Awaitable[None]],
    ) -> None:
        self._stream = stream
        self._scan = scan
        self._bucket = bucket
        self._limits = limits
        self._history = history
        self._token = token
        self._reopen_scan = reopen
        self._requests = RequestSide()
        self._changed = trio.Event()
        self._first_row: int = scan.source.rows
        self._sent_at = trio.current_time()
        self._stalled_at: float | None = None
        """Since when nothing could be sent; None: something can."""
        self._step_bytes = _STEP_BYTES_MIN
        """Stored bytes of the next step, if the credit is not more. For who asks for little and takes nothing little is
        read; who goes on taking gets steps as large as anybody's."""
        self._overheads: dict[int, int] = {}
        self._scope = trio.CancelScope()
        self.end_reason: EndReason | None = None
        """Why the scan came to its explicit end; None until then."""

    @property
    def _source(self) -> Source:
        """Another one after each park."""
        source: Source = self._scan.source
        return source

    @property
    def rows(self) -> int:
        """Rows delivered on this stream so far; those before a resume came on another one."""
        return self._source.rows - self._first_row

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
        try:
            with self._scope:
                await run_with_companion(self._send_all, self._receive_all)
        except ScannerError as error:
            last_word = self.last_word(error)
            if last_word is error:
                raise
            raise last_word from error
        if self._scope.cancelled_caught and self._scan.ended_by is not None:
            raise self.last_word(self._scan.ended_by)

    def stop(self, error: ScannerError) -> None:
        """End the scan with an error, whatever it is waiting for."""
        self._scan.end(error)

    def last_word(self, error: ScannerError) -> ScannerError:
        """The error as this scan's client gets it: with a token, if the scan can go on after it."""
        if error.resume_token or not (error.retriable or isinstance(error, SlowConsumer)):
            return error
        return type(error)(
            error.message,
            resume_token=self._token(),
            oldest_offset=error.oldest_offset,
            metadata={**error.metadata, "rows": str(self._source.rows)},
        )

    def _stop(self, _error: ScannerError) -> None:
        self._scope.cancel()

    async def _receive_all(self) -> None:
        credit = self._stream.credit
        # Beside the sending task, which does the stream's work: waiting here holds nothing up.
        while (message := await self._stream.receive(attributed=False)) is not None:
            self._requests.receive(message)
            raised = self._requests.limit is not None and credit.raise_limit(self._requests.limit)
            if raised or self._requests.draining:  # any other demand changes nothing, and costs nothing
                self._wake()
            # Receiving does not wait while something is there, and one DATA frame may have hundreds of demands. Nobody
            # needs more than one in a while: who floods us gets fewer turns than the others.
            for _ in range(_TURNS_OF_OTHERS):
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
                    row_ordinal=self._source.rows,
                    history=self._history,
                )
            )
        )
        while (reason := self._end_reason()) is None:
            if not self._stream.writable:
                await self._wait_writable()  # nothing is read for a peer that takes nothing
            elif not self._has_credit:
                await self._wait_changed()
            elif self._scan.parked:
                await self._reopen()
            elif self._source.pending_bytes:
                await self._send_batch()
            else:
                await self._step()
        self._scan.finish(linger=reason is EndReason.DRAINED)
        source = self._source
        await self._send(
            pb.ScanResponse(
                end=pb.ScanEnd(
                    reason=reason.value,
                    rows=source.rows,
                    digest=source.digest,
                    resume_token=self._token(),
                    stored_bytes=source.stored_bytes,
                )
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
        if not self._scan.parked and self._source.end is not None:
            return self._source.end
        if self._requests.draining and not (self._source.pending_bytes and self._has_credit):
            return EndReason.DRAINED
        if self._requests.half_closed and not self._has_credit:
            return EndReason.DRAINED
        return None

    async def _step(self) -> None:
        self._stalled_at = None
        with self._stream.blocked_on(StallReason.STORAGE):
            self._source.step(max(self._stream.credit.available, self._step_bytes))
        self._step_bytes = min(2 * self._step_bytes, _STEP_BYTES_MAX)
        await trio.lowlevel.checkpoint()
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)

    async def _send_batch(self) -> None:
        self._stalled_at = None
        rows_max, payload_max = self._limits.rows_max, self._limits.payload_bytes_max
        credit_left = self._stream.credit.available
        source = self._source
        batch = source.take(min(payload_max, credit_left - self._overhead(source.key_bytes_max)), rows_max)
        assert batch is not None  # Something is pending.
        payload = encode_batch(batch.rows)
        parts = encode_row_batch(
            batch.row_ordinal, batch.rows.num_rows, checksum(payload), payload, self._token()
        )
        await self._stream.send_counted(*parts)
        self._sent_at = trio.current_time()
        # Sending does not wait while the send buffer has room, and a block may be cut into many batches.
        await trio.lowlevel.checkpoint()

    def _overhead(self, key_bytes_max: int) -> int:
        """What a batch's message takes beside its payload, at most: its token has a key that no one knows yet."""
        known = self._overheads.get(key_bytes_max)
        if known is None:
            rows_max, payload_max = self._limits.rows_max, self._limits.payload_bytes_max
            token_max = TOKEN_OVERHEAD_BYTES + key_bytes_max
            known = row_batch_overhead(_ORDINAL_MAX, rows_max, payload_max, token_max)
            self._overheads = {key_bytes_max: known}  # the next batch mostly has the same bound
        return known

    async def _wait_writable(self) -> None:
        with trio.move_on_at(self._park_at()):
            await self._stream.wait_writable()
        self._park_if_due()

    async def _wait_changed(self) -> None:
        with self._stream.blocked_on(StallReason.CREDIT):
            with trio.move_on_at(min(self._heartbeat_at, self._park_at())):
                await self._changed.wait()
        self._park_if_due()
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_WAITING_CREDIT)

    def _park_at(self) -> float:
        """When to park, if nothing can be sent until then; the time runs from the first call after something could."""
        if self._stalled_at is None:
            self._stalled_at = trio.current_time()
        return math.inf if self._scan.parked else self._stalled_at + self._limits.park_after_s

    def _park_if_due(self) -> None:
        if trio.current_time() >= self._park_at():
            self._scan.park()
            self._step_bytes = _STEP_BYTES_MIN

    async def _reopen(self) -> None:
        with self._stream.blocked_on(StallReason.STORAGE):
            try:
                await self._reopen_scan()
            except TooManyScans:
                # It was let in once, and is not told to go for being slow: it waits for its turn.
                await trio.sleep(min(self._limits.heartbeat_interval_s, _REOPEN_INTERVAL_S))
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)

    @property
    def _heartbeat_at(self) -> float:
        return self._sent_at + self._limits.heartbeat_interval_s

    async def _send_heartbeat_if_due(self, state: pb.Heartbeat.State) -> None:
        if trio.current_time() < self._heartbeat_at or not self._stream.writable:
            return
        await self._send(
            pb.ScanResponse(
                heartbeat=pb.Heartbeat(
                    state=state,
                    resume_token=self._token(),
                    high_watermark=self._bucket.storage.log_end,
                    rows=self._source.rows,
                )
            )
        )

    async def _send(self, response: pb.ScanResponse) -> None:
        await self._stream.send(response.SerializeToString())
        self._sent_at = trio.current_time()
