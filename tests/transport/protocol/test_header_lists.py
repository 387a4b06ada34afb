"""Header lists over SETTINGS_MAX_HEADER_LIST_SIZE fail their own call, at either end; the connection serves on."""

from __future__ import annotations

import hpack
import pytest

from tests.support import wire
from tests.support.pair import Peer, drain_messages, request
from transport.errors import CallFailed, StatusCode
from transport.protocol.events import RequestReceived
from transport.protocol.stream import END

LONG = [(f"x-long-{number}", "v" * 6_000) for number in range(3)]
"""Fields that are over the limit of a header list together, and fit into a frame by Huffman's code."""


def test_long_header_list_is_refused_alone() -> None:
    """A call whose header list is over the limit gets a status; its connection serves on, with the right table."""
    peer = Peer()
    encoder = hpack.Encoder()
    long = encoder.encode([*wire.REQUEST, *LONG, ("x-kept", "1")])
    answered = peer.send(wire.frame(wire.HEADERS, 1, long, wire.END_HEADERS))
    fields = dict(wire.fields(wire.only(answered, wire.HEADERS, 1)[0].payload))
    assert fields["grpc-status"] == str(int(StatusCode.RESOURCE_EXHAUSTED))
    assert "over the limit of 16384" in fields["grpc-message"]
    assert not peer.core.streams
    assert not [event for event in peer.events if isinstance(event, RequestReceived)]

    peer.send(wire.frame(wire.HEADERS, 3, encoder.encode([*wire.REQUEST, ("x-kept", "1")]), wire.END_HEADERS))
    assert not peer.failed
    assert [event.head.metadata for event in peer.events if isinstance(event, RequestReceived)] == [
        (("x-kept", "1"),)
    ]


@pytest.mark.parametrize("frame_bytes", [16_384, 80_000], ids=["several frames", "one frame"])
def test_list_that_a_proxy_passes_on_is_refused_alone(frame_bytes: int) -> None:
    """64 KiB in a hundred fields, what Envoy and nghttpx take from anybody: other calls of the connection go on."""
    peer = Peer()
    other = peer.request(1)
    block = wire.encode([*wire.REQUEST, *((f"x-{number}", "v" * 700) for number in range(94))])
    pieces = [block[at : at + frame_bytes] for at in range(0, len(block), frame_bytes)]
    answered = []
    for piece in pieces:
        kind = wire.HEADERS if piece is pieces[0] else wire.CONTINUATION
        last = wire.END_HEADERS if piece is pieces[-1] else 0
        answered += peer.send(wire.frame(kind, 3, piece, last))
    fields = dict(wire.fields(wire.only(answered, wire.HEADERS, 3)[0].payload))
    assert fields["grpc-status"] == str(int(StatusCode.RESOURCE_EXHAUSTED))
    assert not peer.failed
    peer.send(wire.data(1, wire.message(b"goes on"), end=True))
    assert drain_messages(peer.core, other) == [b"goes on"]


def test_long_header_list_of_plain_http_is_431() -> None:
    """A request that is no call is told the same as HTTP says it."""
    fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test"), *LONG]
    answered = Peer().send(wire.headers(1, fields, end=True))
    assert dict(wire.fields(wire.only(answered, wire.HEADERS)[0].payload))[":status"] == "431"


@pytest.mark.parametrize("end", [False, True], ids=["response", "trailers only"])
def test_long_answer_fails_its_call(end: bool) -> None:
    """A client fails the call whose answer has too long a header list, and goes on with the others."""
    peer = Peer(client=True)
    streams = [peer.core.open_stream(request()) for _ in range(2)]
    peer.send(wire.headers(1, [*wire.RESPONSE, *wire.TRAILERS, *LONG], end=end))
    with pytest.raises(CallFailed, match="header list") as caught:
        streams[0].next_message()
    assert caught.value.status is StatusCode.RESOURCE_EXHAUSTED
    peer.send(wire.headers(3, [*wire.RESPONSE, *wire.TRAILERS], end=True))
    assert streams[1].next_message() is END


def test_long_trailers_fail_their_call() -> None:
    """The messages before trailers that are too long are taken, then the call fails."""
    peer = Peer(client=True)
    stream = peer.core.open_stream(request())
    peer.send(wire.headers(1, wire.RESPONSE), wire.data(1, wire.message(b"a")))
    peer.send(wire.headers(1, [*wire.TRAILERS, *LONG], end=True))
    assert stream.next_message() == b"a"
    with pytest.raises(CallFailed, match="header list"):
        stream.next_message()
