"""A state and the changes after it: items 37 to 40, folded by the client.

The state as of an offset comes in every way there is, and the changes from it are read from storage, so that neither
depends on the sources LOG and HYBRID (`test_conformance_log.py`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scanner import col
from scanner.errors import OffsetOutOfRange
from scanner.storage.interface import ChangeKind
from tests.support.changes import read_changes
from tests.support.conformance import ROWS, Items, fold, open_items, read, scanned, stored
from tests.support.models import PUSH, PUSH_RESUMED, Model, every_scan
from tests.support.scans import sample

if TYPE_CHECKING:
    from scanner.storage.interface import Store

pytestmark = pytest.mark.socket

as_of_models = pytest.mark.parametrize("model", [PUSH, PUSH_RESUMED], ids=str)


@every_scan
async def test_item_37_the_log_wins(store: Store, model: Model) -> None:
    """Per key the last change counts, a delete removes: update-then-delete does not bring a row back."""
    async with open_items(store, 200) as items:
        before = await scanned(model, items)
        await items.write([3, 4], price=-1.0)
        await items.delete(3)
        await items.write([4], price=-2.0)
        await items.delete(5)
        await items.write([5], price=-3.0)
        after = await scanned(model, items)
        changes = list(read_changes(store.bucket("items", 0), before.log_offset, after.log_offset))

    merged = fold(stored(store, before.table), changes)
    assert merged == stored(store, after.table)
    assert 3 not in after.ids
    prices = dict(zip(after.ids, after.table.column("price").to_pylist(), strict=True))
    assert (prices[4], prices[5]) == (-2.0, -3.0)


@every_scan
async def test_item_37_projection_is_last(store: Store, model: Model) -> None:
    """A filter and a projection are of the merged rows: a row whose new value no longer fits is not there."""
    async with open_items(store, 200) as items:
        await items.write([10], price=1_000.0)
        await items.write([20], price=-1_000.0)
        scan = model.scan(items.table).where(col("price") < 50).select("id")
        found = await read(scan)

    assert found.ids == [key for key in range(200) if key / 4 < 50 and key != 10]


@as_of_models
async def test_item_38_keys_that_are_only_in_the_log(store: Store, model: Model) -> None:
    """As of S rows come that only the changes still know, in front of, among and behind the live ones; and where all
    live rows are gone the scan does not end early.
    """
    async with open_items(store) as items:
        await items.delete(*range(100), *range(700, 800), *range(ROWS - 100, ROWS))
        some = await read(model.scan(items.table).as_of(ROWS))
        await items.delete(*range(ROWS))
        await items.write([ROWS + 5])
        rest = await read(model.scan(items.table).as_of(ROWS))
        live = await scanned(PUSH, items)

    assert some.ids == rest.ids == list(range(ROWS))
    assert rest.table.combine_chunks().to_batches() == [sample(range(ROWS))]
    assert live.ids == [ROWS + 5]


async def test_item_39_a_bounded_read_ends_by_position(store: Store) -> None:
    """The changes of a range are all there, gap by gap, whatever the last of them is; past the end is an error."""
    async with open_items(store, 50) as items:
        await items.delete(1, 2, 3)
        await items.write([4], price=0.5)
        end = await items.offset()
        bucket = store.bucket("items", 0)
        for stop in range(50, end + 1):
            assert [change.offset for change in read_changes(bucket, 50, stop)] == list(range(50, stop))
        assert [change.kind for change in read_changes(bucket, 50, end)] == [
            *[ChangeKind.DELETE] * 3, ChangeKind.UPDATE_BEFORE, ChangeKind.UPDATE_AFTER,
        ]  # fmt: skip
        with pytest.raises(OffsetOutOfRange):
            list(read_changes(bucket, 50, end + 1))
        with pytest.raises(OffsetOutOfRange):
            await read(PUSH.scan(items.table).as_of(end + 1))


@every_scan
async def test_item_40_a_state_and_the_changes_from_it_give_every_later_state(
    store: Store, model: Model
) -> None:
    """Rows of a scan, one boundary, then the changes from it: folded up to any offset they are the table at it."""
    async with open_items(store, 300) as items:
        first = await scanned(model, items)
        offsets = await _change(items, random.Random(40))
        changes = list(read_changes(store.bucket("items", 0), first.log_offset, offsets[-1]))
        start = stored(store, first.table)
        for offset in offsets:
            folded = fold(start, changes[: offset - first.log_offset])
            as_of = await read(PUSH.scan(items.table).as_of(offset))
            assert stored(store, as_of.table) == folded


async def _change(items: Items, rng: random.Random) -> list[int]:
    """Some writes; the log's end after each."""
    offsets = []
    for _ in range(6):
        await items.write(rng.sample(range(400), 20), price=rng.random())
        await items.delete(*rng.sample(range(400), 20))
        offsets.append(await items.offset())
    return offsets
