"""All cases by their names, and how one is run against a server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Final

from tests.transport.conformance import generic_cases, http2_cases, message_cases
from tests.transport.conformance.peer import Cases, Peer

CASES: Final[Cases] = {
    **generic_cases.FRAMES,
    **generic_cases.HPACK,
    **http2_cases.FRAMING,
    **http2_cases.STREAMS,
    **http2_cases.DEFINITIONS,
    **http2_cases.WINDOWS,
    **http2_cases.CONTINUATIONS,
    **message_cases.MESSAGES,
    **message_cases.DECODING,
}
"""Name to steps; begun after the handshake."""
PREFACES: Final[Cases] = message_cases.PREFACES
"""Begun without a handshake."""


def connect(endpoint: str, patience_s: float, context: ssl.SSLContext | None = None) -> Peer:
    """Connect to HOST:PORT.

    Raises:
        OSError: Nobody is there, or TLS fails.
    """
    host, port = endpoint.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), timeout=patience_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return Peer(plain)
    secured = context.wrap_socket(plain, server_hostname=host, suppress_ragged_eofs=False)
    assert secured.selected_alpn_protocol() == "h2"
    return Peer(secured)


def run_case(name: str, dial: Callable[[], Peer]) -> None:
    """Run a case on a connection of its own.

    Raises:
        AssertionError: The server does not what it must.
        OSError: It resets the connection, or does nothing for too long.
    """
    with dial() as peer:
        if name in PREFACES:
            peer.run(PREFACES[name])
        else:
            peer.handshake()
            peer.run(CASES[name])
