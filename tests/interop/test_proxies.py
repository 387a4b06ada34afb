"""Scans by other people's clients, straight and through other people's proxies: the same rows, exact credit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

import scanner.sync
from bench.harness.proxies import open_proxy, tool
from scanner.errors import ServerUnavailable, TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.blobs import ROWS, TABLE, Served
from tests.interop.stock import Grants, open_request, scan, scan_method

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
NODE_MODULES = REPOSITORY / ".venv" / "node" / "node_modules"
CREDIT = 64 * 1024
EXHAUSTED = pb.ScanEnd.REASON_EXHAUSTED
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A frame without entries."""


def steady(_batch: int, read: int) -> list[int]:
    """A window that follows what was read."""
    return [read + CREDIT]


def tight(_batch: int, read: int) -> list[int]:
    """One byte more each time: a row at a time."""
    return [read + 1]


def repeated(_batch: int, read: int) -> list[int]:
    """Each grant three times."""
    return [read + CREDIT] * 3


def lowered(_batch: int, read: int) -> list[int]:
    """Each grant is followed by lower ones."""
    return [read + CREDIT, 0, read // 2]


def reordered(_batch: int, read: int) -> list[int]:
    """The parts of each grant, the last one first."""
    return [read + CREDIT, read + CREDIT // 2, read + CREDIT // 4, read + CREDIT - 1]


def skipped(batch: int, read: int) -> list[int]:
    """Two of three grants are never sent."""
    return [read + CREDIT] if batch % 3 == 0 else []


def node(endpoint: str, credit: int, how: str = "whole", table: str = TABLE) -> Any:
    """What grpc-js on Node found."""
    script = Path(__file__).with_name("node") / "scan.js"
    protos = REPOSITORY / "scanner" / "proto"
    done = subprocess.run(
        [tool("node"), str(script), str(protos), endpoint, table, str(credit), how],
        env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_weirs_client(endpoint: str, blobs: Served) -> None:
    """Our client gets every row, and never more than a row's message past its credit."""
    with scanner.sync.connect(endpoint) as client:
        with client.table(TABLE).new_scan().with_credit(CREDIT).execute() as batches:
            ids = [id_ for batch in batches for id_ in batch.column("id").to_pylist()]
        statistics = batches.statistics()

    assert ids == list(range(ROWS))
    assert statistics.buckets[0].digest == blobs.digest
    assert statistics.overrun_bytes <= blobs.row_bytes
    assert blobs.overrun_bytes() <= blobs.row_bytes


@pytest.mark.parametrize(
    "grants", [None, steady, tight], ids=lambda each: each.__name__ if each else "window-only"
)
def test_grpcio(endpoint: str, blobs: Served, grants: Grants | None) -> None:
    """Window-only, or with grants that are exact, of a batch or of a row: the same outcome."""
    scan_by_grpcio(endpoint, blobs, grants)


@pytest.mark.parametrize("grants", [repeated, lowered, reordered, skipped], ids=lambda each: each.__name__)
def test_grants_in_disorder(blobs: Served, grants: Grants) -> None:
    """Grants that are repeated, lowered, out of order or left out: the same. To a proxy they are as others."""
    scan_by_grpcio(blobs.endpoint, blobs, grants)


def scan_by_grpcio(endpoint: str, blobs: Served, grants: Grants | None) -> None:
    """Scan with these grants: every row once, in few batches or one for each row, and no more than the credit."""
    found = scan(endpoint, grants, batch_bytes_max=CREDIT // 8 if grants is skipped else 0)
    assert found.ids == list(range(ROWS))
    assert found.end is not None
    assert (found.end.reason, found.end.rows, found.end.digest) == (EXHAUSTED, ROWS, blobs.digest)
    assert found.overrun_bytes <= blobs.row_bytes
    assert blobs.overrun_bytes() <= blobs.row_bytes
    assert (found.batches == ROWS) == (grants is tight)


@pytest.mark.parametrize("credit", [0, CREDIT], ids=["window-only", "demand"])
def test_grpc_js(endpoint: str, blobs: Served, credit: int) -> None:
    """Node's client gets every row in order, in both modes."""
    found = node(endpoint, credit)

    assert (found["status"], found["ordinals"], found["rows"]) == ("OK", True, ROWS)
    assert (
        found["end"].items() >= {"reason": "REASON_EXHAUSTED", "rows": ROWS, "digest": blobs.digest}.items()
    )
    assert found["overrun"] <= blobs.row_bytes
    assert blobs.overrun_bytes() <= blobs.row_bytes


def test_scan_that_is_cancelled(endpoint: str, blobs: Served) -> None:
    """A client that cancels in the middle releases the scan at the server, whatever lies in between."""
    assert node(endpoint, 0, "cancel")["status"] == "CANCELLED"
    with grpc.insecure_channel(endpoint) as channel:
        call = scan_method(channel)(iter([open_request()]))
        assert next(call).WhichOneof("response") == "started"
        call.cancel()

    blobs.wait_released()


def test_deadline_without_credit(endpoint: str, blobs: Served) -> None:
    """A scan that waits for credit ends with its deadline, at the client and at the server."""
    for deadline_ms in (100, 1_000, 10_000, 50_000):
        found = node(endpoint, 1, f"deadline={deadline_ms}")
        assert found["status"] == "DEADLINE_EXCEEDED"
        assert found["rows"] <= 1
        blobs.wait_released()
        if found["rows"]:
            return  # else the machine was too slow for that deadline
    pytest.fail("no row came within the longest deadline")


def test_compressed_requests(endpoint: str, blobs: Served, request: pytest.FixtureRequest) -> None:
    """Gzip is refused with UNIMPLEMENTED that names it, by Node and by grpcio, and the channel goes on without it."""
    found = node(endpoint, 0, "gzip")
    assert (found["status"], found["rows"]) == ("UNIMPLEMENTED", 0)
    assert "gzip" in found["message"]
    with grpc.insecure_channel(endpoint) as channel:
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            refused = scan_method(channel)(iter([open_request()]), compression=compression, timeout=100)
            with pytest.raises(grpc.RpcError) as caught:
                list(refused)
            statuses = {grpc.StatusCode.UNIMPLEMENTED}
            if request.node.callspec.params["endpoint"] == "haproxy":
                statuses.add(grpc.StatusCode.CANCELLED)  # see docs/known-limitations.md
            assert caught.value.code() in statuses
        *_, last = scan_method(channel)(iter([open_request()]), timeout=100)
    assert last.end.digest == blobs.digest


def test_details_of_a_failure(endpoint: str) -> None:
    """Status, message and details arrive through every hop, and our client makes the typed error of them."""
    found = node(endpoint, 0, table="nowhere")
    with scanner.sync.connect(endpoint) as client, pytest.raises(TableNotFound, match="nowhere") as caught:
        client.table("nowhere")

    assert found["status"] == "NOT_FOUND"
    assert found["message"] == caught.value.message
    assert found["details"]


def test_call_that_haproxy_calls_refused(tmp_path: Path) -> None:
    """It does so although the server had all of the call: nobody is told that nothing was done."""
    taken = bytearray()

    def take_and_hang_up(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(SETTINGS)
            while b"nowhere" not in taken:
                taken.extend(connection.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=take_and_hang_up, args=(listener,), daemon=True)
        server.start()
        upstream = "{}:{}".format(*listener.getsockname())
        with open_proxy("haproxy", upstream, tmp_path) as endpoint, scanner.sync.connect(endpoint) as client:
            with pytest.raises(ServerUnavailable, match="unless by a server behind a proxy"):
                client.table("nowhere")
        server.join()
    assert b"nowhere" in taken
