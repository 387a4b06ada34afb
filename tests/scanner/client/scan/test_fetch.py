"""Changes by long poll through the client: those of push, with its positions, ends, limits and retries."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import scanner
import scanner.sync
from scanner import ArgumentInvalid, DataCorrupted, OffsetOutOfRange, SchemaMismatch, SourceUnsupported, col
from scanner.client.scan.fetch_receiver import FetchedRows, FetchOptions, FetchReceiver
from scanner.client.scan.statistics import BucketProgress
from scanner.data.changes import ChangeRange
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from scanner.wire.arrow_ipc import encode_rows, encode_schema
from scanner.wire.batches import FetchedBatch, encode_fetched
from tests.scanner.client.scan.test_pull import cut_client
from tests.support.client import open_client
from tests.support.scans import SCHEMA, sample

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.client.scan.table_scan import Batches
    from scanner.server.server import Server

BUCKETS = 3
Commit = tuple[bool, frozenset[int]]
"""Whether it deletes, and which ids."""

ids = st.frozensets(st.integers(0, 30), min_size=1, max_size=20)
commits = st.lists(st.tuples(st.booleans(), ids), min_size=1, max_size=8)


@asynccontextmanager
async def serving_items(
    *written: Commit, config: ScannerConfig | None = None, buckets: int = BUCKETS
) -> AsyncIterator[tuple[Server, scanner.Table]]:
    """The sample table, with these commits."""
    async with open_client(MemoryStore(), config=config or ScannerConfig()) as (client, server):
        table = await client.create_table("items", SCHEMA, primary_key=["id"], buckets=buckets)
        for each in written:
            await commit(table, each)
        yield server, table


async def commit(table: scanner.Table, change: Commit) -> None:
    """Write or delete rows."""
    deletes, chosen = change
    if deletes:
        await table.delete([(each,) for each in sorted(chosen)])
    else:
        await table.write(sample(sorted(chosen)))


async def by_bucket(changes: Batches) -> dict[int, list[dict[str, Any]]]:
    """All changes of a scan."""
    found: dict[int, list[dict[str, Any]]] = {}
    async for batch in changes:
        assert changes.bucket is not None
        found.setdefault(changes.bucket, []).extend(batch.to_pylist())
    return found


def both(table: scanner.Table) -> tuple[scanner.Scan, scanner.Scan]:
    """The same scan of the log by push and by fetch."""
    scan = table.new_scan().with_source("log").stop_at("end")
    return scan, scan.with_mode("fetch")


@settings(max_examples=15)
@given(commits, st.sampled_from([1, 900, 5_000, None]), st.integers(0, 2), st.booleans(), st.data())
def test_push_and_fetch_read_the_same(
    written: list[Commit], page_bytes: int | None, depth: int, filtered: bool, data: st.DataObject
) -> None:
    """The same changes, bucket by bucket, and the same positions; from any of them the rest is the same, too."""

    async def main() -> None:
        async with serving_items(*written) as (_, table):
            push, fetch = both(table)
            if page_bytes is not None:
                fetch = fetch.with_page_bytes(page_bytes)
            fetch = fetch.with_page_depth(depth)
            if filtered:
                push, fetch = (
                    each.where(col("id") < 15).select("id", "_change_type") for each in (push, fetch)
                )
            async with push.execute() as pushed, fetch.execute() as fetched:
                assert await by_bucket(pushed) == await by_bucket(fetched)
                assert fetched.positions == pushed.positions
                assert fetched.statistics().rows == pushed.statistics().rows
                ends = fetched.positions
            middle = {bucket: data.draw(st.integers(0, end)) for bucket, end in ends.items()}
            first = second = None
            async with push.start_at(middle).execute() as pushed, fetch.start_at(middle).execute() as fetched:
                try:
                    first = await by_bucket(pushed)
                except ArgumentInvalid:
                    with pytest.raises(ArgumentInvalid, match="inside the commit"):
                        await by_bucket(fetched)
                else:
                    second = await by_bucket(fetched)
            assert first == second

    trio.run(main)


async def test_fetch_follows_a_table_that_is_written() -> None:
    """A commit wakes the request that waits: one request for each of them, and none for the time between."""
    async with serving_items((False, frozenset(range(5)))) as (server, table):
        scan = table.new_scan().with_source("log").with_mode("fetch").start_at("latest").with_max_wait(30)
        async with scan.execute() as changes:
            while server.statistics().fetches_open < 1 or changes.statistics().requests < 2:
                await trio.lowlevel.checkpoint()
            got: list[int] = []
            for number in range(5, 12):
                await table.write(sample([number]))
                got += (await anext(changes))["id"].to_pylist()
            assert got == list(range(5, 12))
            assert sum(changes.positions.values()) == 12
            assert changes.statistics().requests <= 10


async def test_a_position_goes_on() -> None:
    """Each change once over any number of scans, each of which takes up where the one before it was."""
    written: list[Commit] = [(False, frozenset(range(n, n + 9))) for n in range(0, 60, 5)]
    async with serving_items(*written) as (_, table):
        push, fetch = both(table)
        async with push.execute() as pushed:
            whole = await by_bucket(pushed)
        parts: dict[int, list[dict[str, Any]]] = {}
        places: Mapping[int, int] = dict.fromkeys(range(BUCKETS), 0)
        for _ in range(40):
            async with fetch.start_at(places).with_page_bytes(1_500).execute() as fetched:
                batches = 0
                held: dict[int, list[dict[str, Any]]] = {}
                async for batch in fetched:
                    assert fetched.bucket is not None
                    held.setdefault(fetched.bucket, []).extend(batch.to_pylist())
                    batches += 1
                    if batches == 6:
                        break
                places = {**places, **fetched.positions}
            for bucket, rows in held.items():
                parts.setdefault(bucket, []).extend(
                    row for row in rows if row["_log_offset"] < places[bucket]
                )
        assert parts == whole


@pytest.mark.parametrize("buckets", [1, BUCKETS])
@pytest.mark.parametrize("limit", [0, 1, 7, 50, 1_000])
async def test_a_limit_ends_it(buckets: int, limit: int) -> None:
    """Exactly so many rows, if there are as many; an endless scan ends by that, too."""
    async with serving_items((False, frozenset(range(60))), buckets=buckets) as (_, table):
        scan = table.new_scan().with_source("log").with_mode("fetch").limit(limit)
        if limit > 60:
            scan = scan.stop_at("end")
        async with scan.execute() as changes:
            rows = sum([batch.num_rows async for batch in changes])
            assert rows == min(limit, 60)
            if buckets == 1:
                assert changes.statistics().buckets[0].reason == ("LIMIT" if limit <= 60 else "STOP_OFFSET")


async def test_what_cannot_be_fetched_is_refused() -> None:
    """Only changes travel so, and changes travel by no other pull; bounds that are not there are named."""
    async with serving_items((False, frozenset(range(5))), buckets=1) as (_, table):
        scan = table.new_scan().with_mode("fetch")
        for source in ("live_kv", "snapshot", "hybrid"):
            with pytest.raises(SourceUnsupported, match="mode fetch reads LOG only"):
                async with scan.with_source(source).execute():
                    pass
        with pytest.raises(SourceUnsupported, match="LIVE_KV only"):
            async with scan.with_source("log").with_mode("token").execute():
                pass
        log = scan.with_source("log")
        with pytest.raises(OffsetOutOfRange, match=r"bucket 0: .* 9 .*\[0, 5\)"):
            async with log.start_at(9).execute() as changes:
                await anext(changes)
        with pytest.raises(ArgumentInvalid, match="inside the commit"):
            async with log.stop_at(3).execute() as changes:
                await anext(changes)
        with pytest.raises(ArgumentInvalid, match="for ever"):
            await log.to_arrow()
        for refused in (-1.0, 4_000, True, "1"):
            with pytest.raises(ArgumentInvalid, match="wait"):
                log.with_max_wait(refused)  # type: ignore[arg-type]
        with pytest.raises(ArgumentInvalid, match="min bytes"):
            log.with_min_bytes(-1)
        assert (await log.with_min_bytes(0).stop_at("end").to_arrow()).num_rows == 5
        for no_stop in ("latest", "", True):
            with pytest.raises(ArgumentInvalid, match="stop_at takes 'end', an offset or None"):
                log.stop_at(no_stop)


async def test_a_lost_connection_is_gone_on_from() -> None:
    """Over another one, behind what has come."""
    async with serving_items((False, frozenset(range(300))), buckets=1) as (server, _):
        async with cut_client(server, itertools.chain([20_000] * 4, itertools.repeat(1 << 40))) as client:
            scan = (await client.table("items")).new_scan().with_source("log").with_mode("fetch")
            async with scan.with_page_bytes(2_000).stop_at("end").execute() as changes:
                found = [each async for batch in changes for each in batch["_log_offset"].to_pylist()]
        assert found == list(range(300))
        assert changes.statistics().resumes > 0


def answered(
    receiver: FetchReceiver,
    start: int,
    end: int,
    count: int,
    position: int | None = None,
    table_id: int | None = None,
    bookmark: int | None = None,
    bucket: int = 0,
    more: Sequence[ChangeRange] = (),
    schema: pa.Schema = SCHEMA,
) -> list[FetchedRows]:
    """What an answer brings of a bucket: so many rows that cover these changes, and where to go on.

    Behind them there may be more batches, of a row for each change.
    """
    answer = pb.FetchLogResponse(arrow_schema=encode_schema(schema), table_id=table_id)
    position = end if position is None else position
    encoded = encode_rows(sample(range(count)))
    batches = [FetchedBatch(count, encoded, ChangeRange(start, end, commit_end=True))]
    for each in more:
        rows = max(0, each.end - each.start)
        batches.append(FetchedBatch(rows, encode_rows(sample(range(rows))), each))
    fields = pb.FetchedBucket(
        bucket=bucket,
        start_offset=start,
        position=position,
        bookmark=end if bookmark is None else bookmark,
        high_watermark=end,
        history=b"h",
    )
    return receiver.receive(b"".join(encode_fetched(answer, [(fields, batches)])))[0]


def asking(
    start: pb.LogStart, *, filtered: bool, stop: int | None = None, limit: int | None = None
) -> FetchReceiver:
    """The fetches of one bucket from here on."""
    options = FetchOptions(min_bytes=1, max_wait_s=0.5, bucket_bytes=1000)
    query = pb.ScanQuery(filter=[pb.Predicate()] if filtered else [], table_id=3)
    positions, progress = (
        [pb.FetchPosition(bucket=0, start=start, stop_offset=stop)],
        {0: BucketProgress(bucket=0)},
    )
    return FetchReceiver(
        "items", query, SCHEMA, positions, progress, options, stop_at_end=False, row_limit=limit
    )


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("begun", [4, 6])
def test_a_fetch_that_begins_elsewhere_than_it_was_asked_to_is_noticed(begun: int, filtered: bool) -> None:
    """What lies between would be lost, or come twice. Where no offset was named, the server says where it is."""
    receiver = asking(pb.LogStart(offset=5), filtered=filtered)
    with pytest.raises(DataCorrupted, match=f"begins at log offset {begun}, and was asked to begin at 5"):
        answered(receiver, begun, begun + 2, 2)
    assert [each.position for each in answered(receiver, 5, 7, 2)] == [7]
    assert [each.position for each in answered(asking(pb.LogStart(), filtered=filtered), 6, 8, 2)] == [8]


def test_a_fetch_of_other_columns_is_noticed() -> None:
    """The table was replaced by one of the same name; an older server names no id of it."""
    with pytest.raises(SchemaMismatch):
        answered(asking(pb.LogStart(offset=5), filtered=False), 5, 7, 2, schema=SCHEMA.remove(1))


def test_a_fetched_batch_without_some_of_its_changes_is_noticed() -> None:
    """Only a filter leaves changes out."""
    with pytest.raises(DataCorrupted, match=r"covers the changes \[5, 8\) has 2 rows"):
        answered(asking(pb.LogStart(offset=5), filtered=False), 5, 8, 2)
    assert [each.position for each in answered(asking(pb.LogStart(offset=5), filtered=True), 5, 8, 2)] == [8]
    with pytest.raises(DataCorrupted, match=r"covers the changes \[5, 8\) has 4 rows"):
        answered(asking(pb.LogStart(offset=5), filtered=True), 5, 8, 4)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(("start", "end"), [(6, 8), (8, 9), (7, 7)])
def test_fetched_batches_that_do_not_follow_each_other_are_noticed(
    start: int, end: int, filtered: bool
) -> None:
    """Changes would come twice or be lost, also where a filter leaves some out; a batch of none is no batch."""
    wrong = ChangeRange(start, end, commit_end=True)
    with pytest.raises(DataCorrupted, match=rf"covers \[{start}, {end}\), and changes up to 7 have come"):
        answered(asking(pb.LogStart(offset=5), filtered=filtered), 5, 7, 2, position=end, more=[wrong])


def test_a_position_apart_from_the_changes_is_noticed() -> None:
    """Some would come twice, or be lost; behind a filter there may be changes that it left out."""
    for filtered, position, bookmark in (False, 6, 6), (True, 6, 6), (False, 8, 7), (True, 8, 9):
        with pytest.raises(DataCorrupted, match=rf"at log offset {position}, but changes up to 7 have come"):
            answered(
                asking(pb.LogStart(offset=5), filtered=filtered),
                5,
                7,
                2,
                position=position,
                bookmark=bookmark,
            )
    rows = answered(asking(pb.LogStart(offset=5), filtered=True), 5, 7, 2, position=8, bookmark=8)
    assert [each.position for each in rows] == [7, 8]


def test_the_changes_of_another_bucket_are_no_answer() -> None:
    """They would be told, and gone on from, as those of the bucket that was asked for."""
    with pytest.raises(DataCorrupted, match="of other buckets than its request"):
        answered(asking(pb.LogStart(offset=5), filtered=False), 5, 7, 2, bucket=1)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_fetch_past_its_stop_is_noticed(filtered: bool) -> None:
    """Its position would be told, and what lies behind the stop was not read."""
    for end, position in (7, 9), (9, 9):
        with pytest.raises(DataCorrupted, match="goes on at log offset 9"):
            answered(
                asking(pb.LogStart(offset=5), filtered=filtered, stop=7), 5, end, end - 5, position=position
            )
    rows = answered(asking(pb.LogStart(offset=5), filtered=filtered, stop=7), 5, 7, 2)
    assert [each.position for each in rows] == [7]


def test_a_position_that_goes_back_is_noticed() -> None:
    """Who stored it would get again what had come before it; inside a commit it stays where it is."""
    receiver = asking(pb.LogStart(offset=5), filtered=False)
    assert [each.position for each in answered(receiver, 5, 7, 2)] == [7]
    with pytest.raises(DataCorrupted, match="a commit ends at 6 where one has ended at 7"):
        answered(receiver, 7, 9, 2, bookmark=6)
    assert answered(receiver, 7, 9, 2, bookmark=7)


def test_what_a_limit_cuts_is_told_without_a_position() -> None:
    """Who went on from behind the commit would never get the rest of it; a commit that just fits is told whole."""
    receiver = asking(pb.LogStart(offset=5), filtered=False, limit=5)
    told = answered(receiver, 5, 9, 4) + answered(receiver, 9, 12, 3)
    assert [(each.batch.num_rows, each.position) for each in told] == [(4, 9), (1, None)]
    assert receiver.ended
    whole = answered(asking(pb.LogStart(offset=5), filtered=False, limit=4), 5, 9, 4)
    assert [(each.batch.num_rows, each.position) for each in whole] == [(4, 9)]


@pytest.mark.parametrize("page_bytes", [1 << 20, 100])
async def test_a_limit_inside_a_commit_is_gone_on_from(page_bytes: int) -> None:
    """From the position of the first scan comes the rest of the commit that was cut, in one page or many."""
    written = [(False, frozenset(range(first, first + 20))) for first in (0, 20, 40)]
    async with serving_items(*written, buckets=1) as (_, table):
        scan = table.new_scan().with_source("log").with_mode("fetch").with_page_bytes(page_bytes)
        async with scan.stop_at("end").limit(27).execute() as changes:
            assert sum([batch.num_rows async for batch in changes]) == 27
        told = changes.positions.get(0, 0)
        assert told in (0, 20)
        async with scan.stop_at("end").start_at(told).execute() as rest:
            offsets = [each async for batch in rest for each in batch["_log_offset"].to_pylist()]
        assert offsets == list(range(told, 60))


def test_buckets_that_brought_something_wait_for_the_others() -> None:
    """Else those in front could fill each answer, and the last one starve."""
    options = FetchOptions(min_bytes=1, max_wait_s=0.5, bucket_bytes=1000)
    positions = [pb.FetchPosition(bucket=each, start=pb.LogStart(offset=0)) for each in range(4)]
    progress = {each: BucketProgress(bucket=each) for each in range(4)}
    receiver = FetchReceiver(
        "items", pb.ScanQuery(), SCHEMA, positions, progress, options, stop_at_end=False, row_limit=None
    )

    def order() -> list[int]:
        return [each.bucket for each in receiver.next_request().positions]

    def answer(*busy: int) -> None:
        """Two rows more of each of these."""
        encoded, parts = encode_rows(sample(range(2))), []
        for each in order():
            start = receiver.next_request().positions[order().index(each)].offset
            batch = FetchedBatch(2, encoded, ChangeRange(start, start + 2, commit_end=True))
            end = start + 2 if each in busy else start
            fields = pb.FetchedBucket(
                bucket=each,
                start_offset=start,
                position=end,
                bookmark=end,
                high_watermark=end,
                history=b"h",
            )
            parts.append((fields, [batch] if each in busy else []))
        receiver.receive(
            b"".join(encode_fetched(pb.FetchLogResponse(arrow_schema=encode_schema(SCHEMA)), parts))
        )

    answer(0, 2)
    assert order() == [1, 3, 0, 2]
    answer(1, 0)
    assert order() == [3, 2, 1, 0]
    answer()
    assert order() == [3, 2, 1, 0]


def test_only_the_first_fetch_waits_for_nothing_and_those_behind_it_name_the_history() -> None:
    """By the history a server notices that the offset is one of another log; the schema need not come again."""
    receiver = asking(pb.LogStart(offset=5), filtered=False)
    first = receiver.next_request()
    assert (first.max_wait_ms, first.with_schema, first.positions[0].history) == (0, True, b"")
    answered(receiver, 5, 7, 2)
    second = receiver.next_request()
    assert (second.max_wait_ms, second.with_schema) == (500, False)
    assert (second.positions[0].offset, second.positions[0].history) == (7, b"h")


def test_a_bucket_that_has_not_answered_is_asked_as_in_the_first_request() -> None:
    """It could not be opened: while one is so, nothing is waited for, and the answer names the columns."""
    positions = [pb.FetchPosition(bucket=bucket, start=pb.LogStart(earliest=True)) for bucket in (0, 1)]
    progress = {bucket: BucketProgress(bucket=bucket) for bucket in (0, 1)}
    options = FetchOptions(min_bytes=1, max_wait_s=0.5, bucket_bytes=1_000)
    receiver = FetchReceiver(
        "items", pb.ScanQuery(), SCHEMA, positions, progress, options, stop_at_end=True, row_limit=None
    )
    read = pb.FetchedBucket(bucket=0, start_offset=2, position=2, bookmark=2, high_watermark=7, history=b"h")
    unread = pb.FetchedBucket(bucket=1, error=pb.FetchError(reason="STORE_FAILED"))
    _, error = receiver.receive(b"".join(encode_fetched(pb.FetchLogResponse(), [(read, []), (unread, [])])))
    assert error is not None
    second = receiver.next_request()
    assert (second.max_wait_ms, second.with_schema) == (0, True)
    assert [each.HasField("stop_offset") for each in second.positions] == [True, False]


def test_the_blocking_client_fetches(tmp_path: Any) -> None:
    """The same calls, without trio."""
    from tests.support.server import running_server

    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", SCHEMA, primary_key=["id"], buckets=2)
        table.write(sample(range(10)))
        scan = table.new_scan().with_source("log").with_mode("fetch").with_min_bytes(1).with_max_wait(0.1)
        with scan.stop_at("end").execute() as changes:
            found = sorted(each for batch in changes for each in batch["id"].to_pylist())
        assert found == list(range(10))
        assert sum(changes.positions.values()) == 10


def test_the_changes_of_another_table_are_no_answer() -> None:
    """They would be taken for those of the table that is asked about. A server that names none is believed."""
    receiver = asking(pb.LogStart(earliest=True), filtered=False)
    with pytest.raises(DataCorrupted, match="FetchLog was asked about 3, and the answer is about 7"):
        answered(receiver, 0, 5, 5, table_id=7)
    assert [each.batch.num_rows for each in answered(receiver, 0, 5, 5, table_id=3)] == [5]
    assert [each.batch.num_rows for each in answered(receiver, 5, 8, 3)] == [3]
