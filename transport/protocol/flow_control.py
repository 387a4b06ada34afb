"""Flow-control windows, RFC 9113 section 5.2 and 6.9: counting only, no frames.

Invariants, by the numbers used in the tests:

F1. received = buffered + consumed + discarded; here: `outstanding` is what was received and not yet credited back.
F4. Stream credit is granted on consumption, in octets.
F5. Connection credit is granted on receipt, so the connection window never binds before the streams' windows do.
F6. A send window may be negative (SETTINGS_INITIAL_WINDOW_SIZE lowered); `<= 0` blocks.
F10. WINDOW_UPDATEs are batched to half a window. A sender that is blocked is always released: when it is blocked,
     all octets of the window were received, so once they are consumed the threshold is passed.
"""

from __future__ import annotations

from transport.config import WINDOW_BYTES_MAX
from transport.errors import ErrorCode, FlowControlViolation


class SendWindow:
    """Octets that the peer lets us send."""

    __slots__ = ("available", "largest")

    def __init__(self, available: int) -> None:
        self.available = available
        self.largest = available
        """The most that it ever was, as far as the present SETTINGS_INITIAL_WINDOW_SIZE allows it again."""

    def claim(self, size: int) -> None:
        """Spend octets; the caller has checked that `available` covers them."""
        self.available -= size

    def open_untrusted(self, increment: int, stream_id: int | None) -> None:
        """Apply a peer's WINDOW_UPDATE.

        Raises:
            FlowControlViolation: The window would exceed 2^31-1; it is unchanged.
        """
        if self.available + increment > WINDOW_BYTES_MAX:
            raise FlowControlViolation(
                f"WINDOW_UPDATE of {increment} takes the window past {WINDOW_BYTES_MAX}", stream_id=stream_id
            )
        self.available += increment
        self.largest = max(self.largest, self.available)

    def shift_untrusted(self, delta: int) -> None:
        """Apply a change of the peer's SETTINGS_INITIAL_WINDOW_SIZE; may leave the window negative (F6).

        Raises:
            FlowControlViolation: The window would exceed 2^31-1 (a connection error, section 6.9.2).
        """
        if self.available + delta > WINDOW_BYTES_MAX:
            raise FlowControlViolation(f"SETTINGS_INITIAL_WINDOW_SIZE takes a window past {WINDOW_BYTES_MAX}")
        self.available += delta
        self.largest = max(self.largest + delta, self.available)


class ReceiveWindow:
    """Octets that we let the peer send, and those of them that we owe back."""

    __slots__ = ("_extra", "_threshold", "available", "outstanding", "owed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        """As SETTINGS_INITIAL_WINDOW_SIZE has it."""
        self._extra = 0
        self.available = size
        """What the peer may still send, as far as it knows. Negative only after the size was lowered."""
        self.outstanding = 0
        """Received, not yet credited (neither owed nor sent back)."""
        self.owed = 0
        """Credited, not yet announced by a WINDOW_UPDATE."""
        self._threshold = (size + 1) // 2

    def receive_untrusted(self, size: int, stream_id: int | None) -> None:
        """Count flow-controlled octets of a DATA frame, padding included.

        Raises:
            FlowControlViolation: The peer sent more than it was allowed; nothing is counted.
        """
        if size > max(self.available, 0):  # an empty frame needs no window (section 6.9)
            raise FlowControlViolation(
                f"DATA of {size} octets in a window of {self.available}",
                ErrorCode.FLOW_CONTROL_ERROR,
                stream_id,
            )
        self.available -= size
        self.outstanding += size

    def credit(self, size: int) -> int:
        """Give octets back: they were consumed or discarded.

        Returns:
            The increment to announce now, or 0 if it is not yet worth a frame (F10).
        """
        self.outstanding -= size
        self.owed += size
        assert self.outstanding >= 0
        if self.owed < self._threshold:
            return 0
        increment, self.owed = self.owed, 0
        self.available += increment
        return increment

    def resize(self, size: int) -> None:
        """Follow our own SETTINGS_INITIAL_WINDOW_SIZE once the peer has acknowledged it."""
        self.available += size - self.size
        self.size = size
        self._threshold = (size + self._extra + 1) // 2

    def enlarge(self, increment: int) -> None:
        """Let the peer send so many octets more than its size says, from now on; to be announced."""
        self._extra += increment
        self.available += increment
        self._threshold = (self.size + self._extra + 1) // 2
