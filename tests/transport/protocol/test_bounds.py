"""Bounds on what one peer makes us do and keep: turns, small frames, memory of messages, calls that say nothing."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from tests.support.pair import Peer, drain_messages, sent
from transport.config import TransportConfig
from transport.errors import ErrorCode, MessageRefused, RemoteProtocolError, StatusCode
from transport.protocol.control import filter_settings_untrusted
from transport.protocol.flow_control import SendWindow
from transport.protocol.memory import MESSAGE_OVERHEAD_BYTES, ReceiveMemory
from transport.protocol.small_frames import FRAME_BYTES_MIN, HOLD_S, worth_a_frame


def received(peer: Peer, octets: bytes) -> int:
    """Give octets to a core in one read; returns the turns that it takes them in."""
    (room,) = peer.core.buffers()
    room[: len(octets)] = octets
    peer.core.bytes_received(len(octets), 0.0)
    turns = 1
    while peer.core.unread:
        peer.core.bytes_received(0, 0.0)
        turns += 1
    return turns


def test_what_came_in_one_read_is_taken_in_turns() -> None:
    """Frames that cost work are handed on some at a time, all of them in the end."""
    peer = Peer()
    assert received(peer, wire.ping() * 128) == 4
    assert len(wire.only(wire.parse(sent(peer.core)), wire.PING)) == 128


def test_settings_count_for_the_streams_that_they_touch() -> None:
    """A change of the initial window in many streams ends the turn."""
    peer = Peer()
    for stream_id in range(1, 1_201, 2):
        peer.send(wire.headers(stream_id))
    assert received(peer, wire.settings((4, 1)) + wire.ping() + wire.settings((4, 2)) + wire.ping()) == 3


def test_data_is_not_cut_into_turns() -> None:
    """A read full of long DATA frames is one turn."""
    peer = Peer()
    peer.request(1)
    assert received(peer, wire.data(1, bytes(1_000)) * 4) == 1


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_window_as_large_as_ever_is_worth_a_frame(largest: int, opened: int, queued: int) -> None:
    """What takes all that is queued, a kilobyte, or half of what the peer ever gave is used at once."""
    window = SendWindow(largest)
    window.claim(largest)
    window.open_untrusted(opened, None)
    expected = opened >= min(queued, FRAME_BYTES_MIN, max(1, max(largest, opened) // 2))
    assert worth_a_frame(window, queued) is expected


def test_small_window_is_used_after_a_while() -> None:
    """Octets wait for a larger window, not for ever, and the wait ends with a window that is worth it."""
    peer = Peer()
    stream = peer.request()
    peer.core.outbound.send_message(stream, [bytes(200_000)])
    sent(peer.core)
    peer.send(wire.window_update(0, 1 << 20))
    assert peer.send(wire.window_update(1, 7)) == []
    assert peer.core.next_deadline() == HOLD_S
    peer.core.handle_deadline(HOLD_S)
    assert [len(frame.payload) for frame in wire.parse(sent(peer.core))] == [7]
    peer.send(wire.window_update(1, 7))
    (frame,) = peer.send(wire.window_update(1, 2_000))
    assert len(frame.payload) == 2_007


def test_a_window_that_stays_shut_is_not_waited_for() -> None:
    """Lowered below zero by SETTINGS, and not opened far enough to send: nothing is due, whether octets wait or not."""
    peer = Peer(config=TransportConfig(ping_interval_s=0, first_message_timeout_s=0))
    # The second leaves octets behind: there is no more window.
    for stream_id, size in ((1, 50_000), (3, 15_530)):
        peer.core.outbound.send_message(peer.request(stream_id), [bytes(size)])
    sent(peer.core)
    peer.send(wire.settings((wire.INITIAL_WINDOW_SIZE, 1_000)))
    peer.send(wire.window_update(0, 1 << 20))
    for stream_id in (1, 3):
        assert peer.send(wire.window_update(stream_id, 7)) == []
    assert peer.core.next_deadline() == math.inf


def test_small_connection_window_is_used_after_a_while() -> None:
    """The same for the connection's window."""
    peer = Peer()
    peer.send(wire.settings((4, 1 << 20)))
    stream = peer.request()
    peer.core.outbound.send_message(stream, [bytes(200_000)])
    sent(peer.core)
    assert peer.send(wire.window_update(0, 7)) == []
    peer.core.handle_deadline(HOLD_S)
    assert [len(frame.payload) for frame in wire.parse(sent(peer.core))] == [7]


def test_a_connection_window_that_opens_is_used_by_whoever_sends_next() -> None:
    """Also where the call for which a small window was saved up has ended meanwhile."""
    peer = Peer()
    peer.send(wire.settings((4, 1 << 20)))
    stream, other = peer.request(1), peer.request(3)
    peer.core.outbound.send_message(stream, [bytes(200_000)])
    sent(peer.core)
    peer.send(wire.window_update(0, 7))
    peer.send(wire.reset(1))
    peer.send(wire.window_update(0, 100_000))
    peer.core.outbound.send_message(other, [bytes(1_000)])
    assert len(wire.only(wire.parse(sent(peer.core)), wire.DATA)) == 1


def test_window_lowered_by_settings_is_not_waited_for() -> None:
    """A peer that had a large window and now has a small one is served by the small one."""
    window = SendWindow(65_535)
    window.claim(65_535)
    window.shift_untrusted(100 - 65_535)
    window.open_untrusted(65_535 - 40, None)
    assert window.available == 60
    assert worth_a_frame(window, 1_000)


def test_memory_of_messages_is_counted_until_they_are_taken() -> None:
    """Complete messages and begun ones count; taking them, or the end of the call, gives everything back."""
    peer = Peer(config=TransportConfig(message_bytes_max=1 << 20, receive_memory_bytes_max=1 << 20))
    memory = peer.core.table.receive_memory
    assert memory is not None
    stream, other = peer.request(1), peer.request(3)
    peer.send(wire.data(1, wire.message(b"x" * 100) * 3), wire.data(3, struct.pack(">BL", 0, 5_000) + b"y"))
    assert memory.taken_bytes == 3 * (100 + MESSAGE_OVERHEAD_BYTES) + 5_000 + MESSAGE_OVERHEAD_BYTES
    assert len(drain_messages(peer.core, stream)) == 3
    assert memory.taken_bytes == 5_000 + MESSAGE_OVERHEAD_BYTES
    peer.core.outbound.reset(other)
    assert memory.taken_bytes == 0


@pytest.mark.parametrize(
    ("memory_bytes", "kept_bytes", "refused"),
    [
        (10_000, 9_000, wire.message(bytes(1_000))),
        # The socket writes into the message itself, and it is to get the rest of its memory.
        (1 << 20, 500_000, wire.message(bytes(1_000_000))[:150_000]),
    ],
    ids=["short", "long"],
)
def test_message_without_room_ends_its_call(memory_bytes: int, kept_bytes: int, refused: bytes) -> None:
    """One message more than the memory of a connection takes is refused for now: nothing is wrong with it."""
    config = TransportConfig(message_bytes_max=memory_bytes, receive_memory_bytes_max=memory_bytes)
    peer = Peer(config=config)
    first = peer.request(1)
    peer.request(3)
    peer.send(wire.data(1, wire.message(bytes(kept_bytes))))
    answered = peer.send(wire.data(3, refused))
    trailers = wire.fields(wire.only(answered, wire.HEADERS, 3)[-1].payload)
    assert ("grpc-status", str(int(StatusCode.UNAVAILABLE))) in trailers
    assert [len(message) for message in drain_messages(peer.core, first)] == [kept_bytes]
    assert not peer.failed


def test_refused_memory_is_not_counted() -> None:
    """What did not fit leaves the count as it was; what fits exactly is taken."""
    memory = ReceiveMemory(100)
    memory.take_untrusted(60)
    with pytest.raises(MessageRefused):
        memory.take_untrusted(41)
    assert memory.taken_bytes == 60
    memory.take_untrusted(40)
    assert memory.taken_bytes == 100


def test_calls_without_a_message_are_ended_in_time() -> None:
    """Each has its own time, and a first octet ends it."""
    peer = Peer(config=TransportConfig(first_message_timeout_s=8.0, ping_interval_s=0))
    peer.request(1)
    peer.request(3)
    peer.now = 4.0
    peer.send(wire.data(3, b"\0"))
    peer.request(5)
    assert peer.core.next_deadline() == 8.0
    peer.core.handle_deadline(8.0)
    sent(peer.core)
    assert set(peer.core.streams) == {3, 5}
    assert peer.core.next_deadline() == 12.0
    peer.core.handle_deadline(12.0)
    sent(peer.core)
    assert set(peer.core.streams) == {3}
    assert math.isinf(peer.core.table.first_messages.deadline)


def test_settings_have_a_bound() -> None:
    """As many entries as are allowed are read, and one more ends the connection."""
    entry = struct.pack(">HI", 0x3, 100)
    assert filter_settings_untrusted(32 * entry, settings_max=32) == 32 * entry
    with pytest.raises(RemoteProtocolError, match="SETTINGS of 33 entries") as caught:
        filter_settings_untrusted(33 * entry, settings_max=32)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM
