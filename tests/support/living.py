"""Copies of a data directory that is in use, as a kill would leave it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanner.storage.rocksdb.bucket import RocksBucket

States = dict[str, tuple[int, int]]


def states_of_files(directory: Path) -> States:
    """Size and time of change of each file in it, by its path, but for what RocksDB tells of itself."""
    states = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                status = os.stat(path)
                if name != "LOG":
                    states[path] = status.st_size, status.st_mtime_ns
    return states


def copy_living(directory: Path, copy: Path) -> Path:
    """Copy a directory of one moment: RocksDB makes and removes files in its own time.

    A MANIFEST and the files that it names, copied one by one, may be of two moments.
    """
    while True:
        before = states_of_files(directory)
        with suppress(shutil.Error):
            shutil.copytree(directory, copy)
            if states_of_files(directory) == before:
                return copy
        shutil.rmtree(copy)


def end_background_work(bucket: RocksBucket) -> None:
    """Let RocksDB make and remove no file of it any more; what it has begun is done."""
    with bucket._lifetime.using() as database:
        database.rocks.cancel_all_background(True)
