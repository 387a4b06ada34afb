"""What the control plane reports: h2's events about streams, SETTINGS and PING, and what each changes here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import h2.events

from transport.errors import CallFailed, ErrorCode, StatusCode, StreamRefused, StreamReset, TransportError
from transport.protocol import calls
from transport.protocol.abuse import Cost
from transport.protocol.control import initial_window_change
from transport.protocol.events import RequestReceived, StreamsAvailable
from transport.protocol.state import StreamInput, StreamState
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
    from transport.protocol.stream_table import StreamTable


class PeerEvents:
    """Acts on what h2 makes of the peer's frames.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        control: Is given the frames.
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

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        stream_id, table = event.stream_id, self._table
        assert stream_id is not None
        table.highest_inbound = max(table.highest_inbound, stream_id)
        self._control.ignore_content_length(stream_id)
        if self._shutdown.closing or len(table.open) >= self._streams_max:
            # Refused streams cost the peer as much as reset ones: otherwise a flood of them is free.
            self._budgets.spend_untrusted(Cost.RESET)
            self._outbound.refuse_stream(stream_id)
            table.remember(stream_id, Closed(reset_by_us=True))
            return
        stream = table.begin(stream_id)
        stream.headers_received = True
        headers = event.headers or []
        stream.body_bytes_announced = calls.content_length(headers)
        try:
            head = calls.parse_request(headers, list_bytes_max=self._header_list_bytes_max)
        except calls.RequestUnsupported as refusal:
            stream.refusal = refusal
            if refusal.at_once:
                self._outbound.answer_refused(stream)
            return
        self._events.add(RequestReceived(stream, head))

    def _on_response(self, event: h2.events.ResponseReceived) -> None:
        stream = self._table.open.get(event.stream_id or 0)
        if stream is None:
            return
        self._control.ignore_content_length(stream.stream_id)
        headers = event.headers or []
        stream.headers_received = True
        stream.body_bytes_announced = calls.content_length(headers)
        failed = self._too_long(headers) or calls.parse_response(headers)
        if event.stream_ended is not None:  # headers and trailers in one
            stream.status = failed or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True
        elif failed is not None:
            self._outbound.reset_because(stream, ErrorCode.CANCEL, failed)

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self._table.open.get(event.stream_id or 0)
        if stream is not None and self._client:
            headers = event.headers or []
            stream.status = self._too_long(headers) or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True

    def _too_long(self, headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
        size, limit = calls.header_list_bytes(headers), self._header_list_bytes_max
        if size <= limit:
            return None
        return CallFailed(StatusCode.RESOURCE_EXHAUSTED, calls.header_list_too_long(size, limit))

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        stream = self._table.open.get(event.stream_id or 0)
        if stream is None:
            return
        announced = stream.body_bytes_announced
        if announced is not None and announced != stream.body_bytes:
            message = f"content-length is {announced}, and {stream.body_bytes} octets came"
            self._outbound.fail_stream_untrusted(stream, ErrorCode.PROTOCOL_ERROR, message)
            return
        if not stream.advance(StreamInput.RECEIVE_END):
            return
        stream.remote_ended = True
        if self._client and not stream.status_received:
            stream.status = CallFailed(StatusCode.INTERNAL, "the answer ended without trailers")
        elif stream.assembler.partial_bytes and stream.status is None:
            stream.status = CallFailed(StatusCode.INTERNAL, "the peer ended in the middle of a message")
        self._events.readable(stream)
        self._outbound.answer_refused(stream)
        if stream.state is StreamState.CLOSED:
            self._table.close(stream, None, reset_by_us=False)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self._table.open.get(event.stream_id or 0)
        if stream is None:
            return
        code, by_peer = int(event.error_code or 0), event.remote_reset
        if not by_peer:
            self._budgets.spend_untrusted(Cost.RESET)  # by h2, for the peer's fault
        failure: TransportError = StreamReset(code, by_peer=by_peer)
        if code == ErrorCode.REFUSED_STREAM and by_peer:
            failure = StreamRefused("the peer refused the stream")
        self._table.close(stream, failure, reset_by_us=not by_peer, reset_by_peer=by_peer)

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


_HANDLERS: Final[dict[type[h2.events.Event], Callable[[PeerEvents, Any], None]]] = {
    h2.events.RequestReceived: PeerEvents._on_request,
    h2.events.ResponseReceived: PeerEvents._on_response,
    h2.events.TrailersReceived: PeerEvents._on_trailers,
    h2.events.StreamEnded: PeerEvents._on_end,
    h2.events.StreamReset: PeerEvents._on_reset,
    h2.events.RemoteSettingsChanged: PeerEvents._on_settings,
    h2.events.SettingsAcknowledged: PeerEvents._on_settings_acknowledged,
    h2.events.PingAckReceived: PeerEvents._on_ping_acknowledged,
}
"""What to do with h2's events; the others say nothing that we need."""
