"""Pages over real sockets: every size gives the same rows, the same token the same page; isolation, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    OffsetOutOfRange,
    SnapshotLost,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.storage.interface import Mutation
from tests.support.pages import CONFIG, MODELS, PAGE, ROWS, TABLE, Pages, Stored, shake
from tests.support.scans import (
    failure,
    filled_store,
    open_scan,
    sample,
    serving,
    stored_digest,
    write,
    write_request,
)

if TYPE_CHECKING:
    from scanner.wire.batches import ScanPage

pytestmark = pytest.mark.socket

every_model = pytest.mark.parametrize("model", MODELS)
isolated_models = pytest.mark.parametrize("model", ["token", "asof"])


@every_model
async def test_pages_deliver_every_row_and_then_end(store: Stored, model: str) -> None:
    """All rows, once, in pages that are full, by any store; rows and digest with the last."""
    async with serving(store, CONFIG) as (server, client):
        scan = Pages(client, model)
        first = await scan.next()
        assert server.statistics().page_snapshots_kept == (model == "token")
        assert server.statistics().iterators_open == (model == "token")
        await scan.pull_all()
        assert server.statistics().page_snapshots_kept == 0

    assert scan.table().equals(TABLE)
    assert first.fields.log_offset == ROWS
    for page in scan.pages[:-1]:
        assert 0.8 * PAGE < len(page.payload) <= PAGE
    assert not any(page.fields.arrow_schema for page in scan.pages[1:])
    assert scan.pages[-1].fields.rows == ROWS
    assert scan.digest == stored_digest(filled_store(0), range(ROWS))


@every_model
@pytest.mark.parametrize("page_bytes", [1, 100, 777, 20_000, 2**32 - 1])
async def test_every_page_size_delivers_the_same(model: str, page_bytes: int) -> None:
    """However the rows are cut, they and the digest are those of a push scan; a page has a row at least."""
    rows = 60 if page_bytes <= 100 else ROWS
    async with serving(filled_store(rows), CONFIG) as (_, client):
        scan = Pages(client, model, page_bytes=page_bytes)
        await scan.pull_all()
        async with open_scan(client, window_only=True) as push:
            await push.receive_all()

    assert scan.table().equals(push.table())
    assert push.end is not None
    assert scan.digest == push.end.digest
    if page_bytes == 1:
        assert [each.num_rows for each in scan.batches] == [1] * rows


@every_model
async def test_an_oversized_page_is_clamped(model: str) -> None:
    """A page above the server's cap is cut there, not refused."""
    config = ScannerConfig(block_rows_max=100, session_page_bytes_max=50_000)
    async with serving(filled_store(ROWS), config) as (_, client):
        scan = Pages(client, model, page_bytes=100_000_000)
        page = await scan.next()
        await scan.pull_all()

    assert 40_000 < len(page.payload) <= 50_000
    assert scan.rows == ROWS


@every_model
async def test_filter_projection_and_limit(model: str) -> None:
    """A page continues a query with everything that it asks for; the limit is exact, across pages."""
    query = pb.ScanQuery(table="items", columns=["price", "id"], row_limit=501)
    query.filter.add(
        column="id", operator=pb.Predicate.OPERATOR_GREATER_OR_EQUAL, literals=[pb.Literal(integer=1000)]
    )
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        scan = Pages(client, model, query)
        await scan.pull_all()
        assert server.statistics().page_snapshots_kept == 0

    assert scan.table().equals(TABLE.slice(1000, 501).select(["price", "id"]))
    assert scan.digest == stored_digest(store, range(1501))


@every_model
async def test_an_empty_bucket_takes_no_slot(model: str) -> None:
    """One page without rows, with the log offset, and nothing is kept."""
    async with serving(filled_store(0), CONFIG) as (server, client):
        for _ in range(5):
            page = await Pages(client, model).next()
            assert server.statistics().page_snapshots_kept == 0

    assert (page.fields.log_offset, page.fields.row_count, page.fields.has_more_results) == (0, 0, False)
    assert (page.fields.rows, page.fields.digest) == (0, 0)


@every_model
async def test_a_page_is_idempotent(model: str) -> None:
    """The same token gives the same page, byte for byte, before and after others; nothing is destroyed by that."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        scan = Pages(client, model)
        await scan.next()
        first, token = scan.pages[0], scan.token
        page = await scan.next()
        for _ in range(3):
            assert await scan.call(resume_token=token) == page
        await scan.next()
        assert await scan.call(resume_token=token) == page
        again = await scan.call(resume_token=b"")
        await Pages(client, model, token=again.fields.resume_token).call(close=True)
        await scan.pull_all()

    assert (again.payload, again.fields.log_offset) == (first.payload, first.fields.log_offset)
    assert scan.table().equals(TABLE)


@every_model
async def test_duplicate_pages_at_once(store: Stored, model: str) -> None:
    """Of many requests with one token at the same time each is answered with the same page, the last page's too."""
    pages: list[ScanPage] = []
    async with serving(store, replace(CONFIG, snapshot_linger_s=10)) as (_, client):
        scan = Pages(client, model, page_bytes=20_000)

        async def repeat() -> None:
            pages.append(await scan.call())

        await scan.next()
        while scan.token:
            pages.clear()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(repeat)
            assert all(page == pages[0] for page in pages)
            await scan.next()

    assert scan.table().equals(TABLE)


@isolated_models
async def test_pages_are_of_one_state(store: Stored, model: str) -> None:
    """Rows, offset and digest are those of the first page's state, whatever is written between the pages."""
    async with serving(store, CONFIG) as (_, client):
        scan = Pages(client, model)
        await scan.next()
        await shake(client)
        for _ in range(3):
            await scan.next()
        await shake(client)
        await scan.pull_all()

    assert scan.table().equals(TABLE)
    assert {page.fields.log_offset for page in scan.pages} == {ROWS}
    assert scan.digest == stored_digest(filled_store(0), range(ROWS))


async def test_a_cursor_is_not_isolated(store: Stored) -> None:
    """Each page is as of when it is asked for: later writes show, and each page says of which state it is."""
    async with serving(store, CONFIG) as (_, client):
        scan = Pages(client, "cursor")
        first = await scan.next()
        await shake(client)
        await scan.pull_all()

    offsets = [page.fields.log_offset for page in scan.pages]
    assert offsets[0] == ROWS < offsets[1] == offsets[-1]
    head = first.fields.row_count
    later = [row for row in range(head, ROWS + 50) if row != ROWS - 1 and (row % 30 or row >= ROWS)]
    assert scan.ids == [*range(head), *later]


async def test_a_cursor_repeats_of_the_state_of_now(store: Stored) -> None:
    """A page that is asked for again shows what was written meanwhile: what a lost response can cost."""
    async with serving(store, CONFIG) as (_, client):
        scan = Pages(client, "cursor")
        await scan.next()
        page = await scan.call()
        await shake(client)
        again = await scan.call()

    assert again.payload != page.payload
    assert again.fields.row_ordinal == page.fields.row_ordinal


async def test_a_past_state_by_pages(store: Stored) -> None:
    """`as_of` reads what was there at an offset of the retained log; an offset that never was is out of range."""
    async with serving(store, CONFIG) as (_, client):
        await shake(client)
        scan = Pages(client, "asof")
        first = await scan.next(as_of=ROWS // 2)
        await scan.next(as_of=ROWS // 2)
        error = await failure(lambda: scan.call(as_of=ROWS))
        await scan.pull_all()
        beyond = await failure(lambda: Pages(client, "asof").call(as_of=1_000_000))

    assert scan.table().equals(TABLE.slice(0, ROWS // 2))
    assert first.fields.log_offset == ROWS // 2
    assert isinstance(error, ArgumentInvalid)
    assert isinstance(beyond, OffsetOutOfRange)


async def test_asof_is_lost_with_its_log() -> None:
    """When the log does not reach back any more, the page says so and how far it does."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        scan = Pages(client, "asof")
        await scan.next()
        await shake(client)
        while server.statistics().snapshots_open:  # the next page could have that of the first
            await trio.lowlevel.checkpoint()
        bucket = store.bucket("items", 0)
        bucket.truncate_log(bucket.log_end)
        error = await failure(scan.next)

    assert isinstance(error, SnapshotLost)
    assert error.oldest_offset == bucket.log_end


async def test_a_token_needs_no_log() -> None:
    """What the server keeps is a snapshot: the scan goes on when the log is gone."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (_, client):
        scan = Pages(client, "token")
        await scan.next()
        await shake(client)
        bucket = store.bucket("items", 0)
        bucket.truncate_log(bucket.log_end)
        await scan.pull_all()

    assert scan.table().equals(TABLE)


@every_model
async def test_a_read_error_fails_the_page(model: str) -> None:
    """A page that cannot be read is DATA_CORRUPTED, also when asked for again; the pages before it can still be had."""
    store = filled_store(ROWS)
    key = store.key_codec("items").encode_batch(sample([ROWS]))[0]
    store.bucket("items", 0).commit([[Mutation(key, b"not a row")]])
    async with serving(store, CONFIG) as (_, client):
        scan = Pages(client, model)

        async def pull_on() -> None:
            while True:
                await scan.next()

        errors = [await failure(pull_on), await failure(scan.next)]
        before = await scan.call(resume_token=scan.pages[-2].fields.resume_token)
        await scan.close()

    assert before == scan.pages[-1]
    assert [type(error) for error in errors] == [DataCorrupted, DataCorrupted]


@every_model
async def test_a_filter_that_drops_everything_returns_in_time(model: str) -> None:
    """A page has its time; though it found nothing by then, the next one begins behind what it read."""
    config = ScannerConfig(block_rows_max=1, session_page_time_max_s=0.000_001)
    nothing = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])
    async with serving(filled_store(50), config) as (_, client):
        scan = Pages(client, model, pb.ScanQuery(table="items", filter=[nothing]))
        page = await scan.next()
        await write(client, write_request(sample([17])))  # so that asof has something to undo
        await scan.pull_all()

    assert (page.fields.row_count, page.fields.has_more_results) == (0, True)
    assert (scan.pages[-1].fields.rows, len(scan.pages)) == (0, 51)
