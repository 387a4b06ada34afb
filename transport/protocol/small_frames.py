"""Silly window avoidance: when a small window is worth a frame (CVE-2019-9511, and RFC 1122 section 4.2.3.4).

A peer that opens its window octet by octet would get a long message in frames of one octet. So a stream that has used
up its window waits until the window covers what is queued, or FRAME_BYTES_MIN, or half of the largest window that the
peer ever gave: a peer with little memory gives little, and is served at once. After `HOLD_S` the stream sends what
fits, so none waits for ever. A peer whose windows are always small gets a number of small frames a second, and beyond
that it waits as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transport.protocol.flow_control import SendWindow
    from transport.protocol.stream import StreamCore

FRAME_BYTES_MIN: Final = 1_024
"""Octets of DATA that are worth a frame, even if more are queued."""
HOLD_S: Final = 0.2
"""The longest that octets wait for a larger window."""
_SMALL_BURST: Final = 10_000
_SMALL_PER_SECOND: Final = 500
"""Frames of less than FRAME_BYTES_MIN, into small windows, that a connection sends without waiting for larger ones."""


def worth_a_frame(window: SendWindow, queued_bytes: int) -> bool:
    """Whether DATA should go out into a window that was opened just now."""
    return window.available >= min(queued_bytes, FRAME_BYTES_MIN, max(1, window.largest // 2))


class SmallFrames:
    """How many small frames a connection may send at once: a token bucket.

    Args:
        now: Seconds of the shell's clock.
    """

    __slots__ = ("_left", "_updated")

    def __init__(self, now: float) -> None:
        self._left: float = _SMALL_BURST
        self._updated = now

    def take(self, now: float) -> bool:
        """Whether one more may be sent now; counts it."""
        if self._left < _SMALL_BURST / 2:
            self._left = min(self._left + (now - self._updated) * _SMALL_PER_SECOND, _SMALL_BURST)
            self._updated = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Held:
    """The streams of one connection whose windows are not worth a frame yet, and the connection if its is not."""

    __slots__ = ("_connection_due", "_streams")

    def __init__(self) -> None:
        self._streams: dict[StreamCore, float] = {}  # to when they are due, the earliest first
        self._connection_due = math.inf

    def hold_stream(self, stream: StreamCore, now: float) -> None:
        """Let a stream wait, from its first small window on."""
        self._streams.setdefault(stream, now + HOLD_S)

    def release_stream(self, stream: StreamCore) -> None:
        """The stream's window is worth a frame. One that is over stays until it is due, and sends nothing then."""
        self._streams.pop(stream, None)

    def hold_connection(self, now: float) -> None:
        """Let all streams wait for the connection's window, from its first small opening on."""
        if self._connection_due == math.inf:
            self._connection_due = now + HOLD_S

    def release_connection(self) -> None:
        """The connection's window is worth a frame."""
        self._connection_due = math.inf

    @property
    def connection(self) -> bool:
        """Whether the connection's window is held."""
        return self._connection_due != math.inf

    @property
    def deadline(self) -> float:
        """When `due` next has something; infinity: never."""
        first = next(iter(self._streams.values()), math.inf)
        return min(first, self._connection_due)

    def due(self, now: float) -> list[StreamCore]:
        """The streams that have waited long enough, which are held no more; nor is the connection, if it has."""
        if now >= self._connection_due:
            self.release_connection()
        due = []
        for stream, at in self._streams.items():
            if now < at:
                break
            due.append(stream)
        for stream in due:
            del self._streams[stream]
        return due

    def clear(self) -> None:
        """Forget everything."""
        self._streams.clear()
        self.release_connection()
