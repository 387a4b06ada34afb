"""Checkpoints: copies of a bucket's database that stay on disk, made of hard links to its files.

    checkpoints/<table>/<bucket>/<id>-<log offset>-<microseconds>-<history>/    a database of its own, read-only

A checkpoint is made under another name, synced, and renamed; the rename is the moment at which it exists. It is
dropped the other way round. So a crash leaves directories of other names at worst; they are removed when
the data directory is opened.

Its name says what it is, so that a listing opens nothing; its `meta` says so too, and its opener
compares. An open one keeps all its files open: it can be dropped meanwhile, and goes on.

This module knows no live bucket but the database that it is given.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from rocksdict import Checkpoint as HardLinks
from rocksdict import WriteBatch

from scanner.errors import DataCorrupted, SnapshotLost
from scanner.storage.interface import Checkpoint, KeyRange, KeysOf
from scanner.storage.rocksdb.database import Database, RocksResources, rocksdb_errors
from scanner.storage.rocksdb.files import disk_errors, sync_directory, sync_tree
from scanner.storage.rocksdb.log import read_lineage, read_log_range
from scanner.storage.rocksdb.readers import CheckedIterator, Reading, stored_values
from scanner.storage.rocksdb.snapshot import RocksSnapshot
from scanner.storage.rocksdb.untouched import open_readable

_NEWEST_KEY = b"checkpoint"
"""In `meta`: the newest checkpoint that was begun. In a checkpoint's own `meta` that is itself."""
_NEWEST = struct.Struct(">Qq")
_NAME = re.compile(r"(\d{6,})-(\d+)-(\d+)-([0-9a-f]{32})")
_UNFINISHED_NAME = "unfinished"
_UNFINISHED_OF_ROCKS = "unfinished.tmp"
"""Where RocksDB makes it first."""


def next_checkpoint_id(database: Database, directory: Path) -> int:
    """The id of a bucket's next checkpoint: of none that the bucket or its directory of checkpoints knows of.

    Raises:
        DataCorrupted: what `meta` holds is damaged.
        StoreFailed: the disk refused.
    """
    newest = _newest(database)
    known = max((each.checkpoint_id for each in list_checkpoints(directory)), default=-1)
    return 1 + max(known, -1 if newest is None else newest[0])


def note_checkpoint(database: Database, batch: WriteBatch, checkpoint: Checkpoint) -> None:
    """Add to a batch what the checkpoint that is made next says of itself, and that its id is used."""
    value = _NEWEST.pack(checkpoint.checkpoint_id, checkpoint.timestamp_us)
    batch.put(_NEWEST_KEY, value, database.meta_family)


def make_checkpoint(database: Database, directory: Path, checkpoint: Checkpoint) -> None:
    """Make the checkpoint that was noted last; durable when this returns. Nothing is written meanwhile.

    Args:
        database: The live one.
        directory: Of the bucket's checkpoints, on the same file system.
        checkpoint: What it is.

    Raises:
        StoreFailed: the disk refused; there is no such checkpoint.
        DataCorrupted: files of the database are gone.
    """
    unfinished, finished = directory / _UNFINISHED_NAME, directory / checkpoint_name(checkpoint)
    try:
        with disk_errors(directory):
            for left in (unfinished, directory / _UNFINISHED_OF_ROCKS):
                shutil.rmtree(left, ignore_errors=True)
            with rocksdb_errors(database.path):
                # Flushes first: what was committed is in files then.
                HardLinks(database.rocks).create_checkpoint(str(unfinished))
            sync_tree(unfinished)
            unfinished.rename(finished)
            sync_directory(directory)
    except BaseException:
        # Its links would keep files that the bucket replaces, on a disk that may be full.
        for left in (unfinished, directory / _UNFINISHED_OF_ROCKS, finished):
            shutil.rmtree(left, ignore_errors=True)
        raise


def list_checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints in a directory, oldest first; none if there is no such directory.

    Raises:
        StoreFailed: the disk refused.
    """
    with disk_errors(directory):
        try:
            names = [path.name for path in directory.iterdir()]
        except FileNotFoundError:
            return []
    return sorted(map(_checkpoint_of, filter(None, map(_NAME.fullmatch, names))))


def open_checkpoint(
    directory: Path,
    checkpoint_id: int,
    resources: RocksResources,
    keys_of: KeysOf,
    on_close: Callable[[RocksSnapshot], None],
) -> RocksSnapshot:
    """Open a checkpoint. Not while another thread drops it.

    Raises:
        SnapshotLost: there is no such checkpoint.
        DataCorrupted: it is damaged.
        StoreFailed: the disk refused.
    """
    checkpoint = _find(directory, checkpoint_id)
    if checkpoint is None:
        raise SnapshotLost(f"there is no checkpoint {checkpoint_id} in {directory}, or not any more")
    path = directory / checkpoint_name(checkpoint)
    reading = Reading.of(resources.config)
    database = open_readable(path, resources)

    def values(key_range: KeyRange, short: bool) -> Iterator[bytes]:
        # It is never written to, so every scan may use the fast path.
        return stored_values(database.kv, path, reading, key_range, short=short)

    def close(snapshot: RocksSnapshot) -> None:
        database.close()
        on_close(snapshot)

    try:
        require_itself(database, checkpoint)
        checked = CheckedIterator(database.kv, path, reading)
    except BaseException:
        database.close()
        raise
    return RocksSnapshot(checked, checkpoint.log_offset, keys_of, values, close)


def require_itself(database: Database, checkpoint: Checkpoint) -> None:
    """See that a database is the checkpoint as which it is opened.

    Raises:
        DataCorrupted: It is another one, or damaged.
        StoreFailed: The disk refused.
    """
    log_range, newest = read_log_range(database), _newest(database)
    if log_range is None or newest is None:
        raise DataCorrupted(f"{database.path} does not say which checkpoint it is")
    history = read_lineage(database).history_of(log_range.end)
    found = Checkpoint(newest[0], log_range.end, newest[1], history)
    if found != checkpoint:
        raise DataCorrupted(f"{database.path} is not {checkpoint}, but {found}")


def checkpoint_name(checkpoint: Checkpoint) -> str:
    """The name of a checkpoint's directory."""
    checkpoint_id, log_offset, timestamp_us, history = checkpoint
    return f"{checkpoint_id:06d}-{log_offset}-{timestamp_us}-{history.hex()}"


def drop_checkpoint(directory: Path, checkpoint_id: int) -> None:
    """Drop a checkpoint; durable when this returns. Idempotent. It also removes what is left of those before.

    Raises:
        StoreFailed: the disk refused; files of it may be left.
    """
    checkpoint = _find(directory, checkpoint_id)
    if checkpoint is None:
        return
    with disk_errors(directory):
        for left in directory.glob("dropped-[0-9]*"):
            shutil.rmtree(left, ignore_errors=True)
        dropped = (directory / checkpoint_name(checkpoint)).rename(directory / f"dropped-{checkpoint_id}")
        sync_directory(directory)
        shutil.rmtree(dropped)


def _checkpoint_of(name: re.Match[str]) -> Checkpoint:
    checkpoint_id, log_offset, timestamp_us, history = name.groups()
    return Checkpoint(int(checkpoint_id), int(log_offset), int(timestamp_us), bytes.fromhex(history))


def _find(directory: Path, checkpoint_id: int) -> Checkpoint | None:
    found = (each for each in list_checkpoints(directory) if each.checkpoint_id == checkpoint_id)
    return next(found, None)


def _newest(database: Database) -> tuple[int, int] | None:
    value = database.read_meta(_NEWEST_KEY)
    if value is None:
        return None
    try:
        checkpoint_id, timestamp_us = _NEWEST.unpack(value)
    except struct.error as error:
        raise DataCorrupted(f"{database.path}: the number of checkpoints is damaged: {error}") from error
    return checkpoint_id, timestamp_us
