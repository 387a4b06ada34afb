"""Messages that are refused from their prefix, that come in crumbs, and that never come, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.abuse import attacked
from transport import StatusCode, TransportConfig

if TYPE_CHECKING:
    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("length prefix of 4 GiB", StatusCode.RESOURCE_EXHAUSTED),
        ("compressed flag without encoding", StatusCode.UNIMPLEMENTED),
    ],
)
def test_messages_are_refused_from_their_prefix(server: RunningServer, name: str, status: StatusCode) -> None:
    """Each call is answered by its status, a thousand of them; the connection lives."""
    with attacked(server, name) as peer:
        assert peer.wait(lambda peer: len(peer.status) == 1_000)
        assert set(peer.status.values()) == {status}
        assert not peer.ended


def test_message_in_crumbs_is_taken(server: RunningServer) -> None:
    """DATA frames of one octet are slow for their sender, and no more than that."""
    with attacked(server, "message in DATA of 1 octet") as peer:
        peer.wait_answer()
        assert not peer.ended
        assert server.ask(lambda server: server.statistics().transport.buffered_bytes) <= 5 + (1 << 18)


def test_unfinished_messages_have_a_bound(server: RunningServer) -> None:
    """Memory for messages that may never be complete is given to a connection up to a limit, then refused."""
    config = TransportConfig()
    with attacked(server, "messages that are never finished") as peer:
        assert set(peer.status.values()) == {StatusCode.UNAVAILABLE}
        assert len(peer.status) == 6 - config.receive_memory_bytes_max // (config.message_bytes_max + 56)
        assert not peer.ended
