"""When to PING the peer, and when to give it up: deadlines only, no clock.

A peer that sends anything is alive. One that is silent for `ping_interval_s` gets a PING; if it stays silent for
`ping_timeout_s` more it is dead. A slow consumer answers PINGs (its reader awaits nothing but the socket), so a slow
peer is not taken for a dead one. Nor is one behind a slow line: a PING goes out behind what was written before it, and
has all the time that this takes, as long as the peer's system acknowledges it. A connection without calls has an idle
timeout as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transport.config import TransportConfig


class Acknowledged(NamedTuple):
    """What the peer's TCP has said of what was written, whether or not the peer reads."""

    segments: int = 0
    """Segments that came from it, ever; 0: unknown."""
    more: bool = False
    """Whether something that was written is not acknowledged."""

    def goes_on(self, before: Acknowledged) -> bool:
        """Whether something was unacknowledged `before`, and a segment has come since.

        It need not acknowledge anything new: on a line with a long queue much is sent, and acknowledged, twice.
        """
        return before.more and self.segments > before.segments


class Liveness:
    """The time limits of one connection; `now` is any monotonic clock, in seconds."""

    __slots__ = (
        "_config",
        "_header_deadline",
        "_heard",
        "_idle_limit_s",
        "_idle_since",
        "_ping_behind",
        "_ping_sent",
        "_settings_acked",
        "_settings_seen",
        "_started",
    )

    def __init__(self, config: TransportConfig, now: float, *, idle_timeout_s: float = 0.0) -> None:
        self._config = config
        self._started = self._heard = now
        self._idle_since = now  # infinity: it is not idle
        self._idle_limit_s = idle_timeout_s
        self._ping_sent: float | None = None
        self._ping_behind = Acknowledged()
        self._settings_seen = self._settings_acked = False
        self._header_deadline = math.inf

    def heard(self, now: float) -> None:
        """The peer sent something."""
        self._heard = now
        self._ping_sent = None

    def calls_began(self) -> None:
        """The connection's first call has begun."""
        self._idle_since = math.inf

    def calls_ended(self, now: float) -> None:
        """Its last call has ended."""
        self._idle_since = now

    def idle_expired(self, now: float) -> bool:
        """Whether there was no call for too long. True again `handshake_timeout_s` later, if there still is none."""
        if not self._idle_limit_s or now < self._idle_since + self._idle_limit_s:
            return False
        self._idle_since, self._idle_limit_s = now, self._config.handshake_timeout_s
        return True

    def settings_seen(self) -> None:
        """The peer's SETTINGS came."""
        self._settings_seen = True

    def settings_acknowledged(self) -> None:
        """The peer acknowledged ours."""
        self._settings_acked = True

    def header_block(self, *, ended: bool, now: float) -> None:
        """A part of a header block came; `ended` if it was the last."""
        if ended:
            self._header_deadline = math.inf
        elif self._header_deadline == math.inf:
            self._header_deadline = now + self._config.handshake_timeout_s

    def next_deadline(self) -> float:
        """When `expired`, `idle_expired` or `ping_due` may next be true; infinity: never."""
        deadline = self._header_deadline
        if not (self._settings_seen and self._settings_acked):
            deadline = min(deadline, self._started + self._config.handshake_timeout_s)
        elif self._config.ping_interval_s:
            if self._ping_sent is None:
                deadline = min(deadline, self._heard + self._config.ping_interval_s)
            else:
                deadline = min(deadline, self._ping_sent + self._config.ping_timeout_s)
        if self._idle_limit_s:
            deadline = min(deadline, self._idle_since + self._idle_limit_s)
        return deadline

    def ping_due(self, now: float, acknowledged: Acknowledged) -> bool:
        """Whether a PING should go out now; counts it as sent, behind what is on its way."""
        if not self._config.ping_interval_s or self._ping_sent is not None or not self._settings_acked:
            return False
        if now < self._heard + self._config.ping_interval_s:
            return False
        self._ping_sent, self._ping_behind = now, acknowledged
        return True

    def expired(self, now: float, acknowledged: Acknowledged) -> str | None:
        """Why the connection is to be given up, or None; a PING that may not have arrived gets its time once more."""
        limit = self._config.handshake_timeout_s
        if now >= self._started + limit:
            if not self._settings_seen:
                return f"no SETTINGS within {limit:g} s"
            if not self._settings_acked:
                return f"our SETTINGS were not acknowledged within {limit:g} s"
        if now >= self._header_deadline:
            return f"a header block was not completed within {limit:g} s"
        if self._ping_sent is not None and now >= self._ping_sent + self._config.ping_timeout_s:
            if acknowledged.goes_on(self._ping_behind):
                self._ping_sent, self._ping_behind = now, acknowledged
                return None
            return f"silent for {now - self._heard:.0f} s, PING included"
        return None
