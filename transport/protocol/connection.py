"""One end of an HTTP/2 connection that carries gRPC calls: bytes and `now` in, events and bytes out.

No clock, socket, task or randomness. A shell fills `buffers`, reports with `bytes_received`, reads `events`, writes
what `data_to_send` hands out, and calls `handle_deadline` when `next_deadline` has come. Verbs are synchronous; one
that raises LocalProtocolError has changed nothing. After ConnectionFailed nothing more is received, and what is left to
send explains the end to the peer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import h2.events

from transport.errors import (
    CallFailed,
    ConnectionLost,
    ErrorCode,
    LocalProtocolError,
    MessageRefused,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    StreamReset,
    TransportError,
    error_code_name,
)
from transport.protocol import calls, frames
from transport.protocol.abuse import Budgets, Cost
from transport.protocol.control import ControlPlane, initial_window_change
from transport.protocol.events import (
    ConnectionFailed,
    Event,
    GoawayReceived,
    RequestReceived,
    StreamClosed,
    StreamReadable,
    StreamsAvailable,
    StreamWritable,
)
from transport.protocol.flow_control import ReceiveWindow
from transport.protocol.inbound import Inbound
from transport.protocol.liveness import Liveness
from transport.protocol.outbound import Outbound
from transport.protocol.reader import FrameReader
from transport.protocol.state import SENDABLE, StreamInput, StreamState
from transport.protocol.stream import Buffer, StreamCore

if TYPE_CHECKING:
    from transport.config import TransportConfig

_CLOSED_REMEMBERED: Final = 1_000
"""Ids of closed streams whose manner of closing is kept, to judge late frames by."""
_ALLOCATE_BYTES_MIN: Final = 32 * 1024
_GRACE_PING: Final = b"weir-bye"
_ALIVE_PING: Final = b"weir-liv"


class ConnectionCore:
    """The state of one connection.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        now: Seconds of the shell's clock.
        allocate: Makes the writable memory of one long message; the consumer receives that very object.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        client: bool,
        now: float,
        allocate: Callable[[int], Any] = bytearray,
    ) -> None:
        self.config = config
        self.client = client
        self.streams: dict[int, StreamCore] = {}
        self.failure: TransportError | None = None
        self.goodbye = ""
        """What the peer's GOAWAY said, if there was one."""
        self.receive_window = ReceiveWindow(max(65_535, config.connection_window_bytes))
        self.outbound = Outbound(config, finish=self._finish, sent=self._count_sent, room=self._tell_writable)
        self._allocate = allocate
        self._control = ControlPlane(config, client=client)
        self._inbound = Inbound(self, 2 * config.header_list_bytes_max)
        self._reader = FrameReader(config, self._inbound, expect_preface=not client)
        self._budgets = Budgets(now)
        self._liveness = Liveness(config, now)
        self._now = now
        self._events: list[Event] = []
        self._closed: OrderedDict[int, bool] = OrderedDict()  # stream id -> whether we reset it
        self._highest_inbound = 0
        self._initial_receive_bytes = 65_535  # what the peer goes by until it has our SETTINGS
        self._draining = False
        self._refuse_above: int | None = None
        self.outbound.control(self._control.preface)
        if (extra := config.connection_window_bytes - 65_535) > 0:
            self.outbound.control(frames.window_update(0, extra))

    # ------------------------------------------------------------------ bytes and time

    def buffers(self) -> list[memoryview]:
        """Memory for the next octets from the peer, in this order; valid until `bytes_received`."""
        return self._reader.buffers()

    def bytes_received(self, size: int, now: float) -> None:
        """Take octets that were written into `buffers`; what they mean is in `events`."""
        self._now = now
        self._liveness.heard(now)
        if self.failure is not None:
            return
        try:
            self._reader.advance_untrusted(size)
            self.outbound.check_backlog_untrusted()
        except RemoteProtocolError as error:
            self.fail(error, error.code)

    def receive_data(self, data: Buffer, now: float) -> list[Event]:
        """Take octets of any amount, copied; for shells and tests that have them already."""
        view = memoryview(data)
        while len(view) and self.failure is None:
            filled = 0
            for room in self.buffers():
                take = min(len(room), len(view))
                room[:take] = view[:take]
                view = view[take:]
                filled += take
            self.bytes_received(filled, now)
        return self.events()

    def events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    @property
    def sendable(self) -> bool:
        """Whether `data_to_send` has anything now."""
        return self.outbound.pending

    def data_to_send(self, size: int) -> list[Buffer]:
        """About `size` octets for the peer, as buffers to be written in order; they are handed out once."""
        return self.outbound.take(size)

    def next_deadline(self) -> float:
        """When `handle_deadline` is due; infinity: never."""
        return self._liveness.next_deadline()

    def handle_deadline(self, now: float) -> None:
        """Do what time demands: ask whether the peer lives, or give it up."""
        self._now = now
        if self.failure is not None:
            return
        if why := self._liveness.expired(now):
            self.fail(ConnectionLost(f"peer given up: {why}"), ErrorCode.NO_ERROR)
        elif self._liveness.ping_due(now):
            self.outbound.control(self._control.ping(_ALIVE_PING))

    # ------------------------------------------------------------------ calls

    @property
    def can_open(self) -> bool:
        """Whether the peer takes one more stream now (its SETTINGS are known, its limit is not reached)."""
        return self._inbound.settings_received and len(self.streams) < self._control.peer_streams_max

    @property
    def closing(self) -> bool:
        """Whether new streams are refused: the connection failed, or an end of it says goodbye."""
        return self.failure is not None or self._refuse_above is not None or self._draining

    def open_stream(self, headers: calls.Headers) -> StreamCore:
        """Open a call; see `calls.request_headers`.

        Raises:
            LocalProtocolError: This is a server, the headers are illegal, or all stream ids are used up.
            StreamRefused: The peer takes no new streams; nothing was sent.
        """
        if not self.client:
            raise LocalProtocolError("a server opens no streams")
        if self.failure is not None:
            raise ConnectionLost(str(self.failure)) from self.failure
        if self.closing:
            raise StreamRefused("the peer takes no new streams on this connection")
        stream_id = self._control.next_stream_id()
        frame = self._control.send_headers(stream_id, headers, end_stream=False)
        self.outbound.control(frame)
        stream = self._new_stream(stream_id)
        stream.headers_sent = True
        return stream

    def send_message(self, stream: StreamCore, parts: Sequence[Buffer]) -> int:
        """Queue one message, its payload being `parts` one after another; see `StreamCore.queue_message`."""
        stream.check_sendable()
        if not stream.headers_sent:
            self._respond(stream)
        size = stream.queue_message(parts)
        self.outbound.schedule(stream)
        return size

    def end_stream(self, stream: StreamCore) -> None:
        """Half-close a client's call after what is queued. Does nothing if that was asked before."""
        if stream.end_requested or stream.state not in SENDABLE:
            return
        stream.end_requested = True
        self.outbound.schedule(stream)

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
        self.outbound.schedule(stream)

    def expect_message(self, stream: StreamCore) -> None:
        """Somebody waits for the next message: a StreamReadable will tell, and a partial message is credited."""
        stream.expecting = True
        self.credit(stream)

    def credit(self, stream: StreamCore) -> None:
        """Announce what was consumed of a stream, if it is worth a frame."""
        if size := stream.creditable():
            self.credit_stream(stream, size)

    def reset(self, stream: StreamCore, code: int = ErrorCode.CANCEL) -> None:
        """End a stream at once; queued and unread messages are dropped. Does nothing if it is over."""
        if stream.state is not StreamState.CLOSED:
            self._reset(stream, code, StreamReset(code, by_peer=False))

    def drain(self) -> None:
        """Say goodbye: refuse new streams, let the running ones finish (two-phase GOAWAY, RFC 9113 section 6.8)."""
        if self._draining or self.failure is not None:
            return
        self._draining = True
        if self.client:
            self.outbound.control(frames.goaway(0, ErrorCode.NO_ERROR))
            return
        self.outbound.control(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR))
        self.outbound.control(self._control.ping(_GRACE_PING))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, message: str = "closed") -> None:
        """End the connection at once; every stream fails. A GOAWAY is left to send."""
        if self.failure is None:
            self.fail(ConnectionLost(message), code)

    def lost(self, error: TransportError) -> None:
        """The socket is gone: every stream fails, and nothing is left to send."""
        if self.failure is None:
            if self.goodbye:
                error = ConnectionLost(f"{error} (the peer had said {self.goodbye})")
            self.fail(error, None)
        self.outbound.discard()

    # ------------------------------------------------------------------ for the gate

    def spend_untrusted(self, cost: Cost) -> None:
        """Pay for a frame; RemoteProtocolError if the peer sends too many."""
        self._budgets.spend_untrusted(cost, self._now)

    def header_block_progress(self, *, ended: bool) -> None:
        """Start or stop the clock on a header block."""
        self._liveness.header_block(ended=ended, now=self._now)

    def credit_connection(self, size: int) -> None:
        """Give connection credit (F5: on receipt)."""
        if increment := self.receive_window.credit(size):
            self.outbound.control(frames.window_update(0, increment))

    def credit_stream(self, stream: StreamCore, size: int) -> None:
        """Give stream credit; a peer that has ended, or that we do not hear any more, needs none."""
        increment = stream.receive_window.credit(size)
        if increment and not stream.remote_ended and stream.state is not StreamState.CLOSED:
            self.outbound.control(frames.window_update(stream.stream_id, increment))

    def stream_received(self, stream: StreamCore) -> None:
        """Payload came: tell who waits, or credit the part of a message that somebody waits for."""
        if not stream.expecting:
            return
        if stream.inbox:
            self._tell_readable(stream)
        else:
            self.credit(stream)

    def data_without_stream_untrusted(self, stream_id: int) -> None:
        """Judge DATA on a stream that is not open (F3; sections 5.1 and 6.1)."""
        self.check_not_idle_untrusted(stream_id, "DATA")
        reset_by_us = self._closed.get(stream_id)
        if reset_by_us:
            return  # it was on its way when we reset the stream
        if reset_by_us is False:
            raise RemoteProtocolError(f"DATA on closed stream {stream_id}", ErrorCode.STREAM_CLOSED)
        self.reset_by_id(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a forgotten stream")

    def check_not_idle_untrusted(self, stream_id: int, what: str) -> None:
        """Raise if a stream was never opened (section 5.1, idle)."""
        odd = bool(stream_id & 1)
        limit = self._control.next_stream_id() - 1 if self.client else self._highest_inbound
        if not odd or stream_id > limit:
            raise RemoteProtocolError(f"{what} on idle stream {stream_id}")

    def fail_stream(self, stream: StreamCore, code: ErrorCode, message: str) -> None:
        """A stream error of the peer's making: reset it; the connection goes on."""
        self.spend_untrusted(Cost.RESET)
        self._reset(stream, code, RemoteProtocolError(message, code, stream.stream_id))

    def reset_by_id(self, stream_id: int, code: ErrorCode, message: str) -> None:
        """A stream error on a stream that may not exist any more."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.fail_stream(stream, code, message)
            return
        self.spend_untrusted(Cost.RESET)
        header = frames.pack_header(0, 4, frames.RST_STREAM, 0, stream_id)
        self.outbound.control(header + int(code).to_bytes(4, "big"))

    def refuse_message(self, stream: StreamCore, error: MessageRefused) -> None:
        """A message that we do not take: a server says so with a status, a client cancels."""
        refusal = CallFailed(error.status, error.message)
        if self.client:
            self._reset(stream, ErrorCode.CANCEL, refusal)
            return
        stream.discard_outgoing()
        self.end_call(stream, error.status, error.message)
        stream.failure = refusal
        self._wake(stream)

    def end_by_data_untrusted(self, stream: StreamCore) -> None:
        """END_STREAM came on DATA: h2 is told, and answers with its StreamEnded event."""
        self.to_h2_untrusted(frames.data_header(stream.stream_id, 0, frames.FLAG_END_STREAM))

    def to_h2_untrusted(self, frame: bytes) -> None:
        """Let h2 have a frame, queue its answers, act on its events."""
        self._dispatch(self._control.receive_frame_untrusted(frame))

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer says goodbye: our newer streams were not processed, the others go on."""
        self._refuse_above = last_stream_id
        self._events.append(GoawayReceived(last_stream_id, code, debug))
        if self.client:
            for stream in [s for s in self.streams.values() if s.stream_id > last_stream_id]:
                self._close(
                    stream, StreamRefused("the peer went away before it processed the call"), reset_by_us=True
                )
        self.goodbye = f"{error_code_name(code)} {debug[:200].decode('utf-8', 'replace')}".rstrip()

    # ------------------------------------------------------------------ h2's events

    def _dispatch(self, events: list[h2.events.Event]) -> None:
        self.outbound.control(self._control.replies())
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        assert stream_id is not None
        self._highest_inbound = max(self._highest_inbound, stream_id)
        self._control.ignore_content_length(stream_id)
        if self.closing or len(self.streams) >= self.config.streams_max:
            # Refused streams cost the peer as much as reset ones: otherwise a flood of them is free.
            self.spend_untrusted(Cost.RESET)
            self.outbound.control(self._control.reset(stream_id, ErrorCode.REFUSED_STREAM))
            self._remember(stream_id, reset_by_us=True)
            return
        stream = self._new_stream(stream_id)
        stream.headers_received = True
        headers = event.headers or []
        stream.body_bytes_announced = calls.content_length(headers)
        try:
            head = calls.parse_request(headers)
        except calls.RequestUnsupported as refusal:
            stream.headers_sent = stream.end_requested = True
            stream.trailers_to_send = refusal.headers
            self.outbound.schedule(stream)
            return
        self._events.append(RequestReceived(stream, head))

    def _on_response(self, event: h2.events.ResponseReceived) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        self._control.ignore_content_length(stream.stream_id)
        headers = event.headers or []
        stream.headers_received = True
        stream.body_bytes_announced = calls.content_length(headers)
        failed = calls.parse_response(headers)
        if event.stream_ended is not None:  # headers and trailers in one
            stream.status = failed or calls.parse_trailers(headers)
            stream.status_received = True
        elif failed is not None:
            self._reset(stream, ErrorCode.CANCEL, failed)

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is not None and self.client:
            stream.status = calls.parse_trailers(event.headers or [])
            stream.status_received = True

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        announced = stream.body_bytes_announced
        if announced is not None and announced != stream.body_bytes:
            message = f"content-length is {announced}, and {stream.body_bytes} octets came"
            self.fail_stream(stream, ErrorCode.PROTOCOL_ERROR, message)
            return
        if not stream.advance(StreamInput.RECEIVE_END):
            return
        stream.remote_ended = True
        if self.client and not stream.status_received:
            stream.status = CallFailed(StatusCode.INTERNAL, "the answer ended without trailers")
        elif stream.assembler.partial_bytes and stream.status is None:
            stream.status = CallFailed(StatusCode.INTERNAL, "the peer ended in the middle of a message")
        self._tell_readable(stream)
        if stream.state is StreamState.CLOSED:
            self._close(stream, None, reset_by_us=False)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        code = int(event.error_code or 0)
        failure: TransportError = StreamReset(code, by_peer=event.remote_reset)
        if code == ErrorCode.REFUSED_STREAM and event.remote_reset:
            failure = StreamRefused("the peer refused the stream")
        self._close(stream, failure, reset_by_us=not event.remote_reset)

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        self._liveness.settings_seen()
        self.outbound.set_peer_frame_bytes_max(self._control.peer_frame_bytes_max)
        if delta := initial_window_change(event):
            for stream in self.streams.values():
                stream.send_window.shift_untrusted(delta)
                self.outbound.schedule(stream)  # F7
        self._events.append(StreamsAvailable())

    def _on_settings_acknowledged(self, _event: h2.events.SettingsAcknowledged) -> None:
        self._liveness.settings_acknowledged()
        self._initial_receive_bytes = self.config.stream_window_bytes
        for stream in self.streams.values():
            stream.receive_window.resize(self._initial_receive_bytes)

    def _on_ping_acknowledged(self, event: h2.events.PingAckReceived) -> None:
        if event.ping_data == _GRACE_PING and self._draining:
            self.outbound.control(frames.goaway(self._highest_inbound, ErrorCode.NO_ERROR))

    # ------------------------------------------------------------------ inside

    def _new_stream(self, stream_id: int) -> StreamCore:
        stream = StreamCore(
            stream_id,
            send_window_bytes=self._control.peer_stream_window_bytes,
            receive_window_bytes=self._initial_receive_bytes,
            message_bytes_max=self.config.message_bytes_max,
            allocate=self._allocate,
            allocate_bytes_min=_ALLOCATE_BYTES_MIN,
        )
        self.streams[stream_id] = stream
        return stream

    def _respond(self, stream: StreamCore) -> None:
        self.outbound.control(
            self._control.send_headers(stream.stream_id, calls.response_headers(), end_stream=False)
        )
        stream.headers_sent = True

    def _finish(self, stream: StreamCore) -> bytes:
        """All octets are framed: frame the end, and end the peer's side too if we have answered."""
        fields = stream.trailers_to_send
        if self.client or fields is None:
            frame = self._control.send_end(stream.stream_id)
        else:
            frame = self._control.send_headers(stream.stream_id, fields, end_stream=True)
        stream.advance(StreamInput.SEND_END)
        if stream.state is not StreamState.CLOSED and not self.client:
            # The answer is complete; what the client may still send is of no use (section 8.1).
            frame += self._control.reset(stream.stream_id, ErrorCode.NO_ERROR)
            stream.advance(StreamInput.RESET)
            self._close(
                stream, stream.failure or StreamReset(ErrorCode.NO_ERROR, by_peer=False), reset_by_us=True
            )
        elif stream.state is StreamState.CLOSED:
            self._close(stream, stream.failure, reset_by_us=False)
        return frame

    def _reset(self, stream: StreamCore, code: int, failure: TransportError) -> None:
        self.outbound.control(self._control.reset(stream.stream_id, code))
        self._close(stream, failure, reset_by_us=True)
        stream.discard_received()

    def _close(self, stream: StreamCore, failure: TransportError | None, *, reset_by_us: bool) -> None:
        stream.advance(StreamInput.RESET)
        stream.failure = failure
        stream.discard_outgoing()
        if self.streams.pop(stream.stream_id, None) is not None:
            self._remember(stream.stream_id, reset_by_us=reset_by_us)
            self._events.append(StreamClosed(stream))
        self._wake(stream)
        if self.client:
            self._events.append(StreamsAvailable())

    def _remember(self, stream_id: int, *, reset_by_us: bool) -> None:
        self._closed[stream_id] = reset_by_us
        if len(self._closed) > _CLOSED_REMEMBERED:
            self._closed.popitem(last=False)

    def _wake(self, stream: StreamCore) -> None:
        self._tell_readable(stream)
        self._tell_writable(stream)

    def _tell_readable(self, stream: StreamCore) -> None:
        if stream.expecting:
            stream.expecting = False
            self._events.append(StreamReadable(stream))

    def _tell_writable(self, stream: StreamCore) -> None:
        if stream.sender_waiting:
            stream.sender_waiting = False
            self._events.append(StreamWritable(stream))

    def _count_sent(self, size: int) -> None:
        self._budgets.sent_bytes += size

    def fail(self, error: TransportError, code: ErrorCode | None) -> None:
        """End the connection: streams fail with ConnectionLost, and a GOAWAY with `code` is left to send."""
        self.failure = error
        self.outbound.discard()
        if code is not None:
            debug = str(error).encode()[:200]
            self.outbound.control(frames.goaway(self._highest_inbound, code, debug))
        for stream in list(self.streams.values()):
            lost = ConnectionLost(str(error))
            lost.__cause__ = error
            self._close(stream, lost, reset_by_us=False)
        self._events.append(ConnectionFailed(error))


_HANDLERS: Final[dict[type[h2.events.Event], Callable[[ConnectionCore, Any], None]]] = {
    h2.events.RequestReceived: ConnectionCore._on_request,
    h2.events.ResponseReceived: ConnectionCore._on_response,
    h2.events.TrailersReceived: ConnectionCore._on_trailers,
    h2.events.StreamEnded: ConnectionCore._on_end,
    h2.events.StreamReset: ConnectionCore._on_reset,
    h2.events.RemoteSettingsChanged: ConnectionCore._on_settings,
    h2.events.SettingsAcknowledged: ConnectionCore._on_settings_acknowledged,
    h2.events.PingAckReceived: ConnectionCore._on_ping_acknowledged,
}
"""What to do with h2's events; the others say nothing that we need."""
