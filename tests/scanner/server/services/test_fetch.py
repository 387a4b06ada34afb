"""`FetchLog` over the wire: what is there, what is committed, bounds, and what is wrong with one bucket."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trio

from scanner.data.changes import change_schema
from scanner.data.filters import Filter
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    ColumnNotFound,
    OffsetOutOfRange,
    ScannerError,
    SnapshotLost,
    TableNotFound,
    TooManyScans,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.log.opener import LogOpener
from scanner.server.tables.catalog import Catalog, ServedTable
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_batch, decode_schema, verify_payload
from scanner.wire.batches import decode_fetched
from scanner.wire.statuses import from_detail
from tests.support.conformance import open_virtual_items
from tests.support.scans import (
    TABLES,
    create_table,
    description,
    failure,
    open_scan,
    sample,
    serving,
    write,
    write_request,
)

if TYPE_CHECKING:
    import pyarrow as pa

    import transport
    from scanner.server.server import Server
    from scanner.server.tables.bucket import ServedBucket
    from scanner.storage.interface import Bucket

LONG_MS = 30_000
NEVER = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=0)])


@dataclass
class Answer:
    """One bucket's part of an answer, checked as a client must check it."""

    fields: pb.FetchedBucket
    batches: list[pa.RecordBatch] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    commit_ends: list[bool] = field(default_factory=list)
    payload_bytes: int = 0

    @property
    def ids(self) -> list[int]:
        """Of the changes."""
        return [row for batch in self.batches for row in batch.column("id").to_pylist()]

    @property
    def error(self) -> ScannerError | None:
        """What is wrong with the bucket."""
        if not self.fields.HasField("error"):
            return None
        return from_detail(self.fields.error.message, self.fields.error)


async def fetch(
    client: transport.Client, *positions: pb.FetchPosition, query: pb.ScanQuery | None = None, **fields: Any
) -> list[Answer]:
    """One fetch; it waits for nothing unless it is told to."""
    fields = {"max_wait_ms": 0, "query": query or pb.ScanQuery(table="items"), **fields}
    request = pb.FetchLogRequest(positions=positions or [pb.FetchPosition()], with_schema=True, **fields)
    told, buckets = decode_fetched(await client.call(methods.FETCH_LOG, request.SerializeToString()))
    schema = decode_schema(told.arrow_schema)
    answers = []
    for received in buckets:
        answer = Answer(received.fields)
        at = answer.fields.start_offset
        for batch in received.batches:
            verify_payload(batch.payload, batch.crc32c)
            rows = decode_batch(batch.payload, schema)
            rows.validate(full=True)
            assert rows.num_rows == batch.row_count > 0
            assert batch.changes.start == at
            at = batch.changes.end
            answer.batches.append(rows)
            answer.ends.append(at)
            answer.commit_ends.append(batch.changes.commit_end)
            answer.payload_bytes += len(batch.payload)
        if answer.error is None:
            assert at <= answer.fields.position <= answer.fields.high_watermark
            assert answer.fields.start_offset <= answer.fields.position or not answer.batches
        answers.append(answer)
    return answers


def at(offset: int, bucket: int = 0, **fields: Any) -> pb.FetchPosition:
    """Go on at an offset."""
    return pb.FetchPosition(bucket=bucket, offset=offset, **fields)


@asynccontextmanager
async def serving_items(
    *commits: Iterable[int], config: ScannerConfig | None = None, buckets: int = 1
) -> AsyncIterator[tuple[Server, transport.Client]]:
    """A server with the sample table, in memory, and a commit for each list of ids; nothing is left open behind it."""
    async with serving(MemoryStore(), config or ScannerConfig()) as (server, client):
        await create_table(client, description(buckets=buckets))
        for ids in commits:
            await write(client, write_request(sample(ids)))
        yield server, client


def storage_of(server: Server) -> Bucket:
    """The only bucket."""
    ((_, _, bucket),) = server._services.catalog.open_buckets()
    return bucket.storage


async def until_waiting(server: Server, calls: int = 1) -> None:
    """Wait until so many fetches wait for a commit."""
    while server.statistics().fetches_open < calls:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


async def test_a_fetch_has_what_is_there_and_says_where_to_go_on() -> None:
    """The same batches as a tail's; the position continues, and what is behind it comes with the next fetch."""
    async with serving_items(range(5), [2], [7]) as (_, client):
        (first,) = await fetch(client)
        (second,) = await fetch(client, at(first.fields.position, history=first.fields.history))
        async with open_scan(client, source=pb.SCAN_SOURCE_LOG, stop_at_end=True, credit=1 << 40) as scan:
            await scan.receive_all()

    assert first.batches == scan.batches
    assert first.batches[0].schema.equals(change_schema(description()))
    assert (first.fields.position, first.fields.bookmark, first.fields.high_watermark) == (8, 8, 8)
    assert first.commit_ends == [True]
    assert (second.batches, second.fields.position) == ([], 8)


async def woken(
    server: Server, client: transport.Client, meanwhile: Callable[[], None] = lambda: None
) -> Answer:
    """The answer to a fetch behind the third change that a commit wakes; `meanwhile` is called before that."""
    found: list[Answer] = []

    async def wait() -> None:
        found.extend(await fetch(client, at(3), max_wait_ms=LONG_MS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await until_waiting(server)
        assert server.statistics().activity.log_blocks_decoded == 0
        meanwhile()
        await write(client, write_request(sample([9])))
    return found[0]


async def test_a_commit_wakes_a_fetch() -> None:
    """It waits for as long as it is told to, polls nothing, and has the commit as soon as that is there."""
    async with serving_items(range(3)) as (server, client):
        assert (await woken(server, client)).ids == [9]


async def test_a_late_commit_is_in_the_answer(mock_clock: trio.testing.MockClock) -> None:
    """The time that an answer has for reading does not run while it waits for a commit."""
    config = ScannerConfig(session_page_time_max_s=10.0)
    async with serving_items(range(3), config=config) as (server, client):
        assert (await woken(server, client, lambda: mock_clock.jump(20))).ids == [9]


async def test_a_fetch_waits_for_enough() -> None:
    """Commits that are too small together do not end its wait, and come with the one that makes it enough."""
    async with serving_items([0]) as (server, client):
        found: list[Answer] = []

        async def wait() -> None:
            found.extend(await fetch(client, at(1), max_wait_ms=LONG_MS, min_bytes=3_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until_waiting(server)
            await write(client, write_request(sample([1])))
            await until_waiting(server)
            assert found == []
            await write(client, write_request(sample(range(100))))
    assert len(found[0].ids) == 103  # Two of them were there, and each update is two changes.
    assert found[0].payload_bytes >= 3_000


async def test_the_wait_ends(autojump_clock: trio.abc.Clock) -> None:
    """After the time that was asked for, never after more than the server allows; for nothing it does not wait."""
    config = ScannerConfig(fetch_wait_max_s=20.0)
    async with open_virtual_items(1, config=config) as items:
        waits: list[tuple[dict[str, Any], float]] = [
            ({"max_wait_ms": 7_000}, 7.0),
            ({}, 0.5),
            ({"max_wait_ms": 60_000}, 20.0),
            ({"max_wait_ms": 7_000, "min_bytes": 0}, 0.0),
        ]
        for fields, waited_s in waits:
            began = trio.current_time()
            request = pb.FetchLogRequest(query=pb.ScanQuery(table="items"), positions=[at(1)], **fields)
            await items.raw.call(methods.FETCH_LOG, request.SerializeToString())
            assert trio.current_time() - began == pytest.approx(waited_s, abs=0.2)


@pytest.mark.parametrize(
    ("positions", "fields"),
    [
        ([at(0, bucket=7)], {}),
        ([at(0)], {"bucket_bytes_max": 1_000, "min_bytes": 1 << 20}),
        ([at(0, stop_offset=10)], {"min_bytes": 1 << 20}),
    ],
    ids=["an error", "a full bucket", "the stop"],
)
async def test_nobody_waits_for_what_cannot_come(
    autojump_clock: trio.abc.Clock, positions: list[pb.FetchPosition], fields: dict[str, Any]
) -> None:
    """An answer goes out at once where a bucket has an error, as much as it may have, or its end."""
    async with open_virtual_items(100) as items:
        began = trio.current_time()
        await fetch(items.raw, *positions, max_wait_ms=7_000, **fields)
        assert trio.current_time() - began < 1


async def test_a_drain_waits_for_no_changes(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a fetch that waits for some keeps the server, nor one that is just being opened: both answer at once."""
    opening, draining, open_fetch = trio.Event(), trio.Event(), LogOpener.open_fetch

    async def open_late(*arguments: Any) -> Any:
        opening.set()
        await draining.wait()
        return await open_fetch(*arguments)

    async with open_virtual_items(1) as items, trio.open_nursery() as nursery:
        answers: list[int] = []

        async def wait() -> None:
            (answer,) = await fetch(items.raw, at(1), max_wait_ms=LONG_MS)
            answers.append(answer.fields.position)

        nursery.start_soon(wait)
        await until_waiting(items.server)
        monkeypatch.setattr(LogOpener, "open_fetch", open_late)
        nursery.start_soon(wait)
        await opening.wait()
        began = trio.current_time()
        nursery.start_soon(items.server.drain, 20)
        await items.server.wait_draining()
        draining.set()
        await items.server.wait_drained()
        assert trio.current_time() - began < 1
        assert answers == [1, 1]


async def test_fetches_of_one_kind_are_encoded_once() -> None:
    """A commit is decoded once, for every fetch and tail that wants the same, those that come later included."""
    async with serving_items([0]) as (server, client):
        found: list[Answer] = []

        async def wait() -> None:
            found.extend(await fetch(client, at(1), max_wait_ms=LONG_MS))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            await until_waiting(server, 5)
            await write(client, write_request(sample(range(50))))
        found += await fetch(client, at(1))
        async with open_scan(
            client,
            source=pb.SCAN_SOURCE_LOG,
            log_start=pb.LogStart(offset=1),
            stop_at_end=True,
            credit=1 << 40,
        ) as scan:
            await scan.receive_all()
        assert server.statistics().activity.log_blocks_decoded == 1
    assert all(each.batches == scan.batches for each in found)


@pytest.mark.parametrize("bytes_max", [1, 1_500, 20_000])
@pytest.mark.parametrize("bound", ["bytes_max", "bucket_bytes_max", "of the position"])
async def test_every_bound_makes_progress(bytes_max: int, bound: str) -> None:
    """Piece by piece, inside a commit too, the log is the whole one; an answer exceeds its bound by a row at most."""
    rows = 8 if bytes_max == 1 else 60
    async with serving_items(range(rows), range(rows // 2), [999]) as (_, client):
        (whole,) = await fetch(client)
        ids: list[int] = []
        position, bookmarks, answers = 0, [], 0
        while position < whole.fields.position:
            if bound == "of the position":
                (piece,) = await fetch(client, at(position, bytes_max=bytes_max))
            else:
                bounds: dict[str, Any] = {bound: bytes_max}
                (piece,) = await fetch(client, at(position), **bounds)
            assert 0 < piece.payload_bytes <= bytes_max or len(piece.ids) == 1
            assert piece.fields.bookmark in (0, rows, 2 * rows, 2 * rows + 1)
            ids += piece.ids
            bookmarks.append(piece.fields.bookmark)
            position, answers = piece.fields.position, answers + 1
        assert ids == whole.ids
        assert bookmarks == sorted(bookmarks)
        assert answers > (1 if bytes_max < 20_000 else 0)


async def test_a_bucket_fills_its_bound_as_an_answer_fills_its() -> None:
    """To the last octet: of one bucket, either bound brings the same rows."""
    async with serving_items(range(100)) as (_, client):
        counts = set()
        for bytes_max in range(1_000, 1_080):
            (answer,) = await fetch(client, bytes_max=bytes_max)
            (bucket,) = await fetch(client, bucket_bytes_max=bytes_max)
            assert bucket.ids == answer.ids
            counts.add(len(answer.ids))
        assert len(counts) > 1


async def test_buckets_share_an_answer_in_the_order_of_the_request() -> None:
    """The first one fills it; one that was left out comes first when it is named first. All say where they are."""
    async with serving_items(range(2_000), buckets=4) as (_, client):
        (alone,) = await fetch(client, pb.FetchPosition(bucket=2))
        order = [2, 0, 3, 1]
        found = await fetch(
            client, *(pb.FetchPosition(bucket=bucket) for bucket in order), bytes_max=alone.payload_bytes
        )
        assert [answer.fields.bucket for answer in found] == order
        assert [bool(answer.batches) for answer in found] == [True, False, False, False]
        assert [answer.fields.position for answer in found[1:]] == [0, 0, 0]
        assert all(answer.fields.high_watermark > 0 for answer in found)
        shared = await fetch(
            client, *(pb.FetchPosition(bucket=bucket) for bucket in order), bucket_bytes_max=1_000
        )
        assert all(0 < answer.payload_bytes <= 1_100 for answer in shared)
        assert sorted(
            each for answer in await fetch(client, *map(at, [0] * 4, order)) for each in answer.ids
        ) == list(range(2_000))


async def test_a_filter_that_drops_everything_moves_the_position() -> None:
    """A fetch that has nothing to bring says how far it is, and a commit that does not pass does not end its wait."""
    async with serving_items(range(10)) as (_, client):
        query = pb.ScanQuery(table="items", filter=[NEVER])
        (answer,) = await fetch(client, query=query)
        assert (answer.batches, answer.fields.position, answer.fields.bookmark) == ([], 10, 10)
        await write(client, write_request(sample([11])))
        (answer,) = await fetch(client, at(10), query=query, max_wait_ms=1)
        assert (answer.batches, answer.fields.position) == ([], 11)


async def test_projection_and_the_columns_of_a_change() -> None:
    """As for a tail; without names, all of them."""
    async with serving_items([4]) as (_, client):
        query = pb.ScanQuery(table="items", columns=["_log_offset", "id"])
        (answer,) = await fetch(client, query=query)
    assert answer.batches[0].to_pylist() == [{"_log_offset": 0, "id": 4}]


async def test_where_a_fetch_begins_and_stops() -> None:
    """By name, offset or time; nothing behind the stop comes, and a fetch that is there does not wait."""
    async with serving_items([0], [1], [2]) as (server, client):
        time_us = storage_of(server).entry_at(1).timestamp_us
        starts = [
            (None, [0, 1, 2]),
            (pb.LogStart(earliest=True), [0, 1, 2]),
            (pb.LogStart(latest=True), []),
            (pb.LogStart(offset=1), [1, 2]),
            (pb.LogStart(timestamp_us=time_us), [1, 2]),
        ]
        for start, ids in starts:
            (answer,) = await fetch(client, pb.FetchPosition(start=start))
            assert answer.ids == ids
            assert answer.fields.position == 3
        (answer,) = await fetch(client, at(0, stop_offset=2), max_wait_ms=LONG_MS)
        assert (answer.ids, answer.fields.position) == ([0, 1], 2)
        (answer,) = await fetch(client, at(2, stop_offset=2), max_wait_ms=LONG_MS)
        assert (answer.ids, answer.fields.position) == ([], 2)


async def test_what_is_wrong_with_one_bucket_hides_no_other() -> None:
    """Its part has the error, with bucket and range; the answer goes out at once, with what the others have."""
    async with serving_items(range(100), buckets=3) as (server, client):
        ends = {index: bucket.storage.log_end for _, index, bucket in server._services.catalog.open_buckets()}
        found = await fetch(
            client,
            at(ends[1] + 5, bucket=1),
            at(0, bucket=0),
            at(ends[2], bucket=2, history=b"another history."),
            max_wait_ms=LONG_MS,
        )
        out_of_range, fine, lost = found
        assert len(fine.ids) == ends[0]
        error = out_of_range.error
        assert isinstance(error, OffsetOutOfRange)
        assert f"bucket 1: the position {ends[1] + 5}" in error.message
        assert f"[0, {ends[1]})" in error.message
        assert (error.metadata["bucket"], error.oldest_offset) == ("1", 0)
        assert isinstance(lost.error, SnapshotLost)
        found = await fetch(client, at(0), at(0, bucket=7), max_wait_ms=LONG_MS)
        assert isinstance(found[1].error, BucketNotFound)
        assert found[0].ids == fine.ids
        found = await fetch(client, pb.FetchPosition(start=pb.LogStart(offset=1)), at(0, bucket=1))
        assert isinstance(found[0].error, ArgumentInvalid)
        assert "inside the commit" in found[0].error.message
        assert found[1].error is None
        (found_one,) = await fetch(client, at(0, history=b"three"))
        assert isinstance(found_one.error, ArgumentInvalid)
        assert "a history has 16 bytes, not 5" in found_one.error.message


async def test_retention_that_passes_a_position_is_told() -> None:
    """Never a silent reset."""
    async with serving_items([0], [1], [2]) as (server, client):
        storage_of(server).truncate_log(2)
        (answer,) = await fetch(client, at(1))
    assert isinstance(answer.error, OffsetOutOfRange)
    assert "[2, 3)" in answer.error.message
    assert answer.error.oldest_offset == 2


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"positions": []}, ArgumentInvalid, "needs a position"),
        ({"positions": [at(0), at(1)]}, ArgumentInvalid, "bucket 0 more than once"),
        ({"positions": [at(0), at(0, 1)]}, ArgumentInvalid, "2 positions"),
        ({"query": pb.ScanQuery(table="items", bucket=1)}, ArgumentInvalid, "no bucket"),
        ({"query": pb.ScanQuery(table="items", row_limit=1)}, ArgumentInvalid, "row_limit"),
        ({"query": pb.ScanQuery(table="items", range=pb.KeyRange(end=b"a"))}, ArgumentInvalid, "range"),
        ({"query": pb.ScanQuery(table="nothing")}, TableNotFound, "nothing"),
        ({"query": pb.ScanQuery(table="items", columns=["no"])}, ColumnNotFound, "no"),
        (
            {
                "query": pb.ScanQuery(
                    table="items",
                    filter=[pb.Predicate(column="no", operator=pb.Predicate.OPERATOR_IS_NOT_NULL)],
                )
            },
            ColumnNotFound,
            "no",
        ),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    fields: dict[str, Any], kind: type[ScannerError], says: str
) -> None:
    """As a whole, with one typed error."""
    async with serving_items([0]) as (_, client):
        request = pb.FetchLogRequest(**{"query": pb.ScanQuery(table="items"), "positions": [at(0)], **fields})
        error = await failure(lambda: client.call(methods.FETCH_LOG, request.SerializeToString()))
    assert type(error) is kind
    assert says in error.message


async def test_positions_of_more_buckets_than_a_table_has_are_not_looked_at() -> None:
    """The whole server waits for that, and one request has room for two million."""
    async with serving_items([0]) as (_, client):
        positions = [at(0, bucket) for bucket in (*range(1024), 1023)]
        request = pb.FetchLogRequest(query=pb.ScanQuery(table="items"), positions=positions)
        error = await failure(lambda: client.call(methods.FETCH_LOG, request.SerializeToString()))
    assert "1025 positions, but a table has 1024 buckets at most" in error.message


async def test_a_dropped_table_ends_a_fetch_that_waits() -> None:
    """With the error of its bucket, and the drop does not wait for the fetch's time."""
    async with serving_items([0]) as (server, client):
        found: list[Answer] = []

        async def wait() -> None:
            found.extend(await fetch(client, at(1), max_wait_ms=LONG_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until_waiting(server)
            drop = tables_pb2.DropTableRequest(table="items")
            await client.call(TABLES + "DropTable", drop.SerializeToString())
    assert isinstance(found[0].error, TableNotFound)


async def test_nothing_of_a_dropped_table_stays_for_the_next_fetch() -> None:
    """What fetches wanted of it goes with it, and so does the bucket."""
    async with serving_items([0]) as (server, client):
        await fetch(client, at(0))
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        left = weakref.ref(bucket)
        del bucket
        drop = tables_pb2.DropTableRequest(table="items")
        await client.call(TABLES + "DropTable", drop.SerializeToString())
        gc.collect()
        assert left() is None


@pytest.mark.parametrize(("literals", "kept"), [(100, True), (2000, False)])
async def test_a_filter_is_bound_once_for_all_buckets(
    monkeypatch: pytest.MonkeyPatch, literals: int, kept: bool
) -> None:
    """That takes milliseconds where it has many literals; and then nothing of it is kept for the next fetch."""
    bound, bind = list[weakref.ref[Filter]](), Filter.__init__

    def bind_counted(self: Filter, *arguments: Any) -> None:
        bind(self, *arguments)
        bound.append(weakref.ref(self))

    monkeypatch.setattr(Filter, "__init__", bind_counted)
    one_of = pb.Predicate(
        column="id",
        operator=pb.Predicate.OPERATOR_IN,
        literals=[pb.Literal(integer=number) for number in range(literals)],
    )
    async with serving_items(range(40), buckets=3) as (_, client):
        query = pb.ScanQuery(table="items", filter=[one_of])
        answers = await fetch(client, *(at(0, bucket) for bucket in range(3)), query=query)
        assert sorted(row for each in answers for row in each.ids) == list(range(40))
        gc.collect()
        assert [each() is not None for each in bound] == [kept]


async def test_a_cancelled_fetch_leaves_nothing() -> None:
    """Neither a scan of its bucket, nor anyone whom a commit would wake."""
    async with serving_items([0]) as (server, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: fetch(client, at(1), max_wait_ms=LONG_MS))
            await until_waiting(server)
            nursery.cancel_scope.cancel()
        while server.statistics().fetches_open:
            await trio.lowlevel.checkpoint()
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        assert bucket.open_scans == ()
        assert not bucket._on_commit


async def test_fetches_are_limited() -> None:
    """One above the limit is refused, and can be tried again."""
    async with serving_items([0], config=ScannerConfig(scans_max=1)) as (server, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: fetch(client, at(1), max_wait_ms=LONG_MS))
            await until_waiting(server)
            error = await failure(lambda: fetch(client, at(0)))
            assert isinstance(error, TooManyScans)
            assert error.retriable
            nursery.cancel_scope.cancel()


async def test_no_bucket_is_opened_while_the_changes_of_another_one_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drop of the table between them would wait for the fetch, and the fetch for the drop."""
    store, scans = MemoryStore(), list[object]()
    store.create_table(description(buckets=3))
    open_bucket = Catalog._open_bucket

    async def open_noted(catalog: Catalog, table: ServedTable, index: int) -> ServedBucket:
        scans.append(list(catalog.open_scans()))
        return await open_bucket(catalog, table, index)

    monkeypatch.setattr(Catalog, "_open_bucket", open_noted)
    async with serving(store) as (_, client):
        await fetch(client, *(pb.FetchPosition(bucket=index) for index in range(3)))
    assert scans == [[], [], []]
