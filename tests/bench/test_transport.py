"""Server streaming beside grpcio: what the two agree upon in TLS, and which ratios are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness.certificates import make_certificates
from bench.harness.errors import BenchFailed
from bench.harness.tls_hello import suite_of
from bench.questions.transport import KIB, MIB, PEERS, Case, Measured, agreed_cipher, bars

SUITES = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


@pytest.mark.socket
@pytest.mark.parametrize("peer", ["weir", "grpcio"])
def test_the_cipher_is_read_from_the_wire(peer: str, tmp_path: Path) -> None:
    """Both speak TLS 1.3; without TLS there is no cipher."""
    case = Case(message_bytes=KIB, streams=1, total_bytes=KIB)
    assert agreed_cipher(peer, case) == ""
    assert agreed_cipher(peer, Case(KIB, 1, KIB, make_certificates(tmp_path))) in SUITES


@pytest.mark.parametrize(
    "octets", [b"", b"HTTP/1.1 400 Bad Request\r\n" * 10, bytes(100), b"\x16\x03\x03\0\x7a\x01" * 20]
)
def test_what_is_no_server_hello_has_no_cipher(octets: bytes) -> None:
    """Whatever else a server says is an error, not a suite."""
    with pytest.raises(BenchFailed, match="ServerHello"):
        suite_of(octets)


def measured(peer: str, message_bytes: int, ratio: float, *, tls: bool) -> Measured:
    """A row with a ratio."""
    return Measured(peer, message_bytes, 1, tls, 100.0, [100.0], ratio, 1.0, 1.0, "")


def test_ratios_through_tls_have_bars_of_their_own() -> None:
    """At 64 KiB and 1 MiB weir must not be behind grpcio through TLS, and far ahead without it."""
    rows = [
        measured(peer, size, ratio if peer == "weir" else 1.0, tls=tls)
        for peer in PEERS
        for size, tls, ratio in (
            (64 * KIB, False, 3.0),
            (64 * KIB, True, 1.2),
            (MIB, True, 0.8),
            (KIB, True, 9.0),
        )
    ]
    assert [(bar.name, bar.value, bar.ok) for bar in bars(rows)] == [
        ("weir / grpcio at 65536 B", 3.0, True),
        ("weir / grpcio at 65536 B through TLS", 1.2, True),
        ("weir / grpcio at 1048576 B through TLS", 0.8, False),
    ]
