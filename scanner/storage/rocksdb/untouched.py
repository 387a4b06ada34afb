"""A bucket's database, or a checkpoint of one, opened so that nothing in its directory changes.

RocksDB's own read-only mode is not enough: rocksdict writes its settings into the directory whenever it opens one. So
what is opened is a directory of symbolic links elsewhere. That works on file systems that are mounted read-only, too.

A process has such a directory locked for as long as it uses it. What one that was killed has left is not, and is
removed by the next.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from scanner.errors import DataCorrupted, DiskFull, ScannerError, StoreFailed, TooManyFiles
from scanner.storage.rocksdb.database import Database, RocksResources, open_database
from scanner.storage.rocksdb.files import disk_errors
from scanner.storage.rocksdb.wal_batches import first_newer

SETTINGS_NAME: Final = "rocksdict-config.json"
"""Of rocksdict, in each directory of a database. Without it a database opens as well, and it is written anew."""
_OF_ONE_PROCESS: Final = frozenset({"LOCK", "LOG", SETTINGS_NAME})
"""Files that every process that opens a database has, or writes, for itself."""
_LINKS_PREFIX: Final = "weir-links-"
_MANIFEST_PREFIX: Final = "MANIFEST-"
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_untouched(
    directory: Path, resources: RocksResources, *, manifest_bytes: int | None = None, logs: bool = True
) -> Iterator[Database]:
    """Open a database, which is not written to meanwhile, for the length of a block.

    Args:
        directory: Of the bucket or the checkpoint.
        resources: Of the reader.
        manifest_bytes: So much of its MANIFEST is read; None: all of it.
        logs: Whether its write-ahead logs are read.

    Raises:
        DataCorrupted: It is damaged, or not there. What the block raises names the directory, too.
        DiskFull: The disk of temporary files is; nothing is written to another one.
        StoreFailed, TooManyFiles: The disk refused, or this process may open no more files.
    """
    with _temporary_directory() as links:
        try:
            _link(directory, links, manifest_bytes=manifest_bytes, logs=logs)
            database = open_database(links, resources, read_only=True)
            try:
                yield database
            finally:
                database.close()
        except DiskFull as error:
            raise DiskFull(_no_room(error.message)) from error
        except ScannerError as error:
            message = error.message.replace(str(links), str(directory))
            raise type(error)(message) from error


def open_readable(
    directory: Path,
    resources: RocksResources,
    *,
    manifest_bytes: int | None = None,
    durable: int | None = None,
) -> Database:
    """Open a database for reading only, also where its directory takes nothing.

    A file system that Linux has mounted read-only, as it does after an error, refuses rocksdict's settings. Then the
    links are opened; they may go at once, because all files of a database that is only read stay open. So are they
    where not all of its MANIFEST is read, or not all of its write-ahead logs.

    Args:
        directory: Of the bucket or the checkpoint.
        resources: Of the reader.
        manifest_bytes: So much of its MANIFEST is read; None: all of it.
        durable: Changes with larger numbers of RocksDB's are left out, unless they are in files already, or there is no
            room for temporary files; None: none is.

    Raises:
        DataCorrupted, StoreFailed: As `open_database`.
    """
    if durable is not None:
        try:
            database = _open_durable(directory, resources, manifest_bytes, durable)
        except TooManyFiles:
            raise
        except StoreFailed:
            database = None
        if database is not None:
            return database
    if manifest_bytes is not None:
        return _open_links(directory, resources, manifest_bytes)
    try:
        return open_database(directory, resources, read_only=True)
    except TooManyFiles:
        raise
    except StoreFailed:
        with suppress(ScannerError):
            return _open_links(directory, resources, None)
        raise


def _open_durable(
    directory: Path, resources: RocksResources, manifest_bytes: int | None, durable: int
) -> Database | None:
    """Open a database without what its write-ahead logs have of newer changes.

    Returns:
        None: They have nothing of them, or files have.

    Raises:
        StoreFailed: It cannot be opened so.
    """
    with disk_errors(directory):
        newer = first_newer(directory, durable)
    if newer is None:
        return None
    database = _open_links(directory, resources, manifest_bytes, newer)
    if database.rocks.latest_sequence_number() == durable:
        return replace(database, hides=True)
    database.close()
    return None


def _open_links(
    directory: Path,
    resources: RocksResources,
    manifest_bytes: int | None,
    end: tuple[Path, int] | None = None,
) -> Database:
    with _temporary_directory() as links:
        _link(directory, links, manifest_bytes=manifest_bytes, logs=True, end=end)
        return replace(open_database(links, resources, read_only=True), path=directory)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """An empty directory for the length of a block.

    Raises:
        DiskFull: There is no place for one.
        TooManyFiles: This process may open no more.
    """
    try:
        _remove_left(Path(tempfile.gettempdir()))
        elsewhere = tempfile.TemporaryDirectory(prefix=_LINKS_PREFIX)
        try:
            descriptor = os.open(elsewhere.name, _DIRECTORY_FLAGS)
        except OSError:
            os.rmdir(elsewhere.name)  # By its name: to look into it takes a descriptor, too.
            elsewhere.cleanup()
            raise
    except OSError as error:  # Also of a kind of its own, where no place has any room.
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyFiles(
                f"no temporary files can be made: this process may open no more; raise its limit (ulimit -n): {error}"
            ) from error
        raise DiskFull(_no_room(str(error))) from error
    try:
        with suppress(OSError):  # Not every file system has locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with elsewhere as path:
            yield Path(path)
    finally:
        os.close(descriptor)


def _is_ours(file: Path) -> bool:
    return (
        file.is_symlink()
        or file.name in _OF_ONE_PROCESS
        or file.name.startswith(("LOG.", _MANIFEST_PREFIX))
        or file.suffix == ".log"
    )


@functools.cache
def _remove_left(place: Path) -> None:
    """Remove what processes that were killed have left in a place for temporary files; once in this process."""
    with suppress(OSError):
        for directory in place.glob(f"{_LINKS_PREFIX}*"):
            with suppress(OSError):
                _remove_unlocked(directory)


def _remove_unlocked(directory: Path) -> None:
    """Remove a directory of ours that nobody uses. One that is empty may be about to be locked, and stays.

    Raises:
        OSError: Somebody uses it, or may.
    """
    descriptor = os.open(directory, _DIRECTORY_FLAGS)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files = list(directory.iterdir())
        if files and all(map(_is_ours, files)):
            for file in files:
                file.unlink()
            directory.rmdir()
    finally:
        os.close(descriptor)


def _no_room(reason: str) -> str:
    return f"no temporary files can be made: make room for them, or name another place by TMPDIR ({reason})"


def _link(
    directory: Path,
    links: Path,
    *,
    manifest_bytes: int | None,
    logs: bool,
    end: tuple[Path, int] | None = None,
) -> None:
    """Fill a directory with links to the files of a database, but for logs, and what is cut.

    Args:
        directory: Of the database.
        links: The directory.
        manifest_bytes: See `open_untouched`.
        logs: Whether it gets write-ahead logs.
        end: The last of them, and how much of it; None: all.

    Raises:
        DataCorrupted: There is no such directory.
        DiskFull: There is no room for the links.
        StoreFailed: The disk refused.
    """
    with disk_errors(directory):
        if not directory.is_dir():
            raise DataCorrupted(f"{directory}: its files are gone; restore them from a copy")
        for file in directory.absolute().iterdir():
            if file.name in _OF_ONE_PROCESS or (file.suffix == ".log" and not logs):
                continue
            size = manifest_bytes if file.name.startswith(_MANIFEST_PREFIX) else None
            if end is not None and file.suffix == ".log":
                number, last = int(file.stem), int(end[0].stem)
                if number > last:
                    continue
                size = end[1] if number == last else None
            if size is not None:  # Not through memory: a log may have a hundred MiB.
                os.truncate(shutil.copyfile(file, links / file.name), size)
            else:
                (links / file.name).symlink_to(file)
