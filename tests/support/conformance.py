"""The sample table on a real server and a client of it: what the conformance suite runs on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import trio

import scanner
import transport
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.interface import ChangeKind, Store
from scanner.tasks import RunBlocking, inline
from tests.support.scans import description, filled_store, mutations, released, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scanner.storage.interface import Change
    from tests.support.models import Model

ROWS = 1500
CONFIG = ScannerConfig(block_rows_max=100, block_bytes_max=8192, heartbeat_interval_s=0.05)


@dataclass(frozen=True, slots=True)
class Items:
    """A table `items` with rows 0, 1, 2, ..., served."""

    store: Store
    server: Server
    client: scanner.Client
    table: scanner.Table
    raw: transport.Client
    """A second connection, for calls by hand."""

    async def write(self, ids: Iterable[int], *, price: float | None = None) -> None:
        """Write the sample's rows of these ids, or the same with another price."""
        batch = sample(ids)
        if price is not None:
            prices = pa.array([price] * batch.num_rows, pa.float64())
            batch = batch.set_column(2, batch.schema.field("price"), prices)
        await self.table.write(batch)

    async def delete(self, *ids: int) -> None:
        """Delete rows."""
        await self.table.delete([(key,) for key in ids])

    async def offset(self) -> int:
        """End of the log of bucket 0."""
        return (await self.table.offsets())[0].end_offset

    async def released(self) -> None:
        """Wait until the server holds nothing for any scan."""
        await released(self.server)


@asynccontextmanager
async def open_items(
    store: Store,
    rows: int = ROWS,
    *,
    buckets: int = 1,
    config: ScannerConfig = CONFIG,
    there: bool = False,
    checked: bool = True,
    timeout_s: float = 100.0,
) -> AsyncIterator[Items]:
    """Serve the table and connect to it. Leaving checks that nothing is left open.

    Args:
        store: Without the table, unless it is `there`.
        rows: Written to begin with, unless it is `there`.
        buckets: Of the table.
        config: Of the server.
        there: The table is in the store.
        checked: Leaving waits until nothing is left open.
        timeout_s: For all of it, by trio's clock.
    """
    if not there:
        store.create_table(description(buckets=buckets))
    if rows and buckets == 1 and not there:
        store.bucket("items", 0).commit([[each] for each in mutations(store, "items", sample(range(rows)))])
    with trio.fail_after(timeout_s):
        async with open_server(store, config=config) as server:
            endpoint = f"127.0.0.1:{server.port}"
            async with (
                scanner.connect(endpoint) as client,
                transport.connect("127.0.0.1", server.port) as raw,
            ):
                items = Items(store, server, client, await client.table("items"), raw)
                if rows and buckets > 1 and not there:
                    await items.write(range(rows))
                yield items
                if checked:
                    await items.released()


@asynccontextmanager
async def open_virtual_items(
    rows: int = ROWS, *, config: ScannerConfig = CONFIG, retries: int = 8, run_blocking: RunBlocking = inline
) -> AsyncIterator[Items]:
    """The same in memory, connections included: for tests on a virtual clock.

    Args:
        rows: In the table.
        config: Of the server.
        retries: Of the client.
        run_blocking: Runs what storage does.
    """
    store = filled_store(rows)
    network = Network(lambda _connection, _fault: None)

    async def dial() -> trio.abc.Stream:
        return await network.dial("client", Line())

    async with open_server(
        store, listener=network.listen(), config=config, run_blocking=run_blocking
    ) as server:
        async with (
            scanner.connect("127.0.0.1", dial=dial, rng=random.Random(1), retries=retries) as client,
            transport.connect_stream(await dial()) as raw,
        ):
            yield Items(store, server, client, await client.table("items"), raw)
            await released(server)


@dataclass(frozen=True, slots=True)
class Scanned:
    """A scan that came to its end."""

    batches: Sequence[pa.RecordBatch]
    statistics: scanner.ScanStatistics

    @property
    def table(self) -> pa.Table:
        """All rows, in the order of the primary key."""
        return pa.Table.from_batches(self.batches).sort_by("id")

    @property
    def ids(self) -> list[int]:
        """All keys, in the order in which they came."""
        return [key for batch in self.batches for key in batch.column("id").to_pylist()]

    @property
    def log_offset(self) -> int:
        """Of the only bucket."""
        (bucket,) = self.statistics.buckets
        assert bucket.log_offset is not None
        return bucket.log_offset


async def read(
    scan: scanner.Scan, after: int | None = None, happen: Callable[[], object] | None = None
) -> Scanned:
    """Run a scan to its end.

    Args:
        scan: What to run.
        after: Batches after which something happens.
        happen: What; awaited.
    """
    received: list[pa.RecordBatch] = []
    async with scan.execute() as batches:
        async for batch in batches:
            received.append(batch)
            if happen is not None and len(received) == after:
                await happen()  # type: ignore[misc]
        return Scanned(received, batches.statistics())


async def scanned(model: Model, items: Items) -> Scanned:
    """The whole table by a model."""
    return await read(model.scan(items.table))


def fold(rows: dict[bytes, bytes], changes: Iterable[Change]) -> dict[bytes, bytes]:
    """The stored rows by key after some changes: the log wins, a delete removes. Says so if a change does not fit."""
    now = dict(rows)
    for change in changes:
        if change.kind is ChangeKind.INSERT:
            assert change.key not in now, f"+I of a key that is there, at {change.offset}"
            now[change.key] = change.row
        elif change.kind is ChangeKind.UPDATE_AFTER:
            assert change.key in now, f"+U of a key that is not there, at {change.offset}"
            now[change.key] = change.row
        else:
            assert now[change.key] == change.row, f"{change.kind.name} of another row, at {change.offset}"
            if change.kind is ChangeKind.DELETE:
                del now[change.key]
    return now


def stored(store: Store, table: pa.Table) -> dict[bytes, bytes]:
    """The rows of the sample table as storage keeps them, by key."""
    found: dict[bytes, bytes] = {}
    for batch in table.combine_chunks().to_batches():
        keys = store.key_codec("items").encode_batch(batch)
        found.update(zip(keys, store.row_codec("items").encode_batch(batch), strict=True))
    return found
