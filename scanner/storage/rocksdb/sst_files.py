"""The table files of one column family, as RocksDB lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scanner.storage.rocksdb.database import rocksdb_errors

if TYPE_CHECKING:
    from rocksdict import Rdict

    from scanner.storage.rocksdb.database import Database

_FILE_OF_FAMILY: Final = re.compile(r"^ *(\d+):\d+\[", re.MULTILINE)
"""The number of a file in RocksDB's list of one column family's files."""


class SstFile(NamedTuple):
    """What RocksDB knows of one table file."""

    path: Path
    start_key: bytes
    """The smallest key of its entries."""
    end_key: bytes
    """The largest."""
    entries: int
    """Rows and deletions; 0 if RocksDB has not read that yet."""
    deletions: int
    """Those that are deletions; one of a whole range counts as one."""
    size_bytes: int
    """On the disk."""
    level: int


def sst_files(database: Database, family: Rdict) -> list[SstFile]:
    """The files of a column family, in no order.

    Raises:
        StoreClosed: The database was closed.
    """
    with rocksdb_errors(database.path):
        # The list of all files names no column family, and the one of the family counts no entries.
        listed = family.property_value("rocksdb.sstables") or ""
        numbers = {int(number) for number in _FILE_OF_FAMILY.findall(listed)}
        files: list[dict[str, Any]] = database.rocks.live_files()
    return [
        SstFile(
            database.path / file["name"].removeprefix("/"),
            file["start_key"],
            file["end_key"],
            file["num_entries"],
            file["num_deletions"],
            file["size"],
            file["level"],
        )
        for file in files
        if int(file["name"].removeprefix("/").removesuffix(".sst")) in numbers
    ]
