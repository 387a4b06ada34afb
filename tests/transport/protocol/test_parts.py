"""The small parts of the core, each alone: states, time limits, frames, order of sending."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.pair import Pair, Peer, answer, request, sent, take
from transport.config import TransportConfig
from transport.errors import CallFailed, ConnectionLost, ErrorCode, StatusCode, StreamRefused, StreamReset
from transport.protocol import frames
from transport.protocol.events import GoawayReceived, StreamsAvailable
from transport.protocol.liveness import Acknowledged, Liveness
from transport.protocol.state import RECEIVABLE, SENDABLE, TRANSITIONS, StreamInput, StreamState

# ------------------------------------------------------------------ states


@pytest.mark.parametrize(("state", "what"), list(itertools.product(StreamState, StreamInput)))
def test_every_pair_of_state_and_input(state: StreamState, what: StreamInput) -> None:
    """Ends are sent and received once, a reset ends everything, and nothing leaves CLOSED."""
    following = TRANSITIONS[state].get(what)
    if state is StreamState.CLOSED:
        assert following is None
    elif what is StreamInput.RESET:
        assert following is StreamState.CLOSED
    elif what is StreamInput.SEND_END:
        assert (following is not None) == (state in SENDABLE)
        assert following not in SENDABLE
    else:
        assert (following is not None) == (state in RECEIVABLE)
        assert following not in RECEIVABLE


def test_every_state_is_reached_from_open() -> None:
    """No state of the table is dead, and the two ends mirror each other."""
    reached, todo = {StreamState.OPEN}, [StreamState.OPEN]
    while todo:
        for following in TRANSITIONS[todo.pop()].values():
            if following not in reached:
                reached.add(following)
                todo.append(following)
    assert reached == set(StreamState)
    assert {StreamState.OPEN} == SENDABLE & RECEIVABLE


# ------------------------------------------------------------------ time limits

TIMES = TransportConfig(handshake_timeout_s=10, ping_interval_s=20, ping_timeout_s=5, idle_timeout_s=0)


def test_silent_peer_is_asked_and_then_given_up() -> None:
    """Silence earns a PING after the interval, and the end after the timeout; any octet starts it anew."""
    peer = Peer(config=TIMES)
    assert peer.core.next_deadline() == 20
    peer.core.handle_deadline(19.9)
    assert not peer.core.outbound.queue.pending
    peer.core.handle_deadline(20.0)
    assert len(wire.only(wire.parse(sent(peer.core)), wire.PING)) == 1
    assert peer.core.next_deadline() == 25
    peer.now = 24.0
    peer.send(wire.window_update(0, 1))
    assert peer.core.next_deadline() == 44
    peer.core.handle_deadline(44.0)
    peer.core.handle_deadline(49.0)
    assert isinstance(peer.core.shutdown.failure, ConnectionLost)
    assert "silent for 25 s" in str(peer.core.shutdown.failure)


@pytest.mark.parametrize(
    ("behind", "later", "given_up"),
    [
        (Acknowledged(100, more=True), Acknowledged(101, more=True), False),
        (Acknowledged(100, more=True), Acknowledged(117, more=False), False),
        (Acknowledged(100, more=True), Acknowledged(100, more=True), True),
        (Acknowledged(100, more=False), Acknowledged(117, more=False), True),
        (Acknowledged(), Acknowledged(), True),
    ],
    ids=["on its way", "just arrived", "line dead", "arrived long ago", "unknown"],
)
def test_ping_behind_much_else_has_its_time(
    behind: Acknowledged, later: Acknowledged, given_up: bool
) -> None:
    """The answer to a PING is late only once the PING has arrived, or the line takes nothing."""
    peer = Peer(config=TIMES)
    peer.core.handle_deadline(20.0, behind)
    peer.core.handle_deadline(25.0, later)
    assert (peer.core.shutdown.failure is not None) is given_up
    if not given_up:
        assert peer.core.next_deadline() == 30
        peer.core.handle_deadline(30.0, later)
        assert "silent for 30 s" in str(peer.core.shutdown.failure)


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (b"", "no SETTINGS"),
        (wire.PREFACE, "no SETTINGS"),
        (wire.PREFACE + wire.settings(), "not acknowledged"),
    ],
)
def test_handshake_has_a_limit(hello: bytes, text: str) -> None:
    """A peer that does not complete the handshake is given up, however often it is heard."""
    peer = Peer(config=TIMES, hello=False)
    peer.send(hello)
    assert peer.core.next_deadline() == 10
    peer.core.handle_deadline(10.0)
    assert text in str(peer.core.shutdown.failure)


def test_header_block_has_a_limit() -> None:
    """A header block that is never finished ends the connection."""
    peer = Peer(config=TIMES)
    peer.now = 3.0
    peer.send(wire.headers(1, end_headers=False))
    peer.now = 9.0
    peer.send(wire.frame(wire.CONTINUATION, 1))
    assert peer.core.next_deadline() == 13
    peer.core.handle_deadline(13.0)
    assert "header block" in str(peer.core.shutdown.failure)


def test_no_pings_when_switched_off() -> None:
    """An interval of 0 means never."""
    peer = Peer(config=TransportConfig(ping_interval_s=0, idle_timeout_s=0))
    assert peer.core.next_deadline() == math.inf
    peer.core.handle_deadline(1e9)
    assert not peer.core.outbound.queue.pending


def test_a_header_block_in_one_frame_has_the_same_limit() -> None:
    """One that comes octet by octet ends the connection in its time; one that is whole by then has none."""
    frame = wire.frame(
        wire.HEADERS, 1, wire.encode([*wire.REQUEST, ("x-long", "v" * 60_000)]), wire.END_HEADERS
    )
    peer, slow = Peer(config=TIMES), Peer(config=TIMES)
    for each in (peer, slow):
        each.now = 3.0
        each.send(frame[:100])
        each.now = 9.0
        each.send(frame[100:50_000])
        assert each.core.next_deadline() == 13
    peer.send(frame[50_000:])
    assert peer.core.next_deadline() > 13
    slow.send(frame[50_000:-1])
    slow.core.handle_deadline(13.0)
    assert "header block" in str(slow.core.shutdown.failure)
    assert not peer.failed
    client = Peer(client=True, config=TIMES)
    client.send(frame[:100])
    assert client.core.next_deadline() == 20, "a client's program may leave the rest unread for long"


@given(
    st.lists(
        st.tuples(st.sampled_from(["heard", "seen", "acked", "block", "ended", "wait"]), st.floats(0, 9))
    )
)
def test_deadlines_never_spin(steps: list[tuple[str, float]]) -> None:
    """After a deadline was handled, the next one is later, or the connection is over."""
    now = 0.0
    liveness = Liveness(TIMES, now)
    for what, seconds in steps:
        now += seconds
        if what == "heard":
            liveness.heard(now)
        elif what == "seen":
            liveness.settings_seen()
        elif what == "acked":
            liveness.settings_acknowledged()
        elif what in {"block", "ended"}:
            liveness.header_block(ended=what == "ended", now=now)
        else:
            now = max(now, min(liveness.next_deadline(), now + 100))
        acknowledged = Acknowledged(int(now), more=True)
        if liveness.expired(now, acknowledged) is not None:
            return
        liveness.ping_due(now, acknowledged)
        assert liveness.next_deadline() > now


# ------------------------------------------------------------------ frames and order


@given(
    st.integers(1, 2**31 - 1), st.integers(0, 2**24 - 1), st.integers(1, 2**31 - 1), st.binary(max_size=20)
)
def test_our_frames_are_what_others_read(stream_id: int, length: int, number: int, debug: bytes) -> None:
    """Frames that we make are read back by an independent parser."""
    header = frames.data_header(stream_id, length, frames.FLAG_END_STREAM)
    assert header == wire.frame(wire.DATA, stream_id, b"", 1)[:0] + length.to_bytes(3, "big") + header[3:]
    assert wire.parse(frames.window_update(stream_id, number))[0].number == number
    goaway = wire.parse(frames.goaway(number, 0xB, debug))[0]
    assert (goaway.number, goaway.code, goaway.payload[8:]) == (number, 0xB, debug)
    assert wire.parse(frames.settings({4: number}))[0].payload == b"\0\4" + number.to_bytes(4, "big")


def test_streams_take_turns() -> None:
    """F9: of N streams with much to send, none is more than one frame ahead; one frame is never too late."""
    peer = Peer(config=TransportConfig(outbound_frame_bytes_max=1_000))
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 20)), wire.window_update(0, 1 << 24))
    streams = [peer.request(stream_id) for stream_id in range(1, 21, 2)]
    for size, stream in enumerate(streams, 1):
        peer.core.outbound.send_message(stream, [bytes(30_000 * size)])
    served = [
        frame.stream_id
        for frame in wire.only(wire.parse(b"".join(peer.core.data_to_send(200_000))), wire.DATA)
    ]
    counts = [served.count(stream.stream_id) for stream in streams]
    assert max(counts) - min(counts) <= 1
    late = peer.request(21)
    peer.core.outbound.send_message(late, [b"quick"])
    answered = wire.parse(b"".join(peer.core.data_to_send(12_000)))
    assert wire.only(answered, wire.DATA, 21)


def test_stream_that_sends_alone_sends_longer_frames() -> None:
    """While others wait to send a frame is short, for they wait for its end; alone it may be long."""
    config = TransportConfig(outbound_frame_bytes_max=60_000, shared_frame_bytes_max=20_000)
    peer = Peer(config=config)
    peer.send(
        wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 20), (wire.MAX_FRAME_SIZE, 1 << 20)),
        wire.window_update(0, 1 << 20),
    )
    streams = [peer.request(1), peer.request(3)]
    for stream, size in zip(streams, (79_995, 19_995), strict=True):
        peer.core.outbound.send_message(stream, [bytes(size)])
    frames_sent = wire.only(wire.parse(sent(peer.core)), wire.DATA)
    assert [(frame.stream_id, len(frame.payload)) for frame in frames_sent] == [
        (1, 20_000), (3, 20_000), (1, 60_000),
    ]  # fmt: skip


def test_message_of_a_mebibyte_is_one_frame() -> None:
    """What stands in front of a payload of 1 MiB fits into its frame, as the two ends are by default."""
    pair = Pair()
    _, accepted = pair.call()
    pair.server.outbound.send_message(accepted, [bytes(300), bytes(1 << 20)])
    frames_sent = wire.only(wire.parse(sent(pair.server)), wire.DATA)
    assert [len(frame.payload) for frame in frames_sent] == [(1 << 20) + 305]


def test_small_parts_of_a_message_go_out_joined() -> None:
    """A vectored write takes few buffers: many small ones are copied together, long ones go out as they are."""
    peer = Peer(config=TransportConfig(outbound_frame_bytes_max=16_384))
    stream = peer.request()
    peer.core.outbound.send_message(stream, [bytes(50)] * 400)
    buffers = peer.core.data_to_send(1 << 20)
    assert len(wire.only(wire.parse(b"".join(buffers)), wire.DATA)) == 2
    assert len(buffers) == 1 + 2 * 2  # HEADERS, and of each frame its header and its payload
    parts = [bytes([number]) * 7_000 for number in range(2)] * 2
    peer.core.outbound.send_message(stream, parts)
    assert set(parts) <= set(map(bytes, peer.core.data_to_send(1 << 20)))


def test_waiting_for_the_connections_window_keeps_its_order() -> None:
    """Streams without connection window wait in line; what is worth a frame goes to the first."""
    peer = Peer(config=TransportConfig(outbound_frame_bytes_max=65_535))
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 20), (wire.MAX_FRAME_SIZE, 1 << 20)))
    for stream in [peer.request(stream_id) for stream_id in (1, 3, 5)]:
        peer.core.outbound.send_message(stream, [bytes(100_000)])
    order = [frame.stream_id for frame in wire.only(wire.parse(sent(peer.core)), wire.DATA)]
    for _ in range(6):
        order += [frame.stream_id for frame in wire.only(peer.send(wire.window_update(0, 1_024)), wire.DATA)]
    assert order == [1, 3, 5, 1, 3, 5, 1]


def test_trailers_follow_the_last_octet() -> None:
    """The end of a call is not sent before its messages, nor held back by other streams' messages."""
    peer = Peer()
    slow, quick = peer.request(1), peer.request(3)
    peer.core.outbound.send_message(slow, [bytes(100_000)])
    peer.core.outbound.end_call(slow, StatusCode.OK)
    peer.core.outbound.end_call(quick, StatusCode.OK)
    answered = wire.parse(sent(peer.core))
    assert [bool(frame.flags & 1) for frame in wire.only(answered, wire.HEADERS, 1)] == [False]
    assert [bool(frame.flags & 1) for frame in wire.only(answered, wire.HEADERS, 3)] == [True]
    answered = peer.send(wire.window_update(0, 1 << 20), wire.window_update(1, 1 << 20))
    assert [frame.kind for frame in answered if frame.stream_id == 1][-2:] == [wire.HEADERS, wire.RST_STREAM]


def test_an_answer_that_ends_ends_the_call() -> None:
    """At a client: who still sends learns of it, whatever the windows, and so does the server, which may not reset."""
    peer = Peer(client=True)
    stream = peer.core.open_stream(request())
    peer.core.outbound.send_message(stream, [bytes(100_000)])
    sent(peer.core)
    answered = peer.send(
        wire.headers(1, wire.RESPONSE),
        wire.data(1, wire.message(b"kept")),
        wire.headers(1, [("grpc-status", "3")], end=True),
    )
    assert [(frame.kind, frame.code) for frame in answered] == [(wire.RST_STREAM, ErrorCode.NO_ERROR)]
    with pytest.raises(StreamReset):
        stream.check_sendable()
    assert bytes(take(stream)) == b"kept"
    with pytest.raises(CallFailed, match="INVALID_ARGUMENT"):
        stream.next_message()
    assert not peer.send(wire.reset(1, ErrorCode.NO_ERROR))
    assert not peer.failed


# ------------------------------------------------------------------ goodbye


def test_drain_has_two_phases() -> None:
    """The first GOAWAY names no stream, the second the last one taken; what runs, or crosses the first, is finished."""
    pair = Pair()
    stream, accepted = pair.call()
    pair.server.shutdown.drain()
    pair.server.shutdown.drain()
    drained = [pair.server.shutdown.drained]
    crossing = pair.open()
    pair.exchange()
    goaways = [event.last_stream_id for event in pair.client_events if isinstance(event, GoawayReceived)]
    assert goaways == [2**31 - 1, 3]
    with pytest.raises(StreamRefused):
        pair.open()
    answer(pair.server, pair.server.streams[crossing.stream_id], b"taken")
    pair.server.outbound.send_message(accepted, [b"still"])
    pair.server.outbound.end_call(accepted, StatusCode.ABORTED)
    pair.exchange()
    assert [bytes(take(each)) for each in (stream, crossing)] == [b"still", b"taken"]
    with pytest.raises(CallFailed, match="ABORTED"):
        stream.next_message()
    drained.append(pair.server.shutdown.drained)
    assert drained == [False, True]
    pair.client.lost(ConnectionLost("closed"))
    assert "NO_ERROR" in str(pair.client.shutdown.failure)


def test_the_answer_to_an_earlier_ping_ends_no_grace() -> None:
    """It was on its way before the first GOAWAY came: the peer may still open calls, and all of them are taken."""
    peer = Peer()
    peer.request(1)
    peer.core.shutdown.drain()
    (ping,) = wire.only(wire.parse(sent(peer.core)), wire.PING)
    assert not wire.only(peer.send(wire.ping(b"earlier.", ack=True)), wire.GOAWAY)
    peer.request(3)
    (last,) = wire.only(peer.send(wire.ping(ping.payload, ack=True)), wire.GOAWAY)
    assert last.number == 3


def test_last_goaway_is_said_once() -> None:
    """The GOAWAY with the last stream goes out once, however often the peer acknowledges the PING before it."""
    peer = Peer()
    peer.request(1)
    peer.core.shutdown.drain()
    asked = wire.parse(sent(peer.core))
    (ping,) = wire.only(asked, wire.PING)
    answered = [frame for _ in range(3) for frame in peer.send(wire.ping(ping.payload, ack=True))]
    assert [frame.number for frame in wire.only(asked + answered, wire.GOAWAY)] == [2**31 - 1, 1]
    assert peer.core.counts.goaways_sent == 2


def test_client_learns_when_streams_are_available() -> None:
    """Who waits to open a call is told when SETTINGS come, when a call ends, and when the limit is raised."""
    peer = Peer(client=True, hello=False)
    assert not peer.core.can_open
    peer.send(wire.settings((wire.MAX_CONCURRENT_STREAMS, 1)), wire.settings(ack=True))
    assert StreamsAvailable() in peer.events
    peer.core.open_stream(request())
    peer.events.clear()
    assert not peer.core.can_open
    peer.send(wire.reset(1))
    assert StreamsAvailable() in peer.events
    assert peer.core.can_open


def test_a_lost_connection_tells_what_the_peer_had_said() -> None:
    """The code and the text of its GOAWAY stand in the error of the calls that were running."""
    peer = Peer(client=True)
    stream = peer.core.open_stream(request())
    peer.send(wire.goaway(1, ErrorCode.ENHANCE_YOUR_CALM, b"too many pings"))
    peer.core.lost(ConnectionLost("reset by peer"))
    with pytest.raises(ConnectionLost, match=r"reset by peer .*ENHANCE_YOUR_CALM too many pings"):
        stream.next_message()


def test_the_first_failure_counts() -> None:
    """A connection that is gone fails no second time, as where its client gives it up a moment later."""
    peer = Peer(client=True)
    peer.core.lost(ConnectionLost("gone"))
    peer.core.shutdown.fail(ConnectionLost("given up"), ErrorCode.NO_ERROR)
    assert str(peer.core.shutdown.failure) == "gone"
    assert not peer.core.data_to_send(1)


def test_a_lost_connection_lets_go_of_its_streams() -> None:
    """At once, for who counts them."""
    peer = Peer()
    streams = [peer.request(stream_id) for stream_id in (1, 3)]
    peer.core.lost(ConnectionLost("gone"))
    assert all(stream.failure is not None for stream in streams)
    assert not peer.core.streams


def test_close_resets_what_runs_and_says_goodbye() -> None:
    """Closing tells the peer of each running call before the GOAWAY; queued DATA is dropped, resets are not."""
    pair = Pair()
    finished, _ = pair.call()
    running, accepted = pair.call()
    pair.client.outbound.reset(finished)
    pair.client.outbound.send_message(running, [b"dropped"])
    pair.client.shutdown.close()
    frames = wire.parse(sent(pair.client))
    assert [(frame.kind, frame.stream_id) for frame in frames] == [
        (wire.RST_STREAM, 1), (wire.RST_STREAM, 3), (wire.GOAWAY, 0),
    ]  # fmt: skip
    with pytest.raises(ConnectionLost, match="closed"):
        running.next_message()
    assert accepted.failure is None
    pair.client.shutdown.close()
    assert not pair.client.outbound.queue.pending
