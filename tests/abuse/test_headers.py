"""Header blocks that do not end, that unpack to much, and that consist of nothing, over a socket."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from bench.attacks import headers
from bench.attacks.peer import Ended, RawPeer
from tests.support.abuse import attacked, holds_nothing, serves, victim
from transport import ErrorCode, TransportConfig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket

CODES = {
    "CONTINUATION flood": {ErrorCode.ENHANCE_YOUR_CALM},
    "CONTINUATION flood, empty frames": {ErrorCode.PROTOCOL_ERROR, ErrorCode.ENHANCE_YOUR_CALM},
    "HPACK bomb": {ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR},
    "headers of length 0": {ErrorCode.ENHANCE_YOUR_CALM},
}


@pytest.mark.parametrize(("name", "codes"), CODES.items(), ids=CODES)
def test_header_blocks_have_bounds(server: RunningServer, name: str, codes: set[ErrorCode]) -> None:
    """A block of too many octets, frames or fields ends the connection before it took much."""
    with attacked(server, name) as peer:
        assert peer.code in codes
        assert peer.goaway is not None
        assert peer.goaway.number == 0  # no stream was opened for it


def test_empty_header_blocks_spend_the_budget_of_resets(server: RunningServer) -> None:
    """A block without a field is a malformed request: each is reset, until the budget is spent."""
    with attacked(server, "HEADERS of length 0") as peer:
        assert peer.code == ErrorCode.ENHANCE_YOUR_CALM
        assert {code for _, code in peer.resets} == {ErrorCode.PROTOCOL_ERROR}


def test_header_block_has_a_time_limit(tmp_path: Path) -> None:
    """A block that is begun and not ended ends the connection, although its peer answers every PING."""
    config = TransportConfig(handshake_timeout_s=2)
    with victim(tmp_path / "data", config) as server:
        with RawPeer(server.endpoint) as peer:
            headers.slow_header_block(peer)
            assert peer.wait_ended()
            assert peer.goaway is not None
            assert b"header block" in peer.goaway.payload
            serves(server)
        holds_nothing(server)


def test_long_header_lists_are_gone_with_their_connection(tmp_path: Path) -> None:
    """As many calls as are allowed may have lists as long as is allowed, and all of it ends with them."""
    with victim(tmp_path / "data", TransportConfig(streams_max=100)) as server:
        with RawPeer(server.endpoint) as peer:
            # Refused calls cost more than is earned meanwhile, unless the machine is slow.
            with suppress(Ended):
                headers.header_hoard(peer)
            refused = {stream for stream, code in peer.resets if code == ErrorCode.REFUSED_STREAM}
            assert peer.code == ErrorCode.ENHANCE_YOUR_CALM or len(refused) == 990 - 100
            serves(server)
        holds_nothing(server)
