"""What scans by page, and sessions, keep at the server, for how long, who may have it, and what is freed when."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import trio
import trio.testing

import scanner.server.pull.pages
from scanner.errors import (
    ArgumentInvalid,
    ColumnNotFound,
    DataCorrupted,
    ResumeTokenInvalid,
    ScannerError,
    SequenceInvalid,
    SessionUnknown,
    SnapshotLost,
    StoreFailed,
    TableNotFound,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from scanner.storage.interface import Mutation
from scanner.wire import methods
from scanner.wire.batches import decode_scan_page
from tests.support.maintenance import refuse
from tests.support.models import (
    ASOF,
    CURSOR,
    PAGE_BYTES,
    PAGED,
    SESSION_MODEL,
    TOKEN,
    Model,
    paged_models,
    pull_models,
    pull_wire,
)
from tests.support.pages import CONFIG, ROWS, TABLE, Stored, kept, shake
from tests.support.scans import (
    TABLES,
    create_table,
    description,
    failure,
    filled_store,
    mutations,
    open_scan,
    released,
    sample,
    serving,
    write,
    write_request,
)
from transport import connect

pytestmark = pytest.mark.socket

ITEMS = pb.ScanQuery(table="items")

kept_models = pytest.mark.parametrize("model", [SESSION_MODEL, TOKEN], ids=str)


@pytest.mark.parametrize("writes", [False, True])
async def test_last_page_lingers(writes: bool) -> None:
    """A last page whose response was lost comes again while its snapshot lingers; then its scan is lost."""
    for linger_s in (5, 0):
        config = ScannerConfig(block_rows_max=100, snapshot_linger_s=linger_s)
        async with serving(filled_store(ROWS), config) as (server, client):
            scan = pull_wire(TOKEN, client, page_bytes=50_000)
            while scan.token or not scan.pages:
                token = scan.token
                await scan.next()
            if writes:
                await shake(client)
            assert kept(server) == 0
            if linger_s:
                for _ in range(3):
                    assert await scan.call(token) == scan.pages[-1]
            else:
                error = await failure(lambda: scan.call(token))  # noqa: B023
                assert isinstance(error, SnapshotLost)


async def test_close_lets_go(store: Stored) -> None:
    """Closing frees slot and snapshot; again, or of what is gone, it is no error; afterwards the scan is lost."""
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(TOKEN, client)
        await scan.next()
        await scan.release()
        assert server.statistics().iterators_open == 0
        await scan.release()
        error = await failure(scan.next)
        await client.call(
            TABLES + "DropTable", tables_pb2.DropTableRequest(table="items").SerializeToString()
        )
        await scan.release()

    assert isinstance(error, SnapshotLost)
    assert "closed" in error.message


@pytest.mark.parametrize("model", [CURSOR, ASOF], ids=str)
async def test_close_of_what_is_not_kept(model: Model) -> None:
    """The other models have nothing to close, and a close does them no harm."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        scan = pull_wire(model, client)
        await scan.next()
        await scan.release()
        await scan.read_all()

    assert len(scan.ids) == ROWS


async def test_close_while_a_page_is_being_made() -> None:
    """The page is made to its end, whatever it is asked for beside it; then the snapshot is free."""
    config = ScannerConfig(block_rows_max=1, snapshot_linger_s=0)
    nothing = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=2)])
    async with serving(filled_store(500), config) as (server, client):
        scan = pull_wire(TOKEN, client, pb.ScanQuery(table="items", filter=[nothing]), page_bytes=1)
        await scan.next()
        await scan.next()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scan.next)
            while server.statistics().iterators_open < 2:
                await trio.lowlevel.checkpoint()
            await scan.release()
        await released(server)

    assert scan.pages[-1].rows == 2


async def test_an_idle_token_expires(mock_clock: trio.testing.MockClock) -> None:
    """After its time without a page the snapshot goes; then it is SNAPSHOT_LOST, also where the log reaches back."""
    config = ScannerConfig(block_rows_max=100, page_snapshot_ttl_s=6.0, session_sweep_interval_s=1.0)
    async with serving(filled_store(ROWS), config) as (server, client):
        scan, swept = pull_wire(TOKEN, client), pull_wire(TOKEN, client)
        await scan.next()
        mock_clock.jump(5)
        await scan.next()
        await swept.next()
        mock_clock.jump(5)
        await scan.next()
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked()
        assert kept(server) == 1
        error = await failure(swept.next)
        mock_clock.jump(5)
        found = await failure(scan.next)

    assert isinstance(error, SnapshotLost)
    assert error.oldest_offset == 0
    assert isinstance(found, SnapshotLost)
    assert "6 s" in found.message


async def test_refused_requests_do_not_extend_a_life(mock_clock: trio.testing.MockClock) -> None:
    """A malformed request, or one with another query, is no page."""
    config = ScannerConfig(block_rows_max=100, page_snapshot_ttl_s=6.0, session_sweep_interval_s=6.0)
    async with serving(filled_store(ROWS), config) as (_, client):
        scan = pull_wire(TOKEN, client)
        await scan.next()
        mock_clock.jump(5)
        await failure(lambda: scan.call(batch_size_bytes=0))
        await failure(lambda: scan.call(query=pb.ScanQuery(table="items", row_limit=1)))
        mock_clock.jump(1)
        error = await failure(scan.next)

    assert isinstance(error, SnapshotLost)


async def test_a_page_by_token_waits_for_no_commit() -> None:
    """The snapshot is there: the next page comes while a commit runs, and so does its repetition."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        scan = pull_wire(TOKEN, client)
        await scan.next()
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        async with bucket.between_commits():  # holds a commit up, and what waits for one
            await scan.call()
            await scan.read_all()

    assert scan.table().equals(TABLE)


@kept_models
async def test_scans_of_many_buckets_are_capped_together(model: Model) -> None:
    """The server's cap counts the scans of all buckets."""
    store = filled_store(ROWS)
    store.create_table(description("other", buckets=3))
    for bucket in range(3):
        store.bucket("other", bucket).commit([mutations(store, "other", sample(range(ROWS)))])
    async with serving(store, CONFIG) as (_, client):
        scans = [pull_wire(model, client, pb.ScanQuery(table="other", bucket=bucket)) for bucket in range(3)]
        for scan in scans:
            await scan.next()
        error = await failure(pull_wire(model, client).next)
        for scan in scans:
            await scan.release()

    assert isinstance(error, TooManyScans)
    assert "server" in error.message


@pull_models
async def test_a_failed_page_holds_nothing(model: Model) -> None:
    """However often a first page fails, the caps are not used up."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        for _ in range(5):
            scan = pull_wire(model, client, pb.ScanQuery(table="items", columns=["colour"]))
            assert isinstance(await failure(scan.next), ColumnNotFound)
        assert kept(server) == 0
        assert server.statistics().iterators_open == 0


async def test_of_a_session_that_failed_the_error_alone_is_remembered() -> None:
    """And not what had the error in hand: a traceback knows the scan, and the page before."""
    store = filled_store(ROWS)
    key = store.key_codec("items").encode_batch(sample([ROWS]))[0]
    store.bucket("items", 0).commit([[Mutation(key, b"not a row")]])
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(SESSION_MODEL, client)
        await scan.next()
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        (left,) = map(weakref.ref, bucket.open_scans)
        for _ in range(2):
            assert isinstance(await failure(scan.read_all), DataCorrupted)
        gc.collect()
        assert left() is None


async def test_a_first_page_that_is_continued_lives_on() -> None:
    """Its snapshot is there, whatever becomes of the stream that it came by, which nobody half-closed."""
    request = pb.ScanPageRequest(model=pb.PAGE_MODEL_TOKEN, query=ITEMS, batch_size_bytes=PAGE_BYTES)
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        async with client.open_stream(methods.SCAN_PAGE) as stream:
            await stream.send(request.SerializeToString())
            token = decode_scan_page(await stream.receive()).fields.resume_token
            scan = pull_wire(TOKEN, client)
            await scan.open(token)
        await scan.call(token)
        assert kept(server) == 1
        await scan.release()


@pull_models
async def test_dropping_the_table_ends_its_scans_with_a_typed_error(store: Stored, model: Model) -> None:
    """A page after the drop says that the table is gone; one of a new table of that name, that it is another's."""
    async with serving(store, CONFIG) as (server, client):
        scan = pull_wire(model, client)
        await scan.next()
        await client.call(
            TABLES + "DropTable", tables_pb2.DropTableRequest(table="items").SerializeToString()
        )
        assert kept(server) == 0
        gone = await failure(scan.next)
        await create_table(client, description())
        another = await failure(scan.next)

    assert isinstance(gone, TableNotFound)
    assert isinstance(another, ResumeTokenInvalid if model.by_pages else TableNotFound)


async def test_a_last_page_has_its_rows_or_fails(store: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where storage is opened anew, after a failed write, when its last rows are decoded and not taken yet."""
    async with serving(store, ScannerConfig()) as (server, client):
        scan = pull_wire(TOKEN, client, page_bytes=10_000)
        await scan.next()
        ((_, _, bucket),) = server._services.catalog.open_buckets()

        async def open_anew() -> None:
            if any(each.source.pending_bytes and not each.source.wants_step for each in bucket.open_scans):
                async with bucket._commits:
                    await bucket._reopen(writable=True)

        monkeypatch.setattr(scanner.server.pull.pages, "pass_turn", open_anew)
        error = await failure(scan.read_all)

    assert bucket.storage_openings == 1
    assert isinstance(error, SnapshotLost)


async def test_a_snapshot_that_a_failed_write_has_taken_keeps_no_slot() -> None:
    """Storage was opened anew: who began then is told at the next page, and others need not wait for its time."""
    config = ScannerConfig(block_rows_max=100, page_snapshots_per_bucket_max=1)
    async with serving(filled_store(ROWS), config) as (server, client):
        lost = pull_wire(TOKEN, client, page_bytes=10_000)
        await lost.next()
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        async with bucket._commits:
            await bucket._reopen(writable=True)
        assert server.statistics().scans_parked == 0, "no push scan is"
        again = pull_wire(TOKEN, client, page_bytes=10_000)
        await again.next()
        assert isinstance(await failure(lost.next), SnapshotLost)
        await again.read_all()
        assert kept(server) == 0


async def test_a_session_without_room_to_go_on_is_there_still() -> None:
    """Its storage was opened anew, and others hold all snapshots: the same call succeeds once one has ended."""
    config = ScannerConfig(block_rows_max=100, snapshots_max=1, snapshot_linger_s=0)
    async with serving(filled_store(ROWS), config) as (server, client):
        scan = pull_wire(SESSION_MODEL, client)
        await scan.next()
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        async with bucket._commits:
            await bucket._reopen(writable=True)
        await write(client, write_request(sample([ROWS])))
        other = pull_wire(TOKEN, client)
        await other.next()
        await shake(client)
        assert isinstance(await failure(scan.next), TooManyScans)
        await other.release()
        await scan.read_all()
        assert scan.table() == TABLE
        assert kept(server) == 0


async def test_a_page_beside_the_drop_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when a drop has ended its users until the table is gone, a scan by token is told of the drop."""
    store = filled_store(ROWS)

    monkeypatch.setattr(store, "drop_table", refuse)
    async with serving(store, CONFIG) as (_, client):
        scan = pull_wire(TOKEN, client)
        await scan.next()
        drop = tables_pb2.DropTableRequest(table="items").SerializeToString()
        stuck = await failure(lambda: client.call(TABLES + "DropTable", drop))
        gone = await failure(scan.next)

    assert isinstance(stuck, StoreFailed)
    assert isinstance(gone, TableNotFound)


@paged_models
async def test_a_token_of_another_scan_is_refused(model: Model) -> None:
    """Damaged, of another query, bucket, model, or of a push scan: RESUME_TOKEN_INVALID; the scan itself goes on."""
    store = filled_store(ROWS)
    store.create_table(description("other"))
    async with serving(store, CONFIG) as (_, client):
        scan = pull_wire(model, client)
        await scan.next()
        async with open_scan(client, credit=1) as push:
            while not push.batches:
                await push.receive()
        others = [other.page_model for other in PAGED if other is not model]
        wrong: list[dict[str, object]] = [
            {"resume_token": push.tokens[-1]},
            {"resume_token": scan.token[:-1]},
            {"resume_token": b"x"},
            {"query": pb.ScanQuery(table="items", row_limit=5)},
            {"query": pb.ScanQuery(table="items", columns=["id"])},
            {"query": pb.ScanQuery(table="items", bucket=1)},
            {"query": pb.ScanQuery(table="other")},
            {"model": others[0]},
            {"model": others[1]},
            {"close": True, "resume_token": b"x"},
            {"close": True, "model": others[0]},
        ]
        errors = [await failure(lambda fields=fields: scan.call(**fields)) for fields in wrong]  # type: ignore[misc]
        await scan.read_all()

    assert [type(error) for error in errors] == [ResumeTokenInvalid] * len(wrong)
    assert len(scan.ids) == ROWS


@paged_models
async def test_a_push_scan_takes_no_page_token(model: Model) -> None:
    """A page's token is refused where a push scan is opened."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        scan = pull_wire(model, client)
        await scan.next()

        async def push() -> None:
            async with open_scan(client, credit=1, resume_token=scan.token) as opened:
                await opened.receive_all()

        error = await failure(push)
        await scan.release()

    assert isinstance(error, ResumeTokenInvalid)


@pytest.mark.parametrize(
    ("model", "fields", "kind", "says"),
    [
        (SESSION_MODEL, {}, ArgumentInvalid, "either"),
        (SESSION_MODEL, {"query": ITEMS, "scanner_id": b"x"}, ArgumentInvalid, "either"),
        (SESSION_MODEL, {"query": ITEMS, "batch_size_bytes": 0}, ArgumentInvalid, "above 0"),
        (SESSION_MODEL, {"query": ITEMS, "call_seq_id": 1}, SequenceInvalid, "call 0"),
        (SESSION_MODEL, {"query": ITEMS, "close": True}, ArgumentInvalid, "scanner_id"),
        (SESSION_MODEL, {"query": pb.ScanQuery(table="nothing")}, TableNotFound, "items"),
        (SESSION_MODEL, {"scanner_id": b"x", "call_seq_id": 1}, SessionUnknown, "78"),
        (TOKEN, {"model": pb.PAGE_MODEL_UNSPECIFIED}, ArgumentInvalid, "PAGE_MODEL_TOKEN"),
        (TOKEN, {"model": 77}, ArgumentInvalid, "PAGE_MODEL_TOKEN"),
        (TOKEN, {"batch_size_bytes": 0}, ArgumentInvalid, "above 0"),
        (TOKEN, {"close": True}, ArgumentInvalid, "resume_token"),
        (TOKEN, {"as_of": 5}, ArgumentInvalid, "ASOF"),
        (TOKEN, {"model": pb.PAGE_MODEL_CURSOR, "as_of": 5}, ArgumentInvalid, "ASOF"),
        (TOKEN, {"query": pb.ScanQuery()}, ArgumentInvalid, "no table"),
        (TOKEN, {"query": pb.ScanQuery(table="nothing")}, TableNotFound, "items"),
    ],
    ids=str,
)
async def test_bad_requests_are_refused(
    model: Model, fields: dict[str, object], kind: type[ScannerError], says: str
) -> None:
    """A request that makes no sense gets its own error and leaves nothing."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        error = await failure(lambda: pull_wire(model, client).call(**fields))
        assert kept(server) == 0

    assert type(error) is kind
    assert says in error.message


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"batch_size_bytes": 0, "call_seq_id": 1}, ArgumentInvalid), ({"call_seq_id": 0}, SequenceInvalid)],
)
async def test_a_bad_continuation_harms_nothing(fields: dict[str, object], kind: type[ScannerError]) -> None:
    """After a refused call the session goes on where it was."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        session = pull_wire(SESSION_MODEL, client)
        await session.open()
        error = await failure(lambda: session.call(scanner_id=session.scanner_id, **fields))
        await session.read_all()

    assert type(error) is kind
    assert session.table().equals(TABLE)


@pytest.mark.rocks
async def test_a_restart_ends_token_and_nothing_else(tmp_path: Path) -> None:
    """What the server kept is gone with it; who has everything in the token goes on, in the same state if isolated."""
    async with serving(tmp_path, CONFIG) as (_, client):
        await create_table(client, description())
        await write(client, write_request(sample(range(ROWS))))
    scans = {}
    async with open_server(tmp_path, config=CONFIG) as server, connect(server.host, server.port) as client:
        for model in PAGED:
            scans[model] = pull_wire(model, client)
            await scans[model].next()
        await shake(client)
    async with serving(tmp_path, CONFIG) as (_, client):
        for scan in scans.values():
            scan.client = client
        error = await failure(scans[TOKEN].next)
        for model in (CURSOR, ASOF):
            await scans[model].read_all()

    assert isinstance(error, SnapshotLost)
    assert scans[ASOF].table().equals(TABLE)
    assert scans[CURSOR].pages[-1].log_offset > ROWS
