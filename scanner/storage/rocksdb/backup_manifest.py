"""What a backup says of itself: a manifest of its tables, buckets and files, and how a directory lists its backups."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scanner.data.half_applied import HalfApplied
from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError
from scanner.storage.rocksdb.data_directory import entries_of
from scanner.storage.rocksdb.files import read_sealed

MARKER_NAME: Final = "BACKUPS"
"""The file that says that a directory is one of backups."""
MANIFEST_NAME: Final = "manifest.json"
BACKUP_ID: Final = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
"""The name of a backup: when it was begun, and which of that second."""
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


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
    return map(_found, backup_directories(destination))


def backup_directories(destination: Path) -> list[Path]:
    """Those of backups, oldest first."""
    directories = [
        each for each in entries_of(destination) if BACKUP_ID.fullmatch(each.name) and each.is_dir()
    ]
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


def content_of(backup: Backup) -> bytes:
    """What its manifest says."""
    content = asdict(backup)
    for table in content["tables"]:
        if not table["half_applied"]:
            del table["half_applied"]  # An older weir reads no field that it does not know.
    return json.dumps(content, indent=1).encode() + b"\n"
