"""A `ScanOpener` over a store in memory, and its scans read row by row, for tests of read sources and of tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.resumes import TokenReader
from scanner.server.scan.token_keys import load_token_keys
from scanner.server.scan.tokens import MODEL_PUSH, Tokens
from scanner.server.tables.catalog import Catalog
from scanner.storage.interface import Mutation
from scanner.tasks import inline
from scanner.wire.queries import ScanQuery
from tests.support.scans import filled_store, mutations, sample

if TYPE_CHECKING:
    from scanner.server.scan.kv_scan import KvScan
    from scanner.server.tables.bucket import ServedBucket
    from scanner.sources.kv import KvSource
    from scanner.storage.memory.bucket import MemoryBucket
    from scanner.storage.memory.store import MemoryStore

ROWS = 300
QUERY = ScanQuery(table="items")
LIVE = pb.SCAN_SOURCE_LIVE_KV
CONFIG = ScannerConfig(block_rows_max=50)


@dataclass
class Opening:
    """An opener over a store in memory with `ROWS` rows."""

    store: MemoryStore
    catalog: Catalog
    opener: ScanOpener
    tokens: Tokens

    @property
    def storage(self) -> MemoryBucket:
        return self.store.bucket("items", 0)

    def write(self, ids: Iterable[int]) -> None:
        """Change rows, or add them."""
        self.storage.commit([[each] for each in mutations(self.store, "items", sample(ids))])

    def delete(self, number: int) -> None:
        """Delete a row."""
        key = self.store.key_codec("items").encode_batch(sample([number]))[0]
        self.storage.commit([[Mutation(key, None)]])

    async def served(self) -> ServedBucket:
        return await self.catalog.bucket(await self.catalog.table("items"), 0)


@asynccontextmanager
async def opening(config: ScannerConfig = CONFIG) -> AsyncIterator[Opening]:
    """Leaving it checks that no scan, no pin and no hold on a snapshot is left."""
    store = filled_store(ROWS)
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, inline)
        tokens = Tokens(load_token_keys(store), time.time)
        yield Opening(store, catalog, ScanOpener(catalog, config, tokens), tokens)
        assert list(catalog.open_scans()) == []
        assert all(bucket.pins.oldest() is None for _, _, bucket in catalog.open_buckets())
        # What lingers is held by nobody; anything else would be open for as long as the server runs.
        lingering = sum(len(bucket.snapshots.lingering) for _, _, bucket in catalog.open_buckets())
        assert catalog.snapshots.snapshots_open == lingering
        catalog.close_snapshots()
        assert store.bucket("items", 0).open_iterators == 0
        nursery.cancel_scope.cancel()


def read(source: KvSource, rows: int = 10**9) -> list[int]:
    """Ids of the next rows, at least `rows` of them if there are so many."""
    ids: list[int] = []
    while len(ids) < rows and source.end is None:
        batch = source.take(1 << 30, min(rows - len(ids), 1 << 20))
        if batch is None:
            source.step()
        else:
            ids += batch.rows.column("id").to_pylist()
    return ids


async def resume(at: Opening, resume_token: bytes, query: ScanQuery = QUERY) -> KvScan:
    """Continue with a token."""
    reader = TokenReader(at.catalog, at.tokens)
    state, query = await reader.read(resume_token, query, "ann", source=LIVE, model=MODEL_PUSH)
    return await at.opener.open(query, "ann", log_offset=state.log_offset, position=state.position)
