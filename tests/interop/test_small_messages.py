"""Clients that answer each small message with frames of their own are not cut off, however many messages they take.

grpc-go sends a PING and a WINDOW_UPDATE for each DATA frame while no PING is out, grpcio two WINDOW_UPDATEs for each
unary reply, and behind a proxy one connection carries what many clients send.
Budgets and numbers of messages are a tenth (`scaled_budgets`), but for HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import scanner.sync
from bench.harness.errors import BenchFailed
from bench.harness.proxies import open_proxy
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.conftest import SCALE
from tests.interop.stock import scan_method

if TYPE_CHECKING:
    from tests.interop.blobs import Served

pytestmark = [
    pytest.mark.socket,
    pytest.mark.rocks,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("scaled_budgets"),
]

GO_PEER = Path(__file__).resolve().parents[2] / ".venv" / "go" / "peer"
TABLE, ROWS = "small", 4_000 // SCALE
CALLS = 12_000 // SCALE
"""As many as 200 a second are in a minute, scaled."""
HANG_S = 500.0
"""More than the slowest machine needs."""


@pytest.fixture(scope="module")
def digest(blobs: Served) -> int:
    """Of a table with many small rows, which is made; counted by a scan of weir's own client."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with scanner.sync.connect(blobs.endpoint) as client:
        # The tests of an endpoint run together, so this module is begun once for each.
        table = client.create_table(TABLE, schema, primary_key=["id"], buckets=1, exist_ok=True)
        table.write(pa.table({"id": range(ROWS)}, schema))
        with table.new_scan().execute() as batches:
            assert sum(batch.num_rows for batch in batches) == ROWS
        (bucket,) = batches.statistics().buckets
    assert bucket.digest is not None
    return bucket.digest


def go(*arguments: str) -> Any:
    """What grpc-go found."""
    if not GO_PEER.exists():
        raise BenchFailed(f"{GO_PEER} is not there: run `make peers`")
    done = subprocess.run([GO_PEER, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", [("scan", "1"), ("resume", str(ROWS // 2))], ids=lambda each: each[0])
def test_grpc_go_scans_row_by_row(endpoint: str, digest: int, how: tuple[str, str]) -> None:
    """Hundreds of batches of one row, each demanded apart: all of them, also when the connection is cut half-way."""
    found = go(how[0], endpoint, TABLE, how[1])

    assert (found["status"], found["message"]) == ("OK", "")
    assert (found["rows"], found["end_rows"], found["ordinals"]) == (ROWS, ROWS, True)
    assert (found["reason"], found["digest"]) == (pb.ScanEnd.REASON_EXHAUSTED, digest)


def test_grpc_go_watches_beside_many_calls(blobs: Served) -> None:
    """A Watch outlives a minute of health checks on its connection, as fast as four callers make them."""
    found = go("watch", blobs.endpoint, str(CALLS))

    assert (found["status"], found["message"], found["calls"]) == ("OK", "", CALLS)


def test_grpcio_makes_many_calls_on_one_channel(blobs: Served) -> None:
    """Two thousand health checks from four threads on one channel: none fails."""
    failures: list[grpc.RpcError] = []

    def check(stub: Any) -> None:
        for _ in range(5_000 // SCALE):
            try:
                stub.Check(health_pb2.HealthCheckRequest(), timeout=HANG_S)
            except grpc.RpcError as failure:
                failures.append(failure)
                return

    with grpc.insecure_channel(blobs.endpoint) as channel:
        before = blobs.server.ask(lambda server: server.statistics().transport.totals.connections)
        stub = health_pb2_grpc.HealthStub(channel)
        threads = [threading.Thread(target=check, args=(stub,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = blobs.server.ask(lambda server: server.statistics().transport.totals.connections)
    assert not failures
    assert after - before == 1


def test_strangers_behind_haproxy_share_a_connection(blobs: Served, digest: int, tmp_path: Path) -> None:
    """Clients that cancel after their first row end nothing of those that share HAProxy's connection with them."""
    open_request = pb.ScanRequest(
        open=pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=pb.ScanQuery(table=TABLE), batch_rows_max=1)
    )

    def demand(limit: int) -> pb.ScanRequest:
        return pb.ScanRequest(demand=pb.Demand(bytes_limit=limit))

    with open_proxy("haproxy", blobs.endpoint, tmp_path) as endpoint:
        with grpc.insecure_channel(endpoint) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            for _ in range(20):
                with grpc.insecure_channel(
                    endpoint, options=[("grpc.use_local_subchannel_pool", 1)]
                ) as other:
                    for _ in range(60 // SCALE):
                        call = scan_method(other)(iter([open_request, demand(1)]))
                        assert next(call).WhichOneof("response") == "started"
                        assert next(call).WhichOneof("response") == "batch"
                        call.cancel()
            assert watch.is_active()
            watch.cancel()
    blobs.wait_released()
