"""What a server keeps of the past, without the server: catalog, checkpoints, leases and retention over one store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import trio

from scanner.errors import StoreFailed
from scanner.server.clock import WallClock
from scanner.server.config import ScannerConfig
from scanner.server.maintenance import Maintenance
from scanner.server.retention.lease_registry import BucketKey, Lease, LeaseKey
from scanner.server.retention.lease_targets import Choice, RefusedTarget, Target
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.token_keys import load_token_keys
from scanner.server.scan.tokens import Tokens
from scanner.server.tables.catalog import Catalog
from scanner.storage.memory.store import MemoryStore
from scanner.tasks import in_thread, inline
from scanner.wire.queries import ScanQuery
from tests.support.scans import mutations, sample

if TYPE_CHECKING:
    from scanner.server.retention.checkpoints import BucketCheckpoints
    from scanner.server.scan.checkpoint_scans import SnapshotScans
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.tables.bucket import ServedBucket
    from scanner.storage.interface import Store

WALL_S = 4_000_000_000.0
"""What the wall's clock says: later than any commit of a test."""
TTL_MS = 60_000


@dataclass(frozen=True)
class Kept:
    """The parts, and short ways to use them on table `items`."""

    store: Store
    catalog: Catalog
    maintenance: Maintenance
    opener: ScanOpener
    snapshots: SnapshotScans
    tokens: Tokens

    async def bucket(self, index: int = 0, table: str = "items") -> ServedBucket:
        """A bucket."""
        return await self.catalog.bucket(await self.catalog.table(table), index)

    async def key(self, index: int = 0) -> BucketKey:
        """Its name in leases."""
        return BucketKey((await self.catalog.table("items")).table_id, index)

    async def checkpoints(self, index: int = 0, table: str = "items") -> BucketCheckpoints:
        """The checkpoints of a bucket."""
        return await self.maintenance.checkpoints.of(await self.catalog.table(table), index)

    async def write(self, ids: Iterable[int], index: int = 0, table: str = "items") -> None:
        """Upsert rows into a bucket, whatever their keys hash to."""
        bucket = await self.bucket(index, table)
        await bucket.submit(mutations(self.store, table, sample(ids))).wait_durable()

    async def ids(self, index: int = 0) -> list[int]:
        """The ids of the checkpoints that are on the disk."""
        return [each.checkpoint_id for each in self.store.checkpoints("items", index)]

    async def acquire(
        self,
        lease_id: str,
        *targets: Target,
        principal: str = "anna",
        partial: bool = False,
        if_absent: bool = False,
        id_age_ms: int | None = None,
    ) -> tuple[Lease | None, list[RefusedTarget]]:
        """Acquire for anna."""
        key = LeaseKey(principal, lease_id)
        acquired = await self.maintenance.leases.acquire(
            key, targets, ttl_ms=TTL_MS, partial=partial, if_absent=if_absent, id_age_ms=id_age_ms
        )
        return acquired.lease, list(acquired.missing)

    async def scan(self, opened: KvScan, *, close: bool = True) -> list[int]:
        """The ids that a scan delivers."""
        source = opened.scan.source
        found: list[int] = []
        while source.end is None:
            batch = source.take(1 << 20, 1 << 20)
            if batch is not None:
                found += batch.rows["id"].to_pylist()
            elif source.end is None:
                source.step()
        if close:
            opened.scan.close()
        return sorted(found)

    async def snapshot_ids(self, lease_id: str = "", index: int = 0) -> list[int]:
        """The ids that a scan of source SNAPSHOT delivers."""
        query = ScanQuery(table="items", bucket=index)
        return await self.scan(await self.snapshots.open(query, "anna", lease_id))


def refuse(*_: object) -> NoReturn:
    """In place of a method of storage: its disk is full."""
    raise StoreFailed("no space left on the test")


def lease_of(principal: str, lease_id: str) -> LeaseKey:
    """Names a lease."""
    return LeaseKey(principal, lease_id)


def target(choice: Choice = Choice.NEWEST, *buckets: int, number: int = 0, table: str = "items") -> Target:
    """A state of table `items`."""
    return Target(table=table, buckets=buckets, choice=choice, number=number, may_checkpoint=True)


@asynccontextmanager
async def open_maintenance(
    store: Store, config: ScannerConfig | None = None, *, wall_s: float = WALL_S
) -> AsyncIterator[Kept]:
    """Make the parts, as a server does at its start; nothing happens from time to time.

    Args:
        store: Stays open.
        config: Of the server.
        wall_s: What the wall's clock says now.
    """
    config = config or ScannerConfig()
    run_blocking = inline if isinstance(store, MemoryStore) else in_thread
    clock = WallClock(lambda: wall_s)
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, run_blocking)
        maintenance = await Maintenance.load(store, catalog, config, run_blocking, clock)
        tokens = Tokens(load_token_keys(store), time.time)
        opener = ScanOpener(catalog, config, tokens)
        yield Kept(store, catalog, maintenance, opener, maintenance.snapshot_scans(opener), tokens)
        catalog.close_snapshots()
        nursery.cancel_scope.cancel()


async def churn(kept: Kept) -> None:
    """Let writes and checkpoints pass over a bucket until nothing unleased is left of what it had."""
    for number in range(3):
        await kept.write([10_000 + number], 0)
        await (await kept.checkpoints(0)).create()
