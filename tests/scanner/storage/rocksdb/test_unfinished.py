"""A share of a transaction that is cut off anywhere, while it is applied or while it is undone, leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanner.storage.rocksdb.unfinished
from scanner.errors import DataCorrupted, StoreFailed
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.transactions import AppliedShare
from tests.support.living import copy_living
from tests.support.storage_tables import changes_of, contents, delete, one_bucket, put, puts

pytestmark = pytest.mark.rocks

SMALL = StorageConfig(bucket_write_buffer_bytes=256 * 1024, write_buffers_bytes=1024 * 1024)
BEFORE = dict.fromkeys(range(300), "old" * 50)
PARTS = [
    [
        written if number % 7 else delete(number)
        for number, written in enumerate(
            puts((number, f"{part}" * 900) for number in range(60 * part, 60 * part + 400)), 60 * part
        )
    ]
    for part in range(4)
]


def _filled(path: Path) -> None:
    with RocksStore.open(path, SMALL) as store:
        store.create_table(one_bucket("it"))
        store.bucket("it", 0).commit([puts(BEFORE.items())])


def _apply_cut(path: Path, images: Path) -> dict[int, str | None]:
    """Apply a share, with a copy of the data directory after every step but the last; what it gives."""
    with RocksStore.open(path, SMALL) as store:
        bucket = store.bucket("it", 0)
        for step, part in enumerate(PARTS):
            bucket.commit_prepared(bucket.prepare([part]), unfinished=True)
            if step % 2:
                bucket.flush()
            copy_living(path, images / str(step))
        last = bucket.prepare([])
        bucket.commit_prepared(last, applied={"load": AppliedShare(1, 300, last.start)})
        return contents(bucket)


def test_cut_off_after_every_batch(tmp_path: Path) -> None:
    """The next open undoes it; applied again, on a log that was flushed in between, it gives what it should."""
    _filled(tmp_path / "data")
    (tmp_path / "images").mkdir()
    expected = _apply_cut(tmp_path / "data", tmp_path / "images")
    for step in range(len(PARTS)):
        image = tmp_path / "images" / str(step)
        with RocksStore.open(image, SMALL) as store:
            bucket = store.bucket("it", 0)
            assert contents(bucket) == BEFORE
            assert (bucket.log_end, len(changes_of(bucket))) == (300, 300)
            for part in PARTS:
                bucket.commit_prepared(bucket.prepare([part]), unfinished=True)
            bucket.commit_prepared(bucket.prepare([]))
            assert contents(bucket) == expected
        with RocksStore.open(image, SMALL) as store:
            assert contents(store.bucket("it", 0)) == expected


def test_what_is_written_in_its_place_is_not_taken_for_a_hole(tmp_path: Path) -> None:
    """Smaller pieces than those that were undone: their ordinals are the same, and their offsets are not."""
    _filled(tmp_path / "data")
    (tmp_path / "images").mkdir()
    _apply_cut(tmp_path / "data", tmp_path / "images")
    image, expected = tmp_path / "images" / str(len(PARTS) - 1), dict(BEFORE)
    for number in range(0, 16, 8):
        with RocksStore.open(image, SMALL) as store:
            bucket = store.bucket("it", 0)
            assert contents(bucket) == expected
            for each in range(number, number + 8):
                bucket.commit([[put(each, "new")]])
                expected[each] = "new"
    with RocksStore.open(image, SMALL) as store:
        assert contents(store.bucket("it", 0)) == expected


class _Cut(Exception):
    """Stands for a crash."""


def test_cut_off_after_every_step_of_the_undoing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens it next goes on with it."""
    _filled(tmp_path / "data")
    (tmp_path / "images").mkdir()
    _apply_cut(tmp_path / "data", tmp_path / "images")
    image = tmp_path / "images" / str(len(PARTS) - 1)
    real: Any = scanner.storage.rocksdb.unfinished._last_chunk
    undone: list[int] = []

    def cutting(database: Any, reached: Any) -> Any:
        if len(undone) % 2:
            undone.append(reached.end)
            raise _Cut
        undone.append(reached.end)
        return real(database, reached)

    monkeypatch.setattr(scanner.storage.rocksdb.unfinished, "_last_chunk", cutting)
    while True:
        with RocksStore.open(image, SMALL) as store:
            try:
                bucket = store.bucket("it", 0)
            except _Cut:
                continue
            assert contents(bucket) == BEFORE
            assert bucket.log_end == 300
            break
    assert len(undone) > 6
    assert undone == sorted(undone, reverse=True)


def test_an_unfinished_share_cannot_be_read_without_being_undone(tmp_path: Path) -> None:
    """Where nothing can be written its bucket is refused, and not shown half-way."""
    _filled(tmp_path / "data")
    (tmp_path / "images").mkdir()
    _apply_cut(tmp_path / "data", tmp_path / "images")
    with RocksStore.open(tmp_path / "images" / "0", SMALL) as store:
        bucket = store.bucket("it", 0)
        bucket.commit_prepared(bucket.prepare([[put(1, "x")]]), unfinished=True)
        with pytest.raises(StoreFailed, match="being applied"):
            bucket.reopen(writable=False)
        bucket.reopen(writable=True)
        assert contents(bucket) == BEFORE


def test_a_hole_in_an_unfinished_share_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing cannot be undone; that is said, and nothing is served."""
    _filled(tmp_path / "data")
    (tmp_path / "images").mkdir()
    _apply_cut(tmp_path / "data", tmp_path / "images")
    monkeypatch.setattr(scanner.storage.rocksdb.unfinished, "read_chunk", lambda *_: None)
    with RocksStore.open(tmp_path / "images" / "1", SMALL) as store:
        with pytest.raises(DataCorrupted, match="cannot be undone"):
            store.bucket("it", 0)
