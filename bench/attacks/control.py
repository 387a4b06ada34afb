"""Frames that cost the peer nothing and the server work, memory or an answer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.attacks.attack import Attack, open_call
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

_BATCH = 100


def _flood(frame: bytes, *, on_a_stream: bool = False) -> Callable[[RawPeer], None]:
    def run(peer: RawPeer) -> None:
        if on_a_stream:
            peer.send(open_call(1))
        while True:
            peer.send(frame * _BATCH)

    return run


def oversized_frame(peer: RawPeer) -> None:
    """The nine octets before a frame of 16 MiB, and nothing of it."""
    peer.send(struct.pack(">HBBBL", 0xFFFF, 0xFF, wire.HEADERS, 0, 1))
    peer.wait_ended()


def settings_hoard(peer: RawPeer) -> None:
    """Settings that nobody knows, a different one each time: as many as one frame may have, in many frames."""
    for frame in range(90):
        peer.send(wire.settings(*((0x1000 + 60 * frame + number, 1) for number in range(60))))
    peer.wait_answer()
    peer.send(wire.settings(*((number, 1) for number in range(0x1000, 0x1800))))
    peer.wait_ended()


def huge_header_table(peer: RawPeer) -> None:
    """SETTINGS_HEADER_TABLE_SIZE of 4 GiB, and calls whose answers could fill it."""
    peer.send(wire.settings((wire.HEADER_TABLE_SIZE, 2**32 - 1)))
    for _ in range(10):
        peer.send(b"".join(open_call(sid, end=True) for sid in peer.streams(50)))
        peer.wait_answer()


def toggled_windows(peer: RawPeer) -> None:
    """SETTINGS_INITIAL_WINDOW_SIZE up and down, which touches every one of many open streams."""
    peer.send(b"".join(map(open_call, peer.streams(900))))
    while True:
        peer.send((wire.settings((4, 0)) + wire.settings((4, 1 << 20))) * 10)


ATTACKS = (
    Attack(name="oversized frame", run=oversized_frame, bound="FRAME_SIZE_ERROR from its 9-octet header"),
    Attack(
        name="settings hoard",
        run=settings_hoard,
        bound="unknown settings are dropped; 64 entries a frame; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="SETTINGS flood",
        run=_flood(wire.settings((4, 70_000))),
        bound="100 at once, 5 a second; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="PING flood",
        run=_flood(wire.ping()),
        bound="200 at once, 10 a second, 1 for each frame sent; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="WINDOW_UPDATE flood",
        run=_flood(wire.window_update(0, 1)),
        bound="10 000 at once, 500 a second, 3 for each frame and 2 for each octet sent; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="PING flood, replies unread",
        run=_flood(wire.ping()),
        reads=False,
        bound="the same; replies that wait are bounded by control_backlog_bytes_max",
    ),
    Attack(
        name="empty DATA",
        run=_flood(wire.data(1), on_a_stream=True),
        bound="200 at once, 50 a second; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="DATA of padding alone",
        run=_flood(wire.data(1, padding=255), on_a_stream=True),
        bound="the same budget",
    ),
    Attack(
        name="PRIORITY flood",
        run=_flood(wire.frame(wire.PRIORITY, 9, bytes(5))),
        bound="1 000 at once, 100 a second, 1 for each frame and each KiB sent; then ENHANCE_YOUR_CALM",
    ),
    Attack(name="unknown frames", run=_flood(wire.frame(0x42, 0, b"x")), bound="the same budget as PRIORITY"),
    Attack(
        name="HEADER_TABLE_SIZE of 4 GiB",
        run=huge_header_table,
        bound="the encoder's table stays at 4 096 octets",
    ),
    Attack(
        name="INITIAL_WINDOW_SIZE toggled",
        run=toggled_windows,
        bound="the budget of SETTINGS; each is linear in the streams open",
    ),
)
