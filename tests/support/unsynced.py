"""A disk that takes what a commit writes, and refuses to sync it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

from scanner.errors import StoreFailed
from scanner.storage.rocksdb import bucket as rocks_bucket

if TYPE_CHECKING:
    from rocksdict import WriteBatch

    from scanner.storage.rocksdb.database import Database


@contextmanager
def syncs_fail() -> Iterator[None]:
    """Let the sync of every commit fail until the end of the block; RocksDB writes nothing else of it then, either."""

    def write_unsynced(database: Database, batch: WriteBatch) -> NoReturn:
        database.rocks.write(batch)
        database.rocks.flush_wal(sync=False)
        # Else closing it would write into files what is in memory.
        database.rocks.cancel_all_background(False)
        raise StoreFailed("the disk refused the sync")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocks_bucket, "write_synced", write_unsynced)
        yield
