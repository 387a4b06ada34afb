"""The gate: what each received frame means for windows, budgets and streams, before or instead of h2.

DATA, WINDOW_UPDATE, GOAWAY and PRIORITY end here. HEADERS, CONTINUATION, RST_STREAM, SETTINGS and PING go on to h2
after a look; PUSH_PROMISE cannot come, and unknown kinds are dropped. An error of a stream resets the stream; an error
of the connection leaves as RemoteProtocolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transport.config import WINDOW_BYTES_MAX
from transport.errors import ErrorCode, FlowControlViolation, MessageRefused, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.abuse import Cost
from transport.protocol.control import filter_settings_untrusted
from transport.protocol.state import RECEIVABLE

if TYPE_CHECKING:
    from transport.protocol.connection import ConnectionCore
    from transport.protocol.stream import StreamCore

_REFUSED_BODY_BYTES_MAX: Final = 64 * 1024
"""A request that is no call is answered when it is complete, or when it is longer than this."""
_SETTINGS_MAX: Final = 64
"""Entries of one SETTINGS frame; real clients send up to 8."""


class Inbound:
    """Implements `reader.FrameHandler` for one connection."""

    def __init__(self, connection: ConnectionCore, header_block_bytes_max: int) -> None:
        self._connection = connection
        self._header_block_bytes_max = header_block_bytes_max
        self._header_block_bytes = 0
        self.settings_received = False

    # ------------------------------------------------------------------ DATA

    def begin_data(self, stream_id: int, length: int, padding: int, flags: int) -> StreamCore | None:
        """Account a DATA frame to both windows; F3: an unknown stream's octets still count for the connection."""
        connection = self._connection
        self._require_settings()
        if not stream_id:
            raise RemoteProtocolError("DATA on stream 0")
        connection.receive_window.receive_untrusted(length, None)
        connection.credit_connection(length)
        if length <= padding and not flags & frames.FLAG_END_STREAM:
            connection.spend_untrusted(Cost.EMPTY_DATA)
        stream = connection.streams.get(stream_id)
        if stream is None:
            connection.data_without_stream_untrusted(stream_id)
            return None
        if stream.state not in RECEIVABLE:
            connection.fail_stream(stream, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
            return None
        if not stream.headers_received:
            connection.fail_stream(stream, ErrorCode.PROTOCOL_ERROR, "DATA before the response's headers")
            return None
        if stream.failure is not None:
            return None  # a message was refused; what follows it has no meaning, and the stream ends soon
        try:
            stream.receive_window.receive_untrusted(length, stream_id)
        except FlowControlViolation as error:
            connection.fail_stream(stream, error.code, error.message)
            return None
        if padding:
            connection.credit_stream(stream, padding)
        return stream

    def data(self, stream: StreamCore, payload: memoryview) -> bool:
        """Assemble; a message that cannot be taken ends its stream."""
        if stream.state not in RECEIVABLE or stream.failure is not None:
            return False
        try:
            stream.receive_untrusted(payload)
        except MessageRefused as error:
            self._connection.refuse_message(stream, error)
            return False
        if stream.refusal is not None and stream.body_bytes > _REFUSED_BODY_BYTES_MAX:
            self._connection.answer_refused(stream)
        self._connection.stream_received(stream)
        return True

    def data_in_place(self, stream: StreamCore, size: int) -> bool:
        """Count octets that the socket wrote straight into the message."""
        if stream.state not in RECEIVABLE:
            return False
        try:
            stream.received_into_target_untrusted(size)
        except MessageRefused as error:
            self._connection.refuse_message(stream, error)
            return False
        self._connection.stream_received(stream)
        return True

    def end_data(self, stream: StreamCore, flags: int) -> None:
        """Finish a frame; END_STREAM on DATA is told to h2 as an empty frame."""
        if flags & frames.FLAG_END_STREAM and stream.state in RECEIVABLE:
            self._connection.end_by_data_untrusted(stream)

    # ------------------------------------------------------------------ everything else

    def control(self, kind: int, flags: int, stream_id: int, frame: memoryview) -> None:
        """Dispatch a whole frame."""
        if kind == frames.WINDOW_UPDATE:
            self._require_settings()
            self._window_update(stream_id, frame)
        elif kind in {frames.HEADERS, frames.CONTINUATION}:
            self._require_settings()
            self._headers(kind, flags, stream_id, frame)
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, frame)
        elif kind == frames.RST_STREAM:
            self._require_settings()
            self._reset(stream_id, frame)
        elif kind == frames.PING:
            self._require_settings()
            self._connection.counts.pings_received += 1
            self._connection.spend_untrusted(Cost.PING)
            self._connection.to_h2_untrusted(bytes(frame))
        elif kind == frames.GOAWAY:
            self._require_settings()
            self._goaway(stream_id, frame)
        elif kind == frames.PUSH_PROMISE:
            raise RemoteProtocolError("PUSH_PROMISE, and push is disabled")
        else:
            self._require_settings()
            self._connection.spend_untrusted(Cost.IGNORED)
            if kind == frames.PRIORITY:
                self._priority(stream_id, frame)

    def _require_settings(self) -> None:
        if not self.settings_received:
            raise RemoteProtocolError("the first frame is not SETTINGS")

    def _settings(self, flags: int, stream_id: int, frame: memoryview) -> None:
        acknowledgement = bool(flags & frames.FLAG_ACK)
        if not self.settings_received and acknowledgement:
            raise RemoteProtocolError("the first frame is an acknowledgement of SETTINGS")
        if stream_id:
            raise RemoteProtocolError(f"SETTINGS on stream {stream_id}")
        self.settings_received = True
        self._connection.spend_untrusted(Cost.SETTINGS)
        payload = bytes(frame[frames.HEADER_BYTES :])
        if not acknowledgement:
            payload = filter_settings_untrusted(payload, settings_max=_SETTINGS_MAX)
        length = len(payload)
        header = frames.pack_header(length >> 8, length & 0xFF, frames.SETTINGS, flags, 0)
        self._connection.to_h2_untrusted(header + payload)

    def _reset(self, stream_id: int, frame: memoryview) -> None:
        connection = self._connection
        if stream_id:  # what h2 does not check
            connection.check_not_idle_untrusted(stream_id, "RST_STREAM")
        connection.charge_reset_untrusted(stream_id)
        late = stream_id not in connection.streams
        connection.to_h2_untrusted(bytes(frame))
        if late:
            connection.reset_late(stream_id)

    def _headers(self, kind: int, flags: int, stream_id: int, frame: memoryview) -> None:
        if kind == frames.CONTINUATION:
            self._connection.spend_untrusted(Cost.CONTINUATION)
        else:
            self._header_block_bytes = 0
            self._connection.late_headers_untrusted(stream_id)
        self._header_block_bytes += len(frame)
        if self._header_block_bytes > self._header_block_bytes_max:
            raise RemoteProtocolError(
                f"header block of over {self._header_block_bytes_max} octets on stream {stream_id}",
                ErrorCode.ENHANCE_YOUR_CALM,
            )
        self._connection.header_block_progress(ended=bool(flags & frames.FLAG_END_HEADERS))
        self._connection.to_h2_untrusted(bytes(frame))

    def _window_update(self, stream_id: int, frame: memoryview) -> None:
        connection = self._connection
        connection.spend_untrusted(Cost.WINDOW_UPDATE)
        increment = int.from_bytes(frame[9:13], "big") & WINDOW_BYTES_MAX
        if not stream_id:
            if not increment:
                raise RemoteProtocolError("WINDOW_UPDATE of 0 on the connection")
            connection.outbound.window.open_untrusted(increment, None)
            connection.outbound.window_clock.set(connection.now, shut=False)
            connection.outbound.connection_opened()
            return
        if not increment:  # whatever has become of the stream
            connection.reset_by_id(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            return
        stream = connection.streams.get(stream_id)
        if stream is None:
            connection.check_not_idle_untrusted(stream_id, "WINDOW_UPDATE")
            return
        try:
            stream.send_window.open_untrusted(increment, stream_id)
        except FlowControlViolation as error:
            connection.fail_stream(stream, error.code, error.message)
            return
        stream.stalls.set_window(connection.now, shut=stream.send_window.available <= 0)
        connection.outbound.stream_opened(stream)

    def _priority(self, stream_id: int, frame: memoryview) -> None:
        if not stream_id:
            raise RemoteProtocolError("PRIORITY on stream 0")
        if len(frame) != frames.HEADER_BYTES + 5:
            self._connection.reset_by_id(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not 5 octets")
        elif int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX == stream_id:
            self._connection.reset_by_id(
                stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself"
            )

    def _goaway(self, stream_id: int, frame: memoryview) -> None:
        if stream_id:
            raise RemoteProtocolError(f"GOAWAY on stream {stream_id}")
        if len(frame) < frames.HEADER_BYTES + 8:
            raise RemoteProtocolError("GOAWAY is shorter than 8 octets", ErrorCode.FRAME_SIZE_ERROR)
        last = int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX
        self._connection.goaway_received(last, int.from_bytes(frame[13:17], "big"), bytes(frame[17:]))
