"""What waits to be written on a connection: control frames first, then DATA, fairly across streams.

Streams that have octets and window take turns, one DATA frame each (F9). A stream without window leaves the round until
a WINDOW_UPDATE or SETTINGS brings it back; without connection window every stream keeps its place. Nothing is copied:
buffers are handed out as they were queued, with 9 octets in front of each frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from transport.errors import ErrorCode, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.flow_control import SendWindow
from transport.protocol.small_frames import FRAME_BYTES_MIN, Held, SmallFrames, worth_a_frame
from transport.protocol.state import SENDABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.config import TransportConfig
    from transport.protocol.abuse import Budgets
    from transport.protocol.clock import Clock
    from transport.protocol.events import EventQueue
    from transport.protocol.stalls import WindowClock
    from transport.protocol.stream import Buffer, StreamCore

_BUFFERS_MAX: Final = 900
"""Buffers of one write; Linux takes 1 024 (IOV_MAX)."""
_PEER_FRAME_BYTES: Final = 16_384
"""The longest frame that a peer takes until its SETTINGS say more (section 6.5.2)."""


class SendQueue:
    """Everything waiting to be written on one connection.

    Args:
        config: Bounds.
        clock: Of the connection.
        budgets: Count what is framed.
        events: Tell waiting senders of room in their send buffers.
        window_clock: Runs while the connection's window is used up.
        finish: Called when all octets of a stream whose end was requested are framed; returns the frames of the end.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        clock: Clock,
        budgets: Budgets,
        events: EventQueue,
        window_clock: WindowClock,
        finish: Callable[[StreamCore], bytes],
    ) -> None:
        self._frame_bytes = config.outbound_frame_bytes_max
        self._shared_bytes = config.shared_frame_bytes_max
        self._backlog_bytes_max = config.control_backlog_bytes_max
        self._send_buffer_bytes = config.send_buffer_bytes
        self._clock = clock
        self._budgets = budgets
        self._events = events
        self._window_clock = window_clock
        self._finish = finish
        self._control: list[bytes] = []
        self._control_bytes = 0
        self._own_bytes = 0  # those of them that are no replies
        self._round: deque[StreamCore] = deque()
        self._held = Held()
        self._small_frames = SmallFrames(clock.now)
        self.window = SendWindow(65_535)
        """The connection's window; section 6.9.2: it starts at 65 535 whatever the settings say."""
        self._frame_limit = self._shared_limit = 0
        self.set_peer_frame_bytes_max(_PEER_FRAME_BYTES)

    def set_peer_frame_bytes_max(self, size: int) -> None:
        """Follow the peer's SETTINGS_MAX_FRAME_SIZE."""
        self._frame_limit = min(self._frame_bytes, size)
        self._shared_limit = min(self._shared_bytes, self._frame_limit)

    def control(self, data: bytes) -> None:
        """Queue frames other than DATA; they overtake all DATA."""
        if data:
            self._control.append(data)
            self._control_bytes += len(data)

    def own(self, data: bytes) -> None:
        """Queue frames by which a client opens or resets a call: no replies, whatever the peer reads."""
        self._own_bytes += len(data)
        self.control(data)

    def check_backlog_untrusted(self) -> None:
        """Raise if the peer makes us answer more than it reads.

        Raises:
            RemoteProtocolError: ENHANCE_YOUR_CALM.
        """
        replies_bytes = self._control_bytes - self._own_bytes
        if replies_bytes > self._backlog_bytes_max:
            raise RemoteProtocolError(
                f"{replies_bytes} octets of replies wait to be read", ErrorCode.ENHANCE_YOUR_CALM
            )

    def schedule(self, stream: StreamCore) -> None:
        """Let a stream take part if it has something to send and may."""
        if stream.scheduled or not stream.headers_sent or stream.state not in SENDABLE:
            return
        if (stream.outgoing_bytes and stream.send_window.available > 0) or (
            stream.end_requested and not stream.outgoing_bytes
        ):
            stream.scheduled = True
            self._round.append(stream)

    def open_stream_untrusted(self, stream: StreamCore, increment: int) -> None:
        """Apply a WINDOW_UPDATE of a stream: it sends at once if that is worth a frame, else a little later.

        Raises:
            FlowControlViolation: The window would exceed 2^31-1; nothing has changed.
        """
        window, now = stream.send_window, self._clock.now
        window.open_untrusted(increment, stream.stream_id)
        stream.stalls.set_window(now, shut=window.available <= 0)
        if self._goes_out(window, stream.outgoing_bytes):
            self._held.release_stream(stream)
            self.schedule(stream)
        elif not stream.scheduled and stream.outgoing_bytes and window.available > 0:
            self._held.hold_stream(stream, now)

    def open_connection_untrusted(self, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the connection, as for a stream.

        Raises:
            FlowControlViolation: The window would exceed 2^31-1; nothing has changed.
        """
        self.window.open_untrusted(increment, None)
        self._window_clock.set(self._clock.now, shut=False)
        if self._round and not self._goes_out(self.window, self._round[0].outgoing_bytes):
            self._held.hold_connection(self._clock.now)
        else:
            self._held.release_connection()

    def shift_untrusted(self, stream: StreamCore, delta: int) -> None:
        """Apply a change of the peer's SETTINGS_INITIAL_WINDOW_SIZE to a stream (F6, F7).

        Raises:
            FlowControlViolation: The window would exceed 2^31-1.
        """
        stream.send_window.shift_untrusted(delta)
        stream.stalls.set_window(self._clock.now, shut=stream.send_window.available <= 0)
        self.schedule(stream)

    def _goes_out(self, window: SendWindow, queued_bytes: int) -> bool:
        if not worth_a_frame(window, queued_bytes):
            return False
        return window.available >= min(queued_bytes, FRAME_BYTES_MIN) or self._small_frames.take(
            self._clock.now
        )

    @property
    def next_deadline(self) -> float:
        """When `release` is due; infinity: never."""
        return self._held.deadline

    def release(self) -> None:
        """Send what fits into the windows that were too small for too long."""
        for stream in self._held.due(self._clock.now):
            self.schedule(stream)

    @property
    def _window_available(self) -> int:
        return 0 if self._held.connection else self.window.available

    @property
    def pending(self) -> bool:
        """Whether `take` has anything to hand out now."""
        if self._control:
            return True
        if not self._round:
            return False
        return self._window_available > 0 or any(not stream.outgoing_bytes for stream in self._round)

    def take(self, size: int) -> list[Buffer]:
        """Hand out about `size` octets (more by up to one frame). The caller owns sending them."""
        out: list[Buffer] = []
        total = self._control_bytes
        if self._control:
            out.append(b"".join(self._control))
            self._control.clear()
            self._control_bytes = self._own_bytes = 0
        waiting: list[StreamCore] = []  # for connection window
        while self._round and total < size and len(out) < _BUFFERS_MAX:
            stream = self._round.popleft()
            stream.scheduled = False
            if stream.state not in SENDABLE:
                continue  # it was closed while it stood in line
            if stream.outgoing_bytes:
                count = min(
                    stream.outgoing_bytes,
                    self._shared_limit if self._round else self._frame_limit,
                    stream.send_window.available,
                    self._window_available,
                )
                if count <= 0:
                    if stream.send_window.available > 0:
                        waiting.append(stream)
                    continue
                total += self._frame(stream, count, out)
            if stream.end_requested and not stream.outgoing_bytes:
                end = self._finish(stream)
                out.append(end)
                total += len(end)
            else:
                self.schedule(stream)
        for stream in reversed(waiting):
            stream.scheduled = True
            self._round.appendleft(stream)
        return out

    def _frame(self, stream: StreamCore, count: int, out: list[Buffer]) -> int:
        out.append(frames.data_header(stream.stream_id, count))
        out += stream.take_outgoing(count)
        stream.send_window.claim(count)
        self.window.claim(count)
        if stream.send_window.available <= 0:
            stream.stalls.set_window(self._clock.now, shut=True)
        if self.window.available <= 0:
            self._window_clock.set(self._clock.now, shut=True)
        budgets = self._budgets
        budgets.sent_bytes += count
        budgets.sent_frames += 1
        if stream.sender_waiting and stream.outgoing_bytes < self._send_buffer_bytes:
            self._events.writable(stream)
        return frames.HEADER_BYTES + count

    def discard(self) -> None:
        """Forget everything: the connection is gone."""
        self._control.clear()
        self._control_bytes = self._own_bytes = 0
        self.discard_data()

    def discard_data(self) -> None:
        """Forget all DATA; other frames, resets among them, are still sent."""
        self._held.clear()
        self._round.clear()
