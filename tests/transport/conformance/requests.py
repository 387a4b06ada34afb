"""The requests that conformance cases send: plain HTTP for /, as suites do that know nothing of gRPC."""

from __future__ import annotations

import struct
from typing import Final

from tests.support import wire

Fields = list[tuple[str, str]]

END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20


def fields(method: str = "GET", *more: tuple[str, str]) -> Fields:
    """The fields of a request."""
    return [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "127.0.0.1"), *more]


def without(name: str) -> Fields:
    """The fields of a request, one left out."""
    return [pair for pair in fields() if pair[0] != name]


def get(*more: tuple[str, str], stream_id: int = 1, end: bool = True) -> bytes:
    """GET /."""
    return wire.headers(stream_id, fields("GET", *more), end=end)


def post(*more: tuple[str, str], end: bool = False) -> bytes:
    """The head of POST /."""
    return wire.headers(1, fields("POST", *more), end=end)


def raw(fragment: bytes, flags: int = END_STREAM | END_HEADERS, *, stream_id: int = 1) -> bytes:
    """HEADERS with any payload."""
    return wire.frame(wire.HEADERS, stream_id, fragment, flags)


def continuation(fragment: bytes, *, end: bool, stream_id: int = 1) -> bytes:
    """CONTINUATION."""
    return wire.frame(wire.CONTINUATION, stream_id, fragment, END_HEADERS if end else 0)


def priority(stream_id: int, depends_on: int = 0, weight: int = 255, *, exclusive: bool = False) -> bytes:
    """PRIORITY."""
    return wire.frame(wire.PRIORITY, stream_id, priority_fields(depends_on, weight, exclusive=exclusive))


def priority_fields(depends_on: int = 0, weight: int = 255, *, exclusive: bool = False) -> bytes:
    """What PRIORITY is made of, and what HEADERS may start with."""
    return struct.pack(">LB", depends_on | (0x80000000 if exclusive else 0), weight)


GET_BLOCK: Final = wire.encode(fields())
LONG_BLOCK: Final = wire.encode([("x-long-0", "x" * 4_000)])
"""A field as long as suites make them."""
GET: Final = get()
POST: Final = post()
BODY: Final = wire.data(1, b"test", end=True)
PING: Final = wire.ping()
