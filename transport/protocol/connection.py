"""One end of an HTTP/2 connection that carries gRPC calls: bytes and `now` in, events and bytes out.

No clock, socket, task or randomness. A shell fills `buffers`, reports with `bytes_received`, takes `events`, writes
what `data_to_send` hands out, and calls `handle_deadline` when `next_deadline` has come. Verbs are synchronous; one
that raises LocalProtocolError has changed nothing. After ConnectionFailed nothing more is received, and what is left to
send explains the end to the peer.

A connection has parts, each of which is given the parts that it needs, and never the connection:

    FrameReader ─► Inbound ─► PeerEvents ─► Shutdown
                     │            │            │            (HeaderFrames: before PeerEvents, and behind Outbound)
                     ├────────────┴────────────┴─► Outbound ─► SendQueue
                     └─► ReceiveWindows ─────────────────────────┘
                  all of them: StreamTable, Clock, EventQueue, Budgets
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from transport.errors import (
    ConnectionLost,
    ErrorCode,
    LocalProtocolError,
    NeverAnswered,
    NotHttp2,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    TlsExpected,
    TransportError,
    error_code_name,
)
from transport.protocol import frames
from transport.protocol.abuse import Budgets
from transport.protocol.clock import Clock
from transport.protocol.control import ControlPlane
from transport.protocol.counts import FrameCounts
from transport.protocol.events import CallGivenUp, Event, EventQueue
from transport.protocol.header_frames import HeaderFrames
from transport.protocol.inbound import Inbound
from transport.protocol.liveness import Acknowledged, Liveness
from transport.protocol.outbound import Outbound
from transport.protocol.peer_events import PeerEvents
from transport.protocol.reader import FrameReader, Turn
from transport.protocol.receive_windows import ReceiveWindows
from transport.protocol.shutdown import Shutdown
from transport.protocol.stalls import WindowClock
from transport.protocol.stream_table import StreamTable

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol import calls
    from transport.protocol.stream import Buffer, StreamCore

_HEADER_LISTS: Final = 5
"""What is decoded of a header list, in limits on header lists: one that is too long fails its call alone. It is what
Envoy and nghttpx pass on as they come, 60 and 64 KiB in a hundred fields: behind them others share the connection."""
_ALIVE_PING: Final = b"weir-liv"
_UNKNOWN: Final = Acknowledged()
_TLS_ALERT: Final = b"\x15\x03"
"""How a TLS record begins that refuses plaintext (RFC 8446 section 5.1). No first frame of HTTP/2 begins so: a SETTINGS
of a million octets."""
_TEXT: Final = re.compile(rb"[ -~]{%d,}" % frames.HEADER_BYTES)
_FIRST_WORDS_BYTES: Final = 100
"""Of a peer that speaks something else; an error shows them."""


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
        self.clock = clock = Clock(now)
        self.counts = counts = FrameCounts()
        self.events = events = EventQueue()
        """What happened: the shell takes it after whatever it made the connection do."""
        self._budgets = budgets = Budgets(clock)
        header_bytes_max = _HEADER_LISTS * config.header_list_bytes_max
        self._header_frames = header_frames = HeaderFrames(header_bytes_max)
        self._control = control = ControlPlane(config, client=client, encoder=header_frames.encoder)
        self._liveness = liveness = Liveness(
            config, now, idle_timeout_s=0 if client else config.idle_timeout_s
        )
        window_clock, turn = WindowClock(), Turn()
        self.table = table = StreamTable(
            config,
            client=client,
            clock=clock,
            control=control,
            events=events,
            liveness=liveness,
            window_clock=window_clock,
            allocate=allocate,
        )
        self.streams = table.open
        """The open streams, by id."""
        self.outbound = outbound = Outbound(
            config,
            client=client,
            clock=clock,
            events=events,
            budgets=budgets,
            counts=counts,
            control=control,
            header_frames=header_frames,
            table=table,
            window_clock=window_clock,
        )
        """Sends: the verbs of streams."""
        self.windows = ReceiveWindows(config, clock=clock, events=events, queue=outbound.queue, table=table)
        """Credits: what consumers of streams say."""
        self.shutdown = Shutdown(client=client, outbound=outbound, table=table, events=events, counts=counts)
        """Ends the connection."""
        self._inbound = self._make_inbound(turn, header_bytes_max)
        self._reader = FrameReader(
            config,
            self._inbound,
            turn,
            header_block_bytes_max=header_bytes_max,
            expect_preface=not client,
        )
        outbound.queue.control(control.preface)
        self.windows.announce_connection()

    def _make_inbound(self, turn: Turn, header_bytes_max: int) -> Inbound:
        """The receiving side, which needs all the other parts."""
        peer_events = PeerEvents(
            self.config,
            client=self.client,
            control=self._control,
            table=self.table,
            outbound=self.outbound,
            windows=self.windows,
            shutdown=self.shutdown,
            liveness=self._liveness,
            budgets=self._budgets,
            turn=turn,
            events=self.events,
        )
        return Inbound(
            client=self.client,
            header_block_bytes_max=header_bytes_max,
            clock=self.clock,
            budgets=self._budgets,
            counts=self.counts,
            events=self.events,
            liveness=self._liveness,
            header_frames=self._header_frames,
            table=self.table,
            windows=self.windows,
            outbound=self.outbound,
            peer_events=peer_events,
            shutdown=self.shutdown,
        )

    def buffers(self) -> list[memoryview]:
        """Memory for the next octets from the peer, in this order; valid until `bytes_received`."""
        return self._reader.buffers()

    def bytes_received(self, size: int, now: float) -> None:
        """Take octets that were written into `buffers`; what they mean is in `events`."""
        self.clock.now = now
        self._liveness.heard(now)
        if self.shutdown.failure is not None:
            return
        try:
            self._reader.advance_untrusted(size)
            self.outbound.queue.check_backlog_untrusted()
            other = self._spoken_instead()
            if other is not None:
                self.shutdown.fail(other, None)
        except RemoteProtocolError as error:
            self.shutdown.fail(self._spoken_instead() or error, error.code)

    def _spoken_instead(self) -> TransportError | None:
        """What a client's peer speaks instead of HTTP/2, as far as its first octets show it."""
        if not self.client or self._inbound.settings_received:
            return None
        first = self._reader.beginning(_FIRST_WORDS_BYTES)
        if first.startswith(_TLS_ALERT):
            return TlsExpected("the peer answers in TLS")
        # No first frame of HTTP/2 is text: it is SETTINGS, of less than two million octets.
        words = _TEXT.match(first)
        return words and NotHttp2(f"the peer's first words are {words[0].decode()!r}, which is not HTTP/2")

    def receive_data(self, data: Buffer, now: float) -> list[Event]:
        """Take octets of any amount, copied; for shells and tests that have them already."""
        view = memoryview(data)
        while len(view) and self.shutdown.failure is None:
            filled = 0
            for room in self.buffers():
                take = min(len(room), len(view))
                room[:take] = view[:take]
                view = view[take:]
                filled += take
            self.bytes_received(filled, now)
            while self.unread:
                self.bytes_received(0, now)
        return self.events.take()

    @property
    def unread(self) -> bool:
        """Whether frames that have come wait for the next turn: call `bytes_received` with 0 before reading on."""
        return self._reader.unread and self.shutdown.failure is None

    def data_to_send(self, size: int) -> list[Buffer]:
        """About `size` octets for the peer, as buffers to be written in order; they are handed out once."""
        return self.outbound.queue.take(size)

    @property
    def refusal(self) -> str:
        """What the connection was ended for by us: an abuse budget, or an error code, in lower case; or nothing."""
        if self._budgets.exceeded is not None:
            return self._budgets.exceeded.name.lower()
        failure = self.shutdown.failure
        return error_code_name(failure.code).lower() if isinstance(failure, RemoteProtocolError) else ""

    def next_deadline(self) -> float:
        """When `handle_deadline` is due; infinity: never."""
        return min(
            self._liveness.next_deadline(),
            self.table.first_messages.deadline,
            self.table.left_deadline,
            self.outbound.queue.next_deadline,
        )

    def handle_deadline(self, now: float, acknowledged: Acknowledged = _UNKNOWN) -> None:
        """Do what time demands: ask whether the peer lives, or give it up.

        Args:
            now: Seconds of the shell's clock.
            acknowledged: What the peer's system says of what was written.
        """
        self.clock.now = now
        if self.shutdown.failure is not None:
            return
        if why := self._liveness.expired(now, acknowledged):
            begun = not self.client or self._inbound.settings_received or self._reader.beginning(1)
            lost = ConnectionLost if begun else NeverAnswered
            self.shutdown.fail(lost(f"peer given up: {why}"), ErrorCode.NO_ERROR)
        elif self._liveness.idle_expired(now):
            if self.shutdown.draining:
                self.shutdown.close("no call for too long")
            else:
                self.shutdown.drain()
        elif self._liveness.ping_due(now, acknowledged):
            self.outbound.ping(_ALIVE_PING)
        self.outbound.queue.release()
        for stream in self.table.overdue():
            self.outbound.reset(stream)
        for stream in self.table.first_messages.overdue(self.streams.values(), now):
            limit_s = self.config.first_message_timeout_s
            self.outbound.end_call(stream, StatusCode.DEADLINE_EXCEEDED, f"no message within {limit_s:g} s")
            self.events.add(CallGivenUp(stream))

    @property
    def can_open(self) -> bool:
        """Whether the peer takes one more stream now (its SETTINGS are known, its limit is not reached)."""
        return self._inbound.settings_received and len(self.streams) < self._control.peer_streams_max

    @property
    def peer_streams_max(self) -> int:
        """The streams that the peer lets us have open at once; more than there can be, until its SETTINGS say."""
        return self._control.peer_streams_max

    def open_stream(self, headers: calls.Headers, *, window_bytes: int = 0) -> StreamCore:
        """Open a call; see `calls.request_headers`.

        Args:
            headers: That open it.
            window_bytes: What the peer may have on its way to us; the config's `stream_window_bytes` at least, and its
                `connection_window_bytes` at most.

        Raises:
            LocalProtocolError: This is a server, or the peer takes no more streams now.
            ConnectionLost: The connection is gone.
            StreamRefused: The peer takes no new streams, or all stream ids are used up; nothing was sent.
        """
        if not self.client:
            raise LocalProtocolError("a server opens no streams")
        if self.shutdown.failure is not None:
            raise ConnectionLost(str(self.shutdown.failure)) from self.shutdown.failure
        if self.shutdown.closing:
            raise StreamRefused("no new streams can be opened on this connection")
        stream_id = self.table.next_id()
        self.outbound.open_stream(stream_id, headers)
        self.table.highest_outbound = stream_id
        stream = self.table.begin(stream_id)
        stream.headers_sent = True
        self.windows.enlarge(stream, window_bytes)
        return stream

    def lost(self, error: TransportError) -> None:
        """The socket is gone: every stream fails, and nothing is left to send."""
        self.shutdown.lost(error)
