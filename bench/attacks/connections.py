"""Connections and calls that are opened and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.attacks.attack import Attack, open_call
from tests.support import wire

if TYPE_CHECKING:
    from bench.attacks.peer import RawPeer


def nothing(peer: RawPeer) -> None:
    """Say no more than the hello."""


def silent_calls(peer: RawPeer) -> None:
    """Open calls, and send no message on any."""
    peer.send(b"".join(map(open_call, peer.streams(900))))
    peer.wait_answer()


def reconnect(peer: RawPeer) -> None:
    """Shake hands and leave, again and again."""
    peer.wait_answer()
    peer.close()
    peer.ended = True


ATTACKS = (
    Attack(
        name="slow handshake",
        run=nothing,
        hello=wire.PREFACE[:10],
        bound="handshake_timeout_s",
        connections=500,
    ),
    Attack(
        name="no SETTINGS acknowledgement",
        run=nothing,
        hello=wire.PREFACE + wire.settings(),
        bound="handshake_timeout_s",
        connections=500,
    ),
    Attack(
        name="idle connections",
        run=nothing,
        bound="ping_interval_s + ping_timeout_s if it is dead, idle_timeout_s if it lives; connections_max",
        connections=500,
    ),
    Attack(
        name="silent calls",
        run=silent_calls,
        bound="streams_max a connection; first_message_timeout_s",
        connections=2,
    ),
    Attack(name="reconnecting", run=reconnect, bound="a connection leaves nothing behind; connections_max"),
)
