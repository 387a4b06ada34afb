"""Application credit: a consumer states, as one growing number, how many message octets it allows.

The limit is absolute and cumulative, like QUIC's MAX_STREAM_DATA (RFC 9000 section 4.1): a lost, repeated or
reordered grant cannot leak or double it. A message may go out while `sent < limit`; so a sender is past the limit
by less than its last message, and by one row's message if it sizes messages to the credit left.

HTTP/2 windows protect each hop; this credit bounds a call end to end, through proxies that buffer.

The consumer's window is fixed, or sizes itself between what it began with and what a `CreditPool` has left. Only the
limit travels, so the sender knows nothing of that, and what it was granted is never taken back: a window that has
shrunk grants nothing until the consumer has caught up.

There is one ledger at either end: `SendCredit` at the sender, which also waits for credit on it, and `ReceiveCredit` at
the consumer. The transport sends no grants: how they are encoded is the application's.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from transport.errors import FlowControlViolation

CREDIT_BYTES_MAX: Final = 2**63 - 1
"""The largest limit that can be granted."""
_GRANT_SHARE: Final = 4
"""A grant is worth a message once it is one part in so many of the window."""
_EDGE_ROWS: Final = 2
"""A message that ends past a limit by so many of its rows at most ends there because of it: its sender fills the credit
up, with one row more perhaps, and rows differ in size."""


class SendCredit:
    """The sender's ledger. Starts with a limit of 0: nothing may be sent until the consumer grants something."""

    __slots__ = ("_waiting", "limit", "overrun_bytes", "sent")

    def __init__(self) -> None:
        self._waiting: trio.lowlevel.ParkingLot | None = None  # most calls never wait here
        self.limit: int | None = 0
        """Octets allowed since the stream opened; None: no application credit, HTTP/2 windows alone."""
        self.sent = 0
        """Octets of counted messages sent so far."""
        self.overrun_bytes = 0
        """The furthest that they were past the limit when they were sent, octets."""

    @property
    def available(self) -> int:
        """Octets left, 0 or less when the limit is reached."""
        return CREDIT_BYTES_MAX if self.limit is None else self.limit - self.sent

    def raise_limit(self, limit: int) -> bool:
        """Take a consumer's grant, and wake the tasks that wait for credit.

        Args:
            limit: Cumulative octets. One that is not above the present limit is ignored.

        Returns:
            Whether the limit went up.

        Raises:
            FlowControlViolation: `limit` is over `CREDIT_BYTES_MAX`; nothing has changed.
        """
        if limit > CREDIT_BYTES_MAX:
            raise FlowControlViolation(f"credit limit {limit} is over {CREDIT_BYTES_MAX}")
        if self.limit is None or limit <= self.limit:
            return False
        self.limit = limit
        self.wake()
        return True

    def remove_limit(self) -> None:
        """Fall back to HTTP/2 windows alone, and wake the tasks that wait for credit."""
        self.limit = None
        self.wake()

    def claim(self, size: int) -> None:
        """Count a message of `size` octets as sent."""
        self.sent += size
        if self.limit is not None:
            self.overrun_bytes = max(self.overrun_bytes, self.sent - self.limit)

    async def wait_change(self) -> None:
        """Wait until the limit goes up or away, or `wake` is called.

        Cancellation:
            No effect.
        """
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()

    def wake(self) -> None:
        """Wake the tasks that wait for credit: something else than the limit has changed, such as the stream's end."""
        if self._waiting is not None:
            self._waiting.unpark_all()


class CreditPool:
    """Octets by which windows that size themselves may grow, all of them together.

    Args:
        bytes_max: Octets there are, >= 0.
        within: The pool that they are of, if that is shared with others.
    """

    __slots__ = ("_within", "bytes_max", "claimed")

    def __init__(self, bytes_max: int, within: CreditPool | None = None) -> None:
        self.bytes_max = bytes_max
        self.claimed = 0
        """Octets that windows have grown by."""
        self._within = within

    def claim(self, wanted: int) -> int:
        """Take up to `wanted` octets; returns how many, perhaps none."""
        granted = max(0, min(wanted, self.bytes_max - self.claimed))
        if self._within is not None:
            granted = self._within.claim(granted)
        self.claimed += granted
        return granted

    def release(self, size: int) -> None:
        """Give `size` claimed octets back."""
        self.claimed -= size
        if self._within is not None:
            self._within.release(size)

    def close(self) -> None:
        """Give back all that is claimed. Windows that are of it release nothing after that."""
        self.release(self.claimed)


class ReceiveCredit:
    """The consumer's ledger: one window, over as many streams as what is consumed takes, one after another.

    Invariants:

    1. What was received and not consumed is at most the window, plus what the sender may overrun, over all streams. A
       further stream begins with `begin_stream`; it may send what the consumer does not hold.
    2. The limit of a stream never goes down.
    3. With a pool, the window doubles when the sender had to wait for credit that the consumer had not yet granted, and
       the consumer for the sender: a message has ended where a limit is that was granted since the window was last
       changed, and all of it is consumed. A round trip lies between that grant and its effect, so the window doubles
       once in a round trip at most.
    4. It is halved, never below what it began with, when as much was consumed as the window has, and at each moment
       half of it or more waited for the consumer. Up to a quarter is not granted yet, so a quarter at most was on its
       way, half of what is left.

    Args:
        window_bytes: Octets that the consumer is ready to hold, >= 1; in the beginning, if there is a pool.
        pool: What the window may grow by; None: it is fixed.
    """

    __slots__ = (
        "_at_limit",
        "_fresh_limit",
        "_granted",
        "_granted_limits",
        "_measured_until",
        "_pool",
        "_received_before",
        "_standing_bytes",
        "consumed",
        "limit",
        "overrun_bytes",
        "received",
        "window_bytes",
        "window_bytes_min",
    )

    def __init__(self, window_bytes: int, pool: CreditPool | None = None) -> None:
        if window_bytes < 1:
            raise ValueError(f"window_bytes must be at least 1, not {window_bytes}")
        self._received_before = 0  # on earlier streams
        self._granted = 0  # on the newest stream
        self._pool = pool
        self._granted_limits: deque[int] = deque()
        """Limits that were granted on the newest stream and are not reached."""
        self._fresh_limit = 0
        """Limits from here on were granted since the window was last changed."""
        self._at_limit = False
        """Whether the last message ended at such a limit."""
        self._standing_bytes = 0
        """The least that waited for the consumer since the window was last measured."""
        self._measured_until = window_bytes
        """Octets consumed when it is measured again."""
        self.window_bytes_min = window_bytes
        """What the window began with."""
        self.window_bytes = window_bytes
        """What it is now."""
        self.limit = window_bytes
        """Octets allowed over all streams; the first grant is the window itself."""
        self.received = 0
        """Octets of messages, over all streams."""
        self.consumed = 0
        """Octets of them that the consumer is done with."""
        self.overrun_bytes = 0
        """The furthest that a sender was past the limit, octets."""

    @property
    def window_bytes_max(self) -> int:
        """The most that the window may become."""
        return self.window_bytes_min + (0 if self._pool is None else self._pool.bytes_max)

    @property
    def stream_limit(self) -> int:
        """What the newest stream may send in all; 0 while what the consumer holds of earlier ones fills the window."""
        return max(0, self.limit - self._received_before)

    @property
    def spent(self) -> bool:
        """Whether the consumer holds all that was granted, so that the sender may not send."""
        return self.received >= self.limit

    def begin_stream(self) -> None:
        """Begin another stream: nothing was granted on it yet, and it may send what the consumer does not hold."""
        self._received_before = self.received
        self._granted = 0
        self.limit = self._fresh_limit = self.consumed + self.window_bytes
        self._granted_limits.clear()
        self._at_limit = False

    def receive(self, size: int, rows: int = 1) -> None:
        """Count a message of `size` octets.

        Args:
            size: Of the message.
            rows: Parts that a sender makes a message of, which it does not cut.

        Raises:
            FlowControlViolation: The limit was already reached before this message; it is counted all the same.
        """
        over = self.received >= self.limit
        self.received += size
        self.overrun_bytes = max(self.overrun_bytes, self.received - self.limit)
        self._look_for_limit(_EDGE_ROWS * size // max(1, rows))
        if over:
            raise FlowControlViolation(f"message of {size} octets past a credit limit of {self.limit}")

    def consume(self, size: int, *, keeps_up: bool = False) -> None:
        """Count octets as consumed; the limit rises once a quarter of the window can be granted at once.

        Args:
            size: Octets.
            keeps_up: Whether the consumer waits for more, with nothing left to consume, here or elsewhere.
        """
        self.consumed += size
        if self._pool is not None and size:
            self._resize(self._pool, keeps_up)
        limit = self.consumed + self.window_bytes
        if limit - self.limit >= max(1, self.window_bytes // _GRANT_SHARE):
            self.limit = limit

    def close(self) -> None:
        """Give back to the pool what the window has grown by."""
        if self._pool is not None:
            self._pool.release(self.window_bytes - self.window_bytes_min)
        self.window_bytes = self.window_bytes_min

    def _look_for_limit(self, edge_bytes: int) -> None:
        """See whether the last message ended at a limit, or up to so many octets behind it."""
        reached = None
        while self._granted_limits and self._granted_limits[0] <= self.received:
            reached = self._granted_limits.popleft()
        self._at_limit = (
            reached is not None and reached >= self._fresh_limit and self.received - reached <= edge_bytes
        )

    def _resize(self, pool: CreditPool, keeps_up: bool) -> None:
        held = self.received - self.consumed
        self._standing_bytes = min(self._standing_bytes, held)
        if keeps_up and not held and self._at_limit:
            self._change_window(pool.claim(self.window_bytes))
        elif self.consumed >= self._measured_until:
            spare = 0
            if 2 * self._standing_bytes >= self.window_bytes:
                spare = min(self.window_bytes // 2, self.window_bytes - self.window_bytes_min)
                pool.release(spare)
            self._change_window(-spare)

    def _change_window(self, by: int) -> None:
        """Make the window larger or smaller, and measure anew."""
        self.window_bytes += by
        if by > 0:
            self._fresh_limit = self.consumed + self.window_bytes
        self._at_limit = False
        self._standing_bytes = self.received - self.consumed
        self._measured_until = self.consumed + self.window_bytes

    def grant_nowait(self) -> int:
        """Count the rise of the newest stream's limit above what was granted on it as granted.

        Returns:
            The limit to send to the other end: cumulative octets of the stream. Of several rises the last one.

        Raises:
            trio.WouldBlock: There is nothing to grant.
        """
        if self.stream_limit <= self._granted:
            raise trio.WouldBlock
        self._granted = self.stream_limit
        if self._pool is not None:
            self._granted_limits.append(self.limit)
        return self._granted
