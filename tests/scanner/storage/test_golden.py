"""Data directories of every format that was released open, and hold what they held."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from scanner.storage.rocksdb.store import RocksStore
from tests.scanner.storage.golden.make import HERE, contents, fold, make, rows_of

ARCHIVES = sorted(HERE.glob("format-*.tar.gz"))


@pytest.mark.parametrize("archive", [*ARCHIVES, None], ids=lambda path: path.name if path else "made now")
def test_a_golden_directory_holds_what_it_held(tmp_path: Path, archive: Path | None) -> None:
    """Rows, changes and checkpoints are those that its version wrote, and the changes fold to the rows."""
    if archive is None:
        expected = make(tmp_path / "data")
    else:
        with tarfile.open(archive) as file:
            file.extractall(tmp_path, filter="data")
        expected = json.loads((tmp_path / "expected.json").read_text())
    for _ in range(2):
        with RocksStore.open(tmp_path / "data") as store:
            assert contents(store) == expected
            for table in store.tables():
                for index in range(table.buckets):
                    bucket = store.bucket(table.name, index)
                    assert fold(bucket) == rows_of(bucket)
