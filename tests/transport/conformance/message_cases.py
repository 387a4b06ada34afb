"""Messages that are malformed, header blocks that cannot be decoded, and prefaces that are none.

A malformed request may be a stream's error or the connection's (RFC 9113 section 8.1.1 allows the first, and an
intermediary knows which); a block that cannot be decoded can only be the connection's.
"""

from __future__ import annotations

from tests.support import wire
from tests.transport.conformance.peer import (
    Case,
    Cases,
    Peer,
    Step,
    alive,
    answered,
    closed,
    connection_error,
    stream_error,
)
from tests.transport.conformance.requests import BODY, GET_BLOCK, POST, fields, get, post, raw, without
from transport.errors import ErrorCode

PROTOCOL, COMPRESSION = ErrorCode.PROTOCOL_ERROR, ErrorCode.COMPRESSION_ERROR
MALFORMED: Step = stream_error(PROTOCOL)
_X_TEST = b"\x85\xf2\xb2\x4a\x84\xff"


def _request(pairs: list[tuple[str, str]]) -> Case:
    return (wire.headers(1, pairs, end=True), MALFORMED)


def _valued(name: str, value: str) -> list[tuple[str, str]]:
    return [(n, value if n == name else v) for n, v in fields()]


def _undecodable(fragment: bytes) -> Case:
    return (raw(fragment), connection_error(COMPRESSION))


def _settings_first(peer: Peer) -> None:
    first = peer.frame()
    assert first is not None
    assert first.kind == wire.SETTINGS
    assert not first.flags & wire.ACK


MESSAGES: Cases = {
    "http2/8.1/1 second HEADERS without END_STREAM": (
        POST + wire.data(1, b"test") + wire.headers(1, [("x-test", "ok")]),
        MALFORMED,
    ),
    "http2/8.1.2/1 upper case": _request(fields("GET", ("X-TEST", "ok"))),
    "http2/8.1.2/2 a line feed in a value": _request(fields("GET", ("x-test", "a\nb"))),
    "http2/8.1.2/3 a zero in a value": _request(fields("GET", ("x-test", "a\0b"))),
    "http2/8.1.2/4 a carriage return in a value": _request(fields("GET", ("x-test", "a\rb"))),
    "http2/8.1.2/5 a space before a value": _request(fields("GET", ("x-test", " a"))),
    "http2/8.1.2/6 a tab after a value": _request(fields("GET", ("x-test", "a\t"))),
    "http2/8.1.2/7 a colon in a name": _request(fields("GET", ("x:test", "a"))),
    "http2/8.1.2/8 a space in a name": _request(fields("GET", ("x test", "a"))),
    "http2/8.1.2/9 an empty name": _request(fields("GET", ("", "a"))),
    "http2/8.1.2.1/1 unknown pseudo-header": _request(fields("GET", (":test", "ok"))),
    "http2/8.1.2.1/2 pseudo-header of responses": _request(fields("GET", (":status", "200"))),
    "http2/8.1.2.1/3 pseudo-header in trailers": (
        POST + wire.data(1, b"test") + wire.headers(1, [(":method", "POST")], end=True),
        MALFORMED,
    ),
    "http2/8.1.2.1/4 pseudo-header after a field": _request([("x-test", "ok"), *fields()]),
    "http2/8.1.2.1/5 pseudo-header in trailers without END_STREAM": (
        POST + wire.data(1, b"test") + wire.headers(1, [(":method", "POST")]),
        MALFORMED,
    ),
    **{
        f"http2/8.1.2.2/1 {name}": _request(fields("GET", (name, value)))
        for name, value in (
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
        )
    },
    "http2/8.1.2.2/2 te other than trailers": _request(
        fields("GET", ("trailers", "test"), ("te", "trailers, deflate"))
    ),
    "http2/8.1.2.3/1 empty :path": _request(_valued(":path", "")),
    **{f"http2/8.1.2.3/2 no {name}": _request(without(name)) for name in (":method", ":scheme", ":path")},
    **{f"http2/8.1.2.3/3 {name} twice": _request([(name, value), *fields()]) for name, value in fields()},
    "http2/8.1.2.6/1 content-length is not that of DATA": (post(("content-length", "1")) + BODY, MALFORMED),
    "http2/8.1.2.6/2 content-length is not that of all DATA": (
        post(("content-length", "1")) + wire.data(1, b"test") + BODY,
        MALFORMED,
    ),
    "http2/8.1.2.6/3 content-length and no body": (post(("content-length", "1"), end=True), MALFORMED),
    "http2/8.1.2.6/4 content-length is no number": (post(("content-length", "4x")) + BODY, MALFORMED),
    "http2/8.1.2.6/5 content-length twice, and different": (
        post(("content-length", "4"), ("content-length", "5")) + BODY,
        MALFORMED,
    ),
    "http2/8.1.2.6/6 content-length is above DATA, and trailers end it": (
        post(("content-length", "9")) + wire.data(1, b"test") + wire.headers(1, [("x", "y")], end=True),
        MALFORMED,
    ),
    "http2/8.1.2.6/7 content-length with padding": (
        post(("content-length", "4")) + wire.data(1, b"test", end=True, padding=9),
        answered,
        alive,
    ),
    "http2/8.2/1 PUSH_PROMISE": (
        get() + wire.frame(wire.PUSH_PROMISE, 1, b"\0\0\0\3" + GET_BLOCK, 4),
        connection_error(PROTOCOL),
    ),
}

DECODING: Cases = {
    "hpack/2.3.3/1 index out of range": _undecodable(GET_BLOCK + b"\xfe"),
    "hpack/2.3.3/2 index of a name out of range": _undecodable(GET_BLOCK + b"\x7e\x04test"),
    "hpack/4.2/1 table size update at the end": _undecodable(GET_BLOCK + b"\x20"),
    "hpack/5.1/1 integer without end": _undecodable(GET_BLOCK + b"\xff" * 12),
    "hpack/5.2/1 padding of more than 7 bits": _undecodable(
        GET_BLOCK + b"\x00" + _X_TEST + b"\x84\x49\x50\x9f\xff"
    ),
    "hpack/5.2/2 padding of zeros": _undecodable(GET_BLOCK + b"\x00" + _X_TEST + b"\x83\x49\x50\x90"),
    "hpack/5.2/3 EOS in a string": _undecodable(
        GET_BLOCK + b"\x00" + _X_TEST + b"\x87\xff\xff\xff\xfd\x25\x42\x7f"
    ),
    "hpack/5.2/4 string longer than the block": _undecodable(GET_BLOCK + b"\x00\x7ftest"),
    "hpack/6.1/1 index 0": _undecodable(GET_BLOCK + b"\x80"),
    "hpack/6.3/1 table size above the limit": _undecodable(b"\x3f\xe2\x1f" + GET_BLOCK),
}

PREFACES: Cases = {
    "http2/3.5/1 preface": (
        wire.PREFACE + wire.settings(),
        _settings_first,
    ),
    "http2/3.5/2 no preface": (b"INVALID CONNECTION PREFACE\r\n\r\n", closed),
    "http2/3.5/3 HTTP/1.1": (b"GET / HTTP/1.1\r\nhost: test\r\n\r\n", Peer.read_to_end),
    "http2/3.5/4 no SETTINGS after it": (wire.PREFACE + wire.ping(), connection_error(PROTOCOL)),
}
"""Without a handshake."""
