"""What the peer says: header lists, ends and resets of streams, SETTINGS and PING; and what each changes here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import h2.events

from transport.errors import (
    AnswerCut,
    AnswerRefused,
    CallFailed,
    ErrorCode,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    StreamReset,
    TransportError,
)
from transport.protocol import calls, frames
from transport.protocol.abuse import Cost
from transport.protocol.control import initial_window_change
from transport.protocol.events import RequestReceived, StreamsAvailable
from transport.protocol.header_blocks import HeaderRules, Remembered
from transport.protocol.state import RECEIVABLE, StreamInput, StreamState
from transport.protocol.stream_table import Closed

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.abuse import Budgets
    from transport.protocol.control import ControlPlane
    from transport.protocol.events import EventQueue
    from transport.protocol.liveness import Liveness
    from transport.protocol.outbound import Outbound
    from transport.protocol.reader import Turn
    from transport.protocol.receive_windows import ReceiveWindows
    from transport.protocol.shutdown import Shutdown
    from transport.protocol.stream import StreamCore
    from transport.protocol.stream_table import StreamTable


class PeerEvents:
    """Acts on what the peer's frames mean.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        control: Is given SETTINGS and PING.
        table: Of the streams that the peer opens and ends.
        outbound: Answers, and follows the peer's SETTINGS.
        windows: Follow the acknowledgement of ours.
        shutdown: Knows whether requests are refused.
        liveness: Follows the handshake.
        budgets: Pay for what costs us work.
        turn: Of the reader; charged for work on all streams at once.
        events: Tell of requests, and of what can be read.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        client: bool,
        control: ControlPlane,
        table: StreamTable,
        outbound: Outbound,
        windows: ReceiveWindows,
        shutdown: Shutdown,
        liveness: Liveness,
        budgets: Budgets,
        turn: Turn,
        events: EventQueue,
    ) -> None:
        self._client = client
        self._rules = HeaderRules(client=client)
        self._head = Remembered(
            functools.partial(calls.parse_request, list_bytes_max=config.header_list_bytes_max)
        )
        self._streams_max = config.streams_max
        self._header_list_bytes_max = config.header_list_bytes_max
        self._control = control
        self._table = table
        self._outbound = outbound
        self._windows = windows
        self._shutdown = shutdown
        self._liveness = liveness
        self._budgets = budgets
        self._turn = turn
        self._events = events

    def receive_untrusted(self, frame: bytes) -> None:
        """Let h2 have a whole frame, queue its answers, act on its events.

        Raises:
            RemoteProtocolError: The connection cannot go on.
        """
        happened = self._control.receive_frame_untrusted(frame)
        self._outbound.queue.control(self._control.replies())
        for event in happened:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)

    def headers_untrusted(
        self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], *, end_stream: bool
    ) -> None:
        """Take a header list: a request, an answer's fields, or trailers (RFC 9113 section 8.1).

        What is malformed ends its stream alone (section 8.1.1): other calls share the connection.

        Raises:
            RemoteProtocolError: The list may not come now, or the peer has sent too many that are malformed; the
                connection cannot go on.
        """
        stream = self._table.open.get(stream_id)
        if stream is None:
            if self._client or stream_id <= self._table.highest_inbound:
                self._late_headers_untrusted(stream_id)
                return
            self._request_untrusted(stream_id, headers)
        elif stream.state not in RECEIVABLE:
            self._outbound.fail_stream_untrusted(stream, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        else:
            trailers = stream.headers_received
            try:
                self._check_untrusted(headers, trailers=trailers, end_stream=end_stream)
            except RemoteProtocolError as error:
                self._outbound.fail_stream_untrusted(stream, error.code, error.message)
            else:
                if trailers:
                    self._trailers(stream, headers)
                elif not _is_informational(headers):
                    self._response(stream, headers, end_stream=end_stream)
        if end_stream and (stream := self._table.open.get(stream_id)) is not None:
            self.ended_untrusted(stream)

    def _check_untrusted(
        self, headers: Sequence[tuple[bytes, bytes]], *, trailers: bool, end_stream: bool
    ) -> None:
        self._rules.check_untrusted(headers, response=not trailers, trailers=trailers)
        if trailers and not end_stream:
            raise RemoteProtocolError("trailers without END_STREAM")
        if not trailers and end_stream and _is_informational(headers):
            raise RemoteProtocolError("an informational response ends the stream")

    def _late_headers_untrusted(self, stream_id: int) -> None:
        """Judge HEADERS on a stream that is not open (section 5.1); even and idle ones are no stream of the peer."""
        self._table.check_not_idle_untrusted(stream_id, "HEADERS")
        if self._table.ignores(stream_id):
            return
        closed = self._table.closed.get(stream_id)
        if closed is None:
            if not self._table.forgets:
                raise RemoteProtocolError(f"HEADERS on stream {stream_id}, which was skipped")
        elif not closed.reset_by_peer:
            raise RemoteProtocolError(f"HEADERS on closed stream {stream_id}", ErrorCode.STREAM_CLOSED)
        self._outbound.queue.control(frames.reset(stream_id, ErrorCode.STREAM_CLOSED))

    def _request_untrusted(self, stream_id: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if not stream_id & 1:
            raise RemoteProtocolError(f"a request on stream {stream_id}, which is even")
        table = self._table
        table.highest_inbound = stream_id
        try:
            self._rules.check_untrusted(headers)
        except RemoteProtocolError as error:
            self._outbound.fail_by_id_untrusted(stream_id, error.code, error.message)
            table.remember(stream_id, Closed(reset_by_us=True))
            return
        if self._shutdown.closing or len(table.open) >= self._streams_max:
            # Refused streams cost the peer as much as reset ones: otherwise a flood of them is free.
            self._budgets.spend_untrusted(Cost.RESET)
            self._outbound.queue.control(frames.reset(stream_id, ErrorCode.REFUSED_STREAM))
            table.remember(stream_id, Closed(reset_by_us=True))
            return
        stream = table.begin(stream_id)
        stream.headers_received = True
        stream.body_bytes_announced = calls.content_length(headers)
        try:
            head = self._head(headers)
        except calls.RequestUnsupported as refusal:
            stream.refusal = refusal
            if refusal.at_once:
                self._outbound.answer_refused(stream)
            return
        self._events.add(RequestReceived(stream, head))

    def _response(
        self, stream: StreamCore, headers: Sequence[tuple[bytes, bytes]], *, end_stream: bool
    ) -> None:
        stream.headers_received = True
        stream.body_bytes_announced = calls.content_length(headers)
        failed = self._too_long(headers) or calls.parse_response(headers)
        if end_stream:  # headers and trailers in one
            stream.status = failed or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True
        elif failed is not None:
            self._outbound.reset_because(stream, ErrorCode.CANCEL, failed)

    def _trailers(self, stream: StreamCore, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if self._client:
            stream.status = self._too_long(headers) or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True

    def _too_long(self, headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
        size, limit = calls.header_list_bytes(headers), self._header_list_bytes_max
        if size <= limit:
            return None
        return AnswerRefused(StatusCode.RESOURCE_EXHAUSTED, calls.header_list_too_long(size, limit))

    def ended_untrusted(self, stream: StreamCore) -> None:
        """Take the peer's END_STREAM on a stream that it may still send on.

        Raises:
            RemoteProtocolError: The peer has broken too many calls.
        """
        announced = stream.body_bytes_announced
        if announced is not None and announced != stream.body_bytes:
            message = f"content-length is {announced}, and {stream.body_bytes} octets came"
            self._outbound.fail_stream_untrusted(stream, ErrorCode.PROTOCOL_ERROR, message)
            return
        stream.advance(StreamInput.RECEIVE_END)
        stream.remote_ended = True
        if self._client and not stream.status_received:
            stream.status = AnswerCut(StatusCode.INTERNAL, "the answer ended without trailers")
        elif stream.assembler.partial_bytes and stream.status is None:
            kind = AnswerCut if self._client else CallFailed
            stream.status = kind(StatusCode.INTERNAL, "the peer ended in the middle of a message")
        self._events.readable(stream)
        self._outbound.answer_refused(stream)
        if stream.state is StreamState.CLOSED:
            self._table.close(stream, None, reset_by_us=False)
        elif self._client:
            # The call is over. The server may say so by RST_STREAM, or take no more, and let who sends wait for ever.
            self._outbound.queue.control(frames.reset(stream.stream_id, ErrorCode.NO_ERROR))
            failure = StreamReset(ErrorCode.NO_ERROR, by_peer=True)
            self._table.close(stream, failure, reset_by_us=True)

    def reset(self, stream: StreamCore, code: int) -> None:
        """Take the peer's RST_STREAM."""
        failure: TransportError = StreamReset(code, by_peer=True)
        if code == ErrorCode.REFUSED_STREAM and not stream.headers_received:
            # Behind the beginning of an answer it is no promise that nothing was done.
            failure = StreamRefused("the peer refused the stream")
        self._table.close(stream, failure, reset_by_us=False, reset_by_peer=True)

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        self._liveness.settings_seen()
        queue, streams = self._outbound.queue, self._table.open
        queue.set_peer_frame_bytes_max(self._control.peer_frame_bytes_max)
        if delta := initial_window_change(event):
            self._turn.charge(len(streams) // 4)
            for stream in streams.values():
                queue.shift_untrusted(stream, delta)
        self._events.add(StreamsAvailable())

    def _on_settings_acknowledged(self, _event: h2.events.SettingsAcknowledged) -> None:
        self._liveness.settings_acknowledged()
        self._windows.settings_acknowledged()

    def _on_ping_acknowledged(self, event: h2.events.PingAckReceived) -> None:
        self._shutdown.ping_acknowledged(event.ping_data or b"")


def _is_informational(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name == b":status" and value[:1] == b"1" for name, value in headers)


_HANDLERS: Final[dict[type[h2.events.Event], Callable[[PeerEvents, Any], None]]] = {
    h2.events.RemoteSettingsChanged: PeerEvents._on_settings,
    h2.events.SettingsAcknowledged: PeerEvents._on_settings_acknowledged,
    h2.events.PingAckReceived: PeerEvents._on_ping_acknowledged,
}
"""What to do with h2's events; the others say nothing that we need."""
