"""grpcio, gRPC's C core, against a server with TLS, mutual TLS, tokens and rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner.proto.weir.v1 import scanner_pb2, tables_pb2
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from tests.support.certificates import authority, ca_file, issue, server_tls
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from trustme import LeafCert

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TIMEOUT_S = 100
ROWS = 50_000
TOKENS = {name: make_token() for name in ("owner", "reader", "nothing")}
CREDENTIALS = f"""
[principals.owner]
token_sha256 = ["{token_sha256(TOKENS["owner"])}"]
read = ["*"]
write = ["*"]
[principals.reader]
token_sha256 = ["{token_sha256(TOKENS["reader"])}"]
certificates = ["dns:reader.example"]
read = ["numbers"]
[principals.nothing]
token_sha256 = ["{token_sha256(TOKENS["nothing"])}"]
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For certificates."""
    return tmp_path_factory.mktemp("certificates")


def _fill(server: RunningServer, directory: Path) -> None:
    context = scanner.tls(ca_file(directory))
    with scanner.sync.connect(server.endpoint, ssl_context=context, token=TOKENS["owner"]) as client:
        table = client.create_table("numbers", pa.schema([("id", pa.int64())]), ["id"], buckets=1)
        table.write(pa.table({"id": list(range(ROWS))}))


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that takes certificates and tokens, with one table."""
    tls = server_tls(directory, client_ca="test", required=False)
    credentials = Credentials.parse(CREDENTIALS)
    with running_server(tmp_path_factory.mktemp("data"), tls=tls, credentials=credentials) as running:
        _fill(running, directory)
        yield running


def channel(
    server: RunningServer, *, certificate: LeafCert | None = None, token: str | None = None, ca: str = "test"
) -> grpc.Channel:
    """A channel as grpcio's documentation makes one."""
    credentials = grpc.ssl_channel_credentials(
        authority(ca).cert_pem.bytes(),
        certificate.private_key_pem.bytes() if certificate else None,
        b"".join(pem.bytes() for pem in certificate.cert_chain_pems) if certificate else None,
    )
    if token is not None:
        credentials = grpc.composite_channel_credentials(
            credentials, grpc.access_token_call_credentials(token)
        )
    return grpc.secure_channel(server.endpoint, credentials)


def tables(open_channel: grpc.Channel) -> list[str]:
    """The tables that the caller sees."""
    call = open_channel.unary_unary(
        "/weir.v1.Tables/ListTables",
        request_serializer=tables_pb2.ListTablesRequest.SerializeToString,
        response_deserializer=tables_pb2.ListTablesResponse.FromString,
    )
    return [table.name for table in call(tables_pb2.ListTablesRequest(), timeout=TIMEOUT_S).tables]


def scan(open_channel: grpc.Channel) -> int:
    """How many rows a window-only scan delivers before its end."""
    call = open_channel.stream_stream(
        "/weir.v1.Scanner/Scan",
        request_serializer=scanner_pb2.ScanRequest.SerializeToString,
        response_deserializer=scanner_pb2.ScanResponse.FromString,
    )
    query = scanner_pb2.ScanQuery(table="numbers")
    opened = scanner_pb2.ScanOpen(source=scanner_pb2.SCAN_SOURCE_LIVE_KV, query=query)
    ends = [
        response.end.rows
        for response in call(iter([scanner_pb2.ScanRequest(open=opened)]), timeout=TIMEOUT_S)
        if response.HasField("end")
    ]
    assert len(ends) == 1
    return int(ends[0])


def test_token_over_tls(server: RunningServer) -> None:
    """Grpcio's call credentials are a principal here, and it reads what that may read."""
    with channel(server, token=TOKENS["reader"]) as opened:
        assert tables(opened) == ["numbers"]
        assert scan(opened) == ROWS


def test_certificate_instead_of_a_token(server: RunningServer) -> None:
    """A client certificate alone is a principal, too."""
    with channel(server, certificate=issue("test", "reader.example")) as opened:
        assert scan(opened) == ROWS


def test_certificate_and_token(server: RunningServer) -> None:
    """With both, the token says who calls."""
    certificate = issue("test", "stranger.example")
    with channel(server, certificate=certificate, token=TOKENS["reader"]) as opened:
        assert scan(opened) == ROWS
    with channel(server, certificate=issue("test", "reader.example"), token=TOKENS["nothing"]) as opened:
        assert tables(opened) == []


@pytest.mark.parametrize(
    ("token", "status"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED),
        ("weir_wrong", grpc.StatusCode.UNAUTHENTICATED),
        (TOKENS["nothing"], grpc.StatusCode.PERMISSION_DENIED),
    ],
    ids=["none", "wrong", "without rights"],
)
def test_refusals_are_gRPC_statuses(
    server: RunningServer, token: str | None, status: grpc.StatusCode
) -> None:
    """Whoever is refused gets the status that gRPC has for it, for unary and for streaming calls."""
    with channel(server, token=token) as opened, pytest.raises(grpc.RpcError) as caught:
        scan(opened)
    assert caught.value.code() is status
    assert "grpc-status-details-bin" in [each.key for each in caught.value.trailing_metadata()]


@pytest.mark.parametrize("kind", ["none", "other CA", "expired"])
def test_mutual_tls_refuses(kind: str, directory: Path, tmp_path: Path) -> None:
    """Where certificates are required, grpcio without a good one does not connect; with one it does."""
    certificate = {
        "none": None,
        "other CA": issue("other", "reader.example"),
        "expired": issue("test", "reader.example", days_left=-1),
    }[kind]
    tls = server_tls(directory, client_ca="test")
    with running_server(tmp_path / "data", tls=tls, credentials=Credentials.parse(CREDENTIALS)) as server:
        with channel(server, certificate=certificate) as opened, pytest.raises(grpc.RpcError) as caught:
            tables(opened)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with channel(server, certificate=issue("test", "reader.example")) as opened:
            assert tables(opened) == []


def test_server_of_another_ca(server: RunningServer) -> None:
    """Grpcio does not trust a server of another CA; the server serves on."""
    with (
        channel(server, ca="other", token=TOKENS["reader"]) as opened,
        pytest.raises(grpc.RpcError) as caught,
    ):
        tables(opened)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with channel(server, token=TOKENS["reader"]) as opened:
        assert tables(opened) == ["numbers"]
