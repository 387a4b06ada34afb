"""Splits as a client has them: the scans of the parts are, put together, the scan of the bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import scanner
import scanner.sync
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from tests.support.scans import SMALL
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 3000
SCHEMA = pa.schema([("region", pa.string()), ("id", pa.int64()), ("text", pa.string())])


def rows(count: int = ROWS) -> pa.Table:
    """Rows whose keys have two columns."""
    return pa.table(
        {
            "region": [f"region-{number % 7}" for number in range(count)],
            "id": list(range(count)),
            "text": [f"{number:x}" * 20 for number in range(count)],
        },
        schema=SCHEMA,
    )


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | Path:
    """What a server serves."""
    return MemoryStore() if request.param == "memory" else tmp_path / "data"


@asynccontextmanager
async def table_of(store: MemoryStore | Path) -> AsyncIterator[scanner.Table]:
    """A table of two buckets with rows in it, at a server."""
    async with open_client(store, config=SMALL) as (client, _):
        table = await client.create_table("orders", SCHEMA, ["region", "id"], 2)
        await table.write(rows())
        yield table


async def scanned(scan: scanner.Scan) -> tuple[pa.Table, scanner.BucketStatistics]:
    """The rows of one bucket's scan, and what it did."""
    async with scan.execute() as batches:
        found = pa.Table.from_batches([batch async for batch in batches], schema=batches.schema)
        (bucket,) = batches.statistics().buckets
    return found, bucket


async def test_scans_of_the_parts_are_the_scan_of_the_bucket(store: MemoryStore | Path) -> None:
    """Same rows in the same order, and the digests join to that of the whole, as of one offset."""
    async with table_of(store) as table:
        for index in range(2):
            whole, statistics = await scanned(table.new_scan().bucket(index))
            split = await table.split(index, splits=5)
            assert (len(split), split.bucket, split[-1].end) == (5, index, b"")
            assert split.stored_bytes > 0
            assert statistics.log_offset is not None
            await table.write(rows(500).slice(0, 400))
            scan = table.new_scan().as_of(statistics.log_offset).bucket(index)
            parts = [await scanned(scan.within(each)) for each in split]
            assert pa.concat_tables([part for part, _ in parts]).equals(whole)
            assert min(part.num_rows for part, _ in parts) > ROWS / 2 / 5 / 2
            digests = [(part.digest, part.stored_bytes) for _, part in parts]
            assert scanner.join_digests(digests) == statistics.digest
            assert sum(size or 0 for _, size in digests) == statistics.stored_bytes


async def test_a_part_is_cut_and_goes_on(store: MemoryStore | Path) -> None:
    """A scan of a range that is resumed after each batch has its rows, and no others."""
    async with table_of(store) as table:
        middle = (await table.split(0, splits=3))[1]
        scan = table.new_scan().bucket(0).within(middle)
        straight, _ = await scanned(scan)
        cut, statistics = await scanned(scan.resume_every_batches(1).with_credit(4096))
        assert statistics.resumes > 1
        assert cut.equals(straight)
        for mode in ("session", "token", "asof"):
            assert (await scanned(scan.with_mode(mode)))[0].equals(straight)


async def test_a_range_of_keys_is_split(store: MemoryStore | Path) -> None:
    """Only keys of the range are in the parts; a part can be split again."""
    async with table_of(store) as table:
        keys = ("region-2",), ("region-5",)
        assert await table.split(pa.scalar(1), splits=4) == await table.split(1, splits=4)
        split = await table.split(1, target_bytes=4000, key_from=keys[0], key_to=keys[1])
        assert len(split) > 2
        whole, _ = await scanned(table.new_scan().bucket(1).key_range(*keys))
        parts = [await scanned(table.new_scan().bucket(1).within(each)) for each in split]
        assert pa.concat_tables([part for part, _ in parts]).equals(whole)
        again = await table.split(1, splits=2, within=split[1])
        assert (again[0].start, again[-1].end) == split[1]
        nothing = await table.split(1, splits=3, key_from=("z",), key_to=("a",))
        assert (await scanned(table.new_scan().bucket(1).within(nothing[0])))[0].num_rows == 0


async def test_an_empty_bucket_is_one_range(store: MemoryStore | Path) -> None:
    """However many are wished for."""
    async with table_of(store) as table:
        await table.delete(rows().select(["region", "id"]))
        split = await table.split(0, splits=1000)
        assert (
            sum([(await scanned(table.new_scan().bucket(0).within(part)))[0].num_rows for part in split]) == 0
        )


async def test_what_makes_no_sense_is_refused(store: MemoryStore | Path) -> None:
    """Here or at the server, in one line."""
    async with table_of(store) as table:
        wishes: list[dict[str, Any]]
        wishes = [{}, {"splits": 2, "target_bytes": 5}, {"splits": 0}, {"splits": 1025}, {"target_bytes": 0}]
        for wish in wishes:
            with pytest.raises(scanner.ArgumentInvalid):
                await table.split(0, **wish)
        with pytest.raises(scanner.BucketNotFound):
            await table.split(2, splits=2)
        with pytest.raises(scanner.KeyInvalid):
            await table.split(0, splits=2, key_from=(5,))
        with pytest.raises(scanner.ArgumentInvalid, match="a range that a split gave"):
            table.new_scan().within((b"", b""))  # type: ignore[arg-type]


async def test_a_closed_bucket_is_opened_for_it(tmp_path: Path) -> None:
    """A server that has just begun has opened nothing yet."""
    async with table_of(tmp_path / "data"):
        pass
    async with open_client(tmp_path / "data", config=SMALL) as (client, _):
        assert len(await (await client.table("orders")).split(0, splits=3)) == 3


async def test_many_at_once_take_turns(store: MemoryStore | Path) -> None:
    """All are answered alike, and a commit between them is not held up."""
    async with table_of(store) as table:
        found: list[scanner.BucketRanges] = []

        async def split() -> None:
            found.append(await table.split(0, splits=4))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(split)
        assert len(found) == 10
        assert len({each.ranges for each in found}) == 1


def test_the_blocking_twin(tmp_path: Path) -> None:
    """The same ranges, for its own scans."""
    with running_server(tmp_path / "data") as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("orders", SCHEMA, ["region", "id"], 1)
        table.write(rows())
        parts = table.split(0, splits=4, key_from=("region-1",), within=scanner.KeyRange())
        counts = [table.new_scan().bucket(0).within(part).to_arrow().num_rows for part in parts]
        assert len(counts) == 4
        assert sum(counts) == table.new_scan().key_range(("region-1",)).to_arrow().num_rows
