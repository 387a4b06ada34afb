"""Bring back tables that the catalog of a data directory does not name, by what their directories say of themselves.

A person asks for it, while no server has the directory open; a server never does it by itself. Nothing is deleted; a
catalog that is replaced is kept beside the new one.

This module knows no RocksDB: whether a table's rows are whole is seen when it is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    ScannerError,
    StoreFailed,
    TableExists,
    TableNotFound,
)
from scanner.storage.rocksdb.catalog import (
    CATALOG_NAME,
    CatalogFile,
    TableEntry,
    load_catalog,
    load_table_entry,
    save_catalog,
    save_table_entry,
)
from scanner.storage.rocksdb.data_directory import (
    FORMAT_NAME,
    LOCK_NAME,
    TABLES_NAME,
    acquire_lock,
    bucket_name,
    prepare,
    require_format,
    table_directory,
    table_name,
    write_format,
)
from scanner.storage.rocksdb.files import disk_errors, sync_directory
from scanner.storage.rocksdb.table_directories import misnamed

if TYPE_CHECKING:
    from scanner.data.table import TableDescription


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A table's directory that the catalog does not name."""

    directory: str
    """Its name in `tables/`."""
    description: TableDescription | None
    """The table that it holds; None: it does not say."""
    problem: str = ""
    """Why it does not say."""


def unnamed_tables(path: Path) -> list[Unnamed]:
    """The directories that could be adopted, by name.

    Raises:
        StoreLocked: A server has the data directory open.
        DataCorrupted, StoreFailed: It is damaged, of another format, or the disk refused.
    """
    with _catalog_of(path) as catalog:
        named = {table_name(entry.table_id) for entry in catalog.tables.values()}
        return [_described(directory) for directory in _numbered(path) if directory.name not in named]


def adopt(path: Path, directory: str, name: str | None = None) -> TableDescription:
    """Let the catalog name the table of a directory. A table that it names already gets its entry from the directory.

    Args:
        path: The data directory.
        directory: Name of the table's directory in `tables/`.
        name: What the table is to be called; None: as before.

    Raises:
        ArgumentInvalid: It is no name of a table's directory.
        TableNotFound: There is no such directory.
        TableExists: Another table has the name.
        DataCorrupted: The directory does not say what it holds, or says that it is another one; the catalog is damaged.
        StoreLocked: A server has the data directory open.
        StoreFailed: The disk refused.
    """
    if not directory.isascii() or not directory.isdigit() or table_name(int(directory)) != directory:
        raise ArgumentInvalid(
            f"{directory!r} is no directory of a table: those are six digits or more; rename it first"
        )
    at = table_directory(path, int(directory))
    with _catalog_of(path) as catalog:
        if not at.is_dir():
            raise TableNotFound(f"there is no directory {at}")
        mine = {entry.table_id: entry for entry in catalog.tables.values()}.get(int(directory))
        entry = _entry_in(at) or mine  # The catalog has it where its table.json is lost.
        if entry is None:
            raise DataCorrupted(f"{at} does not say which table it holds; restore its table.json from a copy")
        _require_whole(at, entry)
        if name is not None:
            entry = replace(entry, description=replace(entry.description, name=name))
        if mine is not None:
            catalog = catalog.without_table(mine.description.name)
        if entry.description.name in catalog.tables:
            raise TableExists(
                f"there is a table {entry.description.name!r}; give this one another name with --as"
            )
        save_table_entry(at, entry)
        save_catalog(path, catalog.with_table(entry))
        return entry.description


def rebuild_catalog(path: Path) -> tuple[list[TableDescription], list[Unnamed]]:
    """Make the catalog anew from what the tables' directories say. The present one is kept under another name.

    Of two directories that claim one name the newer one gets it.

    Returns:
        The tables of the new catalog, and the directories that are none of them.

    Raises:
        StoreLocked: A server has the data directory open.
        StoreFailed: The disk refused, or this is no data directory.
    """
    path = Path(path).absolute()
    # Not each has all of them: a restored directory that no server has opened has no lock, nor has a copy without it.
    marks = (FORMAT_NAME, CATALOG_NAME, LOCK_NAME)
    if not (path / TABLES_NAME).is_dir() or not any((path / name).is_file() for name in marks):
        raise StoreFailed(
            f"{path} is no data directory of weir: it has no {TABLES_NAME}/, or none of {', '.join(marks)}"
        )
    with suppress(DataCorrupted):
        # Damage is why we are here; another format is not for us.
        require_format(path)
    lock = acquire_lock(path)
    try:
        catalog, left = CatalogFile(), []
        for directory in reversed(_numbered(path)):
            described = _described(directory)
            if described.description is None:
                left.append(described)
            elif described.description.name in catalog.tables:
                name = described.description.name
                left.append(replace(described, problem=f"a newer table has the name {name!r}"))
            else:
                entry = _entry_in(directory)
                assert entry is not None
                catalog = catalog.with_table(entry)
        with disk_errors(path):
            for name in (CATALOG_NAME, FORMAT_NAME):
                if (path / name).exists():
                    _set_aside(path / name)
            sync_directory(path)
        # The catalog last: without it the directory is not taken for a whole one.
        write_format(path)
        save_catalog(path, catalog)
        return [entry.description for entry in catalog.tables.values()], left
    finally:
        os.close(lock)


@contextmanager
def _catalog_of(path: Path) -> Iterator[CatalogFile]:
    """The catalog of a data directory, locked for the length of a block."""
    path = Path(path).absolute()
    if not (path / CATALOG_NAME).exists() and not (path / TABLES_NAME).exists():
        raise StoreFailed(f"{path} is no data directory of weir")
    prepare(path)
    lock = acquire_lock(path)
    try:
        catalog = load_catalog(path)
        assert catalog is not None  # `prepare` would have refused.
        yield catalog
    finally:
        os.close(lock)


def _numbered(path: Path) -> list[Path]:
    with disk_errors(path):
        entries = list((path / TABLES_NAME).iterdir())
    numbered = [each for each in entries if each.is_dir() and each.name.isascii() and each.name.isdigit()]
    return sorted(numbered, key=lambda each: int(each.name))


def _described(directory: Path) -> Unnamed:
    try:
        entry = _entry_in(directory)
        if entry is None:
            return Unnamed(directory.name, None, "it has no table.json")
        _require_whole(directory, entry)
    except ScannerError as error:
        return Unnamed(directory.name, None, error.message)
    return Unnamed(directory.name, entry.description)


def _entry_in(directory: Path) -> TableEntry | None:
    entry = load_table_entry(directory)
    if entry is not None and table_name(entry.table_id) != directory.name:
        raise DataCorrupted(misnamed(directory, entry))
    return entry


def _require_whole(directory: Path, entry: TableEntry) -> None:
    """See that a directory has all buckets of its table: one that is missing is lost rows, not an empty bucket."""
    missing = [
        index for index in range(entry.description.buckets) if not (directory / bucket_name(index)).is_dir()
    ]
    if missing:
        raise DataCorrupted(
            f"{directory} lacks bucket {missing[0]} ({len(missing)} of {entry.description.buckets} buckets in all);"
            " restore it from a copy"
        )


def _set_aside(path: Path) -> None:
    number = 0
    while (aside := path.with_name(f"{path.name}.before-{number}")).exists():
        number += 1
    path.rename(aside)
