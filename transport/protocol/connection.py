"""One end of an HTTP/2 connection that carries gRPC calls: bytes and `now` in, events and bytes out.

No clock, socket, task or randomness. A shell fills `buffers`, reports with `bytes_received`, reads `events`, writes
what `data_to_send` hands out, and calls `handle_deadline` when `next_deadline` has come. Verbs are synchronous; one
that raises LocalProtocolError has changed nothing. After ConnectionFailed nothing more is received, and what is left to
send explains the end to the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from transport.errors import (
    ConnectionLost,
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    TlsExpected,
    TransportError,
    error_code_name,
)
from transport.protocol import calls, frames
from transport.protocol.control_events import ControlEvents
from transport.protocol.events import CallGivenUp, ConnectionFailed, Event
from transport.protocol.inbound import Inbound
from transport.protocol.reader import FrameReader

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.stream import Buffer, StreamCore

_ALIVE_PING: Final = b"weir-liv"
_TLS_ALERT: Final = b"\x15\x03"
"""How a TLS record begins that refuses plaintext (RFC 8446 section 5.1). No first frame of HTTP/2 begins so: a SETTINGS
of a million octets."""


class ConnectionCore(ControlEvents):
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
        super().__init__(config, client=client, now=now, allocate=allocate)
        self._inbound = Inbound(self, 2 * config.header_list_bytes_max)
        self._reader = FrameReader(config, self._inbound, expect_preface=not client)
        self.outbound.control(self._control.preface)
        if (extra := config.connection_window_bytes - 65_535) > 0:
            self.outbound.control(frames.window_update(0, extra))

    def buffers(self) -> list[memoryview]:
        """Memory for the next octets from the peer, in this order; valid until `bytes_received`."""
        return self._reader.buffers()

    def bytes_received(self, size: int, now: float) -> None:
        """Take octets that were written into `buffers`; what they mean is in `events`."""
        self.set_now(now)
        self._liveness.heard(now)
        if self.failure is not None:
            return
        try:
            self._reader.advance_untrusted(size)
            self.outbound.check_backlog_untrusted()
            if self.client and not self._inbound.settings_received and self._reader.begins_with(_TLS_ALERT):
                self.fail(TlsExpected("the peer answers in TLS"), None)
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
            while self.unread:
                self.bytes_received(0, now)
        return self.events()

    @property
    def unread(self) -> bool:
        """Whether frames that have come wait for the next turn: call `bytes_received` with 0 before reading on."""
        return self._reader.unread and self.failure is None

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

    @property
    def refusal(self) -> str:
        """What the connection was ended for by us: an abuse budget, or an error code, in lower case; or nothing."""
        if self._budgets.exceeded is not None:
            return self._budgets.exceeded.name.lower()
        failure = self.failure
        return error_code_name(failure.code).lower() if isinstance(failure, RemoteProtocolError) else ""

    def next_deadline(self) -> float:
        """When `handle_deadline` is due; infinity: never."""
        return min(self._liveness.next_deadline(), self._first_messages.deadline, self.outbound.next_deadline)

    def handle_deadline(self, now: float) -> None:
        """Do what time demands: ask whether the peer lives, or give it up."""
        self.set_now(now)
        if self.failure is not None:
            return
        if why := self._liveness.expired(now):
            self.fail(ConnectionLost(f"peer given up: {why}"), ErrorCode.NO_ERROR)
        elif self._liveness.idle_expired(now):
            if self._draining:
                self.close(message="nobody called for too long")
            else:
                self.drain()
        elif self._liveness.ping_due(now):
            self._ping(_ALIVE_PING)
        self.outbound.release()
        for stream in self._first_messages.overdue(self.streams.values(), now):
            limit_s = self.config.first_message_timeout_s
            self.end_call(stream, StatusCode.DEADLINE_EXCEEDED, f"no message within {limit_s:g} s")
            self._events.append(CallGivenUp(stream))

    @property
    def can_open(self) -> bool:
        """Whether the peer takes one more stream now (its SETTINGS are known, its limit is not reached)."""
        return self._inbound.settings_received and len(self.streams) < self._control.peer_streams_max

    def open_stream(self, headers: calls.Headers, *, window_bytes: int = 0) -> StreamCore:
        """Open a call; see `calls.request_headers`.

        Args:
            headers: That open it.
            window_bytes: What the peer may have on its way to us; the config's `stream_window_bytes` at least, and its
                `connection_window_bytes` at most.

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
        self.outbound.control(self._headers(stream_id, headers, end_stream=False))
        self._highest_outbound = stream_id
        stream = self._new_stream(stream_id)
        stream.headers_sent = True
        # Beyond the size that our SETTINGS give it, which may not have been acknowledged yet.
        increment = min(window_bytes, self.config.connection_window_bytes) - self.config.stream_window_bytes
        if increment > 0:
            stream.receive_window.enlarge(increment)
            self.outbound.control(frames.window_update(stream_id, increment))
        return stream

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, message: str = "closed") -> None:
        """End the connection at once; every stream fails. Resets of those that run and a GOAWAY are left to send."""
        if self.failure is not None:
            return
        self.outbound.discard_data()
        for stream_id in self.streams:
            self.outbound.control(self._control.reset(stream_id, ErrorCode.CANCEL))
        self._fail(ConnectionLost(message), code)

    def lost(self, error: TransportError) -> None:
        """The socket is gone: every stream fails, and nothing is left to send."""
        if self.failure is None:
            if self.goodbye:
                error = ConnectionLost(f"{error} (the peer had said {self.goodbye})")
            self.fail(error, None)
        self.outbound.discard()
        self._control.forget_streams()

    def header_block_progress(self, *, ended: bool) -> None:
        """Start or stop the clock on a header block."""
        self._liveness.header_block(ended=ended, now=self.now)

    def fail(self, error: TransportError, code: ErrorCode | None) -> None:
        """End the connection: streams fail with ConnectionLost, and only a GOAWAY with `code` is left to send."""
        self.outbound.discard()
        self._fail(error, code)

    def _fail(self, error: TransportError, code: ErrorCode | None) -> None:
        self.failure = error
        if code is not None:
            debug = str(error).encode()[:200]
            self._say_goaway(self._highest_inbound, code, debug)
        for stream in list(self.streams.values()):
            lost = ConnectionLost(str(error))
            lost.__cause__ = error
            self._close(stream, lost, reset_by_us=False)
        self._events.append(ConnectionFailed(error))
