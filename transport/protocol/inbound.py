"""The gate: what each received frame means for windows, budgets and streams, before or instead of h2.

SETTINGS and PING are checked here and go on to h2. Header lists go to `peer_events`, the other frames end here;
PUSH_PROMISE is an error, and unknown kinds are dropped. An error of a stream resets the stream; one of
the connection leaves as RemoteProtocolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transport.config import WINDOW_BYTES_MAX
from transport.errors import ErrorCode, FlowControlViolation, MessageRefused, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.abuse import Cost
from transport.protocol.control import filter_settings_untrusted
from transport.protocol.events import ResetLate
from transport.protocol.state import RECEIVABLE

if TYPE_CHECKING:
    from transport.protocol.abuse import Budgets
    from transport.protocol.clock import Clock
    from transport.protocol.counts import FrameCounts
    from transport.protocol.events import EventQueue
    from transport.protocol.header_frames import HeaderFrames
    from transport.protocol.liveness import Liveness
    from transport.protocol.outbound import Outbound
    from transport.protocol.peer_events import PeerEvents
    from transport.protocol.receive_windows import ReceiveWindows
    from transport.protocol.shutdown import Shutdown
    from transport.protocol.stream import StreamCore
    from transport.protocol.stream_table import StreamTable

_REFUSED_BODY_BYTES_MAX: Final = 64 * 1024
"""A request that is no call is answered when it is complete, or when it is longer than this."""
_SETTINGS_MAX: Final = 64
"""Entries of one SETTINGS frame; real clients send up to 8."""
_RAPID_RESET_NS: Final = 500_000_000
"""A call that is reset when it is younger than this, and not answered, costs its peer a reset."""


class Inbound:
    """Implements `reader.FrameHandler` for one connection.

    Args:
        client: Which end this is.
        header_block_bytes_max: Of HEADERS and its CONTINUATIONs, frame headers included.
        clock: Of the connection.
        budgets: Pay for frames that cost us work.
        counts: Of control frames.
        events: Tell of late resets.
        liveness: Keeps the time limit on header blocks.
        header_frames: Decode header blocks.
        table: Of the streams.
        windows: Count what is received.
        outbound: Answers faults of streams, and sends as the peer's windows open.
        peer_events: Is given header lists, ends, resets, and the frames that are h2's.
        shutdown: Takes the peer's GOAWAY.
    """

    def __init__(
        self,
        *,
        client: bool,
        header_block_bytes_max: int,
        clock: Clock,
        budgets: Budgets,
        counts: FrameCounts,
        events: EventQueue,
        liveness: Liveness,
        header_frames: HeaderFrames,
        table: StreamTable,
        windows: ReceiveWindows,
        outbound: Outbound,
        peer_events: PeerEvents,
        shutdown: Shutdown,
    ) -> None:
        self._client = client
        self._header_block_bytes_max = header_block_bytes_max
        self._header_block_bytes = 0
        self._clock = clock
        self._budgets = budgets
        self._counts = counts
        self._events = events
        self._liveness = liveness
        self._header_frames = header_frames
        self._table = table
        self._streams = table.open
        self._windows = windows
        self._outbound = outbound
        self._queue = outbound.queue
        self._peer_events = peer_events
        self._shutdown = shutdown
        self.settings_received = False

    # ------------------------------------------------------------------ DATA

    def begin_data(self, stream_id: int, length: int, padding: int, flags: int) -> StreamCore | None:
        """Account a DATA frame to both windows; F3: an unknown stream's octets still count for the connection."""
        self._require_settings()
        self._windows.receive_untrusted(length)
        if length <= padding and not flags & frames.FLAG_END_STREAM:
            self._budgets.spend_untrusted(Cost.EMPTY_DATA)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._late_data_untrusted(stream_id)
            return None
        if stream.state not in RECEIVABLE:
            self._fail(stream, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
            return None
        if not stream.headers_received:
            self._fail(stream, ErrorCode.PROTOCOL_ERROR, "DATA before the response's headers")
            return None
        if stream.failure is not None:
            return None  # a message was refused; what follows it has no meaning, and the stream ends soon
        try:
            stream.receive_window.receive_untrusted(length, stream_id)
        except FlowControlViolation as error:
            self._fail(stream, error.code, error.message)
            return None
        if padding:
            self._windows.credit_stream(stream, padding)
        return stream

    def data(self, stream: StreamCore, payload: memoryview) -> bool:
        """Assemble; a message that cannot be taken ends its stream."""
        if stream.state not in RECEIVABLE or stream.failure is not None:
            return False
        try:
            stream.receive_untrusted(payload)
        except MessageRefused as error:
            self._outbound.refuse_message(stream, error)
            return False
        if stream.refusal is None:
            self._windows.stream_received(stream)
            return True
        self._windows.credit(stream)  # It was dropped; a client that waits for room does not end its request.
        if stream.body_bytes > _REFUSED_BODY_BYTES_MAX:
            self._outbound.answer_refused(stream)
        return True

    def data_in_place(self, stream: StreamCore, size: int) -> bool:
        """Count octets that the socket wrote straight into the message."""
        if stream.state not in RECEIVABLE:
            return False
        try:
            stream.received_into_target_untrusted(size)
        except MessageRefused as error:
            self._outbound.refuse_message(stream, error)
            return False
        self._windows.stream_received(stream)
        return True

    def end_data(self, stream: StreamCore, flags: int) -> None:
        """Finish a frame, and the stream's inbound side with END_STREAM."""
        if flags & frames.FLAG_END_STREAM and stream.state in RECEIVABLE:
            self._peer_events.ended_untrusted(stream)

    def _late_data_untrusted(self, stream_id: int) -> None:
        """Judge DATA on a stream that is not open (F3; sections 5.1 and 6.1); stream 0 is idle for ever."""
        self._table.check_not_idle_untrusted(stream_id, "DATA")
        if self._table.ignores(stream_id):
            return
        closed = self._table.closed.get(stream_id)
        if closed is not None and not closed.reset_by_peer:
            raise RemoteProtocolError(f"DATA on closed stream {stream_id}", ErrorCode.STREAM_CLOSED)
        # Netty may send one frame more behind its own reset.
        self._outbound.fail_by_id_untrusted(
            stream_id, ErrorCode.STREAM_CLOSED, "DATA on a stream that is gone"
        )

    def _fail(self, stream: StreamCore, code: ErrorCode, message: str) -> None:
        self._outbound.fail_stream_untrusted(stream, code, message)

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
            self._counts.pings_received += 1
            self._budgets.spend_untrusted(Cost.PING)
            self._peer_events.receive_untrusted(bytes(frame))
        elif kind == frames.GOAWAY:
            self._require_settings()
            self._goaway(stream_id, frame)
        elif kind == frames.PUSH_PROMISE:
            raise RemoteProtocolError("PUSH_PROMISE, and push is disabled")
        else:
            self._require_settings()
            self._budgets.spend_untrusted(Cost.IGNORED)
            if kind == frames.PRIORITY:
                self._priority(stream_id, frame)

    def part_of_headers(self) -> None:
        """Let the time of a header block run, as that of one in several frames does.

        Not at a client, whose program may keep its event loop for longer, with the rest of the frame unread.
        """
        if not self._client:
            self._liveness.header_block(ended=False, now=self._clock.now)

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
        self._budgets.spend_untrusted(Cost.SETTINGS)
        payload = bytes(frame[frames.HEADER_BYTES :])
        if not acknowledgement:
            payload = filter_settings_untrusted(payload, settings_max=_SETTINGS_MAX)
        length = len(payload)
        header = frames.pack_header(length >> 8, length & 0xFF, frames.SETTINGS, flags, 0)
        self._peer_events.receive_untrusted(header + payload)

    def _reset(self, stream_id: int, frame: memoryview) -> None:
        """End a stream.

        A reset of a stream that is over has crossed its end, or answers a frame that reached the peer behind its own
        reset, as Netty, okhttp and Jetty do. Nothing is left to end, and what we sent pays for it.
        """
        self._table.check_not_idle_untrusted(stream_id, "RST_STREAM")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._budgets.spend_untrusted(Cost.IGNORED)
            closed = self._table.closed.get(stream_id)
            if closed is not None and not closed.reset_by_us and not closed.reset_by_peer:
                closed.reset_by_peer = True
                if not self._client:
                    self._events.add(ResetLate(stream_id))
            return
        # A call may be cancelled at any time once we began to answer, or when it has waited, as until its deadline: of
        # those, with what still runs after a reset, there are no more than may be open. A server resets only what its
        # client opened.
        rapid = stream.stalls.lifetime_ns(self._clock.now) < _RAPID_RESET_NS
        if rapid and not self._client and not stream.headers_sent:
            self._budgets.spend_untrusted(Cost.RESET)
        self._peer_events.reset(stream, int.from_bytes(frame[9:13], "big"))

    def _headers(self, kind: int, flags: int, stream_id: int, frame: memoryview) -> None:
        if kind == frames.CONTINUATION:
            self._budgets.spend_untrusted(Cost.CONTINUATION)
        else:
            self._header_block_bytes = 0
            if (
                not self._client
                and stream_id <= self._table.highest_inbound
                and stream_id not in self._streams
            ):
                # The stream is over. A client's peer pays nothing: trailers may be on their way when a client resets.
                self._budgets.spend_untrusted(Cost.RESET)
        self._header_block_bytes += len(frame)
        if self._header_block_bytes > self._header_block_bytes_max:
            raise RemoteProtocolError(
                f"header block of over {self._header_block_bytes_max} octets on stream {stream_id}",
                ErrorCode.ENHANCE_YOUR_CALM,
            )
        self._liveness.header_block(ended=bool(flags & frames.FLAG_END_HEADERS), now=self._clock.now)
        found = self._header_frames.receive_untrusted(kind, flags, stream_id, frame)
        if found is not None:
            headers, end_stream = found
            self._peer_events.headers_untrusted(stream_id, headers, end_stream=end_stream)

    def _window_update(self, stream_id: int, frame: memoryview) -> None:
        self._budgets.spend_untrusted(Cost.WINDOW_UPDATE)
        increment = int.from_bytes(frame[9:13], "big") & WINDOW_BYTES_MAX
        if not stream_id:
            if not increment:
                raise RemoteProtocolError("WINDOW_UPDATE of 0 on the connection")
            self._queue.open_connection_untrusted(increment)
            return
        if not increment:  # whatever has become of the stream
            self._outbound.fail_by_id_untrusted(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_not_idle_untrusted(stream_id, "WINDOW_UPDATE")
            return
        try:
            self._queue.open_stream_untrusted(stream, increment)
        except FlowControlViolation as error:
            self._fail(stream, error.code, error.message)

    def _priority(self, stream_id: int, frame: memoryview) -> None:
        if not stream_id:
            raise RemoteProtocolError("PRIORITY on stream 0")
        if len(frame) != frames.HEADER_BYTES + 5:
            self._outbound.fail_by_id_untrusted(
                stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not 5 octets"
            )
        elif int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX == stream_id:
            self._outbound.fail_by_id_untrusted(
                stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself"
            )

    def _goaway(self, stream_id: int, frame: memoryview) -> None:
        if stream_id:
            raise RemoteProtocolError(f"GOAWAY on stream {stream_id}")
        if len(frame) < frames.HEADER_BYTES + 8:
            raise RemoteProtocolError("GOAWAY is shorter than 8 octets", ErrorCode.FRAME_SIZE_ERROR)
        last = int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX
        self._shutdown.goaway_received(last, int.from_bytes(frame[13:17], "big"), bytes(frame[17:]))
