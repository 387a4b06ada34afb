"""Tells what a power failure has torn off a MANIFEST from damage.

RocksDB adds a record to it, or some at once, for each flush and each compaction: which files are new, and which files
and write-ahead logs are not needed any more. It syncs the MANIFEST, and only then removes those. A power failure before
that sync has ended leaves some pages of the records and not others. RocksDB drops records that are cut off, and refuses
any others that are not whole.

What is in front of them is the state before. It is the same rows and the same changelog as long as nothing was removed,
so that is what is looked at, and not how the records came to be damaged:

1. The damage is behind what was there when the MANIFEST's length was noted last (`manifest_length`).
2. Every file of the state before is there. RocksDB looks at that when it opens a database.
3. The write-ahead logs hold every change that is behind that state: RocksDB numbers changes without gaps.
4. They reach as far as `DURABLE-END` says that there was a durable commit.

If one of these does not hold, the record was acted upon, so it was synced: it is damaged.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from scanner.errors import DataCorrupted, DiskFull, StoreFailed, TooManyFiles
from scanner.storage.rocksdb.durable_end import read_durable_end
from scanner.storage.rocksdb.files import disk_errors
from scanner.storage.rocksdb.log import read_log_range
from scanner.storage.rocksdb.manifest_length import current_manifest, noted_length
from scanner.storage.rocksdb.untouched import open_untouched
from scanner.storage.rocksdb.wal_batches import logs_follow
from scanner.storage.rocksdb.wal_format import first_damage

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.storage.rocksdb.database import RocksResources


def torn_manifest(directory: Path, identity: bytes, resources: RocksResources) -> int | None:
    """How long a bucket's MANIFEST is without what a power failure has left in pieces at its end; None: it is whole.

    Where there is no room for temporary files it is not looked at, and taken for whole.

    Args:
        directory: Of the bucket; nothing in it is changed.
        identity: Of the bucket.
        resources: Of the reader.

    Raises:
        DataCorrupted: It has lost something that it held when its length was noted, or that was acted upon.
        StoreFailed, TooManyFiles: It could not be looked at.
    """
    try:
        with disk_errors(directory):
            manifest = current_manifest(directory)
            damage, size = first_damage(manifest), manifest.stat().st_size
            noted = noted_length(directory, identity)
    except TooManyFiles:
        raise
    except (StoreFailed, ValueError):
        return None  # RocksDB says what is wrong with its own files.
    whole = size if damage is None else damage
    if whole < noted:
        raise DataCorrupted(
            f"{directory}: {manifest.name} is whole for {whole} bytes, and had {noted} when the bucket was opened,"
            " flushed or closed last; rows and changelog would be of different states: restore it from a copy"
        )
    try:
        is_sound = damage is None or _is_all_there(directory, identity, resources, damage)
    except DiskFull:
        # A disk that is full cuts a record off, which RocksDB drops by itself. What is damaged otherwise it refuses.
        return None
    if not is_sound:
        raise DataCorrupted(
            f"{directory}: {manifest.name} is damaged at byte {damage}, and what was there is needed: restore the"
            " bucket from a copy"
        )
    return damage


def cut_manifest(directory: Path, size: int) -> None:
    """Take from a MANIFEST what `torn_manifest` has found; durable when this returns.

    Raises:
        DiskFull, StoreFailed: The disk refused.
    """
    with disk_errors(directory), current_manifest(directory).open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _is_all_there(directory: Path, identity: bytes, resources: RocksResources, size: int) -> bool:
    """Whether everything that was durable is there in the state that the first bytes of a MANIFEST name."""
    known = read_durable_end(directory, identity)
    with suppress(DataCorrupted), disk_errors(directory):
        with open_untouched(directory, resources, manifest_bytes=size, logs=False) as database:
            flushed = database.rocks.latest_sequence_number()
        with open_untouched(directory, resources, manifest_bytes=size) as database:
            reached = database.rocks.latest_sequence_number()
            log_range = read_log_range(database)
        end = 0 if log_range is None else log_range.end
        durable = known is None or known.is_reached(end, reached)
        return durable and logs_follow(directory, flushed)
    return False
