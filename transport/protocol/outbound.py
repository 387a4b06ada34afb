"""What this end sends: verbs on streams become frames, in the order of `send_queue`.

Headers, messages, ends and resets of streams; PING and GOAWAY of the connection. A verb changes its stream and queues
frames, and never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpack import NeverIndexedHeaderTuple

from transport.errors import (
    AnswerCut,
    AnswerRefused,
    CallFailed,
    ErrorCode,
    LocalProtocolError,
    MessageRefused,
    RemoteProtocolError,
    StatusCode,
    StreamReset,
    TransportError,
)
from transport.protocol import calls, frames
from transport.protocol.abuse import Cost
from transport.protocol.events import CallGivenUp
from transport.protocol.send_queue import SendQueue
from transport.protocol.stalls import StallReason
from transport.protocol.state import SENDABLE, StreamInput, StreamState

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.abuse import Budgets
    from transport.protocol.clock import Clock
    from transport.protocol.control import ControlPlane
    from transport.protocol.counts import FrameCounts
    from transport.protocol.events import EventQueue
    from transport.protocol.header_frames import HeaderFrames
    from transport.protocol.stalls import WindowClock
    from transport.protocol.stream import Buffer, StreamCore
    from transport.protocol.stream_table import StreamTable


class Outbound:
    """The sending side of one connection.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        clock: Of the connection.
        events: Tell waiting senders of room, and receivers of refusals.
        budgets: Are earned by what is sent; a peer pays for the resets that its faults cost.
        counts: Of control frames.
        control: Makes PINGs.
        header_frames: Make HEADERS.
        table: Of the streams; a stream is closed here once both ends are sent, or at a reset.
        window_clock: Runs while the connection's send window is used up.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        client: bool,
        clock: Clock,
        events: EventQueue,
        budgets: Budgets,
        counts: FrameCounts,
        control: ControlPlane,
        header_frames: HeaderFrames,
        table: StreamTable,
        window_clock: WindowClock,
    ) -> None:
        self._client = client
        self._clock = clock
        self._events = events
        self._budgets = budgets
        self._counts = counts
        self._control = control
        self._header_frames = header_frames
        self._table = table
        self.queue = SendQueue(
            config,
            clock=clock,
            budgets=budgets,
            events=events,
            window_clock=window_clock,
            finish=self._finish,
        )

    # ------------------------------------------------------------------ verbs of the shell

    def open_stream(self, stream_id: int, fields: calls.Headers) -> None:
        """Send the header block that opens a call."""
        self.queue.own(self._headers(stream_id, fields, end_stream=False))

    def send_message(self, stream: StreamCore, parts: Sequence[Buffer]) -> int:
        """Queue one message, its payload being `parts` one after another; see `StreamCore.queue_message`."""
        size = stream.queue_message(parts)
        if not stream.headers_sent:
            self.queue.control(self._headers(stream.stream_id, calls.response_headers(), end_stream=False))
            stream.headers_sent = True
        self.queue.schedule(stream)
        return size

    def end_stream(self, stream: StreamCore) -> None:
        """Half-close a client's call after what is queued. Does nothing if that was asked before.

        Raises:
            LocalProtocolError: This is a server, which ends a call with a status.
        """
        if not self._client:
            raise LocalProtocolError("a server ends a call with a status", stream_id=stream.stream_id)
        if stream.end_requested or stream.state not in SENDABLE:
            return
        stream.end_requested = True
        self.queue.schedule(stream)

    def leave(self, stream: StreamCore) -> None:
        """Half-close a client's call, and let it end without anybody; one that takes too long is reset."""
        self.end_stream(stream)
        self._table.leave(stream)

    def end_call(
        self, stream: StreamCore, status: StatusCode, message: str = "", details: bytes = b""
    ) -> None:
        """Send a server's final status after what is queued. Does nothing if the stream is over."""
        if stream.end_requested or stream.state not in SENDABLE or stream.failure is not None:
            return
        fields = calls.trailers(status, message, details)
        stream.end_requested = True
        if stream.headers_sent:
            stream.trailers_to_send = fields
        else:
            stream.trailers_to_send = calls.response_headers() + fields
            stream.headers_sent = True
        stream.stalls.enter(StallReason.SOCKET, self._clock.now)  # until all of it is out
        self.queue.schedule(stream)

    def drop_unsent(self, stream: StreamCore) -> None:
        """Drop what is queued before a server's final status, which then needs no window. Not for status OK."""
        if stream.end_requested and stream.state in SENDABLE:
            stream.discard_outgoing()
            self.queue.schedule(stream)

    def reset(self, stream: StreamCore, code: int = ErrorCode.CANCEL) -> None:
        """End a stream at once; queued and unread messages are dropped. Does nothing if it is over."""
        if stream.state is not StreamState.CLOSED:
            # What a server resets, its peer has opened, and may open on and on without reading anything.
            queue = self.queue.own if self._client else self.queue.control
            queue(frames.reset(stream.stream_id, code))
            self._end(stream, StreamReset(code, by_peer=False))

    # ------------------------------------------------------------------ answers to the peer

    def reset_because(self, stream: StreamCore, code: int, failure: TransportError) -> None:
        """End an open stream at once, for what the peer has sent, with a failure for its reader."""
        self.queue.control(frames.reset(stream.stream_id, code))
        self._end(stream, failure)

    def _end(self, stream: StreamCore, failure: TransportError) -> None:
        self._table.close(stream, failure, reset_by_us=True)
        stream.discard_received()

    def fail_stream_untrusted(self, stream: StreamCore, code: ErrorCode, message: str) -> None:
        """Reset a stream for the peer's fault, and make the peer pay; the connection goes on.

        An answer can be asked for again, as one that is cut can.

        Raises:
            RemoteProtocolError: The peer has made too many such faults.
        """
        self._budgets.spend_untrusted(Cost.RESET)
        failure: TransportError = RemoteProtocolError(message, code, stream.stream_id)
        if self._client:
            failure = AnswerCut(StatusCode.INTERNAL, f"the answer is malformed: {message}")
        self.reset_because(stream, code, failure)

    def fail_by_id_untrusted(self, stream_id: int, code: ErrorCode, message: str) -> None:
        """As `fail_stream_untrusted`, for a stream that may be closed and forgotten.

        Raises:
            RemoteProtocolError: As there, or the stream was never opened.
        """
        stream = self._table.open.get(stream_id)
        if stream is not None:
            self.fail_stream_untrusted(stream, code, message)
            return
        self._table.check_not_idle_untrusted(stream_id, message)
        self._budgets.spend_untrusted(Cost.RESET)
        self.queue.control(frames.reset(stream_id, code))

    def refuse_message(self, stream: StreamCore, error: MessageRefused) -> None:
        """Refuse a message that we do not take: a server says so with a status, a client cancels."""
        if self._client:
            failure: CallFailed = AnswerRefused(error.status, error.message)
            if error.status is StatusCode.UNIMPLEMENTED:  # Compressed: at a client gRPC calls it so.
                failure = AnswerRefused(StatusCode.INTERNAL, error.message)
            elif error.status is StatusCode.INTERNAL:
                # It is no message: Apache httpd puts a page behind what it has of an answer that is cut.
                failure = AnswerCut(error.status, f"the answer is malformed: {error.message}")
            self.reset_because(stream, ErrorCode.CANCEL, failure)
            return
        refusal = CallFailed(error.status, error.message)
        if not stream.end_requested:  # an answer that is complete already goes out as it is
            stream.discard_outgoing()
            self.end_call(stream, error.status, error.message)
            self._events.add(CallGivenUp(stream))
        stream.failure = refusal
        self._events.readable(stream)
        self._events.writable(stream)

    def answer_refused(self, stream: StreamCore) -> None:
        """Answer a request that is no call, once; does nothing if it is a call."""
        refusal = stream.refusal
        if refusal is None or stream.end_requested:
            return
        stream.headers_sent = stream.end_requested = True
        if refusal.body:
            self.queue.control(self._headers(stream.stream_id, refusal.headers, end_stream=False))
            stream.queue_octets(refusal.body)
        else:
            stream.trailers_to_send = refusal.headers
        self.queue.schedule(stream)

    # ------------------------------------------------------------------ the connection

    def ping(self, payload: bytes) -> None:
        """Send a PING of 8 octets."""
        self._counts.pings_sent += 1
        self.queue.control(self._control.ping(payload))

    def goaway(self, last_stream_id: int, code: ErrorCode, debug: bytes = b"") -> None:
        """Send a GOAWAY; `debug` is for people."""
        self._counts.goaways_sent += 1
        self.queue.control(frames.goaway(last_stream_id, code, debug))

    def cut_short(self) -> None:
        """Drop all DATA and reset every open stream; the table keeps them."""
        self.queue.discard_data()
        for stream_id in self._table.open:
            self.queue.control(frames.reset(stream_id, ErrorCode.CANCEL))

    # ------------------------------------------------------------------ frames

    def _headers(self, stream_id: int, fields: calls.Headers, *, end_stream: bool) -> bytes:
        frame = self._header_frames.make(stream_id, fields, end_stream=end_stream)
        self._budgets.sent_frames += 1
        return frame

    def _finish(self, stream: StreamCore) -> bytes:
        """All octets are framed: frame the end, and end the peer's side too if we have answered."""
        fields = stream.trailers_to_send
        if self._client or fields is None:
            frame = frames.data_header(stream.stream_id, 0, frames.FLAG_END_STREAM)
            self._budgets.sent_frames += 1
        else:
            if stream.refusal is None:
                times = stream.stalls.times(self._clock.now)
                fields = [*fields, NeverIndexedHeaderTuple(calls.STALLS_FIELD, times.encode())]
            frame = self._headers(stream.stream_id, fields, end_stream=True)
        stream.advance(StreamInput.SEND_END)
        if stream.state is not StreamState.CLOSED and not self._client:
            # The answer is complete; what the client may still send is of no use (section 8.1).
            frame += frames.reset(stream.stream_id, ErrorCode.NO_ERROR)
            failure = stream.failure or StreamReset(ErrorCode.NO_ERROR, by_peer=False)
            self._table.close(stream, failure, reset_by_us=True)
        elif stream.state is StreamState.CLOSED:
            self._table.close(stream, stream.failure, reset_by_us=False)
        return frame
