"""What a connection still has to send: control frames first, then DATA, fairly across streams.

Fairness is round robin by one DATA frame each, over the streams that have octets and window (F9). A stream without
window leaves the round until a WINDOW_UPDATE or SETTINGS brings it back; without connection window everybody waits in
place. Nothing is copied: buffers are handed out as they were queued, with 9 octets in front of each frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from transport.errors import ErrorCode, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.flow_control import SendWindow
from transport.protocol.small_frames import FRAME_BYTES_MIN, Held, SmallFrames, worth_a_frame
from transport.protocol.stalls import WindowClock
from transport.protocol.state import SENDABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.config import TransportConfig
    from transport.protocol.stream import Buffer, StreamCore

_BUFFERS_MAX: Final = 900
"""Buffers of one write; Linux takes 1 024 (IOV_MAX)."""


class SendQueue:
    """Everything waiting to be written on one connection.

    Args:
        config: Bounds.
        finish: Called when all octets of a stream whose end was requested are framed; returns the frames of the end.
        sent: Called with the octets of DATA framed.
        room: Called when a stream with a waiting sender has room in its send buffer.
        now: Seconds of the shell's clock.
    """

    def __init__(
        self,
        config: TransportConfig,
        *,
        finish: Callable[[StreamCore], bytes],
        sent: Callable[[int], None],
        room: Callable[[StreamCore], None],
        now: float = 0.0,
    ) -> None:
        self._frame_bytes = config.outbound_frame_bytes_max
        self._shared_bytes = config.shared_frame_bytes_max
        self._backlog_bytes_max = config.control_backlog_bytes_max
        self._send_buffer_bytes = config.send_buffer_bytes
        self._finish = finish
        self._sent = sent
        self._room = room
        self._control: list[bytes] = []
        self._control_bytes = 0
        self._round: deque[StreamCore] = deque()
        self._held = Held()
        self._small_frames = SmallFrames(now)
        self.window = SendWindow(65_535)
        """The connection's window; section 6.9.2: it starts at 65 535 whatever the settings say."""
        self.window_clock = WindowClock()
        self.now = now
        """Seconds of the shell's clock, as far as it was told."""
        self.peer_frame_bytes_max = frames_min = 16_384
        self._frame_limit = min(self._frame_bytes, frames_min)
        """Of a stream that sends alone."""
        self._shared_limit = min(self._shared_bytes, self._frame_limit)

    def set_peer_frame_bytes_max(self, size: int) -> None:
        """Follow the peer's SETTINGS_MAX_FRAME_SIZE."""
        self.peer_frame_bytes_max = size
        self._frame_limit = min(self._frame_bytes, size)
        self._shared_limit = min(self._shared_bytes, self._frame_limit)

    def control(self, data: bytes) -> None:
        """Queue frames other than DATA; they overtake all DATA."""
        if data:
            self._control.append(data)
            self._control_bytes += len(data)

    def check_backlog_untrusted(self) -> None:
        """Raise if the peer makes us answer more than it reads.

        Raises:
            RemoteProtocolError: ENHANCE_YOUR_CALM.
        """
        if self._control_bytes > self._backlog_bytes_max:
            raise RemoteProtocolError(
                f"{self._control_bytes} octets of replies wait to be read", ErrorCode.ENHANCE_YOUR_CALM
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

    def stream_opened(self, stream: StreamCore) -> None:
        """The peer has opened a stream's window: take part at once if it is worth a frame, else a little later."""
        if self._goes_out(stream.send_window, stream.outgoing_bytes):
            self._held.release_stream(stream)
            self.schedule(stream)
        elif not stream.scheduled and stream.outgoing_bytes and stream.send_window.available > 0:
            self._held.hold_stream(stream, self.now)

    def connection_opened(self) -> None:
        """The peer has opened the connection's window: go on if it is worth a frame, else a little later."""
        if not self._round:
            return
        if self._goes_out(self.window, self._round[0].outgoing_bytes):
            self._held.release_connection()
        else:
            self._held.hold_connection(self.now)

    def _goes_out(self, window: SendWindow, queued_bytes: int) -> bool:
        if not worth_a_frame(window, queued_bytes):
            return False
        return window.available >= min(queued_bytes, FRAME_BYTES_MIN) or self._small_frames.take(self.now)

    @property
    def next_deadline(self) -> float:
        """When `release` is due; infinity: never."""
        return self._held.deadline

    def release(self) -> None:
        """Send what fits into the windows that were too small for too long."""
        for stream in self._held.due(self.now):
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
        """Hand out about `size` octets (more by up to one frame). Whoever takes them owns sending them."""
        out: list[Buffer] = []
        total = self._control_bytes
        if self._control:
            out.append(b"".join(self._control))
            self._control.clear()
            self._control_bytes = 0
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
            stream.stalls.set_window(self.now, shut=True)
        if self.window.available <= 0:
            self.window_clock.set(self.now, shut=True)
        self._sent(count)
        if stream.sender_waiting and stream.outgoing_bytes < self._send_buffer_bytes:
            self._room(stream)
        return frames.HEADER_BYTES + count

    def discard(self) -> None:
        """Forget everything: the connection is gone."""
        self._control.clear()
        self._control_bytes = 0
        self.discard_data()

    def discard_data(self) -> None:
        """Forget all DATA; other frames, resets among them, are still sent."""
        self._held.clear()
        self._round.clear()
