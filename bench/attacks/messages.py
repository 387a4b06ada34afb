"""gRPC messages that are announced and never come, that are not what they say, or that come in crumbs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.attacks.attack import WRITE, Attack, call, open_call
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

MIB = 1 << 20
_WRITE_HEADERS = wire.encode(call(WRITE))
_EVIDENCE = 4 * MIB + 1
"""Of a message of 64 MiB, what a server wants to see before it takes memory for all of it."""


def _prefix_flood(prefix: bytes) -> Callable[[RawPeer], None]:
    def run(peer: RawPeer) -> None:
        for _ in range(20):
            for sid in (streams := peer.streams(50)):
                peer.send(open_call(sid, _WRITE_HEADERS) + wire.data(sid, prefix + bytes(100), end=True))
            peer.wait(lambda peer, last=streams[-1]: last in peer.status)  # type: ignore[misc]

    return run


def one_octet_frames(peer: RawPeer) -> None:
    """A quarter of a megabyte in DATA frames of one octet each."""
    (sid,) = peer.streams()
    peer.send(open_call(sid, _WRITE_HEADERS) + wire.data(sid, struct.pack(">BL", 0, MIB)))
    for _ in range(256):
        peer.send(wire.data(sid, b"x") * 1_024)
    peer.wait_answer()


def unfinished_messages(peer: RawPeer) -> None:
    """Messages of 64 MiB, of each of which just so much is sent that memory is taken for the whole."""
    start, rest = struct.pack(">BL", 0, 64 * MIB), _EVIDENCE
    piece = bytes(16_000)
    for sid in peer.streams(6):
        peer.send(open_call(sid, _WRITE_HEADERS) + wire.data(sid, start))
        for _ in range(rest // len(piece) + 1):
            if sid in peer.status:
                break
            peer.send(wire.data(sid, piece))
    peer.wait_answer()


ATTACKS = (
    Attack(
        name="length prefix of 4 GiB",
        run=_prefix_flood(struct.pack(">BL", 0, 2**32 - 1)),
        bound="RESOURCE_EXHAUSTED from its prefix",
    ),
    Attack(
        name="compressed flag without encoding",
        run=_prefix_flood(struct.pack(">BL", 1, 50)),
        bound="UNIMPLEMENTED from its prefix",
    ),
    Attack(
        name="message in DATA of 1 octet",
        run=one_octet_frames,
        bound="linear: the same memory as in one frame",
    ),
    Attack(
        name="messages that are never finished",
        run=unfinished_messages,
        bound="receive_memory_bytes_max a connection; then UNAVAILABLE",
        connections=1,
    ),
)
