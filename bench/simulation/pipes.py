"""Pipes: one direction of a connection in memory, with a bounded buffer, latency, and ways to break.

Like TCP: what arrives is what was sent, in order, up to where it ends. A full pipe makes its sender wait, so a reader
that stalls is felt at the other end. Octets may be late (latency, a clog), be lost with everything after them (silence)
or be the last ones (cut, reset); they are never changed, reordered or doubled.
"""

from __future__ import annotations

import errno
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

NEVER_S: Final = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a connection is made of."""

    latency_s: float = 0.0
    """From one end to the other."""
    buffer_bytes: int = 65_536
    """Octets under way in one direction, at most; above it the sender waits."""
    read_bytes_max: int = 65_536
    """Octets of one read, at most."""


class _OneAtATime:
    def __init__(self, what: str) -> None:
        self._what = what
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(f"another task is {self._what} this pipe")
        self._busy = True

    def __exit__(self, *_exception: object) -> None:
        self._busy = False


class Pipe:
    """One direction of a connection. One task may send at a time, and one receive.

    Args:
        line: What it is made of.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._under_way: deque[tuple[float, memoryview]] = deque()
        self._under_way_bytes = 0
        self._ended = False
        """Nothing comes after what is under way."""
        self._writer_closed = False
        self._reader_closed = False
        self._cut = False
        self._reset = False
        self._silent = False
        self._clogged_until_s = 0.0
        self._delivered_bytes = 0
        self._strike_at: int | None = None
        self._strike: Callable[[], None] | None = None
        self._changed = trio.Event()
        self._sending = _OneAtATime("writing to")
        self._receiving = _OneAtATime("reading from")

    # What can happen to it

    def strike_at(self, octets: int, strike: Callable[[], None]) -> None:
        """Have `strike` called as soon as so many octets, >= 1, were delivered."""
        self._strike_at, self._strike = octets, strike

    def clog(self, seconds: float) -> None:
        """Deliver nothing for a while."""
        self._clogged_until_s = max(self._clogged_until_s, trio.current_time() + seconds)
        self._changed.set()

    def silence(self) -> None:
        """Deliver nothing any more, not even the end; what is written fills a buffer that nobody empties."""
        self._silent = True
        self._changed.set()

    def reset(self) -> None:
        """Break it for both ends; what is under way is lost."""
        self._reset = True
        self._drop()

    def cut(self) -> None:
        """End it here: what is under way is lost, its reader sees an orderly end, its writer a broken pipe."""
        self._cut = self._ended = True
        self._drop()

    # Its ends

    def end(self) -> None:
        """Say that the writer has no more.

        Raises:
            trio.BusyResourceError: It is writing.
        """
        with self._sending:
            self._ended = True
        self._changed.set()

    def close_writer(self) -> None:
        """The writer is gone; whatever it was doing fails."""
        self._writer_closed = self._ended = True
        self._changed.set()

    def close_reader(self) -> None:
        """The reader is gone: its calls fail, and its writer is told."""
        self._reader_closed = True
        self._drop()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write, waiting for room.

        Raises:
            trio.ClosedResourceError: Our end was closed, or has said its end.
            trio.BrokenResourceError: The connection was reset or cut, or its reader is gone.
        """
        with self._sending:
            self._check_writable()
            await trio.lowlevel.checkpoint()
            left = memoryview(bytes(data))
            while left:
                await self._wait_room()
                room = self._line.buffer_bytes - self._under_way_bytes
                self._put(left[:room])
                left = left[room:]
            self._check_writable()

    async def wait_room(self) -> None:
        """Wait until something can be written, or never will be.

        Raises:
            trio.ClosedResourceError, trio.BrokenResourceError: As `send_all`.
        """
        with self._sending:
            self._check_writable()
            await trio.lowlevel.checkpoint()
            await self._wait_room()

    async def receive_some(self, max_bytes: int) -> bytes:
        """Read what has arrived, at least one octet; b"" at an orderly end.

        Raises:
            trio.ClosedResourceError: Our end was closed.
            trio.BrokenResourceError: The connection was reset.
        """
        with self._receiving:
            self._check_readable()
            await trio.lowlevel.checkpoint()
            while True:
                self._check_readable()
                arrives_at = self._arrives_at()
                if arrives_at <= trio.current_time():
                    return self._take(min(max_bytes, self._line.read_bytes_max)) if self._under_way else b""
                await self._wait_change(arrives_at)

    def _arrives_at(self) -> float:
        """When the next octet, or the end, is there."""
        if self._silent or not (self._under_way or self._ended):
            return NEVER_S
        return max(self._clogged_until_s, self._under_way[0][0] if self._under_way else 0.0)

    def _put(self, data: memoryview) -> None:
        self._under_way.append((trio.current_time() + self._line.latency_s, data))
        self._under_way_bytes += len(data)
        self._changed.set()

    def _take(self, size: int) -> bytes:
        arrived_at, data = self._under_way.popleft()
        if self._strike_at is not None:
            size = min(size, self._strike_at - self._delivered_bytes)
        taken, rest = data[:size], data[size:]
        if rest:
            self._under_way.appendleft((arrived_at, rest))
        self._under_way_bytes -= len(taken)
        self._delivered_bytes += len(taken)
        self._changed.set()
        if self._strike is not None and self._delivered_bytes == self._strike_at:
            strike, self._strike, self._strike_at = self._strike, None, None
            strike()
        return bytes(taken)

    def _drop(self) -> None:
        self._under_way.clear()
        self._under_way_bytes = 0
        self._changed.set()

    def _check_writable(self) -> None:
        if self._writer_closed or (self._ended and not self._cut):
            raise trio.ClosedResourceError("this end was closed")
        if self._reset:
            raise trio.BrokenResourceError from ConnectionResetError(errno.ECONNRESET, "connection reset")
        if self._cut or self._reader_closed:
            raise trio.BrokenResourceError from BrokenPipeError(errno.EPIPE, "broken pipe")

    def _check_readable(self) -> None:
        if self._reader_closed:
            raise trio.ClosedResourceError("this end was closed")
        if self._reset:
            raise trio.BrokenResourceError from ConnectionResetError(errno.ECONNRESET, "connection reset")

    async def _wait_room(self) -> None:
        self._check_writable()
        while self._under_way_bytes >= self._line.buffer_bytes:
            await self._wait_change(NEVER_S)
            self._check_writable()

    async def _wait_change(self, until: float) -> None:
        if self._changed.is_set():  # reader and writer wait on the same event
            self._changed = trio.Event()
        if until >= NEVER_S:
            await self._changed.wait()
            return
        with trio.move_on_at(until):
            await self._changed.wait()


class PipeEnd(trio.abc.HalfCloseableStream):
    """One end of a connection, as a trio stream.

    Args:
        outgoing: What it writes to.
        incoming: What it reads from.
    """

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio."""
        await self._outgoing.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await self._outgoing.wait_room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio."""
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be 1 or more")
        return await self._incoming.receive_some(max_bytes or 65_536)

    async def send_eof(self) -> None:
        """See trio."""
        self._outgoing.end()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See trio."""
        self._outgoing.close_writer()
        self._incoming.close_reader()
        await trio.lowlevel.checkpoint()
