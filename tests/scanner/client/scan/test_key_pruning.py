"""Pruned scans: the rows of a whole scan, from fewer buckets and keys; and what is never pruned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import scanner
from scanner.data.filters import Filter
from scanner.data.key_ranges import NO_KEYS, is_empty
from scanner.data.keys import ALL_KEYS, KeyCodec, KeyRange, bucket_of
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client

pytestmark = pytest.mark.socket

BUCKETS = 8
SCHEMA = pa.schema([("region", pa.string()), ("id", pa.int64()), ("price", pa.float64())])
ROWS = pa.table(
    {
        "region": [f"region-{number % 10}" for number in range(1000)],
        "id": list(range(1000)),
        "price": [number / 8 for number in range(1000)],
    },
    schema=SCHEMA,
)
CONFIG = ScannerConfig(checkpoint_interval_s=0)


@asynccontextmanager
async def orders() -> AsyncIterator[scanner.Table]:
    """A table of eight buckets at a server."""
    async with open_client(MemoryStore(), config=CONFIG) as (client, _):
        table = await client.create_table("orders", SCHEMA, ["region", "id"], BUCKETS)
        await table.write(ROWS)
        yield table


async def run(scan: scanner.Scan) -> tuple[list[int], scanner.ScanStatistics]:
    """The ids of a scan's rows, and what it did."""
    async with scan.execute() as batches:
        ids = [number for each in [batch async for batch in batches] for number in each["id"].to_pylist()]
    return sorted(ids), batches.statistics()


def home(region: str, number: int) -> int:
    """The bucket of a key."""
    table = scanner.TableDescription("orders", SCHEMA, ("region", "id"), BUCKETS)
    return bucket_of(KeyCodec(table).encode([region, number]), BUCKETS)


@pytest.mark.parametrize("mode", ["push", "session", "token", "cursor", "asof"])
async def test_a_whole_key_is_read_from_its_bucket(mode: str) -> None:
    """Equality and IN over the key read only the buckets that they hash to, in every mode."""
    async with orders() as table:
        scan = table.new_scan().with_mode(mode)
        ids, statistics = await run(scan.where("region = 'region-3' and id = 503"))
        assert ids == [503]
        assert [each.bucket for each in statistics.buckets] == [home("region-3", 503)]
        assert statistics.buckets_skipped == tuple(set(range(BUCKETS)) - {home("region-3", 503)})
        assert statistics.buckets[0].stored_bytes is not None
        assert statistics.buckets[0].stored_bytes < 100
        ids, statistics = await run(scan.where("region in ('region-3', 'nowhere') and id in (3, 4, 503)"))
        assert ids == [3, 503]
        assert len(statistics.buckets) <= 6


async def test_a_bounded_prefix_reads_a_part_of_every_bucket() -> None:
    """What the server scans is a tenth of what it scans without the condition on the key."""
    async with orders() as table:
        everything = (await run(table.new_scan()))[1]
        ids, statistics = await run(table.new_scan().where("region = 'region-3' and price < 100"))
        assert ids == [number for number in range(1000) if number % 10 == 3 and number < 800]
        assert statistics.buckets_skipped == ()
        sizes = [sum(each.stored_bytes or 0 for each in done.buckets) for done in (statistics, everything)]
        assert sizes[0] == pytest.approx(sizes[1] / 10, rel=0.01)
        assert all(each.key_range != ALL_KEYS for each in statistics.buckets)


@pytest.mark.parametrize(
    "where",
    [
        "region = 'region-3'",
        "region = 'region-3' and id > 500",
        "region > 'region-3' and region <= 'region-5' and price > 3",
        "(region = 'region-1' or region = 'region-9') and id between 100 and 200",
        "region in ('region-2', 'region-7') and id in (2, 7, 12, 17, 99)",
        "region like 'region-%' and id < 10",
        "not (region = 'region-3') and id < 20",
        "id < 20",
        "region = 'region-3' or id < 20",
        "region = 'a' and region = 'b'",
    ],
)
async def test_a_pruned_scan_has_the_rows_of_a_whole_one(where: str) -> None:
    """As DuckDB or anybody would filter them; alone, with a key range and of one bucket."""
    async with orders() as table:
        filtered = (await table.new_scan().where(where).to_arrow()).sort_by("id")
        condition = scanner.parse_where(where)
        whole = (await table.new_scan().to_arrow()).sort_by("id")
        mask = pa.chunked_array(
            [Filter(condition.predicates, SCHEMA).mask(batch) for batch in whole.to_batches()]
        )
        assert filtered.equals(whole.filter(mask).combine_chunks())
        ranged = table.new_scan().where(where).key_range(("region-2",), ("region-4",))
        in_range = pc.and_(
            pc.greater_equal(whole["region"], "region-2"), pc.less(whole["region"], "region-4")
        )
        assert (await run(ranged))[0] == whole.filter(pc.and_(mask, in_range))["id"].to_pylist()
        found = []
        for bucket in range(BUCKETS):
            found += (await run(table.new_scan().where(where).bucket(bucket)))[0]
        assert sorted(found) == filtered["id"].to_pylist()


async def test_nothing_can_match_and_the_server_is_asked_all_the_same() -> None:
    """No rows of a table that is there; of one that was dropped, the error."""
    async with orders() as table:
        scan = table.new_scan().where("region = 'a' and region = 'b'")
        assert scan.reads == {0: NO_KEYS}
        ids, statistics = await run(scan)
        assert (ids, statistics.buckets_skipped) == ([], tuple(range(1, BUCKETS)))
        lone = (
            table.new_scan()
            .where("region = 'region-3' and id = 3")
            .bucket((home("region-3", 3) + 1) % BUCKETS)
        )
        assert [is_empty(each) for each in lone.reads.values()] == [True]
        assert (await run(lone))[0] == []
        await table._connection.call("/weir.v1.Tables/DropTable", b"\x0a\x06orders")
        with pytest.raises(scanner.TableNotFound):
            await run(scan)


async def test_a_table_that_was_created_anew_is_another_one() -> None:
    """Its keys have another order, or belong to other buckets: what was known of them is refused, not missing rows."""
    async with open_client(MemoryStore(), config=CONFIG) as (client, _):
        table = await client.create_table("orders", SCHEMA, ["region", "id"], BUCKETS)
        await client.drop_table("orders")
        await (await client.create_table("orders", SCHEMA, ["id", "region"], BUCKETS)).write(ROWS)
        for mode in ("push", "session", "token", "cursor", "asof"):
            scan = table.new_scan().with_mode(mode)
            pruned = scan.where("region = 'region-3' and id = 503"), scan.key_range(("region-3",))
            for each in (scan, *pruned):
                with pytest.raises(scanner.TableNotFound, match="created anew; look it up again"):
                    await run(each)
        again = (await client.table("orders")).new_scan()
        assert (await run(again.where("region = 'region-3' and id = 503")))[0] == [503]


async def test_changes_are_read_from_every_bucket() -> None:
    """A tail tells positions of buckets that have nothing for it; so does a snapshot with its changes."""
    async with orders() as table:
        where = "region = 'region-3' and id = 503"
        for source in ("log", "hybrid"):
            scan = table.new_scan().with_source(source).where(where).stop_at("end")
            assert scan.reads == dict.fromkeys(range(BUCKETS), KeyRange())
            ids, statistics = await run(scan)
            assert ids == [503]
            assert len(statistics.buckets) == BUCKETS
        async with table.new_scan().with_source("log").where(where).stop_at("end").execute() as batches:
            async for _ in batches:
                pass
            assert sorted(batches.positions) == list(range(BUCKETS))


async def test_a_pruned_scan_is_cut_and_goes_on() -> None:
    """The range is part of the query that a token is for, and stays the same."""
    async with orders() as table:
        where = "region >= 'region-3' and region < 'region-7'"
        scan = table.new_scan().where(where)
        cut = scan.resume_every_batches(1).with_credit(BUCKETS * 2048)
        (straight, _), (resumed, statistics) = await run(scan), await run(cut)
        assert statistics.resumes > BUCKETS
        assert resumed == straight
        assert len(straight) == 400
