"""The serving side: listeners, connections, and a task per call that runs its handler."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from transport.admission import Admission, refuse_http_1, speaks_http_1
from transport.byte_streams import PORT_MAX, byte_stream, host_port, keep_short
from transport.config import TransportConfig
from transport.driver import Driver
from transport.errors import CallFailed, ConnectionLost, StatusCode, TransportError
from transport.log_rate import LineRate, RatedLog
from transport.protocol.connection import ConnectionCore
from transport.statistics import ServerStatistics
from transport.stream import ServerStream
from transport.tally import Tally, count_stalled
from transport.tasks import bare
from transport.tls import PeerCertificate, ServerTls
from transport.tls_bytes import TlsBytes

if TYPE_CHECKING:
    from transport.byte_streams import ByteStream
    from transport.protocol.calls import RequestHead
    from transport.protocol.stream import StreamCore
    from transport.stream import Stream

Handler = Callable[[ServerStream], Awaitable[None]]
"""Answers one call: receives and sends on the stream, then returns (status OK) or raises CallFailed."""
UnaryHandler = Callable[[Any, ServerStream], Awaitable[bytes]]
_StreamT = TypeVar("_StreamT", bound=trio.abc.Stream)

_log = logging.getLogger("weir.transport")


class _OneLine(logging.Filter):
    """Shortens what trio logs of a connection that it cannot accept: a traceback, ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._rate = LineRate()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a line through now and then, without its traceback."""
        record.exc_info = None
        return self._rate.due(record.created)


logging.getLogger("trio.serve_listeners").addFilter(_OneLine())
_STATUS_S: Final = 2.0
"""The longest that peers have to take the status of a call that a drain has ended."""
_STATUS_SHARE: Final = 0.1  # of the drain's time; twice, for peers that read and for those that do not


def unary(function: UnaryHandler) -> Handler:
    """Make a handler of a function from one request to one reply."""

    async def handle(stream: ServerStream) -> None:
        stream.send_last(await function(await only_request(stream), stream))

    return handle


async def only_request(stream: ServerStream) -> Any:
    """Receive the request of a call that has one.

    The end of the client's messages is not waited for: it may come only when the client has the answer.

    Raises:
        CallFailed: UNIMPLEMENTED, as gRPC has it: no request has come, or there is a second one.
    """
    request = await stream.receive()
    if request is None:
        raise CallFailed(StatusCode.UNIMPLEMENTED, f"{stream.path} takes one request, and none came")
    with contextlib.suppress(trio.WouldBlock):
        if stream.receive_nowait() is not None:
            message = f"{stream.path} takes one request, and more came; nothing was done"
            raise CallFailed(StatusCode.UNIMPLEMENTED, message)
    return request


class Server:
    """A running server. Made by `serve`."""

    def __init__(self, handlers: Mapping[str, Handler], config: TransportConfig) -> None:
        self._handlers = dict(handlers)
        self._config = config
        self._drivers: set[Driver] = set()
        self._tally = Tally()
        self._rated_log = RatedLog(_log)
        self._connections_accepted = 0
        self.admission = Admission(config.connections_max)
        self._accepting = trio.CancelScope()
        self.on_answer_lost: Callable[[int, int | None], None] | None = None
        """Called when an answer may not have arrived, with the numbers of its connection and its stream; None in place
        of the stream: the whole connection has ended."""
        self._draining = False
        self._idle = trio.lowlevel.ParkingLot()
        self.host = ""
        """Address that it listens on."""
        self.port = 0
        """Port that it listens on."""

    def statistics(self) -> ServerStatistics:
        """Counters over all present connections."""
        streams = [stream for driver in self._drivers for stream in driver.core.streams.values()]
        running = self.running()
        return ServerStatistics(
            connections=len(self._drivers),
            streams=len(streams),
            unsent_bytes=sum(stream.outgoing_bytes for stream in streams),
            buffered_bytes=sum(stream.buffered_bytes for stream in streams),
            bytes_received=sum(driver.bytes_received for driver in self._drivers),
            bytes_sent=sum(driver.bytes_sent for driver in self._drivers),
            credit_bytes=sum(
                max(0, stream.credit.available) for stream in running if stream.credit.limit is not None
            ),
            stalled=count_stalled(running),
            totals=self._tally.totals(self._drivers, running, turned_away=self.admission.turned_away),
        )

    def running(self) -> list[ServerStream]:
        """Every call that runs, in no order."""
        owners = (core.owner for driver in self._drivers for core in driver.core.streams.values())
        return [owner for owner in owners if owner is not None]

    async def drain(
        self, timeout_s: float | None = None, status_of: Callable[[ServerStream], CallFailed] | None = None
    ) -> bool:
        """Stop accepting, refuse new calls, and wait until the running ones have ended; end those that do not.

        Args:
            timeout_s: How long all of it takes at most, four fifths for the calls; None: `drain_timeout_s`.
            status_of: Makes the status of a call that has not ended by then; None: UNAVAILABLE for all.

        Returns:
            Whether all calls ended by themselves. A peer that does not take the status in half of the rest gets it
            without what was queued before; it is cut off when `serve`'s block is left.
        """
        limit = self._config.drain_timeout_s if timeout_s is None else timeout_s
        self._draining = True
        self._accepting.cancel()
        for driver in list(self._drivers):
            driver.finish()
        status_s = min(_STATUS_S, limit * _STATUS_SHARE)
        with trio.move_on_after(limit - 2 * status_s):
            await self._wait_idle()
            return True
        running = self.running()
        stopped = [stream for stream in running if stream.stop((status_of or _going_down)(stream))]
        with trio.move_on_after(status_s):
            await self._wait_idle()
        for stream in stopped:
            stream.drop_unsent()  # of those that do not read: a status needs no window, what is queued before it does
        with trio.move_on_after(status_s):
            await self._wait_idle()
        return not running  # A connection may have had none, whose peer does not say that it knows.

    async def _wait_idle(self) -> None:
        while self._drivers:
            await self._idle.park()

    async def handle_connection(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends. Used by `serve`, and with in-memory streams."""
        await self._run(byte_stream(stream), _peer_name(stream), None)

    async def handle_plaintext(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends, if its client does not begin in HTTP/1; that is told what is spoken."""
        if not await speaks_http_1(stream.socket):
            await self.handle_connection(stream)
            return
        self.log_refused("connection of %s refused", _peer_name(stream), "its client speaks HTTP/1")
        await refuse_http_1(stream)

    async def handle_tls(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        """Shake hands, then serve the connection until it ends. A failed handshake is logged in one line."""
        peer = _peer_name(stream)
        secured = TlsBytes(stream, context, self._config.send_timeout_s)
        try:
            with trio.fail_after(self._config.handshake_timeout_s):
                certificate = await secured.handshake()
        except (ConnectionLost, trio.TooSlowError) as error:
            # The text alone: a frame and an error that hold each other keep what OpenSSL is to forget.
            why = "it took too long" if isinstance(error, trio.TooSlowError) else str(error)
            self.log_refused("TLS handshake with %s failed", peer, why)
            secured.close()
            return
        except BaseException:
            secured.close()
            raise
        await self._run(secured, peer, certificate)

    async def _run(self, connection: ByteStream, peer: str, certificate: PeerCertificate | None) -> None:
        core = ConnectionCore(self._config, client=False, now=trio.current_time())
        self._connections_accepted += 1
        async with trio.open_nursery() as calls:
            driver = Driver(
                core,
                connection,
                on_request=lambda core_stream, head: self._accept(calls, driver, core_stream, head),
                peer=peer,
                peer_certificate=certificate,
                connection_id=self._connections_accepted,
                on_late_reset=lambda stream_id: self._answer_lost(driver, stream_id),
            )
            self._drivers.add(driver)
            if self._draining:
                driver.finish()  # it was accepted before, and shook hands meanwhile
            try:
                await driver.run()
            finally:
                self._drivers.discard(driver)
                self._tally.connection_ended(driver)
                self._answer_lost(driver, None)
                self._idle.unpark_all()
                calls.cancel_scope.cancel()
        if core.refusal:
            self.log_refused("connection of %s ended", peer, str(core.shutdown.failure))
        else:
            _log.debug("connection of %s ended: %s", peer, core.shutdown.failure)

    def log_refused(self, what: str, peer: str, why: str) -> None:
        """Tell the operator of a client of something else, or of one that breaks a rule; see `RatedLog.info`."""
        self._rated_log.info(trio.current_time(), what, peer, why)

    def _call_ended(self, driver: Driver, stream: Stream) -> None:
        self._tally.stream_ended(stream)
        if stream.cut_off:
            self._answer_lost(driver, stream.stream_id)

    def _answer_lost(self, driver: Driver, stream_id: int | None) -> None:
        if self.on_answer_lost is not None:
            self.on_answer_lost(driver.connection_id, stream_id)

    def _accept(self, calls: trio.Nursery, driver: Driver, core: StreamCore, head: RequestHead) -> None:
        stream = ServerStream(driver, core, head)
        stream.when_closed = functools.partial(self._call_ended, driver)
        handler = self._handlers.get(head.path)
        if handler is None:
            stream.end_call(StatusCode.UNIMPLEMENTED, f"no method {head.path}")
            return
        call = _Call(handler, stream, driver, calls)
        if driver.call_starts.idle:
            call.begin()
        else:
            driver.call_starts.add(call, calls)


@contextlib.asynccontextmanager
async def serve(
    handlers: Mapping[str, Handler],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    config: TransportConfig | None = None,
    ssl_context: ssl.SSLContext | ServerTls | None = None,
    listener: trio.abc.Listener[trio.abc.Stream] | None = None,
) -> AsyncIterator[Server]:
    """Listen and answer calls while the block runs.

    Args:
        handlers: Path (/package.Service/Method) to handler. An `Exception` that one raises fails its call; what else it
            raises, such as KeyboardInterrupt or SystemExit, ends the block.
        host: Address to listen on.
        port: 0 takes a free one; see `Server.port`.
        config: Bounds of this end of every connection.
        ssl_context: TLS with ALPN "h2", such as `ServerTls`, which follows its files; None: plain TCP.
        listener: Where connections come from instead of an address, such as one in memory; owned, and without TLS.

    Raises:
        OSError: The address cannot be listened on.
        ValueError: TLS was asked for on a listener that was given.

    Cancellation:
        Every call and connection is cut off, and all sockets are closed.
    """
    if listener is not None and ssl_context is not None:
        raise ValueError("a listener that is given is served without TLS")
    server = Server(handlers, config or TransportConfig())
    if listener is None:
        listeners = await open_listeners(host, port)
        server.host, server.port = listeners[0].socket.getsockname()[:2]
        listening = functools.partial(_listen, server, listeners, ssl_context=ssl_context)
    else:
        listening = functools.partial(_listen_given, server, listener)
    async with bare(trio.open_nursery()) as connections:
        connections.start_soon(listening, connections)
        try:
            yield server
        finally:
            connections.cancel_scope.cancel()


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on each address of a host; on one port, also where the system chooses it, which would be one for each.

    Args:
        host: A name or an address.
        port: 0 takes a free one.

    Raises:
        OSError: An address cannot be listened on.
        UnicodeError: No machine can have that name.

    Waits:
        For the name to be looked up.
    """
    if port > PORT_MAX:
        raise OSError(errno.EINVAL, f"a port is at most {PORT_MAX}")
    kept: list[trio.SocketListener] = []
    for listener in await trio.open_tcp_listeners(port, host=host):
        if port or not kept:
            kept.append(listener)
        else:
            await listener.aclose()
    return kept


async def _listen(
    server: Server,
    listeners: list[trio.SocketListener],
    connections: trio.Nursery,
    *,
    ssl_context: ssl.SSLContext | ServerTls | None,
) -> None:
    async def serve_one(stream: trio.SocketStream) -> None:
        keep_short(stream.socket, server._config.near_send_buffer_bytes)
        if ssl_context is None:
            await server.handle_plaintext(stream)
        else:
            context = ssl_context.context() if isinstance(ssl_context, ServerTls) else ssl_context
            await server.handle_tls(stream, context)

    handle = functools.partial(_admit, server, serve_one, secured=ssl_context is not None)
    with server._accepting:
        await trio.serve_listeners(handle, listeners, handler_nursery=connections)


async def _listen_given(
    server: Server, listener: trio.abc.Listener[trio.abc.Stream], connections: trio.Nursery
) -> None:
    handle = functools.partial(_admit, server, server.handle_connection, secured=False)
    with server._accepting:
        await trio.serve_listeners(handle, [listener], handler_nursery=connections)


async def _admit(
    server: Server, serve_one: Callable[[_StreamT], Awaitable[None]], stream: _StreamT, *, secured: bool
) -> None:
    try:
        with server.admission.admit() as room:
            if room:
                await serve_one(stream)
            else:
                server.log_refused("connection of %s turned away", _peer_name(stream), "too many connections")
                await server.admission.turn_away(stream, secured=secured)
    except Exception:
        # A defect of ours, found by one peer, must not end the connections of the others.
        _log.exception("connection of %s failed inside the server", _peer_name(stream))


def _going_down(_stream: ServerStream) -> CallFailed:
    return CallFailed(StatusCode.UNAVAILABLE, "the server is going down")


class _Call:
    """A call that was accepted, until it begins (`fairness.Call`). Its time runs already."""

    __slots__ = ("_deadline", "_driver", "_handler", "_nursery", "_stream")

    def __init__(self, handler: Handler, stream: ServerStream, driver: Driver, nursery: trio.Nursery) -> None:
        self._handler = handler
        self._stream = stream
        self._driver = driver
        self._nursery = nursery
        timeout_s = stream.head.timeout_s
        self._deadline = math.inf if timeout_s is None else trio.current_time() + timeout_s

    @property
    def over(self) -> bool:
        """Whether the call was reset or stopped while it waited."""
        return self._stream.handler_scope.cancel_called

    def begin(self) -> None:
        """Run the handler in a task of its own, unless the call is over, or out of time."""
        if self.over:
            self.drop()
            return
        if self._deadline <= trio.current_time():
            # A handler that waits for nothing would answer. Not dropped: a reset of it may not have been told yet.
            _end_late(self._stream)
            return
        self._driver.call_starts.begun()
        self._nursery.start_soon(
            _run_handler,
            self._handler,
            self._stream,
            self._driver,
            self._deadline,
            name=f"{self._stream.path} of {self._driver.peer}",
        )

    def drop(self) -> None:
        """The call is over before its handler ran."""
        self._stream.handler_ended()


async def _run_handler(handler: Handler, stream: ServerStream, driver: Driver, deadline: float) -> None:
    """Run one call to its end; no `Exception` of a handler goes further than its own call."""
    timer = trio.CancelScope(deadline=deadline)
    try:
        with stream.handler_scope:
            if deadline == math.inf:
                await handler(stream)
            else:
                with timer:
                    await handler(stream)
    except BaseExceptionGroup as group:
        failed, rest = group.split(Exception)  # a handler may fail while it is being cancelled
        if failed is not None:
            _end_failed(stream, failed)
        if rest is not None:
            raise rest from None
    except Exception as error:
        _end_failed(stream, error)
    else:
        if timer.cancelled_caught:
            _end_late(stream)
        else:
            stream.end_call()
    finally:
        driver.call_starts.ended()
        stream.handler_ended()


def _end_late(stream: ServerStream) -> None:
    limit_s = stream.head.timeout_s
    stream.end_call(StatusCode.DEADLINE_EXCEEDED, f"{stream.path} took longer than {limit_s:g} s")


def _end_failed(stream: ServerStream, error: Exception) -> None:
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, CallFailed):
            stream.fail(leaf)
            return
    stopped = stream.over or stream.handler_scope.cancel_called
    if stopped and all(isinstance(leaf, TransportError) for leaf in leaves):
        return  # the call was cut off while its handler ran; its client is gone
    _log.error("%s of %s failed", stream.path, stream.peer, exc_info=error)
    stream.end_call(StatusCode.INTERNAL, f"{stream.path} failed inside the server; its log says why")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _peer_name(stream: trio.abc.Stream) -> str:
    if not isinstance(stream, trio.SocketStream):
        return "memory"
    with contextlib.suppress(OSError, trio.ClosedResourceError):
        address = stream.socket.getpeername()
        if isinstance(address, tuple):  # Of a Unix socket it is a path, and empty at its client.
            return host_port(*address[:2])
    return "a socket"
