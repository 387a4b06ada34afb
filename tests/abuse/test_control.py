"""Floods and hoards of control frames over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.attacks import control
from tests.support import wire
from tests.support.abuse import attacked, ends
from transport import ErrorCode

if TYPE_CHECKING:
    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket

BORNE = ("HEADER_TABLE_SIZE of 4 GiB",)
OTHERWISE = ("oversized frame", "PING flood, replies unread")


@pytest.mark.parametrize("name", ends(control.ATTACKS, *BORNE, *OTHERWISE))
def test_floods_end_the_connection(server: RunningServer, name: str) -> None:
    """More frames than the budget of their kind has end the connection with ENHANCE_YOUR_CALM."""
    with attacked(server, name) as peer:
        assert peer.code == ErrorCode.ENHANCE_YOUR_CALM
        assert peer.counts[wire.PING] <= 200  # a PING above the budget is not answered


def test_oversized_frame_ends_the_connection_from_its_header(server: RunningServer) -> None:
    """Nothing of a 16 MiB frame is waited for."""
    with attacked(server, "oversized frame") as peer:
        assert peer.code == ErrorCode.FRAME_SIZE_ERROR
        assert peer.sent_bytes < 100


def test_replies_that_nobody_reads_are_bounded(server: RunningServer) -> None:
    """A peer that asks and does not read is cut off, and what it goes on sending is not listened to for long."""
    with attacked(server, "PING flood, replies unread") as peer:
        assert peer.ended
        assert peer.sent_bytes < 64 << 20  # what the kernel's buffers take, not what a peer would like


def test_header_table_of_the_encoder_stays_small(server: RunningServer) -> None:
    """A peer that offers 4 GiB for the encoder's table is served as any other."""
    with attacked(server, "HEADER_TABLE_SIZE of 4 GiB") as peer:
        assert peer.wait(lambda peer: len(peer.status) == 500)
