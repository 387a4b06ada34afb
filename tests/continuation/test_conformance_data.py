"""What every scan must deliver, by every model: items 1 to 11."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scanner.data.digest import DIGEST_EMPTY
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from tests.support.changes import read_changes
from tests.support.conformance import CONFIG, ROWS, Items, fold, open_items, read, scanned, stored
from tests.support.models import PAGE_BYTES, PUSH, Model, every_model, every_scan, open_wire, pull_models
from tests.support.scans import filled_store, open_scan, sample, stored_digest

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = pytest.mark.socket


@every_scan
async def test_item_01_an_empty_bucket(store: Store, model: Model) -> None:
    """It opens normally, yields no rows, ends normally, and the server holds nothing for it."""
    async with open_items(store, 0) as items:
        async with model.scan(items.table).execute() as batches:
            assert [batch async for batch in batches] == []
            (bucket,) = batches.statistics().buckets
            assert (bucket.rows, bucket.digest, bucket.reason) == (0, DIGEST_EMPTY, "EXHAUSTED")
            assert (bucket.log_offset, batches.statistics().first_batch_s) == (0, None)
            await items.released()


@every_scan
async def test_item_02_the_offset_of_an_empty_result(store: Store, model: Model) -> None:
    """A bucket that became empty says at which offset it is."""
    async with open_items(store, 0) as items:
        await items.write(range(3))
        await items.delete(0, 1, 2)
        found = await scanned(model, items)

        assert (found.ids, found.log_offset) == ([], 6)


@every_model
async def test_item_03_rows_an_end_and_the_offset_once(store: Store, model: Model) -> None:
    """The offset comes with the open and once; a page of a cursor has one of its own, since none holds for the scan.

    Pages are full, and the digest is that of all rows.
    """
    async with open_items(store) as items:
        async with open_wire(model, items.raw) as wire:
            first = await wire.open()
            await wire.read_all()
            await wire.release()

    assert first.log_offset == ROWS
    assert wire.ids == list(range(ROWS))
    said = {page.log_offset for page in wire.pages[1:]}
    assert said == ({ROWS} if model.by_pages else {None})
    *full, last = wire.pages
    assert [page.rows for page in full] == [None] * len(full)
    assert (last.rows, last.digest) == (ROWS, stored_digest(filled_store(0), range(ROWS)))
    if model.pulls:
        assert all(0.8 * PAGE_BYTES < len(page.payload) <= PAGE_BYTES for page in full)


@every_scan
async def test_item_04_full_scan(store: Store, model: Model) -> None:
    """Every live key of every bucket once, and nothing else."""
    async with open_items(store, buckets=3) as items:
        found = await scanned(model, items)

    assert sorted(found.ids) == list(range(ROWS))
    assert found.table.combine_chunks().to_batches() == [sample(range(ROWS))]


@every_scan
async def test_item_05_later_writes_are_invisible(store: Store, model: Model) -> None:
    """What is written behind the scan's back does not show; in a cursor it does, and that is what it lacks."""

    async def change(items: Items) -> None:
        await items.write([ROWS, ROWS + 1])
        await items.delete(ROWS - 1)
        await items.write([ROWS - 2], price=-1.0)

    async with open_items(store) as items:
        found = await read(model.scan(items.table), 1, lambda: change(items))

    assert found.log_offset == ROWS
    if model.isolated:
        assert found.ids == list(range(ROWS))
        assert found.table.combine_chunks().to_batches() == [sample(range(ROWS))]
    else:
        assert found.ids == [*range(ROWS - 1), ROWS, ROWS + 1]
        assert found.table.column("price").to_pylist()[ROWS - 2] == -1.0


@every_scan
async def test_item_06_deletes_and_updates_before_the_open(store: Store, model: Model) -> None:
    """A row has its last value; a deleted one is not there; one that came back is."""
    async with open_items(store) as items:
        await items.write([5, 700], price=9.5)
        await items.delete(0, 6, 700, ROWS - 1)
        await items.write([700], price=1.5)
        found = await scanned(model, items)

    gone = {0, 6, ROWS - 1}
    assert found.ids == [key for key in range(ROWS) if key not in gone]
    prices = dict(zip(found.ids, found.table.column("price").to_pylist(), strict=True))
    assert (prices[5], prices[700], prices[7]) == (9.5, 1.5, 7 / 4)


@every_scan
async def test_item_07_a_snapshot_and_the_log_after_it_are_the_live_scan(store: Store, model: Model) -> None:
    """A scan as of S with the changes from S on folded in is the live scan; left: the merge by the server (LOG)."""
    rng = random.Random(7)
    async with open_items(store) as items:
        for _ in range(5):
            await items.write(rng.sample(range(2 * ROWS), 60), price=rng.random())
            await items.delete(*rng.sample(range(2 * ROWS), 60))
        live = await scanned(model, items)
        was = await read(PUSH.scan(items.table).as_of(ROWS))
        changes = read_changes(store.bucket("items", 0), ROWS, live.log_offset)
        folded = fold(stored(store, was.table), changes)

        assert was.ids == list(range(ROWS))
        assert stored(store, live.table) == folded


@every_scan
async def test_item_08_two_scans_progress_independently(store: Store, model: Model) -> None:
    """Two scans of one bucket, read in turns, deliver everything each."""
    async with open_items(store) as items:
        scan = model.scan(items.table)
        found: tuple[list[int], list[int]] = ([], [])
        async with scan.execute() as left, scan.execute() as right:
            for _ in range(3):
                found[0].extend((await anext(left)).column("id").to_pylist())
            for batches, ids in ((right, found[1]), (left, found[0])):
                async for batch in batches:
                    ids.extend(batch.column("id").to_pylist())

    assert found == (list(range(ROWS)), list(range(ROWS)))


@every_scan
@pytest.mark.parametrize("limit", [0, 333, ROWS])
async def test_item_09_a_row_limit(store: Store, model: Model, limit: int) -> None:
    """It stops after exactly that many rows, across batches."""
    async with open_items(store) as items:
        found = await read(model.scan(items.table).limit(limit))

    assert found.ids == list(range(limit))
    (bucket,) = found.statistics.buckets
    assert (bucket.reason, bucket.digest) == ("LIMIT", stored_digest(filled_store(0), range(limit)))


@every_scan
async def test_item_10_a_batch_smaller_than_a_row(store: Store, model: Model) -> None:
    """One row a batch, nothing lost."""
    async with open_items(store, 30) as items:
        found = await read(model.scan(items.table, page_bytes=1))

    assert [batch.num_rows for batch in found.batches] == [1] * 30
    assert found.ids == list(range(30))


@pull_models
async def test_item_11_an_oversized_page_is_clamped(store: Store, model: Model) -> None:
    """A page of 4 GiB was asked for; what comes is as large as the server's cap."""
    config = ScannerConfig(block_rows_max=100, session_page_bytes_max=20_000)
    async with open_items(store, config=config) as items:
        async with open_wire(model, items.raw, page_bytes=2**32 - 1) as wire:
            await wire.open()
            await wire.read_all()

    assert wire.ids == list(range(ROWS))
    assert 15_000 < max(len(page.payload) for page in wire.pages) <= 20_000


async def test_item_11_an_oversized_batch_is_clamped(store: Store) -> None:
    """By push the same: a batch of 4 GiB, and of as many rows, was asked for."""
    config = ScannerConfig(block_rows_max=100, batch_bytes=5_000, batch_bytes_max=20_000)
    query = pb.ScanQuery(table="items")
    async with open_items(store, config=config) as items:
        async with open_scan(
            items.raw, query=query, credit=1 << 40, batch_bytes_max=2**32 - 1, batch_rows_max=2**32 - 1
        ) as scan:
            await scan.receive_all()

    assert scan.rows == ROWS
    assert 3_000 < max(scan.batch_sizes) <= 20_000 + 1_000
    assert CONFIG.batch_bytes_max > 20_000
