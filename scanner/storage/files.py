"""Files and directories that must survive a crash: whole, or as they were before.

A file is replaced, never modified: a new one is written beside it, synced, and renamed over it, and the
directory is synced. The rename is the moment.

This module knows no RocksDB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanner.errors import StoreFailed


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write or replace a file; durable when this returns. A crash may leave `<name>~` beside it.

    Args:
        path: The file; its directory exists.
        content: The whole of it.
        mode: Who may read and write it, before the umask.

    Raises:
        StoreFailed: the disk refused; the old one is still there.
    """
    fresh = path.with_name(f"{path.name}~")
    with disk_errors(path):
        # Never into a file that a crash left: it may have another mode.
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_directory(path.parent)


def make_directories(path: Path, below: Path, *, mode: int = 0o755) -> None:
    """Make a directory and what is missing between it and one that exists; durable when this returns.

    Args:
        path: The directory.
        below: An ancestor of it, which exists.
        mode: Who may use those that are made, before the umask.

    Raises:
        StoreFailed: the disk refused.
    """
    with disk_errors(path):
        missing = [path, *path.parents]
        for directory in reversed(missing[: missing.index(below)]):
            if not directory.is_dir():
                directory.mkdir(mode)
                sync_directory(directory.parent)


def sync_tree(directory: Path) -> None:
    """Make the files of a directory durable, and their names. It holds no directories."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StoreFailed, in one line that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{error.filename or path}: {error.strerror or error}") from error
