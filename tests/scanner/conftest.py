"""A server of its own for each test that asks for one, and a client of whatever server a file has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import scanner.sync
from tests.support.server import RunningServer, running_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of this test alone, in a thread of its own."""
    with running_server(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[scanner.sync.Client]:
    """A client of the server."""
    with scanner.sync.connect(server.endpoint) as connected:
        yield connected
