"""A commit that a power failure has left in pieces was acknowledged to no one: it goes, and nothing else does.

What was not synced is on the disk page by page, in any order. So the end of a write-ahead log is not only cut, as after
a kill, but has holes.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from scanner.errors import DataCorrupted, StoreFailed, TooManyFiles
from scanner.server.inspection import Inspection
from scanner.storage.group_states import GroupState
from scanner.storage.rocksdb import durable_end
from scanner.storage.rocksdb.opening import BucketOpener
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.torn_tail import has_torn_tail
from tests.support.file_limit import no_more_files
from tests.support.living import copy_living, end_background_work
from tests.support.storage_damage import flip
from tests.support.storage_tables import contents, one_bucket, put, puts, replayed

pytestmark = pytest.mark.rocks

_PAGE = 4096
_RNG = random.Random(3)
_LARGE = puts((number, _RNG.randbytes(15_000).hex()) for number in range(4))
"""A record of some blocks of 32 KiB, compressed as it is in the log."""
_KEPT: dict[int, str | None] = {1: "acknowledged", 2: "acknowledged, too"}


def _cut_off(path: Path, *later: str, alone: bool = False) -> tuple[Path, Path, range]:
    """A bucket as it is before a large commit is synced: its directory, its write-ahead log, and where the commit is.

    Args:
        path: Of the data directory that is made.
        later: Texts of commits after it.
        alone: No other commit is in its log.
    """
    with RocksStore.open(path / "running") as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        for number, text in _KEPT.items():
            bucket.commit([[put(number, text)]])
        if alone:
            store.create_checkpoint("it", 0)
        (directory,) = (path / "running").glob("tables/*/0000")
        log = max(directory.glob("*.log"))
        start, end_file = log.stat().st_size, (directory / durable_end.NAME).read_bytes()
        bucket.commit([_LARGE])
        end = log.stat().st_size
        for text in later:
            bucket.commit([[put(9, text)]])
        end_background_work(bucket)
        shutil.copytree(path / "running", path / "data")
    (directory,) = (path / "data").glob("tables/*/0000")
    (directory / durable_end.NAME).write_bytes(end_file)
    assert end - start > 3 * 32 * 1024
    return directory, directory / log.name, range(start, end)


def _lose(log: Path, start: int, end: int) -> None:
    """Some octets never reached the disk; the length of the file did."""
    with log.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def _cut(log: Path, size: int) -> None:
    with log.open("r+b") as file:
        file.truncate(size)


def _lost(commit: range) -> dict[str, range]:
    """Pages of a commit, by which they are."""
    first = commit.start - commit.start % _PAGE + _PAGE
    last = commit.stop - 1 - (commit.stop - 1) % _PAGE
    middle = (commit.start + commit.stop) // 2
    middle -= middle % _PAGE
    return {
        "first": range(commit.start, first),
        "second": range(first, first + _PAGE),
        "middle": range(middle, middle + _PAGE),
        "last": range(last, commit.stop),
        "all but the last": range(commit.start, last),
    }


@pytest.mark.parametrize("pages", ["first", "second", "middle", "last", "all but the last"])
def test_a_commit_in_pieces_is_dropped(tmp_path: Path, pages: str) -> None:
    """Whichever pages are missing, everything acknowledged is there, the doctor agrees, and the bucket goes on."""
    directory, log, commit = _cut_off(tmp_path)
    lost = _lost(commit)[pages]
    _lose(log, lost.start, lost.stop)
    assert has_torn_tail(directory)
    data = tmp_path / "data"
    assert [finding for finding in Inspection(data, now_ms=0).findings() if finding.lost] == []
    for text in ("later", "later still"):
        with RocksStore.open(data) as store:
            bucket = store.bucket("it", 0)
            assert contents(bucket) == replayed(bucket) == _KEPT | ({9: "later"} if "still" in text else {})
            assert (bucket.lost_changes, bucket.failure) == (0, None)
            bucket.commit([[put(9, text)]])
    assert not has_torn_tail(directory)


def test_logs_that_cannot_be_opened_for_now_are_not_damaged(tmp_path: Path) -> None:
    """A process that may open no more files says that, and not that the files are to be restored from a copy."""
    directory, log, commit = _cut_off(tmp_path)
    _lose(log, *_bounds(_lost(commit)["middle"]))
    with no_more_files(), pytest.raises(TooManyFiles):
        has_torn_tail(directory)
    assert has_torn_tail(directory)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("went_on", [False, True])
def test_a_start_that_is_cut_off_is_followed_by_another(tmp_path: Path, alone: bool, went_on: bool) -> None:
    """The log of the start that dropped a commit is there beside the one with its pieces.

    It is new and says only that something was dropped; or has a commit that is in pieces, and the older one is back.
    """
    directory, log, commit = _cut_off(tmp_path, alone=alone)
    _lose(log, *_bounds(_lost(commit)["middle"]))
    shutil.copytree(tmp_path / "data", tmp_path / "first")
    with RocksStore.open(tmp_path / "first") as store:
        bucket = store.bucket("it", 0)
        (first,) = (tmp_path / "first").glob("tables/*/0000")
        (begun,) = first.glob("*.log")
        assert bool(begun.stat().st_size) != alone  # The record that says so.
        if went_on:
            end_file = (first / durable_end.NAME).read_bytes()
            start = begun.stat().st_size
            bucket.commit([_LARGE])
            kept = tmp_path / "kept"
            copy_living(tmp_path / "first", kept)
        else:
            shutil.copy(begun, directory)
    if went_on:
        (again,) = kept.glob("tables/*/0000")
        (again / durable_end.NAME).write_bytes(end_file)
        _lose(again / begun.name, start + 4 * _PAGE, start + 6 * _PAGE)
        shutil.copy(log, again)
        shutil.rmtree(directory)
        shutil.copytree(again, directory)
    assert len(list(directory.glob("*.log"))) == 2
    assert has_torn_tail(directory)
    assert [finding for finding in Inspection(tmp_path / "data", now_ms=0).findings() if finding.lost] == []
    with RocksStore.open(tmp_path / "data") as store:
        bucket = store.bucket("it", 0)
        assert contents(bucket) == replayed(bucket) == _KEPT
        assert bucket.lost_changes == 0
    assert not has_torn_tail(directory)


def test_a_commit_that_was_durable_is_damaged(tmp_path: Path) -> None:
    """What `DURABLE-END` tells of was acknowledged: it is not dropped without a word."""
    directory, log, commit = _cut_off(tmp_path)
    shutil.copy(next((tmp_path / "running").glob(f"tables/*/0000/{durable_end.NAME}")), directory)
    _lose(log, *_bounds(_lost(commit)["middle"]))
    with RocksStore.open(tmp_path / "data") as store, pytest.raises(DataCorrupted, match="damaged"):
        store.bucket("it", 0)


@pytest.mark.parametrize("was_durable", [False, True])
def test_it_is_the_same_where_the_disk_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_durable: bool
) -> None:
    """A bucket that can only be read shows what was acknowledged, or nothing."""
    directory, log, commit = _cut_off(tmp_path)
    if was_durable:
        shutil.copy(next((tmp_path / "running").glob(f"tables/*/0000/{durable_end.NAME}")), directory)
    _lose(log, *_bounds(_lost(commit)["middle"]))

    def refuse(self: BucketOpener, **_: bool) -> NoReturn:
        raise StoreFailed("the disk takes nothing")

    monkeypatch.setattr(BucketOpener, "_open_writable", refuse)
    with RocksStore.open(tmp_path / "data") as store:
        if was_durable:
            with pytest.raises(DataCorrupted, match="newest commit, which was acknowledged, is damaged"):
                store.bucket("it", 0)
        else:
            assert contents(store.bucket("it", 0)) == _KEPT


def _of_a_group(path: Path) -> tuple[Path, Path, range]:
    """As `_cut_off`, of a commit that was acknowledged and changed no row: it moves a reader group from 1 to 2."""
    with RocksStore.open(path / "running") as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        for number, text in _KEPT.items():
            bucket.commit([[put(number, text)]])
        (directory,) = (path / "running").glob("tables/*/0000")
        log, ends = max(directory.glob("*.log")), list[int]()
        for position in (1, 2):
            bucket.commit_prepared(bucket.prepare([]), {"group": GroupState(1, position)})
            ends.append(log.stat().st_size)
        end_background_work(bucket)
        shutil.copytree(path / "running", path / "data")
    (directory,) = (path / "data").glob("tables/*/0000")
    return directory, directory / log.name, range(*ends)


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_commit_that_changed_no_row_was_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    """The number of RocksDB's in `DURABLE-END` tells of it; the changelog ends where it did."""
    _, log, commit = _of_a_group(tmp_path)
    flip(log, (commit.start + commit.stop) // 2)
    assert any(found.lost for found in Inspection(tmp_path / "data", now_ms=0).findings())

    def refuse(self: BucketOpener, **_: bool) -> NoReturn:
        raise StoreFailed("the disk takes nothing")

    if not is_writable:
        monkeypatch.setattr(BucketOpener, "_open_writable", refuse)
    with RocksStore.open(tmp_path / "data") as store, pytest.raises(DataCorrupted, match="damaged"):
        store.bucket("it", 0)


def test_a_lost_commit_that_changed_no_row_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left is shown; once something is committed, nothing tells of the loss any more."""
    _, log, commit = _of_a_group(tmp_path)
    _cut(log, commit.stop - 1)
    (found,) = [each for each in Inspection(tmp_path / "data", now_ms=0).findings() if each.lost]
    assert "which changed no row" in found.problem
    with RocksStore.open(tmp_path / "data") as store:
        bucket = store.bucket("it", 0)
        assert "which changed no row, are lost" in caplog.text
        assert bucket.group_states["group"].position == 1
        assert (contents(bucket), bucket.lost_changes) == (_KEPT, 0)
        bucket.commit_prepared(bucket.prepare([]), {"group": GroupState(1, 2)})
    caplog.clear()
    with RocksStore.open(tmp_path / "data") as store:
        assert store.bucket("it", 0).group_states["group"].position == 2
    assert "lost" not in caplog.text


@pytest.mark.parametrize("pages", ["first", "middle", "last"])
def test_a_commit_before_another_one_is_damaged(tmp_path: Path, pages: str) -> None:
    """The next commit was written when this one was synced, wherever it begins."""
    directory, log, commit = _cut_off(tmp_path, "next")
    _lose(log, *_bounds(_lost(commit)[pages]))
    assert not has_torn_tail(directory)
    with RocksStore.open(tmp_path / "data") as store, pytest.raises(DataCorrupted, match="damaged"):
        store.bucket("it", 0)


def test_a_wrong_length_hides_no_commit_behind_it(tmp_path: Path) -> None:
    """The next record is found also where nothing leads to it."""
    directory, log, commit = _cut_off(tmp_path)
    flip(log, 4)  # The length of the very first record.
    assert not has_torn_tail(directory)
    assert commit.start > 4
    with RocksStore.open(tmp_path / "data") as store, pytest.raises(DataCorrupted, match="damaged"):
        store.bucket("it", 0)


def test_an_older_log_has_no_torn_tail(tmp_path: Path) -> None:
    """It was synced before the next one was begun."""
    directory, log, commit = _cut_off(tmp_path)
    newer = log.with_name(f"{int(log.stem) + 1:06d}.log")
    shutil.copy(log, newer)
    _lose(newer, *_bounds(_lost(commit)["middle"]))
    assert has_torn_tail(directory)
    shutil.copy(newer, log)
    assert not has_torn_tail(directory)


def test_whole_logs_and_none_have_no_torn_tail(tmp_path: Path) -> None:
    """Whatever is wrong with the database, it is not that."""
    directory, _, _ = _cut_off(tmp_path)
    assert not has_torn_tail(directory)
    assert not has_torn_tail(tmp_path / "none")


def _bounds(pages: range) -> tuple[int, int]:
    return pages.start, pages.stop
