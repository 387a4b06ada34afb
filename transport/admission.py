"""The limit on a server's connections, and what happens to one too many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import trio

from transport.errors import ErrorCode
from transport.protocol import frames

_TURNED_AWAY: Final = frames.settings({}) + frames.goaway(
    0, ErrorCode.ENHANCE_YOUR_CALM, b"too many connections"
)
_TURN_AWAY_S: Final = 1.0


class Admission:
    """Counts the sockets of a server, from their acceptance to their end.

    Args:
        connections_max: The most of them.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._connections = 0
        self.turned_away = 0
        """Connections that were not taken, in all."""

    @contextlib.contextmanager
    def admit(self) -> Iterator[bool]:
        """Count a socket for as long as the block runs, and say whether there is room for it."""
        self._connections += 1
        room = self._connections <= self._connections_max
        self.turned_away += not room
        try:
            yield room
        finally:
            self._connections -= 1


async def turn_away(stream: trio.abc.Stream, *, secured: bool) -> None:
    """Close a connection above the limit; in plaintext after a GOAWAY, which TLS would need a handshake for."""
    try:
        if not secured:
            # A new socket takes as little as this without waiting.
            with trio.move_on_after(_TURN_AWAY_S), contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(_TURNED_AWAY)
    finally:
        await trio.aclose_forcefully(stream)
