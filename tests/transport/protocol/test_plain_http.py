"""Requests that are HTTP and no gRPC calls get a whole HTTP answer, under the same rules as everything else.

Conformance suites ask for / and expect DATA; people do with curl.
"""

from __future__ import annotations

import pytest

from tests.support import wire
from tests.support.pair import Peer
from transport.config import TransportConfig
from transport.errors import ErrorCode

FORM = (*wire.REQUEST[:-1], ("content-type", "application/x-www-form-urlencoded"))
"""A POST that is no call."""


def plain(method: str, path: str = "/") -> list[tuple[str, str]]:
    """The fields of a request without a body."""
    return [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test")]


def status(answered: list[wire.Frame]) -> dict[str, str]:
    """The fields that start the answer."""
    return dict(wire.fields(wire.only(answered, wire.HEADERS)[0].payload))


def body(answered: list[wire.Frame]) -> bytes:
    """The octets of the answer."""
    return b"".join(frame.payload for frame in wire.only(answered, wire.DATA))


def test_root_is_answered_with_data() -> None:
    """GET / gets HEADERS, DATA as long as they say, and an end; it costs nobody a call."""
    peer = Peer()
    answered = peer.send(wire.headers(1, plain("GET"), end=True))

    assert status(answered)[":status"] == "200"
    assert status(answered)["content-length"] == str(len(body(answered)))
    assert answered[-1].flags & wire.END_STREAM
    assert not peer.core.streams
    assert peer.events == [event for event in peer.events if type(event).__name__ != "RequestReceived"]


def test_head_has_the_fields_alone() -> None:
    """HEAD / has the fields of GET / and ends with them."""
    answered = Peer().send(wire.headers(1, plain("HEAD"), end=True))

    assert status(answered) == status(Peer().send(wire.headers(1, plain("GET"), end=True)))
    assert body(answered) == b""
    assert answered[-1].kind == wire.HEADERS
    assert answered[-1].flags & wire.END_STREAM


def test_answer_keeps_to_the_window() -> None:
    """With a window of one octet one octet comes, and each update lets out as many as it says."""
    peer = Peer()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1)))
    answered = peer.send(wire.headers(1, plain("GET"), end=True))

    assert [len(frame.payload) for frame in wire.only(answered, wire.DATA)] == [1]
    assert len(body(peer.send(wire.window_update(1, 5)))) == 5
    rest = peer.send(wire.window_update(1, 1_000))
    assert rest[-1].flags & wire.END_STREAM
    assert not peer.core.streams


@pytest.mark.parametrize(
    ("fields", "code"), [(plain("GET", "/x"), "405"), (plain("PUT"), "405"), (FORM, "415")]
)
def test_refusals_say_why(fields: list[tuple[str, str]], code: str) -> None:
    """Another method and another content-type are refused in words."""
    answered = Peer().send(wire.headers(1, fields, end=True))

    assert status(answered)[":status"] == code
    assert body(answered).startswith((b"gRPC calls", b"the content-type of gRPC calls"))


def test_answer_waits_for_the_end_of_the_request() -> None:
    """The body of a request that is no call is dropped, and the answer comes when it is complete, without a reset."""
    peer = Peer()
    length = ("content-length", "6")

    assert peer.send(wire.headers(1, [*FORM, length])) == []
    assert peer.send(wire.data(1, b"\x01\xff\xff")) == []
    assert peer.core.streams[1].buffered_bytes == 0
    answered = peer.send(wire.data(1, b"abc", end=True))
    assert status(answered)[":status"] == "415"
    assert wire.only(answered, wire.RST_STREAM) == []
    assert not peer.core.streams


def test_rules_hold_for_what_is_no_call() -> None:
    """A body that belies its content-length is a stream error here as anywhere."""
    peer = Peer()
    answered = peer.send(wire.headers(1, [*FORM, ("content-length", "1")]) + wire.data(1, b"test", end=True))

    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM)] == [ErrorCode.PROTOCOL_ERROR]
    assert wire.only(answered, wire.HEADERS) == []
    assert not peer.failed


def test_endless_body_is_not_waited_for() -> None:
    """A body of more than 64 KiB is answered while it comes; what follows is credited to the connection alone."""
    peer = Peer()
    answered = peer.send(wire.headers(1, FORM), *[wire.data(1, bytes(16_384))] * 5)

    assert status(answered)[":status"] == "415"
    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM, 1)] == [ErrorCode.NO_ERROR]
    assert wire.only(answered, wire.WINDOW_UPDATE, 1) == []
    assert peer.send(wire.data(1, bytes(16_384))) == []
    assert not peer.failed


def test_a_body_longer_than_the_window_is_answered() -> None:
    """What is dropped is credited: the client would wait for room, and we for the end of its request."""
    peer = Peer(config=TransportConfig(stream_window_bytes=16_384))

    first = peer.send(wire.headers(1, FORM), wire.data(1, bytes(16_384)))
    assert [frame.number for frame in wire.only(first, wire.WINDOW_UPDATE, 1)] == [16_384]
    assert status(peer.send(wire.data(1, b"test", end=True)))[":status"] == "415"


@pytest.mark.parametrize(
    "kind", ["application/grpc+json", "application/grpc-web+proto", "application/connect+proto"]
)
def test_streams_of_other_kinds_are_refused_at_once(kind: str) -> None:
    """Their client waits for an answer before it ends the request, as in any bidirectional call."""
    answered = Peer().send(wire.headers(1, (*wire.REQUEST[:-1], ("content-type", kind))))

    assert status(answered)[":status"] == "415"
    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM)] == [ErrorCode.NO_ERROR]


def test_calls_are_refused_at_once() -> None:
    """A gRPC call that is not spoken here is refused while its client may still send: it may never end."""
    compressed = (*wire.REQUEST, ("grpc-encoding", "gzip"))
    answered = Peer().send(wire.headers(1, compressed))

    found = status(answered)
    assert (found["grpc-status"], found["grpc-accept-encoding"]) == ("12", "identity")
