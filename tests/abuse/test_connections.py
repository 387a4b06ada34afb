"""Connections and calls that are opened and left alone, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.attacks.attack import open_call
from bench.attacks.peer import RawPeer
from tests.support import wire
from tests.support.abuse import attacked, holds_nothing, serves, victim
from transport import ErrorCode, StatusCode, TransportConfig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket

HELLOS = {"nothing": b"", "half a preface": wire.PREFACE[:10], "no settings": wire.PREFACE}
HELLOS["no acknowledgement"] = wire.PREFACE + wire.settings()


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS)
def test_handshake_has_a_time_limit(tmp_path: Path, hello: bytes) -> None:
    """A peer that does not get on with its handshake is cut off."""
    with victim(tmp_path / "data", TransportConfig(handshake_timeout_s=2)) as server:
        with RawPeer(server.endpoint, hello=hello) as peer:
            assert peer.wait_ended()
        serves(server)
        holds_nothing(server)


def test_dead_peer_is_given_up(tmp_path: Path) -> None:
    """A peer that does not answer a PING is cut off, and what it had open ends."""
    config = TransportConfig(ping_interval_s=0.1, ping_timeout_s=0.1)
    with victim(tmp_path / "data", config) as server:
        with RawPeer(server.endpoint) as peer:
            peer.send(open_call(1))
            assert peer.wait_ended()
            assert peer.counts[wire.PING] >= 1
        holds_nothing(server)


def test_idle_connection_is_closed(tmp_path: Path) -> None:
    """A connection without calls is told goodbye after its time."""
    with victim(tmp_path / "data", TransportConfig(idle_timeout_s=0.1, handshake_timeout_s=2)) as server:
        with RawPeer(server.endpoint) as peer:
            assert peer.wait_ended()
            assert peer.code == ErrorCode.NO_ERROR
        holds_nothing(server)


def test_silent_call_is_ended(tmp_path: Path) -> None:
    """A call without a message is answered by DEADLINE_EXCEEDED; one that has begun a message has all its time."""
    with victim(tmp_path / "data", TransportConfig(first_message_timeout_s=0.2)) as server:
        with RawPeer(server.endpoint) as peer:
            peer.send(open_call(1) + open_call(3) + wire.data(3, b"\0") + open_call(5))
            assert peer.wait(lambda peer: len(peer.status) == 2)
            assert peer.status == dict.fromkeys((1, 5), StatusCode.DEADLINE_EXCEEDED)
            assert not peer.ended
            assert server.ask(lambda server: server.statistics().transport.streams) == 1
        holds_nothing(server)


def test_silent_calls_are_borne(server: RunningServer) -> None:
    """Until then they take their places, and disturb nobody."""
    with attacked(server, "silent calls") as peer:
        assert not peer.ended
        assert server.ask(lambda server: server.statistics().transport.streams) == 900


def test_connections_are_counted(tmp_path: Path) -> None:
    """The connection above the limit is told so and closed; when another one has gone there is room again."""
    with victim(tmp_path / "data", TransportConfig(connections_max=2)) as server:
        holds_nothing(server)
        with RawPeer(server.endpoint) as first, RawPeer(server.endpoint, hello=b"") as second:
            first.wait_answer()
            server.wait_until(lambda server: server.statistics().transport.connections == 2)
            with RawPeer(server.endpoint, hello=b"") as third:
                assert third.wait_ended()
                assert third.code == ErrorCode.ENHANCE_YOUR_CALM
            first.wait_answer()
            refusals = server.ask(lambda server: server.statistics().transport.totals.refusals)
            assert refusals == {"connections": 1}
            second.close()
            server.wait_until(lambda server: server.statistics().transport.connections == 1)
            serves(server)
        holds_nothing(server)
