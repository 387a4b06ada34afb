"""Tells what a power failure has torn off a write-ahead log from damage.

A commit is one record, and the next one is written once that is synced. A power failure leaves of what was not synced
some pages and not others, in any order: the end of a record, its length or its middle may be there without the rest.
RocksDB drops a record that is too short, and takes any other that is not whole for damage, even if it is the last.

So the newest record, and no other, may be in pieces: nothing begins behind it. A piece of a log is taken for damage as
soon as a whole record begins behind it, since that was written after it was synced.

A start that drops such a piece begins a new log, often with an empty record, whose number is that of the piece. If the
start is cut off, both logs are there. So a newer log is no sign of damage if its numbers go on where the piece begins.

This module knows no RocksDB but the format of its logs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scanner.errors import StoreFailed, TooManyFiles
from scanner.storage.rocksdb.files import disk_errors
from scanner.storage.rocksdb.wal_format import begins_after, first_damage, record_heads

_LOG: Final = re.compile(r"(\d+)\.log")
_BATCH: Final = struct.Struct("<QI")
"""At the head of a record."""


def has_torn_tail(directory: Path) -> bool:
    """Whether the newest record of a database's write-ahead logs is in pieces, and nothing else in them is damaged.

    It may also be the newest that there was when an earlier start dropped it. Not if they cannot be read.

    Raises:
        TooManyFiles: They could not be opened, which says nothing of them.
    """
    torn, following = False, None
    try:
        with disk_errors(directory):
            for log in _logs(directory):
                for first, count, _ in _batches(log):
                    if torn and first != following:
                        return False
                    following = first + count
                damage = first_damage(log)
                if damage is not None:
                    if begins_after(log, damage):
                        return False
                    torn = True
    except TooManyFiles:
        raise
    except StoreFailed:
        return False
    return torn


def logs_follow(directory: Path, sequence: int) -> bool:
    """Whether a database's write-ahead logs hold every change from behind a number of RocksDB's on, as far as they go.

    Raises:
        OSError: They cannot be read.
    """
    for log in _logs(directory):
        for first, count, _ in _batches(log):
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
    for log in _logs(directory):
        place = 0
        for first, count, end in _batches(log):
            if first + count - 1 > sequence:
                return log, place
            place = end
    return None


def _batches(log: Path) -> Iterator[tuple[int, int, int]]:
    """Of each whole record: the number of its first change, how many there are, and the place where it ends."""
    for head, end in record_heads(log, _BATCH.size):
        first, count = _BATCH.unpack(head)
        yield first, count, end


def _logs(directory: Path) -> list[Path]:
    numbered = {int(found[1]): path for path in directory.iterdir() if (found := _LOG.fullmatch(path.name))}
    return [path for _, path in sorted(numbered.items())]
