"""The changelog in RocksDB: dense whatever was truncated, cheap to check, and its space comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanner.errors import DataCorrupted
from scanner.storage import rocks_log
from scanner.storage.changelog import LogRange, log_key
from scanner.storage.config import Compression, StorageConfig
from scanner.storage.rocks_log import LogFile, unproven_ranges
from scanner.storage.store import RocksStore
from tests.support.storage_damage import delete_change
from tests.support.storage_tables import ITEMS, changes_of, put, puts

_SMALL = StorageConfig(
    compression=Compression.NONE, bucket_write_buffer_bytes=64 * 1024, write_buffers_bytes=1024 * 1024
)


def _dense(start: int, end: int) -> LogFile:
    return LogFile(start, end, end - start, 0, 1)


def _hiding(start: int, end: int, entries: int = 1) -> LogFile:
    return LogFile(start, end, entries, 1, 1)


@pytest.mark.parametrize(
    ("files", "log_range", "expected"),
    [
        ([], (0, 0), []),
        ([], (3, 9), [(3, 9)]),
        ([_dense(0, 9)], (0, 9), []),
        ([_dense(0, 9)], (4, 6), []),
        ([_dense(0, 4), _dense(6, 9)], (0, 9), [(4, 6)]),
        ([_dense(0, 4), _dense(2, 9)], (0, 9), []),
        ([LogFile(0, 9, 8, 0, 1)], (0, 9), [(0, 9)]),
        ([_dense(0, 9), _hiding(0, 4)], (3, 9), [(3, 4)]),
        ([_dense(0, 9), _hiding(3, 4)], (0, 9), [(3, 4)]),
        ([_dense(0, 9), _hiding(0, 20, 12)], (5, 20), [(5, 20)]),
        ([_dense(0, 5), _dense(7, 9), _hiding(4, 8)], (0, 9), [(4, 8)]),
    ],
)
def test_only_what_no_file_vouches_for_is_counted(
    files: list[LogFile], log_range: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    """A full file without deletions proves its offsets, unless a deletion elsewhere may hide some."""
    for order in (files, files[::-1]):
        assert unproven_ranges(order, LogRange(*log_range, 0)) == expected


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many offsets each check of a log had to count."""
    counts: list[int] = []

    def counting(files: list[LogFile], log_range: LogRange) -> list[tuple[int, int]]:
        ranges = unproven_ranges(files, log_range)
        counts.append(sum(end - start for start, end in ranges))
        return ranges

    monkeypatch.setattr(rocks_log, "unproven_ranges", counting)
    return counts


def _make(directory: Path) -> None:
    with RocksStore.open(directory, _SMALL) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for first in range(0, 20_000, 500):
            bucket.commit([puts((number, "x" * 50) for number in range(first, first + 500))])


@pytest.mark.parametrize("compacted", [False, True])
def test_an_open_after_a_truncation_counts_little(
    tmp_path: Path, counted: list[int], compacted: bool
) -> None:
    """However often the log was truncated, the check at open reads no more than a few write buffers."""
    _make(tmp_path)
    for start in (100, 5000, 5001, 12_345):
        with RocksStore.open(tmp_path, _SMALL) as store:
            bucket = store.bucket("items", 0)
            bucket.truncate_log(start)
            if compacted:
                bucket.compact()
    with RocksStore.open(tmp_path, _SMALL) as store:
        bucket = store.bucket("items", 0)
        assert (bucket.log_start, bucket.log_end) == (12_345, 20_000)
        assert len(changes_of(bucket)) == 7_655
    assert len(counted) == 2 + 1 + 4 + 1  # Two were created; this one was opened thereafter, and so on.
    assert max(counted) == 0 if compacted else max(counted) < 5_000


@pytest.mark.parametrize("offset", [12_345, 12_346, 15_000, 19_998])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_hole_in_a_truncated_log_is_refused_at_open(tmp_path: Path, offset: int, compacted: bool) -> None:
    """The check finds one missing change wherever it is, beside deletions that are as they should be."""
    _make(tmp_path)
    with RocksStore.open(tmp_path, _SMALL) as store:
        store.bucket("items", 0).truncate_log(12_345)
        if compacted:
            store.bucket("items", 0).compact()
    delete_change(tmp_path, offset)
    with RocksStore.open(tmp_path, _SMALL) as store, pytest.raises(DataCorrupted, match="1 of the 7655"):
        store.bucket("items", 0)


def test_what_was_truncated_may_be_missing(tmp_path: Path) -> None:
    """Only the log's range must be dense: what is before it is nobody's."""
    _make(tmp_path)
    with RocksStore.open(tmp_path, _SMALL) as store:
        store.bucket("items", 0).truncate_log(12_345)
    delete_change(tmp_path, 12_344)
    with RocksStore.open(tmp_path, _SMALL) as store:
        assert store.bucket("items", 0).log_start == 12_345


def test_a_compaction_gives_the_space_of_a_truncated_log_back(tmp_path: Path) -> None:
    """The files shrink by about what was dropped, and log_bytes says the same before and after."""

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("tables/*/0000/*.sst"))

    _make(tmp_path)
    with RocksStore.open(tmp_path, _SMALL) as store:
        bucket = store.bucket("items", 0)
        bucket.compact()
        full, log_full = size(), bucket.log_bytes
        bucket.truncate_log(18_000)
        log_left = bucket.log_bytes
        assert log_left == pytest.approx(log_full / 10, rel=0.3)
        bucket.compact()
        assert size() == pytest.approx(full - (log_full - log_left), rel=0.1)
        assert bucket.log_bytes == pytest.approx(log_left, rel=0.3)


def test_writing_on_gives_the_space_back_without_being_asked(tmp_path: Path) -> None:
    """RocksDB's own compactions drop what was truncated; nobody needs to order one."""
    _make(tmp_path)
    with RocksStore.open(tmp_path, _SMALL) as store:
        bucket = store.bucket("items", 0)
        for number in range(60):
            bucket.commit([puts((key, "y" * 50) for key in range(500))])
            bucket.truncate_log(bucket.log_end - 1000)
            if number % 10 == 9:
                bucket.flush()
        assert bucket._database is not None
        files = rocks_log._files_of(bucket._database)
        assert sum(file.entries for file in files) < 40_000
        bucket.commit([[put(1, "z")]])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"short", b"", "no offset"),
        (log_key(15_000), b"\x01", "offset 15000 is damaged"),
        (log_key(15_000), None, "offset 15000 is missing"),
    ],
)
def test_records_that_are_none_are_damage(
    tmp_path: Path, key: bytes, value: bytes | None, message: str
) -> None:
    """A key that is no offset, a record without a time and one that is gone are all found by who needs them."""
    _make(tmp_path)
    with RocksStore.open(tmp_path, _SMALL) as store:
        bucket = store.bucket("items", 0)
        bucket.truncate_log(10_000)
        database = bucket._database
        assert database is not None
        if value is None:
            database.log.delete(key)
        else:
            database.log[key] = value
        bucket.flush()
        with pytest.raises(DataCorrupted, match=message):
            _ = bucket.log_bytes if key == b"short" else bucket.offset_at(1 << 62)
