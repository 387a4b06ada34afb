"""A server does what RFC 9113 and RFC 7541 ask of it, case by case, over plain TCP and over TLS.

The cases are those that h2spec is known to send, in words and octets of our own, numbered as there, and more of the
kind. What they expect is stricter: an error is told by its code, what is a stream's error leaves the connection alive,
and a connection that ends is closed properly. `python -m tests.transport.conformance HOST:PORT` asks any server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.certificates import client_tls, server_tls
from tests.support.server import running_server
from tests.transport.conformance.peer import Peer
from tests.transport.conformance.run import CASES, PREFACES, connect, run_case

PATIENCE_S = 15.0

Dial = Callable[[], Peer]


@pytest.fixture(scope="module", params=["plain", "tls"])
def dial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dial]:
    """Connect to a server as `weir serve` runs it."""
    directory: Path = tmp_path_factory.mktemp("conformance")
    secured = request.param == "tls"
    with running_server(directory / "data", tls=server_tls(directory) if secured else None) as server:
        context = client_tls(directory) if secured else None
        yield lambda: connect(server.endpoint, PATIENCE_S, context)


@pytest.mark.parametrize("name", [*CASES, *PREFACES])
def test_case(dial: Dial, name: str) -> None:
    """The server does what the case expects."""
    run_case(name, dial)
