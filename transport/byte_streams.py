"""Sockets for the driver: they read into given memory and write several buffers at once.

`SocketBytes` is one `readv` and one `writev` per call where the socket is ready, without a copy. It waits as trio's
sockets do, but calls the system itself: their layers cost as much as a small read. `StreamBytes` does the same for any
trio stream, such as one in memory, at the price of one copy each way. Both raise only ConnectionLost.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from transport.errors import ConnectionLost
from transport.protocol.liveness import Acknowledged

if TYPE_CHECKING:
    from transport.protocol.stream import Buffer

PORT_MAX: Final = 0xFFFF
"""Of a larger number the C library takes the lower sixteen bits."""
_CLOSE_TIMEOUT_S: Final = 2.0
_BUFFERS_MAX: Final = 1_024
"""Buffers that one `writev` takes, on Linux and elsewhere (IOV_MAX)."""
_SHORT_BYTES: Final = 16 * 1024
"""After a longer read more is on its way, and what comes in the next round is worth a try: waiting for the first octet
of it makes many small reads of few large ones."""
_STREAM_READ_BYTES_MAX: Final = 64 * 1024
"""Of one read from a trio stream."""
_NEAR_MICROSECONDS: Final = 500
_TCP_INFO: Final = struct.Struct("=24xI40xI68xII")
"""Of Linux's `struct tcp_info`: `tcpi_unacked`, segments; `tcpi_rtt`, the smoothed round trip in microseconds;
`tcpi_segs_in`, the segments that have come, with data or without; and `tcpi_notsent_bytes`."""


class ByteStream(Protocol):
    """What a connection needs of its socket."""

    @property
    def waiting_since(self) -> float:
        """Since when `send` waits for the socket to take anything, seconds of trio's clock; infinity: it does not.

        How long it may is for the caller to judge (`driver`): a time limit on each wait costs more than the wait.
        """

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """Wait for octets and write them into `buffers`, in order; 0: the peer has closed."""

    async def send(self, buffers: list[Buffer]) -> None:
        """Write what `send_nowait` left, then all of `buffers`; perhaps without a checkpoint.

        If it is cancelled or fails, the connection is broken.
        """

    def send_nowait(self, buffers: list[Buffer]) -> bool:
        """Write what the socket takes at once; not while `send` is under way.

        Returns:
            Whether that was all. If not, the rest is kept and goes out with the next `send`, which is to come before
            this is called again, and which raises if the socket has failed.
        """

    def acknowledged(self) -> Acknowledged:
        """What the peer's system says of what was written, as far as that is known."""

    async def send_end(self) -> None:
        """Half-close: the peer reads an end."""

    async def aclose(self) -> None:
        """Close; bounded in time."""


_SOCKET_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a socket that is gone raises."""


def _lost(error: BaseException) -> ConnectionLost:
    """One of `_SOCKET_ERRORS` as what callers know."""
    cause = error if error.__cause__ is None else error.__cause__
    return ConnectionLost(f"connection lost: {str(cause) or type(cause).__name__}")


@contextlib.contextmanager
def _lost_translated() -> Iterator[None]:
    try:
        yield
    except _SOCKET_ERRORS as error:
        raise _lost(error) from error


def keep_short(connection: trio.socket.SocketType, send_buffer_bytes: int) -> None:
    """Bound the kernel's send buffer towards a near peer. Does nothing for a far one, or if the distance is unknown.

    What is sent to the same machine is copied twice, and a queue of megabytes makes both copies go through memory: with
    1 MiB messages, 4.4 GB/s became 2.2 (`bench transport`). A far peer would be slowed down: the buffer limits what is
    in flight in one round trip.

    Args:
        connection: Connected.
        send_buffer_bytes: For SO_SNDBUF, of which Linux makes twice as much; 0: do not change it.
    """
    if send_buffer_bytes and (info := _tcp_info(connection)) is not None and info[1] < _NEAR_MICROSECONDS:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)


def _tcp_info(connection: trio.socket.SocketType) -> tuple[int, int, int, int] | None:
    """The fields of `_TCP_INFO`; None: it is not TCP, or not Linux's."""
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        unacked, rtt, segments, unsent_bytes = _TCP_INFO.unpack(info)
    except (OSError, struct.error):
        return None
    return unacked, rtt, segments, unsent_bytes


class SocketBytes:
    """A plain TCP connection.

    Args:
        stream: Owned from now on.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._socket = stream.socket
        self.waiting_since = math.inf
        """See `ByteStream`."""
        self._owes_turn = False
        """Whether the last read did not wait: before the next one the other tasks have their turn."""
        self._drained = False
        """Whether the last read got little, and less than it had room for: then the socket had no more (epoll(7),
        questions and answers), and reading again before it says that it has would be in vain."""
        self._unsent: list[Buffer] = []
        """What `send_nowait` left."""

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """See `ByteStream`. No other task runs between the read and the return."""
        try:
            if self._drained:
                await self._wait_readable()
            elif self._owes_turn:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            self._owes_turn = not self._drained
            while True:
                with contextlib.suppress(BlockingIOError):
                    size = os.readv(self._socket.fileno(), buffers)
                    self._drained = size < _SHORT_BYTES and size < sum(map(len, buffers))
                    return size
                await trio.lowlevel.wait_readable(self._socket)
                self._owes_turn = False
        except _SOCKET_ERRORS as error:
            raise _lost(error) from error

    async def _wait_readable(self) -> None:
        # Of a socket that was closed since the last read, trio's poller raises ValueError, and remembers the waiter.
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("the socket was closed")
        await trio.lowlevel.wait_readable(self._socket)

    async def send(self, buffers: list[Buffer]) -> None:
        """See `ByteStream`; without a checkpoint where the socket takes all of it.

        Raises:
            ConnectionLost: The socket failed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._unsent:
            buffers, self._unsent = [*self._unsent, *buffers], []
        try:
            left = self._write(buffers)
            if left:
                await self._wait_sent(left)
        except _SOCKET_ERRORS as error:
            raise _lost(error) from error

    def send_nowait(self, buffers: list[Buffer]) -> bool:
        """See `ByteStream`."""
        try:
            self._unsent = self._write(buffers)
        except _SOCKET_ERRORS:
            self._unsent = buffers
        return not self._unsent

    async def _wait_sent(self, buffers: list[Buffer]) -> None:
        """Write what the socket did not take: it is full, and need not be asked before it says that it is not."""
        try:
            while buffers:
                self.waiting_since = trio.current_time()
                await trio.lowlevel.wait_writable(self._socket)
                buffers = self._write(buffers)
        finally:
            self.waiting_since = math.inf

    def _write(self, buffers: list[Buffer]) -> list[Buffer]:
        """Write until the socket takes no more; returns what is left."""
        while buffers:
            batch = buffers[:_BUFFERS_MAX]
            try:
                done = os.writev(self._socket.fileno(), batch)
            except BlockingIOError:
                return buffers
            if done < sum(map(len, batch)):
                return _after(buffers, done)
            buffers = buffers[_BUFFERS_MAX:]
        return buffers

    def acknowledged(self) -> Acknowledged:
        """See `ByteStream`."""
        info = _tcp_info(self._socket)
        if info is None:
            return Acknowledged()
        unacked, _, segments, unsent_bytes = info
        return Acknowledged(segments, bool(unacked or unsent_bytes))

    async def send_end(self) -> None:
        """See `ByteStream`."""
        with _lost_translated():
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        self._end()
        await self._stream.aclose()

    def close(self) -> None:
        """Close now."""
        self._end()
        self._socket.close()

    def _end(self) -> None:
        """End the connection: if a forked process has the socket, too, a close alone leaves it open."""
        with contextlib.suppress(OSError):  # The peer has.
            self._socket.shutdown(socket.SHUT_RDWR)


class StreamBytes:
    """Any trio stream, such as one in memory; TLS over TCP has `transport.tls_bytes`.

    Args:
        stream: Owned from now on.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.waiting_since = math.inf
        """See `ByteStream`; since when a whole `send` lasts, which shows no progress."""
        self._unsent: list[Buffer] = []
        """What `send_nowait` was given."""

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """See `ByteStream`."""
        room = min(sum(map(len, buffers)), _STREAM_READ_BYTES_MAX)
        with _lost_translated():
            data = await self._stream.receive_some(room)
        view = memoryview(data)
        for buffer in buffers:
            take = min(len(buffer), len(view))
            buffer[:take] = view[:take]
            view = view[take:]
        return len(data)

    async def send(self, buffers: list[Buffer]) -> None:
        """See `ByteStream`."""
        buffers, self._unsent = [*self._unsent, *buffers], []
        self.waiting_since = trio.current_time()
        try:
            with _lost_translated():
                await self._stream.send_all(b"".join(buffers))
        finally:
            self.waiting_since = math.inf

    def send_nowait(self, buffers: list[Buffer]) -> bool:
        """See `ByteStream`; a stream of trio takes nothing without waiting."""
        self._unsent = buffers
        return not buffers

    def acknowledged(self) -> Acknowledged:
        """See `ByteStream`; a stream of trio does not tell."""
        return Acknowledged()

    async def send_end(self) -> None:
        """See `ByteStream`; a stream that cannot be half closed is left open."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with _lost_translated():
                await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        with trio.move_on_after(_CLOSE_TIMEOUT_S), contextlib.suppress(OSError, trio.BrokenResourceError):
            await self._stream.aclose()


def host_port(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def byte_stream(stream: trio.abc.Stream) -> ByteStream:
    """The fastest adapter for a stream."""
    return SocketBytes(stream) if isinstance(stream, trio.SocketStream) else StreamBytes(stream)


def _after(buffers: list[Buffer], done: int) -> list[Buffer]:
    """What is left of `buffers` after their first `done` octets; they have more."""
    index = 0
    while done >= len(buffers[index]):
        done -= len(buffers[index])
        index += 1
    rest = buffers[index:]
    if done:
        rest[0] = memoryview(rest[0])[done:]
    return rest
