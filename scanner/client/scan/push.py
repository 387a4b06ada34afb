"""The client of the push model: streams of one bucket's scan, one after another until it is complete.

`scanner.client.scan.push_receiver` knows what the responses mean, and how to go on.

Invariants:

1. A stream that fails is followed by another, as long as the failure may pass and attempts bring progress; what the
   consumer has or has waiting stays there, and credit for it goes to the newest stream.
2. All streams of a scan bear one id, so that the server ends one that it takes for living when it sees the next.
3. A batch comes whole or not at all. So after two streams in a row that began and brought nothing, smaller batches are
   asked for: a line that is always cut before a batch is through still brings the scan on. A stream that brings many of
   them is followed by one with larger ones, up to what was asked for in the first place.
4. A stream on which nothing comes, no heartbeat and no part of a message either, counts as failed after a while: what
   sits between may keep a connection alive behind which nobody is any more.
5. A scan of few rows is one call as any server-streaming one: its open goes out with all of its credit and the
   half-close, so the status comes with the end. If its rows take more than the credit, the server ends the stream with
   `DRAINED`, and the next one, which grants on, goes on there.
"""

from __future__ import annotations

import functools
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from scanner.client.connection import Lasting
from scanner.client.failures import translated
from scanner.client.scan.push_receiver import PushReceiver, ReceiverState
from scanner.client.scan.turns import Delivery
from scanner.errors import Draining, ScannerError, ServerUnavailable, TooManyFiles, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire import methods
from scanner.wire.seals import sealed
from transport import TransportError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.client.connection import Connection
    from scanner.client.retries import Attempts
    from scanner.client.scan.batch_queue import HandOff
    from scanner.client.scan.statistics import BucketProgress
    from transport import Stream

_STREAM_ID_BYTES: Final = 16
_BATCH_BYTES_USUAL: Final = 2 << 20
"""What a server that is asked for no size makes of the rows, more or less."""
_BATCH_BYTES_LEAST: Final = 16 << 10
_NO_PLACE: Final = (TooManyScans, TooManyFiles)
"""What refuses a bucket of a tail, whatever the others bring: they do not end, and keep the places that there are."""
_BATCHES_TO_GROW: Final = 16
"""Smaller batches that one stream has brought when larger ones are tried again: by then it has carried one of them."""
_HEARTBEATS_MISSED_MAX: Final = 3
_SILENCE_S_MIN: Final = 60.0
"""Also where the server beats faster: it may be busy, and reopening a scan may take it a while."""
_SILENCE_GRACE_S: Final = 5.0
"""Once more, for what has come but was not looked at, because our own process was busy or stopped."""


def demand_message(bytes_limit: int) -> bytes:
    """The request that grants credit up to `bytes_limit`, cumulative message bytes."""
    return sealed(pb.ScanRequest(demand=pb.Demand(bytes_limit=bytes_limit)).SerializeToString())


class BucketReceiver:
    """Scans one bucket by push, into the hand-off. For one task.

    Args:
        connection: To the server.
        scan_open: What to ask for.
        receiver: Fresh; its credit is the window, and it tells `attempts` of progress.
        progress: Counters to keep.
        hand_off: Takes the batches.
        attempts: Fresh; a sibling of those of the other buckets.
        what: Names the scan in errors.
        lasting: Whether the scan does not end by itself.
        one_call: Whether the rows are thought to be so few that the credit covers them.
        batches_per_stream: For tests: cut each stream after so many batches, and go on.
    """

    def __init__(
        self,
        connection: Connection,
        scan_open: pb.ScanOpen,
        receiver: PushReceiver,
        progress: BucketProgress,
        hand_off: HandOff,
        attempts: Attempts,
        what: str,
        *,
        lasting: bool,
        one_call: bool = False,
        batches_per_stream: int | None,
    ) -> None:
        self._lasting = lasting
        self._one_call = one_call
        """Whether the next stream is half-closed with its open; only the first one may be."""
        self._connection = connection
        self._scan_open = pb.ScanOpen()
        self._scan_open.CopyFrom(scan_open)
        self._scan_open.stream_id = secrets.token_bytes(_STREAM_ID_BYTES)
        self._batch_bytes_wanted = scan_open.batch_bytes_max
        self._cuts = 0
        """Streams in a row that began, were cut and brought nothing."""
        self._batches = 0
        """What the newest stream has brought."""
        self._receiver = receiver
        self._progress = progress
        self._hand_off = hand_off
        self._attempts = attempts
        self._what = what
        self._batches_per_stream = batches_per_stream
        self._stream: Stream | None = None
        """The newest stream, while it is open and credit can be granted on it."""

    async def run(self) -> None:
        """Receive the whole scan.

        Raises:
            ScannerError: The scan failed in a way that does not pass, or did not in as many attempts as there are.
            trio.ClosedResourceError: The client was left.

        Waits:
            For the scan's end, through reconnections and the delays before them. Never for the consumer: what it has
            to hold is bounded by the credit.

        Cancellation:
            Resets the stream.
        """
        while self._receiver.state is not ReceiverState.ENDED:
            one_call = self._one_call
            try:
                await self._receive_stream()
            except ScannerError as error:
                failure = error
            else:
                continue
            began = self._receiver.take_failure(failure)
            if not self._receiver.resumable:
                raise failure
            if self._receiver.columns.asked_too_early(failure):
                continue
            if began and one_call and isinstance(failure, Draining):
                continue  # The credit is spent: no failure.
            alone = self._lasting and isinstance(failure, _NO_PLACE)
            await self._attempts.wait_retry(failure, alone=alone)
            # A server that is away, or refuses, says nothing of what its lines carry.
            if began:
                self._cuts = 0 if self._batches else self._cuts + 1
                if min(self._cuts, self._attempts.failed) > 1:
                    self._ask_for_smaller_batches()

    def _ask_for_smaller_batches(self) -> None:
        asked = min(self._scan_open.batch_bytes_max or _BATCH_BYTES_USUAL, _BATCH_BYTES_USUAL)
        self._scan_open.batch_bytes_max = min(asked, max(asked // 2, _BATCH_BYTES_LEAST))

    def _ask_for_larger_batches(self) -> None:
        larger, wanted = 2 * self._scan_open.batch_bytes_max, self._batch_bytes_wanted
        self._scan_open.batch_bytes_max = wanted if larger >= (wanted or _BATCH_BYTES_USUAL) else larger

    async def _receive_stream(self) -> None:
        """Receive one stream, to the scan's end or to where we cut it ourselves."""
        with translated(f"the scan of {self._what}"):
            # A long line holds as much as the credit allows; HTTP/2's window is not to be the narrower of the two.
            window_bytes = self._receiver.credit.window_bytes_max
            lasting = Lasting.FOR_EVER if self._lasting else Lasting.AS_ITS_USER_WANTS
            async with (
                self._connection.client(lasting=lasting) as client,
                client.open_stream(methods.SCAN, window_bytes=window_bytes) as stream,
            ):
                self._progress.requests += 1
                request = self._receiver.begin_stream(self._scan_open)
                try:
                    await stream.send(sealed(pb.ScanRequest(open=request).SerializeToString()))
                    # In one write with the open: no row comes without credit.
                    if self._one_call:
                        self._one_call = False
                        self._progress.credit_messages += 1
                        stream.send_last(demand_message(self._receiver.credit.grant_nowait()))
                    else:
                        self._stream = stream
                        self._grant()
                    await self._receive_all(stream)
                finally:
                    self._stream = None
                    stalls = self._receiver.server_stalls or stream.peer_stalls
                    if stalls is not None:
                        self._progress.add_server_stalls(stalls)

    async def _receive_all(self, stream: Stream) -> None:
        self._batches, more = 0, True
        while more:
            # One scope for many messages: nearly no time limit on one of them is ever reached.
            with trio.CancelScope() as silence:
                while more:
                    arrived_bytes = stream.arrived_bytes
                    silence.deadline = trio.current_time() + self._silence_s
                    more = self._take(await stream.receive())
            # Over a slow line a message takes as long as it does.
            if silence.cancelled_caught and stream.arrived_bytes == arrived_bytes:
                with trio.move_on_after(_SILENCE_GRACE_S) as grace:
                    more = self._take(await stream.receive())
                if grace.cancelled_caught:
                    raise ServerUnavailable(
                        f"nothing came during the scan of {self._what} for {self._silence_s:g} s, no heartbeat either"
                    )
        if self._receiver.state is ReceiverState.ENDED:
            stream.leave()  # The scan is complete, whatever the status is.

    def _take(self, message: Buffer | None) -> bool:
        """Take a message, or None for the end of the stream; whether to receive on."""
        receiver = self._receiver
        if message is None:
            receiver.end_of_stream()
            return False
        taken = receiver.receive(message)
        if taken is not None:
            self._hand_off.put(
                Delivery(
                    self._progress.bucket,
                    taken.batch,
                    taken.size,
                    functools.partial(self._consume, taken.size),
                    taken.position,
                    taken.snapshot_end,
                    taken.commit_time_floor_us,
                    taken.behind,
                    self._scan_open.group_epoch,
                )
            )
            self._batches += taken.batch.num_rows > 0
        if receiver.state is ReceiverState.ENDED or self._is_to_be_cut:
            return False
        reduced = self._scan_open.batch_bytes_max != self._batch_bytes_wanted
        if reduced and self._batches >= _BATCHES_TO_GROW and receiver.resumable:
            self._ask_for_larger_batches()
            return False
        return True

    def _consume(self, size: int) -> None:
        self._receiver.credit.consume(size, keeps_up=self._hand_off.waits)
        self._grant()

    @property
    def _silence_s(self) -> float:
        return max(_SILENCE_S_MIN, _HEARTBEATS_MISSED_MAX * self._receiver.heartbeat_s)

    @property
    def _is_to_be_cut(self) -> bool:
        limit = self._batches_per_stream
        return limit is not None and self._batches >= limit and self._receiver.resumable

    def _grant(self) -> None:
        """Send the limit, if it has risen and there is a stream. That one may be over: its receiving side tells why.

        It does not wait for room: what is consumed came under limits that have gone out, and each rise is a fourth of
        the window, so no more than a few wait at a time.
        """
        if self._stream is None:
            return
        with suppress(trio.WouldBlock, TransportError):
            self._stream.send_at_once(demand_message(self._receiver.credit.grant_nowait()))
            self._progress.credit_messages += 1
