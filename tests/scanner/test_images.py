"""Images on a running server: made, used, and given up; what is scanned is the same with and without."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
import trio

import scanner
import transport
from scanner import col
from scanner.errors import ArgumentInvalid, DiskFull, PermissionDenied, TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from tests.support.scans import open_scan

pytestmark = pytest.mark.socket

CONFIG = ScannerConfig(image_core_share=1.0)
ROWS = 60_000


BLOCK_BYTES = 64 * 1024
ROW_MESSAGE_BYTES = 900
"""More than a batch of one row takes, most of which is Arrow's description of the columns."""


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images have some thirty blocks."""
    monkeypatch.setattr("scanner.server.images.block_payload_bytes", lambda _: BLOCK_BYTES)


class Scanned(NamedTuple):
    """What a scan gave."""

    table: pa.Table
    digests: list[int | None]


def rows(ids: range, price: float = 0.25) -> pa.Table:
    """Rows of a table of orders."""
    return pa.table(
        {"id": ids, "item": [f"item-{number}" for number in ids], "price": [price * n for n in ids]}
    )


@asynccontextmanager
async def serving(path: Path, config: ScannerConfig = CONFIG) -> AsyncIterator[tuple[Server, scanner.Client]]:
    """A server over a directory, and a client of it."""
    async with open_client(path, config=config) as (client, server):
        yield server, client


async def orders(client: scanner.Client, *, buckets: int = 1) -> scanner.Table:
    """The table, filled at its first use."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("item", pa.string()), ("price", pa.float64())]
    )
    table = await client.create_table("orders", schema, primary_key=["id"], buckets=buckets)
    await table.write(rows(range(ROWS)))
    return table


async def scanned(scan: scanner.Scan) -> Scanned:
    """Everything that a scan gives."""
    async with scan.execute() as batches:
        found = [batch async for batch in batches]
        digests = [bucket.digest for bucket in batches.statistics().buckets]
    return Scanned(pa.Table.from_batches(found), digests)


def read_from(server: Server) -> dict[str, int]:
    """How many scans were opened, by what they read."""
    return dict(server.statistics().activity.scans_read)


async def test_whole_scans_read_the_image(tmp_path: Path) -> None:
    """Rows, order and digest are those of the row store; nine tenths of the octets go out as they lie."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client, buckets=2)
        without = await scanned(table.new_scan())
        made = await client.make_images("orders")
        assert [(each.bucket, each.log_offset, each.log_behind) for each in made] == [
            (each.bucket, each.end_offset, 0) for each in await table.offsets()
        ]
        assert sum(each.rows for each in made) == ROWS
        assert await client.list_images("orders") == made

        before = server.statistics().activity
        found = await scanned(table.new_scan())
        # Of each bucket in order; how buckets take turns differs.
        assert found.table.sort_by("id").equals(without.table.sort_by("id"))
        assert found.digests == without.digests
        after = server.statistics()
        assert read_from(server) == {"now": 2, "image": 2}
        reused = after.activity.payload_bytes_reused - before.payload_bytes_reused
        encoded = after.activity.payload_bytes_encoded - before.payload_bytes_encoded
        assert reused / (reused + encoded) >= 0.9
        assert (after.images, after.image_disk_bytes) == (2, sum(each.disk_bytes for each in made))
        assert 0 < after.image_memory_bytes < after.image_disk_bytes


async def test_blocks_wait_for_credit_that_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With credit for two blocks and a half, granted as it is consumed, none is cut: no octet is encoded again."""
    monkeypatch.setattr("scanner.server.fairness._WHOLE_WAIT_S", 100.0)  # However busy the machine is.
    small_blocks(monkeypatch)
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        without = await scanned(table.new_scan())
        await client.make_images("orders")
        before = server.statistics().activity
        found = await scanned(table.new_scan().with_credit(5 * BLOCK_BYTES // 2))
        after = server.statistics().activity
    assert (found.table, found.digests) == (without.table, without.digests)
    assert found.table.column(0).num_chunks >= 20
    assert after.payload_bytes_encoded == before.payload_bytes_encoded
    assert after.payload_bytes_reused > before.payload_bytes_reused


async def test_who_waits_for_the_last_octet_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that grants more only when all was sent: a block is cut where the credit ends, to a row."""
    small_blocks(monkeypatch)
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        without = await scanned(table.new_scan())
        await client.make_images("orders")
        async with transport.connect(server.host, server.port) as raw:
            async with open_scan(raw, query=pb.ScanQuery(table="orders"), credit=0) as scan:
                await scan.receive()
                limit = 0
                while scan.end is None:
                    limit += 5 * BLOCK_BYTES // 2
                    await scan.demand(limit)
                    while scan.end is None and scan.received_bytes < limit - ROW_MESSAGE_BYTES:
                        await scan.receive()
    assert scan.table().equals(without.table)
    assert [scan.end.digest] == without.digests


@pytest.mark.parametrize("mode", ["push", "session", "token", "cursor", "asof"])
async def test_statistics_say_what_was_read(tmp_path: Path, mode: str) -> None:
    """By every model: the stored rows, then the image."""
    found = []
    async with serving(tmp_path / "data") as (_, client):
        table = await orders(client)
        for _ in range(2):
            async with table.new_scan().with_mode(mode).execute() as batches:
                assert sum([batch.num_rows async for batch in batches]) == ROWS
            found += [bucket.read_sources for bucket in batches.statistics().buckets]
            await client.make_images("orders")
    assert set(found[0]) <= {"now", "snapshot"}
    assert found[1:] == [("image",)]


async def test_filters_pass_over_blocks(tmp_path: Path) -> None:
    """Most blocks are ruled out by their statistics; rows and digest are those of the row store, also by pages."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        scan = table.new_scan().where(col("price") < 1000.0)
        without = await scanned(scan)
        await client.make_images("orders")
        found = await scanned(scan)

        activity = server.statistics().activity
        assert (found.table, found.digests) == (without.table, without.digests)
        assert (activity.image_blocks_read, found.table.num_rows) == (1, 4000)
        assert activity.image_blocks_skipped >= 1


async def test_a_filter_that_would_take_long_to_try_reads_all_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a scan is bounded; the rows are the same."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        await client.make_images("orders")
        scan = table.new_scan().where(col("price") < 1000.0)
        expected = await scanned(scan)
        skipped = server.statistics().activity.image_blocks_skipped
        monkeypatch.setattr("scanner.server.scan.read_sources.BLOCK_COMPARISONS_MAX", 1)
        assert await scanned(scan) == expected
        assert server.statistics().activity.image_blocks_skipped == skipped > 0


async def test_projections_filters_and_other_models_read_it_too(tmp_path: Path) -> None:
    """What is pushed down is done on the image's columns; pages are made of it as well."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        scan = table.new_scan().select("price", "id").where(col("price") > 100.0)
        without = await scanned(scan)
        await client.make_images("orders")
        assert await scanned(scan) == without
        for mode in ("session", "token", "asof"):
            assert await scanned(scan.with_mode(mode)) == without
        assert set(read_from(server)) == {"now", "image"}
        assert read_from(server)["now"] == 1


async def test_few_rows_are_read_from_the_row_store(tmp_path: Path) -> None:
    """A row limit or a narrow range costs an image more than it gives."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        await client.make_images("orders")
        assert (await scanned(table.new_scan().limit(10))).table.num_rows == 10
        narrow = await scanned(table.new_scan().key_range((7,), (12,)))
        assert narrow.table.column("id").to_pylist() == [7, 8, 9, 10, 11]
        assert read_from(server) == {"now": 2}


async def test_what_was_changed_since_is_never_missed(tmp_path: Path) -> None:
    """Few changes are laid over it, as of now and of any offset since; what the row store gives is the same."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        (made,) = await client.make_images("orders")
        before = await scanned(table.new_scan())
        await table.write(rows(range(5, 10), price=99.0))
        await table.delete([(3,)])
        after = await scanned(table.new_scan())
        assert after.table.num_rows == ROWS - 1
        assert after.table.column("price").to_pylist()[4] == 5 * 99.0
        assert [each.log_behind for each in await client.list_images("orders")] == [11]
        assert await scanned(table.new_scan().as_of(made.log_offset)) == before
        between = made.log_offset + 10
        middle = await scanned(table.new_scan().as_of(between))
        assert middle.table.num_rows == ROWS
        assert read_from(server) == {"image": 4}
        assert (await client.list_images("orders"))[0].memory_bytes > made.memory_bytes
        await client.drop_images("orders")
        assert await scanned(table.new_scan()) == after
        assert await scanned(table.new_scan().as_of(between)) == middle
        (again,) = await client.make_images("orders")
        assert await scanned(table.new_scan()) == after
        assert (again.log_behind, again.rows) == (0, ROWS - 1)


async def test_after_many_changes_the_row_store_is_read(tmp_path: Path) -> None:
    """It is quicker then; the image stays until it is made anew."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        await client.make_images("orders")
        await table.write(rows(range(0, ROWS, 4), price=99.0))
        assert (await scanned(table.new_scan())).table.num_rows == ROWS
        assert read_from(server) == {"now": 1}
        assert len(await client.list_images("orders")) == 1


async def test_a_truncated_changelog_costs_the_image(tmp_path: Path) -> None:
    """What was changed since cannot be had any more: the row store is read, and the image removed."""
    config = replace(CONFIG, image_delta_interval_s=3600.0)  # Nothing is read before the scan asks.
    async with serving(tmp_path / "data", config) as (server, client):
        table = await orders(client)
        await client.make_images("orders")
        await table.write(rows(range(5), price=99.0))
        await table.write(rows(range(5, 10), price=99.0))
        (offsets,) = await table.offsets()
        await client.compact_log("orders", before=offsets.end_offset - 10, bucket=0)
        found = await scanned(table.new_scan())
        assert found.table.column("price").to_pylist()[:10] == [99.0 * number for number in range(10)]
        assert await client.list_images("orders") == []
        assert await scanned(table.new_scan()) == found
        # What the first one went on with counts, too.
        assert read_from(server) == {"image": 1, "now": 2}


async def test_whole_scans_get_an_image_by_themselves(tmp_path: Path) -> None:
    """Nobody asks for it: what is scanned twice has one soon, with the same rows and digest, and says why."""
    config = replace(CONFIG, image_bytes_min=100_000, image_interval_s=0.01)
    async with serving(tmp_path / "data", config) as (server, client):
        table = await orders(client)
        before = await scanned(table.new_scan())
        assert [each.image for each in await client.image_states("orders")] == [None]
        await scanned(table.new_scan())
        while not await client.list_images("orders"):
            pass  # Each asks the server, which makes one meanwhile.
        assert await scanned(table.new_scan()) == before
        assert read_from(server) == {"now": 2, "image": 1}
        (state,) = await client.image_states("orders")
        assert (state.why, state.image) == ("fresh enough", (await client.list_images("orders"))[0])


async def test_an_image_survives_a_restart(tmp_path: Path) -> None:
    """The next server finds it, and uses it."""
    async with serving(tmp_path / "data") as (_, client):
        before = await scanned((await orders(client)).new_scan())
        await client.make_images("orders")
    async with serving(tmp_path / "data") as (server, client):
        assert await scanned((await client.table("orders")).new_scan()) == before
        assert read_from(server) == {"image": 1}


async def test_an_image_of_another_history_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two copies of a directory were written on, to the same offset: the image of one is none of the other."""
    one, other = tmp_path / "one", tmp_path / "other"
    async with serving(one) as (_, client):
        await orders(client)
    shutil.copytree(one, other)
    async with serving(other) as (_, client):
        await (await client.table("orders")).write(rows(range(ROWS, ROWS + 5), price=7.0))
        await client.make_images("orders")
    async with serving(one) as (_, client):
        await (await client.table("orders")).write(rows(range(ROWS, ROWS + 5)))
        expected = await scanned((await client.table("orders")).new_scan())
    shutil.copytree(other / "images", one / "images")
    async with serving(one) as (server, client):
        assert await scanned((await client.table("orders")).new_scan()) == expected
        assert read_from(server) == {"now": 1}
    assert not list((one / "images").rglob("*.image"))
    assert sum("another history" in line.getMessage() for line in caplog.records) == 1


async def test_an_image_of_another_bucket_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where files were brought back under each other's names: its rows are not shown."""
    async with serving(tmp_path / "data") as (_, client):
        expected = await scanned((await orders(client, buckets=2)).new_scan())
        await client.make_images("orders")
    first, second = sorted((tmp_path / "data" / "images").rglob("*.image"))
    first.replace(second)
    async with serving(tmp_path / "data") as (_, client):
        table = await client.table("orders")
        assert (await scanned(table.new_scan())).table.sort_by("id") == expected.table.sort_by("id")
        assert await client.list_images("orders") == []
    assert not second.exists()
    assert sum("of another table or bucket" in line.getMessage() for line in caplog.records) == 1


@pytest.mark.parametrize("at", [20, -20, None])
async def test_a_damaged_image_is_removed(
    tmp_path: Path, at: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Head, end or a block: no row is lost or changed, the image is gone, and one line says so."""
    async with serving(tmp_path / "data") as (_, client):
        before = await scanned((await orders(client)).new_scan())
        await client.make_images("orders")
    (path,) = (tmp_path / "data" / "images").rglob("*.image")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
    async with serving(tmp_path / "data") as (server, client):
        table = await client.table("orders")
        assert await scanned(table.new_scan()) == before
        assert await client.list_images("orders") == []
        assert await scanned(table.new_scan()) == before
        assert read_from(server)["now"] >= 1
    assert not path.exists()
    told = [line for line in caplog.records if "the image" in line.getMessage()]
    assert [line.levelno for line in told] == [logging.WARNING]


async def test_what_is_not_cached_is_read_in_a_thread(tmp_path: Path) -> None:
    """Blocks that have to come from the disk hold up no event loop, and are the same, pushed or paged."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        before = await scanned(table.new_scan())
        await client.make_images("orders")
        (path,) = (tmp_path / "data" / "images").rglob("*.image")
        for scan in (table.new_scan(), table.new_scan().with_mode("session")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert await scanned(scan) == before
        assert read_from(server) == {"now": 1, "image": 2}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_scans_beside_writes_are_of_one_state(tmp_path: Path, seed: int) -> None:
    """Images are made and scanned while rows are written: each scan shows what the log says, as of its offset."""
    rng = random.Random(seed)
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        (offsets,) = await table.offsets()
        states = {offsets.end_offset: dict(zip(range(ROWS), (0.25 * n for n in range(ROWS)), strict=True))}

        async def write() -> None:
            for round_ in range(12):
                state = dict(states[max(states)])
                ids = sorted(rng.sample(range(-50, ROWS + 50), 40))
                if round_ % 3 == 2:
                    await table.delete([(number,) for number in ids])
                    for number in ids:
                        state.pop(number, None)
                else:
                    await table.write(
                        pa.table({"id": ids, "item": ["new"] * 40, "price": [float(round_)] * 40})
                    )
                    state.update(dict.fromkeys(ids, float(round_)))
                states[(await table.offsets())[0].end_offset] = state

        found: list[tuple[int | None, dict[int, float]]] = []

        async def scan() -> None:
            for turn in range(5):
                if turn % 2 == 0:
                    await client.make_images("orders")
                async with table.new_scan().execute() as batches:
                    rows = pa.Table.from_batches([batch async for batch in batches])
                    offset = batches.statistics().buckets[0].log_offset
                ids = rows.column("id").to_pylist()
                assert ids == sorted(ids)
                found.append((offset, dict(zip(ids, rows.column("price").to_pylist(), strict=True))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(scan)
        for offset, rows in found:
            assert offset is not None
            assert rows == states[offset]
        assert read_from(server)["image"] >= 4


async def test_an_idle_bucket_closes_its_image_too(tmp_path: Path) -> None:
    """Its next use opens it again."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        before = await scanned(table.new_scan())
        await client.make_images("orders")
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        bucket.snapshots.clear()
        await bucket.close_idle(0)
        assert (bucket.is_open, server.statistics().images) == (False, 0)
        assert await scanned(table.new_scan()) == before
        assert (read_from(server)["image"], server.statistics().images) == (1, 1)


async def test_a_bucket_that_stays_open_keeps_its_image(tmp_path: Path) -> None:
    """Storage that something holds open does not close, and scans go on reading the image."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client)
        await client.make_images("orders")
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        bucket.snapshots.clear()
        reader = bucket.storage.open_reader()
        await bucket.close_unused()
        reader.close()
        assert (bucket.is_open, server.statistics().images) == (True, 1)
        await scanned(table.new_scan())
        assert read_from(server) == {"image": 1}


async def test_dropped_images_are_gone(tmp_path: Path) -> None:
    """By themselves, and with their table; a scan goes on without."""
    async with serving(tmp_path / "data") as (server, client):
        table = await orders(client, buckets=2)
        await client.make_images("orders")
        assert (await client.drop_images("orders", bucket=1), await client.drop_images("orders")) == (1, 1)
        assert await client.drop_images("orders") == 0
        assert (await scanned(table.new_scan())).table.num_rows == ROWS
        assert set(read_from(server)) == {"now"}
        await client.make_images("orders", bucket=0)
        assert [each.bucket for each in await client.list_images("orders")] == [0]
        await client.drop_table("orders")
        assert not list((tmp_path / "data" / "images").iterdir())
        with pytest.raises(TableNotFound):
            await client.make_images("orders")


async def test_images_have_bounds(tmp_path: Path) -> None:
    """One that would take more disk than images may is refused, and leaves nothing behind."""
    async with serving(tmp_path / "data", replace(CONFIG, image_disk_bytes_max=300_000)) as (_, client):
        await orders(client)
        with pytest.raises(DiskFull, match="image_disk_bytes_max"):
            await client.make_images("orders")
        assert await client.list_images("orders") == []
    assert not [path for path in (tmp_path / "data" / "images").rglob("*") if path.is_file()]


async def test_a_store_in_memory_has_no_images() -> None:
    """It says so."""
    async with open_client(MemoryStore()) as (client, _):
        await orders(client)
        with pytest.raises(ArgumentInvalid, match="in memory"):
            await client.make_images("orders")


async def test_images_are_for_administrators(tmp_path: Path) -> None:
    """Others may see them at most."""
    token = make_token()
    rights = f'[principals.anna]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\nwrite = ["*"]\n'
    async with (
        open_server(tmp_path / "data", config=CONFIG, credentials=Credentials.parse(rights)) as server,
        scanner.connect(f"127.0.0.1:{server.port}", token=token, insecure_token=True) as client,
    ):
        for call in (client.make_images, client.drop_images):
            with pytest.raises(PermissionDenied):
                await call("orders")
