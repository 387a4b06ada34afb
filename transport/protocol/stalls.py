"""Where a stream's time goes: at each instant it runs, or is blocked for exactly one reason. Pure; `now` is passed in.

An account has one current reason. Several tasks of a stream may wait at once, for different things; the first of
`_PRECEDENCE` counts. A task that waits for its octets to go out is held up by the stream's window, by the connection's,
or else by the socket. Changes of the stream's window are reported to the account; the connection's `WindowClock` is
read when time is booked, so that no change of it touches every stream.

Invariants:

1. The times of an account add up to its lifetime, to the nanosecond: time is booked in whole nanoseconds, and between
   two bookings there is one reason (or a window's part and the socket's rest).
2. Nothing is booked twice or backwards: a `now` before the last booking counts as that booking's. What `times` has told
   only grows, then, though a wait may be said to have ended before.
3. Where nothing blocks and nothing changes, nothing here is called.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


class StallReason(enum.IntEnum):
    """What a stream does or waits for, as seen from one of its ends."""

    RUNNING = 0
    """Nothing blocks it: it works, or has nothing to do."""
    CREDIT = 1
    """The consumer at the other end has not granted more."""
    STREAM_WINDOW = 2
    """Octets are queued, and the stream's HTTP/2 window is used up: the other end has not taken what it has."""
    CONNECTION_WINDOW = 3
    """Octets are queued, and the connection's window is used up."""
    SOCKET = 4
    """Octets are queued, and the network, or this end's writer, has not taken them."""
    STORAGE = 5
    """The disk, a commit, or the decoding of what was read."""
    CONSUMER = 6
    """Messages have arrived, and this end's application has not taken them."""
    PEER = 7
    """This end waits for a message, and the other end has not sent one: its own account tells why."""

    @property
    def label(self) -> str:
        """The name in trailers, metrics and views."""
        return self.name.lower()


REASONS: Final = tuple(StallReason)
_PRECEDENCE: Final = (
    StallReason.SOCKET,
    StallReason.CREDIT,
    StallReason.STORAGE,
    StallReason.CONSUMER,
    StallReason.PEER,
)
"""Of several waits at once the first of these counts: what the stream's output waits for, before its input."""
# Plain names: looking a member up in an enumeration costs more than booking does.
_RUNNING, _SOCKET = StallReason.RUNNING, StallReason.SOCKET
_CONSUMER, _STREAM_WINDOW = StallReason.CONSUMER, StallReason.STREAM_WINDOW
_FIRST_OF: Final = tuple(
    next((wait for wait in _PRECEDENCE if waits >> wait & 1), _RUNNING) for waits in range(1 << len(REASONS))
)
"""The reason that counts, by a set of waits: bit n is the wait of number n."""
_LABELS: Final = tuple(reason.label.encode() for reason in REASONS)
_BY_LABEL: Final = {reason.label: reason for reason in REASONS}
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StallTimes:
    """Time by reason. Adds up, with others and within."""

    nanoseconds: tuple[int, ...] = (0,) * len(REASONS)
    """In the order of `StallReason`."""

    def seconds(self, reason: StallReason) -> float:
        """Time of one reason."""
        return self.nanoseconds[reason] / _NS

    @property
    def total_s(self) -> float:
        """Time of all reasons, RUNNING included: the lifetime of a stream, or of several added up."""
        return sum(self.nanoseconds) / _NS

    @property
    def longest(self) -> StallReason:
        """The reason with the most time; RUNNING if there was no time."""
        return REASONS[max(range(len(REASONS)), key=self.nanoseconds.__getitem__)]

    def __add__(self, other: StallTimes) -> StallTimes:
        return StallTimes(
            tuple(ours + theirs for ours, theirs in zip(self.nanoseconds, other.nanoseconds, strict=True))
        )

    def __iter__(self) -> Iterator[tuple[StallReason, float]]:
        """Reasons and seconds."""
        return ((reason, self.nanoseconds[reason] / _NS) for reason in REASONS)

    def to_dict(self) -> dict[str, float]:
        """Seconds by label, for JSON."""
        return {reason.label: seconds for reason, seconds in self}

    def encode(self) -> bytes:
        """As a trailer's value: `running=1200;credit=31`, whole microseconds, reasons without any left out."""
        return b";".join(
            b"%s=%d" % (label, spent // 1000)
            for label, spent in zip(_LABELS, self.nanoseconds, strict=True)
            if spent >= 1000
        )

    @classmethod
    def decode_untrusted(cls, value: bytes) -> StallTimes:
        """Read a peer's trailer; what cannot be read, or has a name that is not known here, is left out."""
        found = [0] * len(REASONS)
        for part in value[:1024].decode("ascii", "replace").split(";"):
            label, _, count = part.strip().partition("=")
            reason = _BY_LABEL.get(label)
            if reason is not None and count.isascii() and count.isdigit() and len(count) <= 15:
                found[reason] = int(count) * 1000
        return cls(tuple(found))


class WindowClock:
    """How long a connection's send window has been used up, in all."""

    __slots__ = ("_shut_ns", "_shut_since_ns")

    def __init__(self) -> None:
        self._shut_ns = 0
        self._shut_since_ns: int | None = None

    def set(self, now: float, *, shut: bool) -> None:
        """The window is used up, or not, from `now` on."""
        since = self._shut_since_ns
        if shut and since is None:
            self._shut_since_ns = int(now * _NS)
        elif since is not None and not shut:
            self._shut_ns += max(0, int(now * _NS) - since)
            self._shut_since_ns = None

    @property
    def is_shut(self) -> bool:
        """Whether it is used up now."""
        return self._shut_since_ns is not None

    def shut_ns(self, at_ns: int) -> int:
        """Nanoseconds that it was used up until then."""
        since = self._shut_since_ns
        return self._shut_ns if since is None else self._shut_ns + max(0, at_ns - since)


class StallAccount:
    """The account of one end of one stream; runs from its making to `finish`.

    Args:
        now: Seconds of the shell's clock.
        connection: Of the stream's connection; None for what has none.
        window_shut: Whether the stream starts without a send window.
    """

    __slots__ = (
        "_booked_ns",
        "_connection",
        "_connection_shut_ns",
        "_ended",
        "_reason",
        "_started_ns",
        "_times",
        "_waiting",
        "_waits",
        "_window_shut",
        "behind",
    )

    def __init__(
        self, now: float, connection: WindowClock | None = None, *, window_shut: bool = False
    ) -> None:
        self._started_ns = self._booked_ns = int(now * _NS)
        self._connection = connection or WindowClock()
        self._connection_shut_ns = 0  # as of the last booking; kept while the reason is SOCKET
        self._window_shut = window_shut
        self._waits = [0] * len(REASONS)
        self._waiting = 0  # the set of those that are not 0
        self._times = [0] * len(REASONS)
        self._reason = _RUNNING
        self._ended = False
        self.behind = False
        """Messages wait for this end's application, which waits for none."""

    @property
    def reason(self) -> StallReason:
        """What holds the stream up now."""
        if self._reason is StallReason.SOCKET and self._connection.is_shut:
            return StallReason.CONNECTION_WINDOW
        return self._reason

    def lifetime_ns(self, now: float) -> int:
        """Nanoseconds from the start to `now`, or to the end."""
        return (self._booked_ns if self._ended else self._at(now)) - self._started_ns

    def enter(self, wait: StallReason, now: float) -> None:
        """A task begins to wait.

        Args:
            wait: One of CREDIT, STORAGE, CONSUMER, PEER, or SOCKET: for octets to go out, whatever holds them up.
            now: Seconds.
        """
        self._waits[wait] += 1
        if self._waits[wait] == 1:
            self._waiting |= 1 << wait
            self._refresh(now)

    def leave(self, wait: StallReason, now: float) -> None:
        """The task has stopped waiting."""
        self._waits[wait] -= 1
        if not self._waits[wait]:
            self._waiting &= ~(1 << wait)
            self._refresh(now)

    def fall_behind(self, now: float) -> None:
        """A message has come that no task of this end waits for."""
        self.behind = True
        self.enter(_CONSUMER, now)

    def catch_up(self, now: float) -> None:
        """The application has taken every message that there was."""
        self.behind = False
        self.leave(_CONSUMER, now)

    def set_window(self, now: float, *, shut: bool) -> None:
        """The stream's send window is used up, or not, from `now` on."""
        if shut is not self._window_shut:
            self._window_shut = shut
            if self._waits[_SOCKET]:
                self._refresh(now)

    def finish(self, now: float) -> None:
        """The stream is over; nothing is booked any more. Idempotent."""
        if not self._ended:
            self._book(now)
            self._ended = True

    def times(self, now: float) -> StallTimes:
        """Time by reason until `now`, or until the end: booked, so that what is told here never shrinks."""
        if not self._ended:
            self._book(now)
        return StallTimes(tuple(self._times))

    def _refresh(self, now: float) -> None:
        reason = _FIRST_OF[self._waiting]
        if reason is _SOCKET and self._window_shut:
            reason = _STREAM_WINDOW
        if reason is not self._reason and not self._ended:
            self._book(now)
            self._reason = reason
            if reason is _SOCKET:
                self._connection_shut_ns = self._connection.shut_ns(self._booked_ns)

    def _at(self, now: float) -> int:
        return max(int(now * _NS), self._booked_ns)

    def _book(self, now: float) -> None:
        at = int(now * _NS)
        if at <= self._booked_ns:
            return
        elapsed = at - self._booked_ns
        if self._reason is _SOCKET:
            shut_ns = self._connection.shut_ns(at)
            held_by_window = min(elapsed, max(0, shut_ns - self._connection_shut_ns))
            self._times[StallReason.CONNECTION_WINDOW] += held_by_window
            self._connection_shut_ns = shut_ns
            elapsed -= held_by_window
        self._times[self._reason] += elapsed
        self._booked_ns = at
