"""What the tests of the pull models share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.storage.rocksdb.store import RocksStore
from tests.support.pages import ROWS
from tests.support.scans import description, filled_store, mutations, sample

if TYPE_CHECKING:
    from tests.support.pages import Stored


@pytest.fixture(params=["memory", pytest.param("rocks", marks=pytest.mark.rocks)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    """A store with the sample table, in memory and on disk."""
    if request.param == "memory":
        return filled_store(ROWS)
    store = RocksStore.open(tmp_path)
    store.create_table(description())
    store.bucket("items", 0).commit([mutations(store, "items", sample(range(ROWS)))])
    store.close()
    return tmp_path
