"""A consumer that stalls: its scan gives up what it holds of RocksDB, compaction reclaims, and the scan completes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trio.testing import wait_all_tasks_blocked

from scanner.server.config import ScannerConfig
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.conformance import Items, open_items, read
from tests.support.models import PUSH
from tests.support.scans import sample

if TYPE_CHECKING:
    import trio

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 20_000
PARK_AFTER_S = 5.0
CONFIG = ScannerConfig(
    park_after_s=PARK_AFTER_S, snapshot_linger_s=0, block_rows_max=1000, heartbeat_interval_s=1.0
)


@asynccontextmanager
async def rocks_items(directory: Path) -> AsyncIterator[tuple[Items, RocksStore]]:
    """The sample table on disk, uncompressed, with its rows in files."""
    with RocksStore.open(directory, StorageConfig(compression=Compression.NONE)) as store:
        async with open_items(store, ROWS, config=CONFIG, timeout_s=3600) as items:
            store.bucket("items", 0).compact()
            yield items, store


async def stalled_for(items: Items, clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time pass while nobody does anything."""
    for _ in range(round(seconds)):
        await settled(items)
        clock.jump(1.0)
    await settled(items)


async def settled(items: Items) -> None:
    """Wait until everybody on this machine waits for something: what was sent has arrived."""
    for _ in range(3):
        await items.client.list_snapshots()
        await wait_all_tasks_blocked()


def disk_bytes(directory: Path) -> int:
    """Size of the table's files."""
    return sum(path.stat().st_size for path in directory.rglob("*.sst"))


async def overwrite(items: Items) -> None:
    """Update half of the rows and delete a part of the others."""
    await items.write(range(0, ROWS, 2), price=-1.0)
    await items.delete(*range(1, ROWS, 4))


async def test_a_stalled_scan_pins_nothing_and_completes(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Within park_after the snapshot is kept, and compaction with it reclaims nothing; after it there is none."""
    async with rocks_items(tmp_path) as (items, store):
        bucket = store.bucket("items", 0)
        live_bytes = disk_bytes(tmp_path)
        async with PUSH.scan(items.table).execute() as batches:
            received = [await anext(batches)]
            await settled(items)
            assert len(await items.client.list_snapshots()) == 1
            assert bucket.open_iterators > 0
            await overwrite(items)
            bucket.compact()
            pinned_bytes = disk_bytes(tmp_path)

            await stalled_for(items, mock_clock, PARK_AFTER_S + 2)
            assert await items.client.list_snapshots() == []
            assert bucket.open_iterators == 0
            (stream,) = [each for each in await items.client.list_streams() if each.path.endswith("/Scan")]
            assert stream.scan is not None
            assert stream.scan.parked
            bucket.compact()
            assert pinned_bytes - disk_bytes(tmp_path) > 0.3 * live_bytes

            received += [batch async for batch in batches]
            statistics = batches.statistics()
        await items.released()
        assert bucket.open_iterators == 0
        again = await read(PUSH.scan(items.table, 1 << 20).as_of(ROWS))

    assert [key for batch in received for key in batch.column("id").to_pylist()] == list(range(ROWS))
    assert again.table.combine_chunks().to_batches() == [sample(range(ROWS))]
    assert statistics.digest == again.statistics.digest
    assert statistics.resumes == 0


async def test_parked_again_and_again(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """A consumer that stalls after every few batches gets every row once, whatever is written meanwhile."""
    async with rocks_items(tmp_path) as (items, store):
        bucket = store.bucket("items", 0)
        ids: list[int] = []
        async with PUSH.scan(items.table, 60_000).execute() as batches:
            async for batch in batches:
                ids.extend(batch.column("id").to_pylist())
                await items.delete(*range(len(ids), len(ids) + 50))
                await stalled_for(items, mock_clock, PARK_AFTER_S + 2)
                assert bucket.open_iterators == 0

    assert ids == list(range(ROWS))
