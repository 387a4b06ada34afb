"""What the control plane tells, and how a connection says goodbye.

The middle one of three layers: `streams`, `control_events`, `connection`. h2's events change streams here; drain and
GOAWAY are here because they decide what an incoming request gets (RFC 9113 section 6.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import h2.events

from transport.errors import (
    CallFailed,
    ErrorCode,
    StatusCode,
    StreamRefused,
    StreamReset,
    TransportError,
    error_code_name,
)
from transport.protocol import calls, frames
from transport.protocol.abuse import Cost
from transport.protocol.control import initial_window_change
from transport.protocol.events import (
    GoawayReceived,
    RequestReceived,
    StreamsAvailable,
)
from transport.protocol.state import StreamInput, StreamState
from transport.protocol.streams import Closed, Streams

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.reader import FrameReader
    from transport.protocol.stream import StreamCore


_GRACE_PING: Final = b"weir-bye"


class ControlEvents(Streams):
    """Streams that a peer opens, answers, ends and refuses."""

    _reader: FrameReader  # made by `connection`, with the gate; long work on one frame is charged to it

    def __init__(
        self, config: TransportConfig, *, client: bool, now: float, allocate: Callable[[int], Any]
    ) -> None:
        super().__init__(config, client=client, now=now, allocate=allocate)
        self.failure: TransportError | None = None
        self.goodbye = ""
        """What the peer's GOAWAY said, if there was one."""
        self.peer_failed = False
        """The peer's GOAWAY had an error code: it is about to close. One without ends nothing that the peer opens."""
        self._grace_over = False  # the GOAWAY with the true last stream id is out
        self._draining = False
        self._refused = False  # at a client: the server takes no new streams

    @property
    def closing(self) -> bool:
        """Whether new streams are refused: the connection failed, we drain, or the server said goodbye.

        A client's GOAWAY refuses only what a server would open (RFC 9113 section 6.8), which is nothing.
        """
        return self.failure is not None or self._refused or self._draining

    @property
    def drained(self) -> bool:
        """Whether a `drain` is complete: the peer knows which of its calls were taken, and these have ended."""
        return self._draining and self._grace_over and not self.streams

    def drain(self) -> None:
        """Say goodbye: refuse new streams, let the running ones finish (two-phase GOAWAY, RFC 9113 section 6.8)."""
        if self._draining or self.failure is not None:
            return
        self._draining = True
        if self.client:
            self._grace_over = True
            self._say_goaway(0, ErrorCode.NO_ERROR)
            return
        self._say_goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR)
        self._ping(_GRACE_PING)

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer says goodbye: our newer streams were not processed, the others go on, and so do the peer's own."""
        self._refused = self.client
        self.peer_failed = code != ErrorCode.NO_ERROR
        self.counts.goaways_received += 1
        self._events.append(GoawayReceived(last_stream_id, code, debug))
        if self.client:
            for stream in [s for s in self.streams.values() if s.stream_id > last_stream_id]:
                self._close(
                    stream, StreamRefused("the peer went away before it processed the call"), reset_by_us=True
                )
        self.goodbye = f"{error_code_name(code)} {debug[:200].decode('utf-8', 'replace')}".rstrip()

    def to_h2_untrusted(self, frame: bytes) -> None:
        """Let h2 have a frame, queue its answers, act on its events."""
        self._dispatch(self._control.receive_frame_untrusted(frame))

    def end_by_data_untrusted(self, stream: StreamCore) -> None:
        """END_STREAM came on DATA: h2 is told, and answers with its StreamEnded event."""
        self.to_h2_untrusted(frames.data_header(stream.stream_id, 0, frames.FLAG_END_STREAM))

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
            self._remember(stream_id, Closed(reset_by_us=True))
            return
        stream = self._new_stream(stream_id)
        stream.headers_received = True
        headers = event.headers or []
        stream.body_bytes_announced = calls.content_length(headers)
        try:
            head = calls.parse_request(headers, list_bytes_max=self.config.header_list_bytes_max)
        except calls.RequestUnsupported as refusal:
            stream.refusal = refusal
            if refusal.at_once:
                self.answer_refused(stream)
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
        failed = self._too_long(headers) or calls.parse_response(headers)
        if event.stream_ended is not None:  # headers and trailers in one
            stream.status = failed or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True
        elif failed is not None:
            self._reset(stream, ErrorCode.CANCEL, failed)

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is not None and self.client:
            headers = event.headers or []
            stream.status = self._too_long(headers) or calls.parse_trailers(headers)
            stream.peer_stalls = calls.parse_stalls(headers)
            stream.status_received = True

    def _too_long(self, headers: Sequence[tuple[bytes, bytes]]) -> CallFailed | None:
        size, limit = calls.header_list_bytes(headers), self.config.header_list_bytes_max
        if size <= limit:
            return None
        return CallFailed(StatusCode.RESOURCE_EXHAUSTED, calls.header_list_too_long(size, limit))

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
        self.answer_refused(stream)
        if stream.state is StreamState.CLOSED:
            self._close(stream, None, reset_by_us=False)

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        stream = self.streams.get(event.stream_id or 0)
        if stream is None:
            return
        code = int(event.error_code or 0)
        if not event.remote_reset:
            self.spend_untrusted(Cost.RESET)  # by h2, for the peer's fault
        failure: TransportError = StreamReset(code, by_peer=event.remote_reset)
        if code == ErrorCode.REFUSED_STREAM and event.remote_reset:
            failure = StreamRefused("the peer refused the stream")
        reset_by_peer = event.remote_reset
        self._close(stream, failure, reset_by_us=not reset_by_peer, reset_by_peer=reset_by_peer)

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        self._liveness.settings_seen()
        self.outbound.set_peer_frame_bytes_max(self._control.peer_frame_bytes_max)
        if delta := initial_window_change(event):
            self._reader.charge(len(self.streams) // 4)
            for stream in self.streams.values():
                stream.send_window.shift_untrusted(delta)
                stream.stalls.set_window(self.now, shut=stream.send_window.available <= 0)
                self.outbound.schedule(stream)  # F7
        self._events.append(StreamsAvailable())

    def _on_settings_acknowledged(self, _event: h2.events.SettingsAcknowledged) -> None:
        self._liveness.settings_acknowledged()
        self._initial_receive_bytes = self.config.stream_window_bytes
        for stream in self.streams.values():
            stream.receive_window.resize(self._initial_receive_bytes)
            self.credit_stream(stream, 0)  # what is owed may be worth a frame in the smaller window

    def _on_ping_acknowledged(self, event: h2.events.PingAckReceived) -> None:
        if event.ping_data == _GRACE_PING and self._draining and not self._grace_over:
            self._grace_over = True
            self._say_goaway(self._highest_inbound, ErrorCode.NO_ERROR)

    def _say_goaway(self, last_stream_id: int, code: int, debug: bytes = b"") -> None:
        self.counts.goaways_sent += 1
        self.outbound.control(frames.goaway(last_stream_id, code, debug))

    def _ping(self, payload: bytes) -> None:
        self.counts.pings_sent += 1
        self.outbound.control(self._control.ping(payload))


_HANDLERS: Final[dict[type[h2.events.Event], Callable[[ControlEvents, Any], None]]] = {
    h2.events.RequestReceived: ControlEvents._on_request,
    h2.events.ResponseReceived: ControlEvents._on_response,
    h2.events.TrailersReceived: ControlEvents._on_trailers,
    h2.events.StreamEnded: ControlEvents._on_end,
    h2.events.StreamReset: ControlEvents._on_reset,
    h2.events.RemoteSettingsChanged: ControlEvents._on_settings,
    h2.events.SettingsAcknowledged: ControlEvents._on_settings_acknowledged,
    h2.events.PingAckReceived: ControlEvents._on_ping_acknowledged,
}
"""What to do with h2's events; the others say nothing that we need."""
