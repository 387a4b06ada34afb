"""Streams that misbehave on purpose, and connections over memory: the shells' counterpart of `pair`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import trio
import trio.testing

from tests.support import wire
from transport.client import Client, connect_stream
from transport.config import TransportConfig
from transport.server import Handler, Server


class FaultyStream(trio.abc.HalfCloseableStream):
    """A stream whose sending can be clogged, and whose reads are cut into small ones.

    Args:
        inner: Owned from now on.
        read_bytes: Octets of one read, at most.
    """

    def __init__(self, inner: trio.abc.HalfCloseableStream, *, read_bytes: int = 1 << 20) -> None:
        self.inner = inner
        self.read_bytes = read_bytes
        self.sent_bytes = 0
        self.send_s = 0.0
        """Seconds that each write takes."""
        self.read_s = 0.0
        """Seconds that each read takes."""
        self._flowing = trio.Event()
        self._flowing.set()

    def clog(self) -> None:
        """Let no further write complete."""
        self._flowing = trio.Event()

    def unclog(self) -> None:
        """Let writes complete again."""
        self._flowing.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write, unless clogged."""
        await self._flowing.wait()
        if self.send_s:
            await trio.sleep(self.send_s)
        await self.inner.send_all(data)
        self.sent_bytes += len(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await self._flowing.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Read at most `read_bytes`."""
        if self.read_s:
            await trio.sleep(self.read_s)
        return await self.inner.receive_some(min(max_bytes or self.read_bytes, self.read_bytes))

    async def send_eof(self) -> None:
        """See trio."""
        await self.inner.send_eof()

    async def aclose(self) -> None:
        """See trio."""
        await self.inner.aclose()


class MemoryServer:
    """A server with one connection in memory, whose other end is raw frames."""

    def __init__(self, handlers: Mapping[str, Handler], config: TransportConfig | None = None) -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        self.server = Server(handlers, config or TransportConfig())
        self.theirs = FaultyStream(theirs)
        self.peer = RawPeer(ours)
        self.ended = trio.Event()

    async def run(self) -> None:
        """Serve the connection to its end."""
        await self.server.handle_connection(self.theirs)
        self.ended.set()


@contextlib.asynccontextmanager
async def memory_server(
    handlers: Mapping[str, Handler], config: TransportConfig | None = None
) -> AsyncIterator[MemoryServer]:
    """Run a `MemoryServer` for a block."""
    memory = MemoryServer(handlers, config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.run)
        yield memory
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def memory_pair(
    handlers: Mapping[str, Handler],
    config: TransportConfig | None = None,
    *,
    client_config: TransportConfig | None = None,
    server_reads: int = 1 << 20,
    lockstep: bool = False,
) -> AsyncIterator[tuple[Client, Server, FaultyStream, FaultyStream]]:
    """A client and a server over memory; yields them with the client's and the server's stream."""
    ends = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
    ours, theirs = FaultyStream(ends[0]), FaultyStream(ends[1], read_bytes=server_reads)
    server = Server(handlers, config or TransportConfig())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle_connection, theirs)
        async with connect_stream(ours, config=client_config or config) as client:
            yield client, server, ours, theirs
        nursery.cancel_scope.cancel()


class RawPeer:
    """The other end of a shell's stream, as raw frames."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.closed = False

    async def send(self, *frames: bytes) -> None:
        """Write frames."""
        await self.stream.send_all(b"".join(frames))

    async def settle(self) -> list[wire.Frame]:
        """Wait until nobody has anything to do, and return all frames that came meanwhile."""
        octets = b""
        while part := await self._read_now():
            octets += part
        return wire.parse(octets)

    async def _read_now(self) -> bytes:
        octets = b""
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                nonlocal octets
                octets = bytes(await self.stream.receive_some(1 << 20))
                self.closed |= not octets
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return octets
