"""The receive windows of a connection and its streams: when the peer gets credit, and when a reader is woken.

F4: a stream gets credit as its messages are consumed. F5: the connection gets it on receipt. See `flow_control`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.protocol import frames
from transport.protocol.flow_control import ReceiveWindow
from transport.protocol.state import StreamState
from transport.protocol.stream_table import RECEIVE_WINDOW_BYTES

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.clock import Clock
    from transport.protocol.events import EventQueue
    from transport.protocol.send_queue import SendQueue
    from transport.protocol.stream import StreamCore
    from transport.protocol.stream_table import StreamTable


class ReceiveWindows:
    """Gives credit to the peer.

    Args:
        config: Bounds of this end.
        clock: Of the connection.
        events: Wake the readers of messages.
        queue: Takes the WINDOW_UPDATEs.
        table: Of the streams.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        clock: Clock,
        events: EventQueue,
        queue: SendQueue,
        table: StreamTable,
    ) -> None:
        self._clock = clock
        self._events = events
        self._send = queue.control
        self._send_own = queue.own
        self._table = table
        self._stream_bytes = config.stream_window_bytes
        self._stream_bytes_max = config.connection_window_bytes
        self.connection = ReceiveWindow(config.connection_window_bytes)

    def announce_connection(self) -> None:
        """Tell the peer of a connection window beyond the first 65 535 octets, which SETTINGS cannot."""
        if extra := self.connection.size - RECEIVE_WINDOW_BYTES:
            self._send(frames.window_update(0, extra))

    def receive_untrusted(self, size: int) -> None:
        """Count a DATA frame of the connection, and give the credit for it back at once (F5).

        Raises:
            FlowControlViolation: The peer sent more than it was allowed.
        """
        self.connection.receive_untrusted(size, None)
        if increment := self.connection.credit(size):
            self._send(frames.window_update(0, increment))

    def credit_stream(self, stream: StreamCore, size: int) -> None:
        """Give credit of `size` octets; a peer that has ended, or that we do not hear any more, needs none."""
        increment = stream.receive_window.credit(size)
        if increment and not stream.remote_ended and stream.state is not StreamState.CLOSED:
            self._send(frames.window_update(stream.stream_id, increment))

    def credit(self, stream: StreamCore) -> None:
        """Announce what was consumed of a stream, if it is worth a frame (F10)."""
        if size := stream.creditable():
            self.credit_stream(stream, size)

    def expect_message(self, stream: StreamCore) -> None:
        """A task waits for the next message: a StreamReadable will come, and a partial message is credited."""
        stream.expecting = True
        self.credit(stream)

    def stream_received(self, stream: StreamCore) -> None:
        """Payload came: wake the reader that waits, or credit the part of its message."""
        if not stream.expecting:
            if stream.inbox and not stream.stalls.behind:
                stream.stalls.fall_behind(self._clock.now)
            return
        if stream.inbox:
            self._events.readable(stream)
        else:
            self.credit(stream)

    def enlarge(self, stream: StreamCore, size: int) -> None:
        """Widen a new stream's window to `size` octets, `connection_window_bytes` at most; never narrow it.

        The increment is on top of the size that our SETTINGS give, which may not have been acknowledged yet.
        """
        increment = min(size, self._stream_bytes_max) - self._stream_bytes
        if increment > 0:
            stream.receive_window.enlarge(increment)
            self._send_own(frames.window_update(stream.stream_id, increment))

    def settings_acknowledged(self) -> None:
        """The peer goes by our SETTINGS from now on: the windows of open streams follow, and new ones begin so."""
        self._table.receive_window_bytes = self._stream_bytes
        for stream in self._table.open.values():
            stream.receive_window.resize(self._stream_bytes)
            self.credit_stream(stream, 0)  # what is owed may be worth a frame in the smaller window
