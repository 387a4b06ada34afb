"""The streams of a connection: how they begin, are credited, fail and end.

The lowest of three layers: `streams`, `control_events`, `connection`. This one turns verbs on a stream into frames and
events; it knows neither bytes as they arrive nor how a connection says goodbye.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpack import NeverIndexedHeaderTuple

from transport.errors import (
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
from transport.protocol.abuse import Budgets, Cost
from transport.protocol.control import ControlPlane
from transport.protocol.counts import FrameCounts
from transport.protocol.events import (
    Event,
    ResetLate,
    StreamClosed,
    StreamReadable,
    StreamsAvailable,
    StreamWritable,
)
from transport.protocol.first_message import FirstMessages
from transport.protocol.flow_control import ReceiveWindow
from transport.protocol.liveness import Liveness
from transport.protocol.memory import ReceiveMemory
from transport.protocol.send_queue import SendQueue
from transport.protocol.stalls import StallReason
from transport.protocol.state import SENDABLE, StreamInput, StreamState
from transport.protocol.stream import Buffer, StreamCore

if TYPE_CHECKING:
    from transport.config import TransportConfig


_CLOSED_REMEMBERED: Final = 1_000
"""Closed streams of which something is kept."""
_ALLOCATE_BYTES_MIN: Final = 32 * 1024
_TRUSTED_BYTES: Final = 64 * 1024
"""Memory that a server takes for a message before any of it has come; a client has chosen its server."""


@dataclass(slots=True)
class Closed:
    """What is kept of a closed stream, to judge late frames by."""

    reset_by_us: bool
    free_reset: bool = False
    """We answered, and the peer has not reset it: a reset may have crossed our end, and costs the peer nothing."""


class Streams:
    """The open streams of one connection, its windows, budgets and what waits to be sent.

    Args: as for `ConnectionCore`.
    """

    def __init__(
        self, config: TransportConfig, *, client: bool, now: float, allocate: Callable[[int], Any]
    ) -> None:
        self.config = config
        self.client = client
        self.streams: dict[int, StreamCore] = {}
        self.receive_window = ReceiveWindow(max(65_535, config.connection_window_bytes))
        self.outbound = SendQueue(
            config, finish=self._finish, sent=self._count_sent, room=self._tell_writable, now=now
        )
        self.receive_memory = None if client else ReceiveMemory(config.receive_memory_bytes_max)
        """What messages take until they are consumed; a client has chosen its server, and its own windows."""
        self.counts = FrameCounts()
        self.now = now
        self._first_messages = FirstMessages(0.0 if client else config.first_message_timeout_s)
        self._allocate = allocate
        self._control = ControlPlane(config, client=client)
        self._budgets = Budgets(now)
        self._liveness = Liveness(config, now, idle_timeout_s=0 if client else config.idle_timeout_s)
        self._events: list[Event] = []
        self._closed: OrderedDict[int, Closed] = OrderedDict()
        self._highest_inbound = 0
        self._highest_outbound = 0
        self._initial_receive_bytes = 65_535  # what the peer goes by until it has our SETTINGS

    def set_now(self, now: float) -> None:
        """Tell the time, before a verb that begins, blocks or ends a stream."""
        self.now = self.outbound.now = now

    def spend_untrusted(self, cost: Cost) -> None:
        """Pay for a frame; RemoteProtocolError if the peer sends too many."""
        self._budgets.spend_untrusted(cost, self.now)

    def send_message(self, stream: StreamCore, parts: Sequence[Buffer]) -> int:
        """Queue one message, its payload being `parts` one after another; see `StreamCore.queue_message`."""
        stream.check_sendable()
        if not stream.headers_sent:
            self._respond(stream)
        size = stream.queue_message(parts)
        self.outbound.schedule(stream)
        return size

    def end_stream(self, stream: StreamCore) -> None:
        """Half-close a client's call after what is queued. Does nothing if that was asked before.

        Raises:
            LocalProtocolError: This is a server, which ends a call with a status.
        """
        if not self.client:
            raise LocalProtocolError("a server ends a call with a status", stream_id=stream.stream_id)
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
        stream.stalls.enter(StallReason.SOCKET, self.now)  # until all of it is out
        self.outbound.schedule(stream)

    def drop_unsent(self, stream: StreamCore) -> None:
        """Drop what is queued before a server's final status, which then needs no window. Not for status OK."""
        if stream.end_requested and stream.state in SENDABLE:
            stream.discard_outgoing()
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
            if stream.inbox and not stream.stalls.behind:
                stream.stalls.fall_behind(self.now)
            return
        if stream.inbox:
            self._tell_readable(stream)
        else:
            self.credit(stream)

    def data_without_stream_untrusted(self, stream_id: int) -> None:
        """Judge DATA on a stream that is not open (F3; sections 5.1 and 6.1)."""
        self.check_not_idle_untrusted(stream_id, "DATA")
        closed = self._closed.get(stream_id)
        if closed is not None:
            if closed.reset_by_us:
                return  # it was on its way when we reset the stream
            raise RemoteProtocolError(f"DATA on closed stream {stream_id}", ErrorCode.STREAM_CLOSED)
        self.reset_by_id(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a forgotten stream")

    def check_not_idle_untrusted(self, stream_id: int, what: str) -> None:
        """Raise if a stream was never opened (section 5.1, idle)."""
        odd = bool(stream_id & 1)
        limit = self._highest_outbound if self.client else self._highest_inbound
        if not odd or stream_id > limit:
            raise RemoteProtocolError(f"{what} on idle stream {stream_id}")

    def charge_reset_untrusted(self, stream_id: int) -> None:
        """Pay for the peer's reset of a stream, unless we had begun to answer: a call may be cancelled at any time.

        A client pays nothing while the stream is open: a server resets only what the client has opened.
        """
        stream = self.streams.get(stream_id)
        if stream is not None:
            free = self.client or stream.headers_sent
        else:
            closed = self._closed.get(stream_id)
            free = closed is not None and closed.free_reset
            if closed is not None:
                closed.free_reset = False
        if not free:
            self.spend_untrusted(Cost.RESET)

    def reset_late(self, stream_id: int) -> None:
        """Take a reset of a stream that is over."""
        closed = self._closed.get(stream_id)
        if not self.client and closed is not None and not closed.reset_by_us:
            self._events.append(ResetLate(stream_id))

    def late_headers_untrusted(self, stream_id: int) -> None:
        """Pay for HEADERS on a stream that is over: h2 answers each with a reset.

        A client pays nothing: it resets calls whose trailers are on their way.
        """
        if not self.client and stream_id <= self._highest_inbound and stream_id not in self.streams:
            self.spend_untrusted(Cost.RESET)

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
        self.check_not_idle_untrusted(stream_id, message)
        self.spend_untrusted(Cost.RESET)
        header = frames.pack_header(0, 4, frames.RST_STREAM, 0, stream_id)
        self.outbound.control(header + int(code).to_bytes(4, "big"))

    def refuse_message(self, stream: StreamCore, error: MessageRefused) -> None:
        """A message that we do not take: a server says so with a status, a client cancels."""
        refusal = CallFailed(error.status, error.message)
        if self.client:
            self._reset(stream, ErrorCode.CANCEL, refusal)
            return
        if not stream.end_requested:  # an answer that is complete already goes out as it is
            stream.discard_outgoing()
            self.end_call(stream, error.status, error.message)
        stream.failure = refusal
        self._wake(stream)

    def answer_refused(self, stream: StreamCore) -> None:
        """Answer a request that is no call; once."""
        refusal = stream.refusal
        if refusal is None or stream.end_requested:
            return
        stream.headers_sent = stream.end_requested = True
        if refusal.body:
            self.outbound.control(self._headers(stream.stream_id, refusal.headers, end_stream=False))
            stream.queue_octets(refusal.body)
        else:
            stream.trailers_to_send = refusal.headers
        self.outbound.schedule(stream)

    def _new_stream(self, stream_id: int) -> StreamCore:
        stream = StreamCore(
            stream_id,
            send_window_bytes=self._control.peer_stream_window_bytes,
            receive_window_bytes=self._initial_receive_bytes,
            message_bytes_max=self.config.message_bytes_max,
            allocate=self._allocate,
            allocate_bytes_min=_ALLOCATE_BYTES_MIN,
            trusted_bytes=self.config.message_bytes_max if self.client else _TRUSTED_BYTES,
            receive_memory=self.receive_memory,
            now=self.now,
            connection_clock=self.outbound.window_clock,
        )
        self.streams[stream_id] = stream
        self._liveness.set_idle(idle=False)
        self._first_messages.opened(self.now)
        return stream

    def _respond(self, stream: StreamCore) -> None:
        self.outbound.control(self._headers(stream.stream_id, calls.response_headers(), end_stream=False))
        stream.headers_sent = True

    def _headers(self, stream_id: int, fields: calls.Headers, *, end_stream: bool) -> bytes:
        frame = self._control.send_headers(stream_id, fields, end_stream=end_stream)
        self._budgets.sent_frames += 1
        return frame

    def _finish(self, stream: StreamCore) -> bytes:
        """All octets are framed: frame the end, and end the peer's side too if we have answered."""
        fields = stream.trailers_to_send
        if self.client or fields is None:
            frame = self._control.send_end(stream.stream_id)
            self._budgets.sent_frames += 1
        else:
            if stream.refusal is None:
                account = NeverIndexedHeaderTuple(calls.STALLS_FIELD, stream.stalls.times(self.now).encode())
                fields = [*fields, account]
            frame = self._headers(stream.stream_id, fields, end_stream=True)
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

    def _close(
        self,
        stream: StreamCore,
        failure: TransportError | None,
        *,
        reset_by_us: bool,
        reset_by_peer: bool = False,
    ) -> None:
        stream.advance(StreamInput.RESET)
        stream.failure = failure
        stream.discard_outgoing()
        stream.release_memory()
        stream.stalls.finish(self.now)
        if self.streams.pop(stream.stream_id, None) is not None:
            if not self.streams:
                self._liveness.set_idle(idle=True)
            self._remember(
                stream.stream_id, Closed(reset_by_us, free_reset=stream.headers_sent and not reset_by_peer)
            )
            self._events.append(StreamClosed(stream))
        self._wake(stream)
        if self.client:
            self._events.append(StreamsAvailable())

    def _remember(self, stream_id: int, closed: Closed) -> None:
        self._closed[stream_id] = closed
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
        self._budgets.sent_frames += 1
