"""The limit on a server's connections, and what those are told that are not served: one too many, and HTTP/1.

The listener (`trio.serve_listeners`) closes each socket when what is done with it ends.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Final

import trio

from transport.errors import ErrorCode
from transport.protocol import frames

_SETTINGS: Final = frames.settings({})
_TURNED_AWAY: Final = frames.goaway(0, ErrorCode.ENHANCE_YOUR_CALM, b"too many connections")
_TURN_AWAY_S: Final = 1.0
_FIRST_CALL_S: Final = 0.25
"""How long the first call of a connection that is turned away is waited for. grpcio fails one that meets the GOAWAY,
with its words; where the GOAWAY comes first, it connects again and again, for as long as the call may take."""
_FIRST_CALL_BYTES: Final = 256 * 1024
"""What is read of it: its window and its headers are less. Who sends more is turned away at once."""
_TOLD_MAX: Final = 100
"""Connections that are being turned away in words. More are closed without any."""
_FIRST_WORDS_S: Final = 0.25
"""How long a new connection is listened to before we speak. A client speaks as soon as it is connected."""
_FIRST_WORDS_BYTES: Final = 8
_DROPPED_BYTES: Final = 64 * 1024
_HTTP_1: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT) ")
_NOT_HTTP_1: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This is a gRPC server: it speaks HTTP/2 from the first octet on (curl --http2-prior-knowledge).\n"
)


class Admission:
    """Counts the sockets of a server, from their acceptance to their end; not those that are turned away.

    Args:
        connections_max: The most of them.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._connections = 0
        self._being_told = 0
        self.turned_away = 0
        """Connections that were not taken, in all."""

    @contextlib.contextmanager
    def admit(self) -> Iterator[bool]:
        """Say whether there is room for a socket, and count it then for as long as the block runs."""
        room = self._connections < self._connections_max
        self._connections += room
        try:
            yield room
        finally:
            self._connections -= room

    async def turn_away(self, stream: trio.abc.Stream, *, secured: bool) -> None:
        """Answer a connection above the limit: in plaintext by GOAWAY, which TLS would need a handshake for."""
        self.turned_away += 1
        if secured or self._being_told >= _TOLD_MAX:
            return
        self._being_told += 1
        try:
            with trio.move_on_after(_TURN_AWAY_S), contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(_SETTINGS)
                with trio.move_on_after(_FIRST_CALL_S):
                    await _read_to_end(stream, _FIRST_CALL_BYTES)
                await stream.send_all(_TURNED_AWAY)
                # A close with unread input would destroy the answer.
                await _read_to_end(stream, _FIRST_CALL_BYTES)
        finally:
            self._being_told -= 1


async def speaks_http_1(connection: trio.socket.SocketType) -> bool:
    """Whether the first octets of a new connection are a request in HTTP/1. They stay unread.

    Our first frame has to wait for that, since a client of HTTP/1 cannot read past it.
    """
    with trio.move_on_after(_FIRST_WORDS_S), contextlib.suppress(OSError):
        return _HTTP_1.match(await connection.recv(_FIRST_WORDS_BYTES, trio.socket.MSG_PEEK)) is not None
    return False


async def refuse_http_1(stream: trio.SocketStream) -> None:
    """Say in HTTP/1 what is spoken here."""
    with trio.move_on_after(_TURN_AWAY_S), contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(_NOT_HTTP_1)
        await stream.send_eof()
        await _read_to_end(stream)  # A close with unread input would destroy the answer.


async def _read_to_end(stream: trio.abc.ReceiveStream, bytes_max: float = math.inf) -> None:
    """Drop what comes, and not much more than so many octets."""
    dropped = 0
    while dropped < bytes_max and (octets := await stream.receive_some(_DROPPED_BYTES)):
        dropped += len(octets)
