"""Data directories made of backups.

Invariants:

1. What is restored is what was backed up, bit by bit, or nothing: SHA-256 of each file, digest of each bucket's rows.
2. A directory that a backup is restored into is marked until it is whole. Only what is marked is ever removed from it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from scanner.errors import ArgumentInvalid, DataCorrupted, StoreFailed, StoreLocked
from scanner.storage.rocksdb.backup_manifest import (
    BackedUpBucket,
    BackedUpFile,
    BackedUpTable,
    Backup,
    load_manifest,
)
from scanner.storage.rocksdb.catalog import (
    TABLE_NAME,
    CatalogFile,
    TableEntry,
    load_table_entry,
    save_catalog,
)
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.contents import Reader, read_contents
from scanner.storage.rocksdb.data_directory import (
    RESTORING_NAME,
    TABLES_NAME,
    bucket_name,
    entries_of,
    table_directory,
    table_name,
    write_format,
)
from scanner.storage.rocksdb.database import RocksResources
from scanner.storage.rocksdb.documents import write_document
from scanner.storage.rocksdb.durable_end import DurableEnd, write_durable_end
from scanner.storage.rocksdb.files import (
    FILE_MODE,
    disk_errors,
    giving_away,
    make_directories,
    sync_directory,
)
from scanner.storage.rocksdb.manifest_length import write_manifest_length
from scanner.storage.rocksdb.table_directories import TABLE_IDS_DOCUMENT
from scanner.storage.rocksdb.untouched import open_untouched
from scanner.storage.rocksdb.verified_copies import OnBytes, copy_file, ignore_bytes, verify_files

_logger = logging.getLogger(__name__)


def restore(
    backup: Path,
    data: Path,
    on_bytes: OnBytes = ignore_bytes,
    *,
    now_us: int = 0,
    documents: Mapping[str, bytes] = MappingProxyType({}),
) -> Backup:
    """Make a data directory of a backup; durable, and compared with the manifest, when this returns.

    Token keys, leases and checkpoints of the directory that was backed up are not in it. Each bucket begins a new
    history at its first commit, as after every start.

    Args:
        backup: The directory of one backup.
        data: Of the new data directory: an empty one, one that is made, or one that an interrupted restore left, which
            is emptied first.
        on_bytes: Called with the progress.
        now_us: Microseconds since 1970 UTC. Ids of new tables are not below its seconds: since the backup the old
            server may have given more ids, and clients may still name these.
        documents: What the server that is to come has to know, by name of the document.

    Raises:
        ArgumentInvalid: `backup` is no backup, or `data` is not empty, or in it.
        StoreLocked: Another process restores a backup into `data`; nothing was changed.
        DataCorrupted: The backup is damaged; `data` is empty again.
        StoreFailed: The disk refused; `data` is empty again, as far as it allows.
    """
    backup, data = Path(backup).absolute(), Path(data).absolute()
    manifest = load_manifest(backup)
    if backup.resolve() in data.resolve().parents:
        raise ArgumentInvalid(
            f"{data} is inside the backup {backup}, and would go with it; name another directory"
        )
    with _restoring(data):
        make_directories(data / TABLES_NAME, data)
        catalog = CatalogFile(next_table_id=max(manifest.next_table_id, now_us // 1_000_000))
        for table in manifest.tables:
            catalog = catalog.with_table(_restore_table(table, backup, data, on_bytes))
        sync_directory(data / TABLES_NAME)
        document = json.dumps({"next": catalog.next_table_id}).encode() + b"\n"
        for name, content in {**documents, TABLE_IDS_DOCUMENT: document}.items():
            write_document(data, name, content)
        write_format(data)
        save_catalog(data, catalog)
        _give_to_owner(data)
        with suppress(StoreFailed), disk_errors(data):
            sync_directory(data.parent)  # Not everybody may read it.
    return manifest


def _give_to_owner(data: Path) -> None:
    """Give what root has restored to whom the directory belongs, as `replace_file` does: its server has to read it."""
    owner = data.stat()
    if owner.st_uid == os.geteuid():
        return
    with disk_errors(data):
        # From below, and no symbolic link is followed: the owner, who can put one there meanwhile, gets no other file.
        for _, directories, files, descriptor in os.fwalk(data, topdown=False):
            for name in (*directories, *files):
                with giving_away():
                    os.chown(name, owner.st_uid, owner.st_gid, dir_fd=descriptor, follow_symlinks=False)


@contextmanager
def _restoring(data: Path) -> Iterator[None]:
    """Mark a directory as not whole, durably, until a block has filled it; what fails empties it again."""
    is_new = not data.exists()
    descriptor = _mark(data)
    marker = data / RESTORING_NAME
    try:
        _clear(data)
        yield
        with disk_errors(marker):
            marker.unlink()
            sync_directory(data)
    except BaseException:
        _clear(data)
        with suppress(OSError):
            marker.unlink(missing_ok=True)
            if is_new:
                data.rmdir()
        raise
    finally:
        os.close(descriptor)


def _mark(data: Path) -> int:
    """Say that a directory is not whole, and return the descriptor that keeps other processes away from it."""
    marker = data / RESTORING_NAME
    with disk_errors(marker):
        if not marker.exists():
            _require_empty(data)
        make_directories(data)
        try:
            descriptor, is_first = (
                os.open(marker, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE),
                True,
            )
        except FileExistsError:
            descriptor, is_first = os.open(marker, os.O_RDWR | os.O_CLOEXEC), False
    try:
        with disk_errors(marker):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _being_restored(data) from error
            if not os.fstat(descriptor).st_nlink:
                raise _being_restored(data)  # That ended between the two calls.
            if is_first:
                try:
                    _require_empty(data)  # Somebody may have begun with it meanwhile.
                except BaseException:
                    marker.unlink()
                    raise
            else:
                _logger.warning("what an interrupted restore left in %s is removed", data)
            sync_directory(data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_empty(data: Path) -> None:
    is_other = data.exists() and not data.is_dir()
    if is_other or any(entry.name != RESTORING_NAME for entry in entries_of(data)):
        raise ArgumentInvalid(f"{data} is not empty: a backup is restored into an empty or a new directory")


def _being_restored(data: Path) -> StoreLocked:
    return StoreLocked(
        f"another process restores a backup into {data}; wait for it, or name another directory"
    )


def _clear(data: Path) -> None:
    """Remove all but the mark, as far as the disk allows."""
    for entry in entries_of(data):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != RESTORING_NAME:
            with suppress(OSError):
                entry.unlink()


def _restore_table(table: BackedUpTable, backup: Path, data: Path, on_bytes: OnBytes) -> TableEntry:
    resources = RocksResources(StorageConfig())
    source = backup / TABLES_NAME / table_name(table.table_id)
    target = table_directory(data, table.table_id)
    make_directories(target, data)
    _copy_back(source, target, table.description, on_bytes)
    entry = load_table_entry(target)
    if entry is None or (entry.table_id, entry.description.name) != (table.table_id, table.name):
        raise DataCorrupted(f"{source / TABLE_NAME} is not of table {table.name!r}: use another backup")
    if [each.index for each in table.buckets] != list(range(entry.description.buckets)):
        raise DataCorrupted(f"{source} lacks buckets of table {table.name!r}: use another backup")
    for bucket in table.buckets:
        directory = target / bucket_name(bucket.index)
        make_directories(directory, data)
        for file in bucket.files:
            _copy_back(source / directory.name, directory, file, on_bytes)
        _note_length(directory, entry.bucket_identity(bucket.index), bucket)
        sync_directory(directory)
        _verify_bucket(directory, Reader(entry), bucket, resources)
    sync_directory(target)
    return entry


def _note_length(directory: Path, identity: bytes, bucket: BackedUpBucket) -> None:
    """Say how much the bucket has, so that a loss before it is opened for the first time is noticed."""
    write_manifest_length(directory, identity)
    if bucket.log_offset:
        write_durable_end(directory, identity, DurableEnd(bucket.log_offset, bytes.fromhex(bucket.history)))


def _copy_back(source: Path, target: Path, file: BackedUpFile, on_bytes: OnBytes) -> None:
    path = source / file.name
    with disk_errors(path):
        try:
            copy_file(path, target / file.name, (file.size, file.sha256), on_bytes)
        except FileNotFoundError as error:
            raise DataCorrupted(f"{path} is gone: use another backup") from error


def _verify_bucket(
    directory: Path, reader: Reader, bucket: BackedUpBucket, resources: RocksResources
) -> None:
    """See that a copy of a bucket is what was backed up: each file as it is on the disk, then rows and changelog."""
    verify_files(directory, bucket.files)
    with open_untouched(directory, resources) as database:
        contents = read_contents(database, reader, bucket.index)
    log_offset = contents.log_range.end
    history = contents.lineage.history_of(log_offset).hex()
    found = (contents.rows, contents.digest, log_offset, history)
    if contents.problems or found != (bucket.rows, bucket.digest, bucket.log_offset, bucket.history):
        problem = (
            contents.problems[0] if contents.problems else f"rows, digest, offset and history are {found}"
        )
        raise DataCorrupted(
            f"{directory} is not the bucket that was backed up: {problem}; use another backup"
        )
