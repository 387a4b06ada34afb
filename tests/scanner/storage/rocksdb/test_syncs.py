"""What is acknowledged is on the disk, and so is its name: each act syncs first, which killing no process can show."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scanner.storage.rocksdb.checkpoints
import scanner.storage.rocksdb.data_directory
import scanner.storage.rocksdb.database
import scanner.storage.rocksdb.files
import scanner.storage.rocksdb.opening
import scanner.storage.rocksdb.store
import scanner.storage.rocksdb.table_directories
import scanner.storage.rocksdb.transaction_files
from scanner.errors import TooManyFiles
from scanner.storage.rocksdb.backups import begin_backup
from scanner.storage.rocksdb.catalog import load_catalog
from scanner.storage.rocksdb.restoring import restore
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.transactions import StageKey
from tests.support.storage_tables import make_tables, one_bucket, put
from tests.support.sync_spy import SyncSpy, spying_on_syncs

_STAGE = StageKey("load", 1, 0, 0, 1, 0, bytes(16))
ACTS: dict[str, Callable[[RocksStore], object]] = {
    "create_table": lambda store: store.create_table(one_bucket("new")),
    "add_column": lambda store: store.add_column("it", pa.field("more", pa.int8())),
    "drop_table": lambda store: store.drop_table("it")(),
    "write_document": lambda store: store.write_document("notes", b"x"),
    "create_checkpoint": lambda store: store.create_checkpoint("it", 0),
    "drop_checkpoint": lambda store: store.drop_checkpoint("it", 0, 0),
    "stage": lambda store: _stage(store),
    "decide": lambda store: store.transaction_files("it").write_decision("load", b"x"),
    "drop_stages": lambda store: store.transaction_files("it").drop_stages([_STAGE]),
    "drop_last_stage": lambda store: store.transaction_files("it").drop_stages([_STAGE]),
    "drop_decision": lambda store: store.transaction_files("it").drop_decision("load"),
}


def _stage(store: RocksStore) -> None:
    sink = store.transaction_files("it").open_sink(_STAGE)
    sink.append([b"rows"])
    sink.finish(_STAGE)


def pending_after(path: Path, act: str) -> list[str]:
    """What a power failure could undo when an act has returned."""
    if act == "open":
        with spying_on_syncs() as spy:
            RocksStore.open(path / "a" / "b").close()
            return spy.pending()
    make_tables(path, "it")
    with RocksStore.open(path) as store:
        if act == "drop_checkpoint":
            store.create_checkpoint("it", 0)
        if act in ("drop_stages", "drop_last_stage", "drop_decision"):
            _stage(store)
        if act in ("drop_stages", "drop_decision"):
            store.transaction_files("it").write_decision("load", b"x")
        with spying_on_syncs() as spy:
            ACTS[act](store)
            return spy.pending()


@pytest.mark.parametrize("act", ["open", *ACTS])
def test_what_has_returned_is_durable(tmp_path: Path, act: str) -> None:
    """Files are synced before they are renamed, and the directories that name them before the act returns."""
    assert pending_after(tmp_path, act) == []


def test_a_backup_and_what_is_restored_of_it_are_durable(tmp_path: Path) -> None:
    """The second backup has links to files of the first; each is there as a whole when the act returns."""

    def pending(spy: SyncSpy) -> list[str]:
        """Without what was removed again, and temporary files."""
        return [
            each
            for each in spy.pending()
            if each in spy.early or (each.startswith(str(tmp_path)) and os.path.exists(each))
        ]

    data, backups = tmp_path / "data", tmp_path / "a" / "backups"
    make_tables(data, "it")
    catalog = load_catalog(data)
    assert catalog is not None
    with RocksStore.open(data) as store:
        store.bucket("it", 0).commit([[put(1, "a")]])
        for now_us in range(2):
            checkpoint = store.create_checkpoint("it", 0)
            with spying_on_syncs() as spy:
                with begin_backup(data, backups, now_us) as writer:
                    writer.add_table(catalog.tables["it"], [checkpoint])
                    backup = writer.finish()
                assert pending(spy) == []
    with spying_on_syncs() as spy:
        restore(backups / backup.backup_id, tmp_path / "b" / "restored")
        assert pending(spy) == []


def _open_and_write(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"x")
    os.close(descriptor)


def _write(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b"x")


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")


WAYS_TO_WRITE: tuple[Callable[[Path], object], ...] = (
    _open_and_write,
    _write,
    _append,
    lambda path: path.write_bytes(b"x"),
    lambda path: path.write_text("x"),
)


@pytest.mark.parametrize("write", WAYS_TO_WRITE)
def test_no_way_to_write_escapes_the_spy(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """Each leaves a file and a name that are not durable, until both are synced; reading leaves nothing."""
    path = tmp_path / "it"
    with spying_on_syncs() as spy:
        write(path)
        assert spy.pending() == sorted([str(tmp_path), str(path)])
        for each in (path, tmp_path):
            descriptor = os.open(each, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        assert path.read_bytes() == b"x"
        assert spy.pending() == []


def test_a_second_name_of_a_file_is_one_more_name(tmp_path: Path) -> None:
    """A hard link is lost, too, unless its directory is synced."""
    (tmp_path / "it").write_bytes(b"x")
    with spying_on_syncs() as spy:
        os.link(tmp_path / "it", tmp_path / "that")
        assert spy.pending() == [str(tmp_path)]


def _no_sync(*_: object) -> None:
    """Does nothing."""


class _OsThatSyncsNoFiles:
    """`os`, but files are not synced, only directories."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)


@pytest.mark.parametrize(
    ("module", "name", "acts"),
    [
        (
            scanner.storage.rocksdb.files,
            "sync_directory",
            ("open", "create_table", "write_document", "add_column", "decide"),
        ),
        (
            scanner.storage.rocksdb.transaction_files,
            "sync_directory",
            ("stage", "drop_stages", "drop_last_stage", "drop_decision"),
        ),
        (scanner.storage.rocksdb.transaction_files, "os", ("stage",)),
        (scanner.storage.rocksdb.table_directories, "sync_directory", ("create_table", "drop_table")),
        (scanner.storage.rocksdb.checkpoints, "sync_tree", ("create_checkpoint",)),
        (scanner.storage.rocksdb.checkpoints, "sync_directory", ("create_checkpoint", "drop_checkpoint")),
        (
            scanner.storage.rocksdb.files,
            "os",
            ("open", "create_table", "write_document", "create_checkpoint"),
        ),
    ],
    ids=["files", "stages", "stage contents", "tables", "checkpoint files", "checkpoints", "file contents"],
)
def test_each_sync_that_is_left_out_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, acts: tuple[str, ...]
) -> None:
    """The test above is none without the syncs: it fails for every act whose syncs are taken away."""
    monkeypatch.setattr(module, name, _OsThatSyncsNoFiles() if name == "os" else _no_sync)
    for act in acts:
        assert pending_after(tmp_path / act, act) != [], act


def test_a_stage_whose_name_cannot_be_made_durable_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer is told that nothing was kept, and stages it again: at the next start both would count."""

    def refuse(directory: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(directory))

    make_tables(tmp_path, "it")
    with RocksStore.open(tmp_path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(scanner.storage.rocksdb.transaction_files, "sync_directory", refuse)
            with pytest.raises(TooManyFiles):
                _stage(store)
        assert store.transaction_files("it").stages() == []


def test_a_column_whose_name_cannot_be_made_durable_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who adds it is told that it was not added: it does not come with the next start, either."""
    refused = []

    def refuse_first(directory: Path) -> None:
        refused.append(directory)
        if len(refused) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(directory))

    make_tables(tmp_path, "it")
    with RocksStore.open(tmp_path) as store:
        before = store.table("it")
        with monkeypatch.context() as patched:
            patched.setattr(scanner.storage.rocksdb.files, "sync_directory", refuse_first)
            with pytest.raises(TooManyFiles):
                store.add_column("it", pa.field("more", pa.int8()))
        assert store.table("it") == before
    with RocksStore.open(tmp_path) as store:
        assert store.table("it") == before


class _Spied:
    """A database whose writes and syncs are written down."""

    def __init__(self, real: Any, calls: list[str]) -> None:
        self._real = real
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, *args: Any) -> None:
        self._real.write(*args)
        self._calls.append("write")

    def flush_wal(self, sync: bool = True) -> None:
        self._real.flush_wal(sync=sync)
        self._calls.append(f"flush_wal(sync={sync})")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes and syncs of every database that is opened."""
    found: list[str] = []
    open_database = scanner.storage.rocksdb.database.open_database

    def spied(*args: Any, **kwargs: Any) -> Any:
        database = open_database(*args, **kwargs)
        database.rocks = _Spied(database.rocks, found)  # type: ignore[assignment]
        return database

    monkeypatch.setattr(scanner.storage.rocksdb.opening, "open_database", spied)
    return found


@pytest.mark.parametrize("act", ["commit", "truncate_log"])
def test_a_commit_syncs_its_log_before_it_returns(tmp_path: Path, calls: list[str], act: str) -> None:
    """The write-ahead log is synced after the last write and before log_end moves."""
    make_tables(tmp_path, "it")
    with RocksStore.open(tmp_path) as store:
        bucket = store.bucket("it", 0)
        calls.clear()
        if act == "commit":
            bucket.commit([[put(7, "seven")]])
        else:
            bucket.truncate_log(1)
        assert calls[-1] == "flush_wal(sync=True)"
        assert "write" in calls


def test_an_undoing_syncs_each_of_its_writes(tmp_path: Path, calls: list[str]) -> None:
    """A power failure leaves no more than one record of the write-ahead log in pieces."""
    make_tables(tmp_path, "it")
    with RocksStore.open(tmp_path) as store:
        bucket = store.bucket("it", 0)
        for number in (7, 8):
            bucket.commit_prepared(bucket.prepare([[put(number, "cut off")]]), unfinished=True)
    calls.clear()
    with RocksStore.open(tmp_path) as store:
        store.bucket("it", 0)
    assert calls == ["write", "flush_wal(sync=True)"] * 3
