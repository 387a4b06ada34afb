"""The serving side: listeners, connections, and a task per call that runs its handler."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from transport.byte_streams import byte_stream
from transport.config import TransportConfig
from transport.driver import Driver
from transport.errors import CallFailed, ErrorCode, StatusCode, TransportError
from transport.protocol.connection import ConnectionCore
from transport.stream import ServerStream

if TYPE_CHECKING:
    from transport.protocol.calls import RequestHead
    from transport.protocol.stream import StreamCore

Handler = Callable[[ServerStream], Awaitable[None]]
"""Answers one call: receives and sends on the stream, then returns (status OK) or raises CallFailed."""
UnaryHandler = Callable[[Any, ServerStream], Awaitable[bytes]]

_log = logging.getLogger("weir.transport")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatistics:
    """A server, now."""

    connections: int
    streams: int
    """Calls that are running."""
    unsent_bytes: int
    """Octets of messages that wait for the peers' windows and sockets."""
    buffered_bytes: int
    """Octets received that no handler has taken."""
    bytes_received: int
    """Octets from the sockets of present connections."""
    bytes_sent: int
    """Octets to them."""


def unary(function: UnaryHandler) -> Handler:
    """Make a handler of a function from one request to one reply."""

    async def handle(stream: ServerStream) -> None:
        request = await stream.receive()
        if request is None:
            raise CallFailed(StatusCode.INTERNAL, f"{stream.path} takes one request, and none came")
        await stream.send(await function(request, stream))

    return handle


class Server:
    """A running server. Made by `serve`."""

    def __init__(self, handlers: Mapping[str, Handler], config: TransportConfig) -> None:
        self._handlers = dict(handlers)
        self._config = config
        self._drivers: set[Driver] = set()
        self._accepting = trio.CancelScope()
        self._idle = trio.lowlevel.ParkingLot()
        self.host = ""
        """Address that it listens on."""
        self.port = 0
        """Port that it listens on."""

    def statistics(self) -> ServerStatistics:
        """Counters over all present connections."""
        streams = [stream for driver in self._drivers for stream in driver.core.streams.values()]
        return ServerStatistics(
            connections=len(self._drivers),
            streams=len(streams),
            unsent_bytes=sum(stream.outgoing_bytes for stream in streams),
            buffered_bytes=sum(stream.buffered_bytes for stream in streams),
            bytes_received=sum(driver.bytes_received for driver in self._drivers),
            bytes_sent=sum(driver.bytes_sent for driver in self._drivers),
        )

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Stop accepting, refuse new calls, and wait until the running ones have ended.

        Args:
            timeout_s: Longest wait; None: the config's `drain_timeout_s`.

        Returns:
            Whether all calls ended by themselves. The rest is cut off when `serve`'s block is left.
        """
        limit = self._config.drain_timeout_s if timeout_s is None else timeout_s
        self._accepting.cancel()
        for driver in list(self._drivers):
            driver.finish()
        with trio.move_on_after(limit):
            while self._drivers:
                await self._idle.park()
        return not self._drivers

    async def handle_connection(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends. Used by `serve`, and with in-memory streams."""
        peer = _peer_name(stream)
        if isinstance(stream, trio.SSLStream) and not await self._handshake(stream, peer):
            return
        core = ConnectionCore(self._config, client=False, now=trio.current_time())
        async with trio.open_nursery() as calls:
            driver = Driver(
                core,
                byte_stream(stream, self._config.send_timeout_s),
                on_request=lambda core_stream, head: self._accept(calls, driver, core_stream, head),
                peer=peer,
            )
            self._drivers.add(driver)
            try:
                await driver.run()
            finally:
                self._drivers.discard(driver)
                self._idle.unpark_all()
                calls.cancel_scope.cancel()
        _log.debug("connection of %s ended: %s", peer, core.failure)

    async def _handshake(self, stream: trio.SSLStream[trio.SocketStream], peer: str) -> bool:
        with trio.move_on_after(self._config.handshake_timeout_s) as scope:
            try:
                await stream.do_handshake()
            except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
                _log.info("TLS handshake with %s failed: %s", peer, error.__cause__ or error)
                await trio.aclose_forcefully(stream)
                return False
        if scope.cancelled_caught or stream.selected_alpn_protocol() not in {"h2", None}:
            await trio.aclose_forcefully(stream)
            return False
        return True

    def _accept(self, calls: trio.Nursery, driver: Driver, core: StreamCore, head: RequestHead) -> None:
        stream = ServerStream(driver, core, head)
        handler = self._handlers.get(head.path)
        if handler is None:
            stream.end_call(StatusCode.UNIMPLEMENTED, f"no method {head.path}")
            return
        calls.start_soon(
            functools.partial(_run_handler, handler, stream), name=f"{head.path} of {driver.peer}"
        )


@contextlib.asynccontextmanager
async def serve(
    handlers: Mapping[str, Handler],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    config: TransportConfig | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """Listen and answer calls while the block runs.

    Args:
        handlers: Path (/package.Service/Method) to handler.
        host: Address to listen on.
        port: 0 takes a free one; see `Server.port`.
        config: Bounds of this end of every connection.
        ssl_context: TLS; None: plain TCP.

    Raises:
        OSError: The address cannot be listened on.

    Cancellation:
        Every call and connection is cut off, and all sockets are closed.
    """
    server = Server(handlers, config or TransportConfig())
    listeners = await trio.open_tcp_listeners(port, host=host)
    server.host, server.port = listeners[0].socket.getsockname()[:2]
    if not port:
        listeners = await _only(listeners, server.port)
    failure: Exception | None = None
    async with trio.open_nursery() as connections:
        connections.start_soon(_listen, server, listeners, connections, ssl_context)
        try:
            yield server
        except Exception as error:
            failure = error
        finally:
            connections.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _only(listeners: list[trio.SocketListener], port: int) -> list[trio.SocketListener]:
    """Keep the listeners of one port: a name with two addresses would get two free ports."""
    kept = []
    for listener in listeners:
        if listener.socket.getsockname()[1] == port:
            kept.append(listener)
        else:
            await listener.aclose()
    return kept


async def _listen(
    server: Server,
    listeners: list[trio.SocketListener],
    connections: trio.Nursery,
    ssl_context: ssl.SSLContext | None,
) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        if ssl_context is None:
            await server.handle_connection(stream)
        else:
            await server.handle_connection(
                trio.SSLStream(stream, ssl_context, server_side=True, https_compatible=True)
            )

    with server._accepting:
        await trio.serve_listeners(handle, listeners, handler_nursery=connections)


async def _run_handler(handler: Handler, stream: ServerStream) -> None:
    """Run one call to its end; nothing that a handler raises goes further than its own call."""
    timeout_s = stream.head.timeout_s
    deadline = trio.current_time() + timeout_s if timeout_s is not None else math.inf
    with stream.handler_scope, trio.move_on_at(deadline) as timer:
        try:
            await handler(stream)
        except Exception as error:
            _end_failed(stream, error)
        else:
            stream.end_call()
    if timer.cancelled_caught:
        stream.end_call(StatusCode.DEADLINE_EXCEEDED, f"{stream.path} took longer than {timeout_s:g} s")


def _end_failed(stream: ServerStream, error: Exception) -> None:
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, CallFailed):
            stream.fail(leaf)
            return
    if all(isinstance(leaf, TransportError) for leaf in leaves):
        # The call was cut off under the handler, or the handler misused it; the peer is told if it still listens.
        stream.reset(ErrorCode.INTERNAL_ERROR)
        return
    _log.error("%s of %s failed", stream.path, stream.peer, exc_info=error)
    stream.end_call(StatusCode.INTERNAL, f"{stream.path} failed inside the server; its log says why")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _peer_name(stream: trio.abc.Stream) -> str:
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if isinstance(inner, trio.SocketStream):
        with contextlib.suppress(OSError):
            host, port = inner.socket.getpeername()[:2]
            return f"{host}:{port}"
    return "memory"
