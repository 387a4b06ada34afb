"""Where a server is, as users write it, and what makes a TCP connection to it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

import pyarrow as pa
import trio

import transport
from scanner.client.arguments import require_kind
from scanner.client.credentials import ConnectionTls, TlsSource
from scanner.errors import ArgumentInvalid

Dial: TypeAlias = Callable[[], Awaitable[trio.abc.Stream]]
"""Makes a byte stream to the server. Raises OSError if nobody answers."""
Connect: TypeAlias = Callable[[transport.Metadata], AbstractAsyncContextManager[transport.Client]]
"""Makes one TCP connection, or what stands for it, whose calls all have the given fields."""

PORT_DEFAULT: Final = 9123
_OF_TWO_STANDARDS: Final = frozenset("\u00df\u03c2\u200c\u200d")
"""Sharp s, final sigma, and two joiners: letters of their own since 2008, and other ones, or nothing, before that."""
_LETTERS: Final = re.compile(r"[A-Za-z0-9._-]+")


def connect_by_tcp(
    host: str,
    port: int,
    *,
    config: transport.TransportConfig | None = None,
    ssl_context: TlsSource = None,
    dial: Dial | None = None,
) -> Connect:
    """What makes the TCP connections to a server; see `scanner.connect`.

    Raises:
        ArgumentInvalid: TLS was asked for on a connection that `dial` makes, or a limit or TLS is of the wrong type.
    """
    if config is not None:
        require_kind("config", config, transport.TransportConfig)
    if dial is not None and ssl_context is not None:
        raise ArgumentInvalid(
            "what dial makes is used as it is: let it shake hands itself, without ssl_context"
        )
    config = config or transport.TransportConfig()
    tls = ConnectionTls(ssl_context)
    silent: set[str] = set()

    def connect(metadata: transport.Metadata) -> AbstractAsyncContextManager[transport.Client]:
        # A message is assembled where its batch will live: no copy between the socket buffer and the columns.
        allocate = pa.allocate_buffer
        if dial is not None:
            return _connect_dialled(dial, config, metadata, allocate)
        return transport.connect(
            host,
            port,
            config=config,
            ssl_context=tls.context(),
            metadata=metadata,
            allocate=allocate,
            silent=silent,
        )

    return connect


@asynccontextmanager
async def _connect_dialled(
    dial: Dial,
    config: transport.TransportConfig,
    metadata: transport.Metadata,
    allocate: Callable[[int], Any],
) -> AsyncIterator[transport.Client]:
    try:
        stream = await dial()
    except OSError as error:
        raise transport.ConnectionLost(f"nobody answers: {error}") from error
    async with transport.connect_stream(
        stream, config=config, metadata=metadata, allocate=allocate
    ) as client:
        yield client


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `HOST:PORT`; a name in other letters than ASCII's is as DNS has it (`xn--...`).

    Raises:
        ArgumentInvalid: It is neither that nor `HOST`, or no machine can have that name.
    """
    require_kind("an endpoint", endpoint, str)
    scheme, _, rest = endpoint.rpartition("://")
    user, _, where = rest.rpartition("@")
    where = where.partition("/")[0]
    if user:  # Not shown: it may have a password, and that a slash.
        raise ArgumentInvalid(
            f"an endpoint has no user; write {where or 'HOST:PORT'}: who calls is told by a token or a certificate"
        )
    if scheme:
        raise ArgumentInvalid(f"endpoint {endpoint!r} is a URL; write {where or 'HOST:PORT'}")
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]"):
        host, port = endpoint, str(PORT_DEFAULT)
    # Not by whether it is an address: 2001:db8::1:23 is one as well, and another machine's than 2001:db8::1.
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ArgumentInvalid(
            f"endpoint {endpoint!r} is not HOST:PORT; an IPv6 address stands in brackets, e.g. [::1]:{PORT_DEFAULT}"
        )
    host = host.removeprefix("[").removesuffix("]")
    a_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    # The system's resolver reads a name as far as its first octet of 0.
    if not host or not a_port or set(host) & set("/@") or min(host) <= " ":
        raise ArgumentInvalid(f"endpoint {endpoint!r} is not HOST:PORT, e.g. 127.0.0.1:{PORT_DEFAULT}")
    try:
        return _ascii_name(host), int(port)
    except UnicodeError as error:
        raise ArgumentInvalid(
            f"the host of endpoint {endpoint!r} is no name of a machine: {error}"
        ) from error


def _ascii_name(host: str) -> str:
    """The name that DNS, the certificate and HTTP have of a host that may be written in other letters.

    Raises:
        UnicodeError: There is none, or two: the standards of 2003 and 2008 differ on it.
    """
    name = host.encode("idna").decode("ascii")
    if name == host:
        return host
    if set(host) & _OF_TWO_STANDARDS or not _LETTERS.fullmatch(name):
        raise UnicodeError("write it as DNS has it, xn--...")
    return name
