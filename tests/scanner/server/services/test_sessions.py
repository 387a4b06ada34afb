"""The session pull model over real sockets: pages, repetition, caps, TTL, and what is freed when."""

from __future__ import annotations

import pyarrow as pa
import pytest
import trio

import transport
from scanner.errors import (
    ArgumentInvalid,
    ColumnNotFound,
    DataCorrupted,
    ScannerError,
    SequenceInvalid,
    SessionExpired,
    SessionUnknown,
    TableNotFound,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.storage.interface import Mutation
from scanner.wire.batches import SessionPage, decode_session_page
from tests.support.scans import (
    SESSION,
    TABLES,
    description,
    failure,
    filled_store,
    mutations,
    open_scan,
    released,
    sample,
    serving,
    stored_digest,
)
from tests.support.sessions import PAGE, Session

pytestmark = pytest.mark.socket

ROWS = 3000
CONFIG = ScannerConfig(
    block_rows_max=100, sessions_per_bucket_max=2, sessions_max=3, session_sweep_interval_s=600.0
)


async def test_pages_deliver_every_row_and_then_end() -> None:
    """All rows, once, in pages that are full; rows and digest with the last; then the session is unknown."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        session = Session(client)
        first = await session.open()
        assert server.statistics().sessions_open == 1
        await session.pull_all()
        assert server.statistics().sessions_open == 0
        error = await failure(session.next)

    assert (first.fields.log_offset, first.fields.has_more_results) == (ROWS, True)
    assert session.table().equals(pa.Table.from_batches([sample(range(ROWS))]))
    for page in session.pages[:-1]:
        assert 0.8 * PAGE < len(page.payload) <= PAGE
        assert not page.fields.HasField("rows")
    for page in session.pages[1:]:
        assert not page.fields.HasField("log_offset")
        assert not page.fields.arrow_schema
    last = session.pages[-1].fields
    assert (last.rows, last.digest) == (ROWS, stored_digest(store, range(ROWS)))
    assert isinstance(error, SessionUnknown)


async def test_push_and_session_deliver_the_same() -> None:
    """Rows and digest of the two models are equal."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        session = Session(client)
        await session.open()
        await session.pull_all()
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()

    assert scan.table().equals(session.table())
    assert scan.end is not None
    assert scan.end.digest == session.pages[-1].fields.digest


async def test_an_empty_bucket_takes_no_slot() -> None:
    """One page without rows, with the log offset, and no session afterwards."""
    async with serving(filled_store(0), CONFIG) as (server, client):
        for _ in range(5):
            page = await Session(client).open()
            assert server.statistics().sessions_open == 0

    assert (page.fields.log_offset, page.fields.row_count, page.fields.has_more_results) == (0, 0, False)
    assert (page.fields.rows, page.fields.digest) == (0, 0)


async def test_later_writes_are_invisible() -> None:
    """Pages asked for later still show the state at the open."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (_, client):
        session = Session(client)
        await session.open()
        key = store.key_codec("items").encode_batch(sample([ROWS - 1]))[0]
        store.bucket("items", 0).commit(
            [[*mutations(store, "items", sample([ROWS, ROWS + 1])), Mutation(key, None)]]
        )
        await session.pull_all()

    assert session.table().column("id").to_pylist() == list(range(ROWS))


async def test_a_repeated_continuation_returns_the_same_page() -> None:
    """The page whose response was lost comes again, byte for byte, and nothing is skipped."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        session = Session(client)
        await session.open()
        page = await session.next()
        again = await session.call(scanner_id=session.id, call_seq_id=1)
        await session.pull_all()

    assert again.fields == page.fields
    assert again.payload == page.payload
    assert session.table().num_rows == ROWS


@pytest.mark.parametrize(("page_bytes", "rows"), [(1, 1), (100_000_000, ROWS)])
async def test_page_sizes_make_progress_and_are_clamped(page_bytes: int, rows: int) -> None:
    """A page smaller than a row has one row; one above the cap is clamped, not refused."""
    config = ScannerConfig(block_rows_max=100, session_page_bytes_max=50_000)
    async with serving(filled_store(ROWS), config) as (_, client):
        session = Session(client, page_bytes=page_bytes)
        await session.open()
        await session.next()

        if rows == 1:
            assert [each.num_rows for each in session.batches] == [1, 1]
        else:
            assert 40_000 < len(session.pages[0].payload) <= 50_000
        await session.close()


async def test_a_row_limit_is_exact() -> None:
    """Exactly as many rows as asked for come, across pages, with the digest of just these."""
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (_, client):
        session = Session(client, query=pb.ScanQuery(table="items", row_limit=777))
        await session.open()
        await session.pull_all()

    assert session.table().num_rows == 777
    assert session.pages[-1].fields.digest == stored_digest(store, range(777))


async def test_caps_refuse_the_next_open() -> None:
    """The session too many is refused, retriably; the count stays, and a close makes room."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        sessions = [Session(client), Session(client)]
        for session in sessions:
            await session.open()
        for _ in range(2):
            error = await failure(Session(client).open)
            assert isinstance(error, TooManyScans)
            assert error.retriable
            assert server.statistics().sessions_open == 2
        await sessions[0].close()
        await sessions[0].close()
        assert server.statistics().sessions_open == 1
        sessions[0] = Session(client)
        await sessions[0].open()
        for session in sessions:
            await session.close()


async def test_a_failed_open_holds_no_slot() -> None:
    """However often an open fails, the caps are not used up."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        for _ in range(5):
            session = Session(client, query=pb.ScanQuery(table="items", columns=["colour"]))
            assert isinstance(await failure(session.open), ColumnNotFound)
        assert server.statistics().sessions_open == 0
        session = Session(client)
        await session.open()
        await session.close()


@pytest.mark.parametrize("received", [False, True])
async def test_a_lost_open_response_leaks_nothing(received: bool) -> None:
    """A client that goes before it half-closes, with or without the response, leaves no session behind."""
    request = pb.ScanSessionRequest(query=pb.ScanQuery(table="items"), batch_size_bytes=PAGE)
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        async with client.open_stream(SESSION) as stream:
            await stream.send(request.SerializeToString())
            if received:
                await stream.receive()
                assert server.statistics().sessions_open == 1
        await released(server)
        assert server.statistics().sessions_open == 0


async def test_an_open_that_is_confirmed_lives_on() -> None:
    """A client that half-closes after the response has its session, whatever becomes of the stream."""
    request = pb.ScanSessionRequest(query=pb.ScanQuery(table="items"), batch_size_bytes=PAGE)
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        async with client.open_stream(SESSION) as stream:
            await stream.send(request.SerializeToString())
            page = decode_session_page(await stream.receive())
            await stream.send_end()
            assert await stream.receive() is None
        session = Session(client, id=page.fields.scanner_id)
        await session.call(scanner_id=session.id, call_seq_id=1)
        assert server.statistics().sessions_open == 1
        await session.close()


async def test_an_idle_session_is_swept() -> None:
    """The sweep frees an idle session without anybody asking for it; then it is expired, not unknown."""
    config = ScannerConfig(session_ttl_s=0.05, session_sweep_interval_s=0.01, block_rows_max=100)
    async with serving(filled_store(ROWS), config) as (server, client):
        session = Session(client)
        await session.open()
        await released(server)
        error = await failure(session.next)

    assert isinstance(error, SessionExpired)


async def test_concurrent_calls_have_one_winner() -> None:
    """Of calls at the same time each is answered with the page or told that the session is busy."""
    store = filled_store(ROWS)
    pages: list[SessionPage] = []
    refused: list[str] = []
    async with serving(store, CONFIG) as (_, client):
        session = Session(client)
        await session.open()

        async def race() -> None:
            try:
                pages.append(await session.call(scanner_id=session.id, call_seq_id=1))
            except transport.CallFailed as error:
                refused.append(error.status.name)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(race)
        assert len(pages) + len(refused) == 6
        assert len({bytes(page.payload) for page in pages}) == 1
        assert set(refused) <= {"ABORTED"}
        await session.next()
        await session.pull_all()

    assert session.table().num_rows == ROWS


async def test_dropping_the_table_ends_its_sessions_with_a_typed_error() -> None:
    """A continuation after the drop says that the table is gone."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        session = Session(client)
        await session.open()
        await client.call(
            TABLES + "DropTable", tables_pb2.DropTableRequest(table="items").SerializeToString()
        )
        assert server.statistics().sessions_open == 0
        error = await failure(session.next)

    assert isinstance(error, TableNotFound)
    assert "dropped" in error.message


async def test_a_read_error_fails_the_session_and_frees_it() -> None:
    """A page that cannot be read is DATA_CORRUPTED, also when asked for again."""
    store = filled_store(ROWS)
    key = store.key_codec("items").encode_batch(sample([ROWS]))[0]
    store.bucket("items", 0).commit([[Mutation(key, b"not a row")]])
    async with serving(store, CONFIG) as (server, client):
        session = Session(client)
        await session.open()

        async def pull_on() -> None:
            while True:
                await session.next()

        errors = [await failure(pull_on), await failure(session.next)]
        assert server.statistics().sessions_open == 0

    assert [type(error) for error in errors] == [DataCorrupted, DataCorrupted]


async def test_a_filter_that_drops_everything_returns_in_time() -> None:
    """A page has its time; what it found by then is sent, also if that is nothing."""
    config = ScannerConfig(block_rows_max=1, session_page_time_max_s=0.000_001)
    nothing = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])
    async with serving(filled_store(50), config) as (_, client):
        session = Session(client, query=pb.ScanQuery(table="items", filter=[nothing]))
        page = await session.open()
        await session.pull_all()

    assert (page.fields.row_count, page.fields.has_more_results) == (0, True)
    assert session.pages[-1].fields.rows == 0


async def test_sessions_of_many_buckets_are_capped_together() -> None:
    """The server's cap counts the sessions of all buckets."""
    store = filled_store(ROWS)
    other = description("other", buckets=3)
    store.create_table(other)
    for bucket in range(3):
        store.bucket("other", bucket).commit([mutations(store, "other", sample(range(ROWS)))])
    async with serving(store, CONFIG) as (_, client):
        sessions = [Session(client, query=pb.ScanQuery(table="other", bucket=bucket)) for bucket in range(3)]
        for session in sessions:
            await session.open()
        error = await failure(Session(client).open)
        for session in sessions:
            await session.close()

    assert isinstance(error, TooManyScans)
    assert "server" in error.message


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({}, ArgumentInvalid, "either"),
        ({"query": pb.ScanQuery(table="items"), "scanner_id": b"x"}, ArgumentInvalid, "either"),
        ({"query": pb.ScanQuery(table="items"), "batch_size_bytes": 0}, ArgumentInvalid, "above 0"),
        ({"query": pb.ScanQuery(table="items"), "call_seq_id": 1}, SequenceInvalid, "call 0"),
        ({"query": pb.ScanQuery(table="items"), "close": True}, ArgumentInvalid, "scanner_id"),
        ({"query": pb.ScanQuery(table="nothing")}, TableNotFound, "items"),
        ({"scanner_id": b"x", "call_seq_id": 1}, SessionUnknown, "78"),
    ],
    ids=str,
)
async def test_bad_requests_are_refused(
    fields: dict[str, object], kind: type[ScannerError], says: str
) -> None:
    """A request that makes no sense gets its own error and opens nothing."""
    async with serving(filled_store(ROWS), CONFIG) as (server, client):
        error = await failure(lambda: Session(client).call(**fields))
        assert server.statistics().sessions_open == 0

    assert type(error) is kind
    assert says in error.message


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"batch_size_bytes": 0, "call_seq_id": 1}, ArgumentInvalid),
        ({"call_seq_id": 0}, SequenceInvalid),
        ({"call_seq_id": 5}, SequenceInvalid),
    ],
)
async def test_a_bad_continuation_harms_nothing(fields: dict[str, object], kind: type[ScannerError]) -> None:
    """After a refused call the session goes on where it was."""
    async with serving(filled_store(ROWS), CONFIG) as (_, client):
        session = Session(client)
        await session.open()
        error = await failure(lambda: session.call(scanner_id=session.id, **fields))
        await session.pull_all()

    assert type(error) is kind
    assert session.table().num_rows == ROWS
