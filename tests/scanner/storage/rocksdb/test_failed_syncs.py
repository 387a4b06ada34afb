"""What a failed sync has left in the log may go with the power: nobody sees it, and nobody is told of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from scanner.data.key_ranges import SplitWish
from scanner.errors import StoreFailed
from scanner.storage.rocksdb import opening
from scanner.storage.rocksdb.durable_end import NAME
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.transactions import AppliedShare
from scanner.storage.writers import AppliedRequest
from tests.support.storage_tables import contents, one_bucket, put
from tests.support.unsynced import syncs_fail

if TYPE_CHECKING:
    from scanner.storage.rocksdb.bucket import RocksBucket

pytestmark = pytest.mark.rocks

_WRITER = bytes(16)
_DURABLE = {1: "acknowledged"}
_ALL = {**_DURABLE, 2: "not durable"}
_OLD, _NEW = AppliedShare(1, 0, 1), AppliedShare(1, 1, 2)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise StoreFailed("the disk refused")


def _commit(bucket: RocksBucket, number: int, text: str) -> None:
    """One row, which is a share of a transaction and a request of a writer, both of that number."""
    end = bucket.log_end
    bucket.commit_prepared(
        bucket.prepare([[put(number, text)]]),
        applied={f"job {number}": AppliedShare(1, end, end + 1)},
        requests={_WRITER: [AppliedRequest(number, end, end + 1, 0)]},
    )


@contextmanager
def _failed(path: Path, *, new_log: bool = False) -> Iterator[RocksBucket]:
    """A bucket of two commits, of which the second is written and not synced.

    Args:
        path: Of the data directory that is made.
        new_log: The second is alone in its write-ahead log.
    """
    with RocksStore.open(path) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "acknowledged")
        if new_log:
            bucket.flush()
        with syncs_fail(), pytest.raises(StoreFailed, match="nothing of this write is promised"):
            _commit(bucket, 2, "not durable")
        yield bucket


def _state(bucket: RocksBucket) -> tuple[object, ...]:
    shares = {name: share for name, share in bucket.applied_shares.items() if name.startswith("job")}
    numbers = [each.sequence for each in bucket.requests_of(_WRITER)]
    return contents(bucket), bucket.log_end, shares, numbers


def test_a_bucket_is_split_behind_a_failed_sync(tmp_path: Path) -> None:
    """Whoever has found it readable a moment ago gets its cuts, an estimate; no other scan is opened."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        bucket.commit([[put(number, "acknowledged") for number in range(100)]])
        with syncs_fail(), pytest.raises(StoreFailed):
            bucket.commit([[put(number, "not durable") for number in range(100)]])
        assert len(bucket.split(SplitWish(splits=4)).cuts) == 3
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.open_snapshot()


@pytest.mark.parametrize("new_log", [False, True], ids=["in the same log", "in a log of its own"])
def test_what_may_not_be_durable_is_not_read(tmp_path: Path, new_log: bool) -> None:
    """Rows, changes, shares and requests are those of before, until the bucket takes writes again and has it."""
    with _failed(tmp_path, new_log=new_log) as bucket:
        assert not bucket.hides
        for _ in range(2):
            bucket.reopen(writable=False)
            assert _state(bucket) == (_DURABLE, 1, {"job 1": _OLD}, [1])
            assert bucket.hides
        bucket.reopen(writable=True)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD, "job 2": _NEW}, [1, 2])
        assert not bucket.hides


def test_what_is_read_after_a_failed_sync_is_what_a_loss_of_power_leaves(tmp_path: Path) -> None:
    """The disk without what was not synced: rows and changelog are the same, and nothing is said to be lost."""
    with RocksStore.open(tmp_path / "running") as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "acknowledged")
        (log,) = (tmp_path / "running").glob("tables/*/0000/*.log")
        size = log.stat().st_size
        with syncs_fail(), pytest.raises(StoreFailed):
            _commit(bucket, 2, "not durable")
        bucket.reopen(writable=False)
        read = _state(bucket)
        assert log.stat().st_size > size
        shutil.copytree(tmp_path / "running", tmp_path / "image")
    (log,) = (tmp_path / "image").glob("tables/*/0000/*.log")
    os.truncate(log, size)
    with RocksStore.open(tmp_path / "image") as store:
        bucket = store.bucket("it", 0)
        assert (_state(bucket), bucket.lost_changes) == (read, 0)


def test_a_log_is_cut_without_reading_it_into_memory(tmp_path: Path) -> None:
    """A bucket has up to 128 MiB of it, and a disk that refuses syncs does so for many buckets at once."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "x" * (1 << 22))
        with syncs_fail(), pytest.raises(StoreFailed):
            _commit(bucket, 2, "not durable")
        tracemalloc.start()
        try:
            bucket.reopen(writable=False)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert bucket.hides
        assert peak < 1 << 20


def test_nobody_is_told_of_what_is_shown_for_want_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without room for temporary files all of the log is read; what may go of it does not count as applied."""
    with _failed(tmp_path / "data") as bucket, monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        bucket.reopen(writable=False)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD}, [1])
        assert "may have a write that is not durable" in caplog.text


def test_what_was_shown_is_not_hidden_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has read it for want of room goes on, when there is room; nobody is told that it is applied, as before."""
    with _failed(tmp_path / "data") as bucket:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
            bucket.reopen(writable=False)
        bucket.reopen(writable=False)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD}, [1])
        bucket.reopen(writable=True)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD, "job 2": _NEW}, [1, 2])
        with syncs_fail(), pytest.raises(StoreFailed):
            _commit(bucket, 3, "not durable")
        bucket.reopen(writable=False)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD, "job 2": _NEW}, [1, 2])
        assert bucket.hides


@pytest.mark.parametrize("known", [True, False], ids=["its durable end", "no durable end"])
def test_a_start_tells_nobody_of_what_may_not_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """What an earlier server could not sync is read where the disk refuses more, and does not count as applied."""
    with _failed(tmp_path / "running"):
        image = Path(shutil.copytree(tmp_path / "running", tmp_path / "image"))
    if not known:
        for file in image.glob(f"tables/*/0000/{NAME}"):
            file.unlink()
    with RocksStore.open(image) as store:
        with monkeypatch.context() as patch:
            patch.setattr(opening, "open_database", _refuse)
            bucket = store.bucket("it", 0)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD} if known else {}, [1] if known else [])
        bucket.reopen(writable=True)
        assert _state(bucket) == (_ALL, 2, {"job 1": _OLD, "job 2": _NEW}, [1, 2])


def test_what_was_acknowledged_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start for reading, of what a killed server left: all of it counts, also a share that changed nothing."""
    share = {"job 2": AppliedShare(1, 1, 1)}
    with RocksStore.open(tmp_path / "running") as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "acknowledged")
        bucket.commit_prepared(bucket.prepare([]), applied=share)
        image = Path(shutil.copytree(tmp_path / "running", tmp_path / "image"))
    with RocksStore.open(image) as store:
        monkeypatch.setattr(opening, "open_database", _refuse)
        assert _state(store.bucket("it", 0)) == (_DURABLE, 1, {"job 1": _OLD, **share}, [1])
        assert "not durable" not in caplog.text


def test_what_is_in_files_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start for reading, of a directory that says nothing of what was durable: its logs are empty."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("it"))
        _commit(store.bucket("it", 0), 1, "acknowledged")
    for file in tmp_path.glob(f"tables/*/0000/{NAME}"):
        file.unlink()
    with RocksStore.open(tmp_path) as store:
        monkeypatch.setattr(opening, "open_database", _refuse)
        assert _state(store.bucket("it", 0)) == (_DURABLE, 1, {"job 1": _OLD}, [1])
        assert "not durable" not in caplog.text


def test_what_changes_nothing_may_not_be_durable_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share or a request: it moves no offset; where the disk's newest write may go, none that ends there counts."""
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "acknowledged")
        share, request = {"job 2": AppliedShare(1, 1, 1)}, {_WRITER: [AppliedRequest(2, 1, 1, 0)]}
        with syncs_fail(), pytest.raises(StoreFailed):
            bucket.commit_prepared(bucket.prepare([]), applied=share, requests=request)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        bucket.reopen(writable=False)
        assert _state(bucket)[2:] == ({"job 1": _OLD}, [1])


def test_a_share_that_is_cut_off_by_a_sync_is_not_read(tmp_path: Path) -> None:
    """Its bucket is read as of before it, without undoing what was written, which the disk refuses."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        _commit(bucket, 1, "acknowledged")
        bucket.commit_prepared(bucket.prepare([[put(2, "a piece")]]), unfinished=True)
        with syncs_fail(), pytest.raises(StoreFailed):
            bucket.commit_prepared(bucket.prepare([[put(3, "another one")]]), unfinished=True)
        bucket.reopen(writable=False)
        assert _state(bucket) == (_DURABLE, 1, {"job 1": _OLD}, [1])
        bucket.reopen(writable=True)
        assert _state(bucket) == (_DURABLE, 1, {"job 1": _OLD}, [1])
