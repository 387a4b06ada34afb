"""What a connection costs: its receive buffer follows its use."""

from __future__ import annotations

from tests.support import wire
from tests.support.pair import Peer
from transport.config import TransportConfig

SMALLEST = 4 * 1024


def room(peer: Peer) -> int:
    """Octets that the core would take from the socket now."""
    return sum(map(len, peer.core.buffers()))


def upload(peer: Peer, size: int) -> None:
    """DATA frames of a message that nobody takes, as one read after another fills all the room."""
    octets = wire.message(bytes(size - 5))
    peer.send(b"".join(wire.data(1, octets[at : at + 16_000]) for at in range(0, size, 16_000)))


def test_idle_connection_has_a_small_buffer() -> None:
    """A connection begins with 4 KiB, and control frames alone do not make it take more."""
    peer = Peer()
    assert room(peer) == SMALLEST
    for _ in range(50):
        peer.send(wire.ping())
        peer.now += 1
    assert room(peer) == SMALLEST


def test_buffer_grows_to_its_limit_and_no_further() -> None:
    """Reads that fill the buffer make it grow, up to `receive_buffer_bytes`."""
    config = TransportConfig(receive_buffer_bytes=100_000)
    peer = Peer(config=config)
    peer.request()
    upload(peer, 30_000)
    assert SMALLEST < room(peer) <= 100_000
    upload(peer, 1_000_000)
    assert peer.core._reader._buffer_bytes_max == 100_000
    assert len(peer.core._reader._buffer) == 100_000
    assert not peer.failed


def test_buffer_shrinks_after_many_small_reads() -> None:
    """A connection that was busy once gives its memory back when it is so no more."""
    peer = Peer()
    peer.request()
    upload(peer, 1_000_000)
    assert len(peer.core._reader._buffer) == TransportConfig().receive_buffer_bytes
    for at in range(200):
        peer.send(wire.ping(at.to_bytes(8, "big")))
        peer.now += 1
    assert room(peer) == SMALLEST
    upload(peer, 100_000)
    assert not peer.failed


def test_control_frame_longer_than_the_buffer_arrives() -> None:
    """A header block that is longer than the smallest buffer is taken whole, octet by octet or at once."""
    fields = [*wire.REQUEST, ("long", "x" * 10_000)]
    for step in (1, 100, 1 << 20):
        peer = Peer()
        octets = wire.headers(1, fields)
        for at in range(0, len(octets), step):
            peer.send(octets[at : at + step])
        assert 1 in peer.core.streams
        assert not peer.failed
