"""Pages over real sockets: every size gives the same rows, the same token the same page; isolation, or none."""

from __future__ import annotations

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
from scanner.storage.lineage import Lineage
from tests.support.models import ASOF, CURSOR, TOKEN, Model, Page, paged_models, pull_models, pull_wire
from tests.support.pages import CONFIG, ROWS, TABLE, Stored, kept, shake
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

pytestmark = pytest.mark.socket

isolated_models = pytest.mark.parametrize("model", [TOKEN, ASOF], ids=str)


@pull_models
@pytest.mark.parametrize("page_bytes", [1, 100, 777, 20_000])
async def test_every_page_size_delivers_the_same(model: Model, page_bytes: int) -> None:
    """However the rows are cut, they and the digest are those of a push scan."""
    async with serving(filled_store(60 if page_bytes <= 100 else 600), CONFIG) as (_, client):
        scan = pull_wire(model, client, page_bytes=page_bytes)
        await scan.read_all()
        async with open_scan(client, window_only=True) as push:
            await push.receive_all()

    assert scan.table().equals(push.table())
    assert push.end is not None
    assert scan.pages[-1].digest == push.end.digest


@pull_models
async def test_filter_projection_and_limit(model: Model) -> None:
    """A page continues a query with everything that it asks for; the limit is exact, across pages."""
    query = pb.ScanQuery(table="items", columns=["price", "id"], row_limit=501)
    query.filter.add(
        column="id", operator=pb.Predicate.OPERATOR_GREATER_OR_EQUAL, literals=[pb.Literal(integer=1000)]
    )
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(model, client, query)
        await scan.read_all()
        assert kept(server) == 0

    assert scan.table().equals(TABLE.slice(1000, 501).select(["price", "id"]))
    assert scan.pages[-1].digest == stored_digest(store, range(1501))


@pull_models
async def test_an_empty_bucket_takes_no_slot(model: Model) -> None:
    """One page without rows, with the log offset, and nothing is kept."""
    async with serving(filled_store(0), CONFIG) as (server, client):
        for _ in range(5):
            page = await pull_wire(model, client).next()
            assert kept(server) == 0

    assert page == Page(ordinal=0, log_offset=0, more=False, rows=0, digest=0)


@paged_models
async def test_a_page_is_idempotent(model: Model) -> None:
    """The same token gives the same page, byte for byte, before and after others; nothing is destroyed by that."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        scan = pull_wire(model, client)
        await scan.next()
        first, token = scan.pages[0], scan.token
        page = await scan.next()
        for _ in range(3):
            assert await scan.call(token) == page
        await scan.next()
        assert await scan.call(token) == page
        again = await scan.call(b"")
        await scan.call(again.token, close=True)
        await scan.read_all()

    assert (again.payload, again.log_offset) == (first.payload, first.log_offset)
    assert scan.table().equals(TABLE)


@isolated_models
async def test_pages_are_of_one_state(store: Stored, model: Model) -> None:
    """Rows, offset and digest are those of the first page's state, whatever is written between the pages."""
    async with serving(store, CONFIG) as (_, client):
        scan = pull_wire(model, client)
        await scan.next()
        await shake(client)
        for _ in range(3):
            await scan.next()
        await shake(client)
        await scan.read_all()

    assert scan.table().equals(TABLE)
    assert {page.log_offset for page in scan.pages} == {ROWS}
    assert scan.pages[-1].digest == stored_digest(filled_store(0), range(ROWS))


async def test_a_cursor_is_not_isolated(store: Stored) -> None:
    """Each page is as of when it is asked for: later writes show, and each page says of which state it is."""
    async with serving(store, CONFIG) as (_, client):
        scan = pull_wire(CURSOR, client)
        first = await scan.next()
        await shake(client)
        await scan.read_all()

    offsets = [page.log_offset for page in scan.pages]
    assert offsets[0] == ROWS < offsets[1] == offsets[-1]
    head = first.row_count
    later = [row for row in range(head, ROWS + 50) if row != ROWS - 1 and (row % 30 or row >= ROWS)]
    assert scan.ids == [*range(head), *later]


async def test_a_cursor_repeats_of_the_state_of_now(store: Stored) -> None:
    """A page that is asked for again shows what was written meanwhile: what a lost response can cost."""
    async with serving(store, CONFIG) as (_, client):
        scan = pull_wire(CURSOR, client)
        await scan.next()
        page = await scan.call()
        await shake(client)
        again = await scan.call()

    assert again.payload != page.payload
    assert again.ordinal == page.ordinal


async def test_a_past_state_by_pages(store: Stored) -> None:
    """`as_of` reads what was there at an offset of the retained log; an offset that never was is out of range."""
    async with serving(store, CONFIG) as (_, client):
        await shake(client)
        scan = pull_wire(ASOF, client)
        first = await scan.call(as_of=ROWS // 2)
        await scan.open(first.token)
        assert await scan.call(as_of=ROWS // 2) == await scan.next()
        error = await failure(lambda: scan.call(as_of=ROWS))
        await scan.read_all()
        beyond = await failure(lambda: pull_wire(ASOF, client).call(as_of=1_000_000))

    assert scan.table().equals(TABLE.slice(first.row_count, ROWS // 2 - first.row_count))
    assert first.log_offset == ROWS // 2
    assert isinstance(error, ArgumentInvalid)
    assert isinstance(beyond, OffsetOutOfRange)


async def test_a_past_state_of_another_history_is_lost() -> None:
    """An offset says what the rows are only with the history of its bucket, from the first page to the last."""
    store = filled_store(ROWS)
    bucket = store.bucket("items", 0)
    history = bucket.lineage.history_of(ROWS)
    async with serving(store, CONFIG) as (_, client):
        other = await failure(lambda: pull_wire(ASOF, client).call(as_of=ROWS, as_of_history=b"h" * 16))
        scan = pull_wire(ASOF, client)
        first = await scan.call(as_of=ROWS, as_of_history=history)
        bucket.contents.lineage = Lineage().begin(b"h" * 16, 0, 0)
        restored = await failure(lambda: scan.call(first.token))

    assert isinstance(other, SnapshotLost)
    assert isinstance(restored, SnapshotLost)
    assert (first.log_offset, first.more) == (ROWS, True)


async def test_asof_is_lost_with_its_log() -> None:
    """When the log does not reach back any more, the page says so and how far it does."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(ASOF, client)
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
        scan = pull_wire(TOKEN, client)
        await scan.next()
        await shake(client)
        bucket = store.bucket("items", 0)
        bucket.truncate_log(bucket.log_end)
        await scan.read_all()

    assert scan.table().equals(TABLE)


@pull_models
async def test_a_read_error_fails_the_page(model: Model) -> None:
    """A page that cannot be read is DATA_CORRUPTED, also when asked for again; the pages before it can still be had."""
    store = filled_store(ROWS)
    key = store.key_codec("items").encode_batch(sample([ROWS]))[0]
    store.bucket("items", 0).commit([[Mutation(key, b"not a row")]])
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(model, client)
        errors = [await failure(scan.read_all), await failure(scan.next)]
        if model.by_pages:
            assert await scan.call(scan.pages[-2].token) == scan.pages[-1]
            await scan.release()
        assert kept(server) == 0

    assert [type(error) for error in errors] == [DataCorrupted, DataCorrupted]


@pull_models
async def test_a_filter_that_drops_everything_returns_in_time(model: Model) -> None:
    """A page has its time; though it found nothing by then, the next one begins behind what it read."""
    config = ScannerConfig(block_rows_max=1, session_page_time_max_s=0.000_001)
    nothing = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])
    async with serving(filled_store(50), config) as (_, client):
        scan = pull_wire(model, client, pb.ScanQuery(table="items", filter=[nothing]))
        page = await scan.next()
        await write(client, write_request(sample([17])))  # so that asof has something to undo
        await scan.read_all()

    assert (page.row_count, page.more) == (0, True)
    assert (scan.pages[-1].rows, len(scan.pages)) == (0, 50)
