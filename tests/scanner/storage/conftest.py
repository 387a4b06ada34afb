"""Stores for the storage tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_tables import ITEMS

if TYPE_CHECKING:
    from scanner.storage.interface import Store


@pytest.fixture(params=["rocks", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with the table `items`: the real one, then the verified fake."""
    opened: Store = RocksStore.open(tmp_path / "data") if request.param == "rocks" else MemoryStore()
    opened.create_table(ITEMS)
    yield opened
    opened.close()


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Callable[[Store], Store]]:
    """Closes a store of this test and gives another one over what it left."""
    later: list[Store] = []

    def restarted(before: Store) -> Store:
        before.close()
        after: Store = (
            MemoryStore(disk=before.disk)
            if isinstance(before, MemoryStore)
            else RocksStore.open(tmp_path / "data")
        )
        later.append(after)
        return after

    yield restarted
    for each in later:
        each.close()
