"""One server for all interop tests that scan, and every way to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_tools import protoc

from bench.harness.proxies import DIRECT, PROXIES, open_proxy
from tests.interop.blobs import Served, serving_blobs
from tests.interop.stock import open_request
from tests.support.nightly import everyday
from transport.protocol.abuse import ALLOWANCES, Cost

PROTO_ROOT = Path(__file__).resolve().parents[2] / "scanner" / "proto"
SCALE = everyday(10, nightly=1)
"""What budgets and numbers of messages are divided by."""


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The table of `tests.interop.blobs`, served."""
    with serving_blobs(tmp_path_factory.mktemp("blobs")) as served:
        yield served


@pytest.fixture(scope="session", params=(DIRECT, *PROXIES))
def endpoint(
    request: pytest.FixtureRequest, blobs: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """HOST:PORT of the server itself, and of each proxy in front of it."""
    with open_proxy(request.param, blobs.endpoint, tmp_path_factory.mktemp(request.param)) as reached:
        yield reached


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stubs as a stranger makes them."""
    out = tmp_path_factory.mktemp("stubs")
    protos = [str(path) for path in PROTO_ROOT.rglob("*.proto")]
    assert (
        protoc.main(["protoc", f"-I{PROTO_ROOT}", f"--python_out={out}", f"--grpc_python_out={out}", *protos])
        == 0
    )
    return out


@pytest.fixture
def scaled_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server, which runs in this process, has a tenth of its budgets, at once and per second; not so at night.

    What a message earns is left: a client that spends more than it earns is cut off after a tenth of the messages.
    """
    for cost in (Cost.PING, Cost.RESET, Cost.WINDOW_UPDATE):
        real = ALLOWANCES[cost]
        scaled = dataclasses.replace(real, burst=real.burst / SCALE, per_second=real.per_second / SCALE)
        monkeypatch.setitem(ALLOWANCES, cost, scaled)


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """One gRPC message: the open of a scan in window-only mode."""
    message = open_request().SerializeToString()
    path = tmp_path / "open.bin"
    path.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    return path
