"""grpclib's part of the unary calls: gRPC over asyncio and h2, in Python as weir's transport is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream

from bench.harness.ports import free_port
from bench.peers.calls import PATH, CallCost, Calling, measure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class _Octets:
    """grpclib's codec of messages that are octets already."""

    __content_subtype__ = "octets"

    def encode(self, message: bytes, _message_type: object) -> bytes:
        return message

    def decode(self, data: bytes, _message_type: object) -> bytes:
        return data


_CODEC: Final[Any] = _Octets()


class _Echo:
    async def echo(self, stream: Stream[bytes, bytes]) -> None:
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(request)

    def __mapping__(self) -> dict[str, Any]:
        return {PATH: Handler(self.echo, Cardinality.UNARY_UNARY, bytes, bytes)}


async def serve(ready: Connection) -> None:
    """Answer with what was sent until the process is ended; tells its port."""
    server = Server([_Echo()], codec=_CODEC)
    # asyncio sets TCP_NODELAY on what it has bound itself alone; without it each call waits for a delayed ACK.
    port = free_port()
    await server.start("127.0.0.1", port)
    ready.send(port)
    await server.wait_closed()


async def call_all(calling: Calling) -> CallCost:
    """Make the calls, on one connection."""
    channel = Channel("127.0.0.1", calling.port, codec=_CODEC)
    try:
        return await measure(UnaryUnaryMethod(channel, PATH, bytes, bytes), calling)
    finally:
        channel.close()
