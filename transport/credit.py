"""Application credit: the consumer states, as one growing number, how many message octets it allows.

The limit is absolute and cumulative, like QUIC's MAX_STREAM_DATA (RFC 9000 section 4.1): a lost, repeated or
reordered grant cannot leak or double it. A message may go out while `sent < limit`; so a sender is past the limit
by less than its last message, and by one row's message if it sizes messages to the credit left.

HTTP/2 windows protect each hop; this credit bounds a call end to end, through proxies that buffer.
"""

from __future__ import annotations

from typing import Final

from transport.errors import FlowControlViolation

CREDIT_BYTES_MAX: Final = 2**63 - 1
"""The largest limit that can be granted."""


class SendCredit:
    """The sender's ledger. Starts with a limit of 0: nothing may be sent until the consumer grants something."""

    __slots__ = ("limit", "overrun_bytes", "sent")

    def __init__(self) -> None:
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
        """Take a consumer's grant.

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
        return True

    def remove_limit(self) -> None:
        """Fall back to HTTP/2 windows alone."""
        self.limit = None

    def claim(self, size: int) -> None:
        """Count a message of `size` octets as sent."""
        self.sent += size
        if self.limit is not None:
            self.overrun_bytes = max(self.overrun_bytes, self.sent - self.limit)


class ReceiveCredit:
    """The consumer's ledger: holds at most `window_bytes` of unconsumed messages, plus what the sender may overrun.

    Args:
        window_bytes: Octets that the consumer is ready to hold, >= 1.
    """

    __slots__ = ("_threshold", "consumed", "limit", "overrun_bytes", "received", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        if window_bytes < 1:
            raise ValueError(f"window_bytes must be at least 1, not {window_bytes}")
        self.window_bytes = window_bytes
        self.limit = window_bytes
        """The limit last announced; the first announcement is the window itself."""
        self.received = 0
        self.consumed = 0
        self.overrun_bytes = 0
        """The furthest that the sender was past the limit, octets."""
        self._threshold = max(1, window_bytes // 4)

    @property
    def buffered(self) -> int:
        """Octets received and not consumed."""
        return self.received - self.consumed

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

    def consume(self, size: int) -> int | None:
        """Count octets as consumed.

        Returns:
            The new limit to announce, once a quarter of the window can be granted at once; else None.
        """
        self.consumed += size
        limit = self.consumed + self.window_bytes
        if limit - self.limit < self._threshold:
            return None
        self.limit = limit
        return limit
