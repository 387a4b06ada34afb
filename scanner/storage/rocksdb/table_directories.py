"""The directories of tables and of their checkpoints: which belong to a table, and which are stray.

A table's directories change their names while it is made or dropped, and these names alone are what this module
deletes:

    000007.creating    is made; the catalog names the table once all of it exists, and then it gets its name
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

import enum
import json
import logging
import re
import shlex
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from scanner.errors import DataCorrupted, ScannerError, StoreFailed
from scanner.storage.rocksdb.catalog import (
    TABLE_ID_END,
    TABLE_NAME,
    CatalogFile,
    TableEntry,
    load_table_entry,
)
from scanner.storage.rocksdb.data_directory import (
    CHECKPOINTS_NAME,
    NUMBERED,
    TABLES_NAME,
    checkpoints_directory,
    entries_of,
    table_directory,
    table_name,
)
from scanner.storage.rocksdb.documents import DOCUMENTS_NAME, read_document, write_document
from scanner.storage.rocksdb.files import disk_errors, is_directory, sync_directory
from scanner.storage.rocksdb.transaction_files import TRANSACTIONS_NAME

TABLE_IDS_DOCUMENT: Final = "table_ids.json"

_CREATING: Final = ".creating"
_DROPPING: Final = ".dropping"
_DROPPED: Final = ".dropped"
_MARKED = re.compile(r"(\d{6,10})(\.creating|\.dropping|\.dropped)")
_BUCKET = re.compile(r"\d{4}")
_CHECKPOINT_LEFTOVER = re.compile(r"unfinished(\.tmp)?|dropped-\d+")
"""The first is RocksDB's name for what it has not finished."""

_logger = logging.getLogger(__name__)


def settle(path: Path, catalog: CatalogFile) -> None:
    """Finish or undo what an interrupted create or drop left, and report strays. Once, at the start.

    Raises:
        StoreFailed: The disk refused.
    """
    named = {entry.table_id for entry in catalog.tables.values()}
    for entry in _directories(path):
        _settle_entry(path, entry, named)
    for table_id in sorted(named):
        for bucket in entries_of(checkpoints_directory(path, table_id)):
            for entry in entries_of(bucket):
                if _CHECKPOINT_LEFTOVER.fullmatch(entry.name) and _is_directory(entry):
                    with disk_errors(entry):
                        shutil.rmtree(entry)


class _Fate(enum.Enum):
    """What becomes of an entry of `tables/` or `checkpoints/` at the start."""

    KEPT = enum.auto()
    """It is what the catalog names."""
    FOREIGN = enum.auto()
    """Neither ours nor named by the catalog: it is left and reported."""
    LEFT = enum.auto()
    """Marked as ours, but the catalog names a table of this id: it is left and reported."""
    REMOVED = enum.auto()
    RENAMED = enum.auto()
    """It gets the name of a table."""


def _fate_of(entry: Path, named: Collection[int]) -> _Fate:
    marked = _MARKED.fullmatch(entry.name)
    if marked is None or entry.name != table_name(int(marked[1])) + marked[2] or not _is_directory(entry):
        is_named = entry.name in map(table_name, named)
        # Of one that cannot be looked at, `found_in` says why.
        return _Fate.KEPT if is_named and is_directory(entry, untold=True) else _Fate.FOREIGN
    if int(marked[1]) not in named:
        return _Fate.REMOVED
    if marked[2] == _DROPPED or entry.with_name(marked[1]).exists():
        return _Fate.LEFT
    return _Fate.RENAMED


def _settle_entry(path: Path, entry: Path, named: Collection[int]) -> None:
    match _fate_of(entry, named):
        case _Fate.FOREIGN:
            _logger.warning("%s", _about(path, entry))
        case _Fate.LEFT:
            _logger.warning("%s", _about_left(entry))
        case _Fate.REMOVED:
            _remove(entry)
        case _Fate.RENAMED:
            finish_creation(entry)


def _about_left(entry: Path) -> str:
    return (
        f"{entry} is what is left of a table, and the catalog names a table of this id; it is left as it is"
    )


def strays(path: Path, catalog: CatalogFile) -> Iterator[tuple[Path, str]]:
    """What is in the directories of tables and checkpoints and is none of the catalog's, and what becomes of it.

    Raises:
        StoreFailed: The disk refused.
    """
    named = {entry.table_id for entry in catalog.tables.values()}
    for entry in _directories(path):
        match _fate_of(entry, named):
            case _Fate.FOREIGN:
                yield entry, _about(path, entry)
            case _Fate.LEFT:
                yield entry, _about_left(entry)
            case _Fate.REMOVED:
                yield entry, f"{entry} is left of an interrupted create or drop; the next start removes it"
            case _Fate.RENAMED:
                about = f"{entry} is a table's, of an interrupted create or drop; the next start finishes it"
                yield entry, about


def place_of(path: Path, table_id: int) -> Path:
    """Where a table that the catalog names is now: what an interrupted create or drop left has another name."""
    plain = table_directory(path, table_id)
    for directory in (plain, *(plain.with_name(plain.name + mark) for mark in (_CREATING, _DROPPING))):
        if is_directory(directory, untold=True):
            return directory
    return plain


def _about(path: Path, entry: Path) -> str:
    """What to say of something that is neither ours nor named by the catalog."""
    left = "is left as it is"
    if entry.parent.name == TABLES_NAME and _is_directory(entry):
        try:
            holds = load_table_entry(entry)
        except ScannerError as error:
            return f"{entry} is not named by the catalog, and {left}: {error}; move it away, or restore the catalog"
        if holds is not None and table_name(holds.table_id) != entry.name:
            return f"{misnamed(entry, holds)}; until then it {left}"
        if holds is not None:
            return (
                f"{entry} holds table {holds.description.name!r}, which the catalog does not name; it {left}: bring the"
                f" table back with: weir adopt --data {shlex.quote(str(path))} {entry.name}, or move the directory away"
            )
    return f"{entry} is nothing that the catalog names; it {left}: move it away if it is not needed"


def misnamed(directory: Path, holds: TableEntry) -> str:
    """What to say of a directory that is called otherwise than that of its table."""
    own = directory.with_name(table_name(holds.table_id))
    advice = "which is there, too: move this one away" if own.exists() else "so give it that name first"
    return f"{directory} holds the table of {own.name}, {advice}"


def found_in(directory: Path, entry: TableEntry) -> TableEntry:
    """What a table's directory says of itself: what the catalog says, or the same with columns added.

    Raises:
        DataCorrupted: It is gone, or says otherwise.
        StoreFailed: It cannot be read, or a newer version wrote it.
    """
    with disk_errors(directory):
        is_there = directory.is_dir()
    if not is_there:
        raise DataCorrupted(f"its directory {directory} is gone; restore it from a copy, or drop the table")
    advice = (
        "restore directory and catalog from one copy, or, if the directory is the right one, take it with:"
        f" weir adopt --data {shlex.quote(str(directory.parents[1]))} {directory.name}"
    )
    try:
        found = load_table_entry(directory)
    except DataCorrupted as error:
        raise DataCorrupted(f"{error.message}; {advice}") from error
    if found is None:
        raise DataCorrupted(f"{directory / TABLE_NAME} is gone; {advice}")
    if found != entry and not found.extends(entry):
        raise DataCorrupted(
            f"{directory / TABLE_NAME} and the catalog disagree: there it is {_outline(found)}, and here"
            f" {_outline(entry)}; {advice}"
        )
    return found


def _outline(entry: TableEntry) -> str:
    return (
        f"{entry.description.name!r} (id {entry.table_id}, {entry.unique_id[:8]}, {entry.description.buckets} buckets,"
        f" {len(entry.description.schema)} columns)"
    )


def next_table_id(path: Path, catalog: CatalogFile) -> int:
    """An id that no table ever had; it is remembered, durably, before this returns.

    Raises:
        DataCorrupted: The document that remembers the last one is damaged.
        StoreFailed: The disk refused, or there are no ids left.
    """
    table_id = next_free_id(path, catalog)
    if table_id >= TABLE_ID_END:
        raise StoreFailed(f"{path} has no table ids left; load its tables into a new data directory")
    write_document(path, TABLE_IDS_DOCUMENT, json.dumps({"next": table_id + 1}).encode() + b"\n")
    return table_id


def next_free_id(path: Path, catalog: CatalogFile) -> int:
    """An id that no table ever had. It is not remembered.

    Raises:
        DataCorrupted: The document that remembers the last one is damaged.
        StoreFailed: The disk refused.
    """
    try:
        content = read_document(path, TABLE_IDS_DOCUMENT)
        remembered = 0 if content is None else int(json.loads(content)["next"])
    except (DataCorrupted, ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(
            f"{path / DOCUMENTS_NAME / TABLE_IDS_DOCUMENT} cannot be read ({error}); remove it: table ids then go on"
            " above those of the catalog and of every directory"
        ) from error
    return max(catalog.next_table_id, remembered, *(each + 1 for each in _seen_ids(path)), 0)


def _seen_ids(path: Path) -> Iterator[int]:
    for entry in _directories(path):
        numbered = NUMBERED.fullmatch(entry.name)
        if numbered is not None and int(numbered[1]) < TABLE_ID_END:
            yield int(numbered[1])


def _directories(path: Path) -> Iterator[Path]:
    """What is where the directories of tables are, and then what is where those of their checkpoints are."""
    for parent in (path / TABLES_NAME, path / CHECKPOINTS_NAME):
        yield from entries_of(parent)


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
        for entry in entries_of(directory):
            ours = _BUCKET.fullmatch(entry.name) or entry.name == TRANSACTIONS_NAME
            if ours and _is_directory(entry):
                shutil.rmtree(entry)
            elif entry.name in {TABLE_NAME, f"{TABLE_NAME}~"}:
                entry.unlink()
        if foreign := sorted(entry.name for entry in entries_of(directory)):
            _logger.warning(
                "%s is what is left of a dropped table; it is left as it is, because others put %s into it",
                directory,
                ", ".join(foreign),
            )
            return
        if directory.is_symlink():
            directory.unlink()  # To another disk, whose empty directory stays.
        else:
            directory.rmdir()
        sync_directory(directory.parent)


def _is_directory(path: Path) -> bool:
    return is_directory(path) and not path.is_symlink()
