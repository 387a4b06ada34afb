"""One server for all interop tests that scan, and every way to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.proxies import DIRECT, PROXIES, open_proxy
from tests.interop.blobs import Served, serving_blobs


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
