"""Files that are really damaged: DATA_CORRUPTED, never a short scan."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.errors import DataCorrupted, ScannerError
from scanner.storage.group_states import GroupState
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.readers import CheckedIterator
from scanner.storage.rocksdb.store import RocksStore
from tests.support.changes import read_changes
from tests.support.living import copy_living
from tests.support.storage_damage import chunk_key, delete_change, file_with, flip
from tests.support.storage_tables import (
    ITEMS,
    contents,
    delete,
    drain,
    item_key,
    items_of,
    one_bucket,
    put,
    puts,
)

if TYPE_CHECKING:
    from scanner.storage.rocksdb.bucket import RocksBucket
    from scanner.storage.rocksdb.scan import RocksScan

_ROWS = 5000
_CONFIG = StorageConfig(compression=Compression.NONE, block_bytes=1024)


def _make(directory: Path) -> None:
    with RocksStore.open(directory, _CONFIG) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for start in range(0, _ROWS, 500):
            bucket.commit([puts((number, f"row {number:06d}") for number in range(start, start + 500))])
        bucket.flush()


def _open_scan(bucket: RocksBucket, way: str, key_range: KeyRange = ALL_KEYS) -> RocksScan:
    """A scan of the bucket as it is: one that goes the fast way, or one that shares its snapshot's iterator."""
    snapshot = bucket.open_snapshot()
    if way == "shared":
        bucket.commit([[put(9000, "later")]])
    return snapshot.scan(key_range)


_WAYS = pytest.mark.parametrize("way", ["fresh", "shared"])


@_WAYS
@pytest.mark.parametrize("damaged_row", [0, 1, _ROWS // 2, _ROWS - 1])
def test_a_damaged_block_ends_a_scan_with_an_error(tmp_path: Path, damaged_row: int, way: str) -> None:
    """Rows before the damage are right; then the scan fails, again and again, and never says it is complete."""
    _make(tmp_path)
    flip(*file_with(tmp_path, f"row {damaged_row:06d}".encode()))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        scan = _open_scan(store.bucket("items", 0), way)
        rows: list[bytes] = []
        with pytest.raises(DataCorrupted, match="checksum mismatch"):
            while read := scan.read(100, 1 << 20):
                rows += read.rows
        assert len(rows) <= damaged_row
        assert items_of(rows) == [(number, f"row {number:06d}") for number in range(len(rows))]
        with pytest.raises(DataCorrupted):
            scan.read(100, 1 << 20)


@_WAYS
def test_a_range_beside_the_damage_can_be_scanned(tmp_path: Path, way: str) -> None:
    """Only scans that need the damaged block fail; the end of a range is proven without it."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        assert len(drain(_open_scan(bucket, way, KeyRange(b"", item_key(2400))), rows_max=_ROWS)) == 2400
        bucket.commit([[delete(9000)]])
        assert len(drain(_open_scan(bucket, way, KeyRange(item_key(3000), b"")))) == 2000
        with pytest.raises(DataCorrupted):
            drain(_open_scan(bucket, way, KeyRange(item_key(2400), item_key(2600))))


@_WAYS
def test_damage_under_a_run_of_deletes_is_found(tmp_path: Path, way: str) -> None:
    """Where all that is left of a range is unreadable, the scan is not empty but failed."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        bucket.commit([[put(9000, "kept")]])
        with pytest.raises(DataCorrupted):
            drain(_open_scan(bucket, way, KeyRange(item_key(2500), item_key(2501))))


def test_a_damaged_row_is_never_an_absent_one(tmp_path: Path) -> None:
    """A point read that needs the damaged block fails, again and again; the others find their rows."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        reader = store.bucket("items", 0).open_reader()
        for _ in range(2):
            with pytest.raises(DataCorrupted, match="checksum mismatch"):
                reader.get(item_key(2500))
        for number in (0, 1000, 4999):
            assert items_of([reader.get(item_key(number)) or b""]) == [(number, f"row {number:06d}")]
        assert reader.get(item_key(9000)) is None
        reader.close()
    RocksStore.open(tmp_path, _CONFIG).close()


def test_a_damaged_before_image_refuses_the_commit_and_changes_nothing(tmp_path: Path) -> None:
    """A commit that cannot read what it replaces is refused as a whole; other keys can still be written."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        with pytest.raises(DataCorrupted):
            bucket.commit([[put(1, "new"), delete(2500)]])
        assert bucket.log_end == _ROWS
        assert bucket.commit([[put(1, "new")]]) == [(_ROWS, _ROWS + 2)]


def test_a_read_that_fails_only_once_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bulk iterator stops silently; if the proof can read on, rows were missed, and that is an error.

    The rows in front of it are good, and come first.
    """
    _make(tmp_path)
    path, at = file_with(tmp_path, b"row 002500")
    flip(path, at)
    require_end = CheckedIterator.require_end

    def require_end_later(checked: CheckedIterator, last_key: bytes | None, key_range: KeyRange) -> None:
        flip(path, at)
        require_end(checked, last_key, key_range)

    monkeypatch.setattr(CheckedIterator, "require_end", require_end_later)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        scan = store.bucket("items", 0).open_snapshot().scan()
        read = scan.read(_ROWS, 1 << 30)
        assert 0 < len(read) < 2501
        assert not read.last
        for _ in range(2):
            with pytest.raises(DataCorrupted, match="a read failed before key"):
                scan.read(_ROWS, 1 << 30)


def test_a_damaged_log_record_is_an_error_of_the_read(tmp_path: Path) -> None:
    """Reading changes over a damaged block raises; no offset is skipped."""
    _make(tmp_path)
    kv_path, _ = file_with(tmp_path, b"row 002500")
    others = [path for path in tmp_path.glob("tables/*/0000/*.sst") if path != kv_path]
    log_path = max(others, key=lambda path: path.stat().st_size)
    flip(log_path, log_path.stat().st_size // 2)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        assert len(list(read_changes(bucket, 0, 1000))) == 1000
        with pytest.raises(DataCorrupted, match="checksum mismatch"):
            list(read_changes(bucket, 0, _ROWS))
        with pytest.raises(DataCorrupted, match="checksum mismatch"):
            for offset in range(0, _ROWS, 500):
                bucket.entry_at(offset)


def test_a_damaged_state_of_a_reader_group_is_damage(tmp_path: Path) -> None:
    """The bucket does not open without it: the group would begin anew."""
    damaged = 0x1122334455667788
    with RocksStore.open(tmp_path, _CONFIG) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        states = {
            f"group{number}": GroupState(damaged if number == 500 else number) for number in range(1000)
        }
        bucket.commit_prepared(bucket.prepare([]), states)
        assert bucket._lifetime.database is not None
        bucket._lifetime.database.meta.flush()
    flip(*file_with(tmp_path, damaged.to_bytes(8, "big")))
    with RocksStore.open(tmp_path, _CONFIG) as store, pytest.raises(DataCorrupted, match="checksum mismatch"):
        store.bucket("items", 0)


def test_a_missing_change_is_an_error_of_the_read(tmp_path: Path) -> None:
    """The log is dense: a hole in it is damage, in the middle and at the end of what is read."""
    _make(tmp_path)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        assert bucket._lifetime.database is not None
        bucket._lifetime.database.log.delete(chunk_key(bucket._lifetime.database.log, 2500))
        for end in (2501, _ROWS):
            with pytest.raises(DataCorrupted, match="2500 is missing"):
                list(read_changes(bucket, 0, end))


@pytest.mark.parametrize(
    ("offset", "message"), [(_ROWS - 500, f"end at offset {_ROWS}"), (2500, "1 of the 10 pieces")]
)
def test_a_log_with_a_hole_is_refused_at_open(tmp_path: Path, offset: int, message: str) -> None:
    """Where changes are missing, rows are: the bucket does not open with less than was acknowledged."""
    _make(tmp_path)
    delete_change(tmp_path, offset)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        for _ in range(2):
            with pytest.raises(DataCorrupted, match=message):
                store.bucket("items", 0)


def test_a_scan_that_fails_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    """Scans that share an iterator fail each for itself, whoever moved it last and wherever it stuck."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        bucket.commit([[put(9000, "later")]])
        before, across = snapshot.scan(KeyRange(b"", item_key(2000))), snapshot.scan(KeyRange(item_key(2000)))
        behind = snapshot.scan(KeyRange(item_key(3000)))
        rows = before.read(100, 1 << 20).rows + behind.read(100, 1 << 20).rows
        for _ in range(2):
            with pytest.raises(DataCorrupted):
                drain(across)
        rest = drain(before), drain(behind)
        assert [number for number, _ in items_of(rows)] == [*range(100), *range(3000, 3100)]
        assert [number for number, _ in rest[0] + rest[1]] == [*range(100, 2000), *range(3100, _ROWS)]


def test_a_compaction_over_damage_is_an_error(tmp_path: Path) -> None:
    """A compaction that cannot read a file says so, though rocksdict does not; then the bucket refuses writes."""
    with RocksStore.open(tmp_path, _CONFIG) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, f"row {number:06d}") for number in range(_ROWS))])
        bucket.flush()
        bucket.commit([puts((number, "new") for number in range(0, _ROWS, 100))])
        bucket.flush()
    flip(*file_with(tmp_path, b"row 002510"))
    with RocksStore.open(tmp_path, _CONFIG) as store:
        bucket = store.bucket("items", 0)
        with pytest.raises(DataCorrupted, match="checksum mismatch"):
            bucket.compact()
        with pytest.raises(DataCorrupted, match="until it is reopened"):
            bucket.commit([[put(1, "x")]])
        bucket.reopen(writable=True)
        bucket.commit([[put(1, "x")]])


@_WAYS
def test_a_failed_scan_does_not_keep_the_directory_locked(tmp_path: Path, way: str) -> None:
    """Who still holds the error of a scan can close the store and open it again."""
    _make(tmp_path)
    flip(*file_with(tmp_path, b"row 002500"))
    kept: list[ScannerError] = []
    with RocksStore.open(tmp_path, _CONFIG) as store:
        scan = _open_scan(store.bucket("items", 0), way)
        try:
            drain(scan)
        except DataCorrupted as error:
            kept.append(error)
    assert kept
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert store.bucket("items", 0).log_end >= _ROWS


@pytest.mark.parametrize("victim", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_missing_files_are_damage_and_not_an_empty_table(tmp_path: Path, victim: str) -> None:
    """A bucket that lost a file does not open, and the error says where it is."""
    _make(tmp_path)
    path = next(iter(tmp_path.glob(f"tables/*/0000/{victim}")))
    path.unlink()
    with RocksStore.open(tmp_path, _CONFIG) as store:
        with pytest.raises(DataCorrupted, match=f"^{re.escape(str(path.parent))}: ") as caught:
            store.bucket("items", 0)
        assert "/proc/" not in caught.value.message
        assert contents(store.bucket("items", 1)) == {}


def test_the_write_ahead_log_of_another_bucket_is_refused(tmp_path: Path) -> None:
    """A log that begins in the middle of a history, under the name of another bucket's: nobody sees a row of it.

    RocksDB numbers the column families of each database in an order of its own, one of six: with seven databases there
    are two whose logs fit each other.
    """
    served = tmp_path / "served"
    tables = [f"table{number}" for number in range(7)]
    with RocksStore.open(served) as store:
        for name in tables:
            store.create_table(one_bucket(name))
            store.bucket(name, 0).commit([puts((number, name) for number in range(20))])
            store.bucket(name, 0).flush()  # The log is a new one then.
            store.bucket(name, 0).commit([puts((number, f"{name}, later") for number in range(10, 30))])
        copy_living(served, tmp_path / "killed")
    for ours, theirs in itertools.combinations(range(len(tables)), 2):
        now = tmp_path / f"{ours} {theirs}"
        shutil.copytree(tmp_path / "killed", now)
        log, other = (max(now.glob(f"tables/{table:06d}/0000/*.log")) for table in (ours, theirs))
        assert log.stat().st_size
        shutil.copy(other, log)
        with RocksStore.open(now) as store, pytest.raises(DataCorrupted):
            contents(store.bucket(tables[ours], 0))
        shutil.rmtree(now)
