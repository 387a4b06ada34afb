"""Snapshots on RocksDB: when they take the fast way, what they pin, and that nothing stays locked."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scanner.errors import DataCorrupted, StoreClosed, StoreFailed
from scanner.storage.records import Entry
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.database import Database, open_database
from scanner.storage.rocksdb.store import RocksStore
from tests.support.file_limit import file_size_limit
from tests.support.storage_tables import ITEMS, drain, put, puts

_OLD = [(number, "old") for number in range(3000)]


def _store(directory: Path, config: StorageConfig | None = None) -> RocksStore:
    store = RocksStore.open(directory, config)
    store.create_table(ITEMS)
    store.bucket("items", 0).commit([puts(_OLD)])
    return store


def test_a_scan_of_a_fresh_snapshot_goes_the_fast_way(tmp_path: Path) -> None:
    """While nothing was committed since, a scan has an iterator of its own; later ones share the snapshot's."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        fast = snapshot.scan()
        assert snapshot.iterators == 2
        bucket.truncate_log(10)
        also_fast = snapshot.scan()
        assert snapshot.iterators == 3
        bucket.commit([[put(1, "new")]])
        shared = snapshot.scan()
        assert snapshot.iterators == 3
        assert drain(fast, 500) == drain(also_fast, 500) == drain(shared, 500) == _OLD
        assert snapshot.iterators == 1


def test_a_bucket_wakes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread opens what was closed for being idle, whether to read or to write, the others wait for it."""
    waiting: list[bool] = []
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts([(1, "row")])])

        def is_free() -> bool:
            if free := bucket._lifetime._gate.acquire(blocking=False):
                bucket._lifetime._gate.release()
            return free

        def open_and_look(*args: Any, **options: Any) -> Database:
            with ThreadPoolExecutor(1) as other:
                waiting.append(not other.submit(is_free).result())
            return open_database(*args, **options)

        monkeypatch.setattr("scanner.storage.rocksdb.opening.open_database", open_and_look)
        for use in (lambda: bucket.entry_at(0), lambda: bucket.commit([puts([(2, "row")])])):
            bucket.close_idle()
            assert bucket.idle
            use()
            assert not bucket.idle
    assert waiting == [True, True]


@pytest.mark.parametrize("for_good", [False, True])
def test_a_read_of_the_log_waits_while_its_bucket_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool
) -> None:
    """One that comes amidst that has its entry from the database opened again, unless it was closed for good."""
    came = threading.Event()

    class Gate(threading.Condition):
        def __enter__(self) -> bool:
            if threading.current_thread() is not threading.main_thread():
                came.set()
            return super().__enter__()

    with ThreadPoolExecutor(1) as other, _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        monkeypatch.setattr(bucket._lifetime, "_gate", Gate())
        close_database, reads = Database.close, list[Future[Entry]]()

        def close_beside_a_read(database: Database) -> None:
            if not reads:
                reads.append(other.submit(bucket.entry_at, 0))
                reads[0].add_done_callback(lambda _: came.set())
                came.wait()
            close_database(database)

        monkeypatch.setattr(Database, "close", close_beside_a_read)
        (bucket.close if for_good else bucket.close_idle)()
        if for_good:
            with pytest.raises(StoreClosed, match="was closed"):
                reads[0].result()
        else:
            assert reads[0].result().end == len(_OLD)


@pytest.mark.parametrize("scanned", [False, True])
def test_a_bucket_that_is_read_is_not_idle(tmp_path: Path, scanned: bool) -> None:
    """A snapshot alone keeps its database open, and so does a scan of it; without either it is closed."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        scan = snapshot.scan() if scanned else None
        bucket.close_idle()
        assert not bucket.idle
        assert drain(scan or snapshot.scan(), 500) == _OLD
        snapshot.close()
        bucket.close_idle()
        assert bucket.idle


@pytest.mark.parametrize("writable", [True, False])
def test_a_bucket_that_is_opened_again_is_not_idle(tmp_path: Path, writable: bool) -> None:
    """It has its database open, for reading at least."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        bucket.close_idle()
        bucket.reopen(writable=writable)
        assert not bucket.idle
        assert bucket.entry_at(0).end == len(_OLD)


def test_commits_and_truncations_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes down the log's range: of two at a time, one would bring back what the other one changed."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        make_durable, alone = bucket._make_durable, list[bool]()

        def look(*args: Any) -> None:
            alone.append(bucket._lifetime.committing.locked())
            make_durable(*args)

        monkeypatch.setattr(bucket, "_make_durable", look)
        bucket.commit([[put(1, "new")]])
        bucket.truncate_log(len(_OLD))
        assert (bucket.log_start, alone) == (len(_OLD), [True, True])


def test_a_scan_that_is_opened_while_a_commit_runs_shows_none_of_it(tmp_path: Path) -> None:
    """Rows that a commit has written but not made durable are invisible, as are those of one that failed."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        database = bucket._lifetime.database
        assert database is not None
        with bucket._lifetime.committing:
            row = puts([(1, "half")])[0]
            database.kv[row.key] = row.row
            during = snapshot.scan()
        bucket._lifetime.failure = StoreFailed("the sync failed")
        after = snapshot.scan()
        assert snapshot.iterators == 1
        assert drain(during, 500) == drain(after, 500) == _OLD


def test_snapshots_go_on_after_a_failed_write(tmp_path: Path) -> None:
    """A bucket whose disk refused opens no new snapshot; those that are open show what they showed."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        with file_size_limit(200 * 1024), pytest.raises(StoreFailed):
            bucket.commit([puts((number, "x" * 1000) for number in range(1000))])
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.open_snapshot()
        assert drain(snapshot.scan(), 500) == _OLD


def test_closing_frees_the_directory_whoever_still_holds_what(tmp_path: Path) -> None:
    """Snapshots, scans half read and their errors may outlive the store: it can be opened again at once."""
    store = _store(tmp_path)
    bucket = store.bucket("items", 0)
    store.create_checkpoint("items", 0)
    kept = [bucket.open_snapshot(), bucket.open_snapshot(), store.open_checkpoint("items", 0, 0)]
    fast = [snapshot.scan() for snapshot in kept]
    bucket.commit([[put(1, "new")]])
    scans = [*fast, *(snapshot.scan() for snapshot in kept)]
    for scan in scans:
        scan.read(10, 1 << 20)
    store.close()
    assert bucket.open_iterators == 0
    errors = []
    for scan in scans:
        with pytest.raises(StoreClosed) as caught:
            scan.read(1, 1)
        errors.append(caught)
    with RocksStore.open(tmp_path) as again:
        assert len(drain(again.bucket("items", 0).open_snapshot().scan(), 500)) == 3000


def test_a_row_that_vanishes_from_a_snapshot_is_damage(tmp_path: Path) -> None:
    """A scan that comes back to its place and does not find its row there does not go on with another."""
    with _store(tmp_path) as store:
        bucket = store.bucket("items", 0)
        snapshot = bucket.open_snapshot()
        bucket.commit([[put(1, "new")]])
        one, two = snapshot.scan(), snapshot.scan()
        one.read(10, 1 << 20)
        two.read(5, 1 << 20)
        reader = one._reader
        assert reader is not None
        reader.position += b"\x00"  # type: ignore[attr-defined]
        with pytest.raises(DataCorrupted, match="was there and is gone"):
            one.read(10, 1 << 20)
        assert len(drain(two, 500)) == 2995


def test_compaction_reclaims_what_no_snapshot_pins(tmp_path: Path) -> None:
    """Replaced rows stay on disk while a snapshot shows them, and go with it."""

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("tables/*/0000/*.sst"))

    with _store(tmp_path, StorageConfig(compression=Compression.NONE)) as store:
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, f"{number:0200d}") for number in range(3000))])
        bucket.truncate_log(bucket.log_end)
        bucket.compact()
        snapshot = bucket.open_snapshot()
        bucket.commit([puts((number, "small") for number in range(3000))])
        bucket.truncate_log(bucket.log_end)
        bucket.compact()
        assert size() > 600_000
        assert drain(snapshot.scan(), 500)[-1] == (2999, f"{2999:0200d}")
        snapshot.close()
        assert size() < 200_000


def test_a_close_ends_a_running_compaction(tmp_path: Path) -> None:
    """Nobody waits for a compaction of a store that is closed; its caller learns that it did not finish."""
    store = _store(tmp_path, StorageConfig(bucket_write_buffer_bytes=64 * 1024))
    bucket = store.bucket("items", 0)
    for number in range(20):
        bucket.commit([puts((number + 20 * each, "x" * 100) for each in range(2000))])
    outcome: list[BaseException | None] = []

    def compact() -> None:
        try:
            bucket.compact()
            outcome.append(None)
        except StoreClosed as error:
            outcome.append(error)

    thread = threading.Thread(target=compact)
    thread.start()
    store.close()
    thread.join()
    # Whether it had finished, had not begun or was in the middle: it returned, and the directory is free.
    assert len(outcome) == 1
    with RocksStore.open(tmp_path) as again:
        assert len(drain(again.bucket("items", 0).open_snapshot().scan(), 5000)) == 40_000
