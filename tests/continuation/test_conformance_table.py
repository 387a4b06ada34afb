"""Scans of whole tables: items 31 to 36."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner
from scanner.errors import ColumnNotFound, SourceUnsupported
from scanner.storage.rocksdb.store import RocksStore
from tests.support.conformance import ROWS, open_items, read, scanned
from tests.support.models import PAGE_BYTES, PUSH, Model, every_scan, pull_models
from tests.support.scans import description, mutations, sample

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


@every_scan
async def test_item_31_the_buckets_sum_to_the_table(rocks_store: Store, model: Model) -> None:
    """Each row is in one bucket, and the buckets together are the table."""
    async with open_items(rocks_store, buckets=4) as items:
        whole = await scanned(model, items)
        parts = [await read(model.scan(items.table).bucket(index)) for index in range(4)]

    keys = [key for part in parts for key in part.ids]
    assert len(keys) == len(set(keys))
    assert sorted(keys) == sorted(whole.ids) == list(range(ROWS))
    assert [bucket.digest for bucket in whole.statistics.buckets] == [
        bucket.digest for part in parts for bucket in part.statistics.buckets
    ]


@every_scan
async def test_item_32_projection(rocks_store: Store, model: Model) -> None:
    """Columns come in the order asked for; an unknown one is an error that lists the known ones."""
    async with open_items(rocks_store, 300) as items:
        found = await read(model.scan(items.table).select("price", "id"))
        with pytest.raises(ColumnNotFound, match="id, name, price, sold"):
            model.scan(items.table).select("colour")

    assert {tuple(batch.schema.names) for batch in found.batches} == {("price", "id")}
    assert found.table.combine_chunks().to_batches() == [sample(range(300)).select(["price", "id"])]


@every_scan
async def test_item_33_a_limit_of_the_table(rocks_store: Store, model: Model) -> None:
    """Exactly so many rows come from all buckets together; credit or pages ahead bound what is fetched beyond."""
    limit, rows, buckets = 200, 3_000, 4
    page_bytes = 2_500 if model.pulls else PAGE_BYTES
    async with open_items(rocks_store, rows, buckets=buckets) as items:
        scan = model.scan(items.table, page_bytes)
        found = await read(scan.limit(limit))
        whole = await read(scan)

    assert len(set(found.ids)) == len(found.ids) == limit
    row_bytes = whole.statistics.bytes_received / rows
    ahead = buckets * 3 * page_bytes if model.pulls else 2 * page_bytes
    assert found.statistics.bytes_received < limit * row_bytes * 2 + ahead
    assert found.statistics.bytes_received < whole.statistics.bytes_received / 2


@every_scan
async def test_item_34_a_row_of_an_older_schema(tmp_path: Path, model: Model) -> None:
    """A row that was written before a column was added reads back with a null in it."""
    with RocksStore.open(tmp_path) as older:
        older.create_table(description())
        older.bucket("items", 0).commit([mutations(older, "items", sample(range(100)))])
        older.add_column("items", pa.field("colour", pa.string()))
    with RocksStore.open(tmp_path) as store:
        async with open_items(store, there=True) as items:
            batch = sample(range(50, 150))
            await items.table.write(batch.append_column("colour", pa.array(["red"] * 100)))
            found = await scanned(model, items)

    assert found.ids == list(range(150))
    assert found.table.column("colour").to_pylist() == [None] * 50 + ["red"] * 100
    assert found.table.drop_columns("colour").combine_chunks().to_batches() == [sample(range(150))]


@pull_models
@pytest.mark.parametrize("source", ["log", "hybrid"])
async def test_item_35_pages_have_no_changes(rocks_store: Store, model: Model, source: str) -> None:
    """It is refused, and the message names it; left: a table that has a log and no rows (LOG)."""
    async with open_items(rocks_store, 10) as items:
        with pytest.raises(SourceUnsupported, match=f"(?i){source}"):
            await read(model.scan(items.table).with_source(source))


async def test_item_36_a_snapshot_scan(rocks_store: Store) -> None:
    """It returns exactly the snapshot's rows, again after the table has changed, with the digest of the time."""
    async with open_items(rocks_store) as items:
        live = await scanned(PUSH, items)
        await items.client.checkpoint("items")
        await items.delete(*range(100))
        await items.write([7], price=-1.0)
        for _ in range(2):
            found = await read(PUSH.scan(items.table).with_source(scanner.ScanSource.SNAPSHOT))
            assert found.log_offset == ROWS
            assert found.table.combine_chunks().to_batches() == [sample(range(ROWS))]
            assert found.statistics.digest == live.statistics.digest
        (newer,) = await items.client.checkpoint("items")
        found = await read(PUSH.scan(items.table).with_source(scanner.ScanSource.SNAPSHOT))
        assert (found.log_offset, found.ids) == (newer.log_offset, [7, *range(100, ROWS)])
        again = await read(PUSH.scan(items.table).as_of(ROWS))
        assert (again.ids, again.statistics.digest) == (list(range(ROWS)), live.statistics.digest)


@pull_models
async def test_item_36_pages_have_no_snapshot_source(rocks_store: Store, model: Model) -> None:
    """By pages it is refused, clearly, and not answered with the live table."""
    async with open_items(rocks_store, 10) as items:
        with pytest.raises(SourceUnsupported, match="LIVE_KV"):
            await read(model.scan(items.table).with_source(scanner.ScanSource.SNAPSHOT))
