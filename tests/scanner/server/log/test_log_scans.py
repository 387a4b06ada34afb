"""Scans of a changelog over the wire: pushed on commit, resumed inside a commit, bounded, and behind a snapshot."""

from __future__ import annotations

import copy
import datetime
import itertools
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.errors import (
    ArgumentInvalid,
    Draining,
    OffsetOutOfRange,
    ResumeTokenInvalid,
    ScannerError,
    SlowConsumer,
    SnapshotLost,
    TableNotFound,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.clock import WallClock
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from scanner.server.tables.bucket import ServedBucket
from scanner.storage.memory.store import MemoryDisk, MemoryStore
from tests.support.scans import (
    SMALL,
    TABLES,
    RawScan,
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
    import transport
    from scanner.server.server import Server
    from scanner.storage.interface import Bucket

ALL = 1 << 40
LOG, HYBRID = pb.SCAN_SOURCE_LOG, pb.SCAN_SOURCE_HYBRID
EARLIEST = pb.LogStart(earliest=True)
LATEST = pb.LogStart(latest=True)

Rows = dict[int, dict[str, Any]]
T = TypeVar("T")


@asynccontextmanager
async def serving_store(config: ScannerConfig = SMALL) -> AsyncIterator[tuple[Server, transport.Client]]:
    """A server over an empty store in memory, and a connection to it."""
    async with serving(MemoryStore(), config) as (server, client):
        yield server, client


async def filled(client: transport.Client, *commits: Sequence[int]) -> None:
    """The sample table, with upserts of these ids, a commit each."""
    await create_table(client, description())
    for ids in commits:
        await write(client, write_request(sample(ids)))


async def delete(client: transport.Client, *ids: int) -> None:
    """Delete rows of the sample table."""
    await write(client, write_request(sample(ids).select(["id"]), delete=True))


async def drop(client: transport.Client) -> None:
    """Drop the sample table."""
    await client.call(TABLES + "DropTable", tables_pb2.DropTableRequest(table="items").SerializeToString())


def kept_from(server: Server) -> int | None:
    """From where on scans keep the log of the only bucket."""
    ((_, _, bucket),) = server._services.catalog.open_buckets()
    return bucket.pins.oldest()


async def receive_rows(scan: RawScan, rows: int) -> None:
    """Take responses until so many rows came."""
    while scan.rows < rows:
        assert await scan.receive() is not None


def changes_of(scan: RawScan) -> list[tuple[int, str, int]]:
    """Offset, kind and id of each change that came."""
    return [
        (row["_log_offset"], row["_change_type"], row["id"])
        for batch in scan.batches
        for row in batch.select(["_log_offset", "_change_type", "id"]).to_pylist()
    ]


def fold(batches: Sequence[pa.RecordBatch]) -> Rows:
    """Apply changes in the order in which they came."""
    rows: Rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            kind = row.pop("_change_type")
            row.pop("_log_offset")
            row.pop("_commit_timestamp")
            if kind in ("insert", "update_postimage"):
                rows[row["id"]] = row
            else:
                assert rows.pop(row["id"]) == row
    return rows


def expected(ids: Sequence[int]) -> Rows:
    """The sample rows of these ids."""
    return {row["id"]: row for row in sample(ids).to_pylist()}


def storage_of(server: Server) -> Bucket:
    """The only bucket."""
    ((_, _, bucket),) = server._services.catalog.open_buckets()
    return bucket.storage


async def test_a_tail_gets_what_is_there_and_then_each_commit() -> None:
    """From the earliest change; without polling: a commit is pushed, and says where it ends."""
    async with serving_store() as (_, client):
        await filled(client, range(3))
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=ALL) as scan:
            await receive_rows(scan, 3)
            await write(client, write_request(sample([2, 7])))
            await delete(client, 0)
            await receive_rows(scan, 7)

    assert changes_of(scan) == [
        (0, "insert", 0),
        (1, "insert", 1),
        (2, "insert", 2),
        (3, "update_preimage", 2),
        (4, "update_postimage", 2),
        (5, "insert", 7),
        (6, "delete", 0),
    ]
    assert [each.commit_end for each in scan.changes] == [True] * len(scan.changes)
    assert [each.start for each in scan.changes] == [0, *(each.end for each in scan.changes[:-1])]
    assert fold(scan.batches) == expected([1, 2, 7])


async def test_a_tail_holds_no_iterator() -> None:
    """Nor a snapshot, however long it waits."""
    async with serving_store() as (server, client):
        await filled(client, range(5))
        async with open_scan(client, source=HYBRID, credit=ALL) as scan:
            while scan.snapshot_end is None:
                await scan.receive()
            now = server.statistics()
            assert (now.push_scans_open, now.iterators_open, now.scans_parked) == (1, 0, 0)


async def test_latest_begins_with_the_next_commit() -> None:
    """Nothing of before; the start says at which offset that is."""
    async with serving_store() as (_, client):
        await filled(client, range(5))
        async with open_scan(client, source=LOG, log_start=LATEST, credit=ALL) as scan:
            await scan.receive()
            assert scan.log_offset == 5
            await write(client, write_request(sample([9])))
            await receive_rows(scan, 1)
    assert changes_of(scan) == [(5, "insert", 9)]


async def test_a_scan_of_the_log_can_end() -> None:
    """Where the log ends at the open, or at a stop offset; by the position that was reached."""
    async with serving_store() as (_, client):
        await filled(client, [0], [1], [2])
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL) as scan:
            await scan.receive_all()
        assert scan.end is not None
        assert (scan.rows, scan.end.reason, scan.end.end_offset) == (3, pb.ScanEnd.REASON_STOP_OFFSET, 3)
        async with open_scan(client, source=LOG, stop_offset=2, credit=ALL) as scan:
            await scan.receive_all()
        assert scan.end is not None
        assert (scan.rows, scan.end.end_offset) == (2, 2)
        start = pb.LogStart(offset=1)
        async with open_scan(client, source=LOG, log_start=start, stop_offset=1, credit=ALL) as scan:
            await scan.receive_all()
        assert (scan.rows, scan.log_offset) == (0, 1)


async def test_a_start_by_time() -> None:
    """The first entry committed at or after it; one that lies in the future is refused, not waited for."""
    async with serving_store() as (server, client):
        await filled(client, [0], [1], [2])
        times = [storage_of(server).entry_at(offset).timestamp_us for offset in range(3)]
        for time_us, first in [(0, 0), (times[1], 1), (times[1] + 1, 2), (times[2] + 1, 3)]:
            start = pb.LogStart(timestamp_us=time_us)
            async with open_scan(client, source=LOG, log_start=start, stop_at_end=True, credit=ALL) as scan:
                await scan.receive_all()
            assert [offset for offset, _, _ in changes_of(scan)] == list(range(first, 3))
        error = await refusal(client, log_start=pb.LogStart(timestamp_us=1 << 60))
        assert isinstance(error, ArgumentInvalid)
        assert "future" in error.message


@pytest.mark.parametrize("ask", ["offsets", "push", "fetch"])
async def test_a_start_by_time_while_a_commit_is_under_way(
    ask: str, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that has an earlier time, and is not durable yet, is before it: whoever asks is told so at once."""
    clock = WallClock()
    stamped, written = trio.Event(), trio.Event()
    wait = ServedBucket.wait_stamped_before

    async def held_up(function: Callable[[], T]) -> T:
        result = function()
        if getattr(function, "func", function).__name__ == "prepare":
            stamped.set()
            await written.wait()
        return result

    async def seen(bucket: ServedBucket, time_us: int) -> None:
        written.set()  # Somebody asks: what is under way may go on.
        await wait(bucket, time_us)

    monkeypatch.setattr(ServedBucket, "wait_stamped_before", seen)
    async with (
        open_server(MemoryStore(), clock=clock, run_blocking=held_up) as server,
        scanner.connect(f"127.0.0.1:{server.port}") as client,
        trio.open_nursery() as nursery,
    ):
        table = await client.create_table(
            "t", pa.schema([pa.field("k", pa.int64(), nullable=False)]), ["k"], 1
        )
        nursery.start_soon(table.write, pa.table({"k": [1]}))
        await stamped.wait()
        mock_clock.jump(1.0)
        time = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            microseconds=clock.now_us()
        )
        if ask == "offsets":
            assert [each.at_offset for each in await table.offsets(at=time)] == [1]
        else:
            tail = table.new_scan().with_source("log").with_mode(ask).start_at(time)
            async with tail.execute() as batches:
                nursery.start_soon(table.write, pa.table({"k": [2]}))
                batch = await anext(batches)
                assert batch["_log_offset"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("opening", "kind", "says"),
    [
        ({"log_start": pb.LogStart(offset=9)}, OffsetOutOfRange, r"\[3, 7\)"),
        ({"log_start": pb.LogStart(offset=1)}, OffsetOutOfRange, r"\[3, 7\)"),
        ({"log_start": pb.LogStart(offset=5)}, ArgumentInvalid, r"inside the commit \[4, 7\); take 4 or 7"),
        ({"log_start": pb.LogStart(latest=False)}, ArgumentInvalid, "latest is false"),
        ({"log_start": pb.LogStart(earliest=False)}, ArgumentInvalid, "earliest is false"),
        ({"stop_offset": 6}, ArgumentInvalid, r"inside the commit \[4, 7\)"),
        ({"stop_offset": 8}, OffsetOutOfRange, r"\[3, 7\)"),
        ({"log_start": pb.LogStart(offset=7), "stop_offset": 4}, ArgumentInvalid, "before 7"),
        ({"source": HYBRID, "as_of": 5}, ArgumentInvalid, r"inside the commit \[4, 7\)"),
        ({"source": HYBRID, "log_start": EARLIEST}, ArgumentInvalid, "log_start"),
        ({"as_of": 4}, ArgumentInvalid, "as_of"),
        ({"query": pb.ScanQuery(table="nothing")}, TableNotFound, "nothing"),
        ({"query": pb.ScanQuery(table="items", range=pb.KeyRange(start=b"a"))}, ArgumentInvalid, "key range"),
    ],
)
async def test_bounds_that_are_not_there_are_refused(
    opening: dict[str, Any], kind: type[ScannerError], says: str
) -> None:
    """Each with one typed error that names the range, or the commit; never another bound instead."""
    async with serving_store() as (server, client):
        await filled(client, range(3), [3], [4, 5, 6])
        storage_of(server).truncate_log(3)
        error = await refusal(client, **opening)
    assert isinstance(error, kind)
    assert re.search(says, error.message), error.message


async def test_a_commit_larger_than_the_credit_spans_batches_and_resumes_inside() -> None:
    """A credit of one batch at a time, cut at every token: nothing is lost, nothing comes twice."""
    async with serving_store() as (_, client):
        await filled(client, range(300), range(100))
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL, batch_rows_max=37) as whole:
            await whole.receive_all()
        assert whole.rows == 500
        assert {each.commit_end for each in whole.changes} == {True, False}
        for count in range(1, len(whole.tokens)):
            token = whole.tokens[count - 1]
            async with open_scan(client, source=LOG, resume_token=token, credit=ALL) as rest:
                await rest.receive_all()
            assert rest.end is not None
            seen = [*changes_of(whole)[: rest.row_ordinal], *changes_of(rest)]
            assert seen == changes_of(whole)


async def test_credit_bounds_a_tail_exactly() -> None:
    """Lost, repeated and reordered demands change nothing: what was sent is below the highest, give or take a row."""
    async with serving_store() as (_, client):
        await filled(client, range(500))
        async with open_scan(client, source=LOG, log_start=EARLIEST) as scan:
            for limit in (1000, 400, 1000, 3000, 2000, 9000):
                await scan.demand(limit)
            while scan.received_bytes < 9000:
                await scan.receive()
            row = scan.received_bytes / scan.rows
            assert scan.received_bytes - 9000 <= 8 * row
            await scan.demand(ALL)
            await receive_rows(scan, 500)


async def test_a_filter_that_drops_everything_still_moves_the_position() -> None:
    """Heartbeats say how far the tail is: a promise that nothing before was left out. It keeps no more of the log."""
    async with serving_store() as (server, client):
        await filled(client, range(10))
        query = pb.ScanQuery(
            table="items",
            filter=[
                pb.Predicate(
                    column="id", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal(integer=-1)]
                )
            ],
        )
        async with open_scan(client, source=LOG, query=query, log_start=EARLIEST, credit=ALL) as scan:
            # On the way one may be due, and that has the same position if all entries were read at once.
            while not scan.heartbeats or scan.heartbeats[-1].state != pb.Heartbeat.STATE_WAITING_DATA:
                await scan.receive()
            beat = scan.heartbeats[-1]
            assert (beat.position, beat.high_watermark) == (10, 10)
            assert kept_from(server) == 10
        token = beat.resume_token
        await write(client, write_request(sample([11])))
        async with open_scan(
            client, source=LOG, query=query, resume_token=token, stop_at_end=True, credit=ALL
        ) as scan:
            await scan.receive()
            assert scan.log_offset == 10


async def test_a_position_is_a_bookmark() -> None:
    """Stopped there and begun there again, the tails are one."""
    async with serving_store() as (_, client):
        await filled(client, range(40), range(20), [99])
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL, batch_rows_max=7) as whole:
            await whole.receive_all()
        ends = [each.end for each in whole.changes if each.commit_end]
        assert set(ends) <= {40, 80, 81}  # A batch may hold more than one commit.
        assert ends[-1] == 81
        for end in ends:
            parts = []
            for bounds in ({"stop_offset": end}, {"log_start": pb.LogStart(offset=end), "stop_at_end": True}):
                async with open_scan(client, source=LOG, credit=ALL, **bounds) as part:
                    await part.receive_all()
                parts += changes_of(part)
            assert parts == changes_of(whole)


async def test_tails_of_one_kind_are_read_once() -> None:
    """However many there are, a commit is decoded once."""
    async with serving_store() as (server, client):
        await filled(client, [0])
        async with open_scan(client, source=LOG, log_start=LATEST, credit=ALL) as first:
            async with open_scan(client, source=LOG, log_start=LATEST, credit=ALL) as second:
                await first.receive()
                await second.receive()
                before = server.statistics().activity.log_blocks_decoded
                await write(client, write_request(sample(range(50))))
                await receive_rows(first, 51)
                await receive_rows(second, 51)
                assert server.statistics().activity.log_blocks_decoded - before == 1
    assert first.batches == second.batches


async def test_tails_with_other_conditions_have_blocks_of_their_own() -> None:
    """Each gets what passes its own filter, whoever else reads the same columns of the bucket."""
    less, more = (
        pb.Predicate(column="id", operator=operator, literals=[pb.Literal(integer=20)])
        for operator in (pb.Predicate.OPERATOR_LESS, pb.Predicate.OPERATOR_GREATER_OR_EQUAL)
    )
    async with serving_store() as (_, client), AsyncExitStack() as stack:
        await filled(client, range(50))
        scans = []
        for conditions in ([less], [more], []):  # All are open before any may send.
            query = pb.ScanQuery(table="items", filter=conditions)
            opening = open_scan(client, query=query, source=LOG, log_start=EARLIEST, stop_at_end=True)
            scans.append(await stack.enter_async_context(opening))
            await scans[-1].receive()
        for scan in scans:
            await scan.demand(ALL)
            await scan.receive_all()
        found = [[row["id"] for row in rows_of(scan)] for scan in scans]
        assert found == [list(range(20)), list(range(20, 50)), list(range(50))]


async def test_what_a_failed_disk_has_lost_is_shown_to_no_later_tail() -> None:
    """Storage was opened anew, without the newest commit: what another tail has read of it is not what is there now.

    That one ends, and does not go on behind changes that nobody has.
    """
    async with serving_store() as (server, client):
        await filled(client, range(5))
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        storage: Any = bucket.storage
        kept = copy.deepcopy(storage.contents)
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=ALL) as first:
            await receive_rows(first, 5)
            await write(client, write_request(sample(range(5, 8))))
            await receive_rows(first, 8)
            async with bucket._commits:
                storage.contents = kept
                await bucket._reopen(writable=True)
            await write(client, write_request(sample(range(20, 23))))
            async with open_scan(
                client, source=LOG, log_start=EARLIEST, stop_at_end=True, credit=ALL
            ) as later:
                await later.receive_all()
            assert isinstance(await failure(first.receive_all), SnapshotLost)
    assert [id_ for _, _, id_ in changes_of(later)] == [*range(5), *range(20, 23)]


async def test_a_tail_says_what_it_covers_when_storage_is_opened_anew() -> None:
    """From the end of its last batch on, changes that do not pass included: a client takes a gap for a loss."""
    less = pb.Predicate(column="id", operator=pb.Predicate.OPERATOR_LESS, literals=[pb.Literal(integer=20)])
    query = pb.ScanQuery(table="items", filter=[less])
    async with serving_store() as (server, client):
        await filled(client, range(5))
        async with open_scan(client, query=query, source=LOG, log_start=EARLIEST, credit=ALL) as scan:
            await receive_rows(scan, 5)
            await write(client, write_request(sample(range(100, 110))))
            while not (scan.heartbeats and scan.heartbeats[-1].position == 15):
                await scan.receive()
            ((_, _, bucket),) = server._services.catalog.open_buckets()
            async with bucket._commits:
                await bucket._reopen(writable=True)
            await write(client, write_request(sample([7])))
            await receive_rows(scan, 6)
    assert [(each.start, each.end) for each in scan.changes] == [(0, 5), (5, 16)]


async def test_a_hybrid_up_to_an_offset_that_the_log_has_begins_there() -> None:
    """What is written between the call that told the offset and the scan is not in it."""
    async with serving_store() as (_, client):
        await filled(client, range(5), range(3, 8))
        async with open_scan(client, source=HYBRID, stop_offset=5, credit=ALL) as scan:
            await scan.receive_all()
    assert scan.end is not None
    assert (scan.snapshot_end, scan.end.reason, scan.end.end_offset) == (5, pb.ScanEnd.REASON_STOP_OFFSET, 5)
    assert fold(scan.batches) == expected(range(5))


async def test_a_hybrid_is_the_snapshot_and_then_its_log() -> None:
    """Rows as inserts of no offset, the boundary once, then every change from there: it folds to the table."""
    async with serving_store() as (_, client):
        await filled(client, range(400))
        async with open_scan(client, source=HYBRID, credit=2000) as scan:
            await scan.receive()
            await write(client, write_request(sample([5, 500])))
            await delete(client, 7)
            await scan.demand(ALL)
            await receive_rows(scan, 404)
            assert scan.snapshot_end == 400
    state, changes = split(scan, 400)
    assert {row["_change_type"] for row in state} == {"insert"}
    assert {(row["_log_offset"], row["_commit_timestamp"]) for row in state} == {(None, None)}
    assert [row["_log_offset"] for row in changes] == [400, 401, 402, 403]
    assert fold(scan.batches) == expected([*(id_ for id_ in range(400) if id_ != 7), 500])


async def test_a_hybrid_resumes_in_either_half_and_at_the_boundary() -> None:
    """From every token that it gave; the digest of the snapshot is the same in the end."""
    async with serving_store() as (_, client):
        await filled(client, range(120))
        async with open_scan(client, source=HYBRID, credit=ALL, batch_rows_max=50) as scan:
            await receive_rows(scan, 120)
            await write(client, write_request(sample(range(60, 130))))
            await receive_rows(scan, 120 + 130)
        async with open_scan(client, source=HYBRID, as_of=120, stop_at_end=True, credit=ALL) as whole:
            await whole.receive_all()
        assert whole.end is not None
        assert fold(whole.batches) == expected(range(130))
        for token in scan.tokens:
            async with open_scan(client, source=HYBRID, resume_token=token, credit=ALL) as rest:
                left = 250 - await ordinal(rest)
                while rest.snapshot_end is None or rest.rows < left:
                    assert await rest.receive() is not None
                assert (rest.snapshot_end, rest.log_offset) == (120, 120)
            seen = [*rows_of(scan)[: rest.row_ordinal], *rows_of(rest)]
            assert seen == rows_of(scan)


async def test_a_hybrid_that_comes_to_its_limit_in_its_snapshot_has_no_boundary() -> None:
    """Rows of the snapshot are left: whoever was told of its end would take it for complete."""
    async with serving_store() as (_, client):
        await filled(client, range(20))
        query = pb.ScanQuery(table="items", row_limit=10)
        async with open_scan(client, query=query, source=HYBRID, credit=ALL) as scan:
            await scan.receive_all()
    assert scan.end is not None
    assert (scan.rows, scan.end.reason, scan.snapshot_end) == (10, pb.ScanEnd.REASON_LIMIT, None)


async def test_a_hybrid_is_of_the_history_of_its_snapshot_in_either_half() -> None:
    """Also where changes of a later history have come, as after a restart: a client compares it."""
    disk = MemoryDisk()
    async with serving(MemoryStore(disk=disk)) as (_, client):
        await filled(client, range(5))
        async with open_scan(client, source=HYBRID, credit=ALL) as scan:
            await receive_rows(scan, 5)
        assert scan.started is not None
    async with serving(MemoryStore(disk=disk)) as (_, client):
        await write(client, write_request(sample(range(5, 8))))
        async with open_scan(client, source=HYBRID, resume_token=scan.tokens[-1], credit=ALL) as rest:
            await receive_rows(rest, 3)
        async with open_scan(client, source=HYBRID, resume_token=rest.tokens[-1], credit=ALL) as last:
            await last.receive()
    for each in (rest, last):
        assert each.started is not None
        assert (each.log_offset, each.started.history) == (5, scan.started.history)


@pytest.mark.parametrize(("source", "start"), [(LOG, EARLIEST), (LOG, LATEST), (HYBRID, None)])
async def test_the_token_of_the_start_keeps_state_and_stop(
    source: pb.ScanSource, start: pb.LogStart | None
) -> None:
    """Of a scan up to the end of its log nothing was sent: it begins and ends where it was to, whatever is written."""
    async with serving_store() as (_, client):
        await filled(client, range(20))
        async with open_scan(client, source=source, log_start=start, stop_at_end=True) as scan:
            await scan.receive()
        assert scan.started is not None
        await write(client, write_request(sample(range(10, 30))))
        await delete(client, 3)
        token = scan.started.resume_token
        async with open_scan(client, source=source, stop_at_end=True, credit=ALL, resume_token=token) as rest:
            await rest.receive_all()
    assert rest.log_offset == scan.log_offset
    assert rest.end is not None
    assert (rest.end.reason, rest.end.end_offset) == (pb.ScanEnd.REASON_STOP_OFFSET, 20)
    assert fold(rest.batches) == expected([] if start is LATEST else range(20))


async def test_a_hybrid_of_an_empty_table_ends_where_it_is_told() -> None:
    """The boundary comes before the end, without a single row."""
    async with serving_store() as (_, client):
        await filled(client)
        async with open_scan(client, source=HYBRID, stop_at_end=True, credit=ALL) as scan:
            await scan.receive_all()
    assert scan.end is not None
    assert (scan.rows, scan.snapshot_end, scan.end.reason) == (0, 0, pb.ScanEnd.REASON_STOP_OFFSET)


async def test_a_snapshot_without_its_log_is_refused_before_its_first_row() -> None:
    """Where the snapshot lingers and retention has passed it: what was read could never be followed by its changes."""
    async with serving_store() as (server, client):
        await filled(client, range(200), range(50))
        async with open_scan(client, source=HYBRID, credit=ALL, batch_rows_max=20) as scan:
            await receive_rows(scan, 20)
        while server.statistics().push_scans_open:
            await trio.lowlevel.checkpoint()
        await write(client, write_request(sample(range(9))))
        storage = storage_of(server)
        storage.truncate_log(storage.log_end)
        for opening in ({"resume_token": scan.tokens[0]}, {"as_of": 300}):
            error = await refusal(client, source=HYBRID, **opening)
            assert isinstance(error, OffsetOutOfRange)
            assert "300 is not in the changelog" in error.message  # Else rows have come before.
        assert not server.statistics().push_scans_open


@pytest.mark.parametrize("opening", [{"source": LOG}, {"source": HYBRID, "as_of": 5}], ids=["log", "hybrid"])
async def test_a_stop_that_went_with_another_history_is_lost(opening: dict[str, Any]) -> None:
    """A restored bucket has the changes up to the token, and others where the scan was to end, or none yet."""
    disk = MemoryDisk()
    async with serving(MemoryStore(disk=disk)) as (_, client):
        await filled(client, range(5))
        copied = copy.deepcopy(disk)
        await write(client, write_request(sample(range(5, 10))))
        async with open_scan(client, stop_offset=10, credit=ALL, batch_rows_max=2, **opening) as scan:
            await scan.receive_all()
    async with serving(MemoryStore(disk=copied)) as (_, client):
        errors = [await refusal(client, source=opening["source"], resume_token=scan.tokens[0])]
        await write(client, write_request(sample(range(5, 12))))
        errors.append(await refusal(client, source=opening["source"], resume_token=scan.tokens[0]))
    for error in errors:
        assert isinstance(error, SnapshotLost)
        assert "ends at 10 of another history" in error.message


async def test_a_token_is_of_its_stop() -> None:
    """A scan that is resumed ends where it was to end, whether that is said once more or not, and nowhere else."""
    async with serving_store() as (_, client):
        await filled(client, range(5), range(5, 10), range(10, 15))
        ends = {}
        for stop in (None, 10):
            async with open_scan(client, source=LOG, stop_offset=stop, credit=ALL, batch_rows_max=2) as scan:
                await receive_rows(scan, 2)
            error = await refusal(client, resume_token=scan.tokens[0], stop_offset=5)
            assert isinstance(error, ArgumentInvalid)
            assert f"ends at {'no offset' if stop is None else stop}, not at 5" in error.message
            ends[stop] = scan.tokens[0]
        for stop in (None, 10):
            async with open_scan(
                client, source=LOG, resume_token=ends[10], stop_offset=stop, credit=ALL
            ) as scan:
                await scan.receive_all()
            assert scan.end is not None
            assert scan.end.rows == 10


async def test_a_token_is_of_its_source() -> None:
    """One of a tail continues no hybrid and no scan of rows, nor the other way round."""
    async with serving_store() as (_, client):
        await filled(client, range(5))
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL) as scan:
            await scan.receive_all()
        for source in (HYBRID, pb.SCAN_SOURCE_LIVE_KV):
            error = await refusal(client, source=source, resume_token=scan.tokens[-1])
            assert isinstance(error, ResumeTokenInvalid)


@pytest.mark.parametrize("credit", [1000, 2000, 3000])
async def test_a_tail_keeps_to_its_credit_and_keeps_what_it_has_not_read(credit: int) -> None:
    """A batch is cut to fit, whatever goes with its rows; the log is kept from where the next one begins."""
    async with serving_store() as (server, client):
        await filled(client, range(50), range(50, 90))
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=credit) as scan:
            await receive_rows(scan, 1)
            assert scan.received_bytes <= credit
            await scan.demand(ALL)
            await receive_rows(scan, 90)
            assert kept_from(server) == 90


async def test_retention_waits_for_a_tail_and_says_so_when_it_cannot() -> None:
    """Within what its principal may keep it is waited for; past it the tail ends, typed, with a token."""
    config = ScannerConfig(
        heartbeat_interval_s=0.05, log_retention_bytes=1, log_pinned_bytes_max=1, retention_interval_s=0.01
    )
    async with serving_store(config) as (server, client):
        await filled(client, range(50))

        async def slow() -> None:
            async with open_scan(client, source=LOG, log_start=EARLIEST, credit=1) as scan:
                await scan.receive()
                await write(client, write_request(sample(range(50))))
                await scan.receive_all()

        error = await failure(slow)
        assert isinstance(error, SlowConsumer)
        assert error.resume_token
        while storage_of(server).log_start < storage_of(server).log_end:  # It may go in two steps.
            await trio.lowlevel.checkpoint()
        late = await refusal(client, resume_token=error.resume_token)
        assert isinstance(late, OffsetOutOfRange)
        assert late.oldest_offset == storage_of(server).log_start


async def test_a_tail_that_kept_too_much_goes_on_as_long_as_its_log_is_there() -> None:
    """Its token works, behind as many rows as it says; once the log is gone the error names what the log has."""
    async with serving_store() as (server, client):
        await filled(client, range(5), range(5, 10))

        async def end(scan: RawScan) -> tuple[bytes, str]:
            ((_, _, bucket),) = server._services.catalog.open_buckets()
            (pin,) = bucket.pins
            pin.end(SlowConsumer("it kept too much"))
            error = await failure(scan.receive_all)
            assert isinstance(error, SlowConsumer)
            assert error.resume_token
            return error.resume_token, error.metadata["rows"]

        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=1, batch_rows_max=1) as scan:
            await receive_rows(scan, 1)
            token, rows = await end(scan)
            assert rows == "1"
        async with open_scan(client, source=LOG, resume_token=token, credit=ALL) as rest:
            await receive_rows(rest, 9)
            assert [offset for offset, _, _ in changes_of(rest)] == list(range(1, 10))
            assert (await end(rest))[
                1
            ] == "10"  # Of the whole scan, by which a client knows whether it has them.
        storage_of(server).truncate_log(5)
        late = await refusal(client, resume_token=token)
        assert isinstance(late, OffsetOutOfRange)
        assert "[5, 10)" in late.message


async def test_a_parked_tail_goes_on(mock_clock: trio.testing.MockClock) -> None:
    """Without credit for the park time it keeps no rows; with credit it goes on where it was."""
    async with serving_store(ScannerConfig(park_after_s=5.0)) as (server, client):
        await filled(client, range(200))
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=3000, batch_rows_max=20) as scan:
            await receive_rows(scan, 20)
            while not server.statistics().scans_parked:
                mock_clock.jump(1.0)
                await trio.testing.wait_all_tasks_blocked()
            await scan.demand(ALL)
            await receive_rows(scan, 200)
    assert [offset for offset, _, _ in changes_of(scan)] == list(range(200))


async def test_a_tail_that_is_inside_a_commit_names_the_end_of_the_one_before() -> None:
    """Resumed there and drained at once, or parked there: what it gives for a position can be begun at."""
    config = ScannerConfig(heartbeat_interval_s=0.05, park_after_s=0.1)
    async with serving_store(config) as (server, client):
        await filled(client, range(30), range(30, 90))
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL, batch_rows_max=20) as whole:
            await whole.receive_all()
        inside = next(n for n, each in enumerate(whole.changes) if each.end > 30 and not each.commit_end)
        token = whole.tokens[inside]
        async with open_scan(client, source=LOG, resume_token=token) as scan:
            await scan.drain()
            await scan.receive_all()
        assert scan.end is not None
        assert (scan.log_offset, scan.end.end_offset) == (whole.changes[inside].end, 30)
        async with open_scan(client, source=LOG, resume_token=token, credit=1, batch_rows_max=1) as scan:
            await receive_rows(scan, 1)
            while not (server.statistics().scans_parked and scan.heartbeats):
                await scan.receive()
            await scan.demand(ALL)
            await receive_rows(scan, 90 - scan.row_ordinal)
        assert {beat.position for beat in scan.heartbeats} <= {30, 90}
        assert [each.start for each in scan.changes[1:]] == [each.end for each in scan.changes[:-1]]


async def test_a_tail_drains_and_is_continued() -> None:
    """An early end, with a token; also while it waits for data."""
    async with serving_store() as (_, client):
        await filled(client, range(10))
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=ALL) as scan:
            await receive_rows(scan, 10)
            await scan.drain()
            await scan.receive_all()
        assert scan.end is not None
        assert (scan.end.reason, scan.end.end_offset) == (pb.ScanEnd.REASON_DRAINED, 10)
        await write(client, write_request(sample([10])))
        async with open_scan(client, source=LOG, resume_token=scan.end.resume_token, credit=ALL) as rest:
            await receive_rows(rest, 1)
        assert changes_of(rest) == [(10, "insert", 10)]


async def test_a_drain_waits_for_no_tail(nursery: trio.Nursery) -> None:
    """Tails end at once, typed and with tokens; a snapshot is finished first, and a scan with an end comes to it."""
    ended: dict[pb.ScanSource, ScannerError] = {}
    disk = MemoryDisk()
    async with serving(MemoryStore(disk=disk)) as (server, client):
        await filled(client, range(200))
        scans: dict[pb.ScanSource, RawScan] = {}

        async def run(
            source: pb.ScanSource, rows: int, credit: int, task_status: Any, **opening: Any
        ) -> None:
            async def follow() -> None:
                async with open_scan(
                    client, source=source, credit=credit, batch_rows_max=20, **opening
                ) as scan:
                    scans[source] = scan
                    await receive_rows(scan, rows)
                    task_status.started()
                    await scan.receive_all()

            ended[source] = await failure(follow)

        async def tail(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            await run(LOG, 200, ALL, task_status, log_start=EARLIEST)

        async def hybrid(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
            await run(HYBRID, 1, 1, task_status)

        await nursery.start(tail)
        await nursery.start(hybrid)
        async with open_scan(client, source=LOG, stop_at_end=True, credit=1) as bounded:
            await receive_rows(bounded, 1)
            drained = trio.Event()

            async def drain() -> None:
                assert await server.drain(600)
                drained.set()

            nursery.start_soon(drain)
            while LOG not in ended:
                await trio.lowlevel.checkpoint()
            assert HYBRID not in ended  # It is in its snapshot still.
            await scans[HYBRID].demand(ALL)
            await bounded.demand(ALL)
            await bounded.receive_all()
        await drained.wait()
    assert bounded.end is not None
    assert bounded.end.reason == pb.ScanEnd.REASON_STOP_OFFSET
    for error in ended.values():
        assert isinstance(error, Draining)
        assert error.retry_after_s > 0
    assert scans[HYBRID].rows == 200
    async with serving(MemoryStore(disk=disk)) as (_, client):
        await write(client, write_request(sample([1000])))
        for source, error in ended.items():
            assert error.resume_token
            async with open_scan(client, source=source, resume_token=error.resume_token, credit=ALL) as rest:
                await receive_rows(rest, 1)
            assert rest.row_ordinal == 200
            assert changes_of(rest) == [(200, "insert", 1000)]


async def test_a_dropped_table_ends_its_tails() -> None:
    """Typed, while they wait, never with an end of data."""
    async with serving_store() as (_, client):
        await filled(client, range(10))

        async def tail() -> None:
            async with open_scan(client, source=LOG, log_start=EARLIEST, credit=ALL) as scan:
                await receive_rows(scan, 10)
                await drop(client)
                await scan.receive_all()

        assert isinstance(await failure(tail), TableNotFound)


async def test_a_tail_keeps_its_columns_when_one_is_added() -> None:
    """Until it is opened anew; rows of the new schema come without the new column, and so does what it resumes."""
    async with serving_store() as (_, client):
        await filled(client, range(3))
        async with open_scan(client, source=LOG, log_start=EARLIEST, credit=ALL) as scan:
            await receive_rows(scan, 3)
            field = pa.schema([pa.field("more", pa.int64())])
            request = tables_pb2.AddColumnRequest(table="items", arrow_schema=field.serialize().to_pybytes())
            await client.call(TABLES + "AddColumn", request.SerializeToString())
            wider = sample([7]).append_column("more", pa.array([1], pa.int64()))
            await write(client, write_request(wider))
            await receive_rows(scan, 4)
        assert rows_of(scan)[-1]["id"] == 7
        told = [(beat.schema_id, beat.position) for beat in scan.heartbeats]
        assert (1, 3) in told  # at once, before the next commit
        assert scan.started is not None
        assert scan.started.schema_id == 0
        async with open_scan(
            client, source=LOG, resume_token=scan.tokens[0], stop_at_end=True, credit=ALL
        ) as rest:
            await receive_rows(rest, 1)
        assert rest.schema == scan.schema
        assert rest.started is not None
        assert (rest.started.schema_id, rest.heartbeats[0].schema_id) == (0, 1)
        async with open_scan(client, source=LOG, stop_at_end=True, credit=ALL) as fresh:
            await fresh.receive_all()
        assert [row["more"] for row in rows_of(fresh)] == [None, None, None, 1]
        assert fresh.started is not None
        assert fresh.started.schema_id == 1
        async with open_scan(client, source=HYBRID, stop_at_end=True, credit=ALL) as both:
            await both.receive_all()
        assert both.started is not None
        assert both.started.schema_id == 1
        assert not any(beat.schema_id != 1 for beat in (*both.heartbeats, *fresh.heartbeats))


@pytest.mark.parametrize("source", [LOG, HYBRID])
async def test_an_idle_tail_says_little(mock_clock: trio.testing.MockClock, source: pb.ScanSource) -> None:
    """One heartbeat in the long interval; the short one is kept to only while the position moves, and at the start.

    So a tail that something on the way cuts whenever it is silent for longer has made progress each time.
    """
    config = ScannerConfig(heartbeat_interval_s=5.0, tail_heartbeat_interval_s=30.0)
    async with serving_store(config) as (_, client):
        await filled(client, range(3))
        start = LATEST if source == LOG else None
        async with open_scan(client, source=source, log_start=start, credit=ALL) as scan:
            await scan.receive()
            while source == HYBRID and scan.snapshot_end is None:
                await scan.receive()
            for at_least_s, at_most_s in ((5, 7), (27, 32), (27, 32)):
                begun = trio.current_time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(scan.receive)
                    while nursery.child_tasks:
                        await trio.testing.wait_all_tasks_blocked()
                        mock_clock.jump(1.0)
                assert at_least_s <= trio.current_time() - begun <= at_most_s
            mock_clock.jump(10.0)
            rows = scan.rows
            await write(client, write_request(sample([3])))
            await receive_rows(scan, rows + 1)
    assert len(scan.heartbeats) == 3, "a batch comes by itself, however long nothing was sent before it"
    assert {beat.state for beat in scan.heartbeats} == {pb.Heartbeat.STATE_WAITING_DATA}


async def test_an_idle_tail_tells_a_floor_of_commit_times(mock_clock: trio.testing.MockClock) -> None:
    """Once everything was delivered, and not before: what is committed later has a later time, in either source."""
    config = ScannerConfig(heartbeat_interval_s=1.0, tail_heartbeat_interval_s=3.0)
    async with serving_store(config) as (server, client):
        await filled(client, range(3))
        for source in (LOG, HYBRID):
            start = EARLIEST if source == LOG else None
            async with open_scan(client, source=source, log_start=start, credit=1, batch_rows_max=1) as scan:
                await receive_rows(scan, 1)
                await beat(scan, mock_clock)
                assert not scan.heartbeats[-1].HasField("commit_time_floor_us")
                await scan.demand(ALL)
                await receive_rows(scan, 3)
                for _ in range(2):
                    await beat(scan, mock_clock)
                    await beat(scan, mock_clock)
                    floor_us = scan.heartbeats[-1].commit_time_floor_us
                    position = scan.heartbeats[-1].position
                    assert scan.heartbeats[-2].commit_time_floor_us < floor_us
                    assert position == storage_of(server).log_end
                    rows = scan.rows
                    await write(client, write_request(sample([position])))
                    await receive_rows(scan, rows + 1)
                    assert storage_of(server).entry_at(position).timestamp_us > floor_us


async def beat(scan: RawScan, mock_clock: trio.testing.MockClock) -> None:
    """Let time pass until a heartbeat comes."""
    beats = len(scan.heartbeats)
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            while len(scan.heartbeats) == beats:
                await scan.receive()

        nursery.start_soon(listen)
        while nursery.child_tasks:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1.0)


async def test_columns_of_the_change_can_be_left_out_or_asked_for() -> None:
    """As any other column, in the order in which they are asked for."""
    async with serving_store() as (_, client):
        await filled(client, range(3))
        query = pb.ScanQuery(table="items", columns=["_change_type", "id"])
        async with open_scan(client, source=HYBRID, query=query, stop_at_end=True, credit=ALL) as scan:
            await scan.receive_all()
        assert scan.schema is not None
        assert scan.schema.names == ["_change_type", "id"]
        assert scan.table().column("id").to_pylist() == [0, 1, 2]


def split(scan: RawScan, rows: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first rows, and those behind them."""
    everything = rows_of(scan)
    return everything[:rows], everything[rows:]


def rows_of(scan: RawScan) -> list[dict[str, Any]]:
    """All rows that came."""
    return list(itertools.chain.from_iterable(batch.to_pylist() for batch in scan.batches))


async def ordinal(scan: RawScan) -> int:
    """The ordinal of the first row, which the start tells."""
    await scan.receive()
    return scan.row_ordinal


async def refusal(client: transport.Client, **opening: Any) -> ScannerError:
    """What a scan of the log is told that cannot be opened."""

    async def attempt() -> None:
        async with open_scan(client, **{"source": LOG, "credit": ALL, **opening}) as scan:
            await scan.receive_all()

    return await failure(attempt)
