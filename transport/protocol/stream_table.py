"""The streams of a connection: which are open, and what is remembered of those that are closed.

Every stream begins and ends here. How it ends on the wire is decided by `outbound`, `peer_events` or `shutdown`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.protocol.events import StreamClosed, StreamsAvailable
from transport.protocol.first_message import FirstMessages
from transport.protocol.frames import STREAM_ID_MAX
from transport.protocol.memory import ReceiveMemory
from transport.protocol.state import StreamInput, StreamState
from transport.protocol.stream import StreamCore

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.errors import TransportError
    from transport.protocol.clock import Clock
    from transport.protocol.control import ControlPlane
    from transport.protocol.events import EventQueue
    from transport.protocol.liveness import Liveness
    from transport.protocol.stalls import WindowClock

RECEIVE_WINDOW_BYTES: Final = 65_535
"""What the peer goes by until it has our SETTINGS (section 6.9.2)."""
_CLOSED_REMEMBERED: Final = 1_000
"""Closed streams of which something is kept."""
_LEFT_S: Final = 10.0
"""How long the peer may take to end a call that was left. Nobody waits for it, but a reset is more work for both."""
_TRUSTED_BYTES: Final = 64 * 1024
"""Memory that a server takes for a message before any of it has come; a client has chosen its server."""


@dataclass(slots=True)
class Closed:
    """What is remembered of a closed stream, to judge late frames by."""

    reset_by_us: bool
    reset_by_peer: bool = False


class StreamTable:
    """The open and the remembered streams of one connection.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        clock: Of the connection.
        control: Knows the window that the peer gives to a new stream.
        events: Report the streams that are closed.
        liveness: Follows whether any stream is open.
        window_clock: Of the connection's send window, for the streams' accounts.
        allocate: Makes the writable memory of one long message.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        client: bool,
        clock: Clock,
        control: ControlPlane,
        events: EventQueue,
        liveness: Liveness,
        window_clock: WindowClock,
        allocate: Callable[[int], Any],
    ) -> None:
        self._config = config
        self._client = client
        self._clock = clock
        self._control = control
        self._events = events
        self._liveness = liveness
        self._window_clock = window_clock
        self._allocate = allocate
        self.open: dict[int, StreamCore] = {}
        """By id, in the order in which they were opened."""
        self.closed: OrderedDict[int, Closed] = OrderedDict()
        """By id; the newest ones."""
        self.highest_inbound = 0
        """Id of the newest stream that the peer opened."""
        self.highest_outbound = 0
        """Id of the newest stream that we opened."""
        self.receive_window_bytes = max(RECEIVE_WINDOW_BYTES, config.stream_window_bytes)
        """Window of a new stream. Until the peer has acknowledged our SETTINGS, it may go by them or not: Bun, and
        older okhttp, send what a wider window lets out, and acknowledge it behind that."""
        self.first_messages = FirstMessages(0.0 if client else config.first_message_timeout_s)
        self.receive_memory = None if client else ReceiveMemory(config.receive_memory_bytes_max)
        """What messages take until they are consumed; a client has chosen its server, and its own windows."""
        self._left: dict[StreamCore, float] = {}
        """Calls that were left, and when they are overdue; the first one is so first."""

    def leave(self, stream: StreamCore) -> None:
        """Nobody reads the rest of a call whose end of ours is said; it is overdue if the peer's takes long."""
        if stream.state is not StreamState.CLOSED:
            self._left[stream] = self._clock.now + _LEFT_S

    @property
    def left(self) -> int:
        """How many calls were left and are not over."""
        return len(self._left)

    @property
    def left_deadline(self) -> float:
        """When the first call that was left is overdue; infinity: there is none."""
        return next(iter(self._left.values()), math.inf)

    def overdue(self) -> list[StreamCore]:
        """The calls that were left and are overdue."""
        return [stream for stream, deadline in self._left.items() if deadline <= self._clock.now]

    def next_id(self) -> int:
        """The id of the next stream that we open.

        Raises:
            LocalProtocolError: The peer has as many of ours open as it takes.
        """
        if len(self.open) >= self._control.peer_streams_max:
            raise LocalProtocolError(f"the peer takes {self._control.peer_streams_max} streams at once")
        return self.highest_outbound + 2 if self.highest_outbound else 1

    @property
    def ids_used_up(self) -> bool:
        """Whether we have opened all 2^30 streams that a connection can have (section 5.1.1)."""
        return self.highest_outbound >= STREAM_ID_MAX

    def begin(self, stream_id: int) -> StreamCore:
        """Make an open stream, with the windows that both ends give to a new one."""
        now = self._clock.now
        stream = self.open[stream_id] = StreamCore(
            stream_id,
            send_window_bytes=self._control.peer_stream_window_bytes,
            receive_window_bytes=self.receive_window_bytes,
            message_bytes_max=self._config.message_bytes_max,
            allocate=self._allocate,
            trusted_bytes=self._config.message_bytes_max if self._client else _TRUSTED_BYTES,
            receive_memory=self.receive_memory,
            now=now,
            connection_clock=self._window_clock,
        )
        self._liveness.calls_began()
        self.first_messages.opened(now)
        return stream

    def close(
        self,
        stream: StreamCore,
        failure: TransportError | None,
        *,
        reset_by_us: bool,
        reset_by_peer: bool = False,
    ) -> None:
        """End a stream: what is queued is dropped, what was received can still be taken.

        Args:
            stream: One of the open ones.
            failure: Why it ended before its time; None: both ends were sent.
            reset_by_us: Whether the peer may not know yet, and go on sending.
            reset_by_peer: Whether the peer has sent RST_STREAM.
        """
        stream.advance(StreamInput.RESET)
        stream.failure = failure
        stream.discard_outgoing()
        stream.release_memory()
        stream.stalls.finish(self._clock.now)
        del self.open[stream.stream_id]
        self._left.pop(stream, None)
        if not self.open:
            self._liveness.calls_ended(self._clock.now)
        self.remember(stream.stream_id, Closed(reset_by_us, reset_by_peer))
        self._events.add(StreamClosed(stream))
        self._events.readable(stream)
        self._events.writable(stream)
        if self._client:
            self._events.add(StreamsAvailable())

    def remember(self, stream_id: int, closed: Closed) -> None:
        """Remember a closed stream, and forget the oldest of too many."""
        self.closed[stream_id] = closed
        if len(self.closed) > _CLOSED_REMEMBERED:
            self.closed.popitem(last=False)

    def ignores(self, stream_id: int) -> bool:
        """Whether frames of a closed stream may have been on their way when we reset it (section 5.1).

        A client may have reset any of those that it has forgotten, as when thousands of calls share a deadline.
        """
        closed = self.closed.get(stream_id)
        return self._client if closed is None else closed.reset_by_us

    @property
    def forgets(self) -> bool:
        """Whether streams may have been closed of which nothing is remembered any more."""
        return len(self.closed) >= _CLOSED_REMEMBERED

    def check_not_idle_untrusted(self, stream_id: int, what: str) -> None:
        """Raise if a stream was never opened (section 5.1, idle)."""
        odd = bool(stream_id & 1)
        limit = self.highest_outbound if self._client else self.highest_inbound
        if not odd or stream_id > limit:
            raise RemoteProtocolError(f"{what} on idle stream {stream_id}")
