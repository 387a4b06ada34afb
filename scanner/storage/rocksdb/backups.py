"""Backups of tables, made from checkpoints while the server runs, and data directories made of backups.

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
2. What is restored is what was backed up, bit by bit, or nothing: SHA-256 of each file, digest of each bucket's rows.
3. Nothing is written into the data directory that is backed up.
4. A directory that a backup is restored into is marked until it is whole. Only what is marked is ever removed from it.

This module knows no server: it is given checkpoints, which its caller keeps.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from scanner.data.half_applied import HalfApplied
from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError, StoreFailed, StoreLocked
from scanner.storage.rocksdb.catalog import (
    TABLE_NAME,
    CatalogFile,
    TableEntry,
    load_table_entry,
    save_catalog,
)
from scanner.storage.rocksdb.checkpoints import checkpoint_name, require_itself
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.contents import Contents, Reader, read_contents
from scanner.storage.rocksdb.data_directory import (
    RESTORING_NAME,
    TABLES_NAME,
    bucket_name,
    checkpoints_directory,
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
    read_sealed,
    sync_directory,
    write_sealed,
)
from scanner.storage.rocksdb.manifest_length import write_manifest_length
from scanner.storage.rocksdb.table_directories import TABLE_IDS_DOCUMENT, next_free_id
from scanner.storage.rocksdb.untouched import SETTINGS_NAME, open_untouched

if TYPE_CHECKING:
    from scanner.storage.records import Checkpoint

MARKER_NAME: Final = "BACKUPS"
MANIFEST_NAME: Final = "manifest.json"
_LOCK_NAME: Final = "LOCK"
_MARKER_CONTENT: Final = (
    b"Backups of data directories of weir, one in each directory. See docs/operating.md.\n"
)
_ID: Final = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
_UNFINISHED: Final = ".unfinished"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_PIECE_BYTES: Final = 1024 * 1024

_logger = logging.getLogger(__name__)

OnBytes = Callable[[int], None]
"""Called with the octets processed since the last call."""


def _no_bytes(_: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class BackedUpFile:
    """One file of a backup."""

    name: str
    size: int
    sha256: str
    """In hexadecimal digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackedUpBucket:
    """One bucket of a backup."""

    index: int
    log_offset: int
    """The state: the changes with a smaller offset, and no other."""
    timestamp_us: int
    """When its checkpoint was made, in microseconds since 1970 UTC."""
    history: str
    """Id of the history that the state is of, in hexadecimal digits."""
    rows: int
    digest: int
    """CRC-32C over the stored rows in key order, as a scan of the bucket has it."""
    files: tuple[BackedUpFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackedUpTable:
    """One table of a backup."""

    table_id: int
    name: str
    description: BackedUpFile
    """Its table.json."""
    buckets: tuple[BackedUpBucket, ...]
    half_applied: tuple[HalfApplied, ...] = ()
    """Versions that the server could not apply to all buckets; usually none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backup:
    """What a manifest says."""

    backup_id: str
    created_us: int
    """When it was begun, in microseconds since 1970 UTC."""
    next_table_id: int
    """Above every id that the data directory had given."""
    tables: tuple[BackedUpTable, ...]

    @property
    def warnings(self) -> list[str]:
        """What is not whole in it; usually nothing."""
        return [str(each) for table in self.tables for each in table.half_applied]

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(bucket.rows for table in self.tables for bucket in table.buckets)

    @property
    def size_bytes(self) -> int:
        """Of all files, those included that it shares with other backups."""
        return sum(file.size for table in self.tables for bucket in table.buckets for file in bucket.files)


@dataclass(frozen=True, slots=True)
class BackupFound:
    """A directory of a backup, and what its manifest says."""

    directory: Path
    backup: Backup | None
    """None: it cannot be read."""
    problem: str = ""
    """Why."""


def list_backups(destination: Path) -> Iterator[BackupFound]:
    """The backups in a directory, oldest first. Each is read when it is asked for: all of them together may be large.

    Raises:
        ArgumentInvalid: It is no directory of backups.
        DataCorrupted: The file that says so is damaged.
        StoreFailed: The disk refused.
    """
    destination = Path(destination).absolute()
    if read_sealed(destination / MARKER_NAME) is None:
        raise ArgumentInvalid(f"{destination} is no directory of backups of weir")
    return map(_found, _directories_in(destination))


def _directories_in(destination: Path) -> list[Path]:
    """Those of backups, oldest first."""
    directories = [each for each in entries_of(destination) if _ID.fullmatch(each.name) and each.is_dir()]
    return sorted(directories, key=lambda each: _order_of(each.name))


def _found(directory: Path) -> BackupFound:
    try:
        return BackupFound(directory, load_manifest(directory))
    except ScannerError as error:
        return BackupFound(directory, None, error.message)


def _order_of(backup_id: str) -> tuple[str, int]:
    time, _, number = backup_id.partition("-")
    return time, int(number or 0)


def load_manifest(directory: Path) -> Backup:
    """Read what a backup holds.

    Raises:
        ArgumentInvalid: The directory is no backup.
        DataCorrupted: Its manifest is damaged, or another backup's.
        StoreFailed: The disk refused, or a newer version wrote it.
    """
    path = directory / MANIFEST_NAME
    text = read_sealed(path)
    if text is None:
        raise ArgumentInvalid(f"{directory} is no backup of weir: it has no {MANIFEST_NAME}")
    try:
        return _backup_of(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(f"{path} is damaged ({type(error).__name__}): use another backup") from error


def _backup_of(content: dict[str, Any]) -> Backup:
    tables = [
        BackedUpTable(
            **{
                **table,
                "description": _file_of(table["description"]),
                "buckets": tuple(
                    BackedUpBucket(**{**bucket, "files": tuple(map(_file_of, bucket["files"]))})
                    for bucket in table["buckets"]
                ),
                "half_applied": tuple(map(_half_applied_of, table.get("half_applied", ()))),
            }
        )
        for table in content["tables"]
    ]
    return Backup(**{**content, "tables": tuple(tables)})


def _half_applied_of(content: dict[str, Any]) -> HalfApplied:
    buckets = {name: tuple(map(int, content[name])) for name in ("applied", "missing")}
    return HalfApplied(**{**content, **buckets})


def _file_of(content: dict[str, Any]) -> BackedUpFile:
    file = BackedUpFile(**content)
    if not _FILE_NAME.fullmatch(file.name):
        raise ValueError(f"{file.name!r} is no name of a file")
    return file


@contextmanager
def begin_backup(
    data: Path, destination: Path, now_us: int, on_bytes: OnBytes = _no_bytes
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
            if entry.suffix == _UNFINISHED and _ID.fullmatch(entry.stem) and entry.is_dir():
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
        self._id = _new_id(now_us, {each.name for each in _directories_in(destination)})
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
        _verify_files(target, files)
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
            size, sha256 = _hash_of(source)
            earlier = self._earlier.get((sha256, size))
            if earlier is not None and _is_intact(earlier, sha256, size):
                with suppress(OSError):  # It may have too many links, or the file system has none.
                    os.link(earlier, target)
                    self._on_bytes(size)
                    return BackedUpFile(name=target.name, size=size, sha256=sha256)
            elif earlier is not None and earlier.exists():  # Else somebody has removed that backup meanwhile.
                _logger.warning(
                    "%s is damaged, and so are the backups that have it; it is copied anew", earlier
                )
            _copy(source, target, (size, sha256), self._on_bytes)
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
            write_sealed(self._directory / MANIFEST_NAME, _content_of(backup))
            self._directory.rename(self._destination / self._id)
            sync_directory(self._destination)
        return backup

    def discard(self) -> None:
        """Remove what was made, unless it is a backup already. What the disk refuses the next backup removes."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _content_of(backup: Backup) -> bytes:
    content = asdict(backup)
    for table in content["tables"]:
        if not table["half_applied"]:
            del table["half_applied"]  # An older weir reads no field that it does not know.
    return json.dumps(content, indent=1).encode() + b"\n"


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


def restore(
    backup: Path,
    data: Path,
    on_bytes: OnBytes = _no_bytes,
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
            _copy(path, target / file.name, (file.size, file.sha256), on_bytes)
        except FileNotFoundError as error:
            raise DataCorrupted(f"{path} is gone: use another backup") from error


def _verify_bucket(
    directory: Path, reader: Reader, bucket: BackedUpBucket, resources: RocksResources
) -> None:
    """See that a copy of a bucket is what was backed up: each file as it is on the disk, then rows and changelog."""
    _verify_files(directory, bucket.files)
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


def _verify_files(directory: Path, files: Sequence[BackedUpFile]) -> None:
    with disk_errors(directory):
        for file in files:
            if not _is_intact(directory / file.name, file.sha256, file.size):
                raise DataCorrupted(
                    f"{directory / file.name} is not what was written: the disk is not reliable"
                )


def _is_intact(path: Path, sha256: str, size: int) -> bool:
    try:
        return _hash_of(path) == (size, sha256)
    except FileNotFoundError:
        return False


def _hash_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _read_piece(read: BinaryIO, source: Path) -> bytes:
    with disk_errors(source):
        return read.read(_PIECE_BYTES)


def _copy(source: Path, target: Path, expected: tuple[int, str], on_bytes: OnBytes) -> None:
    """Copy a file into one that is not there yet; its content is durable when this returns.

    Raises:
        DataCorrupted: Size and SHA-256 are not what they should be.
        StoreFailed: The disk refused; it names the file that is to blame.
        OSError: The source cannot be opened.
    """
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as read, disk_errors(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "wb") as written:
            while piece := _read_piece(read, source):
                written.write(piece)
                digest.update(piece)
                size += len(piece)
                on_bytes(len(piece))
            written.flush()
            os.fsync(written.fileno())
    if (size, digest.hexdigest()) != expected:
        raise DataCorrupted(
            f"{source} is damaged: it has {size} octets with another SHA-256 than it should; use another copy"
        )
