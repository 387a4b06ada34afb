"""A MANIFEST that was cut: an error, never rows that are newer than their changelog."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from scanner.errors import DataCorrupted, TooManyFiles
from scanner.storage.rocksdb import bucket as rocks_bucket
from scanner.storage.rocksdb.manifest_length import NAME, noted_length, write_manifest_length
from scanner.storage.rocksdb.store import RocksStore
from tests.support.living import copy_living
from tests.support.storage_tables import one_bucket, put

_RECORD = struct.Struct("<IHB")
"""Checksum, length and kind in front of each record of a MANIFEST."""


def record_starts(manifest: bytes) -> list[int]:
    """Where the records of a MANIFEST of one block begin."""
    starts, at = [], 0
    while at + _RECORD.size <= len(manifest):
        starts.append(at)
        at += _RECORD.size + _RECORD.unpack_from(manifest, at)[1]
    return starts


@pytest.mark.parametrize("tables", [1, 4])
@pytest.mark.parametrize("then", ["closed", "flushed", "kept", "kept twice"])
def test_wherever_a_manifest_is_cut_its_bucket_is_refused(tmp_path: Path, tables: int, then: str) -> None:
    """Behind each record, and inside: of a bucket that was killed, opened again, flushed or kept perhaps, closed."""
    names = [f"table{number}" for number in range(tables)]
    first, second = tmp_path / "first", tmp_path / "second"
    with RocksStore.open(first) as store:
        for name in names:
            store.create_table(one_bucket(name))
            for number in range(6):
                store.bucket(name, 0).commit([[put(number % 4, f"{name} {number}")]])
        copy_living(first, second)  # as after kill -9
    with RocksStore.open(second) as store:
        for name in names:
            bucket = store.bucket(name, 0)
            for turn in range(3 if then != "closed" else 0):
                for number in range(3):
                    bucket.commit([[put(number, f"{name} turn {turn} {number}")]])
                if then == "flushed":
                    bucket.flush()
                elif turn < 2 and (turn == 0 or then == "kept twice"):
                    store.create_checkpoint(name, 0)
    directories = dict(zip(names, sorted((second / "tables").glob("*/0000")), strict=True))
    for name in dict.fromkeys((names[0], names[-1])):  # Those between them are like the last one.
        manifest = directories[name] / (directories[name] / "CURRENT").read_text().strip()
        starts = record_starts(manifest.read_bytes())[1:]
        assert len(starts) > 10
        for start in reversed(starts):
            for size in (start + 5, start):
                # What is refused is left as it was: the next cut is one of the same bucket.
                os.truncate(manifest, size)
                with (
                    RocksStore.open(second) as store,
                    pytest.raises(DataCorrupted, match="of different states"),
                ):
                    store.bucket(name, 0)
                assert manifest.stat().st_size == size


def test_a_manifest_that_lacks_a_flush_of_a_log_that_was_freed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is flushed before the rows: between the two it would have changes whose rows are missing."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    monkeypatch.setattr(rocks_bucket, "compact_log", lambda *_: None)
    data, killed = tmp_path / "data", tmp_path / "killed"
    with RocksStore.open(data) as store:
        store.create_table(one_bucket("items"))
        bucket = store.bucket("items", 0)
        for number in range(6):
            bucket.commit([[put(number, "old")]])
        store.create_checkpoint("items", 0)
        bucket.flush()
        with bucket._lifetime.using() as database:
            # None removes files while they are copied.
            for family in (database.kv, database.log, database.meta):
                family.set_options({"disable_auto_compactions": "true"})
        del database, family  # They would keep it open.
        bucket.commit([[put(0, "new")]])
        bucket.truncate_log(5)
        [manifest] = data.glob("tables/*/0000/MANIFEST-*")
        noted = manifest.stat().st_size
        assert bucket.free_log()
        bucket.commit([[put(1, "new")]])
        copy_living(data, killed)
    damaged = killed / manifest.relative_to(data)
    os.truncate(damaged, next(start for start in record_starts(damaged.read_bytes()) if start > noted))
    with RocksStore.open(killed) as store, pytest.raises(DataCorrupted, match="would be of different states"):
        store.bucket("items", 0)


def test_what_says_nothing_is_no_obstacle(tmp_path: Path) -> None:
    """A file that is missing, cut, of another bucket, or of a MANIFEST that is in use no more."""
    manifest = tmp_path / "MANIFEST-000005"
    manifest.write_bytes(bytes(100))
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    assert noted_length(tmp_path, b"ours") == 0
    write_manifest_length(tmp_path, b"ours")
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert noted_length(tmp_path, b"ours") == 100
    assert noted_length(tmp_path, b"another") == 0
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[:-1])
    assert noted_length(tmp_path, b"ours") == 0
    (tmp_path / NAME).write_bytes(content)
    (tmp_path / "MANIFEST-000007").write_bytes(b"")
    (tmp_path / "CURRENT").write_text("MANIFEST-000007\n")
    assert noted_length(tmp_path, b"ours") == 0
    (tmp_path / "CURRENT").unlink()
    write_manifest_length(tmp_path, b"ours")
    assert (tmp_path / NAME).read_bytes() == content


def test_what_is_counted_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The MANIFEST is synced before its length is noted: RocksDB may have appended to it and not synced that yet."""
    manifest = tmp_path / "MANIFEST-000005"
    manifest.write_bytes(bytes(100))
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    durable: dict[int, int] = {}
    real_sync = os.fsync

    def syncing(descriptor: int) -> None:
        found = os.fstat(descriptor)
        real_sync(descriptor)
        durable[found.st_ino] = found.st_size
        with manifest.open("ab") as file:
            file.write(b"appended meanwhile")

    monkeypatch.setattr(os, "fsync", syncing)
    write_manifest_length(tmp_path, b"ours")
    assert durable == {manifest.stat().st_ino: 100}
    assert noted_length(tmp_path, b"ours") == 100


def test_no_length_is_noted_that_the_disk_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses to sync the MANIFEST leaves what was noted before."""
    manifest = tmp_path / "MANIFEST-000005"
    manifest.write_bytes(bytes(100))
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    write_manifest_length(tmp_path, b"ours")
    manifest.write_bytes(bytes(200))

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    write_manifest_length(tmp_path, b"ours")
    assert noted_length(tmp_path, b"ours") == 100


def test_a_manifest_that_was_cut_is_noticed_where_files_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor for its noted length the bucket stays closed: else what is left would be noted."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("items"))
        for number in range(3):
            store.bucket("items", 0).commit([[put(number, "x")]])
    (directory,) = tmp_path.glob("tables/*/0000")
    manifest = directory / (directory / "CURRENT").read_text().strip()
    os.truncate(manifest, manifest.stat().st_size - 1)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == NAME:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(path)

    with RocksStore.open(tmp_path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", refuse)
            with pytest.raises(TooManyFiles, match=NAME):
                store.bucket("items", 0)
        with pytest.raises(DataCorrupted, match="is whole for"):
            store.bucket("items", 0)
