"""The data directory: its lock, its catalog, what survives a restart, and what a refusing disk looks like."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import pyarrow as pa
import pytest

from scanner.data.table import TableDescription
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    DiskFull,
    ScannerError,
    SchemaMismatch,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TooManyFiles,
)
from scanner.storage.rocksdb import bucket as rocks_bucket
from scanner.storage.rocksdb import database as rocks_database
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.catalog import load_catalog
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.database import RocksResources, compact_database, open_database
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.untouched import SETTINGS_NAME
from tests.support.arrow_values import STORED_TYPES
from tests.support.changes import read_changes
from tests.support.file_limit import file_size_limit
from tests.support.storage_tables import ITEMS, changes_of, contents, delete, drain, put, puts

if TYPE_CHECKING:
    from rocksdict import WriteBatch

    from scanner.storage.rocksdb.catalog import TableEntry
    from scanner.storage.rocksdb.database import Database

_WAIT_S: Final = 100
"""Far longer than anything takes: only what will never come takes it."""


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Tables, schemas, rows and the log are the same after close and open."""
    wide = TableDescription(
        "wide", pa.schema([(f"c{index}", kind) for index, kind in enumerate(STORED_TYPES)]), ("c3", "c0"), 3
    )
    with RocksStore.open(tmp_path / "a" / "b") as store:
        store.create_table(ITEMS)
        store.create_table(wide)
        bucket = store.bucket("items", 1)
        bucket.commit([puts([(1, "a"), (2, "b")]), [delete(1), put(2, "c")]])
        before = changes_of(bucket)
    with RocksStore.open(tmp_path / "a" / "b") as store:
        assert store.tables() == [ITEMS, wide]
        assert changes_of(store.bucket("items", 1)) == before
        assert contents(store.bucket("items", 1)) == {2: "c"}
        assert store.bucket("items", 1).commit([[delete(2)]]) == [(5, 6)]


class _LockOfCompactions:
    """Who has it goes on when the bucket is being closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken = threading.Event()
        self._closing = threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.taken.set()
        self._closing.wait(_WAIT_S)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        self._closing.set()
        return True


def test_a_bucket_is_closed_while_a_compaction_begins(tmp_path: Path) -> None:
    """Neither waits for the other: the compaction is refused."""
    refused: list[ScannerError] = []
    store = RocksStore.open(tmp_path)
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)

    def compact() -> None:
        try:
            bucket.compact()
        except ScannerError as error:
            refused.append(error)

    lock = _LockOfCompactions()
    bucket._lifetime._compacting = cast("Any", lock)
    compacting = threading.Thread(target=compact, daemon=True)
    closing = threading.Thread(target=store.close, daemon=True)
    compacting.start()
    assert lock.taken.wait(_WAIT_S)
    closing.start()
    for thread in (closing, compacting):
        thread.join(_WAIT_S)
        assert not thread.is_alive()
    assert [type(each) for each in refused] == [StoreClosed]


def _watch_closing(monkeypatch: pytest.MonkeyPatch, watch: Callable[[Database], None]) -> None:
    """Show each database that is closed, before it is."""
    close = rocks_database.Database.close

    def watched(database: Database) -> None:
        watch(database)
        close(database)

    monkeypatch.setattr(rocks_database.Database, "close", watched)


def test_buckets_of_all_tables_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four is being closed while the others are: one by one, hundreds take seconds."""
    all_four = threading.Barrier(4, timeout=_WAIT_S)
    store = RocksStore.open(tmp_path)
    for name in "ab":
        store.create_table(replace(ITEMS, name=name, buckets=2))
        for index in range(2):
            store.bucket(name, index).commit([[put(1, name)]])
    with monkeypatch.context() as patch:
        _watch_closing(patch, lambda _database: cast("None", all_four.wait()))
        store.close()
    with RocksStore.open(tmp_path) as store:
        assert [contents(store.bucket(name, index)) for name in "ab" for index in range(2)] == [
            {1: "a"},
            {1: "a"},
            {1: "b"},
            {1: "b"},
        ]


def test_without_threads_buckets_are_closed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a limit of threads, in the middle of it, too: every directory is free afterwards."""
    store = RocksStore.open(tmp_path)
    store.create_table(replace(ITEMS, buckets=5))
    for index in range(5):
        store.bucket("items", index).commit([[put(1, "a")]])
    start, started = threading.Thread.start, 0

    def start_two(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started > 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_two)
        store.close()
    assert started == 3
    with RocksStore.open(tmp_path) as store:
        assert all(contents(store.bucket("items", index)) == {1: "a"} for index in range(5))


def test_a_bucket_is_flushed_before_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rocksdict flushes what it closes, and nothing else in the process runs meanwhile."""
    unflushed: list[int] = []
    store = RocksStore.open(tmp_path)
    store.create_table(ITEMS)
    store.bucket("items", 0).commit([[put(number, "x" * 1000) for number in range(1000)]])
    assert store.bucket("items", 0).unflushed_bytes > 1_000_000
    _watch_closing(monkeypatch, lambda database: unflushed.append(rocks_database.unflushed_bytes(database)))
    store.close()
    assert len(unflushed) == 1
    assert unflushed[0] < 100_000  # Memtables that are empty.


def test_a_second_server_is_told_who_has_the_directory(tmp_path: Path) -> None:
    """The directory is locked while it is open; the error is one line, names it, and says what to do."""
    with RocksStore.open(tmp_path):
        with pytest.raises(StoreLocked) as caught:
            RocksStore.open(tmp_path)
        assert str(caught.value) == (
            f"data directory {tmp_path} is in use by process {os.getpid()};"
            " stop that server, or use another directory"
        )
        code = f"from scanner.storage.rocksdb.store import RocksStore; RocksStore.open({str(tmp_path)!r})"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert f"process {os.getpid()}" in child.stderr
    RocksStore.open(tmp_path).close()


def test_a_failed_open_leaves_nothing_locked(tmp_path: Path) -> None:
    """After a refusal the directory can be opened as soon as the cause is gone."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
    catalog = tmp_path / "catalog.json"
    text = catalog.read_text()
    catalog.write_text(text[:-10])
    for _ in range(2):
        with pytest.raises(DataCorrupted):
            RocksStore.open(tmp_path)
    catalog.write_text(text)
    RocksStore.open(tmp_path).close()


def test_a_database_that_is_open_elsewhere_is_locked(tmp_path: Path) -> None:
    """RocksDB's own lock is a StoreLocked too, in another process and, under the same path, in this one."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        store.bucket("items", 0)
        path = next(tmp_path.glob("tables/*/0000"))
        code = (
            "from pathlib import Path; from scanner.storage.rocksdb.database import *;"
            " from scanner.storage.rocksdb.config import *\n"
            f"open_database(Path({str(path)!r}), RocksResources(StorageConfig()), create=False)"
        )
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "StoreLocked" in child.stderr
        assert "another process" in child.stderr
    resources = RocksResources(StorageConfig())
    database = open_database(path, resources)
    with pytest.raises(StoreLocked, match="this process"):
        open_database(path, resources)
    database.close()


@pytest.mark.parametrize("damage", ["cut", "digit", "binary", "not json", "gone"])
def test_a_damaged_catalog_is_refused(tmp_path: Path, damage: str) -> None:
    """Whatever happened to the catalog, the store does not open with other tables than it had."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
    catalog = tmp_path / "catalog.json"
    text = catalog.read_text()
    if damage == "gone":
        catalog.unlink()
    elif damage == "binary":
        catalog.write_bytes(b"\xff\xfe")
    else:
        changed = {"cut": text[: len(text) // 2], "digit": text.replace('"buckets": 2', '"buckets": 1')}
        catalog.write_text(changed.get(damage, "[]"))
    with pytest.raises(DataCorrupted, match=r"catalog\.json"):
        RocksStore.open(tmp_path)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """A server pointed at a wrong directory does not spill into it."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreFailed, match="is not empty"):
        RocksStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_path_that_cannot_be_a_directory_is_one_clear_line(tmp_path: Path) -> None:
    """A file in the way is StoreFailed, naming the path."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreFailed, match=str(tmp_path / "file")) as caught:
            RocksStore.open(path)
        assert "\n" not in str(caught.value)


def test_a_table_that_vanished_is_damage(tmp_path: Path) -> None:
    """A bucket whose directory is gone is not an empty bucket."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
    next(tmp_path.glob("tables/*")).rename(tmp_path / "elsewhere")
    with RocksStore.open(tmp_path) as store, pytest.raises(DataCorrupted, match="gone"):
        store.bucket("items", 0)


def test_a_table_that_cannot_be_looked_at_for_now_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor for it the directory is not opened: the table would be refused until the next start."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "table.json":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        with pytest.raises(TooManyFiles, match=r"table\.json"):
            RocksStore.open(tmp_path)
    with RocksStore.open(tmp_path) as store:
        assert store.table(ITEMS.name) == ITEMS


def test_dropping_a_table_frees_its_files_and_its_name(tmp_path: Path) -> None:
    """Nothing is left of a dropped table, now and after a restart, and its id is not used again."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        store.drop_table("items")()
        assert list((tmp_path / "tables").iterdir()) == []
        store.create_table(ITEMS)
        assert [path.name for path in (tmp_path / "tables").iterdir()] == ["000001"]
        assert list((tmp_path / "tables" / "000001").glob("*~")) == []
    with RocksStore.open(tmp_path) as store:
        assert store.tables() == [ITEMS]
        store.drop_table("items")()
    catalog = load_catalog(tmp_path)
    assert catalog is not None
    assert catalog.next_table_id == 2


def test_tables_are_listed_while_another_thread_drops_one(tmp_path: Path) -> None:
    """Those that there were when it began: a table that goes meanwhile is no failure."""
    with RocksStore.open(tmp_path) as store:
        for name in ("first", "second"):
            store.create_table(replace(ITEMS, name=name))
        table = store._tables["first"]
        entry = table.entry

        class Dropping:
            """Stands for the entry, and has the other table dropped when somebody looks at it."""

            @property
            def description(self) -> TableDescription:
                store.drop_table("second")()
                table.entry = entry
                return entry.description

        table.entry = cast("TableEntry", Dropping())
        assert [each.name for each in store.tables()] == ["first", "second"]
        assert [each.name for each in store.tables()] == ["first"]


def test_old_rows_read_as_null_in_a_new_column(tmp_path: Path) -> None:
    """A column can be added; rows, before-images and keys of older rows stay readable, after a restart too."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        store.bucket("items", 0).commit([puts([(1, "a"), (2, "b")])])
        store.add_column("items", pa.field("extra", pa.large_string()))
        description = store.table("items")
        assert description.schema.names == ["id", "text", "extra"]
        batch = pa.RecordBatch.from_pylist([{"id": 2, "text": "c", "extra": "new"}], description.schema)
        key = store.key_codec("items").encode_batch(batch)[0]
        row = store.row_codec("items").encode_batch(batch)[0]
        store.bucket("items", 0).commit([[put(3, "x")._replace(key=key, row=row)]])
    with RocksStore.open(tmp_path) as store:
        scan = store.bucket("items", 0).open_snapshot().scan()
        rows = scan.read(10, 1 << 20).rows
        assert not scan.read(10, 1 << 20)
        assert store.row_codec("items").decode(rows).to_pylist() == [
            {"id": 1, "text": "a", "extra": None},
            {"id": 2, "text": "c", "extra": "new"},
        ]
        assert len(list(read_changes(store.bucket("items", 0), 0, 4))) == 4


def test_columns_that_cannot_be_added_are_refused(tmp_path: Path) -> None:
    """A column that old rows have no value for, or that is there, is refused and changes nothing."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        with pytest.raises(SchemaMismatch, match="nullable"):
            store.add_column("items", pa.field("extra", pa.int8(), nullable=False))
        with pytest.raises(SchemaMismatch, match="uint8"):
            store.add_column("items", pa.field("extra", pa.uint8()))
        with pytest.raises(ArgumentInvalid, match="has a column 'text' already"):
            store.add_column("items", pa.field("text", pa.string()))
        assert store.table("items") == ITEMS


def test_a_bucket_whose_flush_was_refused_takes_writes_again(tmp_path: Path) -> None:
    """The error is kept until then, and with it what refers to the database would keep the directory locked."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([[put(1, "acknowledged")]])
        with file_size_limit(16), pytest.raises(StoreFailed, match="File too large"):
            bucket.flush()
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.commit([[put(2, "refused")]])
        bucket.reopen(writable=True)
        assert bucket.failure is None
        bucket.commit([[put(2, "later")]])
        assert contents(bucket) == {1: "acknowledged", 2: "later"}


def test_what_keeps_a_directory_locked_keeps_it_no_longer_than_the_next_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error refers to the database by its traceback, and the error after it does not keep it."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)

        def refuse(database: Database, batch: WriteBatch) -> NoReturn:
            kv = database.kv
            raise StoreFailed(f"{kv.path()}: the disk refused")

        with monkeypatch.context() as patch:
            patch.setattr(rocks_bucket, "write_synced", refuse)
            with pytest.raises(StoreFailed, match="nothing of this write is promised"):
                bucket.commit([[put(1, "x")]])
        bucket.reopen(writable=True)
        assert "open in this process already" in str(bucket.failure)
        bucket.reopen(writable=True)
        assert bucket.failure is None


def test_a_bucket_whose_disk_refused_takes_nothing_until_it_is_reopened(tmp_path: Path) -> None:
    """After a failed write the bucket refuses commits and scans; running scans and tails go on; a restart recovers."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "acknowledged") for number in range(100))])
        scan = bucket.open_snapshot().scan()
        with file_size_limit(64 * 1024), pytest.raises(StoreFailed, match="nothing of this write") as caught:
            bucket.commit([puts((number, "x" * 1000) for number in range(1000))])
        assert "\n" not in str(caught.value)
        assert bucket.log_end == 100
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.commit([[put(1, "y")]])
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.open_snapshot().scan()
        assert len(scan.read(1000, 1 << 20)) == 100
        assert not scan.read(1, 1)
        assert len(bucket.read_change_block(0, 100, 1 << 20)) == 100
        assert contents(store.bucket("items", 1)) == {}
        bucket.reopen(writable=False)
        assert contents(bucket) == dict.fromkeys(range(100), "acknowledged")
        with pytest.raises(StoreFailed, match="until it is reopened"):
            bucket.commit([[put(1, "y")]])
    with RocksStore.open(tmp_path) as store:
        bucket = store.bucket("items", 0)
        assert contents(bucket) == dict.fromkeys(range(100), "acknowledged")
        assert bucket.commit([[put(1, "y")]]) == [(100, 102)]


def test_a_file_system_that_is_read_only_is_read(tmp_path: Path) -> None:
    """Buckets that are reopened, and checkpoints; what rocksdict writes beside them is refused, as by such a mount."""
    rows = dict.fromkeys(range(100), "acknowledged")
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts(rows.items())])
        checkpoint_id = store.create_checkpoint("items", 0).checkpoint_id
        bucket.commit([[put(100, "in the write-ahead log")]])
        settings = [*tmp_path.glob("data/tables/*/0000"), *tmp_path.glob("data/checkpoints/*/0000/*")]
        for directory in settings:
            (directory / SETTINGS_NAME).unlink(missing_ok=True)
            (directory / SETTINGS_NAME).mkdir()
        assert len(settings) == 2
        bucket.reopen(writable=False)
        assert contents(bucket) == {**rows, 100: "in the write-ahead log"}
        assert len(bucket.read_change_block(0, 101, 1 << 20)) == 101
        snapshot = store.open_checkpoint("items", 0, checkpoint_id)
        assert len(drain(snapshot.scan(), 500)) == 100
        snapshot.close()


@pytest.mark.parametrize("kind", [DiskFull, TooManyFiles, DataCorrupted, StoreFailed, StoreLocked])
def test_a_bucket_that_takes_no_writes_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ScannerError]
) -> None:
    """Later writes are refused with the kind of what failed, where a user can do something about it."""

    def refuse(bucket: RocksBucket, *_: object) -> None:
        bucket._lifetime.fail(kind("what happened"))
        raise StoreFailed("nothing of this write is promised")

    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        with monkeypatch.context() as patch:
            patch.setattr(RocksBucket, "_make_durable", refuse)
            with pytest.raises(StoreFailed, match="nothing of this write"):
                bucket.commit([[put(1, "x")]])
        with pytest.raises(ScannerError, match="what happened") as caught:
            bucket.commit([[put(1, "y")]])
        assert type(caught.value) is (StoreFailed if kind is StoreLocked else kind)


def test_a_table_whose_first_write_finds_the_disk_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one does that finds it full before or after, and of a bucket that is not there nothing is logged."""

    def refuse(database: Database, _: WriteBatch) -> None:
        raise DiskFull(f"{database.path}: the disk is full; make room")

    monkeypatch.setattr("scanner.storage.rocksdb.opening.write_synced", refuse)
    with RocksStore.open(tmp_path) as store:
        with pytest.raises(DiskFull, match="make room"):
            store.create_table(ITEMS)
        assert (store.tables(), caplog.messages) == ([], [])


def test_a_clock_that_was_set_back_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line when commits come from before the newest one, and a line when the clock has caught up; no more."""
    hour_us = 3_600_000_000
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for at, clock_us in enumerate((9 * hour_us, 5 * hour_us, 6 * hour_us, 10 * hour_us, 11 * hour_us)):
            bucket.commit([[put(at, "x")]], clock_us)
    lines = [each.getMessage() for each in caplog.records if "clock" in each.getMessage()]
    assert len(lines) == 2
    assert "the clock is 14400.0 s behind the newest commit" in lines[0]
    assert "the clock has caught up" in lines[1]


def test_a_catalog_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """A table whose creation failed is not there, now and after a restart; later ones can be created."""
    with RocksStore.open(tmp_path) as store:
        with file_size_limit(16), pytest.raises(StoreFailed, match="File too large"):
            store.create_table(ITEMS)
        assert store.tables() == []
        assert list((tmp_path / "tables").iterdir()) == []
        store.create_table(ITEMS)
    with RocksStore.open(tmp_path) as store:
        assert store.tables() == [ITEMS]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_cache_bytes": 0}, "block_cache_bytes must be"),
        ({"background_jobs_max": 65}, "background_jobs_max must be 1 to 64"),
        ({"bucket_write_buffer_bytes": 1 << 30}, "must not exceed write_buffers_bytes"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changes: dict[str, int], message: str) -> None:
    """The message names the field, and both fields where two do not go together."""
    with pytest.raises(ValueError, match=message):
        StorageConfig(**changes)  # type: ignore[arg-type]


def test_nothing_is_written_into_a_directory_that_was_moved(tmp_path: Path) -> None:
    """A bucket that is open refuses commits and truncations once its data directory has another name."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "here") for number in range(10))])
        data.rename(elsewhere)
        data.mkdir()
        with pytest.raises(StoreFailed, match="moved or replaced"):
            bucket.commit([[put(1, "there")]])
        with pytest.raises(StoreFailed, match="moved or replaced"):
            bucket.truncate_log(5)
        data.rmdir()
        elsewhere.rename(data)
        bucket.commit([[put(1, "here again")]])
        assert contents(bucket)[1] == "here again"


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_written_into_a_bucket_that_was_moved(tmp_path: Path, replaced: bool) -> None:
    """A bucket refuses commits once its own directory is gone, or is a copy: else they would be lost with its files."""
    data = tmp_path / "data"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        bucket, other = store.bucket("items", 0), store.bucket("items", 1)
        bucket.commit([puts((number, "here") for number in range(10))])
        (directory,) = data.glob("tables/*/0000")
        if replaced:
            shutil.copytree(directory, tmp_path / "copy")
        directory.rename(tmp_path / "elsewhere")
        if replaced:
            (tmp_path / "copy").rename(directory)
        with pytest.raises(StoreFailed, match=r"0000 was moved or replaced"):
            bucket.commit([[put(1, "there")]])
        with pytest.raises(StoreFailed, match=r"0000 was moved or replaced"):
            bucket.truncate_log(5)
        other.commit([[put(1, "here")]])
        if replaced:
            shutil.rmtree(directory)
        (tmp_path / "elsewhere").rename(directory)
        bucket.commit([[put(1, "here again")]])
        assert contents(bucket)[1] == "here again"


@pytest.mark.parametrize("whole", [True, False])
def test_rocksdb_writes_nothing_into_a_directory_that_has_replaced_its_own(
    tmp_path: Path, whole: bool
) -> None:
    """Its own compactions, and the flush of a close: else their files would be missing where the database is."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "here") for number in range(10))])
        replaced = data if whole else next(data.glob("tables/*/0000"))
        replaced.rename(elsewhere)
        shutil.copytree(elsewhere, replaced)
        there = sorted(replaced.rglob("*"))
        if whole:
            assert bucket._lifetime.database is not None
            compact_database(bucket._lifetime.database)
    assert sorted(replaced.rglob("*")) == there
    for _ in range(2):
        with RocksStore.open(data) as store:
            assert contents(store.bucket("items", 0)) == dict.fromkeys(range(10), "here")
        replaced.rename(tmp_path / "copy")
        elsewhere.rename(replaced)
        (tmp_path / "copy").rename(elsewhere)


def _end_compactions(bucket: RocksBucket) -> None:
    """Let RocksDB compact nothing by itself any more, but move files of the log down."""
    with bucket._lifetime.using() as database:
        for family in (database.kv, database.meta):
            family.set_options({"disable_auto_compactions": "true"})


@pytest.mark.parametrize("keep_up", [RocksBucket.flush, RocksBucket.join_log, RocksBucket.compact])
def test_upkeep_of_a_bucket_that_was_replaced_leaves_both_as_they_are(
    tmp_path: Path, keep_up: Callable[[RocksBucket], object]
) -> None:
    """Else RocksDB makes and removes files in the copy, and those that the bucket needs would be there."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        _end_compactions(bucket)  # They would make and remove files in the copy.
        for _ in range(20):
            bucket.commit([puts((number, "here") for number in range(10))])
            bucket.flush()
        bucket.commit([[put(10, "here")]])
        (directory,) = data.glob("tables/*/0000")
        directory.rename(elsewhere)
        shutil.copytree(elsewhere, directory)
        there = sorted(directory.iterdir())
        with pytest.raises(StoreFailed, match=r"0000 was moved or replaced"):
            keep_up(bucket)
        assert sorted(directory.iterdir()) == there
        shutil.rmtree(directory)
        elsewhere.rename(directory)
        keep_up(bucket)
    with RocksStore.open(data) as store:
        assert contents(store.bucket("items", 0)) == dict.fromkeys(range(11), "here")


def test_a_bucket_that_was_idle_is_not_opened_in_another_directory(tmp_path: Path) -> None:
    """Another directory under its path, such as a restored one, has other rows, and may be a newer server's."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "here") for number in range(10))])
        bucket.close_idle()
        shutil.copytree(data, elsewhere)
        data.rename(tmp_path / "moved")
        elsewhere.rename(data)
        with pytest.raises(StoreFailed, match="moved or replaced"):
            contents(bucket)
        data.rename(elsewhere)
        (tmp_path / "moved").rename(data)
        assert contents(bucket) == dict.fromkeys(range(10), "here")


def test_two_stores_do_not_replace_each_others_catalog(tmp_path: Path) -> None:
    """Without the locked file a second store opens a directory; the first one then writes no catalog over its."""
    with RocksStore.open(tmp_path) as first:
        first.create_table(ITEMS)
        (tmp_path / "LOCK").unlink()
        with RocksStore.open(tmp_path) as second:
            second.create_table(replace(ITEMS, name="second"))
            acts: tuple[Callable[[], object], ...] = (
                lambda: first.create_table(replace(ITEMS, name="first")),
                lambda: first.drop_table("items")(),
                lambda: first.write_document("leases.json", b"{}"),
            )
            for act in acts:
                with pytest.raises(StoreFailed, match="LOCK was removed or replaced"):
                    act()
            assert second.read_document("leases.json") is None
    with RocksStore.open(tmp_path) as store:
        assert [table.name for table in store.tables()] == ["items", "second"]


def test_a_bucket_that_was_put_back_while_it_was_idle_begins_a_history(tmp_path: Path) -> None:
    """It is another one than was closed: at its offsets, tokens of before would show other rows."""
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        (directory,) = (tmp_path / "data" / "tables").glob("*/0000")
        for number in range(2):
            bucket.commit([[put(number, "before")]])
            bucket.close_idle()
            if not number:
                shutil.copytree(directory, tmp_path / "aside")
        assert len(bucket.lineage.histories) == 1
        for file in directory.iterdir():
            file.unlink()
        shutil.copytree(tmp_path / "aside", directory, dirs_exist_ok=True)
        bucket.commit([[put(2, "after")]])
        assert len(bucket.lineage.histories) == 2
