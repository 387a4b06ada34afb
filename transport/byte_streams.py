"""Sockets for the driver: they read into given memory and write several buffers at once.

`SocketBytes` is one `recvmsg_into` and one `sendmsg` per call, without a copy. `StreamBytes` does the same for any trio
stream (TLS, in-memory) at the price of one copy each way. Both raise only ConnectionLost.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from transport.errors import ConnectionLost

if TYPE_CHECKING:
    from transport.protocol.stream import Buffer

_CLOSE_TIMEOUT_S: Final = 2.0
_BUFFERS_MAX: Final = 1_024
"""Buffers that one `sendmsg` takes, on Linux and elsewhere (IOV_MAX)."""
_NEAR_MICROSECONDS: Final = 500
_TCP_INFO_BYTES: Final = 72
_TCP_INFO_RTT: Final = struct.Struct("=68xI")
"""Linux's `struct tcp_info` up to `tcpi_rtt`, the smoothed round trip in microseconds."""


class ByteStream(Protocol):
    """What a connection needs of its socket."""

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """Wait for octets and write them into `buffers`, in order; 0: the peer has closed."""

    async def send(self, buffers: list[Buffer]) -> None:
        """Write all of `buffers`. If it is cancelled or fails, the connection is broken."""

    async def send_end(self) -> None:
        """Half-close: the peer reads an end."""

    async def aclose(self) -> None:
        """Close; bounded in time."""


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        cause = error if error.__cause__ is None else error.__cause__
        raise ConnectionLost(f"connection lost: {str(cause) or type(cause).__name__}") from error


def keep_short(connection: trio.socket.SocketType, send_buffer_bytes: int) -> None:
    """Bound the kernel's send buffer towards a near peer. Does nothing for a far one, or if the distance is unknown.

    What is sent to the same machine is copied twice, and a queue of megabytes makes both copies go through memory: with
    1 MiB messages, 4.4 GB/s became 2.2 (`bench transport`). A far peer would be slowed down: the buffer limits what is
    in flight in one round trip.

    Args:
        connection: Connected.
        send_buffer_bytes: For SO_SNDBUF, of which Linux makes twice as much; 0: do not change it.
    """
    if not send_buffer_bytes or sys.platform != "linux":
        return
    with contextlib.suppress(OSError, struct.error):  # not TCP
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        if _TCP_INFO_RTT.unpack(info)[0] < _NEAR_MICROSECONDS:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)


class SocketBytes:
    """A plain TCP connection.

    Args:
        stream: Owned from now on.
        send_timeout_s: Longest wait for the socket to take anything at all.
    """

    def __init__(self, stream: trio.SocketStream, send_timeout_s: float) -> None:
        self._stream = stream
        self._socket = stream.socket
        self._send_timeout_s = send_timeout_s

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """See `ByteStream`."""
        with _lost():
            if len(buffers) == 1:
                return await self._socket.recv_into(buffers[0])
            return (await self._socket.recvmsg_into(buffers))[0]

    async def send(self, buffers: list[Buffer]) -> None:
        """See `ByteStream`.

        Raises:
            ConnectionLost: The socket failed, or took nothing for `send_timeout_s`.
        """
        left = sum(map(len, buffers))
        while True:
            with trio.move_on_after(self._send_timeout_s) as scope, _lost():
                done = await self._socket.sendmsg(buffers[:_BUFFERS_MAX])
            if scope.cancelled_caught:
                raise ConnectionLost(f"the peer took no data for {self._send_timeout_s:g} s")
            left -= done
            if not left:
                return
            buffers = _after(buffers, done)

    async def send_end(self) -> None:
        """See `ByteStream`."""
        with _lost():
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        await self._stream.aclose()


class StreamBytes:
    """Any trio stream, TLS among them.

    Args:
        stream: Owned from now on.
        send_timeout_s: Longest that one `send` may take.
        read_bytes_max: Octets of one read.
    """

    def __init__(
        self, stream: trio.abc.Stream, send_timeout_s: float, read_bytes_max: int = 64 * 1024
    ) -> None:
        self._stream = stream
        self._send_timeout_s = send_timeout_s
        self._read_bytes_max = read_bytes_max

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """See `ByteStream`."""
        room = min(sum(map(len, buffers)), self._read_bytes_max)
        with _lost():
            data = await self._stream.receive_some(room)
        view = memoryview(data)
        for buffer in buffers:
            take = min(len(buffer), len(view))
            buffer[:take] = view[:take]
            view = view[take:]
        return len(data)

    async def send(self, buffers: list[Buffer]) -> None:
        """See `ByteStream`."""
        with trio.move_on_after(self._send_timeout_s) as scope, _lost():
            await self._stream.send_all(b"".join(buffers))
        if scope.cancelled_caught:
            raise ConnectionLost(f"the peer took no data for {self._send_timeout_s:g} s")

    async def send_end(self) -> None:
        """See `ByteStream`; a stream that cannot be half closed is left open."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            with _lost():
                await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        with trio.move_on_after(_CLOSE_TIMEOUT_S), contextlib.suppress(OSError, trio.BrokenResourceError):
            await self._stream.aclose()


def host_port(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def byte_stream(stream: trio.abc.Stream, send_timeout_s: float) -> ByteStream:
    """The fastest adapter for a stream."""
    if isinstance(stream, trio.SocketStream):
        return SocketBytes(stream, send_timeout_s)
    return StreamBytes(stream, send_timeout_s)


def _after(buffers: list[Buffer], done: int) -> list[Buffer]:
    """What is left of `buffers` after their first `done` octets."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if done < size:
            rest = buffers[index:]
            if done:
                rest[0] = memoryview(buffer)[done:]
            return rest
        done -= size
    return []
