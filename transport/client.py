"""The calling side: one connection, any number of calls on it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from transport.byte_streams import PORT_MAX, ByteStream, byte_stream, host_port, keep_short
from transport.config import TransportConfig
from transport.driver import Driver
from transport.errors import (
    AnswerCut,
    CallFailed,
    ConnectionLost,
    ErrorCode,
    NeverAnswered,
    StatusCode,
    TlsFailed,
    TransportError,
)
from transport.protocol import calls
from transport.protocol.connection import ConnectionCore
from transport.protocol.liveness import Acknowledged
from transport.protocol.stalls import StallTimes
from transport.protocol.stream import Buffer
from transport.stream import Stream
from transport.tasks import bare
from transport.tls import PeerCertificate
from transport.tls_bytes import TlsBytes

if TYPE_CHECKING:
    from transport.presence import Movements


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientStatistics:
    """A client's connection, now."""

    streams: int
    """Calls that are running."""
    bytes_received: int
    """Octets from the socket."""
    bytes_sent: int
    """Octets to the socket."""


class Client:
    """A connection to a server. Made by `connect`."""

    def __init__(
        self,
        driver: Driver,
        authority: str,
        scheme: str,
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        self._metadata = metadata
        self._driver = driver
        self._authority = authority
        self._scheme = scheme

    @property
    def alive(self) -> bool:
        """Whether new calls can be made, as far as is known."""
        return not self._driver.core.shutdown.closing

    @property
    def peer_goaway(self) -> str:
        """What the server's GOAWAY said, which takes no new calls: an error code, and its words; empty: none came."""
        return self._driver.core.shutdown.peer_goaway

    @property
    def openable(self) -> bool:
        """Whether a call can be opened now, without waiting."""
        return self.alive and self._driver.core.can_open

    @property
    def config(self) -> TransportConfig:
        """Bounds of this end."""
        return self._driver.core.config

    @property
    def peer(self) -> str:
        """The other end, as HOST:PORT."""
        return self._driver.peer

    @property
    def calls_max(self) -> int:
        """The calls that the server allows on this connection at once; beyond all numbers until it has said."""
        return self._driver.core.peer_streams_max

    async def wait_openable(self) -> None:
        """Wait until a call can be opened, or until no more can be (see `alive`).

        Raises:
            ConnectionLost: The connection is gone.

        Waits:
            For the server's SETTINGS, and while its limit of concurrent streams is reached.
        """
        await self._driver.wait_openable()

    def statistics(self) -> ClientStatistics:
        """Counters of the connection."""
        driver = self._driver
        return ClientStatistics(
            streams=len(driver.core.streams),
            bytes_received=driver.bytes_received,
            bytes_sent=driver.bytes_sent,
        )

    def movements(self) -> Movements:
        """How far the calls that run have come: where it stays the same, nothing of a call moves."""
        streams = self._driver.core.streams.values()
        return {each.stream_id: (each.body_bytes, each.outgoing_bytes) for each in streams}

    def acknowledged(self) -> Acknowledged:
        """What the server's system, or that of a proxy before it, says of what was written."""
        return self._driver.acknowledged()

    def give_up(self, why: str) -> None:
        """End the connection at once; its calls fail with ConnectionLost, which says why."""
        self._driver.tell_time()
        self._driver.core.shutdown.fail(ConnectionLost(why), ErrorCode.NO_ERROR)
        self._driver.pump()

    @contextlib.asynccontextmanager
    async def open_stream(
        self,
        path: str,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        timeout_s: float | None = None,
        window_bytes: int = 0,
    ) -> AsyncIterator[Stream]:
        """Open a call; leaving the block resets it if it is neither over nor left (`Stream.leave`).

        Args:
            path: /package.Service/Method.
            metadata: Custom fields; names in lower case, those with bytes as value end in "-bin".
            timeout_s: Seconds for the whole call, also sent to the server; 0 or less: it is over; None: no limit.
            window_bytes: What may be on its way to us on this call: a call whose messages are bounded otherwise, by
                credit, needs no narrower window. From the config's `stream_window_bytes` to its
                `connection_window_bytes`.

        Raises:
            StreamRefused: The server takes no new calls on this connection.
            ConnectionLost: The connection is gone.
            CallFailed: DEADLINE_EXCEEDED when `timeout_s` is over.

        Waits:
            For the server's SETTINGS, and while its limit of concurrent streams is reached.
        """
        deadline = None if timeout_s is None else trio.move_on_after(max(timeout_s, 0.0))
        with deadline or contextlib.nullcontext():
            stream = await self._open(path, metadata, timeout_s, window_bytes)
            self._driver.pump()
            try:
                yield stream
            finally:
                if not stream.left:
                    stream.reset(ErrorCode.CANCEL)
        if deadline is not None and deadline.cancelled_caught:
            raise _too_slow(path, timeout_s)

    async def call(
        self,
        path: str,
        request: Buffer,
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        timeout_s: float | None = None,
        on_stalls: Callable[[StallTimes], None] | None = None,
    ) -> Any:
        """Make a unary call and return the reply's octets.

        Args:
            path: /package.Service/Method.
            request: The message.
            metadata: As for `open_stream`.
            timeout_s: As for `open_stream`.
            on_stalls: Called with the server's account of where its time on the call went, if it sent one.

        Raises:
            CallFailed: The status is not OK, or there was no reply.
            StreamRefused, StreamReset, ConnectionLost: As for `open_stream`.

        Cancellation:
            The call is reset; the server may have done it.
        """
        if timeout_s is None:
            return await self._call(path, request, metadata, None, on_stalls)
        with trio.move_on_after(max(timeout_s, 0.0)):
            return await self._call(path, request, metadata, timeout_s, on_stalls)
        raise _too_slow(path, timeout_s)

    async def _call(
        self,
        path: str,
        request: Buffer,
        metadata: Iterable[tuple[str, str | bytes]],
        timeout_s: float | None,
        on_stalls: Callable[[StallTimes], None] | None,
    ) -> Any:
        stream = await self._open(path, metadata, timeout_s)
        try:
            stream.send_last(request)
            reply = await stream.receive()
            if reply is None:
                raise AnswerCut(StatusCode.INTERNAL, f"{path} ended without a reply")
            if await stream.receive() is not None:
                raise CallFailed(StatusCode.INTERNAL, f"{path} replied more than once")
            if on_stalls is not None and stream.peer_stalls is not None:
                on_stalls(stream.peer_stalls)
            return reply
        finally:
            if not stream.over:
                stream.reset(ErrorCode.CANCEL)

    async def _open(
        self,
        path: str,
        metadata: Iterable[tuple[str, str | bytes]],
        timeout_s: float | None,
        window_bytes: int = 0,
    ) -> Stream:
        """Open a call, which the caller resets; there is no checkpoint once it is open.

        What opens it is queued, and the writer is not woken: the caller sends more, or pumps.
        """
        driver = self._driver
        await driver.wait_openable()
        headers = calls.request_headers(
            path,
            self._authority,
            scheme=self._scheme,
            timeout_s=timeout_s,
            metadata=(*self._metadata, *metadata),
        )
        driver.tell_time()
        return Stream(driver, driver.core.open_stream(headers, window_bytes=window_bytes))


def _too_slow(path: str, timeout_s: float | None) -> CallFailed:
    return CallFailed(StatusCode.DEADLINE_EXCEEDED, f"{path} took longer than {timeout_s:g} s")


@contextlib.asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    config: TransportConfig | None = None,
    ssl_context: ssl.SSLContext | None = None,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    allocate: Callable[[int], Any] = bytearray,
    silent: set[str] | None = None,
) -> AsyncIterator[Client]:
    """Connect to a server.

    Args:
        host: Name or address.
        port: 1..65535.
        config: Bounds of this end.
        ssl_context: TLS with ALPN "h2", such as `client_tls` makes; None: plain TCP.
        metadata: Custom fields of every call, such as its credentials.
        allocate: Makes the writable memory of a long message, exactly as many octets as it is asked for, which
            `Stream.receive` then returns. What it raises ends the block, and so do more octets or fewer.
        silent: Addresses of the host that took a connection and said nothing, such as a stopped server's: another one
            is tried first. Kept up to date here; for who connects again.

    Raises:
        ConnectionLost: Nobody answers there within `handshake_timeout_s`, or TLS fails. An address of several that
            takes a connection and does not shake hands, when none is in `silent`, is left for the others after that
            time, one after another.
        ValueError: There is no such port.
    """
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"a port is 1 to {PORT_MAX}, not {port}")
    config = config or TransportConfig()
    silent = set() if silent is None else silent
    connection, certificate, address = await _open_in_time(host, port, ssl_context, config, silent)

    def failed(error: TransportError) -> None:
        if isinstance(error, NeverAnswered):
            silent.add(address)

    core = ConnectionCore(config, client=True, now=trio.current_time(), allocate=allocate)
    driver = Driver(
        core, connection, peer=host_port(host, port), peer_certificate=certificate, on_failure=failed
    )
    scheme = "http" if ssl_context is None else "https"
    authority = host_port(_without_interface(host), port)
    async with _run(Client(driver, authority, scheme, tuple(metadata))) as client:
        yield client


@contextlib.asynccontextmanager
async def connect_stream(
    stream: trio.abc.Stream,
    *,
    config: TransportConfig | None = None,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    allocate: Callable[[int], Any] = bytearray,
) -> AsyncIterator[Client]:
    """Connect over an existing stream, which is closed at the end. Otherwise as `connect`."""
    config = config or TransportConfig()
    core = ConnectionCore(config, client=True, now=trio.current_time(), allocate=allocate)
    driver = Driver(core, byte_stream(stream), peer="localhost")
    async with _run(Client(driver, "localhost", "http", tuple(metadata))) as client:
        yield client


@contextlib.asynccontextmanager
async def _run(client: Client) -> AsyncIterator[Client]:
    driver = client._driver
    async with bare(trio.open_nursery()) as nursery:
        nursery.start_soon(driver.run)
        try:
            yield client
            await driver.wait_left()
        finally:
            driver.close()
            nursery.cancel_scope.deadline = trio.current_time() + 1.0


def _without_interface(host: str) -> str:
    """What others may know of a host: the interface of `fe80::1%eth0` is our own matter (RFC 6874 section 4)."""
    return host.partition("%")[0]


async def _open_in_time(
    host: str, port: int, ssl_context: ssl.SSLContext | None, config: TransportConfig, silent: set[str]
) -> tuple[ByteStream, PeerCertificate | None, str]:
    """Connect, and shake hands if it is TLS; returns also the address that was taken.

    Where none was silent before, and an address of several is now, the others have their turns at once, each with as
    much time.
    """
    limit_s, tried = config.handshake_timeout_s, 0
    dial: Callable[[str, int, set[str]], Awaitable[trio.SocketStream | None]] = _open_tcp
    goes_on = not silent
    while not tried or goes_on:
        address = ""
        with trio.move_on_after(limit_s):
            stream = await dial(host, port, silent)
            if stream is None:
                break  # No other one takes the connection.
            address = _address(stream)
            keep_short(stream.socket, config.near_send_buffer_bytes)
            if ssl_context is None:
                return byte_stream(stream), None, address
            return *await _secure(stream, host, port, ssl_context, config), address
        if not address:
            break
        silent.add(address)
        tried, dial = tried + 1, _dial_another
    asked = tried or ":" in host or host.replace(".", "").isdigit()
    more = "" if asked else ", or none about its name"
    if tried > 1:
        more = f" from each of {tried} addresses"
    raise ConnectionLost(f"cannot connect to {host_port(host, port)}: no answer within {limit_s:g} s{more}")


def _address(stream: trio.SocketStream) -> str:
    with contextlib.suppress(OSError):  # It may be gone already.
        return str(stream.socket.getpeername()[0])
    return ""


async def _dial(host: str, port: int, silent: set[str]) -> trio.SocketStream:
    """Connect by TCP: to an address that was not silent, if there is one that takes the connection."""
    passed_over = silent.copy()
    silent.clear()  # Unless another one takes it, they are as good as any: they may have come back.
    if passed_over:
        stream = await _dial_another(host, port, passed_over)
        if stream is not None:
            silent |= passed_over
            return stream
    return await trio.open_tcp_stream(host, port)


async def _dial_another(host: str, port: int, silent: set[str]) -> trio.SocketStream | None:
    """Connect by TCP to an address that was not silent; None: none of them takes the connection."""
    with contextlib.suppress(
        OSError, RuntimeError
    ):  # As `_open_tcp` has it of a name that cannot be looked up.
        for *_, found in await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            if found[0] not in silent:
                with contextlib.suppress(OSError):
                    return await trio.open_tcp_stream(str(found[0]), port)
    return None


async def _open_tcp(host: str, port: int, silent: set[str]) -> trio.SocketStream:
    """As `_dial`; what fails is said in our words."""
    try:
        return await _dial(host, port, silent)
    except OSError as error:
        cause: BaseException | None = error.__cause__
        while isinstance(cause, BaseExceptionGroup):  # one for each address that was tried
            cause = cause.exceptions[0]
        why = cause if isinstance(cause, OSError) else error
        # trio's message repeats the address; the system's message for the number is enough.
        known = why.errno if not isinstance(why, socket.gaierror) else None
        reason = os.strerror(known) if known else why.strerror or str(why)
        if known == errno.EINVAL and host.lower().startswith("fe80:"):
            reason += f"; a link-local address needs its interface, as in {host}%eth0"
        raise ConnectionLost(f"cannot connect to {host_port(host, port)}: {reason}") from why
    except UnicodeError as error:
        raise ConnectionLost(
            f"cannot connect to {host_port(host, port)}: not a valid host name: {error}"
        ) from error
    except RuntimeError as error:  # Of the thread that looks the name up: Python's word for EAGAIN
        raise ConnectionLost(
            f"cannot connect to {host_port(host, port)}: {error}: raise the limit of processes (ulimit -u),"
            " or make room in memory"
        ) from error


async def _secure(
    stream: trio.SocketStream, host: str, port: int, ssl_context: ssl.SSLContext, config: TransportConfig
) -> tuple[ByteStream, PeerCertificate | None]:
    # An absolute name of DNS ends in a dot; in certificates, and in TLS (RFC 6066 section 3), none does.
    name = _without_interface(host).removesuffix(".")
    secured = TlsBytes(stream, ssl_context, config.send_timeout_s, server_hostname=name)
    try:
        return secured, await secured.handshake()
    except ConnectionLost as error:
        secured.close()
        raise TlsFailed(f"no TLS with {host_port(host, port)}: {error}") from error
    except BaseException:
        secured.close()
        raise
