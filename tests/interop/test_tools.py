"""The tools that people have at hand, curl, nghttp and h2load: a scan by each, and what is no gRPC at all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bench.harness.proxies import tool
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.blobs import ROWS, Served
from tests.interop.stock import SCAN_PATH

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

GRPC_FIELDS = ("-H", "content-type: application/grpc", "-H", "te: trailers")


def run(command: str, *arguments: str) -> bytes:
    """What a command printed; it must succeed."""
    done = subprocess.run([tool(command), *arguments], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def responses(body: bytes) -> list[pb.ScanResponse]:
    """The messages of an answer's body."""
    found = []
    while body:
        assert body[0] == 0
        size = int.from_bytes(body[1:5], "big")
        assert len(body) >= 5 + size
        found.append(pb.ScanResponse.FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def curl(endpoint: str, path: str, tmp_path: Path, *arguments: str) -> tuple[dict[str, str], bytes]:
    """Header and trailer fields, and the body, of one request by curl without TLS."""
    fields, body = tmp_path / "fields", tmp_path / "body"
    url = f"http://{endpoint}{path}"
    run("curl", "-sS", "--http2-prior-knowledge", "-D", str(fields), "-o", str(body), *arguments, url)
    lines = fields.read_text(encoding="ascii").splitlines()
    found = {":status": lines[0].split()[1]}
    found |= {name: value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    return found, body.read_bytes() if body.exists() else b""


def test_curl_scans(endpoint: str, blobs: Served, tmp_path: Path, request_file: Path) -> None:
    """A frame posted by curl is answered with the whole scan and status 0 in the trailers."""
    post = ("--data-binary", f"@{request_file}", *GRPC_FIELDS)
    fields, body = curl(endpoint, SCAN_PATH, tmp_path, *post)

    *batches, end = responses(body)[1:]
    assert (fields[":status"], fields["content-type"]) == ("200", "application/grpc+proto")
    assert fields["grpc-status"] == "0"
    assert sum(each.batch.row_count for each in batches) == ROWS
    assert (end.end.rows, end.end.digest) == (ROWS, blobs.digest)


def test_nghttp_scans(endpoint: str, request_file: Path) -> None:
    """Nghttp, which gives windows of 64 KiB and credits each frame, gets the whole scan and its trailers."""
    url = f"http://{endpoint}{SCAN_PATH}"
    printed = run("nghttp", "-v", "-n", "-d", str(request_file), *GRPC_FIELDS, url).decode()

    assert "grpc-status: 0" in printed
    assert sum(int(size) for size in re.findall(r"recv DATA frame <length=(\d+)", printed)) > ROWS * 4_000


def test_h2load_scans_at_once(endpoint: str, blobs: Served, request_file: Path) -> None:
    """Twenty scans on two connections all succeed, and nothing stays open."""
    url = f"http://{endpoint}{SCAN_PATH}"
    load = ("-n", "20", "-c", "2", "-m", "5", "-d", str(request_file), *GRPC_FIELDS)
    printed = run("h2load", *load, url).decode()

    assert "20 succeeded, 0 failed, 0 errored, 0 timeout" in printed
    assert "20 2xx" in printed
    blobs.wait_released()


def test_root_says_what_this_is(blobs: Served, tmp_path: Path) -> None:
    """GET / is answered with a short text, HEAD / with its fields alone."""
    fields, body = curl(blobs.endpoint, "/", tmp_path)
    assert (fields[":status"], fields["content-length"]) == ("200", str(len(body)))
    assert b"gRPC" in body

    assert curl(blobs.endpoint, "/", tmp_path, "--head")[0] == fields


def test_what_is_no_call(blobs: Served, tmp_path: Path) -> None:
    """Another method is 405, another content-type 415, a compressed request UNIMPLEMENTED with what is taken."""
    assert curl(blobs.endpoint, SCAN_PATH, tmp_path)[0][":status"] == "405"
    assert curl(blobs.endpoint, SCAN_PATH, tmp_path, "-d", "x=1")[0][":status"] == "415"
    compressed = ("-d", "", *GRPC_FIELDS, "-H", "grpc-encoding: gzip")
    fields, _ = curl(blobs.endpoint, SCAN_PATH, tmp_path, *compressed)
    assert (fields["grpc-status"], fields["grpc-accept-encoding"]) == ("12", "identity")
    unknown, _ = curl(blobs.endpoint, "/a.B/C", tmp_path, "-d", "", *GRPC_FIELDS)
    assert (unknown[":status"], unknown["grpc-status"]) == ("200", "12")


def test_h2load_gets_the_root(blobs: Served) -> None:
    """Two thousand requests that are no calls, a hundred at a time, are answered on connections that live."""
    printed = run("h2load", "-n", "2000", "-c", "2", "-m", "100", f"http://{blobs.endpoint}/").decode()

    assert "2000 succeeded, 0 failed, 0 errored, 0 timeout" in printed
    assert "2000 2xx" in printed
