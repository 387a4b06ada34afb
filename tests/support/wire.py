"""Frames as a hostile or strange peer would write them, and a reader of the frames that come back.

Nothing here shares code with `transport.protocol`: what both got wrong would not be seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_CONCURRENT_STREAMS, HEADER_TABLE_SIZE = 4, 5, 3, 1

REQUEST: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Test/Method"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
RESPONSE: Final = ((":status", "200"), ("content-type", "application/grpc"))
TRAILERS: Final = (("grpc-status", "0"),)


def frame(kind: int, stream_id: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """Any frame."""
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


def data(stream_id: int, payload: bytes = b"", *, end: bool = False, padding: int | None = None) -> bytes:
    """DATA, padded if `padding` is not None."""
    flags = END_STREAM if end else 0
    if padding is not None:
        payload, flags = bytes([padding]) + payload + bytes(padding), flags | PADDED
    return frame(DATA, stream_id, payload, flags)


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block that no encoder's state is needed for: literals, none of them indexed."""
    return bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(n, v) for n, v in fields]))


def headers(
    stream_id: int,
    fields: Iterable[tuple[str, str]] = REQUEST,
    *,
    end: bool = False,
    end_headers: bool = True,
) -> bytes:
    """HEADERS."""
    flags = (END_STREAM if end else 0) | (END_HEADERS if end_headers else 0)
    return frame(HEADERS, stream_id, encode(fields), flags)


def settings(*pairs: tuple[int, int], ack: bool = False) -> bytes:
    """SETTINGS."""
    payload = b"".join(struct.pack(">HL", identifier, value) for identifier, value in pairs)
    return frame(SETTINGS, 0, payload, ACK if ack else 0)


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, stream_id, struct.pack(">L", increment))


def reset(stream_id: int, code: int = 8) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, stream_id, struct.pack(">L", code))


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    """PING."""
    return frame(PING, 0, payload, ACK if ack else 0)


def goaway(last_stream_id: int, code: int = 0, debug: bytes = b"") -> bytes:
    """GOAWAY."""
    return frame(GOAWAY, 0, struct.pack(">LL", last_stream_id, code) + debug)


def message(payload: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BL", 0, len(payload)) + payload


CLIENT_HELLO: Final = PREFACE + settings() + settings(ack=True)
"""All that a client has to say before its first request."""
SERVER_HELLO: Final = settings() + settings(ack=True)
"""All that a server has to say before its first answer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that was sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or GOAWAY."""
        at = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def number(self) -> int:
        """The first four octets: an increment, a last stream id."""
        return int.from_bytes(self.payload[:4], "big") & 0x7FFFFFFF


def parse(octets: bytes) -> list[Frame]:
    """Cut octets into frames; a client's preface is skipped."""
    octets = octets.removeprefix(PREFACE)
    found, at = [], 0
    while at < len(octets):
        high, low, kind, flags, stream_id = struct.unpack_from(">HBBBL", octets, at)
        end = at + 9 + (high << 8 | low)
        assert end <= len(octets), "the last frame is cut"
        found.append(Frame(kind, flags, stream_id & 0x7FFFFFFF, octets[at + 9 : end]))
        at = end
    return found


def only(found: Sequence[Frame], kind: int, stream_id: int | None = None) -> list[Frame]:
    """The frames of one kind, and of one stream if it is given."""
    return [f for f in found if f.kind == kind and stream_id in {None, f.stream_id}]


def fields(block: bytes) -> list[tuple[str, str]]:
    """The fields of the first header block of a connection."""
    return [(bytes(n).decode(), bytes(v).decode()) for n, v in hpack.Decoder().decode(block, raw=True)]
