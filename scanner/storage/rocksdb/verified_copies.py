"""Durable copies of files, compared with the size and the SHA-256 that they should have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from scanner.errors import DataCorrupted
from scanner.storage.rocksdb.files import FILE_MODE, disk_errors

if TYPE_CHECKING:
    from scanner.storage.rocksdb.backup_manifest import BackedUpFile

_PIECE_BYTES: Final = 1024 * 1024
OnBytes = Callable[[int], None]
"""Called with the octets processed since the last call."""


def ignore_bytes(_: int) -> None:
    """Tell nobody of the progress."""


def verify_files(directory: Path, files: Sequence[BackedUpFile]) -> None:
    """See that files are on the disk as they were written.

    Raises:
        DataCorrupted: One is not.
        StoreFailed: The disk refused.
    """
    with disk_errors(directory):
        for file in files:
            if not is_intact(directory / file.name, file.sha256, file.size):
                raise DataCorrupted(
                    f"{directory / file.name} is not what was written: the disk is not reliable"
                )


def is_intact(path: Path, sha256: str, size: int) -> bool:
    """Whether a file is there, with that content."""
    try:
        return hash_of(path) == (size, sha256)
    except FileNotFoundError:
        return False


def hash_of(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _read_piece(read: BinaryIO, source: Path) -> bytes:
    with disk_errors(source):
        return read.read(_PIECE_BYTES)


def copy_file(source: Path, target: Path, expected: tuple[int, str], on_bytes: OnBytes) -> None:
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
