"""`GET /metrics` on a port of its own, in the server's own event loop: a scrape sees one moment, and needs no lock.

Just enough HTTP for a scraper: one request per connection, the answer, the close. Requests have a bound in size and
time, and connections one in number: one more is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from scanner.errors import ArgumentInvalid
from scanner.server.metrics import ServerCollector
from scanner.tasks import bare
from transport import open_listeners

if TYPE_CHECKING:
    from scanner.server.server import ScannerStatistics

_REQUEST_BYTES_MAX: Final = 16 * 1024
_REQUEST_TIMEOUT_S: Final = 10.0
_CONNECTIONS_MAX: Final = 64
"""At once. One more is closed, and none waits for another, which may say nothing."""


@asynccontextmanager
async def serve_metrics(
    read: Callable[[], ScannerStatistics], host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Serve a server's metrics for the length of a block.

    Args:
        read: `Server.statistics`.
        host: Address to listen on. There is no authentication and no encryption here.
        port: 0: any free one.

    Yields:
        The port.

    Raises:
        ArgumentInvalid: The address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(ServerCollector(read))
    ProcessCollector(registry=registry)
    slots = trio.Semaphore(_CONNECTIONS_MAX)

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                slots.acquire_nowait()
            except trio.WouldBlock:
                return
            try:
                await _answer(stream, registry)
            finally:
                slots.release()

    try:
        listeners = await open_listeners(host, port)
    except OSError as error:
        raise ArgumentInvalid(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
    except UnicodeError as error:  # No machine can have that name.
        raise ArgumentInvalid(f"cannot serve metrics on {host}:{port}: {error}") from error
    async with bare(trio.open_nursery()) as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        try:
            yield listeners[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()


async def _answer(stream: trio.SocketStream, registry: CollectorRegistry) -> None:
    gone = suppress(trio.BrokenResourceError, trio.ClosedResourceError)
    with gone, trio.move_on_after(_REQUEST_TIMEOUT_S):
        request = await _receive_head(stream)
        if request is None:
            return
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            answer = _response("405 Method Not Allowed", "text/plain", b"GET /metrics\n")
        elif path != b"/metrics":
            answer = _response("404 Not Found", "text/plain", b"metrics are at /metrics\n")
        else:
            answer = _response("200 OK", CONTENT_TYPE_LATEST, generate_latest(registry))
        await stream.send_all(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer)
        await stream.send_eof()


async def _receive_head(stream: trio.SocketStream) -> bytes | None:
    """The request up to its empty line; None if it does not come to one."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = await stream.receive_some(_REQUEST_BYTES_MAX)
        head += part
        if not part or len(head) > _REQUEST_BYTES_MAX:
            return None
    return head


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
