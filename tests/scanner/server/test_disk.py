"""What a server does about its disk and its memory from time to time."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.maintenance import open_maintenance
from tests.support.scans import description, mutations, sample

if TYPE_CHECKING:
    from scanner.server.tables.bucket import ServedBucket
    from tests.support.maintenance import Kept

pytestmark = pytest.mark.rocks

MIB = 1024 * 1024
SMALL = StorageConfig(bucket_write_buffer_bytes=MIB, write_buffers_bytes=MIB)


async def write(kept: Kept, table: str, rows: int) -> ServedBucket:
    """One commit of so many rows of a KiB, which no compression makes smaller."""
    bucket, rng = await kept.bucket(0, table), random.Random(1)
    names = pa.array([rng.randbytes(512).hex() for _ in range(rows)])
    batch = sample(range(rows)).set_column(1, "name", names)
    await bucket.submit(mutations(kept.store, table, batch)).wait_durable()
    return bucket


async def test_who_is_written_to_no_more_leaves_the_memory_to_the_others(tmp_path: Path) -> None:
    """Until it is flushed, each commit of another bucket is flushed into files of its own."""
    with RocksStore.open(tmp_path, SMALL) as store:
        for name in ("before", "now"):
            store.create_table(description(name))
        async with open_maintenance(store) as kept:
            before = await write(kept, "before", 700)
            kept_bytes = before.storage.unflushed_bytes
            await kept.maintenance.disk.flush_idle()
            assert before.storage.unflushed_bytes == kept_bytes > MIB  # It was written to within the second.
            before.written_at = -math.inf
            await kept.maintenance.disk.flush_idle()
            assert before.storage.unflushed_bytes < MIB / 8
            for _ in range(20):
                now = await write(kept, "now", 10)
            assert now.storage.unflushed_bytes > 20 * 10 * 1024
            await kept.maintenance.disk.flush_idle()
            assert now.storage.unflushed_bytes > 20 * 10 * 1024


async def test_a_table_that_is_being_dropped_keeps_no_other_from_being_flushed(tmp_path: Path) -> None:
    """Its buckets have their files open for as long as they are read, and tell nothing any more."""
    with RocksStore.open(tmp_path, SMALL) as store:
        for name in ("dropped", "kept"):
            store.create_table(description(name))
        async with open_maintenance(store) as kept, trio.open_nursery() as nursery:
            dropped, other = [await write(kept, name, 700) for name in ("dropped", "kept")]
            dropped.written_at = other.written_at = -math.inf
            assert isinstance(dropped.storage, RocksBucket)
            lifetime = dropped.storage._lifetime
            with lifetime.using():
                nursery.start_soon(kept.catalog.drop, "dropped")
                while not lifetime._leaving:
                    await trio.lowlevel.checkpoint()
                await kept.maintenance.disk.flush_idle()
            assert other.storage.unflushed_bytes < MIB / 8
