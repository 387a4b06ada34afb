"""A connection that breaks at an exact octet: after a chosen frame, or inside one, of either direction.

`CutStream` wraps a client's end of a connection, in memory or a socket. Octets pass unchanged up to the place, and not
one more: what was read beyond it is thrown away, what was to be written beyond it is never written. Then both
directions are over, for this end at once, for the other as soon as it learns of the close.

Frames are counted by their headers alone (RFC 9113, section 4.1); the client's preface counts as a frame.
"""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass
from typing import Final

import trio

PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9


class Direction(enum.Enum):
    """Which way octets go."""

    UP = "up"
    """From the client to the server."""
    DOWN = "down"
    """From the server to the client."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in the octets of one direction: as many whole frames, or as many octets. One of the two is given."""

    direction: Direction
    frames: int | None = None
    octets: int | None = None

    def __str__(self) -> str:
        where = f"after frame {self.frames}" if self.frames is not None else f"after octet {self.octets}"
        return f"{self.direction.value} {where}"


class FrameMeter:
    """Finds where frames end, whatever the octets were cut into. Pure.

    Args:
        preface_bytes: Octets before the first frame header, counted as one frame; 0: none.
    """

    def __init__(self, preface_bytes: int) -> None:
        self.octets = 0
        """Measured so far."""
        self.ends: list[int] = []
        """Position behind each whole frame, ascending."""
        self._header = bytearray()
        self._end: int | None = preface_bytes or None
        """Where the frame that was begun ends; None: its header is not complete."""

    def measure(self, data: bytes | bytearray | memoryview) -> None:
        """Go on with the octets that follow."""
        view, at = memoryview(data), 0
        while at < len(view):
            if self._end is None:
                part = view[at : at + _HEADER_BYTES - len(self._header)]
                self._header += part
                at += len(part)
                self.octets += len(part)
                if len(self._header) < _HEADER_BYTES:
                    return
                self._end = self.octets + int.from_bytes(self._header[:3], "big")
                self._header.clear()
            passed = min(self._end - self.octets, len(view) - at)
            at += passed
            self.octets += passed
            if self.octets == self._end:
                self.ends.append(self._end)
                self._end = None

    def position(self, cut: Cut) -> int | None:
        """The octet behind which `cut` is; None: not measured yet."""
        if cut.octets is not None:
            return cut.octets if self.octets >= cut.octets else None
        assert cut.frames is not None
        if not cut.frames:
            return 0
        return self.ends[cut.frames - 1] if len(self.ends) >= cut.frames else None


class CutStream(trio.abc.HalfCloseableStream):
    """A client's end of a connection, with at most one cut.

    Args:
        inner: Owned from now on.
        cut: Where; None: nowhere, it only measures.
        reset: How the client learns of it: by an error, as after a TCP reset, or by an orderly end of the stream.
    """

    def __init__(self, inner: trio.abc.Stream, cut: Cut | None, *, reset: bool = True) -> None:
        self._inner = inner
        self._cut = cut
        self._reset = reset
        self.meters = {Direction.UP: FrameMeter(PREFACE_BYTES), Direction.DOWN: FrameMeter(0)}
        """What has passed, and, where it was cut, what was about to."""
        self.struck = False
        """Whether it was cut."""
        self._receiving = trio.CancelScope()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write up to the cut.

        Raises:
            trio.BrokenResourceError: It is cut, or was.
        """
        self._check()
        passes = self._passes(Direction.UP, data)
        if passes is None:
            return await self._inner.send_all(data)
        if passes:
            await self._inner.send_all(memoryview(data)[:passes])
        await self._strike()
        self._check()
        return None

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Read up to the cut; then fail, or report the end.

        Raises:
            trio.BrokenResourceError: It was cut by a reset.
        """
        if self.struck:
            return self._over()
        data: bytes | bytearray = b""
        with trio.CancelScope() as self._receiving:
            data = await self._inner.receive_some(max_bytes)
        if self._receiving.cancel_called:
            return self._over()
        passes = self._passes(Direction.DOWN, data)
        if passes is None:
            return data
        await self._strike()
        return bytes(data[:passes]) or self._over()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        self._check()
        await self._inner.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """See trio; what cannot be half closed is left open."""
        self._check()
        if isinstance(self._inner, trio.abc.HalfCloseableStream):
            await self._inner.send_eof()

    async def aclose(self) -> None:
        """See trio."""
        await self._inner.aclose()

    def _passes(self, direction: Direction, data: bytes | bytearray | memoryview) -> int | None:
        """How many of these octets are on this side of the cut; None: the cut is not there."""
        meter = self.meters[direction]
        before = meter.octets
        meter.measure(data)
        if self._cut is None or self._cut.direction is not direction:
            return None
        position = meter.position(self._cut)
        return None if position is None else max(0, position - before)

    async def _strike(self) -> None:
        self.struck = True
        self._receiving.cancel()
        await trio.aclose_forcefully(self._inner)

    def _check(self) -> None:
        if self.struck:
            raise trio.BrokenResourceError from BrokenPipeError(errno.EPIPE, "broken pipe")

    def _over(self) -> bytes:
        if self._reset:
            raise trio.BrokenResourceError from ConnectionResetError(errno.ECONNRESET, "connection reset")
        return b""
