"""A process that commits batches until it is killed, and says after each what was acknowledged.

    python -m tests.support.storage_writer DIRECTORY SEED [LOG_KEPT]

What batch number n holds depends on the seed and on n alone, so whoever killed it knows what was written.
With LOG_KEPT it truncates the log after each batch to about that many changes, before it says anything, and
makes and drops checkpoints.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_tables import ITEMS, delete, put

if TYPE_CHECKING:
    from scanner.storage.interface import Mutation

SMALL = StorageConfig(bucket_write_buffer_bytes=64 * 1024, write_buffers_bytes=1024 * 1024)
"""Buffers that fill quickly: a kill also lands in flushes and compactions."""
_IDS = 200


def plan(seed: int, number: int) -> list[tuple[int, str | None]]:
    """Batch `number`: (id, text) to upsert, (id, None) to delete."""
    source = random.Random(seed * 1_000_003 + number)
    return [
        (
            source.randrange(_IDS),
            None if source.random() < 0.3 else f"{number}:" + "x" * source.randrange(300),
        )
        for _ in range(source.randrange(1, 60))
    ]


def mutations(items: list[tuple[int, str | None]]) -> list[Mutation]:
    """The plan as mutations."""
    return [delete(number) if text is None else put(number, text) for number, text in items]


def apply(state: dict[int, str], items: list[tuple[int, str | None]]) -> int:
    """Apply a batch to a model; returns how many changes it makes."""
    changes = 0
    for number, text in items:
        if text is not None:
            changes += 1 + (number in state)
            state[number] = text
        elif state.pop(number, None) is not None:
            changes += 1
    return changes


def batches_until(seed: int, log_end: int) -> tuple[int, dict[int, str]]:
    """How many whole batches make a log of that length, and the state that they leave."""
    state: dict[int, str] = {}
    offset = number = 0
    while offset < log_end:
        offset += apply(state, plan(seed, number))
        number += 1
    assert offset == log_end, "the log ends inside a batch"
    return number, state


def main() -> None:
    """Open or make the store, then write on from the batch where the log ends."""
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    log_kept = int(sys.argv[3]) if len(sys.argv) > 3 else None
    store = RocksStore.open(directory, SMALL)
    if not store.tables():
        store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    number, _ = batches_until(seed, bucket.log_end)
    print("ready", bucket.log_end, flush=True)
    while True:
        ((_, end),) = bucket.commit([mutations(plan(seed, number))])
        number += 1
        if log_kept is not None:
            _tidy_up(store, end - log_kept, number)
        print("acknowledged", end, flush=True)


def _tidy_up(store: RocksStore, start_offset: int, number: int) -> None:
    """Truncate the log; every few batches make a checkpoint, and drop all but the newest two."""
    store.bucket("items", 0).truncate_log(start_offset)
    if number % 5 == 0:
        store.create_checkpoint("items", 0)
        for checkpoint in store.checkpoints("items", 0)[:-2]:
            store.drop_checkpoint("items", 0, checkpoint.checkpoint_id)


if __name__ == "__main__":
    main()
