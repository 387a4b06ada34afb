"""The outside of a data directory: whose it is, of which format, which directories are tables, and which are nobody's.

    FORMAT                      says of which format everything in the directory is
    LOCK                        held with flock while a server has it open; the kernel frees it however the server
                                ends. Holds the server's process id
    catalog.json                the tables (`scanner.storage.catalog`)
    tables/000007/              one table
    checkpoints/000007/         its checkpoints
    documents/                  small files of the server (`scanner.storage.documents`)

A table's directories change their names while it is made or dropped, and these names alone are what this module
deletes:

    000007.creating    is made; the catalog names the table once all of it is there, and then it gets its name
    000007.dropping    is to be dropped; dropped once the catalog names it no longer, else it gets its name back
    000007.dropped     is dropped, and is being removed

Invariants:

1. Nothing is removed that this program did not make and mark, whatever the catalog says. What the catalog does not
   name stays where it is, and is reported at every start.
2. A table id is never given twice: the next one is above those of the catalog, of every directory, and of the document
   that remembers the last one.

This module knows no RocksDB.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from scanner.errors import DataCorrupted, ScannerError, StoreFailed, StoreLocked
from scanner.storage.catalog import (
    CATALOG_NAME,
    TABLE_ID_END,
    TABLE_NAME,
    Catalog,
    load_catalog,
    load_table_entry,
    missing_catalog,
    save_catalog,
)
from scanner.storage.documents import DOCUMENTS_NAME, read_document, write_document
from scanner.storage.envelope import FORMAT, seal, unseal
from scanner.storage.files import (
    disk_errors,
    make_directories,
    make_private,
    read_file,
    replace_file,
    sync_directory,
)

FORMAT_NAME: Final = "FORMAT"
LOCK_NAME: Final = "LOCK"
TABLES_NAME: Final = "tables"
CHECKPOINTS_NAME: Final = "checkpoints"
TABLE_IDS_DOCUMENT: Final = "table_ids.json"

_CREATING: Final = ".creating"
_DROPPING: Final = ".dropping"
_DROPPED: Final = ".dropped"
_MARKED = re.compile(r"(\d{6,10})(\.creating|\.dropping|\.dropped)")
_NUMBERED = re.compile(r"(\d{6,10})(\..*)?")
_BUCKET = re.compile(r"\d{4}")
_CHECKPOINT_LEFTOVER = re.compile(r"unfinished(\.tmp)?|dropped-\d+")
"""The first is RocksDB's name for what it has not finished."""
_FORMAT_CONTENT = b"A data directory of weir. Do not change anything in it by hand; see docs/operating.md.\n"

_logger = logging.getLogger(__name__)


def table_name(table_id: int) -> str:
    """The name of a table's directory."""
    return f"{table_id:06d}"


def bucket_name(index: int) -> str:
    """The name of a bucket's directory."""
    return f"{index:04d}"


def table_directory(path: Path, table_id: int) -> Path:
    """Where a table is."""
    return path / TABLES_NAME / table_name(table_id)


def checkpoints_directory(path: Path, table_id: int) -> Path:
    """Where a table's checkpoints are, if it has any."""
    return path / CHECKPOINTS_NAME / table_name(table_id)


# --- opening ---------------------------------------------------------------------------------------------------------


def prepare(path: Path) -> None:
    """See that a path is a data directory that this version can open, or can become one; make it if it is missing.

    Changes nothing in a directory that is something else's.

    Raises:
        DataCorrupted: What it has of a data directory is damaged.
        StoreFailed: It is of another format, something else's, or the disk refused.
    """
    make_directories(path)
    require_format(path)
    if not (path / CATALOG_NAME).exists():
        _require_fresh(path)


def begin(path: Path) -> Catalog:
    """Read the catalog of a data directory that is locked; make what a fresh one lacks.

    Raises:
        DataCorrupted, StoreFailed: As `prepare`.
    """
    prepare(path)
    catalog = load_catalog(path)
    if catalog is None:
        catalog = Catalog()
        write_format(path)
        save_catalog(path, catalog)
        with disk_errors(path), suppress(PermissionError):
            # Whoever made it may have crashed before its name was durable. Not everybody may read its parent.
            sync_directory(path.parent)
    make_directories(path / TABLES_NAME, path)
    _tighten(path)
    return catalog


def write_format(path: Path) -> None:
    """Say of which format a data directory is.

    Raises:
        StoreFailed: The disk refused.
    """
    replace_file(path / FORMAT_NAME, seal(FORMAT_NAME, _FORMAT_CONTENT))


def acquire_lock(path: Path) -> int:
    """Lock a data directory, and return the descriptor that holds the lock.

    Raises:
        StoreLocked: A server has it open; the message names its process.
        StoreFailed: The disk refused.
    """
    with disk_errors(path):
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with disk_errors(path / LOCK_NAME):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
                raise StoreLocked(
                    f"data directory {path} is in use by process {holder}; stop that server, or use another directory"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_format(path: Path) -> None:
    """See that a data directory, if it is one already, is of the format that this version reads.

    Raises:
        DataCorrupted: What says so is damaged or gone.
        StoreFailed: It is of another format, or the disk refused.
    """
    sealed = read_file(path / FORMAT_NAME)
    if sealed is not None:
        try:
            unseal(FORMAT_NAME, sealed, path / FORMAT_NAME)
        except DataCorrupted as error:
            raise DataCorrupted(f"{error.message}; {_write_anew(path)}") from error
        return
    catalog = read_file(path / CATALOG_NAME)
    if catalog is None:
        return
    if _is_format_1(catalog):
        raise StoreFailed(
            f"data directory {path} has format 1, which was never released, and this version reads {FORMAT}: export its"
            " tables with the weir that wrote it (weir scan TABLE -o FILE.parquet), and load them into a new directory"
            " (weir load FILE.parquet)"
        )
    raise DataCorrupted(f"{path / FORMAT_NAME} is gone; {_write_anew(path)}")


def _write_anew(path: Path) -> str:
    return (
        f"restore it from a copy, or write it and the catalog anew with: weir adopt --data {path} --rebuild"
    )


def _is_format_1(catalog: bytes) -> bool:
    try:
        return bool(json.loads(catalog)["format"] == 1)
    except (ValueError, KeyError, TypeError):
        return False


def _require_fresh(path: Path) -> None:
    """Refuse a directory that has no catalog, unless it is empty or an interrupted first start left it."""
    with disk_errors(path):
        found = {entry.name for entry in path.iterdir()}
    if TABLES_NAME in found and found & {LOCK_NAME, FORMAT_NAME}:
        raise missing_catalog(path)
    if found - {LOCK_NAME, FORMAT_NAME, f"{FORMAT_NAME}~", f"{CATALOG_NAME}~"}:
        raise StoreFailed(f"{path} is not empty and is no data directory of weir; name an empty or a new one")


def _tighten(path: Path) -> None:
    """Take away what others than the server's user may do. What is in the directory and not ours stays as it is."""
    ours = [path / name for name in (DOCUMENTS_NAME,) if (path / name).is_dir()]
    for parent in (path / TABLES_NAME, path / CHECKPOINTS_NAME):
        ours += [entry for entry in _entries(parent) if _NUMBERED.fullmatch(entry.name) and entry.is_dir()]
    alone = [path, path / TABLES_NAME, path / CHECKPOINTS_NAME]
    alone += [path / name for name in (FORMAT_NAME, LOCK_NAME, CATALOG_NAME)]
    with disk_errors(path):
        exposed = path.stat().st_mode & 0o077
    try:
        changed = make_private(ours, alone)
    except StoreFailed as error:
        _logger.warning("others than the server's user may read rows in %s: %s", path, error)
        return
    if exposed:
        _logger.warning(
            "data directory %s was open to others than its user; it is no longer (%d files and directories)",
            path,
            changed,
        )


# --- tables ----------------------------------------------------------------------------------------------------------


def settle(path: Path, catalog: Catalog) -> None:
    """Finish or undo what an interrupted create or drop left, and report what nobody knows. Once, at the start.

    Raises:
        StoreFailed: The disk refused.
    """
    named = {entry.table_id for entry in catalog.tables.values()}
    for parent in (path / TABLES_NAME, path / CHECKPOINTS_NAME):
        for entry in _entries(parent):
            _settle_entry(path, entry, named)
    for table_id in sorted(named):
        for bucket in _entries(checkpoints_directory(path, table_id)):
            for entry in _entries(bucket):
                if _CHECKPOINT_LEFTOVER.fullmatch(entry.name) and _is_directory(entry):
                    with disk_errors(entry):
                        shutil.rmtree(entry)


def _settle_entry(path: Path, entry: Path, named: Collection[int]) -> None:
    marked = _MARKED.fullmatch(entry.name)
    if marked is None or entry.name != table_name(int(marked[1])) + marked[2] or not _is_directory(entry):
        if not (entry.is_dir() and entry.name in map(table_name, named)):
            _logger.warning("%s", _about(path, entry))
        return
    plain = entry.with_name(marked[1])
    if int(marked[1]) not in named:
        _remove(entry)
    elif marked[2] == _DROPPED or plain.exists():
        _logger.warning(
            "%s is what is left of a table, and the catalog names a table of this id; it is left as it is",
            entry,
        )
    else:
        with disk_errors(entry):
            entry.rename(plain)
            sync_directory(plain.parent)


def _about(path: Path, entry: Path) -> str:
    """What to say of something that is neither ours nor named by the catalog."""
    left = "is left as it is"
    if entry.parent.name == TABLES_NAME and _is_directory(entry):
        try:
            holds = load_table_entry(entry)
        except ScannerError as error:
            return f"{entry} is not named by the catalog, and {left}: {error}; move it away, or restore the catalog"
        if holds is not None:
            return (
                f"{entry} holds table {holds.description.name!r}, which the catalog does not name; it {left}: bring the"
                f" table back with: weir adopt --data {path} {entry.name}, or move the directory away"
            )
    return f"{entry} is nothing that the catalog names; it {left}: move it away if it is not needed"


def next_table_id(path: Path, catalog: Catalog) -> int:
    """An id that no table ever had; it is remembered, durably, before this returns.

    Raises:
        DataCorrupted: The document that remembers the last one is damaged.
        StoreFailed: The disk refused, or there are no ids left.
    """
    try:
        content = read_document(path, TABLE_IDS_DOCUMENT)
        remembered = 0 if content is None else int(json.loads(content)["next"])
    except (DataCorrupted, ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(
            f"{path / DOCUMENTS_NAME / TABLE_IDS_DOCUMENT} cannot be read ({error}); remove it: table ids then go on"
            " above those of the catalog and of every directory"
        ) from error
    table_id = max(catalog.next_table_id, remembered, *(each + 1 for each in _seen_ids(path)), 0)
    if table_id >= TABLE_ID_END:
        raise StoreFailed(f"{path} has no table ids left; load its tables into a new data directory")
    write_document(path, TABLE_IDS_DOCUMENT, json.dumps({"next": table_id + 1}).encode() + b"\n")
    return table_id


def _seen_ids(path: Path) -> Iterator[int]:
    for parent in (path / TABLES_NAME, path / CHECKPOINTS_NAME):
        for entry in _entries(parent):
            numbered = _NUMBERED.fullmatch(entry.name)
            if numbered is not None and int(numbered[1]) < TABLE_ID_END:
                yield int(numbered[1])


def begin_creation(path: Path, table_id: int) -> Path:
    """Make the directory in which a table is made, for `finish_creation`.

    Raises:
        StoreFailed: The disk refused; there is nothing new.
    """
    directory = table_directory(path, table_id)
    marked = directory.with_name(directory.name + _CREATING)
    with disk_errors(marked):
        marked.mkdir(0o700)
    return marked


def finish_creation(marked: Path) -> None:
    """Give a table that was made its name; durable when this returns. The catalog names it already.

    Raises:
        StoreFailed: The disk refused; the next start finishes it.
    """
    with disk_errors(marked):
        marked.rename(marked.with_suffix(""))
        sync_directory(marked.parent)


def undo_creation(marked: Path) -> None:
    """Remove what was made of a table that the catalog does not name, as far as the disk lets us.

    The next start removes the rest.
    """
    with suppress(StoreFailed), disk_errors(marked):
        if not marked.exists():
            marked.with_suffix("").rename(marked)
        _remove(marked)


def mark_dropping(path: Path, table_id: int) -> list[Path]:
    """Mark a table's directories as being dropped, and return them under their new names.

    Raises:
        StoreFailed: The disk refused; nothing is marked.
    """
    marked: list[Path] = []
    try:
        for directory in (checkpoints_directory(path, table_id), table_directory(path, table_id)):
            with disk_errors(directory), suppress(FileNotFoundError):
                marked.append(directory.rename(directory.with_name(directory.name + _DROPPING)))
                sync_directory(directory.parent)
    except BaseException:
        unmark_dropping(marked)
        raise
    return marked


def unmark_dropping(marked: list[Path]) -> None:
    """Give directories that are not dropped after all their names back, or leave that to the next start."""
    for directory in marked:
        with suppress(OSError):
            directory.rename(directory.with_suffix(""))
            sync_directory(directory.parent)


def remove_dropped(marked: list[Path]) -> None:
    """Remove what was marked as being dropped, and the catalog names no longer.

    Raises:
        StoreFailed: The disk refused; the next start removes it.
    """
    for directory in marked:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a marked directory: what we made in it, and itself if that was all. The mark stays to the end."""
    with disk_errors(directory):
        if directory.suffix == _DROPPING:
            # From here on it may be whole no longer, so that it must not get its name back.
            directory = directory.rename(directory.with_suffix(_DROPPED))
            sync_directory(directory.parent)
        for entry in _entries(directory):
            if _BUCKET.fullmatch(entry.name) and _is_directory(entry):
                shutil.rmtree(entry)
            elif entry.name in {TABLE_NAME, f"{TABLE_NAME}~"}:
                entry.unlink()
        if foreign := sorted(entry.name for entry in _entries(directory)):
            _logger.warning(
                "%s is what is left of a dropped table; it is left as it is, because others put %s into it",
                directory,
                ", ".join(foreign),
            )
            return
        directory.rmdir()
        sync_directory(directory.parent)


def _entries(directory: Path) -> list[Path]:
    """What is in a directory, by name; nothing if there is no such directory."""
    with disk_errors(directory):
        try:
            return sorted(directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
