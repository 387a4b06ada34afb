"""What breaks the rules of RFC 9113 gets the code that the RFC names, from the stream or from the connection."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.support import wire
from tests.support.pair import Peer, drain_messages, request
from transport.config import TransportConfig
from transport.errors import (
    AnswerCut,
    AnswerRefused,
    CallFailed,
    ErrorCode,
    RemoteProtocolError,
    StatusCode,
    StreamRefused,
    StreamReset,
    StreamUnprocessed,
)

if TYPE_CHECKING:
    from transport.protocol.stream import StreamCore


PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION = (
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.FLOW_CONTROL_ERROR,
    ErrorCode.STREAM_CLOSED,
    ErrorCode.FRAME_SIZE_ERROR,
    ErrorCode.COMPRESSION_ERROR,
)
OPEN_1 = wire.headers(1)
SELF_DEPENDENT = wire.frame(wire.HEADERS, 1, struct.pack(">LB", 1, 15) + wire.encode(wire.REQUEST), 0x24)

CONNECTION_ERRORS: dict[str, tuple[bytes, set[ErrorCode]]] = {
    "DATA on stream 0": (wire.data(0, b"x"), {PROTOCOL}),
    "DATA on an idle stream": (wire.data(1, b"x"), {PROTOCOL}),
    "DATA on an even stream": (wire.data(2, b"x"), {PROTOCOL}),
    "DATA with too much padding": (OPEN_1 + wire.frame(0, 1, b"\xffabc", wire.PADDED), {PROTOCOL}),
    "DATA padded without a length": (OPEN_1 + wire.frame(0, 1, b"", wire.PADDED), {SIZE}),
    "DATA inside a header block": (wire.headers(1, end_headers=False) + wire.data(1, b"x"), {PROTOCOL}),
    "HEADERS on stream 0": (wire.headers(0), {PROTOCOL}),
    "HEADERS on an even stream": (wire.headers(2), {PROTOCOL}),
    "HEADERS on a lower stream": (wire.headers(3) + wire.headers(1), {PROTOCOL, CLOSED}),
    "HEADERS with a block that is not HPACK": (wire.frame(1, 1, b"\xff" * 9, 5), {COMPRESSION}),
    "HEADERS with too much padding": (wire.frame(1, 1, b"\xffabc", 0xC), {PROTOCOL}),
    "HEADERS that depend on themselves": (SELF_DEPENDENT, {PROTOCOL}),
    "PRIORITY on stream 0": (wire.frame(2, 0, bytes(5)), {PROTOCOL}),
    "RST_STREAM on stream 0": (wire.reset(0), {PROTOCOL}),
    "RST_STREAM on an idle stream": (wire.reset(1), {PROTOCOL}),
    "RST_STREAM of 3 octets": (OPEN_1 + wire.frame(3, 1, b"abc"), {SIZE}),
    "SETTINGS on a stream": (wire.frame(4, 1), {PROTOCOL}),
    "SETTINGS of 5 octets": (wire.frame(4, 0, b"12345"), {SIZE}),
    "SETTINGS acknowledged with a payload": (wire.frame(4, 0, bytes(6), wire.ACK), {SIZE}),
    "SETTINGS_INITIAL_WINDOW_SIZE of 2^31": (wire.settings((4, 2**31)), {FLOW}),
    "SETTINGS_MAX_FRAME_SIZE of 16383": (wire.settings((5, 16_383)), {PROTOCOL}),
    "SETTINGS_MAX_FRAME_SIZE of 2^24": (wire.settings((5, 2**24)), {PROTOCOL}),
    "SETTINGS_ENABLE_PUSH of 2": (wire.settings((2, 2)), {PROTOCOL}),
    "PUSH_PROMISE": (wire.frame(5, 1, bytes(4) + wire.encode(wire.REQUEST), 4), {PROTOCOL}),
    "PING on a stream": (wire.frame(6, 1, bytes(8)), {PROTOCOL}),
    "PING of 7 octets": (wire.frame(6, 0, bytes(7)), {SIZE}),
    "GOAWAY on a stream": (wire.frame(7, 1, bytes(8)), {PROTOCOL}),
    "GOAWAY of 7 octets": (wire.frame(7, 0, bytes(7)), {SIZE}),
    "WINDOW_UPDATE of 0 on the connection": (wire.window_update(0, 0), {PROTOCOL}),
    "WINDOW_UPDATE of 3 octets": (wire.frame(8, 0, bytes(3)), {SIZE}),
    "WINDOW_UPDATE on an idle stream": (wire.window_update(1, 1), {PROTOCOL}),
    "WINDOW_UPDATE past 2^31-1": (wire.window_update(0, 2**31 - 1), {FLOW}),
    "CONTINUATION outside of a header block": (wire.frame(9, 1, b"", 4), {PROTOCOL}),
    "CONTINUATION on another stream": (
        wire.headers(1, end_headers=False) + wire.frame(9, 3, b"", 4),
        {PROTOCOL},
    ),
    "CONTINUATION after END_HEADERS": (OPEN_1 + wire.frame(9, 1, b"", 4), {PROTOCOL}),
    "CONTINUATION on a closed stream": (OPEN_1 + wire.reset(1) + wire.frame(9, 1, b"", 4), {PROTOCOL}),
    "unknown frame inside a header block": (
        wire.headers(1, end_headers=False) + wire.frame(0x77, 0, b""),
        {PROTOCOL},
    ),
    "SETTINGS above the limit of control frames": (wire.frame(4, 0, bytes(6 * 2_731)), {SIZE}),
    "HEADERS above the limit of header blocks": (wire.frame(1, 1, bytes(5 * 16_384 + 1), 4), {SIZE}),
    "any frame above the advertised limit": (struct.pack(">HBBBL", 0x1040, 1, 0x77, 0, 0), {SIZE}),
}


@pytest.mark.parametrize(("octets", "codes"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_connection_error(octets: bytes, codes: set[ErrorCode]) -> None:
    """The connection ends with a GOAWAY of the right code, and the error is told once."""
    peer = Peer()
    answered = peer.send(octets)
    assert peer.failed
    assert isinstance(peer.core.shutdown.failure, RemoteProtocolError)
    goaways = wire.only(answered, wire.GOAWAY)
    assert len(goaways) == 1
    assert goaways[0].code in codes
    assert answered[-1] is goaways[0]
    assert peer.send(wire.headers(5), wire.ping()) == []
    assert not peer.core.streams


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (wire.data(0, b"x"), "DATA on idle stream 0"),
        (wire.data(1, b"x"), "DATA on idle stream 1"),
        (wire.data(2, b"x"), "DATA on idle stream 2"),
        (wire.frame(9, 1, b"", 4), "CONTINUATION outside of a header block"),
    ],
    ids=["stream 0", "idle", "even", "CONTINUATION"],
)
def test_an_error_names_what_came_and_where(octets: bytes, text: str) -> None:
    """For whoever reads our log, or the peer's."""
    peer = Peer()
    (goaway,) = wire.only(peer.send(octets), wire.GOAWAY)
    assert text.encode() in goaway.payload
    assert text in str(peer.core.shutdown.failure)


STREAM_ERRORS: dict[str, tuple[bytes, ErrorCode]] = {
    "HEADERS with an upper-case name": (wire.headers(1, [*wire.REQUEST, ("X-Upper", "1")]), PROTOCOL),
    "HEADERS with connection": (wire.headers(1, [*wire.REQUEST, ("connection", "close")]), PROTOCOL),
    "HEADERS without :method": (wire.headers(1, wire.REQUEST[1:]), PROTOCOL),
    "HEADERS with an unknown pseudo-header": (wire.headers(1, [(":x", "y"), *wire.REQUEST]), PROTOCOL),
    "trailers without END_STREAM": (OPEN_1 + wire.headers(1, [("x", "y")]), PROTOCOL),
    "HEADERS without a field": (wire.headers(1, []), PROTOCOL),
    "HEADERS with a space before a value": (wire.headers(1, [*wire.REQUEST, ("x", " y")]), PROTOCOL),
    "HEADERS with a length that is no number": (
        wire.headers(1, [*wire.REQUEST, ("content-length", "4x")]) + wire.data(1, b"1234", end=True),
        PROTOCOL,
    ),
    "HEADERS with a length of 20 digits": (
        wire.headers(1, [*wire.REQUEST, ("content-length", "9" * 20)]) + wire.data(1, b"1234", end=True),
        PROTOCOL,
    ),
    "content-length with zeros, below the body": (
        wire.headers(1, [*wire.REQUEST, ("content-length", "3".zfill(20))]) + wire.data(1, b"1234", end=True),
        PROTOCOL,
    ),
    "pseudo-header in trailers": (OPEN_1 + wire.headers(1, [(":path", "/x")], end=True), PROTOCOL),
    "DATA after END_STREAM": (wire.headers(1, end=True) + wire.data(1, b"x"), CLOSED),
    "HEADERS after END_STREAM": (wire.headers(1, end=True) + wire.headers(1, end=True), CLOSED),
    "DATA after END_STREAM on DATA": (OPEN_1 + wire.data(1, end=True) + wire.data(1, b"x"), CLOSED),
    "WINDOW_UPDATE of 0": (OPEN_1 + wire.window_update(1, 0), PROTOCOL),
    "WINDOW_UPDATE past 2^31-1": (OPEN_1 + wire.window_update(1, 2**31 - 1), FLOW),
    "content-length below the body": (
        wire.headers(1, [*wire.REQUEST, ("content-length", "3")]) + wire.data(1, b"1234", end=True),
        PROTOCOL,
    ),
    "content-length above the body": (
        wire.headers(1, [*wire.REQUEST, ("content-length", "9")])
        + wire.data(1, b"1234")
        + wire.headers(1, [("x", "y")], end=True),
        PROTOCOL,
    ),
    "PRIORITY of 4 octets": (OPEN_1 + wire.frame(2, 1, bytes(4)), SIZE),
    "PRIORITY on itself": (OPEN_1 + wire.frame(2, 1, struct.pack(">LB", 1, 0)), PROTOCOL),
}


@pytest.mark.parametrize(("octets", "code"), STREAM_ERRORS.values(), ids=STREAM_ERRORS)
def test_stream_error(octets: bytes, code: ErrorCode) -> None:
    """The stream is reset with the right code, and the connection serves the next one."""
    peer = Peer()
    answered = peer.send(octets)
    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM, 1)] == [code]
    assert not peer.failed
    assert 1 not in peer.core.streams
    stream = peer.request(3)
    peer.send(wire.data(3, wire.message(b"fine"), end=True))
    assert drain_messages(peer.core, stream) == [b"fine"]


HARMLESS: dict[str, bytes] = {
    "unknown frame": wire.frame(0x16, 0, b"whatever"),
    "unknown frame of 200 KB": wire.frame(0x16, 7, bytes(200_000)),
    "unknown flags": wire.frame(6, 0, bytes(8), 0xFE),
    "reserved bit of the stream id": wire.frame(8, 0x80000000, struct.pack(">L", 1)),
    "reserved bit of the increment": wire.window_update(0, 0x80000001),
    "PRIORITY on an idle stream": wire.frame(2, 99, struct.pack(">LB", 0, 9)),
    "unknown settings": wire.settings((0x99, 1), (0xFFFF, 2**32 - 1)),
    "header table of 4 GiB": wire.settings((1, 2**32 - 1)),
    "PING acknowledged out of the blue": wire.ping(b"weir-bye", ack=True),
    "GOAWAY with 100 KB of debug data": wire.goaway(0, 0, bytes(100_000)),
    "padding alone": OPEN_1 + wire.data(1, b"", padding=255),
    "end on padded DATA without payload": OPEN_1 + wire.data(1, b"", padding=3, end=True),
    "header block in pieces": (
        wire.frame(1, 1, wire.encode(wire.REQUEST)[:9])
        + wire.frame(9, 1, wire.encode(wire.REQUEST)[9:20])
        + wire.frame(9, 1, wire.encode(wire.REQUEST)[20:], 4)
    ),
    "RST_STREAM twice": OPEN_1 + wire.reset(1) + wire.reset(1),
    "WINDOW_UPDATE after RST_STREAM": OPEN_1 + wire.reset(1) + wire.window_update(1, 5),
    "trailers of a request": OPEN_1 + wire.headers(1, [("x", "y")], end=True),
}


@pytest.mark.parametrize("octets", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["octets", "whole"])
def test_harmless(octets: bytes, size: int) -> None:
    """What the RFC tells us to ignore or to bear is ignored or borne, however it is cut."""
    peer = Peer()
    for at in range(0, len(octets), size if len(octets) < 5_000 else 1 << 20):
        peer.send(octets[at : at + size] if len(octets) < 5_000 else octets)
    assert not peer.failed
    answered = peer.send(wire.ping(b"and now?"))
    assert [frame.payload for frame in wire.only(answered, wire.PING)] == [b"and now?"]


@pytest.mark.parametrize("end", [True, False])
def test_malformed_request_leaves_the_other_calls_alone(end: bool) -> None:
    """A proxy passes on what a stranger sends, on the connection of everybody; and it is no call to a handler."""
    peer = Peer()
    other = peer.request(1)
    requests = len([event for event in peer.events if type(event).__name__ == "RequestReceived"])
    answered = peer.send(
        wire.headers(3, [*wire.REQUEST, ("x", " y")], end=end), wire.data(3, b"what follows")
    )
    assert {frame.code for frame in wire.only(answered, wire.RST_STREAM, 3)} == {PROTOCOL}
    assert not peer.failed
    assert len([event for event in peer.events if type(event).__name__ == "RequestReceived"]) == requests
    peer.send(wire.data(1, wire.message(b"goes on"), end=True))
    assert drain_messages(peer.core, other) == [b"goes on"]


@pytest.mark.parametrize(
    "answer",
    [
        wire.headers(1, [*wire.RESPONSE, ("connection", "close")]),
        wire.headers(1, [("Upper", "1"), *wire.RESPONSE]),
        wire.headers(1, [("content-type", "application/grpc")]),
        wire.headers(1, [(":status", "103")], end=True),
        wire.headers(1, wire.RESPONSE) + wire.headers(1, wire.TRAILERS),
        wire.headers(1, wire.RESPONSE) + wire.headers(1, [(":status", "100")], end=True),
        wire.headers(1, [*wire.RESPONSE, ("content-length", "one")]),
        wire.headers(1, [*wire.RESPONSE, ("content-length", "1"), ("content-length", "2")]),
        wire.headers(1, [*wire.RESPONSE, ("content-length", "9")]) + wire.headers(1, wire.TRAILERS, end=True),
        wire.headers(1, [*wire.RESPONSE, ("X" * 9_000, "1")]),
    ],
    ids=[
        "connection",
        "upper case",
        "no status",
        "103 at the end",
        "no end",
        "status in trailers",
        "content-length that is no number",
        "two content-lengths",
        "too short",
        "long",
    ],
)
def test_malformed_answer_leaves_the_other_calls_alone(answer: bytes) -> None:
    """A proxy puts it beside the answers of servers; what follows it is nobody's."""
    peer = Peer(client=True)
    stream, other = client_call(peer), client_call(peer)
    answered = peer.send(answer, wire.data(1, b"what follows"), wire.headers(1, wire.TRAILERS, end=True))
    assert {frame.code for frame in wire.only(answered, wire.RST_STREAM, 1)} == {PROTOCOL}
    with pytest.raises(AnswerCut, match=r"the answer is malformed.{,250}$"):
        stream.next_message()
    peer.send(
        wire.headers(3, wire.RESPONSE),
        wire.data(3, wire.message(b"goes on")),
        wire.headers(3, wire.TRAILERS, end=True),
    )
    assert drain_messages(peer.core, other) == [b"goes on"]
    assert not peer.failed


def test_preface_is_required() -> None:
    """HTTP/1 and noise are turned away at their first wrong octet."""
    for octets in (b"GET / HTTP/1.1\r\n\r\n", b"P", wire.PREFACE[:-1] + b"!"):
        peer = Peer(hello=False)
        peer.send(octets)
        assert peer.failed == (octets != b"P")


@pytest.mark.parametrize("client", [True, False])
@pytest.mark.parametrize(
    "first",
    [wire.ping(), wire.headers(1), wire.settings(ack=True), wire.window_update(0, 1), wire.data(1, b"x")],
)
def test_settings_come_first(first: bytes, client: bool) -> None:
    """Any other first frame ends the connection."""
    peer = Peer(client=client, hello=False)
    peer.send(b"" if client else wire.PREFACE, first)
    assert peer.failed


def test_oversized_frame_is_rejected_from_its_header() -> None:
    """Nine octets are enough: nothing of a 16 MiB frame is waited for."""
    for kind in range(10):
        peer = Peer()
        answered = peer.send(struct.pack(">HBBBL", 0xFFFF, 0xFF, kind, 0, 1))
        assert wire.only(answered, wire.GOAWAY)[0].code == SIZE


REFUSED_MESSAGES = {
    "too long": (struct.pack(">BL", 0, 2**32 - 1), StatusCode.RESOURCE_EXHAUSTED),
    "compressed": (struct.pack(">BL", 1, 10), StatusCode.UNIMPLEMENTED),
    "unknown flag": (struct.pack(">BL", 0x80, 0), StatusCode.INTERNAL),
}


@pytest.mark.parametrize(("prefix", "status"), REFUSED_MESSAGES.values(), ids=REFUSED_MESSAGES)
def test_refused_message_ends_its_call(prefix: bytes, status: StatusCode) -> None:
    """A message that a server does not take is answered by a status, and what follows is no message."""
    peer = Peer()
    stream = peer.request()
    # Zeros would read as thousands of empty messages, if reading went on.
    answered = peer.send(wire.data(1, prefix), wire.data(1, bytes(5_000)), wire.data(1, bytes(100), end=True))
    trailers = wire.fields(wire.only(answered, wire.HEADERS, 1)[-1].payload)
    assert ("grpc-status", str(int(status))) in trailers
    with pytest.raises(CallFailed) as caught:
        stream.next_message()
    assert caught.value.status is status
    assert not peer.failed
    assert not peer.core.streams


def test_refused_message_after_the_answer_leaves_the_answer_whole() -> None:
    """An answer that waits for window is sent whole, whatever the client sends meanwhile."""
    peer = Peer()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 10)))
    stream = peer.request()
    peer.core.outbound.send_message(stream, [b"x" * 95])
    peer.core.outbound.end_call(stream, StatusCode.OK)
    peer.send(wire.data(1, struct.pack(">BL", 1, 9)), wire.data(1, bytes(50)))
    answered = peer.send(wire.window_update(1, 1_000))
    assert sum(len(frame.payload) for frame in wire.only(answered, wire.DATA)) == 90
    assert len(wire.only(answered, wire.HEADERS, 1)) == 1
    assert not peer.core.streams


def test_more_streams_than_allowed_are_refused_one_by_one() -> None:
    """A stream above the limit gets REFUSED_STREAM; the others live on, and a place that is free is given again."""
    peer = Peer(config=TransportConfig(streams_max=2))
    streams = [peer.request(1), peer.request(3)]
    assert wire.only(peer.send(wire.headers(5)), wire.RST_STREAM, 5)[0].code == ErrorCode.REFUSED_STREAM
    assert peer.send(wire.data(5, b"x")) == []  # on its way before the peer knew
    peer.send(wire.data(1, wire.message(b"a"), end=True))
    assert drain_messages(peer.core, streams[0]) == [b"a"]
    peer.core.outbound.end_call(streams[0], StatusCode.OK)
    peer.send()
    peer.request(7)
    assert not peer.failed


def client_call(peer: Peer) -> StreamCore:
    stream = peer.core.open_stream(request())
    peer.send()
    return stream


ANSWERS: dict[str, tuple[bytes, type[Exception], str]] = {
    "not found": (
        wire.headers(1, [(":status", "404")], end=True),
        CallFailed,
        "UNIMPLEMENTED: what answered is no gRPC server: HTTP status 404",
    ),
    "proxy error page": (
        wire.headers(1, [(":status", "503"), ("content-type", "text/html")]) + wire.data(1, b"<html>"),
        CallFailed,
        "UNAVAILABLE",
    ),
    "end without trailers": (
        wire.headers(1, wire.RESPONSE) + wire.data(1, end=True),
        CallFailed,
        "without trailers",
    ),
    "end inside a message": (
        wire.headers(1, wire.RESPONSE)
        + wire.data(1, b"\0\0\0\0\5abc")
        + wire.headers(1, wire.TRAILERS, end=True),
        CallFailed,
        "middle of a message",
    ),
    "trailers without a status": (
        wire.headers(1, wire.RESPONSE, end=True),
        CallFailed,
        "without grpc-status",
    ),
    "a status, and an empty frame behind it": (
        wire.headers(1, [*wire.RESPONSE, ("grpc-status", "7"), ("grpc-message", "no")])
        + wire.data(1, end=True),
        CallFailed,
        "PERMISSION_DENIED: no",
    ),
    "unknown status": (
        wire.headers(1, [*wire.RESPONSE, ("grpc-status", "99"), ("grpc-message", "%zz%41")], end=True),
        CallFailed,
        "UNKNOWN: %zzA",
    ),
    "DATA before headers": (wire.data(1, b"x"), AnswerCut, "malformed: DATA before the response"),
    "WINDOW_UPDATE of 0": (wire.window_update(1, 0), AnswerCut, "malformed: WINDOW_UPDATE of 0"),
    "WINDOW_UPDATE of too much": (wire.window_update(1, 2**31 - 1), AnswerCut, "malformed: WINDOW_UPDATE of"),
    "reset": (wire.reset(1, 2), StreamReset, "by the peer: INTERNAL_ERROR"),
    "refused": (wire.reset(1, 7), StreamRefused, "refused"),
    "refused, and answered": (
        wire.headers(1, wire.RESPONSE) + wire.reset(1, 7),
        StreamReset,
        "by the peer: REFUSED_STREAM",
    ),
    "unknown reset code": (wire.reset(1, 0xDEAD), StreamReset, "0xdead"),
    "GOAWAY below the call": (
        wire.goaway(0, 1, b"no preface"),
        StreamUnprocessed,
        r"before it processed the call \(it said PROTOCOL_ERROR no preface\)",
    ),
    "GOAWAY below a call that is answered": (
        wire.headers(1, wire.RESPONSE) + wire.goaway(0),
        AnswerCut,
        "in the middle of the answer",
    ),
    "a proxy's page behind the messages": (
        wire.headers(1, wire.RESPONSE) + wire.data(1, b"<!DOCTYPE HTML>"),
        AnswerCut,
        "malformed: message flag is 60",
    ),
    "compressed answer": (
        wire.headers(1, [*wire.RESPONSE, ("grpc-encoding", "gzip")]) + wire.data(1, b"\1\0\0\0\1x"),
        AnswerRefused,
        "^INTERNAL: compressed message, and no encoding was agreed",
    ),
}


def test_an_answer_that_names_an_encoding_and_does_not_use_it() -> None:
    """Its messages are read, and its status counts."""
    peer = Peer(client=True)
    stream = client_call(peer)
    peer.send(wire.headers(1, [*wire.RESPONSE, ("grpc-encoding", "gzip")]))
    peer.send(wire.data(1, wire.message(b"plain")))
    peer.send(wire.headers(1, [("grpc-status", "5"), ("grpc-message", "no table")], end=True))
    assert stream.next_message() == b"plain"
    with pytest.raises(CallFailed, match="NOT_FOUND: no table"):
        stream.next_message()


@pytest.mark.parametrize(("octets", "kind", "text"), ANSWERS.values(), ids=ANSWERS)
def test_strange_answers_fail_the_call_alone(octets: bytes, kind: type[Exception], text: str) -> None:
    """A client turns an answer that is no gRPC answer into one typed error; its connection lives."""
    peer = Peer(client=True)
    stream = client_call(peer)
    peer.send(octets)
    with pytest.raises(kind, match=text):
        stream.next_message()
    assert not peer.failed


def test_client_takes_no_stream_from_a_server() -> None:
    """Streams that a server opens end the connection."""
    for octets in (wire.headers(2, wire.RESPONSE), wire.data(2, b"x"), wire.window_update(2, 1)):
        peer = Peer(client=True)
        client_call(peer)
        peer.send(octets)
        assert peer.failed
