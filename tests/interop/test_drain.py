"""`weir serve` gets SIGTERM in the middle of downloads by weir's client, grpcio, Node, nghttp and curl.

Whoever reads on gets all of it within the drain timeout, and the server ends with 0. Whoever stands still is told: the
typed DRAINING where a status can be read; never an end of data.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.rpc import status_pb2  # type: ignore[import-untyped]

import scanner.sync
from bench.harness.proxies import tool
from scanner.proto.weir.v1 import admin_pb2, errors_pb2
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.blobs import SCHEMA, TABLE
from tests.interop.stock import SCAN_PATH, open_request, scan_method
from tests.interop.test_tools import GRPC_FIELDS, responses
from tests.support import processes
from tests.support.processes import TIMEOUT_S
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

ROWS = 10_000
BLOB_BYTES = 5_000
"""50 MB in all: more than windows, sockets and pipes take up, so that the server cannot be done before it is asked."""
CREDIT = 200_000
LONG_S, SHORT_S = 500.0, 0.5
REPOSITORY = Path(__file__).resolve().parents[2]


class Serving:
    """A `weir serve` of its own, which can be told to end."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    def begin_drain(self) -> None:
        """Send SIGTERM, and wait until the server says that it has begun."""
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr.readline().startswith("weir: ending")

    def ended(self) -> int:
        """Its exit status."""
        return self.process.wait(TIMEOUT_S)

    def wait_streaming(self, channel: grpc.Channel, client: subprocess.Popen[bytes]) -> None:
        """Return when the client's scan has been sent something; fail if the client has ended before that."""
        ask: Any = channel.unary_unary("/weir.v1.Admin/ListStreams")
        while client.poll() is None:
            listed = admin_pb2.ListStreamsResponse.FromString(ask(b"", timeout=TIMEOUT_S))
            if any(stream.path == SCAN_PATH and stream.bytes_sent > CREDIT for stream in listed.streams):
                return
        raise AssertionError(f"the client ended with {client.returncode} before its scan began")


@contextlib.contextmanager
def serving(data: Path, drain_timeout_s: float) -> Iterator[Serving]:
    """Run a server for a block."""
    with processes.serving(data, "--drain-timeout", drain_timeout_s) as (process, endpoint):
        yield Serving(process, endpoint)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one table."""
    path = tmp_path_factory.mktemp("drain") / "data"
    with running_server(path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table(TABLE, SCHEMA, primary_key=["id"], buckets=1)
        table.write(pa.table({"id": range(ROWS), "blob": [bytes(BLOB_BYTES)] * ROWS}, SCHEMA))
    return path


def reason(details: bytes) -> str:
    """The reason in grpc-status-details-bin."""
    detail = errors_pb2.ErrorDetail()
    status = status_pb2.Status.FromString(details)
    assert any(each.Unpack(detail) for each in status.details)
    return detail.reason


@pytest.mark.parametrize("mode", ["push", "session"])
def test_weir_reads_on(data: Path, mode: str) -> None:
    """A push scan goes on to its end during a drain; of a session, the next page is refused, typed and retriable."""
    with serving(data, LONG_S) as server, scanner.sync.connect(server.endpoint, retries=0) as client:
        plan = client.table(TABLE).new_scan().with_mode(mode).with_credit(CREDIT).with_page_bytes(CREDIT)
        with plan.execute() as batches:
            rows = next(iter(batches)).num_rows
            server.begin_drain()
            if mode == "push":
                rows += sum(batch.num_rows for batch in batches)
                assert rows == ROWS
                assert batches.statistics().buckets[0].reason == "EXHAUSTED"
            else:
                with pytest.raises(scanner.ServerUnavailable, match=r"refused|lost") as caught:
                    rows += sum(batch.num_rows for batch in batches)
                assert caught.value.retriable
        with pytest.raises(scanner.ServerUnavailable) as refused:
            client.table(TABLE)
        assert refused.value.retriable
        assert server.ended() == 0


def test_weir_that_stands_still_is_told(data: Path) -> None:
    """A scan that is not read is ended with DRAINING at the drain timeout, after what had arrived."""
    with serving(data, SHORT_S) as server, scanner.sync.connect(server.endpoint, retries=0) as client:
        with client.table(TABLE).new_scan().with_credit(CREDIT).execute() as batches:
            unread = iter(batches)
            rows = next(unread).num_rows
            server.begin_drain()
            assert server.ended() == 0
            with pytest.raises(scanner.Draining) as caught:
                rows += sum(batch.num_rows for batch in unread)
            assert caught.value.retriable
            assert 0 < rows < ROWS


@pytest.mark.parametrize("reads_on", [True, False])
def test_grpcio(data: Path, reads_on: bool) -> None:
    """A grpcio client that sends on its demands gets every row; one that does not gets UNAVAILABLE and DRAINING."""
    demands: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def requests() -> Iterator[pb.ScanRequest]:
        yield open_request()
        while (limit := demands.get()) is not None:
            yield pb.ScanRequest(demand=pb.Demand(bytes_limit=limit))

    with serving(data, LONG_S if reads_on else SHORT_S) as server:
        with grpc.insecure_channel(server.endpoint) as channel:
            demands.put(CREDIT)
            call: Any = scan_method(channel)(requests(), timeout=TIMEOUT_S)
            responses_ = iter(call)
            assert next(responses_).WhichOneof("response") == "started"
            rows = next(responses_).batch.row_count
            server.begin_drain()
            if reads_on:
                demands.put(1 << 40)
                *batches, end = responses_
                assert rows + sum(each.batch.row_count for each in batches) == ROWS
                assert end.end.rows == ROWS
                assert call.code() is grpc.StatusCode.OK
            else:
                with pytest.raises(grpc.RpcError):
                    rows += sum(each.batch.row_count for each in responses_)
                assert rows < ROWS
                assert call.code() is grpc.StatusCode.UNAVAILABLE
                details = dict(call.trailing_metadata())["grpc-status-details-bin"]
                assert reason(details) == "DRAINING"
            demands.put(None)
        assert server.ended() == 0


def test_node_reads_on(data: Path) -> None:
    """grpc-js, page after page of credit, gets every row while the server drains."""
    with serving(data, LONG_S) as server:
        script, protos = Path(__file__).with_name("node") / "scan.js", REPOSITORY / "scanner" / "proto"
        command = [tool("node"), str(script), str(protos), server.endpoint, TABLE, str(CREDIT)]
        modules = {"NODE_PATH": str(REPOSITORY / ".venv" / "node" / "node_modules")}
        with (
            grpc.insecure_channel(server.endpoint) as channel,
            subprocess.Popen(command, stdout=subprocess.PIPE, env=modules) as node,
        ):
            server.wait_streaming(channel, node)
            server.begin_drain()
            printed, _ = node.communicate(timeout=TIMEOUT_S)
        found = json.loads(printed)
        assert (found["status"], found["rows"], found["ordinals"]) == ("OK", ROWS, True)
        assert server.ended() == 0


def test_nghttp_reads_on(data: Path, request_file: Path) -> None:
    """Nghttp, an HTTP/2 client that knows nothing of gRPC, writes out the whole body while the server drains."""
    with serving(data, LONG_S) as server:
        command = [
            tool("nghttp"),
            "-d",
            str(request_file),
            *GRPC_FIELDS,
            f"http://{server.endpoint}{SCAN_PATH}",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as nghttp:
            assert nghttp.stdout is not None
            body = nghttp.stdout.read(100_000)
            server.begin_drain()
            body += nghttp.stdout.read()
            assert nghttp.wait(TIMEOUT_S) == 0
        *batches, end = responses(body)[1:]
        assert sum(each.batch.row_count for each in batches) == end.end.rows == ROWS
        assert server.ended() == 0


@pytest.mark.parametrize("reads_on", [True, False])
def test_curl_is_never_told_of_an_end_that_is_none(
    data: Path, reads_on: bool, request_file: Path, tmp_path: Path
) -> None:
    """What curl has written is whole, or has neither the scan's end nor a status of OK.

    The curl of Debian 12 (7.88) drops what it has not written yet when the last call of a connection ends after a
    GOAWAY, up to 32 KiB and the trailers, and exits with 0. That the end of a scan is a message, and the status a
    trailer, is how one sees it.
    """
    fields = tmp_path / "fields"
    with serving(data, LONG_S if reads_on else SHORT_S) as server:
        command = [tool("curl"), "-sS", "-N", "--http2-prior-knowledge", "-D", str(fields), *GRPC_FIELDS]
        command += ["--data-binary", f"@{request_file}", f"http://{server.endpoint}{SCAN_PATH}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
            assert curl.stdout is not None
            body = curl.stdout.read(100_000)
            server.begin_drain()
            if not reads_on:
                assert server.ended() == 0
            body += curl.stdout.read()
            curl.wait(TIMEOUT_S)
        if reads_on:
            assert len(body) > ROWS * BLOB_BYTES - 100_000
            assert server.ended() == 0
        else:
            assert len(body) < ROWS * BLOB_BYTES
        whole = is_whole(body)
        assert ("grpc-status: 0" in fields.read_text()) <= whole
        assert whole <= reads_on


def is_whole(body: bytes) -> bool:
    """Whether an answer's body ends with the end of the scan, as it then must after all rows."""
    rows = 0
    while len(body) >= 5:
        size = int.from_bytes(body[1:5], "big")
        if len(body) < 5 + size:
            return False
        response = pb.ScanResponse.FromString(body[5 : 5 + size])
        if response.HasField("end"):
            assert rows == response.end.rows == ROWS
            return True
        rows += response.batch.row_count
        body = body[5 + size :]
    return False
