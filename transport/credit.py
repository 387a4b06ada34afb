"""Application credit: a consumer states, as one growing number, how many message octets it allows.

The limit is absolute and cumulative, like QUIC's MAX_STREAM_DATA (RFC 9000 section 4.1): a lost, repeated or
reordered grant cannot leak or double it. A message may go out while `sent < limit`; so a sender is past the limit
by less than its last message, and by one row's message if it sizes messages to the credit left.

HTTP/2 windows protect each hop; this credit bounds a call end to end, through proxies that buffer.

There is one ledger at either end, and each is also what its end waits on: `SendCredit` at the sender, which waits for
credit, and `ReceiveCredit` at the consumer, where a task waits for something to grant. The transport sends no grants:
how they are encoded is the application's.
"""

from __future__ import annotations

from typing import Final

import trio

from transport.errors import FlowControlViolation

CREDIT_BYTES_MAX: Final = 2**63 - 1
"""The largest limit that can be granted."""
_GRANT_SHARE: Final = 4
"""A grant is worth a message once it is one part in so many of the window."""


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


class ReceiveCredit:
    """The consumer's ledger: one window, over as many streams as what is consumed takes, one after another.

    Invariant: what was received and not consumed is at most `window_bytes`, plus what the sender may overrun, over all
    streams. A further stream begins with `begin_stream`; it may send what the consumer does not hold.

    Args:
        window_bytes: Octets that the consumer is ready to hold, >= 1.
    """

    __slots__ = (
        "_granted",
        "_received_before",
        "_threshold",
        "_waiting",
        "consumed",
        "limit",
        "overrun_bytes",
        "received",
        "window_bytes",
    )

    def __init__(self, window_bytes: int) -> None:
        if window_bytes < 1:
            raise ValueError(f"window_bytes must be at least 1, not {window_bytes}")
        self._waiting = trio.lowlevel.ParkingLot()
        self._threshold = max(1, window_bytes // _GRANT_SHARE)
        self._received_before = 0  # on earlier streams
        self._granted = 0  # on the newest stream
        self.window_bytes = window_bytes
        self.limit = window_bytes
        """Octets allowed over all streams; the first grant is the window itself."""
        self.received = 0
        """Octets of messages, over all streams."""
        self.consumed = 0
        """Octets of them that the consumer is done with."""
        self.overrun_bytes = 0
        """The furthest that a sender was past the limit, octets."""

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
        self.limit = self.consumed + self.window_bytes

    def receive(self, size: int) -> None:
        """Count a message of `size` octets.

        Raises:
            FlowControlViolation: The limit was already reached before this message; it is counted all the same.
        """
        over = self.received >= self.limit
        self.received += size
        self.overrun_bytes = max(self.overrun_bytes, self.received - self.limit)
        if over:
            raise FlowControlViolation(f"message of {size} octets past a credit limit of {self.limit}")

    def consume(self, size: int) -> None:
        """Count octets as consumed; once a quarter of the window can be granted at once, `wait_grant` returns."""
        self.consumed += size
        limit = self.consumed + self.window_bytes
        if limit - self.limit >= self._threshold:
            self.limit = limit
            self._waiting.unpark_all()

    async def wait_grant(self) -> int:
        """Wait until the newest stream's limit is above what was granted on it, and count the rise as granted.

        Returns:
            The limit to send to the other end: cumulative octets of the stream. Of several rises the last one.

        Cancellation:
            Nothing is counted as granted.
        """
        while self.stream_limit <= self._granted:
            await self._waiting.park()
        self._granted = self.stream_limit
        return self._granted
