"""Scans that are not fed, that find nothing, and whose credit makes no sense, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import scanner.sync
from bench.attacks.attack import WIDE
from bench.attacks.peer import RawPeer
from bench.attacks.scans import CREDIT_MAX, TABLE, demand, no_match, open_scan
from scanner import TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from tests.support import wire
from tests.support.abuse import attacked, holds_nothing, serves, victim
from transport import StatusCode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import RunningServer

pytestmark = pytest.mark.socket


def responses(body: bytearray) -> list[pb.ScanResponse]:
    """The complete messages of a stream."""
    found, at = [], 0
    while at + 5 <= len(body) and (end := at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")) <= len(body):
        found.append(pb.ScanResponse.FromString(bytes(body[at + 5 : end])))
        at = end
    return found


def test_scans_without_credit_get_nothing(server: RunningServer) -> None:
    """Hundreds of scans that are granted nothing send nothing but their start, and do not disturb others."""
    with attacked(server, "zero-credit scans") as peer:
        server.wait_until(lambda server: server.statistics().push_scans_open == 400)
        assert max(peer.data_sizes, default=0) < 1_000


def test_scans_are_counted(tmp_path: Path) -> None:
    """The scan above the limit is refused with TOO_MANY_SCANS, and there is room again when others have gone."""
    with victim(tmp_path / "data", config=ScannerConfig(scans_max=5)) as server:
        with RawPeer(server.endpoint, hello=WIDE) as peer:
            peer.send(b"".join(open_scan(sid, 0) for sid in peer.streams(7)))
            assert peer.wait(lambda peer: len(peer.status) == 2)
            assert set(peer.status.values()) == {StatusCode.RESOURCE_EXHAUSTED}
            with scanner.sync.connect(server.endpoint, retries=0) as client, pytest.raises(TooManyScans):
                client.table(TABLE).new_scan().to_arrow()
        holds_nothing(server)
        serves(server)


def test_filter_that_matches_nothing_tells_how_far_it_is(tmp_path: Path) -> None:
    """A scan that finds nothing says so by heartbeats, ends as any other, and lets others run meanwhile."""
    config = ScannerConfig(heartbeat_interval_s=0.001, block_rows_max=500)
    with victim(tmp_path / "data", config=config) as server:
        with RawPeer(server.endpoint, hello=WIDE) as peer:
            peer.body = {}
            no_match(peer)
            assert set(peer.status.values()) == {StatusCode.OK}
            for body in peer.body.values():
                kinds = [response.WhichOneof("response") for response in responses(body)]
                assert kinds[0] == "started"
                assert set(kinds[1:-1]) == {"heartbeat"}
                assert kinds[-1] == "end"
        serves(server)
        holds_nothing(server)


def test_late_resets_are_free_and_leave_nothing(server: RunningServer) -> None:
    """More than the budget of resets has; a call that reads the changelog goes with its own, so none is refused."""
    with attacked(server, "late resets") as peer:
        assert not peer.ended
        assert peer.resets == []
        assert peer.status == {}
        assert server.ask(lambda server: server.statistics().transport.streams) == 0
        server.wait_until(lambda server: server.statistics().fetches_open == 0)


def test_credit_overflow_is_refused(server: RunningServer) -> None:
    """A demand that cannot be counted ends its scan with INVALID_ARGUMENT."""
    with attacked(server, "credit overflow") as peer:
        assert peer.wait(lambda peer: len(peer.status) == 1_000)
        assert set(peer.status.values()) == {StatusCode.INVALID_ARGUMENT}


def test_credit_never_goes_backwards(server: RunningServer) -> None:
    """Demands below the highest one change nothing: a scan sends what that one allows, and not more."""
    with RawPeer(server.endpoint, hello=WIDE) as peer:
        peer.body = {}
        (sid,) = peer.streams()
        peer.send(open_scan(sid, 3_000))
        peer.send(b"".join(wire.data(sid, demand(limit)) for limit in range(2_999, 0, -50)))
        peer.wait_answer()
        assert peer.wait(lambda peer: len(responses((peer.body or {}).get(sid, bytearray()))) >= 2)
        batches = [each for each in responses(peer.body[sid]) if each.WhichOneof("response") == "batch"]
        assert sum(each.ByteSize() for each in batches) < 3_000 + 1_000
        peer.send(wire.data(sid, demand(CREDIT_MAX)))
        assert peer.wait(lambda peer: peer.status.get(sid) == StatusCode.OK)
    with attacked(server, "credit backwards") as peer:
        assert not peer.ended
