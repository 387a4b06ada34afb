"""One server for all attacks that leave it as it was, which is what they must."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.abuse import victim

if TYPE_CHECKING:
    from tests.support.server import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the limits of `weir serve`."""
    with victim(tmp_path_factory.mktemp("abuse") / "data") as running:
        yield running
