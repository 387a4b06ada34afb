"""A bucket's database, or a checkpoint of one, opened so that nothing in its directory changes.

RocksDB's own read-only mode is not enough: rocksdict writes its settings into the directory whenever it opens one. So
what is opened is a directory of symbolic links elsewhere. That works on file systems that are mounted read-only, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scanner.errors import DataCorrupted, ScannerError
from scanner.storage.rocksdb.database import Database, RocksResources, open_database
from scanner.storage.rocksdb.files import disk_errors

SETTINGS_NAME: Final = "rocksdict-config.json"
"""Of rocksdict, in each directory of a database. Without it a database opens as well, and it is written anew."""
_OF_ONE_PROCESS: Final = frozenset({"LOCK", "LOG", SETTINGS_NAME})
"""Files that every process that opens a database has, or writes, for itself."""


@contextmanager
def open_untouched(directory: Path, resources: RocksResources) -> Iterator[Database]:
    """Open a database, which is not written to meanwhile, for the length of a block.

    Args:
        directory: Of the bucket or the checkpoint.
        resources: Of the reader.

    Raises:
        DataCorrupted: It is damaged, or not there. What the block raises names the directory, too.
        StoreFailed: The disk refused.
    """
    with tempfile.TemporaryDirectory(prefix="weir-") as elsewhere:
        links = Path(elsewhere)
        with disk_errors(directory):
            if not directory.is_dir():
                raise DataCorrupted(f"{directory}: its files are gone; restore them from a copy")
            for file in directory.absolute().iterdir():
                if file.name not in _OF_ONE_PROCESS:
                    (links / file.name).symlink_to(file)
        try:
            database = open_database(links, resources, read_only=True)
            try:
                yield database
            finally:
                database.close()
        except ScannerError as error:
            message = error.message.replace(str(links), str(directory))
            raise type(error)(message) from error
