"""What RocksDB's prose means. The other tests of this folder provoke it; here are the texts as they were seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import rocksdict

from scanner.errors import (
    DataCorrupted,
    DiskFull,
    ScannerError,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TooManyFiles,
)
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.database import RocksResources, open_database, rocksdb_errors, translate

_PATH = Path("/data/tables/000000/0000")


@pytest.mark.parametrize(
    ("prose", "kind"),
    [
        (
            "IO error: lock hold by current process, acquire time 1 acquiring thread 2: /d/LOCK: No locks",
            StoreLocked,
        ),
        ("IO error: While lock file: /d/LOCK: Resource temporarily unavailable", StoreLocked),
        (
            "Corruption: block checksum mismatch: stored = 1, computed = 2  in /d/000009.sst offset 0",
            DataCorrupted,
        ),
        ("Invalid argument: /d: does not exist (create_if_missing is false)", DataCorrupted),
        ("IO error: No such file or directory: While open a file for random read: /d/1.sst", DataCorrupted),
        (
            "IO error: No space left on device: While appending to file: /d/4.log: No space left on device",
            DiskFull,
        ),
        ("IO error: Disk quota exceeded: While appending to file: /d/4.log: Disk quota exceeded", DiskFull),
        ("IO error: While lock file: /d/LOCK: Too many open files", TooManyFiles),
        ("IO error: File too large: While appending to file: /d/4.log: File too large", StoreFailed),
        ("something that RocksDB\nnever said before", StoreFailed),
    ],
)
def test_each_text_has_its_error(prose: str, kind: type[ScannerError]) -> None:
    """The class follows from the text; the message is one line and names the directory."""
    error = translate(prose, _PATH)
    assert type(error) is kind
    assert str(error).startswith(f"{_PATH}: ")
    assert "\n" not in str(error)


def test_a_refused_hard_link_is_told_by_what_refused_it() -> None:
    """A file system without hard links, as exFAT, is named as that; one that is full is not, nor one that fails."""
    prose = "IO error: {}while link file to /c/000019.sst: /d/000019.sst: {}"
    assert "consists of hard links" in str(translate(prose.format("", "Operation not permitted"), _PATH))
    assert "the disk failed" in str(translate(prose.format("", "Input/output error"), _PATH))
    full = "No space left on device"
    assert type(translate(prose.format(f"{full}: ", full), _PATH)) is DiskFull


def test_only_what_rocksdict_raises_is_translated() -> None:
    """Bugs of ours and errors that are typed already pass through as they are."""
    for error in (ValueError("ours"), StoreLocked("typed")):
        with pytest.raises(type(error), match=str(error)), rocksdb_errors(_PATH):
            raise error


def test_a_closed_database_is_store_closed(tmp_path: Path) -> None:
    """Rocksdict's one typed error is rocksdb_errors too."""
    database = rocksdict.Rdict(str(tmp_path), rocksdict.Options(raw_mode=True))
    database.close()
    with pytest.raises(StoreClosed, match="was closed"), rocksdb_errors(tmp_path):
        database.get(b"key")


def test_snapshot_iterators_of_rocksdict_are_not_to_be_trusted(tmp_path: Path) -> None:
    """Why scans make their iterators at the open: when this fails, rocksdict's snapshots have become usable."""
    database = rocksdict.Rdict(str(tmp_path), rocksdict.Options(raw_mode=True))
    snapshot = database.snapshot()
    database[b"later"] = b"row"
    assert list(snapshot.values()) == [b"row"]
    del snapshot
    database.close()


def test_a_few_rows_take_little_of_the_write_buffers(tmp_path: Path) -> None:
    """All open buckets share the write buffers: where a few rows of each use them up, every write is flushed."""
    resources = RocksResources(StorageConfig())
    database = open_database(tmp_path, resources, create=True)
    try:
        for number in range(1000):
            for family in (database.kv, database.log):
                family.put(b"%d" % number, b"x" * 100)
        taken = [
            family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
            for family in (database.kv, database.log, database.meta)
        ]
    finally:
        database.close()
    assert 2 * 1000 * 100 < sum(taken) < 1024 * 1024
