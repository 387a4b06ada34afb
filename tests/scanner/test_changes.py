"""Changes in the client: tails, snapshots with their log, bookmarks; cut and continued, in both clients."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

import scanner
from scanner import ScanSource
from scanner.errors import (
    ArgumentInvalid,
    ColumnNotFound,
    OffsetOutOfRange,
    ScannerError,
    TooManyFiles,
    TooManyScans,
)
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from transport import TransportConfig

if TYPE_CHECKING:
    from scanner.server.server import Server

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
BUCKETS = 3

State = dict[int, str | None]


@asynccontextmanager
async def serving(
    streams_max: int = 100, scans_max: int = 100, buckets_open_max: int = 100
) -> AsyncIterator[tuple[Server, scanner.Table]]:
    """A server, and a table of some buckets in it."""
    config, transport_config = (
        ScannerConfig(heartbeat_interval_s=0.05, scans_max=scans_max, buckets_open_max=buckets_open_max),
        TransportConfig(streams_max=streams_max),
    )
    with trio.fail_after(100):
        async with open_client(MemoryStore(), config, transport_config=transport_config) as (client, server):
            yield server, await client.create_table("items", SCHEMA, ["id"], buckets=BUCKETS)


def batch(state: State) -> pa.RecordBatch:
    """Rows to write."""
    return pa.record_batch([list(state), list(state.values())], schema=SCHEMA)


class Fold:
    """A table made of changes. A change that does not follow from those before it is an error."""

    def __init__(self) -> None:
        self.state: State = {}
        self.next: dict[int, int] = {}

    def apply(self, bucket: int, changes: pa.RecordBatch) -> None:
        """Apply a batch of one bucket."""
        for row in changes.to_pylist():
            key, text, kind, offset = row["id"], row["text"], row["_change_type"], row["_log_offset"]
            if offset is not None:
                assert offset == self.next.get(bucket, offset), "a change was lost or came twice"
                self.next[bucket] = offset + 1
            if kind in ("insert", "update_postimage"):
                assert key not in self.state
                self.state[key] = text
            else:
                assert kind in ("delete", "update_preimage")
                assert self.state.pop(key) == text


async def test_a_snapshot_and_its_log_fold_to_the_table_while_it_is_written() -> None:
    """Cut after every few batches, under a writer: at every end of the log the fold is the table."""
    async with serving() as (_, table):
        truth: State = {key: f"{key}" for key in range(300)}
        await table.write(batch(truth))

        async def write() -> None:
            for number in range(40):
                fresh: State = {key: f"{key} {number}" for key in range(number, 300 + number, 37)}
                await table.write(batch(fresh))
                truth.update(fresh)
                await table.delete([(number * 5,)])
                truth.pop(number * 5, None)

        fold = Fold()
        scan = table.new_scan().with_source(ScanSource.HYBRID).with_credit(20_000).resume_every_batches(2)
        async with scan.execute() as changes, trio.open_nursery() as nursery:
            nursery.start_soon(write)
            async for each in changes:
                assert changes.bucket is not None
                fold.apply(changes.bucket, each)
                ends = {each.bucket: each.end_offset for each in await table.offsets()}
                complete = len(changes.snapshot_ends) == BUCKETS and changes.positions == ends
                if complete and fold.state == truth and max(truth) > 330:
                    break
        assert changes.statistics().resumes > 0
        assert fold.state == truth


async def test_positions_are_where_a_tail_goes_on() -> None:
    """Stored by the user, in another connection: nothing lost, nothing twice."""
    async with serving() as (_, table):
        await table.write(batch(dict.fromkeys(range(50), "first")))
        fold = Fold()
        async with table.new_scan().with_source("log").execute() as tail:
            while len(fold.state) < 50:
                part = await anext(tail)
                assert tail.bucket is not None
                fold.apply(tail.bucket, part)
            positions = tail.positions
        assert sum(positions.values()) == 50
        await table.write(batch(dict.fromkeys(range(25, 75), "second")))
        scan = table.new_scan().with_source("log").start_at(positions).stop_at("end")
        async with scan.execute() as rest:
            async for part in rest:
                assert rest.bucket is not None
                fold.apply(rest.bucket, part)
        assert fold.state == {key: "first" if key < 25 else "second" for key in range(75)}
        assert rest.positions == {each.bucket: each.end_offset for each in await table.offsets()}


async def test_a_filter_and_a_projection() -> None:
    """Each change passes by its own row, so that an update may show one half; positions move all the same."""
    async with serving() as (_, table):
        await table.write(batch({1: "a", 2: "b", 3: "a"}))
        await table.write(batch({1: "b", 2: "a"}))
        scan = (
            table.new_scan()
            .with_source("log")
            .select("_change_type", "id")
            .where(scanner.col("text") == "a")
            .stop_at("end")
        )
        async with scan.execute() as tail:
            found = [tuple(row.values()) async for part in tail for row in part.to_pylist()]
        assert sorted(found) == [
            ("insert", 1),
            ("insert", 3),
            ("update_postimage", 2),
            ("update_preimage", 1),
        ]
        assert tail.positions == {each.bucket: each.end_offset for each in await table.offsets()}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("source", ["log", "hybrid"])
async def test_a_commit_comes_whole(source: str, cut: bool) -> None:
    """Asked for so, a batch of changes ends where a commit does, however small the credit is and however it is cut."""
    async with serving() as (_, table):
        await table.write(batch(dict.fromkeys(range(20), "first")))
        scan = table.new_scan().with_source(source).with_whole_commits().with_credit(1)
        if cut:
            scan = scan.resume_every_batches(2)
        fold = Fold()
        async with scan.execute() as changes:
            while len(fold.state) < 20:
                part = await anext(changes)
                assert changes.bucket is not None
                fold.apply(changes.bucket, part)
            for text in ("second", "third"):
                await table.write(batch(dict.fromkeys(range(20), text)))
            ends = {each.bucket: each.end_offset for each in await table.offsets()}
            while changes.positions != ends:
                part = await anext(changes)
                assert changes.bucket is not None
                fold.apply(changes.bucket, part)
                assert changes.positions[changes.bucket] == fold.next[changes.bucket]
                assert len({fold.state[key] for key in part["id"].to_pylist()}) == 1, "half of a commit"
        assert fold.state == dict.fromkeys(range(20), "third")
        assert (changes.statistics().resumes > 0) == cut


async def test_a_commit_of_which_the_last_changes_do_not_pass_comes_whole() -> None:
    """What a filter drops is told by a position without rows: what has come before it goes out then."""
    async with serving() as (server, _), scanner.connect(f"{server.host}:{server.port}") as client:
        table = await client.create_table("large", SCHEMA, ["id"], buckets=1)
        # More than the server reads at a time.
        await table.write(batch({key: "kept" if key < 30 else 1000 * "x" for key in range(600)}))
        scan = table.new_scan().with_source("log").where(scanner.col("text") == "kept").with_credit(1)
        async with scan.with_whole_commits().stop_at("end").execute() as changes:
            parts = [part["id"].to_pylist() async for part in changes]
        assert parts == [list(range(30))]
        assert changes.positions == {0: 600}


async def test_a_tail_waits_for_what_is_not_there_yet(autojump_clock: trio.testing.MockClock) -> None:
    """Silence is no failure, longer than a dead line is waited for: heartbeats say that the server lives."""
    async with serving() as (_, table):
        with trio.move_on_after(90) as waited:
            async with table.new_scan().with_source("log").start_at("latest").execute() as tail:
                await anext(tail)
        assert waited.cancelled_caught


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda scan: scan.with_source("log").start_at("newest"), "earliest"),
        (lambda scan: scan.with_source("log").start_at(-1), "start_at"),
        (lambda scan: scan.with_source("log").start_at(datetime.date(2020, 1, 1)), "a datetime"),
        (
            lambda scan: scan.with_source("log").start_at(datetime.datetime(2999, 1, 1)).execute(),
            "2999-01-01T",
        ),
        (lambda scan: scan.with_source("log").start_at(datetime.datetime.max).execute(), "in the future"),
        (lambda scan: scan.with_source("log").start_at({0: 0, 1: 0, 2: 0, 3: 0}), "0..2, not 3"),
        (lambda scan: scan.with_source("log").stop_at(datetime.datetime(2020, 1, 1)), "stop_at takes"),
        (lambda scan: scan.with_source("log").stop_at(-1), "stop_at"),
        (lambda scan: scan.with_source("log").stop_at({7: 0}), "bucket"),
        (lambda scan: scan.with_source("log").start_at({0: 0}).execute(), "bucket 1"),
        (lambda scan: scan.start_at("latest").execute(), "source LOG"),
        (lambda scan: scan.with_source("hybrid").start_at("latest").execute(), "source LOG"),
        (lambda scan: scan.stop_at("end").execute(), "LOG and HYBRID"),
        (lambda scan: scan.with_source("log").key_prefix((1,)).execute(), "key range"),
        (lambda scan: scan.with_source("log").as_of(3).execute(), "as_of"),
        (lambda scan: scan.select("_change_type"), "_change_type"),
        (lambda scan: scan.with_whole_commits().execute(), "no commits"),
        (lambda scan: scan.with_source("log").with_whole_commits().limit(3).execute(), "limit"),
        (
            lambda scan: scan.with_source("log").with_mode("fetch").with_whole_commits().execute(),
            "mode push",
        ),
        (lambda scan: scan.with_source("log").with_whole_commits().in_group("g").execute(), "of a group"),
    ],
)
async def test_what_makes_no_sense_is_refused(build: Any, says: str) -> None:
    """At the call, or when the scan is executed; in one line."""
    async with serving() as (_, table):
        with pytest.raises((ArgumentInvalid, ColumnNotFound), match=says):
            async with build(table.new_scan()) as changes:
                await anext(changes)


async def test_a_start_that_is_gone_is_out_of_range() -> None:
    """Typed, with the oldest offset that is left."""
    async with serving() as (server, table):
        await table.write(batch(dict.fromkeys(range(50), "first")))
        for _, _, bucket in server._services.catalog.open_buckets():
            bucket.storage.truncate_log(bucket.storage.log_end)
        with pytest.raises(OffsetOutOfRange) as refused:
            async with table.new_scan().with_source("log").start_at(0).execute() as tail:
                await anext(tail)
        assert refused.value.oldest_offset


async def test_a_hybrid_scan_whose_stop_the_log_has_passed() -> None:
    """Its snapshot is as of the stop: what was written since the client asked for the ends is in neither half."""
    async with serving() as (_, table):
        before: State = dict.fromkeys(range(50), "before")
        await table.write(batch(before))
        ends = {each.bucket: each.end_offset for each in await table.offsets()}
        await table.write(batch(dict.fromkeys(range(25, 75), "after")))
        for retried in (False, True):
            fold = Fold()
            scan = table.new_scan().with_source("hybrid").stop_at(ends)
            if retried:
                scan = scan.with_credit(1).resume_every_batches(1)
            async with scan.execute() as changes:
                async for part in changes:
                    assert changes.bucket is not None
                    fold.apply(changes.bucket, part)
            assert fold.state == before
            assert changes.positions == changes.snapshot_ends == ends
        later = {each.bucket: each.end_offset for each in await table.offsets()}
        with pytest.raises(ArgumentInvalid, match=r"the stop offset \d+ is before"):
            async with scan.as_of(later).execute() as changes:
                await anext(changes)


async def test_a_time_to_start_at() -> None:
    """With or without a zone: UTC is meant."""
    async with serving() as (_, table):
        await table.write(batch({1: "a"}))
        async with table.new_scan().with_source("log").stop_at("end").execute() as tail:
            (first,) = [part async for part in tail]
        time = first.column("_commit_timestamp")[0].as_py()
        later = time + datetime.timedelta(microseconds=1)
        for start, rows in [(time, 1), (time.replace(tzinfo=None), 1), (later, 0)]:
            scan = table.new_scan().with_source("log").start_at(start).stop_at("end")
            async with scan.execute() as tail:
                assert sum([part.num_rows async for part in tail]) == rows


@pytest.mark.parametrize("source", ["log", "hybrid"])
@pytest.mark.parametrize("calls", [1, BUCKETS - 1])
async def test_a_tail_of_more_buckets_than_a_connection_has_calls(source: str, calls: int) -> None:
    """None of its buckets ends by itself, so they get more connections, and other calls do not wait for them."""
    async with serving(streams_max=calls) as (_, table):
        written: State = {key: f"{key}" for key in range(50)}
        await table.write(batch(written))
        tail = table.new_scan().with_source(source)
        fetched = table.new_scan().with_source("log").with_mode("fetch").limit(50)
        for each in (tail.limit(50), tail.stop_at("end"), fetched):
            fold = Fold()
            async with each.execute() as changes:
                async for part in changes:
                    assert changes.bucket is not None
                    fold.apply(changes.bucket, part)
            assert fold.state == written


@pytest.mark.parametrize(("cap", "error"), [("scans_max", TooManyScans), ("buckets_open_max", TooManyFiles)])
async def test_a_tail_that_finds_no_place_for_a_bucket_fails(cap: str, error: type[ScannerError]) -> None:
    """What the others bring, however long, is no reason to ask for one for ever."""
    async with serving(**{cap: BUCKETS - 1}) as (_, table):
        async with table.new_scan().with_source("log").with_retries(2).execute() as changes:
            with pytest.raises(error, match="after 3 attempts"):
                for number in itertools.count():
                    for key in range(20):
                        with suppress(TooManyFiles):  # Of the bucket without a place.
                            await table.write(batch({key: f"{number}"}))
                    await anext(changes)
