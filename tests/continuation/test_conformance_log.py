"""Snapshot and log on one stream, and the log alone: items 37 to 44, with RocksDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

import scanner
from scanner.errors import OffsetOutOfRange
from tests.support.conformance import Items, open_items

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.client.scan.table_scan import Batches
    from scanner.storage.interface import Store

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

Rows = dict[int, dict[str, Any]]


def fold(rows: Rows, batch: pa.RecordBatch) -> None:
    """Apply changes as docs/tail.md says."""
    for row in batch.to_pylist():
        kind = row.pop("_change_type")
        del row["_log_offset"], row["_commit_timestamp"]
        if kind in ("insert", "update_postimage"):
            rows[row["id"]] = row
        else:
            assert rows.pop(row["id"]) == row


async def folded(changes: Batches) -> Rows:
    """The rows that a scan of changes makes."""
    rows: Rows = {}
    async for batch in changes:
        fold(rows, batch)
    return rows


async def live(items: Items) -> Rows:
    """The table now."""
    async with items.table.new_scan().execute() as batches:
        return {row["id"]: row async for batch in batches for row in batch.to_pylist()}


async def changes(items: Items, **bounds: Any) -> list[tuple[str, int]]:
    """Kind and id of each change of the log."""
    scan = items.table.new_scan().with_source("log").stop_at(bounds.pop("stop_at", "end"))
    if bounds:
        scan = scan.start_at(bounds["start_at"])
    async with scan.execute() as tail:
        return [(row["_change_type"], row["id"]) async for batch in tail for row in batch.to_pylist()]


async def test_items_37_and_38_the_log_wins_behind_the_snapshot(rocks_store: Store) -> None:
    """Updated and then deleted behind the snapshot: gone. Only in the log, behind the last key: there."""
    async with open_items(rocks_store, 100) as items:
        scan = items.table.new_scan().with_source("hybrid").as_of(100).stop_at("end")
        await items.write([5], price=-1.0)
        await items.delete(5, *range(50, 100))
        await items.write([1000])
        async with scan.execute() as hybrid:
            rows = await folded(hybrid)
        assert 5 not in rows
        assert 1000 in rows
        assert rows == await live(items)


async def test_item_39_a_bounded_read_ends_by_position(rocks_store: Store) -> None:
    """Not by the last change seen: that may not pass the filter."""
    async with open_items(rocks_store, 10) as items:
        await items.write([11])
        scan = items.table.new_scan().with_source("log").where(scanner.col("id") < 5)
        async with scan.stop_at({0: 11}).execute() as tail:
            found = [row["id"] async for batch in tail for row in batch.to_pylist()]
        assert found == list(range(5))
        assert tail.positions == {0: 11}


async def test_item_40_a_hybrid_folds_to_the_table_at_any_later_offset(rocks_store: Store) -> None:
    """At the end of each commit, beside a scan as of that offset."""
    async with open_items(rocks_store, 60) as items:
        ends = []
        for number in range(6):
            await items.write(range(number * 7, number * 7 + 20), price=float(number))
            await items.delete(number * 3)
            ends += [each.end_offset for each in await items.table.offsets()]
        for end in ends:
            scan = items.table.new_scan().with_source("hybrid").as_of(60).stop_at({0: end})
            async with scan.execute() as hybrid:
                rows = await folded(hybrid)
            async with items.table.new_scan().as_of(end).execute() as batches:
                expected = {row["id"]: row async for batch in batches for row in batch.to_pylist()}
            assert rows == expected


async def test_item_41_where_a_log_begins(rocks_store: Store) -> None:
    """At the earliest change, an offset, a time, or with the next commit."""
    async with open_items(rocks_store, 3) as items:
        await items.write([7])
        assert await changes(items) == [("insert", 0), ("insert", 1), ("insert", 2), ("insert", 7)]
        assert await changes(items, start_at=3) == [("insert", 7)]
        assert await changes(items, start_at="latest") == []
        async with items.table.new_scan().with_source("log").stop_at("end").execute() as tail:
            times = [row["_commit_timestamp"] async for batch in tail for row in batch.to_pylist()]
        assert await changes(items, start_at=times[-1]) == [("insert", 7)]
        async with items.table.new_scan().with_source("log").start_at("latest").execute() as tail:
            async with trio.open_nursery() as nursery:

                async def write_when_it_waits() -> None:
                    while tail.statistics().buckets[0].log_offset is None:
                        await trio.lowlevel.checkpoint()
                    await items.write([9])

                nursery.start_soon(write_when_it_waits)
                batch = await anext(tail)
        assert batch.column("id").to_pylist() == [9]


async def test_item_42_an_offset_out_of_range(rocks_store: Store) -> None:
    """The error names the range; there is no reset."""
    async with open_items(rocks_store, 3) as items:
        for start in (4, 2**40):
            with pytest.raises(OffsetOutOfRange, match=r"\[0, 3\)"):
                await changes(items, start_at=start)


async def test_item_43_a_filter_that_drops_everything(rocks_store: Store) -> None:
    """The position moves all the same, and the end comes."""
    async with open_items(rocks_store, 500) as items:
        scan = items.table.new_scan().with_source("log").where(scanner.col("id") < 0).stop_at("end")
        async with scan.execute() as tail:
            assert [batch async for batch in tail] == []
        assert tail.positions == {0: 500}


async def test_item_44_two_consumers_of_one_tail(rocks_store: Store) -> None:
    """The second is told so, and the first gets what comes."""
    async with open_items(rocks_store, 1) as items:
        async with items.table.new_scan().with_source("log").start_at(1).execute() as tail:
            got: list[pa.RecordBatch] = []

            async def first() -> None:
                got.append(await anext(tail))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(trio.BusyResourceError):
                    await anext(tail)
                await items.write([5])
            assert got[0].column("id").to_pylist() == [5]
