"""Which cipher suite two ends of TLS agree upon, read from the wire: neither grpcio nor a client of ours tells."""

from __future__ import annotations

from typing import Final

from bench.harness.errors import BenchFailed

_HANDSHAKE: Final = 22
_SERVER_HELLO: Final = 2
_SESSION_ID_AT: Final = 5 + 4 + 2 + 32
"""Behind the headers of the record and of the message, the version, and the server's random (RFC 8446 section 4)."""
_NAMES: Final = {
    0x1301: "TLS_AES_128_GCM_SHA256",
    0x1302: "TLS_AES_256_GCM_SHA384",
    0x1303: "TLS_CHACHA20_POLY1305_SHA256",
}


def suite_of(octets: bytes | bytearray) -> str:
    """The suite of a server's first octets, by its name in TLS 1.3, or as its number.

    Raises:
        BenchFailed: They do not begin with a ServerHello.
    """
    if len(octets) <= _SESSION_ID_AT or (octets[0], octets[5]) != (_HANDSHAKE, _SERVER_HELLO):
        raise BenchFailed("the server did not begin with a ServerHello of TLS")
    at = _SESSION_ID_AT + 1 + octets[_SESSION_ID_AT]
    suite = int.from_bytes(octets[at : at + 2], "big")
    return _NAMES.get(suite, f"0x{suite:04x}")
