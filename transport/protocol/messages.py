"""gRPC message framing: 1 octet compressed flag, 4 octets length, payload ("Length-Prefixed-Message").

The assembler copies a payload once, from the receive buffer into the memory that the consumer will own, or not at all:
`target` is the memory that the next octets of a long message belong to, for a socket to read into.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from transport.errors import MessageRefused, StatusCode
from transport.protocol.memory import MESSAGE_OVERHEAD_BYTES, ReceiveMemory

PREFIX_BYTES: Final = 5
_PREFIX = struct.Struct(">BL")
_EVIDENCE: Final = 16
"""A message longer than `trusted_bytes` gets its memory when this part of it has come."""


def message_prefix(size: int) -> bytes:
    """The 5 octets in front of an uncompressed message of `size` octets."""
    return _PREFIX.pack(0, size)


class MessageAssembler:
    """Cuts a stream's octets into messages.

    Args:
        message_bytes_max: Longest payload taken.
        allocate: Makes writable memory of exactly so many octets for one long payload; the consumer gets that very
            object.
        allocate_bytes_min: Payloads from this size on are assembled in allocated memory, shorter ones are bytes.
        trusted_bytes: Memory that a prefix alone can make us take. A longer message gets all of its memory once a
            sixteenth of it has come: a prefix of 5 octets must not allocate 64 MiB.
        messages: Where complete messages go.
        memory: Counts what is taken for messages; None: it is not counted.
    """

    __slots__ = (
        "_allocate",
        "_allocate_bytes_min",
        "_at",
        "_buffer",
        "_message_bytes_max",
        "_prefix",
        "_size",
        "_target",
        "_trusted_bytes",
        "memory",
        "messages",
    )

    def __init__(
        self,
        message_bytes_max: int,
        allocate: Callable[[int], Any],
        allocate_bytes_min: int,
        trusted_bytes: int,
        messages: deque[Any],
        memory: ReceiveMemory | None = None,
    ) -> None:
        self._trusted_bytes = trusted_bytes
        self._message_bytes_max = message_bytes_max
        self._allocate = allocate
        self._allocate_bytes_min = allocate_bytes_min
        self.messages = messages
        self.memory = memory
        self._prefix = b""
        self._buffer: Any = None
        self._target: memoryview | None = None
        self._at = 0
        self._size = 0

    @property
    def partial_bytes(self) -> int:
        """Octets, prefix included, of the message that is not complete yet."""
        return self._at + PREFIX_BYTES if self._target is not None else len(self._prefix)

    @property
    def target(self) -> memoryview | None:
        """Memory of the message being assembled, from the next octet on; None between messages."""
        return None if self._target is None else self._target[self._at :]

    @property
    def memory_bytes(self) -> int:
        """What `memory` counts for the message that is not complete yet."""
        return len(self._target) + MESSAGE_OVERHEAD_BYTES if self._target is not None else 0

    def limit_untrusted(self, message_bytes_max: int) -> None:
        """Take no longer messages from now on.

        Raises:
            MessageRefused: One that waits to be consumed is longer, or the one that is coming.
        """
        self._message_bytes_max = message_bytes_max
        longest = max(map(len, self.messages), default=0)
        if self._target is not None:
            longest = max(longest, self._size)
        if longest > message_bytes_max:
            self._refuse(0, longest)

    def filled_untrusted(self, size: int) -> None:
        """Count `size` octets that a socket has written into `target`.

        Raises:
            MessageRefused: There is no memory for the rest of the message.
        """
        self._at += size
        assert self._target is not None
        if self._at == len(self._target):
            self._fill_up()

    def feed_untrusted(self, data: memoryview) -> None:
        """Take the next octets of the stream; complete messages are appended to `messages`.

        Raises:
            MessageRefused: Compressed without an agreed encoding, longer than allowed, or too much is waiting to be
                consumed. The rest is lost.
        """
        at, end = 0, len(data)
        messages, allocate_min = self.messages, self._allocate_bytes_min
        while at < end:
            if self._target is None:
                if not self._prefix and end - at >= PREFIX_BYTES:
                    flag, size = _PREFIX.unpack_from(data, at)
                    at += PREFIX_BYTES
                else:
                    take = min(PREFIX_BYTES - len(self._prefix), end - at)
                    self._prefix += bytes(data[at : at + take])
                    at += take
                    if len(self._prefix) < PREFIX_BYTES:
                        return
                    flag, size = _PREFIX.unpack(self._prefix)
                    self._prefix = b""
                if flag or size > self._message_bytes_max:
                    self._refuse(flag, size)
                if size <= end - at and size < allocate_min:
                    # The common case of small messages: all of it is here.
                    if self.memory is not None:
                        self.memory.take_untrusted(size + MESSAGE_OVERHEAD_BYTES)
                    messages.append(bytes(data[at : at + size]))
                    at += size
                    continue
                self._begin(size)
            target = self._target
            assert target is not None
            take = min(len(target) - self._at, end - at)
            target[self._at : self._at + take] = data[at : at + take]
            at += take
            self._at += take
            if self._at == len(target):
                self._fill_up()

    def _begin(self, size: int) -> None:
        self._at, self._size = 0, size
        first = size if size <= self._trusted_bytes else max(self._trusted_bytes, size // _EVIDENCE)
        if self.memory is not None:
            self.memory.take_untrusted(first + MESSAGE_OVERHEAD_BYTES)
        if first < size:
            self._target = memoryview(bytearray(first))
        else:
            self._take_memory()

    def _take_memory(self) -> None:
        size = self._size
        self._buffer = self._allocate(size) if size >= self._allocate_bytes_min else bytearray(size)
        self._target = memoryview(self._buffer).cast("B")
        if len(self._target) != size:  # Too few would be read into for ever.
            raise ValueError(
                f"allocate has made {len(self._target)} octets of memory for a message of {size}"
            )

    def _fill_up(self) -> None:
        if self._at < self._size:
            first = self._target
            assert first is not None
            if self.memory is not None:
                self.memory.take_untrusted(self._size - len(first))
            self._take_memory()
            assert self._target is not None
            self._target[: self._at] = first
            return
        self.messages.append(self._buffer)
        self._buffer = self._target = None

    def _refuse(self, flag: int, size: int) -> None:
        if flag == 1:
            raise MessageRefused("compressed message, and no encoding was agreed", StatusCode.UNIMPLEMENTED)
        if flag:
            raise MessageRefused(f"message flag is {flag}, not 0 or 1", StatusCode.INTERNAL)
        raise MessageRefused(
            f"message of {size} octets is over the limit of {self._message_bytes_max}",
            StatusCode.RESOURCE_EXHAUSTED,
        )
