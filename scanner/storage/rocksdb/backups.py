"""Backups of tables, made from checkpoints while the server runs; `restoring` makes data directories of them.

    BACKUPS                               says that this directory is one of backups, and of which format
    LOCK                                  held while a backup is made
    20261122T004447Z/                     a backup, by the time at which it was begun
        manifest.json                     what is in it: size and SHA-256 of each file, digest of each bucket
        tables/000007/table.json          as in the data directory
        tables/000007/0003/               the database of a bucket, as its checkpoint was
    20261122T010000Z.unfinished/          one that is being made, or was interrupted; the next one removes it

A file that an earlier backup has already, with the same size and SHA-256, is linked and not copied, so each backup is
whole by itself and costs what is new. Any of them can be removed (`rm -r`) without harm to the others.

Invariants:

1. A backup exists once it was read back and compared, and its name is durable. What is interrupted before is no backup.
2. Nothing is written into the data directory that is backed up.

This module knows no server: it is given checkpoints, which its caller keeps.
"""

from __future__ import annotations

import datetime
import fcntl
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanner.errors import ArgumentInvalid, DataCorrupted, StoreLocked
from scanner.storage.rocksdb.backup_manifest import (
    BACKUP_ID,
    MANIFEST_NAME,
    MARKER_NAME,
    BackedUpBucket,
    BackedUpFile,
    BackedUpTable,
    Backup,
    BackupFound,
    backup_directories,
    content_of,
    list_backups,
)
from scanner.storage.rocksdb.catalog import TABLE_NAME, CatalogFile, TableEntry, load_table_entry
from scanner.storage.rocksdb.checkpoints import checkpoint_name, require_itself
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.contents import Contents, Reader, read_contents
from scanner.storage.rocksdb.data_directory import (
    TABLES_NAME,
    bucket_name,
    checkpoints_directory,
    entries_of,
    table_directory,
    table_name,
)
from scanner.storage.rocksdb.database import RocksResources
from scanner.storage.rocksdb.files import (
    FILE_MODE,
    disk_errors,
    make_directories,
    read_sealed,
    sync_directory,
    write_sealed,
)
from scanner.storage.rocksdb.table_directories import next_free_id
from scanner.storage.rocksdb.untouched import SETTINGS_NAME, open_untouched
from scanner.storage.rocksdb.verified_copies import (
    OnBytes,
    copy_file,
    hash_of,
    ignore_bytes,
    is_intact,
    verify_files,
)

if TYPE_CHECKING:
    from scanner.data.half_applied import HalfApplied
    from scanner.storage.records import Checkpoint

_LOCK_NAME: Final = "LOCK"
_MARKER_CONTENT: Final = (
    b"Backups of data directories of weir, one in each directory. See docs/operating.md.\n"
)
_UNFINISHED: Final = ".unfinished"

_logger = logging.getLogger(__name__)


@contextmanager
def begin_backup(
    data: Path, destination: Path, now_us: int, on_bytes: OnBytes = ignore_bytes
) -> Iterator[BackupWriter]:
    """Begin a backup; it exists once `BackupWriter.finish` has returned, and leaves nothing if that is not called.

    Args:
        data: The data directory; a server may have it open. Only read.
        destination: Of the backups: one that has some, an empty one, or one that is made.
        now_us: Microseconds since 1970 UTC.
        on_bytes: Called with the progress.

    Raises:
        ArgumentInvalid: The destination is something else's, or in the data directory.
        StoreLocked: Another backup is being made there.
        StoreFailed: The disk refused.
    """
    data, destination = Path(data).resolve(), Path(destination).resolve()
    if data == destination or data in destination.parents or destination in data.parents:
        raise ArgumentInvalid(f"backups in {destination} and data in {data} must not be inside each other")
    make_directories(destination)
    if read_sealed(destination / MARKER_NAME) is None:
        foreign = {each.name for each in entries_of(destination)} - {_LOCK_NAME, f"{MARKER_NAME}~"}
        if foreign:
            raise ArgumentInvalid(
                f"{destination} is not empty and no directory of backups; name an empty or a new one"
            )
    with _locked(destination):
        if read_sealed(destination / MARKER_NAME) is None:
            write_sealed(destination / MARKER_NAME, _MARKER_CONTENT)
        for entry in entries_of(destination):
            # Only what an interrupted backup left: no other backup runs now.
            if entry.suffix == _UNFINISHED and BACKUP_ID.fullmatch(entry.stem) and entry.is_dir():
                with disk_errors(entry):
                    shutil.rmtree(entry)
        writer = BackupWriter(data, destination, now_us, on_bytes)
        try:
            yield writer
        finally:
            writer.discard()


@contextmanager
def _locked(destination: Path) -> Iterator[None]:
    with disk_errors(destination):
        descriptor = os.open(destination / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        with disk_errors(destination / _LOCK_NAME):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLocked(f"another backup is being made in {destination}; wait for it") from error
        yield
    finally:
        os.close(descriptor)


class BackupWriter:
    """A backup that is being made. Made by `begin_backup`."""

    def __init__(self, data: Path, destination: Path, now_us: int, on_bytes: OnBytes) -> None:
        self._data = data
        self._destination = destination
        self._now_us = now_us
        self._on_bytes = on_bytes
        self._resources = RocksResources(StorageConfig())
        self._tables: list[BackedUpTable] = []
        self.copied_bytes = 0
        """Octets that no earlier backup had."""
        self._earlier = _paths_of(list_backups(destination))
        self._id = _new_id(now_us, {each.name for each in backup_directories(destination)})
        self._directory = destination / f"{self._id}{_UNFINISHED}"
        make_directories(self._directory / TABLES_NAME, destination)

    def add_table(
        self,
        entry: TableEntry,
        checkpoints: Sequence[Checkpoint],
        half_applied: Sequence[HalfApplied] = (),
    ) -> None:
        """Copy a table, and read the copy back.

        Args:
            entry: Of the table, as the catalog has it.
            checkpoints: One of each bucket, in their order. They stay for as long as this takes.
            half_applied: The versions of transactions of which they have a part.

        Raises:
            DataCorrupted: A checkpoint is damaged, or not what its name says; or the copy is not what was copied.
            StoreFailed: The disk refused, or a checkpoint was dropped. After any of them the backup can go on
                without this table.
        """
        target = self._directory / TABLES_NAME / table_name(entry.table_id)
        make_directories(target, self._directory)
        try:
            table = replace(self._copy_table(entry, checkpoints, target), half_applied=tuple(half_applied))
        except BaseException:
            self._earlier = {of: path for of, path in self._earlier.items() if target not in path.parents}
            shutil.rmtree(target, ignore_errors=True)
            raise
        self._tables.append(table)

    def _copy_table(
        self, entry: TableEntry, checkpoints: Sequence[Checkpoint], target: Path
    ) -> BackedUpTable:
        source = table_directory(self._data, entry.table_id)
        # Read after the checkpoints were made: every row of theirs is of a schema that it names.
        description = self._take(source / TABLE_NAME, target / TABLE_NAME)
        found = load_table_entry(target)
        if found is None or (found != entry and not found.extends(entry)):
            raise DataCorrupted(
                f"{source / TABLE_NAME} is not of table {entry.description.name!r}: see weir doctor"
            )
        buckets = tuple(
            self._add_bucket(Reader(found), index, checkpoint, target / bucket_name(index))
            for index, checkpoint in enumerate(checkpoints)
        )
        sync_directory(target)
        return BackedUpTable(
            table_id=entry.table_id, name=entry.description.name, description=description, buckets=buckets
        )

    def _add_bucket(self, reader: Reader, index: int, checkpoint: Checkpoint, target: Path) -> BackedUpBucket:
        parent = checkpoints_directory(self._data, reader.entry.table_id) / bucket_name(index)
        source = parent / checkpoint_name(checkpoint)
        make_directories(target, self._directory)
        with disk_errors(source):
            names = sorted(each.name for each in source.iterdir() if each.name != SETTINGS_NAME)
        files = tuple(self._take(source / name, target / name) for name in names)
        sync_directory(target)
        verify_files(target, files)
        contents = self._contents(source, target, reader, index, checkpoint)
        return BackedUpBucket(
            index=index,
            log_offset=checkpoint.log_offset,
            timestamp_us=checkpoint.timestamp_us,
            history=checkpoint.history.hex(),
            rows=contents.rows,
            digest=contents.digest,
            files=files,
        )

    def _contents(
        self, source: Path, target: Path, reader: Reader, index: int, checkpoint: Checkpoint
    ) -> Contents:
        """Read a copy, which has the files of its source: what is wrong with it is wrong with that."""
        try:
            with open_untouched(target, self._resources) as database:
                require_itself(database, checkpoint)
                contents = read_contents(database, reader, index)
            if contents.problems:
                raise DataCorrupted(
                    f"{target}: {contents.problems[0]}; it is not backed up: stop the server, and see weir doctor"
                )
        except DataCorrupted as error:
            raise DataCorrupted(error.message.replace(str(target), str(source))) from error
        return contents

    def _take(self, source: Path, target: Path) -> BackedUpFile:
        """Link a file that an earlier backup has, or copy it; it is durable then, its name is not."""
        with disk_errors(source):
            size, sha256 = hash_of(source)
            earlier = self._earlier.get((sha256, size))
            if earlier is not None and is_intact(earlier, sha256, size):
                with suppress(OSError):  # It may have too many links, or the file system has none.
                    os.link(earlier, target)
                    self._on_bytes(size)
                    return BackedUpFile(name=target.name, size=size, sha256=sha256)
            elif earlier is not None and earlier.exists():  # Else somebody has removed that backup meanwhile.
                _logger.warning(
                    "%s is damaged, and so are the backups that have it; it is copied anew", earlier
                )
            copy_file(source, target, (size, sha256), self._on_bytes)
            self.copied_bytes += size
            self._earlier[sha256, size] = target
            return BackedUpFile(name=target.name, size=size, sha256=sha256)

    def finish(self) -> Backup:
        """Let the backup exist; durable when this returns.

        Raises:
            StoreFailed: The disk refused; there is no such backup, unless only the last sync failed.
        """
        backup = Backup(
            backup_id=self._id,
            created_us=self._now_us,
            next_table_id=next_free_id(self._data, CatalogFile()),
            tables=tuple(self._tables),
        )
        with disk_errors(self._directory):
            sync_directory(self._directory / TABLES_NAME)
            write_sealed(self._directory / MANIFEST_NAME, content_of(backup))
            self._directory.rename(self._destination / self._id)
            sync_directory(self._destination)
        return backup

    def discard(self) -> None:
        """Remove what was made, unless it is a backup already. What the disk refuses the next backup removes."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _new_id(now_us: int, taken: set[str]) -> str:
    time = datetime.datetime.fromtimestamp(now_us / 1e6, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    number = 0
    while (backup_id := f"{time}-{number}" if number else time) in taken:
        number += 1
    return backup_id


def _paths_of(found: Iterable[BackupFound]) -> dict[tuple[str, int], Path]:
    """Where the files of backups are, by SHA-256 and size; of those in several the newest one's."""
    paths = {}
    for each in found:
        if each.backup is None:
            _logger.warning("backup %s is left as it is: %s", each.directory.name, each.problem)
            continue
        for table in each.backup.tables:
            for bucket in table.buckets:
                directory = (
                    each.directory / TABLES_NAME / table_name(table.table_id) / bucket_name(bucket.index)
                )
                for file in bucket.files:
                    paths[file.sha256, file.size] = directory / file.name
    return paths
