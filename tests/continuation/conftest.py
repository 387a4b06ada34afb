"""The real store, at night also the verified fake; and how often scans were cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.nightly import everyday

if TYPE_CHECKING:
    from bench.questions.cuts import Found
    from scanner.storage.interface import Store


STORES = [pytest.param("rocks", marks=pytest.mark.rocks), pytest.param("memory")]


@pytest.fixture(params=STORES[: everyday(1, nightly=2)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store. That the fake does what the real one does, `tests/scanner/storage` shows of each call."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        with RocksStore.open(tmp_path / "data") as rocks:
            yield rocks


@pytest.fixture
def rocks_store(tmp_path: Path) -> Iterator[Store]:
    """An empty store, of the real kind."""
    with RocksStore.open(tmp_path / "data") as rocks:
        yield rocks


class CutPoints:
    """Counts the places at which scans were cut.

    Args:
        counts: Told at the end of the run.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def add(self, found: Found) -> None:
        """Count one scenario, and say what it was (`pytest -rP` shows it)."""
        self._counts.update(cuts=found.tally.struck, resumes=found.tally.resumes)
        print(f"{found.scenario}: {found.frames} frames, {found.tally}")


@pytest.fixture
def cut_points(counts: Counter[str]) -> CutPoints:
    """For the scenarios of this test."""
    return CutPoints(counts)
