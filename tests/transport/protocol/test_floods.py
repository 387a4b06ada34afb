"""Floods: each kind of frame that costs a peer nothing is bounded, and real clients stay far below the bounds."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.support import wire
from tests.support.configs import TINY
from tests.support.pair import Pair, Peer, drain_messages, request, sent
from transport.config import TransportConfig
from transport.errors import ErrorCode, RemoteProtocolError, StatusCode
from transport.protocol.abuse import ALLOWANCES, Budgets, Cost
from transport.protocol.clock import Clock
from transport.protocol.events import ResetLate
from transport.protocol.small_frames import HOLD_S

if TYPE_CHECKING:
    from transport.protocol.stream import StreamCore

FLOODS = {
    "PING": (wire.ping(), Cost.PING),
    "SETTINGS": (wire.settings((4, 70_000)), Cost.SETTINGS),
    "acknowledged SETTINGS": (wire.settings(ack=True), Cost.SETTINGS),
    "PRIORITY": (wire.frame(wire.PRIORITY, 9, bytes(5)), Cost.IGNORED),
    "unknown frames": (wire.frame(0x42, 0, b"x"), Cost.IGNORED),
    "empty DATA": (wire.data(1), Cost.EMPTY_DATA),
    "DATA of padding": (wire.data(1, padding=9), Cost.EMPTY_DATA),
    "WINDOW_UPDATE": (wire.window_update(0, 1), Cost.WINDOW_UPDATE),
    "RST_STREAM again": (wire.reset(3), Cost.IGNORED),
    "WINDOW_UPDATE of 0 after the end": (wire.window_update(3, 0), Cost.RESET),
}


@pytest.mark.parametrize(("flood", "cost"), FLOODS.values(), ids=FLOODS)
def test_flood_ends_the_connection(flood: bytes, cost: Cost) -> None:
    """Twice a budget at one moment is answered by ENHANCE_YOUR_CALM; half of it is not."""
    peer = Peer()
    peer.request(1)
    peer.core.outbound.reset(peer.request(3))
    burst = int(ALLOWANCES[cost].burst)
    for _ in range(burst // 2 // 10):
        peer.send(flood * 10)
    assert not peer.failed
    answered = []
    for _ in range(burst // 10):
        answered += peer.send(flood * 10)
    assert wire.only(answered, wire.GOAWAY)[0].code == ErrorCode.ENHANCE_YOUR_CALM
    assert peer.failed


def rapid_reset(stream_id: int) -> bytes:
    return wire.headers(stream_id) + wire.reset(stream_id)


MADE_YOU_RESET = {
    "rapid reset": rapid_reset,
    "window update of 0": lambda sid: wire.headers(sid) + wire.window_update(sid, 0),
    "window update past the bound": lambda sid: wire.headers(sid) + wire.window_update(sid, 2**31 - 1),
    "DATA after END_STREAM": lambda sid: wire.headers(sid, end=True) + wire.data(sid, b"x"),
    "HEADERS after END_STREAM": lambda sid: wire.headers(sid, end=True) + wire.headers(sid, end=True),
    "PRIORITY of 4 octets": lambda sid: wire.headers(sid) + wire.frame(wire.PRIORITY, sid, bytes(4)),
    "content-length": lambda sid: (
        wire.headers(sid, [*wire.REQUEST, ("content-length", "9")]) + wire.data(sid, end=True)
    ),
}


@pytest.mark.parametrize("attack", MADE_YOU_RESET.values(), ids=MADE_YOU_RESET)
def test_resets_spend_one_budget(attack: object) -> None:
    """Streams that are reset, by the peer or for its fault, end the connection when there are too many."""
    peer = Peer()
    for stream_id in range(1, 2 * 2_000, 2):
        peer.send(attack(stream_id))  # type: ignore[operator]
        assert len(peer.core.streams) <= 1
        if peer.failed:
            break
    assert stream_id // 2 == pytest.approx(ALLOWANCES[Cost.RESET].burst, abs=2)
    assert isinstance(peer.core.shutdown.failure, RemoteProtocolError)
    assert peer.core.shutdown.failure.code == ErrorCode.ENHANCE_YOUR_CALM


def test_headers_on_a_reset_stream_are_paid_for() -> None:
    """HEADERS sent again and again on a stream that we have reset end the connection."""
    peer = Peer()
    peer.core.outbound.reset(peer.request(1))
    for _ in range(2_000):
        peer.send(wire.headers(1, [("x", "y")], end=True))
    assert peer.failed


def test_all_open_calls_are_cancelled_at_once() -> None:
    """As many as a peer may have open, none of them answered: its program ended, or they shared a deadline."""
    peer, at_once = Peer(), range(1, 2 * TransportConfig().streams_max, 2)
    peer.send(*(wire.headers(stream_id) for stream_id in at_once))
    peer.send(*(wire.reset(stream_id) for stream_id in at_once))
    assert not peer.failed


def test_strangers_behind_a_proxy_cancel_some_calls() -> None:
    """Of 2000 calls a second on one connection every third is cancelled before it is answered, for five seconds."""
    peer = Peer()
    peer.send(wire.window_update(0, 1 << 20))
    for at in range(10_000):
        peer.now = at / 2_000
        stream_id = 2 * at + 1
        if at % 3:
            answered = peer.request(stream_id, end=True)
            peer.core.outbound.send_message(answered, [b"x"])
            peer.core.outbound.end_call(answered, StatusCode.OK)
            sent(peer.core)
        else:
            peer.send(rapid_reset(stream_id))
    assert not peer.failed


def test_client_that_cancels_at_leisure_is_left_alone() -> None:
    """Forty cancelled calls a second, for a minute, are no attack."""
    peer = Peer()
    for at in range(2_400):
        peer.now = at / 40
        peer.send(rapid_reset(2 * at + 1))
    assert not peer.failed


@pytest.mark.parametrize(("deadline_s", "attack"), [(0.5, False), (0.4, True)])
def test_calls_that_end_by_their_deadlines_are_no_attack(deadline_s: float, attack: bool) -> None:
    """All calls that may be open wait until their deadline, again and again; a deadline that is too short ends it."""
    peer = Peer()
    for turn in range(10):
        stream_ids = range(2_000 * turn + 1, 2_000 * turn + 2_001, 2)
        peer.send(*(wire.headers(stream_id) for stream_id in stream_ids))
        assert len(peer.core.streams) == len(stream_ids)
        peer.now += deadline_s
        peer.send(*(wire.reset(stream_id) for stream_id in stream_ids))
        if peer.core.shutdown.failure is not None:
            break
    assert peer.failed == attack


def test_server_that_ends_many_open_calls_is_left_alone() -> None:
    """A server resets each call that it answers before the client's end; no number of them is too many."""
    pair = Pair()
    for _ in range(1_500):
        _, accepted = pair.call()
        pair.server.outbound.end_call(accepted, 0)  # type: ignore[arg-type]
        pair.exchange()
        pair.client_events.clear()
        pair.server_events.clear()
    assert pair.client.shutdown.failure is None
    assert not pair.client.streams


def test_header_block_has_a_bound() -> None:
    """A header block in many CONTINUATION frames ends at a bound of octets and of frames."""
    peer = Peer()
    peer.send(wire.frame(wire.HEADERS, 1, b""))
    for _ in range(11):
        peer.send(wire.frame(wire.CONTINUATION, 1, bytes(8_000)))
    assert peer.failed
    peer = Peer()
    peer.send(wire.frame(wire.HEADERS, 1, b""))
    for _ in range(200):
        peer.send(wire.frame(wire.CONTINUATION, 1, b""))
    assert peer.failed


def test_header_list_has_a_bound() -> None:
    """A header list of many times the limit ends the connection, though its block was short (CVE-2016-6581)."""
    peer = Peer()
    bomb = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4_000 + b"\xbe" * 200
    answered = peer.send(wire.frame(wire.HEADERS, 1, wire.encode(wire.REQUEST) + bomb, wire.END_HEADERS))
    assert peer.failed
    assert wire.only(answered, wire.GOAWAY)[0].code == ErrorCode.ENHANCE_YOUR_CALM


def test_calls_with_too_much_metadata_leave_the_others_alone() -> None:
    """However many fail for lists of up to five frames, as clients cut them, their connection goes on."""
    peer = Peer()
    tail = peer.request(1)
    block = wire.encode(wire.REQUEST) + (b"\x00\x01x\x7f\xa1\x1e" + b"y" * 4_000) * 20
    first, *parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    assert len(parts) == 4
    for stream_id in range(3, 2 * 200, 2):
        peer.send(wire.frame(wire.HEADERS, stream_id, first))
        for part in parts[:-1]:
            peer.send(wire.frame(wire.CONTINUATION, stream_id, part))
        answer = peer.send(wire.frame(wire.CONTINUATION, stream_id, parts[-1], wire.END_HEADERS))
        assert [frame.kind for frame in answer] == [wire.HEADERS, wire.RST_STREAM]
    assert not peer.failed
    assert list(peer.core.streams.values()) == [tail]


def test_settings_are_not_hoarded() -> None:
    """Unknown identifiers leave nothing behind, and a frame of very many is refused."""
    peer = Peer()
    for at in range(60):
        peer.send(wire.settings(*((1_000 + 50 * at + i, 1) for i in range(50))))
    assert not peer.failed
    assert len(peer.core._control._h2.remote_settings) < 10
    peer.send(wire.settings(*((1_000 + i, 1) for i in range(2_000))))
    assert peer.failed


def test_header_table_of_the_encoder_stays_small() -> None:
    """SETTINGS_HEADER_TABLE_SIZE of 4 GiB is taken as 4 096."""
    peer = Peer()
    peer.send(wire.settings((wire.HEADER_TABLE_SIZE, 2**32 - 1)))
    assert peer.core._header_frames.encoder.header_table_size == 4_096


def test_replies_that_nobody_reads_are_bounded() -> None:
    """A peer that asks and does not read is cut off before the replies to it take much memory."""
    peer = Peer(config=TransportConfig(control_backlog_bytes_max=1_024))
    for _ in range(150):
        peer.core.receive_data(wire.ping(), 0.0)
    assert isinstance(peer.core.shutdown.failure, RemoteProtocolError)
    assert "wait to be read" in str(peer.core.shutdown.failure)
    assert len(sent(peer.core)) < 200


def test_calls_that_wait_to_be_sent_are_no_replies() -> None:
    """Many calls with long credentials, opened at once, do not make a client give its server up for what that sends."""
    peer = Peer(client=True, config=TransportConfig(control_backlog_bytes_max=1_024))
    credentials = [("authorization", "Bearer " + 200 * "x")]
    streams = [peer.core.open_stream(request(metadata=credentials)) for _ in range(10)]
    opened = peer.send(wire.ping())
    assert not peer.failed
    assert len(wire.only(opened, wire.HEADERS)) == len(streams)
    for _ in range(100):  # replies are counted as before
        peer.core.receive_data(wire.ping(), 0.0)
    assert "wait to be read" in str(peer.core.shutdown.failure)


def test_resets_that_wait_to_be_sent_are_no_replies() -> None:
    """Who cancels many calls while the server reads nothing does not give it up for what it says then."""
    peer = Peer(client=True, config=TransportConfig(control_backlog_bytes_max=1_024))
    for _ in range(200):
        peer.core.outbound.reset(peer.core.open_stream(request(), window_bytes=1 << 24))
    waited = peer.send(wire.ping())
    assert not peer.failed
    assert len(wire.only(waited, wire.RST_STREAM)) == 200


def test_resets_of_a_server_are_replies() -> None:
    """A client could open calls on and on that the server resets, as those behind their deadlines, and read nothing."""
    core = Peer(config=TransportConfig(control_backlog_bytes_max=1_024)).core
    for stream_id in range(1, 401, 2):
        core.receive_data(wire.headers(stream_id), 0.0)
        if core.shutdown.failure is None:
            core.outbound.reset(core.streams[stream_id])
    assert "wait to be read" in str(core.shutdown.failure)


def test_answers_to_calls_that_were_reset_and_forgotten_are_dropped() -> None:
    """Thousands of calls that share a deadline are reset at once; what was on its way is no fault of the server's."""
    peer = Peer(client=True)
    streams = [peer.core.open_stream(request()) for _ in range(3_000)]
    for stream in streams:
        peer.core.outbound.reset(stream)
    sent(peer.core)
    for stream in streams:
        number = stream.stream_id
        late = wire.headers(number, wire.RESPONSE), wire.data(number, wire.message(b"late"))
        assert peer.send(*late, wire.headers(number, wire.TRAILERS, end=True)) == []
    assert not peer.failed


def test_closed_streams_are_forgotten() -> None:
    """Two thousand calls leave a bounded trace."""
    peer = Peer()
    for stream_id in range(1, 2 * 2_000, 2):
        peer.core.outbound.end_call(peer.request(stream_id, end=True), StatusCode.OK)
        sent(peer.core)
        peer.events.clear()
    assert not peer.core.streams
    assert len(peer.core.table.closed) <= 1_000


@pytest.mark.parametrize("reader", ["grpcio", "nghttp"])
def test_real_clients_stay_below_the_budgets(reader: str) -> None:
    """What real clients send while they read 64 MiB leaves most of every budget."""
    budgets = Budgets(Clock(0.0))
    updates, pings, settings = (24, 3, 4) if reader == "grpcio" else (4_100, 0, 1)
    for _ in range(10):
        for cost, count in ((Cost.WINDOW_UPDATE, updates), (Cost.PING, pings), (Cost.SETTINGS, settings)):
            for _ in range(count):
                budgets.spend_untrusted(cost)
        budgets.sent_bytes += 64 << 20


def test_budget_refills_with_time_and_never_above_its_burst() -> None:
    """An empty budget earns by the second, a full one nothing."""
    clock = Clock(0.0)
    budgets = Budgets(clock)
    allowance = ALLOWANCES[Cost.SETTINGS]

    def spend(now: float) -> int:
        count, clock.now = 0, now
        try:
            while True:
                budgets.spend_untrusted(Cost.SETTINGS)
                count += 1
        except RemoteProtocolError:
            return count

    assert spend(0.0) == allowance.burst
    assert spend(0.0) == 0
    assert spend(2.0) == 2 * allowance.per_second
    assert spend(10_000.0) == allowance.burst


def test_windows_of_one_octet_are_slow_and_served() -> None:
    """A peer that gives one octet at a time gets all of it: in so many tiny frames at once, then in a few a second."""
    peer = Peer()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1)))
    stream = peer.request()
    peer.core.outbound.send_message(stream, [b"x" * 11_995])
    sizes = [len(frame.payload) for frame in wire.only(wire.parse(sent(peer.core)), wire.DATA)]
    at_once = 0
    while len(sizes) < 12_000:
        given = wire.only(peer.send(wire.window_update(1, 1)), wire.DATA)
        if not peer.now:
            at_once += len(given)
        if not given:
            peer.now += HOLD_S
            peer.core.handle_deadline(peer.now)
            given = wire.only(wire.parse(sent(peer.core)), wire.DATA)
        assert given, f"nothing more after {len(sizes)} octets"
        sizes += [len(frame.payload) for frame in given]
    assert not peer.failed
    assert at_once == 10_000
    assert set(sizes) == {1}


def test_octets_given_back_one_by_one_are_no_attack() -> None:
    """A peer that was sent much and consumes it octet by octet, long after, may tell of each to both windows."""
    peer = Peer()
    stream = peer.request()
    peer.core.outbound.send_message(stream, [bytes(65_530)])
    peer.core.outbound.end_call(stream, StatusCode.OK)
    sent(peer.core)
    for _ in range(65_535 // 15):
        peer.send((wire.window_update(0, 1) + wire.window_update(1, 1)) * 15)
    assert not peer.failed


def test_frames_sent_earn_the_answers_of_real_clients() -> None:
    """A PING and three WINDOW_UPDATEs for each small message, as grpc-go and grpcio send them, are no attack."""
    peer = Peer()
    stream = peer.request()
    for _ in range(5_000):
        peer.core.outbound.send_message(stream, [b"x"])
        sent(peer.core)
        peer.send(
            wire.ping() + wire.window_update(0, 6) + wire.window_update(1, 3) + wire.window_update(1, 3)
        )
    assert not peer.failed


def test_replies_earn_the_answers_of_real_clients() -> None:
    """HEADERS, DATA and trailers of unary replies earn as well; who asks faster than it is answered still ends."""
    peer = Peer()
    for stream_id in range(1, 2 * 6_000, 2):
        stream = peer.request(stream_id, end=True)
        peer.core.outbound.send_message(stream, [b""])
        peer.core.outbound.end_call(stream, StatusCode.OK)
        sent(peer.core)
        peer.send(wire.window_update(0, 5) + wire.window_update(stream_id, 5) + 3 * wire.ping())
        peer.events.clear()
    assert peer.core.shutdown.failure is None
    for _ in range(201):
        peer.send(wire.ping())
    assert peer.failed


def test_a_priority_for_each_request_is_no_attack() -> None:
    """Nor is one of RFC 9218, an unknown frame here. Calls that are answered earn both; without any it ends."""
    peer = Peer()
    for stream_id in range(1, 2 * 2_000, 2):
        peer.send(wire.frame(wire.PRIORITY, stream_id, struct.pack(">LB", 0, 15)))
        peer.send(wire.frame(0x10, 0, struct.pack(">L", stream_id) + b"u=1"))
        peer.core.outbound.send_message(stream := peer.request(stream_id, end=True), [b""])
        peer.core.outbound.end_call(stream, StatusCode.OK)
        sent(peer.core)
        peer.events.clear()
    assert peer.core.shutdown.failure is None
    peer.send(wire.frame(wire.PRIORITY, 9, bytes(5)) * 3_100)  # each answer has earned one more than it cost
    assert peer.failed


def answered(peer: Peer, stream_id: int) -> StreamCore:
    """A call whose answer has begun."""
    stream = peer.request(stream_id)
    peer.core.outbound.send_message(stream, [b"first"])
    sent(peer.core)
    return stream


def test_calls_cancelled_after_their_answer_began_are_no_attack() -> None:
    """A client that takes its first row and cancels may do so as often as it likes."""
    peer = Peer()
    for stream_id in range(1, 2 * 2_000, 2):
        answered(peer, stream_id)
        peer.send(wire.reset(stream_id))
    assert not peer.failed
    assert not peer.core.streams


def test_resets_that_cross_the_end_are_no_attack() -> None:
    """A reset may cross the end of each call; it is told of once."""
    peer = Peer()
    for stream_id in range(1, 2 * 2_000, 2):
        peer.core.outbound.send_message(stream := peer.request(stream_id, end=True), [b""])
        peer.core.outbound.end_call(stream, StatusCode.OK)
        sent(peer.core)
        peer.send(wire.reset(stream_id) * 2)
    assert not peer.failed
    told = [event.stream_id for event in peer.events if isinstance(event, ResetLate)]
    assert told == list(range(1, 2 * 2_000, 2))


def test_resets_that_answer_what_was_on_its_way_are_no_attack() -> None:
    """Netty sends one for each frame that arrives behind its own reset; one more for each that we sent is too many."""
    peer = Peer()
    stream = answered(peer, 1)
    for _ in range(3_000):
        peer.core.outbound.send_message(stream, [b"row"])
        sent(peer.core)
    peer.send(wire.reset(1))
    peer.send(wire.reset(1, ErrorCode.STREAM_CLOSED) * 3_000)
    assert not peer.failed
    peer.send(wire.reset(1, ErrorCode.STREAM_CLOSED) * 3_000)
    assert peer.failed


def test_what_is_sent_counts_for_the_budgets() -> None:
    """Each DATA and HEADERS frame, and the octets of DATA: with them a peer pays for its WINDOW_UPDATEs."""
    peer = Peer()
    stream = peer.request()
    budgets = peer.core._budgets
    before = budgets.sent_frames
    peer.core.outbound.send_message(stream, [bytes(20_000)])
    frames_sent = wire.parse(sent(peer.core))
    assert sum(frame.kind in {wire.DATA, wire.HEADERS} for frame in frames_sent) == len(frames_sent)
    assert (budgets.sent_bytes, budgets.sent_frames) == (20_005, before + len(frames_sent))


def test_empty_messages_cost_what_they_weigh() -> None:
    """Messages without octets still hold their prefix's window until they are taken."""
    peer = Peer(config=TINY)
    stream = peer.request()
    peer.send(wire.data(1, wire.message(b"") * 200))
    assert stream.receive_window.available == 0
    assert len(drain_messages(peer.core, stream)) == 200
    assert stream.receive_window.available == 1_000
