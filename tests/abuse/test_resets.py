"""Rapid Reset and MadeYouReset over a socket, and streams above the limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench.attacks import resets
from bench.attacks.attack import open_call
from bench.attacks.peer import RawPeer
from tests.support.abuse import attacked, ends, holds_nothing, serves, victim
from transport import ErrorCode, TransportConfig
from transport.protocol.abuse import ALLOWANCES, Cost

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket


@pytest.mark.parametrize("name", ends(resets.ATTACKS))
def test_streams_made_to_be_reset_end_the_connection(server: RunningServer, name: str) -> None:
    """Whoever makes streams be reset, or opens too many, is told to calm down and cut off; no scan is left."""
    started = time.monotonic()
    with attacked(server, name) as peer:
        seconds = time.monotonic() - started
        assert peer.goaway is not None
        if name.endswith("after the end") and peer.code == ErrorCode.STREAM_CLOSED:
            return  # the call was answered before its second end came, and there was no stream to be reset
        assert peer.code == ErrorCode.ENHANCE_YOUR_CALM
        opened = ALLOWANCES[Cost.RESET].burst
        if name == "more streams than allowed":
            opened += TransportConfig().streams_max
        earned = seconds * ALLOWANCES[Cost.RESET].per_second
        assert opened - 50 <= peer.goaway.number // 2 <= opened + 50 + earned


def test_streams_above_the_limit_are_refused_one_by_one(tmp_path: Path) -> None:
    """REFUSED_STREAM for each stream above the limit; those below it live on."""
    with victim(tmp_path / "data", TransportConfig(streams_max=10)) as server:
        with RawPeer(server.endpoint) as peer:
            streams = peer.streams(15)
            peer.send(b"".join(map(open_call, streams)))
            peer.wait_answer()
            assert peer.resets == [(stream_id, ErrorCode.REFUSED_STREAM) for stream_id in streams[10:]]
            assert server.ask(lambda server: server.statistics().transport.streams) == 10
            serves(server)
        holds_nothing(server)
