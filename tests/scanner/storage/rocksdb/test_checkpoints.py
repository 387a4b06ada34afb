"""Checkpoints and documents on a disk: hard links, crashes half-way, damage, and who may read them."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from scanner.errors import DataCorrupted, SnapshotLost, StoreFailed
from scanner.storage.rocksdb import checkpoints
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.faulty_disk import faulty_disk
from tests.support.file_limit import file_size_limit
from tests.support.storage_damage import flip
from tests.support.storage_tables import ITEMS, drain, put, puts

_CONFIG = StorageConfig(
    compression=Compression.NONE,
    block_bytes=1024,
    bucket_write_buffer_bytes=64 * 1024,
    write_buffers_bytes=1024 * 1024,
    bucket_files_open_max=16,
)
_ROWS = [(number, f"row {number:06d}") for number in range(5000)]


def _store(directory: Path) -> RocksStore:
    """A store whose bucket 0 has more files than may be open at once."""
    store = RocksStore.open(directory, _CONFIG)
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    for first in range(0, 5000, 250):
        bucket.commit([puts(_ROWS[first : first + 250])])
        bucket.flush()
    return store


def test_a_checkpoint_takes_no_space_of_its_own(tmp_path: Path) -> None:
    """Its table files are the bucket's, under another name."""
    # A single flush: of more files RocksDB makes others, while they are compared.
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        store.bucket("items", 0).commit([puts(_ROWS)])
        store.create_checkpoint("items", 0)
        live = {path.name: path.stat().st_ino for path in tmp_path.glob("tables/*/0000/*.sst")}
        copies = {path.name: path.stat().st_ino for path in tmp_path.glob("checkpoints/*/*/*/*.sst")}
        assert copies
        assert copies == live


def test_a_dropped_checkpoint_with_many_files_goes_on_while_it_is_open(tmp_path: Path) -> None:
    """All files of an open checkpoint are open: dropping it and rewriting the bucket takes nothing from it."""
    with _store(tmp_path) as store:
        checkpoint_id = store.create_checkpoint("items", 0).checkpoint_id
        assert len(list(tmp_path.glob("checkpoints/*/*/*/*.sst"))) > 20
        snapshot = store.open_checkpoint("items", 0, checkpoint_id)
        store.drop_checkpoint("items", 0, checkpoint_id)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "new") for number in range(5000))])
        bucket.compact()
        assert list(tmp_path.glob("checkpoints/*/*/*")) == []
        for _ in range(2):
            assert drain(snapshot.scan(), 500) == _ROWS
        snapshot.close()


def test_what_interrupted_calls_left_is_removed_at_open(tmp_path: Path) -> None:
    """Half-made and half-dropped checkpoints, and those of tables that are being dropped, are none; whole ones stay."""
    with _store(tmp_path) as store:
        kept = store.create_checkpoint("items", 0)
        directory = next(tmp_path.glob("checkpoints/*/0000"))
        whole = next(directory.iterdir())
        for name in (
            "unfinished",
            "unfinished.tmp",
            "dropped-000007",
            "../../000009.dropping/0000/000000-0-0",
        ):
            left = directory / name
            left.mkdir(parents=True)
            (left / "000004.sst").write_bytes(b"half")
        assert store.checkpoints("items", 0) == [kept]
        again = store.create_checkpoint("items", 0)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert store.checkpoints("items", 0) == [kept, again]
        assert [path.name for path in tmp_path.glob("checkpoints/*")] == [directory.parent.name]
        assert len(list(directory.iterdir())) == 2
        assert whole.exists()
        assert drain(store.open_checkpoint("items", 0, kept.checkpoint_id).scan(), 500) == _ROWS


def test_what_is_left_of_a_dropped_checkpoint_goes_with_the_next(tmp_path: Path) -> None:
    """Its files are the bucket's old ones, which would take the disk until the server's next start."""
    with _store(tmp_path) as store:
        first, second = (store.create_checkpoint("items", 0).checkpoint_id for _ in range(2))
        with faulty_disk(3, kill=False), pytest.raises(StoreFailed):
            store.drop_checkpoint("items", 0, first)
        assert list(tmp_path.glob(f"checkpoints/*/0000/dropped-{first}/*.sst"))
        store.drop_checkpoint("items", 0, second)
        assert list(tmp_path.glob("checkpoints/*/0000/*")) == []


def test_a_disk_that_refuses_a_checkpoint_leaves_none(tmp_path: Path) -> None:
    """A checkpoint that could not be written is not there, now and after a restart, and its id is not used again."""
    with _store(tmp_path) as store:
        with file_size_limit(300), pytest.raises(StoreFailed, match="raise the limit"):
            store.create_checkpoint("items", 0)
        assert store.checkpoints("items", 0) == []
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert store.checkpoints("items", 0) == []
        checkpoint = store.create_checkpoint("items", 0)
        assert drain(store.open_checkpoint("items", 0, checkpoint.checkpoint_id).scan(), 500) == _ROWS


@pytest.mark.parametrize("fails_at", [0, 1], ids=["before", "after"])
def test_a_checkpoint_that_fails_half_way_leaves_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Whether the disk refuses before or after it has its name: nothing is left, and nothing turns up later."""
    with _store(tmp_path) as store:
        kept = store.create_checkpoint("items", 0)
        directory = next(tmp_path.glob("checkpoints/*/0000"))
        calls = iter(range(9))

        def refuse(path: Path) -> None:
            if next(calls) == fails_at:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

        with monkeypatch.context() as patch:
            # The second call is the last step: by then the checkpoint has its name.
            patch.setattr(checkpoints, "sync_tree", refuse)
            patch.setattr(checkpoints, "sync_directory", refuse)
            with pytest.raises(StoreFailed, match="No space left"):
                store.create_checkpoint("items", 0)
        assert next(calls) == fails_at + 1
        assert len(list(directory.iterdir())) == 1
        assert store.checkpoints("items", 0) == [kept]
        store.bucket("items", 0).commit([[put(1, "written meanwhile")]])
        again = store.create_checkpoint("items", 0)
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert store.checkpoints("items", 0) == [kept, again]


def test_damage_in_a_checkpoint_is_an_error_and_never_a_short_scan(tmp_path: Path) -> None:
    """A damaged block ends a scan of a checkpoint with DATA_CORRUPTED, after rows that are right."""
    with _store(tmp_path) as store:
        checkpoint_id = store.create_checkpoint("items", 0).checkpoint_id
        # The bucket gets files of its own again.
        store.bucket("items", 0).commit([puts((number, "new") for number in range(5000))])
        store.bucket("items", 0).compact()
    damaged = 0
    for path in tmp_path.glob("checkpoints/*/0000/*/*.sst"):
        at = path.read_bytes().find(b"row 002500")
        if at >= 0:
            flip(path, at)
            damaged += 1
    assert damaged >= 1
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert len(drain(store.bucket("items", 0).open_snapshot().scan(), 500)) == 5000
        scan = store.open_checkpoint("items", 0, checkpoint_id).scan()
        seen = 0
        with pytest.raises(DataCorrupted, match="checksum mismatch"):
            while read := scan.read(100, 1 << 20):
                seen += len(read)
        assert seen <= 2500


@pytest.mark.parametrize("damage", ["renamed", "table file gone", "empty"])
def test_a_checkpoint_that_is_not_what_it_says_is_damage(tmp_path: Path, damage: str) -> None:
    """Its name, its own record and its files must agree; else it does not open, and the others do."""
    with _store(tmp_path) as store:
        bad, good = store.create_checkpoint("items", 0), store.create_checkpoint("items", 0)
    directory = next(tmp_path.glob(f"checkpoints/*/0000/{bad.checkpoint_id:06d}-*"))
    if damage == "renamed":
        directory.rename(directory.with_name(directory.name.replace("-5000-", "-4999-")))
    for path in directory.glob({"renamed": "?", "table file gone": "*.sst", "empty": "*"}[damage]):
        path.unlink()
    with RocksStore.open(tmp_path, _CONFIG) as store:
        assert len(store.checkpoints("items", 0)) == 2
        with pytest.raises(DataCorrupted, match="checkpoints"):
            store.open_checkpoint("items", 0, bad.checkpoint_id)
        assert drain(store.open_checkpoint("items", 0, good.checkpoint_id).scan(), 500) == _ROWS
        store.drop_checkpoint("items", 0, bad.checkpoint_id)
        with pytest.raises(SnapshotLost):
            store.open_checkpoint("items", 0, bad.checkpoint_id)


def test_opening_a_checkpoint_changes_nothing_in_it(tmp_path: Path) -> None:
    """It is read-only and not locked: any number of snapshots of it may be open, here and elsewhere."""
    with _store(tmp_path) as store:
        store.bucket("items", 0).commit([[put(5000, "in memory")]])
        checkpoint_id = store.create_checkpoint("items", 0).checkpoint_id

        def files() -> list[tuple[str, int, int]]:
            found = sorted(tmp_path.glob("checkpoints/*/*/*/*"))
            # rocksdict writes a file of its own anew, with the same few bytes.
            own = "rocksdict-config.json"
            return [
                (path.name, path.stat().st_size, path.stat().st_mtime_ns * (path.name != own))
                for path in found
            ]

        before = files()
        snapshots = [store.open_checkpoint("items", 0, checkpoint_id) for _ in range(3)]
        for snapshot in snapshots:
            assert len(drain(snapshot.scan(), 500)) == 5001
            snapshot.close()
        assert files() == before


def test_a_dropped_table_leaves_no_checkpoint_on_disk(tmp_path: Path) -> None:
    """The files of its checkpoints go with the table's."""
    with _store(tmp_path) as store:
        store.create_checkpoint("items", 0)
        store.create_checkpoint("items", 1)
        store.drop_table("items")()
        assert list(tmp_path.glob("checkpoints/*")) == []


def test_documents_are_the_servers_own(tmp_path: Path) -> None:
    """Some are secrets: nobody else may read them, not even while one is written or after a crash left a part."""
    with RocksStore.open(tmp_path) as store:
        store.write_document("keys.json", b"one")
        path = tmp_path / "documents" / "keys.json"
        left = path.with_name("keys.json~")
        left.write_bytes(b"half")
        left.chmod(0o666)
        store.write_document("keys.json", b"two")
        assert store.read_document("keys.json") == b"two"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [each.name for each in path.parent.iterdir()] == ["keys.json"]


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """A full disk is STORE_FAILED, and what was there is there."""
    with RocksStore.open(tmp_path) as store:
        store.write_document("keys.json", b"old")
        with file_size_limit(16), pytest.raises(StoreFailed, match="File too large"):
            store.write_document("keys.json", b"x" * 100)
        assert store.read_document("keys.json") == b"old"
