"""Budgets for frames that cost us work and a peer nearly nothing.

A budget is a token bucket per kind of frame: it refills with time, and with the DATA that we send where a well-behaved
peer answers DATA with such frames. An empty one ends the connection with ENHANCE_YOUR_CALM. In 64 MiB of stream, real
clients were seen to send 3 PINGs (grpcio) and 4 100 WINDOW_UPDATEs (Node, nghttp): each budget is several times that.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from transport.errors import ErrorCode, RemoteProtocolError


class Cost(enum.Enum):
    """A kind of frame under a budget."""

    PING = enum.auto()
    SETTINGS = enum.auto()
    RESET = enum.auto()
    """A stream reset by the peer, or by us for the peer's fault (CVE-2023-44487, CVE-2025-8671)."""
    IGNORED = enum.auto()
    """PRIORITY and unknown frames."""
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
    sent_bytes_each: int = 0
    """Octets of DATA sent that earn one more frame; 0: DATA earns nothing."""


ALLOWANCES: Final[dict[Cost, Allowance]] = {
    Cost.PING: Allowance(burst=200, per_second=10, sent_bytes_each=1 << 18),
    Cost.SETTINGS: Allowance(burst=100, per_second=5),
    Cost.RESET: Allowance(burst=400, per_second=50),
    Cost.IGNORED: Allowance(burst=1_000, per_second=100),
    Cost.EMPTY_DATA: Allowance(burst=200, per_second=50),
    Cost.WINDOW_UPDATE: Allowance(burst=10_000, per_second=500, sent_bytes_each=1 << 11),
    Cost.CONTINUATION: Allowance(burst=100, per_second=10),
}


class Budgets:
    """The budgets of one connection."""

    __slots__ = ("_left", "_sent_bytes_seen", "_updated", "exceeded", "sent_bytes")

    def __init__(self, now: float) -> None:
        self._left = {cost: allowance.burst for cost, allowance in ALLOWANCES.items()}
        self._updated = dict.fromkeys(ALLOWANCES, now)
        self._sent_bytes_seen = dict.fromkeys(ALLOWANCES, 0)
        self.sent_bytes = 0
        """Octets of DATA sent on the connection; its owner counts."""
        self.exceeded: Cost | None = None
        """The budget that was empty, if one was: the connection ends with it."""

    def spend_untrusted(self, cost: Cost, now: float) -> None:
        """Pay for one frame.

        Raises:
            RemoteProtocolError: The budget is empty (ENHANCE_YOUR_CALM).
        """
        allowance = ALLOWANCES[cost]
        left = self._left[cost] - 1
        if left < 0 or left < allowance.burst / 2:  # top up seldom: the arithmetic costs more than the frame
            left += (now - self._updated[cost]) * allowance.per_second
            if allowance.sent_bytes_each:
                left += (self.sent_bytes - self._sent_bytes_seen[cost]) / allowance.sent_bytes_each
            left = min(left, allowance.burst - 1)  # a full budget, less this frame
            self._updated[cost], self._sent_bytes_seen[cost] = now, self.sent_bytes
        if left < 0:
            self.exceeded = cost
            raise RemoteProtocolError(f"too many {cost.name} frames", ErrorCode.ENHANCE_YOUR_CALM)
        self._left[cost] = left
