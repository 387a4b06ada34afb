"""What any HTTP/2 server takes: frames of every kind in their proper places, requests, and all forms of HPACK."""

from __future__ import annotations

from typing import Final

from tests.support import wire
from tests.transport.conformance.peer import (
    Cases,
    Peer,
    acknowledged,
    alive,
    answered,
    closed,
    data_of,
    pong,
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

NO_WINDOW: Final = wire.settings((wire.INITIAL_WINDOW_SIZE, 0))
WHOLE: Final = END_STREAM | END_HEADERS
# Names and values in octets and in Huffman's code, as the examples of RFC 7541 spell such things.
_USER_AGENT: Final = b"\x0auser-agent\x06h2test"
_X_TEST: Final = b"\x06x-test\x06h2test"
_X_TEST_HUFFMAN: Final = b"\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x95\xa7"


def _indexed_twice(peer: Peer) -> None:
    """The second request is made of the entries that the first has put into the dynamic table."""
    custom = b"\x40" + _X_TEST
    peer.send(raw(GET_BLOCK + custom))
    answered(peer)
    peer.send(raw(GET_BLOCK + b"\xbe", stream_id=3))
    assert peer.expect(wire.HEADERS, wire.GOAWAY, wire.RST_STREAM).kind == wire.HEADERS


def _late_goaway(peer: Peer) -> None:
    """A call that runs is finished after its client's GOAWAY, which ends what the server may open, and nothing else."""
    peer.send(NO_WINDOW + GET + wire.goaway(0, 0, b"bye") + wire.window_update(1, 10_000))
    answered(peer)
    alive(peer)


FRAMES: Cases = {
    "generic/1/1 preface": (alive,),
    "generic/2/1 PRIORITY on an idle stream": (priority(1), PING, pong()),
    "generic/2/2 WINDOW_UPDATE on a half-closed stream": (
        NO_WINDOW + GET + wire.window_update(1, 1),
        data_of(1),
        alive,
    ),
    "generic/2/3 PRIORITY on a half-closed stream": (
        NO_WINDOW + GET + priority(1) + wire.window_update(1, 1),
        data_of(1),
        alive,
    ),
    "generic/2/4 RST_STREAM on a half-closed stream": (GET + wire.reset(1), PING, pong()),
    "generic/2/5 PRIORITY on a closed stream": (GET, answered, priority(1), PING, pong()),
    "generic/3.1/1 DATA": (POST + BODY, answered, alive),
    "generic/3.1/2 DATA twice": (POST + wire.data(1, b"test") + BODY, answered, alive),
    "generic/3.1/3 DATA with padding": (POST + wire.data(1, b"test", end=True, padding=10), answered, alive),
    "generic/3.2/1 HEADERS": (GET, answered, alive),
    "generic/3.2/2 HEADERS with padding": (
        raw(b"\x0a" + GET_BLOCK + bytes(10), WHOLE | PADDED),
        answered,
        alive,
    ),
    "generic/3.2/3 HEADERS with priority": (
        raw(priority_fields(exclusive=True) + GET_BLOCK, WHOLE | PRIORITY),
        answered,
        alive,
    ),
    "generic/3.2/4 HEADERS with padding and priority": (
        raw(b"\xff" + priority_fields() + GET_BLOCK + bytes(255), WHOLE | PADDED | PRIORITY),
        answered,
        alive,
    ),
    "generic/3.3/1 PRIORITY with the least weight": (priority(1, weight=0) + GET, answered),
    "generic/3.3/2 PRIORITY with the largest weight": (priority(1, weight=255) + GET, answered),
    "generic/3.3/3 PRIORITY with a dependency": (priority(3, 1, 0) + GET, answered),
    "generic/3.3/4 PRIORITY, exclusive": (priority(1, exclusive=True) + GET, answered),
    "generic/3.3/5 PRIORITY of a higher idle stream": (priority(3) + GET, answered, alive),
    "generic/3.4/1 RST_STREAM": (get(end=False) + wire.reset(1), PING, pong()),
    "generic/3.5/1 SETTINGS": (wire.settings((wire.MAX_CONCURRENT_STREAMS, 100)), acknowledged, alive),
    "generic/3.7/1 PING": (PING, pong()),
    "generic/3.8/1 GOAWAY": (wire.goaway(0, 0, b"bye"), PING, pong()),
    "generic/3.8/2 GOAWAY and PING in one": (wire.goaway(0) + PING, pong(), alive),
    "generic/3.8/3 GOAWAY while a call runs": (_late_goaway,),
    "generic/3.9/1 WINDOW_UPDATE of the connection": (wire.window_update(0, 1), PING, pong()),
    "generic/3.9/2 WINDOW_UPDATE of a stream": (GET + wire.window_update(1, 1), answered, alive),
    "generic/3.10/1 CONTINUATION": (
        raw(GET_BLOCK, END_STREAM) + continuation(LONG_BLOCK, end=True),
        answered,
        alive,
    ),
    "generic/3.10/2 CONTINUATION twice": (
        raw(GET_BLOCK, END_STREAM) + continuation(LONG_BLOCK, end=False) + continuation(LONG_BLOCK, end=True),
        answered,
        alive,
    ),
    "generic/3.10/3 CONTINUATION in the middle of a field": (
        raw(GET_BLOCK[:7], END_STREAM)
        + continuation(b"", end=False)
        + continuation(GET_BLOCK[7:9], end=False)
        + continuation(GET_BLOCK[9:], end=True),
        answered,
        alive,
    ),
    "generic/4/1 GET": (GET, answered, alive),
    "generic/4/2 HEAD": (wire.headers(1, fields("HEAD"), end=True), answered, alive),
    "generic/4/3 POST": (POST + BODY, answered, alive),
    "generic/4/4 POST with trailers": (
        post(("trailer", "x-test")) + wire.data(1, b"test") + wire.headers(1, [("x-test", "ok")], end=True),
        answered,
        alive,
    ),
    "generic/4/5 POST without a body": (post(end=True), answered, alive),
    "generic/4/6 POST with an empty end": (POST + wire.data(1, b"test") + wire.data(1, end=True), answered),
    "generic/4/7 OPTIONS": (
        wire.headers(1, [*fields("OPTIONS")[:2], (":path", "*"), (":authority", "127.0.0.1")], end=True),
        answered,
        alive,
    ),
    "generic/4/8 a cookie in crumbs": (get(("cookie", "a=b"), ("cookie", "c=d")), answered, alive),
    "generic/4/9 te: trailers": (get(("te", "trailers")), answered, alive),
}

HPACK: Cases = {
    "generic/5/1 indexed": (raw(GET_BLOCK + b"\xba"), answered, alive),
    "generic/5/2 literal, indexed from now on, name in octets": (
        raw(GET_BLOCK + b"\x40" + _USER_AGENT),
        answered,
    ),
    "generic/5/3 literal, indexed from now on, name by index": (
        raw(GET_BLOCK + b"\x7a\x06h2test"),
        answered,
    ),
    "generic/5/4 literal, indexed from now on, new name": (raw(GET_BLOCK + b"\x40" + _X_TEST), answered),
    "generic/5/5 literal, indexed from now on, Huffman": (
        raw(GET_BLOCK + b"\x40" + _X_TEST_HUFFMAN),
        answered,
    ),
    "generic/5/6 literal, not indexed, name by index": (
        raw(GET_BLOCK + b"\x0f\x2b\x06h2test"),
        answered,
    ),
    "generic/5/7 literal, not indexed, new name": (raw(GET_BLOCK + b"\x00" + _X_TEST), answered),
    "generic/5/8 literal, not indexed, Huffman": (raw(GET_BLOCK + b"\x00" + _X_TEST_HUFFMAN), answered),
    "generic/5/9 literal, never indexed, name by index": (
        raw(GET_BLOCK + b"\x1f\x2b\x06h2test"),
        answered,
    ),
    "generic/5/10 literal, never indexed, new name": (raw(GET_BLOCK + b"\x10" + _X_TEST), answered),
    "generic/5/11 literal, never indexed, Huffman": (raw(GET_BLOCK + b"\x10" + _X_TEST_HUFFMAN), answered),
    "generic/5/12 table size update": (raw(b"\x20" + GET_BLOCK), answered, alive),
    "generic/5/13 table size update twice": (raw(b"\x20\x3f\xe1\x1f" + GET_BLOCK), answered, alive),
    "generic/5/14 an entry that is used again": (_indexed_twice, alive),
    "generic/5/15 an entry larger than the table": (
        raw(GET_BLOCK + b"\x40\x01x\x7f\xe1\x1f" + b"v" * 4_192),
        answered,
        alive,
    ),
}
