"""Small files that a server keeps in its data directory: secrets and settings of its own, by name.

Each is whole or absent, durable once written, in an envelope with its format and checksum
(`scanner.storage.rocksdb.envelope`), and readable to the server's user only, since some are secrets. What is in them
is not looked at.

This module knows no RocksDB.
"""

from __future__ import annotations

import re
from pathlib import Path

from scanner.errors import ArgumentInvalid
from scanner.storage.rocksdb.files import make_directories, read_sealed, write_sealed

DOCUMENTS_NAME = "documents"
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


def read_document(data: Path, name: str) -> bytes | None:
    """Read a document of a data directory; None if it was never written.

    Raises:
        ArgumentInvalid: the name is not one.
        DataCorrupted: it is damaged.
        StoreFailed: the disk refused, or a newer version wrote it.
    """
    return read_sealed(_path_of(data, name))


def write_document(data: Path, name: str, content: bytes) -> None:
    """Write or replace a document of a data directory; durable when this returns.

    Raises:
        ArgumentInvalid: the name is not one.
        StoreFailed: the disk refused; the old one is still there, unless only the last sync failed.
    """
    path = _path_of(data, name)
    make_directories(path.parent, data)
    write_sealed(path, content)


def _path_of(data: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ArgumentInvalid(
            f"a document's name is 1 to 64 of a-z, 0-9, '_', '-' and '.', starting with a letter, not {name!r}"
        )
    return data / DOCUMENTS_NAME / name
