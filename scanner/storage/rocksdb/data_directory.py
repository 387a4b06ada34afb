"""A data directory's layout, format, lock and access rights.

    FORMAT                      says of which format everything in the directory is
    LOCK                        held with flock while a server has it open; the kernel frees it however the server
                                ends. Holds the server's process id
    catalog.json                the tables (`scanner.storage.rocksdb.catalog`)
    tables/000007/              one table (`scanner.storage.rocksdb.table_directories`)
    checkpoints/000007/         its checkpoints
    images/000007/0003.image    the columnar image of a bucket (`scanner.storage.images`); may be removed at any time
    documents/                  small files of the server (`scanner.storage.rocksdb.documents`)
    RESTORING                   there and held with flock while a backup is restored into the directory; left there, if
                                that was interrupted. No server opens a directory that has it

This module knows no RocksDB.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from scanner.errors import DataCorrupted, StoreFailed, StoreLocked
from scanner.storage.rocksdb.catalog import (
    CATALOG_NAME,
    CatalogFile,
    load_catalog,
    missing_catalog,
    save_catalog,
)
from scanner.storage.rocksdb.documents import DOCUMENTS_NAME
from scanner.storage.rocksdb.envelope import FORMAT
from scanner.storage.rocksdb.files import (
    disk_errors,
    give_to_owner,
    is_directory,
    make_directories,
    make_private,
    read_file,
    read_sealed,
    sync_directory,
    write_sealed,
)

FORMAT_NAME: Final = "FORMAT"
LOCK_NAME: Final = "LOCK"
RESTORING_NAME: Final = "RESTORING"
TABLES_NAME: Final = "tables"
CHECKPOINTS_NAME: Final = "checkpoints"
IMAGES_NAME: Final = "images"

FIRST_TABLE_ID_END: Final = 1 << 30
"""Below it a fresh directory draws its first table id, so that a client that knows the tables of another directory does
not take these for them. Less than the clock's seconds, with which the ids of a restored one go on.
"""
NUMBERED: Final = re.compile(r"(\d{6,10})(\..*)?")
"""Names that begin with a table's id, as table directories and copies of them do."""
LOST_AND_FOUND_NAME: Final = "lost+found"
"""What ext4 has in the root of a volume; people mount volumes for data and for backups."""
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


def images_directory(path: Path, table_id: int) -> Path:
    """Where the images of a table's buckets are, if it has any."""
    return path / IMAGES_NAME / table_name(table_id)


def prepare(path: Path) -> None:
    """See that a path is a data directory that this version can open, or can become one; make it if it is missing.

    Changes nothing in a directory that is something else's.

    Raises:
        DataCorrupted: What it has of a data directory is damaged.
        StoreFailed: It is of another format, something else's, its name is no text, or the disk refused.
    """
    _require_text(path)
    make_directories(path)
    require_format(path)
    if not (path / CATALOG_NAME).exists():
        _require_fresh(path)


def _require_text(path: Path) -> None:
    """Refuse a name that RocksDB does not take, or takes for another one, before it is asked to make a table there."""
    name = os.fsencode(path)
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise StoreFailed(
            f"{path} is no text in UTF-8, as the name of a data directory has to be; name it otherwise"
        ) from error
    if name != str(path).encode(errors="replace"):
        raise StoreFailed(
            f"RocksDB does not find {path} where the encoding of names is {sys.getfilesystemencoding()}, as in this"
            " locale; start weir in one of UTF-8, such as LC_ALL=C.UTF-8, or name the directory otherwise"
        )


def begin(path: Path, first_table_id: int | None = None) -> CatalogFile:
    """Read the catalog of a data directory that is locked; make what a fresh one lacks.

    Args:
        path: The directory.
        first_table_id: Of a fresh one, for runs that must not differ; None: one is drawn.

    Raises:
        DataCorrupted, StoreFailed: As `prepare`.
    """
    prepare(path)
    catalog = load_catalog(path)
    if catalog is None:
        if first_table_id is None:
            first_table_id = secrets.randbelow(FIRST_TABLE_ID_END)
        catalog = CatalogFile(next_table_id=first_table_id)
        write_format(path)
        save_catalog(path, catalog)
        with disk_errors(path), suppress(PermissionError):
            # Its maker may have crashed before its name was durable. Its parent may not be readable.
            sync_directory(path.parent)
    make_directories(path / TABLES_NAME, path)
    _tighten(path)
    return catalog


def write_format(path: Path) -> None:
    """Say of which format a data directory is.

    Raises:
        StoreFailed: The disk refused.
    """
    write_sealed(path / FORMAT_NAME, _FORMAT_CONTENT)


def acquire_lock(path: Path) -> int:
    """Lock a data directory, and return the descriptor that holds the lock.

    The lock is made if there is none, and belongs to whom the directory belongs to, as what `replace_file` makes.

    Raises:
        StoreLocked: A server has it open; the message names its process.
        StoreFailed: The disk refused.
    """
    # What it holds is replaced: never that of another file, to which somebody has laid a link in a directory of his.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with disk_errors(path):
        try:
            descriptor, is_new = os.open(path / LOCK_NAME, flags | os.O_EXCL, 0o600), True
        except FileExistsError:
            descriptor, is_new = os.open(path / LOCK_NAME, flags, 0o600), False
    try:
        with disk_errors(path / LOCK_NAME):
            if is_new:  # No other one: a link may have been laid there by whom the directory belongs to.
                give_to_owner(descriptor, path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if _is_inspected(descriptor):
                    raise StoreLocked(
                        f"data directory {path} is being inspected by weir doctor; wait until that has ended"
                    ) from error
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


def require_lock(path: Path, descriptor: int) -> None:
    """See that what `acquire_lock` has locked is the lock of the data directory still.

    Raises:
        StoreFailed: It was removed or replaced, and another server may have the directory open as well.
    """
    try:
        found = os.stat(path / LOCK_NAME)
    except OSError:
        found = None
    if found is None or not os.path.samestat(found, os.fstat(descriptor)):
        raise StoreFailed(
            f"{path / LOCK_NAME} was removed or replaced while a server has the directory open, so that another one may"
            " have it open as well; stop both, and start one"
        )


def _is_inspected(descriptor: int) -> bool:
    """Whether those who have it locked share the lock, as `hold_still` does."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def hold_still(path: Path) -> Iterator[None]:
    """See that no server has a data directory open, nor opens it in a block. Changes nothing in the directory.

    Raises:
        StoreLocked: A server has it open; the message names its process.
        StoreFailed: The disk refused.
    """
    with disk_errors(path):
        try:
            descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = None  # No server ever had it open, or the file was removed.
    if descriptor is None:
        yield
        return
    try:
        with disk_errors(path / LOCK_NAME):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
                raise StoreLocked(
                    f"data directory {path} is in use by process {holder}; stop that server first, or look at a copy"
                ) from error
        yield
    finally:
        os.close(descriptor)


def require_format(path: Path) -> None:
    """See that a data directory, if it is one already, is of the format that this version reads.

    Raises:
        DataCorrupted: The file that says so is damaged or gone.
        StoreFailed: It is of another format, a backup was not wholly restored into it, or the disk refused.
    """
    require_whole(path)
    try:
        if read_sealed(path / FORMAT_NAME) is not None:
            return
    except DataCorrupted as error:
        raise DataCorrupted(f"{error.message}; {_write_anew(path)}") from error
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


def require_whole(path: Path) -> None:
    """See that no restore of a backup is filling a directory, or was interrupted in it.

    Raises:
        StoreFailed: One is, or the disk refused.
    """
    with disk_errors(path):
        is_partial = (path / RESTORING_NAME).exists()
    if is_partial:
        raise StoreFailed(
            f"{path} is not whole: a backup is being restored into it, or that was interrupted; wait for it, or begin"
            f" again with: weir restore BACKUP {shlex.quote(str(path))}"
        )


def _write_anew(path: Path) -> str:
    command = f"weir adopt --data {shlex.quote(str(path))} --rebuild"
    return f"restore it from a copy, or write it and the catalog anew with: {command}"


def _is_format_1(catalog: bytes) -> bool:
    try:
        return bool(json.loads(catalog)["format"] == 1)
    except (ValueError, KeyError, TypeError):
        return False


def _require_fresh(path: Path) -> None:
    """Refuse a directory that has no catalog, unless it is empty or an interrupted first start left it."""
    found = {entry.name for entry in entries_of(path)}
    if TABLES_NAME in found and found & {LOCK_NAME, FORMAT_NAME}:
        raise missing_catalog(path)
    if found - {LOCK_NAME, FORMAT_NAME, f"{FORMAT_NAME}~", f"{CATALOG_NAME}~"}:
        raise StoreFailed(f"{path} is not empty and is no data directory of weir; name an empty or a new one")


def _tighten(path: Path) -> None:
    """Take away what others than the server's user may do. What is in the directory and not ours stays as it is."""
    ours = [path / name for name in (DOCUMENTS_NAME,) if is_directory(path / name)]
    parents = [path / name for name in (TABLES_NAME, CHECKPOINTS_NAME, IMAGES_NAME)]
    for parent in parents:
        ours += [
            entry for entry in entries_of(parent) if NUMBERED.fullmatch(entry.name) and is_directory(entry)
        ]
    alone = [path, *parents]
    alone += [path / name for name in (FORMAT_NAME, LOCK_NAME, CATALOG_NAME)]
    with disk_errors(path):
        exposed = path.stat().st_mode & 0o077
    try:
        changed = make_private(ours, alone)
    except StoreFailed as error:
        _logger.warning("others than the server's user may read rows in %s: %s", path, error)
        return
    with disk_errors(path):
        still_exposed = path.stat().st_mode & 0o077
    if still_exposed:
        _logger.warning(
            "others than the server's user may read rows in %s: its file system keeps no modes; mount it for that user"
            " alone (umask=077), or use another one",
            path,
        )
    elif exposed:
        _logger.warning(
            "data directory %s was open to others than its user; it is no longer (%d files and directories)",
            path,
            changed,
        )


def entries_of(directory: Path) -> list[Path]:
    """What is in a directory, by name, but `lost+found`; nothing if there is no such directory.

    The root of a volume of its own is an empty directory, for data and for backups.

    Raises:
        StoreFailed: The disk refused.
    """
    with disk_errors(directory):
        try:
            return sorted(each for each in directory.iterdir() if each.name != LOST_AND_FOUND_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return []
