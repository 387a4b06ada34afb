"""What RFC 9113 makes an error, section by section, with the code that it names.

Sections are numbered as in RFC 7540, by which suites number their cases: 3.5 is 3.4 of RFC 9113, 5.3.1 has gone
from it, 8.1.2 is 8.2 and 8.3.
"""

from __future__ import annotations

import struct
from typing import Final

from tests.support import wire
from tests.transport.conformance.peer import (
    Cases,
    Peer,
    Step,
    acknowledged,
    alive,
    answered,
    closed,
    connection_error,
    data_of,
    pong,
    reset,
    stream_error,
)
from tests.transport.conformance.requests import (
    BODY,
    END_HEADERS,
    END_STREAM,
    GET,
    GET_BLOCK,
    LONG_BLOCK,
    PADDED,
    PING,
    POST,
    PRIORITY,
    continuation,
    fields,
    get,
    post,
    priority,
    priority_fields,
    raw,
)
from transport.errors import ErrorCode

PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, REFUSED = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.COMPRESSION_ERROR,
    ErrorCode.REFUSED_STREAM,
)
OPEN: Final = get(end=False)
UNFINISHED: Final = raw(GET_BLOCK, 0)
UNFINISHED_END: Final = raw(GET_BLOCK, END_STREAM)
POST_BLOCK: Final = wire.encode(fields("POST"))
UNKNOWN: Final = wire.frame(0x16, 0, bytes(8))
TABLE_SIZE, ENABLE_PUSH = 1, 2
WINDOW_MAX: Final = 2**31 - 1
_FRAME_BYTES: Final = 16_384


def _largest_data(peer: Peer) -> None:
    peer.send(POST + wire.data(1, bytes(peer.settings.get(wire.MAX_FRAME_SIZE, _FRAME_BYTES)), end=True))


def _too_large_data(peer: Peer) -> None:
    peer.send(POST + wire.data(1, bytes(peer.settings.get(wire.MAX_FRAME_SIZE, _FRAME_BYTES) + 1), end=True))


def _too_many_streams(peer: Peer) -> None:
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 0)))
    most = peer.settings[wire.MAX_CONCURRENT_STREAMS]
    peer.send(b"".join(get(stream_id=2 * number + 1) for number in range(most + 1)))
    found = peer.expect(wire.RST_STREAM, wire.GOAWAY)
    assert (found.kind, found.stream_id, found.code) == (wire.RST_STREAM, 2 * most + 1, REFUSED)


def _closed_on(stream_id: int) -> Step:
    def step(peer: Peer) -> None:
        found = peer.expect(wire.RST_STREAM, wire.GOAWAY)
        assert found.code == CLOSED
        assert found.kind == wire.GOAWAY or found.stream_id == stream_id

    return step


def _window_of(size: int) -> bytes:
    return wire.settings((wire.INITIAL_WINDOW_SIZE, size))


FRAMING: Cases = {
    "http2/4.1/1 unknown frame": (UNKNOWN + PING, pong()),
    "http2/4.1/2 undefined flags": (wire.frame(wire.PING, 0, b"12345678", 0x16), pong()),
    "http2/4.1/3 reserved bit": (wire.frame(wire.PING, 0x80000000, b"12345678", 0x16), pong()),
    "http2/4.2/1 DATA as long as allowed": (_largest_data, answered, alive),
    "http2/4.2/2 DATA longer than allowed": (_too_large_data, stream_error(SIZE)),
    "http2/4.2/3 HEADERS longer than 80 KiB": (
        raw(wire.encode([*fields(), *((f"x-long-{n}", "x" * 4_000) for n in range(25))])),
        connection_error(SIZE),
    ),
    "http2/4.3/1 block cut short": (raw(b"\x40"), connection_error(COMPRESSION)),
    "http2/4.3/2 PRIORITY inside a header block": (
        UNFINISHED + priority(1) + continuation(LONG_BLOCK, end=True),
        connection_error(PROTOCOL),
    ),
    "http2/4.3/3 HEADERS inside a header block": (
        UNFINISHED + get(stream_id=3) + continuation(LONG_BLOCK, end=True),
        connection_error(PROTOCOL),
    ),
    "http2/5.5/1 unknown frame": (UNKNOWN + PING, pong()),
    "http2/5.5/2 unknown frame inside a header block": (UNFINISHED + UNKNOWN, connection_error(PROTOCOL)),
}

STREAMS: Cases = {
    "http2/5.1/1 idle: DATA": (BODY, connection_error(PROTOCOL)),
    "http2/5.1/2 idle: RST_STREAM": (wire.reset(1), connection_error(PROTOCOL)),
    "http2/5.1/3 idle: WINDOW_UPDATE": (wire.window_update(1, 100), connection_error(PROTOCOL)),
    "http2/5.1/4 idle: CONTINUATION": (continuation(GET_BLOCK, end=True), connection_error(PROTOCOL)),
    "http2/5.1/5 half-closed: DATA": (GET + BODY, stream_error(CLOSED)),
    "http2/5.1/6 half-closed: HEADERS": (GET + GET, stream_error(CLOSED)),
    "http2/5.1/7 half-closed: CONTINUATION": (
        GET + continuation(GET_BLOCK, end=True),
        stream_error(CLOSED, PROTOCOL),
    ),
    "http2/5.1/8 reset: DATA": (OPEN + wire.reset(1) + BODY, stream_error(CLOSED)),
    "http2/5.1/9 reset: HEADERS": (OPEN + wire.reset(1) + GET, stream_error(CLOSED)),
    "http2/5.1/10 reset: CONTINUATION": (
        OPEN + wire.reset(1) + continuation(LONG_BLOCK, end=True),
        stream_error(CLOSED, PROTOCOL),
    ),
    "http2/5.1/11 closed: DATA": (GET, answered, BODY, connection_error(CLOSED)),
    "http2/5.1/12 closed: HEADERS": (GET, answered, GET, connection_error(CLOSED)),
    "http2/5.1/13 closed: CONTINUATION": (
        GET,
        answered,
        continuation(LONG_BLOCK, end=True),
        connection_error(CLOSED, PROTOCOL),
    ),
    "http2/5.1/14 half-closed without a window: DATA": (_window_of(0) + GET + BODY, stream_error(CLOSED)),
    "http2/5.1/15 half-closed without a window: HEADERS": (_window_of(0) + GET + GET, stream_error(CLOSED)),
    "http2/5.1/16 closed: WINDOW_UPDATE": (GET, answered, wire.window_update(1, 1), alive),
    "http2/5.1/17 closed: RST_STREAM": (GET, answered, wire.reset(1), alive),
    "http2/5.1.1/1 even stream": (get(stream_id=2), connection_error(PROTOCOL)),
    "http2/5.1.1/2 lower stream": (get(stream_id=5) + get(stream_id=3), connection_error(PROTOCOL)),
    "http2/5.1.1/3 stream that is half-closed": (get(stream_id=5) * 2, _closed_on(5)),
    "http2/5.1.2/1 too many streams": (_too_many_streams, alive),
    "http2/5.3.1/1 HEADERS that depend on themselves": (
        raw(priority_fields(1) + GET_BLOCK, END_STREAM | END_HEADERS | PRIORITY),
        stream_error(PROTOCOL),
    ),
    "http2/5.3.1/2 PRIORITY that depends on itself": (priority(1, 1), stream_error(PROTOCOL)),
    "http2/5.4.1/1 the connection is closed after an error": (
        wire.frame(wire.PING, 3, bytes(8)),
        closed,
    ),
    "http2/5.4.1/2 GOAWAY comes before that": (
        wire.frame(wire.PING, 3, bytes(8)),
        connection_error(PROTOCOL),
    ),
}

DEFINITIONS: Cases = {
    "http2/6.1/1 DATA on stream 0": (wire.data(0, b"test", end=True), connection_error(PROTOCOL)),
    "http2/6.1/2 DATA after the end": (post(end=True) + BODY, stream_error(CLOSED)),
    "http2/6.1/3 DATA with too much padding": (
        post(("content-length", "4")) + wire.frame(wire.DATA, 1, b"\x06test", END_STREAM | PADDED),
        connection_error(PROTOCOL),
    ),
    "http2/6.2/1 HEADERS unfinished, PRIORITY": (
        UNFINISHED + priority(1) + continuation(LONG_BLOCK, end=True),
        connection_error(PROTOCOL),
    ),
    "http2/6.2/2 HEADERS unfinished, HEADERS of another": (
        UNFINISHED + get(stream_id=3) + continuation(LONG_BLOCK, end=True),
        connection_error(PROTOCOL),
    ),
    "http2/6.2/3 HEADERS on stream 0": (get(stream_id=0), connection_error(PROTOCOL)),
    "http2/6.2/4 HEADERS with too much padding": (
        raw(bytes((len(GET_BLOCK) + 2,)) + GET_BLOCK, END_STREAM | END_HEADERS | PADDED),
        connection_error(PROTOCOL),
    ),
    "http2/6.2/5 HEADERS too short for priority": (
        raw(b"\0\0\0\0", END_STREAM | END_HEADERS | PRIORITY),
        connection_error(SIZE, PROTOCOL),
    ),
    "http2/6.3/1 PRIORITY on stream 0": (priority(0), connection_error(PROTOCOL)),
    "http2/6.3/2 PRIORITY of 4 octets": (
        GET + wire.frame(wire.PRIORITY, 1, b"\x80\0\0\1"),
        stream_error(SIZE),
    ),
    "http2/6.3/3 PRIORITY of a higher idle stream": (priority(3) + GET, answered, alive),
    "http2/6.4/1 RST_STREAM on stream 0": (wire.reset(0), connection_error(PROTOCOL)),
    "http2/6.4/2 RST_STREAM on an idle stream": (wire.reset(1), connection_error(PROTOCOL)),
    "http2/6.4/3 RST_STREAM of 3 octets": (
        OPEN + wire.frame(wire.RST_STREAM, 1, bytes(3)),
        connection_error(SIZE),
    ),
    "http2/6.5/1 acknowledgement with a payload": (
        wire.frame(wire.SETTINGS, 0, bytes(1), wire.ACK),
        connection_error(SIZE),
    ),
    "http2/6.5/2 SETTINGS on a stream": (
        wire.frame(wire.SETTINGS, 1, struct.pack(">HL", 3, 100)),
        connection_error(PROTOCOL),
    ),
    "http2/6.5/3 SETTINGS of 3 octets": (
        wire.frame(wire.SETTINGS, 0, b"\0\3\0"),
        connection_error(SIZE),
    ),
    "http2/6.5/4 SETTINGS of 9 octets, of which 8 come": (
        wire.frame(wire.SETTINGS, 0, bytes(9))[:-1],
        connection_error(SIZE),
    ),
    "http2/6.5.2/1 ENABLE_PUSH of 2": (wire.settings((ENABLE_PUSH, 2)), connection_error(PROTOCOL)),
    "http2/6.5.2/2 INITIAL_WINDOW_SIZE of 2^31": (_window_of(2**31), connection_error(FLOW)),
    "http2/6.5.2/3 MAX_FRAME_SIZE of 16383": (
        wire.settings((wire.MAX_FRAME_SIZE, 16_383)),
        connection_error(PROTOCOL),
    ),
    "http2/6.5.2/4 MAX_FRAME_SIZE of 2^24": (
        wire.settings((wire.MAX_FRAME_SIZE, 2**24)),
        connection_error(PROTOCOL),
    ),
    "http2/6.5.2/5 unknown setting": (wire.settings((0xFF, 1)) + PING, pong()),
    "http2/6.5.2/6 smaller header table": (
        wire.settings((TABLE_SIZE, 0)),
        acknowledged,
        GET,
        answered,
        alive,
    ),
    "http2/6.5.2/7 larger header table": (
        wire.settings((TABLE_SIZE, 1 << 20)),
        acknowledged,
        GET,
        answered,
        alive,
    ),
    "http2/6.5.3/1 a setting twice": (
        wire.settings((wire.INITIAL_WINDOW_SIZE, 100), (wire.INITIAL_WINDOW_SIZE, 1)) + GET,
        data_of(1),
    ),
    "http2/6.5.3/2 acknowledgement": (wire.settings(), acknowledged),
    "http2/6.7/1 PING": (PING, pong()),
    "http2/6.7/2 PING acknowledged unasked": (wire.ping(b"unasked!", ack=True) + PING, pong()),
    "http2/6.7/3 PING on a stream": (wire.frame(wire.PING, 1, bytes(8)), connection_error(PROTOCOL)),
    "http2/6.7/4 PING of 6 octets": (wire.frame(wire.PING, 0, bytes(6)), connection_error(SIZE)),
    "http2/6.7/5 PING of 9 octets, of which 8 come": (
        wire.frame(wire.PING, 0, bytes(9))[:-1],
        connection_error(SIZE),
    ),
    "http2/6.8/1 GOAWAY on a stream": (wire.frame(wire.GOAWAY, 1, bytes(8)), connection_error(PROTOCOL)),
    "http2/7/1 GOAWAY with an unknown code": (wire.goaway(0, 0xFF) + PING, pong(), closed),
    "http2/7/2 RST_STREAM with an unknown code": (OPEN + wire.reset(1, 0xFF) + PING, pong()),
}

WINDOWS: Cases = {
    "http2/6.9/1 WINDOW_UPDATE of 0": (wire.window_update(0, 0), connection_error(PROTOCOL)),
    "http2/6.9/2 WINDOW_UPDATE of 0 on a stream": (OPEN + wire.window_update(1, 0), stream_error(PROTOCOL)),
    "http2/6.9/3 WINDOW_UPDATE of 3 octets": (
        wire.frame(wire.WINDOW_UPDATE, 0, b"\0\0\1"),
        connection_error(SIZE),
    ),
    "http2/6.9/4 WINDOW_UPDATE of 0 on a stream that is over": (
        GET,
        answered,
        wire.window_update(1, 0),
        stream_error(PROTOCOL),
    ),
    "http2/6.9/5 WINDOW_UPDATE of 4 octets and one more": (
        wire.frame(wire.WINDOW_UPDATE, 0, bytes(5))[:-1],
        connection_error(SIZE),
    ),
    "http2/6.9.1/1 window of 1": (_window_of(1), acknowledged, GET, data_of(1), alive),
    "http2/6.9.1/2 the connection's window past 2^31-1": (
        wire.window_update(0, WINDOW_MAX) * 2,
        connection_error(FLOW),
    ),
    "http2/6.9.1/3 a stream's window past 2^31-1": (
        OPEN + wire.window_update(1, WINDOW_MAX) * 2,
        reset(FLOW),
    ),
    "http2/6.9.1/4 window to the last octet": (
        wire.window_update(0, WINDOW_MAX - 65_535) + OPEN + wire.window_update(1, WINDOW_MAX - 65_535),
        alive,
    ),
    "http2/6.9.2/1 window of a stream that waits": (
        _window_of(0),
        acknowledged,
        GET + _window_of(1),
        acknowledged,
        data_of(1),
    ),
    "http2/6.9.2/2 negative window": (
        _window_of(3),
        acknowledged,
        GET,
        data_of(3),
        _window_of(2),
        acknowledged,
        wire.window_update(1, 2),
        data_of(1),
    ),
    "http2/6.9.2/3 INITIAL_WINDOW_SIZE of 2^31": (_window_of(2**31), connection_error(FLOW)),
    "http2/6.9.2/4 window of a stream past 2^31-1 by SETTINGS": (
        OPEN + wire.window_update(1, WINDOW_MAX - 65_535) + _window_of(65_536),
        connection_error(FLOW),
    ),
}

CONTINUATIONS: Cases = {
    "http2/6.10/1 two of them": (
        UNFINISHED_END + continuation(LONG_BLOCK, end=False) + continuation(LONG_BLOCK, end=True),
        answered,
        alive,
    ),
    "http2/6.10/2 followed by DATA": (
        raw(POST_BLOCK, 0) + continuation(LONG_BLOCK, end=False) + BODY,
        connection_error(PROTOCOL),
    ),
    "http2/6.10/3 on stream 0": (
        UNFINISHED_END + continuation(LONG_BLOCK, end=True, stream_id=0),
        connection_error(PROTOCOL),
    ),
    "http2/6.10/4 after HEADERS that were whole": (
        GET + continuation(LONG_BLOCK, end=True),
        connection_error(PROTOCOL),
    ),
    "http2/6.10/5 after the last one": (
        UNFINISHED_END + continuation(LONG_BLOCK, end=True) * 2,
        connection_error(PROTOCOL),
    ),
    "http2/6.10/6 after DATA": (
        raw(POST_BLOCK, 0) + BODY + continuation(LONG_BLOCK, end=False),
        connection_error(PROTOCOL),
    ),
    "http2/6.10/7 of another stream": (
        UNFINISHED_END + continuation(LONG_BLOCK, end=True, stream_id=3),
        connection_error(PROTOCOL),
    ),
}
