"""Any octets at all: they parse, or the connection fails in one typed way, the same for every cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import wire
from tests.support.configs import TINY
from tests.support.pair import Pair, Peer, answer, drain_messages, request, sent
from transport.errors import RemoteProtocolError, TransportError
from transport.protocol.events import ConnectionFailed, RequestReceived, StreamReadable

frames_of_any_kind = st.builds(
    wire.frame,
    st.integers(0, 12),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, 2**31 - 1]),
    st.one_of(
        st.binary(max_size=40),
        st.just(wire.encode(wire.REQUEST)),
        st.just(wire.encode(wire.RESPONSE)),
        st.just(wire.encode(wire.TRAILERS)),
        st.binary(max_size=30).map(wire.message),
        st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "big")),
        st.tuples(st.integers(0, 8), st.integers(0, 2**32 - 1)).map(
            lambda pair: pair[0].to_bytes(2, "big") + pair[1].to_bytes(4, "big")
        ),
        st.just(bytes(8)),
    ),
    st.sampled_from([0, 0, 1, 4, 5, 8, 9, 0xC, 0xD, 0x20, 0x25, 0xFF]),
)
conversations = st.lists(frames_of_any_kind, max_size=25).map(b"".join)


def outcome(octets: bytes, *, client: bool, sizes: list[int]) -> list[str]:
    """Feed octets, cut as told; the events, with what was received, as text."""
    peer = Peer(client=client, config=TINY)
    if client:
        peer.core.open_stream(request())
        sent(peer.core)
    told: list[str] = []
    at, turn = 0, 0
    while at < len(octets):
        size = sizes[turn % len(sizes)]
        for event in peer.core.receive_data(octets[at : at + size], 0.0):
            if isinstance(event, ConnectionFailed):
                assert isinstance(event.error, RemoteProtocolError)
                told.append(str(event.error))
            elif isinstance(event, RequestReceived):
                told.append(f"request {event.stream.stream_id} {event.head}")
                event.stream.expecting = False
        at, turn = at + size, turn + 1
    for stream_id, stream in sorted(peer.core.streams.items()):
        told.append(
            f"{stream_id} {stream.state} {list(map(bytes, stream.inbox))} {stream.receive_window.available}"
        )
    if peer.core.shutdown.failure is not None:
        assert wire.only(wire.parse(sent(peer.core)), wire.GOAWAY)
        assert not peer.core.outbound.queue.pending
    return told


@given(octets=st.binary(max_size=300), client=st.booleans())
def test_noise_fails_the_connection_in_one_way(octets: bytes, client: bool) -> None:
    """Random octets raise nothing; at most the connection fails."""
    outcome(octets, client=client, sizes=[len(octets) or 1])


@given(octets=conversations, client=st.booleans(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_cuts_do_not_matter(octets: bytes, client: bool, sizes: list[int]) -> None:
    """Any cut of the same octets gives the same requests, messages, windows and error."""
    whole = outcome(octets, client=client, sizes=[len(octets) or 1])
    assert outcome(octets, client=client, sizes=sizes) == whole
    assert outcome(octets, client=client, sizes=[1]) == whole


def recorded(*, client: bool) -> bytes:
    """What the peer of a client, or of a server, sends in an ordinary conversation."""
    pair = Pair(TINY)
    pair.up.clear()
    pair.down.clear()
    stream, accepted = pair.call(metadata=[("x-a", "b")], timeout_s=3.0)
    pair.client.outbound.send_message(stream, [b"q" * 900])
    pair.client.outbound.end_stream(stream)
    pair.exchange()
    drain_messages(pair.server, accepted)
    answer(pair.server, accepted, b"one", b"", b"z" * 400)
    pair.exchange()
    drain_messages(pair.client, stream)
    pair.exchange()
    return bytes(pair.down if client else pair.up)


CONVERSATIONS = {client: recorded(client=client) for client in (True, False)}


@settings(max_examples=200)
@given(
    client=st.booleans(),
    edits=st.lists(
        st.tuples(
            st.floats(0, 0.999), st.sampled_from(["flip", "cut", "insert", "repeat"]), st.integers(0, 255)
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_mutated_conversations_fail_in_one_way(client: bool, edits: list[tuple[float, str, int]]) -> None:
    """An ordinary conversation with octets changed, lost, added or repeated raises nothing unexpected."""
    octets = bytearray(CONVERSATIONS[client])
    for where, what, value in edits:
        at = int(where * len(octets))
        if what == "flip":
            octets[at : at + 1] = bytes([value])
        elif what == "cut":
            del octets[at : at + 1 + value % 20]
        elif what == "insert":
            octets[at:at] = bytes([value]) * (1 + value % 12)
        else:
            octets[at:at] = octets[at : at + 1 + value]
    outcome(bytes(octets), client=client, sizes=[len(octets) or 1])


@settings(max_examples=100)
@given(
    octets=conversations,
    verbs=st.lists(st.sampled_from(["send", "end", "reset", "take", "drain", "time"]), max_size=20),
)
def test_verbs_on_a_hostile_connection_raise_typed_errors_only(octets: bytes, verbs: list[str]) -> None:
    """Whatever the peer did before, verbs work or raise a TransportError, and sending never raises."""
    peer = Peer(config=TINY)
    peer.send(wire.headers(1), wire.headers(3))
    streams = list(peer.core.streams.values())
    step = max(1, len(octets) // (len(verbs) + 1))
    for turn, verb in enumerate(verbs):
        peer.core.receive_data(octets[turn * step : (turn + 1) * step], 0.0)
        stream = streams[turn % 2]
        try:
            if verb == "send":
                peer.core.outbound.send_message(stream, [b"x" * (turn * 100)])
            elif verb == "end":
                peer.core.outbound.end_call(stream, 0)  # type: ignore[arg-type]
            elif verb == "reset":
                peer.core.outbound.reset(stream)
            elif verb == "take":
                peer.core.windows.expect_message(stream)
                if not isinstance(stream.next_message(), StreamReadable):
                    peer.core.windows.credit(stream)
            elif verb == "drain":
                peer.core.shutdown.drain()
            else:
                peer.core.handle_deadline(float(turn))
        except TransportError:
            pass
        wire.parse(sent(peer.core, 100))
