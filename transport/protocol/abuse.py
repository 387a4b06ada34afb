"""Budgets for frames that cost us work and the peer nearly nothing.

A budget is a token bucket per kind of frame: it refills with time, and with what we send where a well-behaved peer
answers that with such frames. An empty one ends the connection with ENHANCE_YOUR_CALM.

Honest clients set what frames earn. grpc-go's BDP estimator sends a PING and a WINDOW_UPDATE for each DATA frame that
arrives, while no PING is out; grpcio sends two WINDOW_UPDATEs for each unary reply; others send a PRIORITY, or one of
RFC 9218, with each request; behind a proxy, one connection carries what many such clients send.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from transport.errors import ErrorCode, RemoteProtocolError

if TYPE_CHECKING:
    from transport.protocol.clock import Clock


class Cost(enum.Enum):
    """A kind of frame under a budget."""

    PING = enum.auto()
    SETTINGS = enum.auto()
    RESET = enum.auto()
    """A stream reset by the peer at once, before we answered, or by us for the peer's fault (CVE-2023-44487,
    CVE-2025-8671)."""
    IGNORED = enum.auto()
    """PRIORITY, unknown frames, and resets of streams that are over."""
    EMPTY_DATA = enum.auto()
    """DATA without payload and without END_STREAM (CVE-2019-9518)."""
    WINDOW_UPDATE = enum.auto()
    CONTINUATION = enum.auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """How a budget fills."""

    burst: float
    """Frames at once, from a full budget."""
    per_second: float
    per_frame: float = 0
    """Earned by each DATA or HEADERS frame that we send."""
    per_byte: float = 0
    """Earned by each octet of DATA that we send."""
    saved: bool = False
    """Whether what we send earns beyond a full budget: a peer may answer it long after it came."""


ALLOWANCES: Final[dict[Cost, Allowance]] = {
    Cost.PING: Allowance(burst=200, per_second=10, per_frame=1, per_byte=1 / (1 << 18)),
    Cost.SETTINGS: Allowance(burst=100, per_second=5),
    # All calls that a peer may have open are cancelled at once when its program ends, or when they share a deadline;
    # and behind a proxy, some of very many calls are cancelled all the time.
    Cost.RESET: Allowance(burst=1_000, per_second=50, per_frame=1 / 4),
    # Netty and okhttp answer each frame that reaches them behind their own reset with another one, Jetty each piece of
    # a frame that it reads: a line and a window full of them.
    Cost.IGNORED: Allowance(burst=1_000, per_second=100, per_frame=1, per_byte=1 / (1 << 10), saved=True),
    Cost.EMPTY_DATA: Allowance(burst=200, per_second=50),
    # A peer may give each octet back by itself, to the stream and to the connection. That needs no answer and no
    # memory, small windows are not used at once (`small_frames`), and others have their turns: slow, and allowed.
    Cost.WINDOW_UPDATE: Allowance(burst=10_000, per_second=500, per_frame=3, per_byte=2, saved=True),
    # The longest list that fails its call alone comes in five frames of 16 KiB: its answer pays for all but the first.
    Cost.CONTINUATION: Allowance(burst=100, per_second=10, per_frame=4),
}


class Budgets:
    """The budgets of one connection."""

    __slots__ = (
        "_clock",
        "_left",
        "_sent_bytes_seen",
        "_sent_frames_seen",
        "_updated",
        "exceeded",
        "sent_bytes",
        "sent_frames",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = {cost: allowance.burst for cost, allowance in ALLOWANCES.items()}
        self._updated = dict.fromkeys(ALLOWANCES, clock.now)
        self._sent_bytes_seen = dict.fromkeys(ALLOWANCES, 0)
        self._sent_frames_seen = dict.fromkeys(ALLOWANCES, 0)
        self.sent_bytes = 0
        """Octets of DATA sent on the connection; counted where they are framed."""
        self.sent_frames = 0
        """DATA and HEADERS frames sent on the connection; counted where they are made."""
        self.exceeded: Cost | None = None
        """The budget that was empty, if one was: the connection ends with it."""

    def spend_untrusted(self, cost: Cost) -> None:
        """Pay for one frame.

        Raises:
            RemoteProtocolError: The budget is empty (ENHANCE_YOUR_CALM).
        """
        allowance = ALLOWANCES[cost]
        left = self._left[cost] - 1
        if left < 0 or left < allowance.burst / 2:  # top up seldom: the arithmetic costs more than the frame
            now = self._clock.now
            full = allowance.burst - 1  # less this frame
            earned = (self.sent_frames - self._sent_frames_seen[cost]) * allowance.per_frame
            earned += (self.sent_bytes - self._sent_bytes_seen[cost]) * allowance.per_byte
            left = min(left + (now - self._updated[cost]) * allowance.per_second, full)
            left = left + earned if allowance.saved else min(left + earned, full)
            self._updated[cost] = now
            self._sent_frames_seen[cost], self._sent_bytes_seen[cost] = self.sent_frames, self.sent_bytes
        if left < 0:
            self.exceeded = cost
            raise RemoteProtocolError(f"too many {cost.name} frames", ErrorCode.ENHANCE_YOUR_CALM)
        self._left[cost] = left
