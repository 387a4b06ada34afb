"""What the write-ahead logs of a database hold: its batches, by RocksDB's numbers of their changes.

This module knows no RocksDB but the format of its logs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scanner.storage.rocksdb.wal_format import record_heads

_LOG: Final = re.compile(r"(\d+)\.log")
_BATCH: Final = struct.Struct("<QI")
"""At the head of a record."""


def logs_follow(directory: Path, sequence: int) -> bool:
    """Whether a database's write-ahead logs hold every change from behind a number of RocksDB's on, as far as they go.

    Raises:
        OSError: They cannot be read.
    """
    for log in logs(directory):
        for first, count, _ in batches(log):
            if first > sequence + 1:
                return False
            sequence = max(sequence, first + count - 1)
    return True


def first_newer(directory: Path, sequence: int) -> tuple[Path, int] | None:
    """Where a database's write-ahead logs go on with a change that is newer than one of RocksDB's numbers.

    Returns:
        The log, and the place where its record begins; None: they do not.

    Raises:
        OSError: They cannot be read.
    """
    for log in logs(directory):
        place = 0
        for first, count, end in batches(log):
            if first + count - 1 > sequence:
                return log, place
            place = end
    return None


def batches(log: Path) -> Iterator[tuple[int, int, int]]:
    """Of each whole record of a log: the number of its first change, how many there are, and the place where it ends.

    Raises:
        OSError: It cannot be read.
    """
    for head, end in record_heads(log, _BATCH.size):
        first, count = _BATCH.unpack(head)
        yield first, count, end


def logs(directory: Path) -> list[Path]:
    """The write-ahead logs of a database, oldest first.

    Raises:
        OSError: The directory cannot be read.
    """
    numbered = {int(found[1]): path for path in directory.iterdir() if (found := _LOG.fullmatch(path.name))}
    return [path for _, path in sorted(numbered.items())]
