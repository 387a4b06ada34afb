"""One kind of abuse: how it is done, and what it is known by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

SCAN = "/weir.v1.Scanner/Scan"
WRITE = "/weir.v1.Tables/Write"
_WINDOW_MAX = 2**31 - 1
WIDE = wire.PREFACE + wire.settings((wire.INITIAL_WINDOW_SIZE, _WINDOW_MAX)) + wire.settings(ack=True)
WIDE += wire.window_update(0, _WINDOW_MAX - 65_535)
"""The hello of a peer whose windows are open as far as they go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """One row of docs/limits.md."""

    name: str
    run: Callable[[RawPeer], None]
    """One connection's part of it. Ends with `Ended` if the server does not bear it; else the connection stays open."""
    bound: str
    """What the server does about it."""
    hello: bytes = wire.CLIENT_HELLO
    """What a connection begins with."""
    reads: bool = True
    """Whether the attacker reads what it is sent."""
    connections: int = 1
    """Connections that are held at once, if the server bears it."""


def call(path: str, *extra: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The fields that open a call."""
    return tuple((name, path if name == ":path" else value) for name, value in wire.REQUEST) + extra


SCAN_HEADERS = wire.encode(call(SCAN))
"""A header block of 120 octets that needs no state; so one encoding does for all streams."""


def open_call(stream_id: int, block: bytes = SCAN_HEADERS, *, end: bool = False) -> bytes:
    """HEADERS with a block that was encoded before."""
    return wire.frame(wire.HEADERS, stream_id, block, wire.END_HEADERS | (wire.END_STREAM if end else 0))
