"""Windows: counted alone, and against a peer that breaks or bends the rules (RFC 9113 sections 5.2 and 6.9)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.configs import TINY
from tests.support.pair import Pair, Peer, answer, drain_messages, request, sent, take
from transport.config import WINDOW_BYTES_MAX, TransportConfig
from transport.errors import ErrorCode, FlowControlViolation, StatusCode, StreamReset
from transport.protocol.flow_control import ReceiveWindow, SendWindow
from transport.protocol.stream import END, NOTHING, StreamCore

if TYPE_CHECKING:
    from transport.protocol.connection import ConnectionCore

SMALL_CONNECTION = TransportConfig(stream_window_bytes=1 << 20, connection_window_bytes=65_535)


def announced(window: ReceiveWindow) -> int:
    """The octets that are credited, one by one, before they are worth a WINDOW_UPDATE."""
    window.receive_untrusted(window.available, None)
    for octets in range(1, window.outstanding + 1):
        if increment := window.credit(1):
            assert increment == octets
            return octets
    raise AssertionError("never announced")


def test_half_a_window_is_worth_an_update() -> None:
    """Of its size, of its new size after SETTINGS, and of all that was ever added to it (F10)."""
    assert announced(ReceiveWindow(1_000)) == 500
    window = ReceiveWindow(1_000)
    window.resize(200)
    assert announced(window) == 100
    window = ReceiveWindow(1_000)
    window.enlarge(3_000)
    assert announced(window) == 2_000
    window = ReceiveWindow(1_000)
    window.enlarge(3_000)
    window.resize(2_000)
    assert announced(window) == 2_500


def test_settings_move_a_receive_window_by_their_difference() -> None:
    """Section 6.9.2: what was received of the old size counts against the new one, which may leave less than none."""
    window = ReceiveWindow(1_000)
    window.receive_untrusted(300, 1)
    window.resize(2_000)
    assert window.available == 1_700
    window.resize(200)
    assert window.available == -100


@given(st.integers(1, 5_000), st.lists(st.integers(0, 700)))
def test_receive_window_conserves(size: int, steps: list[int]) -> None:
    """F1, F10: received octets are outstanding, owed or announced; consuming all releases a blocked sender."""
    window = ReceiveWindow(size)
    announced = received = 0
    for step in steps:
        take = min(step, window.available)
        window.receive_untrusted(take, 1)
        received += take
        announced += window.credit(min(step // 2, window.outstanding))
        assert received == announced + window.owed + window.outstanding
        assert window.available == size - received + announced
    announced += window.credit(window.outstanding)
    assert window.available > 0


def test_receive_window_refuses_one_octet_too_many() -> None:
    """A frame beyond the window is a violation and is not counted."""
    window = ReceiveWindow(10)
    window.receive_untrusted(10, None)
    with pytest.raises(FlowControlViolation, match="window of 0"):
        window.receive_untrusted(1, 3)
    assert window.outstanding == 10


def test_an_empty_frame_needs_no_window() -> None:
    """A client may half-close by one while its window is below nothing, as SETTINGS of ours that narrow it leave it."""
    peer = Peer(config=TransportConfig(stream_window_bytes=100), hello=False)
    peer.send(wire.PREFACE, wire.settings(), wire.headers(1), wire.data(1, wire.message(b"x" * 5_000)))
    peer.send(wire.settings(ack=True))
    stream = peer.core.streams[1]
    assert stream.receive_window.available < 0
    assert not peer.send(wire.data(1), wire.data(1, end=True))
    assert drain_messages(peer.core, stream) == [b"x" * 5_000]
    assert stream.next_message() is END


@pytest.mark.parametrize("client", [False, True], ids=["server", "client"])
def test_a_peer_may_go_by_our_window_before_it_acknowledges_it(client: bool) -> None:
    """Some send first what a wider window lets out, and their acknowledgement behind that; not an octet beyond it."""
    peer = Peer(client=client, config=TransportConfig(stream_window_bytes=100_000), hello=False)
    peer.send(wire.settings() if client else wire.PREFACE + wire.settings())
    if client:
        stream = peer.core.open_stream(request())
        peer.send(wire.headers(1, wire.RESPONSE))
    else:
        stream = peer.request(1)
    assert not peer.send(wire.data(1, wire.message(bytes(100_000 - 6))), wire.settings(ack=True))
    assert not peer.send(wire.data(1, b"x"))
    assert stream.receive_window.available == 0
    (reset,) = wire.only(peer.send(wire.data(1, b"x")), wire.RST_STREAM)
    assert reset.code == ErrorCode.FLOW_CONTROL_ERROR


@given(st.integers(-(2**31), WINDOW_BYTES_MAX), st.integers(1, WINDOW_BYTES_MAX))
def test_send_window_never_passes_its_bound(available: int, increment: int) -> None:
    """An increment past 2^31-1 is refused and changes nothing; any other is added."""
    first = True
    for window in (SendWindow(available), SendWindow(available)):
        change = window.shift_untrusted if first else functools.partial(window.open_untrusted, stream_id=None)
        first = False
        if available + increment > WINDOW_BYTES_MAX:
            with pytest.raises(FlowControlViolation):
                change(increment)
            assert window.available == available
        else:
            change(increment)
            assert window.available == available + increment


def test_window_can_go_negative() -> None:
    """F6: a lowered initial window may leave less than nothing."""
    window = SendWindow(10)
    window.shift_untrusted(-100)
    assert window.available == -90


def test_a_stream_id_has_31_bits() -> None:
    """Frames are of the stream whose whole id they carry, not of one that has the same lower bits."""
    highest = 2**31 - 1
    for sibling in (2**24 - 1, 2**16 - 1, 2**8 - 1):
        peer = Peer()
        peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 10)))
        other, stream = peer.request(sibling), peer.request(highest)
        for each in (other, stream):
            peer.core.outbound.send_message(each, [bytes(95)])
        sent(peer.core)
        (frame,) = peer.send(wire.window_update(highest, 1_000))
        assert (frame.stream_id, len(frame.payload)) == (highest, 90)
        peer.send(wire.data(highest, wire.message(b"x")), wire.reset(sibling))
        assert drain_messages(peer.core, stream) == [b"x"]
        peer.send(wire.reset(highest))
        assert not peer.core.streams


def test_a_pad_length_may_come_in_the_next_read() -> None:
    """Wherever in the buffer the frame begins: what lies behind its header is not read before it has come."""
    frame = wire.data(1, wire.message(b"x" * 50), padding=200)
    for ahead in (b"", wire.ping()):
        peer = Peer()
        stream = peer.request()
        peer.send(ahead, frame[:9])
        peer.send(frame[9:])
        assert drain_messages(peer.core, stream) == [b"x" * 50]


def window_is_whole(core: ConnectionCore) -> bool:
    """All octets received were credited: announced, or owed and under the threshold."""
    window = core.windows.connection
    return window.outstanding == 0 and window.available + window.owed == window.size


Ending = Callable[[Peer, StreamCore], object]

ENDINGS: dict[str, Ending] = {
    "data_end": lambda peer, stream: peer.send(wire.data(1, end=True)),
    "trailers": lambda peer, stream: peer.send(wire.headers(1, [("x", "y")], end=True)),
    "send_reset": lambda peer, stream: peer.core.outbound.reset(stream),
    "recv_reset": lambda peer, stream: peer.send(wire.reset(1)),
    "stream_error": lambda peer, stream: peer.send(wire.window_update(1, 0)),
    "answer": lambda peer, stream: peer.core.outbound.end_call(stream, StatusCode.OK),
    "goaway": lambda peer, stream: peer.send(wire.goaway(0)),
    "drain": lambda peer, stream: peer.core.shutdown.drain(),
}


def test_settings_may_raise_a_window_to_the_largest_there_is() -> None:
    """2^31-1 octets are allowed, of streams that are open, too; one more is not (RFC 9113 section 6.9.2)."""
    peer = Peer()
    stream = peer.request()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 2**31 - 1)))
    assert stream.send_window.available == 2**31 - 1
    assert not peer.failed


@pytest.mark.parametrize("padding", [None, 0, 200], ids=["plain", "padding of 0", "padded"])
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_every_exit_releases_connection_capacity(ending: Ending, padding: int | None) -> None:
    """F2, F3: whatever ends a stream, no octet of it, or that follows it, is lost to the connection's window."""
    peer = Peer(config=SMALL_CONNECTION)
    stream = peer.request()
    peer.send(wire.data(1, wire.message(b"x" * 9_000), padding=padding))
    ending(peer, stream)
    sent(peer.core)
    assert window_is_whole(peer.core)
    closed_by_us = not stream.remote_ended and stream.stream_id not in peer.core.streams
    if closed_by_us and ending is not ENDINGS["recv_reset"]:
        increments = sum(
            found.number
            for _ in range(20)
            for found in wire.only(
                peer.send(wire.data(1, b"z" * 9_000, padding=padding)), wire.WINDOW_UPDATE, 0
            )
        )
        assert increments > 65_535
        assert peer.core.shutdown.failure is None
        assert window_is_whole(peer.core)


def test_data_behind_the_reset_of_its_sender_costs_that_stream_alone() -> None:
    """As grpc-java cancels a call now and then: other calls of the connection go on, and the octets are credited."""
    peer = Peer(config=TransportConfig(connection_window_bytes=65_535))
    other = peer.request(1)
    peer.request(3)
    found = peer.send(wire.reset(3) + wire.data(3, b"z" * 9_000))
    assert [frame.code for frame in wire.only(found, wire.RST_STREAM, 3)] == [ErrorCode.STREAM_CLOSED]
    assert not wire.only(found, wire.GOAWAY)
    assert window_is_whole(peer.core)
    peer.send(wire.data(1, wire.message(b"on"), end=True))
    assert other.next_message() == b"on"


def test_data_on_a_forgotten_stream_is_credited() -> None:
    """F3: DATA on a stream closed so long ago that nobody remembers how costs a reset, and no window."""
    config = TransportConfig(connection_window_bytes=65_535)
    peer = Peer(config=config)
    for stream_id in range(1, 2_203, 2):
        peer.now += 1.0
        peer.core.outbound.reset(peer.request(stream_id))
        sent(peer.core)
    found = []
    for _ in range(30):
        peer.now += 1.0
        found += peer.send(wire.data(1, b"z" * 9_000))
    assert {frame.code for frame in wire.only(found, wire.RST_STREAM, 1)} == {ErrorCode.STREAM_CLOSED}
    assert window_is_whole(peer.core)
    assert peer.core.shutdown.failure is None


def test_recv_data_overflows_connection_window() -> None:
    """A frame past the connection's window ends the connection; credit on receipt needs a frame larger than it."""
    peer = Peer(config=TransportConfig(connection_window_bytes=65_535, inbound_frame_bytes_max=1 << 20))
    peer.request()
    answered = peer.send(wire.data(1, bytes(65_536)))
    assert wire.only(answered, wire.GOAWAY)[0].code == ErrorCode.FLOW_CONTROL_ERROR
    assert peer.failed


@pytest.mark.parametrize("padding", [None, 5])
def test_recv_data_overflows_stream_window(padding: int | None) -> None:
    """A frame past a stream's window resets that stream; another one goes on."""
    peer = Peer(config=TINY)
    peer.request(1)
    other = peer.request(3)
    extra = 0 if padding is None else padding + 1
    assert not wire.only(peer.send(wire.data(1, bytes(1_000 - extra), padding=padding)), wire.RST_STREAM)
    answered = peer.send(wire.data(1, b"x"), wire.data(3, wire.message(b"still here"), end=True))
    assert wire.only(answered, wire.RST_STREAM, 1)[0].code == ErrorCode.FLOW_CONTROL_ERROR
    assert drain_messages(peer.core, other) == [b"still here"]
    assert window_is_whole(peer.core)


def test_window_update_on_a_closed_stream_is_ignored() -> None:
    """WINDOW_UPDATE that crosses the end of a stream does no harm."""
    peer = Peer()
    stream = peer.request(end=True)
    answer(peer.core, stream, b"x")
    sent(peer.core)
    assert peer.send(wire.window_update(1, 100)) == []
    peer.core.outbound.reset(peer.request(3))
    assert wire.only(peer.send(wire.window_update(3, 100)), wire.GOAWAY) == []
    assert peer.core.shutdown.failure is None


def sent_bytes(frames: list[wire.Frame]) -> int:
    return sum(len(frame.payload) for frame in wire.only(frames, wire.DATA))


def test_settings_lower_the_window_below_what_is_in_flight() -> None:
    """F6, F7: a window made negative sends nothing until updates and settings have lifted it above zero."""
    peer = Peer()
    stream = peer.request()
    peer.core.outbound.send_message(stream, [b"x" * 99_995])
    assert sent_bytes(wire.parse(sent(peer.core))) == 65_535  # both windows at once
    peer.send(wire.window_update(0, 1 << 20))
    assert sent_bytes(peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 100)))) == 0
    assert stream.send_window.available == 100 - 65_535
    assert sent_bytes(peer.send(wire.window_update(1, 65_435))) == 0
    assert sent_bytes(peer.send(wire.window_update(1, 60))) == 60
    assert sent_bytes(peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1_100)))) == 1_000
    assert sent_bytes(peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX)))) == 33_405


def test_settings_raise_a_window_past_its_bound() -> None:
    """SETTINGS_INITIAL_WINDOW_SIZE that takes an open stream's window past 2^31-1 ends the connection."""
    peer = Peer()
    peer.request()
    peer.send(wire.window_update(1, 1_000))
    answered = peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX)))
    assert wire.only(answered, wire.GOAWAY)[0].code == ErrorCode.FLOW_CONTROL_ERROR


def test_new_streams_start_from_the_last_settings() -> None:
    """A stream opened after a change of SETTINGS_INITIAL_WINDOW_SIZE has the new window."""
    peer = Peer()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 7)))
    stream = peer.request()
    peer.core.outbound.send_message(stream, [b"0123456789"])
    assert sent_bytes(wire.parse(sent(peer.core))) == 7


def test_sender_blocked_before_our_smaller_window_is_known_is_released() -> None:
    """F10: octets sent under the window of 65 535, consumed before SETTINGS are acknowledged, are announced then."""
    peer = Peer(config=TINY, hello=False)
    peer.send(wire.PREFACE, wire.settings())
    stream = peer.request()
    peer.send(wire.data(1, wire.message(b"x" * 9_995)), wire.data(1, wire.message(b"y" * 9_995)))
    assert len(drain_messages(peer.core, stream)) == 2
    answered = peer.send(wire.settings(ack=True))
    # The peer's window is 1 000 - 20 000 now: without an update it could never send again.
    assert sum(frame.number for frame in wire.only(answered, wire.WINDOW_UPDATE, 1)) == 20_000


def test_reset_while_waiting_for_capacity_gives_it_to_others() -> None:
    """F8: connection window that a stream waited for goes to the next one when it is reset."""
    peer = Peer()
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1 << 20)))
    first, second = peer.request(1), peer.request(3)
    for stream in (first, second):
        peer.core.outbound.send_message(stream, [b"x" * 200_000])
    assert sent_bytes(wire.parse(sent(peer.core))) == 65_535
    peer.core.outbound.reset(first)
    answered = peer.send(wire.window_update(0, 1_000))
    assert sent_bytes(answered) == sent_bytes(wire.only(answered, wire.DATA, 3)) == 1_000


def test_many_tiny_frames_are_credited_like_one() -> None:
    """A message in frames of one octet costs the window its octets, no more."""
    pair = Pair(TransportConfig(outbound_frame_bytes_max=1, connection_window_bytes=65_535))
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"x" * 20_000])
    pair.exchange()
    assert drain_messages(pair.server, accepted) == [b"x" * 20_000]
    assert window_is_whole(pair.server)
    assert accepted.receive_window.outstanding == 0


def test_stream_credit_follows_consumption() -> None:
    """F4, F5: unread messages hold their stream's window and not the connection's."""
    pair = Pair(TINY)
    stalled, stalled_end = pair.call()
    for _ in range(10):
        pair.client.outbound.send_message(stalled, [b"x" * 400])
    pair.exchange()
    assert stalled_end.buffered_bytes == TINY.stream_window_bytes
    running, running_end = pair.call()
    for _ in range(300):  # past the connection's window, with the other stream stalled
        pair.client.outbound.send_message(running, [b"y" * 400])
        pair.exchange()
        assert drain_messages(pair.server, running_end) == [b"y" * 400]
    assert stalled_end.receive_window.available == 0
    assert window_is_whole(pair.server)


def test_lost_connection_fails_streams_and_holds_nothing() -> None:
    """F2 at the end of a connection: nothing stays queued, and the verbs stay harmless."""
    pair = Pair(TINY)
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"x" * 5_000])
    pair.exchange()
    pair.server.shutdown.close()
    for core in (pair.server, pair.client):
        core.windows.expect_message(accepted if core is pair.server else stream)
    pair.exchange()
    pair.client.shutdown.close()
    for end, core in ((stream, pair.client), (accepted, pair.server)):
        core.windows.credit(end)
        core.outbound.reset(end)
        core.shutdown.drain()
        assert end.outgoing_bytes == 0
        assert sent(core).count(b"x") == 0
    pair.server.outbound.end_call(accepted, StatusCode.OK)
    assert not pair.server.outbound.queue.pending


def test_message_longer_than_the_window_needs_a_waiting_consumer() -> None:
    """A partial message is credited while somebody waits for it, and not before."""
    pair = Pair(TINY)
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"x" * 5_000])
    pair.exchange()
    assert accepted.buffered_bytes == 1_000
    pair.server.windows.expect_message(accepted)
    pair.exchange()
    assert bytes(take(accepted)) == b"x" * 5_000
    assert accepted.next_message() is NOTHING


def test_reset_by_us_drops_what_was_not_read() -> None:
    """A stream that we reset delivers nothing more."""
    pair = Pair()
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"unread"])
    pair.exchange()
    pair.server.outbound.reset(accepted)
    with pytest.raises(StreamReset, match="by us: CANCEL"):
        accepted.next_message()
    pair.exchange()
    with pytest.raises(StreamReset, match="by the peer: CANCEL"):
        stream.next_message()


def test_padding_is_given_back_to_the_stream() -> None:
    """F1, F4: a peer that pads is never short of window, however often it pads: padding is consumed on receipt."""
    peer = Peer(config=TINY)
    stream = peer.request()
    left = TINY.stream_window_bytes
    for _ in range(100):
        frame = wire.data(1, wire.message(b"x"), padding=200)
        left -= len(frame) - 9
        assert left >= 0
        answered = peer.send(frame)
        assert drain_messages(peer.core, stream) == [b"x"]
        answered += wire.parse(sent(peer.core))
        assert not wire.only(answered, wire.RST_STREAM)
        left += sum(update.number for update in wire.only(answered, wire.WINDOW_UPDATE, 1))
