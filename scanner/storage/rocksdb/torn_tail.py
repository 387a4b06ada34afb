"""Tells what a power failure has torn off a write-ahead log from damage.

A commit is one record, and the next one is written once that is synced. A power failure leaves of what was not synced
some pages and not others, in any order: the end of a record, its length or its middle may be there without the rest.
RocksDB drops a record that is too short, and takes any other that is not whole for damage, even if it is the last.

So the newest record, and no other, may be in pieces: nothing begins behind it. A piece of a log is taken for damage as
soon as a whole record begins behind it, since that was written after it was synced.

A start that drops such a piece begins a new log, often with an empty record, whose number is that of the piece. If the
start is cut off, both logs are there. So a newer log is no sign of damage if its numbers go on where the piece begins.

This module knows no RocksDB but its logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.errors import StoreFailed, TooManyFiles
from scanner.storage.rocksdb.files import disk_errors
from scanner.storage.rocksdb.wal_batches import batches, logs
from scanner.storage.rocksdb.wal_format import begins_after, first_damage

if TYPE_CHECKING:
    from pathlib import Path


def has_torn_tail(directory: Path) -> bool:
    """Whether the newest record of a database's write-ahead logs is in pieces, and nothing else in them is damaged.

    It may also be the newest that there was when an earlier start dropped it. Not if they cannot be read.

    Raises:
        TooManyFiles: They could not be opened, which says nothing of them.
    """
    torn, following = False, None
    try:
        with disk_errors(directory):
            for log in logs(directory):
                for first, count, _ in batches(log):
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
