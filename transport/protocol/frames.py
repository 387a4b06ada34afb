"""HTTP/2 frame headers and the frames that need no state to be made (RFC 9113 section 6).

Packing and constants only; what a frame means is decided elsewhere.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER_BYTES: Final = 9

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

FLAG_ACK: Final = 0x1
FLAG_END_STREAM: Final = 0x1
FLAG_END_HEADERS: Final = 0x4
FLAG_PADDED: Final = 0x8
FLAG_PRIORITY: Final = 0x20

STREAM_ID_MAX: Final = 2**31 - 1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Client connection preface, RFC 9113 section 3.4."""

_HEADER = struct.Struct(">HBBBL")  # length (16 + 8 bits), type, flags, stream id
_RESET = _WINDOW_UPDATE = struct.Struct(">HBBBLL")
_GOAWAY = struct.Struct(">HBBBLLL")
_SETTING = struct.Struct(">HL")

pack_header = _HEADER.pack


def data_header(stream_id: int, length: int, flags: int = 0) -> bytes:
    """The 9 bytes in front of a DATA payload of `length` octets."""
    return pack_header(length >> 8, length & 0xFF, DATA, flags, stream_id)


def reset(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return _RESET.pack(0, 4, RST_STREAM, 0, stream_id, code)


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection; increment 1..2^31-1 octets."""
    return _WINDOW_UPDATE.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


def goaway(last_stream_id: int, code: int, debug: bytes) -> bytes:
    """A GOAWAY frame; `debug` is for people who read packet captures."""
    length = 8 + len(debug)
    return _GOAWAY.pack(length >> 8, length & 0xFF, GOAWAY, 0, 0, last_stream_id, code) + debug


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame of identifier to value."""
    body = b"".join(_SETTING.pack(identifier, value) for identifier, value in values.items())
    return pack_header(len(body) >> 8, len(body) & 0xFF, SETTINGS, 0, 0) + body
