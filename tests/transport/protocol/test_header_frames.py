"""Header lists in frames, both ways, and which list may come when."""

from __future__ import annotations

import itertools

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.pair import Peer, request, sent
from transport.errors import ErrorCode, LocalProtocolError, RemoteProtocolError, StatusCode, StreamRefused
from transport.protocol.header_frames import HeaderFrames
from transport.protocol.stream import END

PRIORITY = 0x20
FIELDS = [(b":path", b"/a"), (b"x-long", b"v" * 700), (b"x-a", b"1")]


@example([(b"x", b"\xff" * 70_000)])
@example([(b"x", b"0" * 26_000)])  # two frames, the second of a few octets
@given(st.lists(st.tuples(st.sampled_from([b"x-a", b"x-b"]), st.binary(max_size=20_000)), max_size=4))
def test_any_list_fits_into_frames(fields: list[tuple[bytes, bytes]]) -> None:
    """HEADERS, then CONTINUATIONs without a gap, none longer than every peer takes; END_STREAM is on the first."""
    made = wire.parse(HeaderFrames(1 << 20).make(5, fields, end_stream=True))
    assert [frame.kind for frame in made] == [wire.HEADERS] + [wire.CONTINUATION] * (len(made) - 1)
    assert all(frame.stream_id == 5 and len(frame.payload) <= 16_384 for frame in made)
    assert [frame.flags & wire.END_HEADERS for frame in made] == [0] * (len(made) - 1) + [wire.END_HEADERS]
    assert [frame.flags & wire.END_STREAM for frame in made] == [wire.END_STREAM] + [0] * (len(made) - 1)
    decoder = hpack.Decoder(1 << 20)
    assert list(decoder.decode(b"".join(frame.payload for frame in made), raw=True)) == fields


@given(
    st.lists(st.integers(0, 800), max_size=5), st.none() | st.integers(0, 255), st.booleans(), st.booleans()
)
def test_any_frames_are_put_together(cuts: list[int], padding: int | None, priority: bool, end: bool) -> None:
    """Wherever a block is cut, and however its first frame is padded, the list comes out once, whole."""
    block = hpack.Encoder().encode(FIELDS, huffman=False)
    bounds = [0, *sorted(min(cut, len(block)) for cut in cuts), len(block)]
    first, *rest = [block[start:stop] for start, stop in itertools.pairwise(bounds)]
    flags = wire.END_STREAM if end else 0
    if priority:
        first, flags = b"\x80\x00\x00\x03\x0f" + first, flags | PRIORITY
    if padding is not None:
        first, flags = bytes([padding]) + first + bytes(padding), flags | wire.PADDED
    received, parts = HeaderFrames(1 << 16), [(wire.HEADERS, flags, first)]
    parts += [(wire.CONTINUATION, 0, part) for part in rest]
    for kind, flag, part in parts[:-1]:
        frame = memoryview(wire.frame(kind, 1, part, flag))
        assert received.receive_untrusted(kind, flag, 1, frame) is None
    kind, flag, part = parts[-1]
    flag |= wire.END_HEADERS
    frame = memoryview(wire.frame(kind, 1, part, flag))
    assert received.receive_untrusted(kind, flag, 1, frame) == (FIELDS, end)


@pytest.mark.parametrize("payload", [b"", b"\x05", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x03\x0f"])
def test_frames_too_short_for_what_they_announce(payload: bytes) -> None:
    """Padding and priority that do not fit into their frame end the connection."""
    frame = memoryview(wire.frame(wire.HEADERS, 1, payload))
    with pytest.raises(RemoteProtocolError):
        HeaderFrames(1 << 16).receive_untrusted(wire.HEADERS, wire.PADDED | PRIORITY, 1, frame)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\xff", "Unable to decode HPACK integer representation"),
        (b"\xff" * 20, "Variable integer representation is too long"),
        (b"\x00\x7f" + b"\xff" * 20 + b"secret", "Variable integer representation is too long"),
        (b"\xbf", "Invalid table index 63"),
    ],
)
def test_an_error_shows_neither_octets_nor_where_they_are(block: bytes, why: str) -> None:
    """What the decoder says of a block goes to the peer and the log, but not the block, nor where it is in memory."""
    peer = Peer()
    (goaway,) = wire.only(peer.send(wire.frame(wire.HEADERS, 1, block, wire.END_HEADERS)), wire.GOAWAY)
    assert goaway.payload[8:].decode() == (
        f"header block that cannot be decoded: {why} (COMPRESSION_ERROR, connection)"
    )


def test_a_block_has_so_many_frames() -> None:
    """64, whatever their length."""
    received = HeaderFrames(1 << 16)
    received.receive_untrusted(wire.HEADERS, 0, 1, memoryview(wire.frame(wire.HEADERS, 1)))
    frame = memoryview(wire.frame(wire.CONTINUATION, 1))
    for _ in range(63):
        received.receive_untrusted(wire.CONTINUATION, 0, 1, frame)
    with pytest.raises(RemoteProtocolError, match="64 frames"):
        received.receive_untrusted(wire.CONTINUATION, 0, 1, frame)


# ---------------------------------------------------------------------- which list may come when


def test_informational_answers_are_passed_over() -> None:
    """Any number of them may come before the answer."""
    peer = Peer(client=True)
    stream = peer.core.open_stream(request())
    for status in ("100", "103"):
        peer.send(wire.headers(1, [(":status", status)]))
    peer.send(wire.headers(1, wire.RESPONSE), wire.headers(1, wire.TRAILERS, end=True))
    assert stream.next_message() is END
    assert not peer.failed


@pytest.mark.parametrize("stream_id", [pytest.param(2, id="even"), pytest.param(3, id="idle")])
def test_answers_that_are_none(stream_id: int) -> None:
    """A client ends a connection on which lists come that may not."""
    peer = Peer(client=True)
    peer.core.open_stream(request())
    answered = peer.send(wire.headers(stream_id, wire.RESPONSE))
    assert peer.failed
    assert wire.only(answered, wire.GOAWAY)[0].code == ErrorCode.PROTOCOL_ERROR


def test_trailers_that_cross_a_cancel_are_dropped() -> None:
    """They were on their way: no answer goes out, and what they said of HPACK's table is kept."""
    peer = Peer(client=True)
    encoder = hpack.Encoder()
    first, second = (peer.core.open_stream(request()) for _ in range(2))
    peer.core.outbound.reset(first)
    sent(peer.core)
    block = encoder.encode([*wire.RESPONSE, *wire.TRAILERS])
    late = wire.frame(wire.HEADERS, 1, block, wire.END_HEADERS | wire.END_STREAM)
    assert not peer.send(late)
    block = encoder.encode([*wire.RESPONSE, *wire.TRAILERS])  # the same fields, by their places in the table
    peer.send(wire.frame(wire.HEADERS, 3, block, wire.END_HEADERS | wire.END_STREAM))
    assert second.next_message() is END


def test_trailers_that_cross_an_early_end_are_dropped() -> None:
    """A server that resets the rest of a request does not reset it again: its client has done nothing wrong."""
    peer = Peer()
    stream = peer.request(1, end=False)
    peer.core.outbound.end_call(stream, StatusCode.OK)
    assert [frame.code for frame in wire.only(peer.send(), wire.RST_STREAM, 1)] == [ErrorCode.NO_ERROR]
    assert not peer.send(wire.headers(1, wire.TRAILERS, end=True))
    assert not peer.failed


def test_headers_after_a_reset_and_on_a_skipped_stream() -> None:
    """Who goes on after its own reset is told for that stream; on an id that it left out, the connection ends."""
    peer = Peer()
    peer.request(3)
    peer.send(wire.reset(3))
    answered = peer.send(wire.headers(3, end=True))
    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM, 3)] == [ErrorCode.STREAM_CLOSED]
    assert not peer.failed
    peer.send(wire.headers(1, end=True))
    assert peer.failed


def test_a_forgotten_stream_is_no_reason_to_end() -> None:
    """Of the oldest of very many streams nobody knows how they ended: late HEADERS cost the stream alone."""
    peer = Peer()
    for stream_id in range(1, 2_101, 2):
        peer.now += 1
        peer.request(stream_id)
        peer.send(wire.reset(stream_id))
    answered = peer.send(wire.headers(1, end=True))
    assert [frame.code for frame in wire.only(answered, wire.RST_STREAM, 1)] == [ErrorCode.STREAM_CLOSED]
    assert not peer.failed


def test_no_more_streams_than_the_peer_takes() -> None:
    """Nothing is sent, and the next call opens once there is room; the last id of all is the last."""
    peer = Peer(client=True)
    peer.send(wire.settings((wire.MAX_CONCURRENT_STREAMS, 1)))
    first = peer.core.open_stream(request())
    sent(peer.core)
    with pytest.raises(LocalProtocolError, match="1 streams"):
        peer.core.open_stream(request())
    assert not peer.send()
    peer.core.outbound.reset(first)
    peer.core.table.highest_outbound = 2**31 - 3
    assert peer.core.open_stream(request()).stream_id == 2**31 - 1
    assert peer.core.shutdown.closing
    peer.send(wire.reset(2**31 - 1))
    with pytest.raises(StreamRefused):
        peer.core.open_stream(request())
