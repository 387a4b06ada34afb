"""Memory that the messages of one connection take until they are consumed: a count and a bound.

A stream's window bounds messages that are not consumed. It does not bound the message that a task waits for: its octets
are credited as they arrive, else one longer than the window could never arrive. A thousand streams with a long
message each would be a thousand long messages. So memory is counted where it is taken, over all streams of the
connection, and a message that does not fit any more is refused.
"""

from __future__ import annotations

from typing import Final

from transport.errors import MessageRefused, StatusCode

MESSAGE_OVERHEAD_BYTES: Final = 56
"""What a short message takes besides its octets: the object, and its place in the queue."""


class ReceiveMemory:
    """Octets that are taken for messages, complete or not, and the most there may be.

    Args:
        bytes_max: The bound.
    """

    __slots__ = ("_bytes_max", "taken_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.taken_bytes = 0

    def take_untrusted(self, size: int) -> None:
        """Count memory of `size` octets, before it is taken.

        Raises:
            MessageRefused: It does not fit now (UNAVAILABLE: later it may); nothing is counted.
        """
        taken = self.taken_bytes + size
        if taken > self._bytes_max:
            raise MessageRefused(
                f"{self.taken_bytes} octets of messages wait on this connection, and {size} more are over the"
                f" limit of {self._bytes_max}",
                StatusCode.UNAVAILABLE,
            )
        self.taken_bytes = taken

    def give_back(self, size: int) -> None:
        """Count memory as free: its message was consumed, or dropped."""
        self.taken_bytes -= size
