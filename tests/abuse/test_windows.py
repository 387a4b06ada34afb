"""Answers that the peer does not take, over a socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench.attacks.attack import WIDE
from bench.attacks.peer import RawPeer
from bench.attacks.scans import open_scan
from tests.support.abuse import attacked, holds_nothing, serves, victim
from transport import TransportConfig
from transport.protocol.small_frames import FRAME_BYTES_MIN, HOLD_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket


@pytest.mark.parametrize("name", ["data dribble, stream window", "data dribble, connection window"])
def test_dribbled_windows_are_not_answered_in_crumbs(server: RunningServer, name: str) -> None:
    """A window that is opened octet by octet is used when it is worth a frame; its peer gets what it asked for."""
    started = time.monotonic()
    with attacked(server, name) as peer:
        seconds = time.monotonic() - started
        assert peer.goaway is None
        crumbs = sum(count for size, count in peer.data_sizes.items() if size < FRAME_BYTES_MIN)
        assert crumbs <= seconds / HOLD_S + 3  # one for each hold, and the ends of messages
        assert sum(size * count for size, count in peer.data_sizes.items()) >= 65_535 + 90_000


def test_windows_of_one_octet_are_served(server: RunningServer) -> None:
    """A peer that lets one octet come at a time gets one at a time, and is not cut off."""
    with attacked(server, "windows of one octet") as peer:
        assert peer.goaway is None
        assert peer.data_sizes[1] >= 2_000


def test_shut_windows_hold_little(server: RunningServer) -> None:
    """Scans whose peer lets nothing come queue their first word, read nothing more, and disturb nobody."""
    with attacked(server, "zero window"):
        server.wait_until(lambda server: server.statistics().push_scans_open == 50)
        serves(server)  # which takes longer than a scan needs to queue what it may
        unsent_bytes = server.ask(lambda server: server.statistics().transport.unsent_bytes)
        assert 0 < unsent_bytes < 50 * 1_000  # the start of each, and no batch


def test_socket_that_is_not_read_ends_the_connection(tmp_path: Path) -> None:
    """Open windows over a socket that takes nothing: the connection is given up after the send timeout."""
    config = TransportConfig(send_timeout_s=2)
    with victim(tmp_path / "data", config) as server:
        with RawPeer(server.endpoint, hello=WIDE, reads=False, receive_buffer_bytes=4_096) as peer:
            peer.send(b"".join(map(open_scan, peer.streams(20))))
            server.wait_until(lambda server: server.statistics().push_scans_open > 0)
            server.wait_until(lambda server: not server.statistics().transport.connections)
        serves(server)
        holds_nothing(server)


def test_frames_stay_at_a_fair_size(server: RunningServer) -> None:
    """A peer that would take frames of 16 MiB gets them no longer than the server likes."""
    with attacked(server, "MAX_FRAME_SIZE of 16 MiB") as peer:
        peer.wait(lambda peer: sum(peer.data_sizes.values()) > 2)
        assert 16_384 < max(peer.data_sizes) <= TransportConfig().outbound_frame_bytes_max
