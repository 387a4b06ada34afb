"""Backups of checkpoints and data directories made of them, without a server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.errors import ArgumentInvalid, DataCorrupted, StoreFailed, StoreLocked
from scanner.server.inspection import Inspection
from scanner.storage.rocksdb.backup_manifest import Backup, list_backups, load_manifest
from scanner.storage.rocksdb.backups import begin_backup
from scanner.storage.rocksdb.catalog import load_catalog
from scanner.storage.rocksdb.findings import Severity
from scanner.storage.rocksdb.restoring import restore
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.untouched import open_untouched
from scanner.storage.rocksdb.verified_copies import copy_file
from tests.support.file_limit import file_size_limit
from tests.support.storage_damage import flip
from tests.support.storage_tables import changes_of, contents, delete, one_bucket, put, puts

if TYPE_CHECKING:
    from scanner.storage.rocksdb.database import Database, RocksResources

pytestmark = pytest.mark.rocks

NOW_US = 1_700_000_000_000_000
FIRST_ID = "20231114T221320Z"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a table that was written, and a dropped one."""
    path = tmp_path / "data"
    with RocksStore.open(path) as store:
        store.create_table(one_bucket("items"))
        store.create_table(one_bucket("dropped"))
        store.drop_table("dropped")()
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, f"text {number}") for number in range(1000))])
        bucket.commit([[delete(number) for number in range(100)]])
    return path


def back_up(store: RocksStore, data: Path, destination: Path) -> tuple[Backup, int]:
    """Make a checkpoint of the table and a backup of that; returns the octets that were copied, too."""
    checkpoint = store.create_checkpoint("items", 0)
    catalog = load_catalog(data)
    assert catalog is not None
    with begin_backup(data, destination, NOW_US) as writer:
        writer.add_table(catalog.tables["items"], [checkpoint])
        return writer.finish(), writer.copied_bytes


def test_restored_as_of_the_backup(data: Path, tmp_path: Path) -> None:
    """What is written after the checkpoint is not in it; rows, changelog, lineage and table ids are as they were."""
    with RocksStore.open(data) as store:
        bucket = store.bucket("items", 0)
        before, changes, lineage = contents(bucket), changes_of(bucket), bucket.lineage
        backup, _ = back_up(store, data, tmp_path / "backups")
        bucket.commit([[put(1, "after")]])
    assert (backup.backup_id, backup.rows) == (FIRST_ID, 900)
    assert restore(tmp_path / "backups" / FIRST_ID, tmp_path / "restored") == backup
    found = list(Inspection(tmp_path / "restored", now_ms=0).findings())
    assert found == []
    with RocksStore.open(tmp_path / "restored") as store:
        bucket = store.bucket("items", 0)
        assert (contents(bucket), changes_of(bucket), bucket.lineage) == (before, changes, lineage)
        assert bucket.lost_changes == 0
        bucket.commit([[put(1, "another history")]])
        assert len(bucket.lineage.histories) == len(lineage.histories) + 1
        store.create_table(one_bucket("next"))
        assert store.table_id("next") == 2


def test_volumes_of_their_own(tmp_path: Path) -> None:
    """The root of a volume is empty though it has `lost+found`, for data, for backups and to restore into."""
    data, destination, restored = (tmp_path / name for name in ("data", "backups", "restored"))
    for volume in (data, destination, restored):
        volume.mkdir(0o700)
        (volume / "lost+found").mkdir(0o755)
    with RocksStore.open(data) as store:
        store.create_table(one_bucket("items"))
        store.bucket("items", 0).commit([[put(1, "one")]])
        back_up(store, data, destination)
    backup = destination / FIRST_ID
    file = next(backup.rglob("*.sst"))
    flip(file, 10)
    with pytest.raises(DataCorrupted):
        restore(backup, restored)
    assert [each.name for each in restored.iterdir()] == ["lost+found"]
    flip(file, 10)
    restore(backup, restored)
    assert list(Inspection(restored, now_ms=0).findings()) == []
    with RocksStore.open(restored) as store:
        assert len(contents(store.bucket("items", 0))) == 1
    assert all((volume / "lost+found").is_dir() for volume in (data, destination, restored))


def test_what_is_lost_before_the_first_start_is_found(data: Path, tmp_path: Path) -> None:
    """Wherever a MANIFEST is cut, neither a server nor doctor takes the older state that it opens as for the whole."""
    with RocksStore.open(data) as store:
        backup, _ = back_up(store, data, tmp_path / "backups")
    restore(tmp_path / "backups" / FIRST_ID, tmp_path / "restored")
    (manifest,) = (tmp_path / "restored").rglob("MANIFEST-*")
    whole = manifest.read_bytes()
    for length in range(0, len(whole), 29):
        manifest.write_bytes(whole[:length])
        found = Inspection(tmp_path / "restored", now_ms=0).findings()
        assert Severity.ERROR in {each.severity for each in found}
        with RocksStore.open(tmp_path / "restored") as store, pytest.raises(DataCorrupted):
            store.bucket("items", 0)
    manifest.write_bytes(whole)
    with RocksStore.open(tmp_path / "restored") as store:
        assert len(contents(store.bucket("items", 0))) == backup.rows


def test_a_disk_that_takes_no_more_is_named(data: Path, tmp_path: Path) -> None:
    """The file that could not be written, not the one of the backup; nothing is left."""
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    full = pytest.raises(StoreFailed, match=r"restored/tables/000000/0000/\S+: File too large")
    with file_size_limit(1000), full:
        restore(tmp_path / "backups" / FIRST_ID, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_only_what_is_new_is_copied(data: Path, tmp_path: Path) -> None:
    """A second backup links the files of the first, and each is whole without the other."""
    destination = tmp_path / "backups"
    with RocksStore.open(data) as store:
        _, copied = back_up(store, data, destination)
        store.bucket("items", 0).commit([[put(1, "more")]])
        second, copied_then = back_up(store, data, destination)
    assert second.backup_id == f"{FIRST_ID}-1"
    assert copied_then < copied / 2
    assert [each.backup for each in list_backups(destination)] == [
        load_manifest(destination / FIRST_ID),
        second,
    ]
    subprocess.run(["rm", "-r", destination / FIRST_ID], check=True)
    assert restore(destination / second.backup_id, tmp_path / "restored").rows == 901


def test_manifests_are_read_one_at_a_time(data: Path, tmp_path: Path) -> None:
    """Hundreds of backups of thousands of files would not fit into memory together."""
    destination = tmp_path / "backups"
    with RocksStore.open(data) as store:
        for _ in range(2):
            back_up(store, data, destination)
    found = list_backups(destination)
    assert next(found).backup is not None
    (destination / f"{FIRST_ID}-1" / "manifest.json").unlink()
    assert next(found).backup is None
    assert next(found, None) is None


def test_each_flipped_bit_is_found(data: Path, tmp_path: Path) -> None:
    """Damage to any file of a backup refuses its restore, typed, and leaves nothing behind."""
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    backup, restored = tmp_path / "backups" / FIRST_ID, tmp_path / "restored"
    files = [path for path in backup.rglob("*") if path.is_file() and path.stat().st_size]
    assert {path.suffix for path in files} > {".sst", ".json"}
    for path in files:
        for at in {0, path.stat().st_size // 2, path.stat().st_size - 1}:
            flip(path, at)
            with pytest.raises(DataCorrupted, match=path.name):
                restore(backup, restored)
            assert not restored.exists()
            flip(path, at)
        path.rename(path.with_name("aside"))
        with pytest.raises((DataCorrupted, ArgumentInvalid), match=path.name):
            restore(backup, restored)
        path.with_name("aside").rename(path)
    restored.mkdir()
    assert restore(backup, restored).rows == 900


def test_a_damaged_file_is_not_linked(data: Path, tmp_path: Path) -> None:
    """A file of an earlier backup that is damaged since is copied anew, so the next backup is whole."""
    destination = tmp_path / "backups"
    with RocksStore.open(data) as store:
        back_up(store, data, destination)
        largest = max(destination.rglob("*.sst"), key=lambda path: path.stat().st_size)
        flip(largest, 100)
        back_up(store, data, destination)
    with pytest.raises(DataCorrupted):
        restore(destination / FIRST_ID, tmp_path / "first")
    assert restore(destination / f"{FIRST_ID}-1", tmp_path / "second").rows == 900


def test_an_earlier_backup_that_is_removed_meanwhile(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are copied anew, and nothing is called damaged."""
    destination = tmp_path / "backups"
    with RocksStore.open(data) as store:
        back_up(store, data, destination)
        catalog = load_catalog(data)
        assert catalog is not None
        with begin_backup(data, destination, NOW_US) as writer:
            shutil.rmtree(destination / FIRST_ID)
            writer.add_table(catalog.tables["items"], [store.create_checkpoint("items", 0)])
            assert restore(destination / writer.finish().backup_id, tmp_path / "restored").rows == 900
    assert caplog.messages == []


def test_a_damaged_checkpoint_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    """Rows that cannot be read are refused when the backup is made, not when it is needed."""
    with RocksStore.open(data) as store:
        store.create_checkpoint("items", 0)
    largest = max((data / "checkpoints").rglob("*.sst"), key=lambda path: path.stat().st_size)
    flip(largest, 100)
    catalog = load_catalog(data)
    assert catalog is not None
    with RocksStore.open(data) as store:
        (checkpoint,) = store.checkpoints("items", 0)
        with begin_backup(data, tmp_path / "backups", NOW_US) as writer:
            with pytest.raises(DataCorrupted, match="not backed up") as raised:
                writer.add_table(catalog.tables["items"], [checkpoint])
            assert writer.finish().tables == ()
    # The copy has the same damage, and is gone.
    assert str(data / "checkpoints") in raised.value.message
    assert "backups" not in raised.value.message


@pytest.mark.parametrize("module", ["backups", "restoring"])
def test_a_disk_that_keeps_something_else_is_found(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Also where it does so in a file that no reading of the rows looks at."""

    def copy(source: Path, target: Path, expected: tuple[int, str], on_bytes: Callable[[int], None]) -> None:
        copy_file(source, target, expected, on_bytes)
        if target.name.startswith("OPTIONS-"):
            flip(target, 0)

    with RocksStore.open(data) as store:
        with (
            monkeypatch.context() as patch,
            pytest.raises(DataCorrupted, match=r"OPTIONS-\d+ is not what was written"),
        ):
            patch.setattr(f"scanner.storage.rocksdb.{module}.copy_file", copy)
            back_up(store, data, tmp_path / "backups")
            restore(tmp_path / "backups" / FIRST_ID, tmp_path / "restored")


def test_rows_are_read_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the copy: its files were compared with the checkpoint's before."""
    read: list[Path] = []

    def note(directory: Path, resources: RocksResources) -> AbstractContextManager[Database]:
        read.append(directory)
        return open_untouched(directory, resources)

    monkeypatch.setattr("scanner.storage.rocksdb.backups.open_untouched", note)
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    (directory,) = read
    assert directory == tmp_path / "backups" / f"{FIRST_ID}.unfinished" / "tables" / "000000" / "0000"


def test_killed_in_the_middle(data: Path, tmp_path: Path) -> None:
    """A backup that dies in the middle is none; the earlier one stays whole, and the next one removes what is left."""
    destination = tmp_path / "backups"
    with RocksStore.open(data) as store:
        back_up(store, data, destination)
        store.bucket("items", 0).commit([puts((number, "new") for number in range(500))])
        store.create_checkpoint("items", 0)
    program = f"""
        import os, signal
        from pathlib import Path
        from scanner.storage.rocksdb.backups import begin_backup
        from scanner.storage.rocksdb.catalog import load_catalog
        from scanner.storage.rocksdb.checkpoints import list_checkpoints

        data = Path({str(data)!r})
        checkpoint = list_checkpoints(data / "checkpoints" / "000000" / "0000")[-1]
        kill = lambda octets: os.kill(os.getpid(), signal.SIGKILL)
        with begin_backup(data, Path({str(destination)!r}), {NOW_US}, kill) as writer:
            writer.add_table(load_catalog(data).tables["items"], [checkpoint])
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = destination / f"{FIRST_ID}-1.unfinished"
    assert left.is_dir()
    assert [each.directory.name for each in list_backups(destination)] == [FIRST_ID]
    assert restore(destination / FIRST_ID, tmp_path / "restored").rows == 900
    with RocksStore.open(data) as store:
        back_up(store, data, destination)
    assert not left.exists()
    assert restore(destination / f"{FIRST_ID}-1", tmp_path / "later").rows == 1000


def test_a_restore_that_was_killed(data: Path, tmp_path: Path) -> None:
    """No server opens what it left, and the message says what to do, which works."""
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    restored, backup = tmp_path / "restored", tmp_path / "backups" / FIRST_ID
    program = f"""
        import os, signal
        from pathlib import Path
        from scanner.storage.rocksdb.restoring import restore

        restore(Path({str(backup)!r}), Path({str(restored)!r}), lambda octets: os.kill(os.getpid(), signal.SIGKILL))
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = {path.relative_to(restored) for path in restored.rglob("*")}
    assert len(left) > 2
    with pytest.raises(StoreFailed, match="weir restore BACKUP"), RocksStore.open(restored):
        pass
    assert {path.relative_to(restored) for path in restored.rglob("*")} == left
    (restored / "tables" / "stray").touch()
    assert restore(backup, restored).rows == 900
    assert not (restored / "tables" / "stray").exists()
    assert not (restored / "RESTORING").exists()
    with RocksStore.open(restored) as store:
        assert len(contents(store.bucket("items", 0))) == 900
    with pytest.raises(ArgumentInvalid, match="not empty"):
        restore(backup, restored)


def test_a_restore_that_was_killed_at_its_end(data: Path) -> None:
    """Marked is not whole, whatever else is there: the next restore may empty it, so nobody may have written to it."""
    (data / "RESTORING").touch()
    with pytest.raises(StoreFailed, match="not whole"), RocksStore.open(data):
        pass
    with pytest.raises(StoreFailed, match="not whole"):
        list(Inspection(data, now_ms=0).findings())


def test_two_restores_at_once(data: Path, tmp_path: Path) -> None:
    """The second one into a directory is refused, and takes nothing away from the first."""
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    restored, backup = tmp_path / "restored", tmp_path / "backups" / FIRST_ID
    refused = []

    def restore_too(_: int) -> None:
        with pytest.raises(StoreLocked, match="another process restores"):
            restore(backup, restored)
        refused.append(True)

    assert restore(backup, restored, restore_too).rows == 900
    assert refused
    with RocksStore.open(restored) as store:
        assert len(contents(store.bucket("items", 0))) == 900


def test_what_is_refused(data: Path, tmp_path: Path) -> None:
    """No destination that is something else's, none inside the data, one backup at a time, no restore over anything."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    for destination in (other, data / "backups", data, tmp_path):
        with pytest.raises(ArgumentInvalid), begin_backup(data, destination, NOW_US):
            pass
    assert not (data / "backups").exists()
    assert [path.name for path in other.iterdir()] == ["file"]
    with pytest.raises(ArgumentInvalid, match="no directory of backups"):
        list_backups(other)
    with begin_backup(data, tmp_path / "backups", NOW_US), pytest.raises(StoreLocked):
        with begin_backup(data, tmp_path / "backups", NOW_US):
            pass
    assert sorted(path.name for path in (tmp_path / "backups").iterdir()) == ["BACKUPS", "LOCK"]
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    with pytest.raises(ArgumentInvalid, match="not empty"):
        restore(tmp_path / "backups" / FIRST_ID, other)
    with pytest.raises(ArgumentInvalid, match="no backup"):
        restore(other, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    with pytest.raises(ArgumentInvalid, match="is inside the backup"):
        restore(tmp_path / "backups" / FIRST_ID, tmp_path / "backups" / FIRST_ID / "restored")
    with pytest.raises(ArgumentInvalid, match="is a backup; weir restore"):
        next(Inspection(tmp_path / "backups" / FIRST_ID, now_ms=0).findings())


def test_what_root_restores_is_the_owners(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the directory's owner has to read all of it. Where the owner has put a symbolic link, only that."""
    with RocksStore.open(data) as store:
        back_up(store, data, tmp_path / "backups")
    restored = tmp_path / "restored"
    restored.mkdir()
    owner = restored.stat()
    given: dict[Path, tuple[int, int]] = {}

    def give(name: str, user: int, group: int, *, dir_fd: int, follow_symlinks: bool) -> None:
        assert not follow_symlinks
        given[Path(os.readlink(f"/proc/self/fd/{dir_fd}"), name)] = user, group

    monkeypatch.setattr(os, "chown", give)
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)

    restore(tmp_path / "backups" / FIRST_ID, restored)

    assert given.keys() >= set(restored.rglob("*"))
    directories = [len(path.parts) for path in given if path.is_dir()]
    assert directories == sorted(directories, reverse=True)
    assert set(given.values()) == {(owner.st_uid, owner.st_gid)}


def test_backups_are_private(data: Path, tmp_path: Path) -> None:
    """Whatever the umask: rows in a backup, and in what is restored, are for their user only."""
    before = os.umask(0)
    try:
        with RocksStore.open(data) as store:
            back_up(store, data, tmp_path / "backups")
        restore(tmp_path / "backups" / FIRST_ID, tmp_path / "restored")
    finally:
        os.umask(before)
    for parent in (tmp_path / "backups", tmp_path / "restored"):
        open_to_others = [path for path in (parent, *parent.rglob("*")) if path.stat().st_mode & 0o077]
        assert open_to_others == []
