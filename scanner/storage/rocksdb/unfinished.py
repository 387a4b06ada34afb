"""What a bucket does with a large share of a transaction that a crash or an error cut off: it is undone.

A share is applied in several batches. Until the last one `meta` says how far the log goes in truth, while the log's
range, which everybody else reads, stays where it was. So whoever opens the database knows that there are changes behind
the log's end, and takes them back, newest first, chunk by chunk. Each chunk is one atomic batch that also moves the
mark: a crash in the middle of it is a shorter share that was cut off.

This module knows no transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocksdict import WriteBatch

from scanner.errors import DataCorrupted
from scanner.storage.records import ChangeKind
from scanner.storage.rocksdb.changelog import (
    LogChunk,
    LogRange,
    decode_chunk,
    decode_log_range,
    encode_log_range,
    log_key,
)
from scanner.storage.rocksdb.database import Database, write_synced
from scanner.storage.rocksdb.log import read_chunk, require_log_range

if TYPE_CHECKING:
    from scanner.storage.records import KeysOf

UNFINISHED_KEY: Final = b"unfinished"
"""In `meta`: the log's range with the changes of a share that is being applied."""
_REMOVES: Final = frozenset({ChangeKind.INSERT})
_RESTORES: Final = frozenset({ChangeKind.UPDATE_BEFORE, ChangeKind.DELETE})


def unfinished_range(database: Database) -> LogRange | None:
    """How far the log goes with the share that was being applied; None: none was.

    Raises:
        DataCorrupted: What `meta` says of it is damaged.
    """
    stored = database.read_meta(UNFINISHED_KEY)
    return None if stored is None else decode_log_range(stored)


def undo_unfinished(database: Database, keys_of: KeysOf) -> int:
    """Take back the changes of a share that was not finished; durable when this returns.

    Args:
        database: Opened for writing.
        keys_of: Keys of stored rows.

    Returns:
        How many changes there were.

    Raises:
        DataCorrupted: One of them is missing or damaged.
        StoreFailed: The disk refused; the next call goes on.
    """
    reached = unfinished_range(database)
    if reached is None:
        return 0
    end = require_log_range(database).end
    undone = reached.end - end
    while reached.end > end:
        chunk = _last_chunk(database, reached)
        reached = reached._replace(end=chunk.offset, end_ordinal=chunk.ordinal)
        # Each is synced, since of the newest one alone a power failure may leave pieces (`torn_tail`).
        write_synced(database, _inverse(database, chunk, reached, keys_of))
    batch = WriteBatch(raw_mode=True)
    batch.delete(UNFINISHED_KEY, database.meta_family)
    write_synced(database, batch)
    return undone


def _last_chunk(database: Database, reached: LogRange) -> LogChunk:
    found = read_chunk(database, reached.end - 1)
    chunk = None if found is None else decode_chunk(*found)
    if chunk is None or (chunk.end, chunk.ordinal + 1) != (reached.end, reached.end_ordinal):
        raise DataCorrupted(
            f"{database.path}: a transaction that was being applied cannot be undone, since its changes before offset"
            f" {reached.end} are missing; restore the files from a copy"
        )
    return chunk


def _inverse(database: Database, chunk: LogChunk, reached: LogRange, keys_of: KeysOf) -> WriteBatch:
    """What takes a chunk back."""
    batch = WriteBatch(raw_mode=True)
    rows = chunk.rows.to_list()
    keys = keys_of(rows)
    for kind, key, row in zip(reversed(chunk.kinds.tolist()), reversed(keys), reversed(rows), strict=True):
        # The last that is said of a key counts, which is what it was before the chunk.
        if kind in _REMOVES:
            batch.delete(key, database.kv_family)
        elif kind in _RESTORES:
            batch.put(key, row, database.kv_family)
    batch.delete(log_key(chunk.offset, chunk.ordinal), database.log_family)
    batch.put(UNFINISHED_KEY, encode_log_range(reached), database.meta_family)
    return batch
