"""A scan that goes on at a position, in another client and at another server: both halves are one scan."""

from __future__ import annotations

import datetime
import json
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest
import trio
import trio.testing

import scanner
import scanner.sync
from scanner import col
from scanner.errors import (
    ArgumentInvalid,
    ResumeTokenInvalid,
    ScannerError,
    SchemaMismatch,
    SnapshotLost,
    SourceUnsupported,
)
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from tests.support.client import open_client, rows
from tests.support.hosts import Script, hang, scripted_table
from tests.support.push_messages import rows as rows_message
from tests.support.push_messages import started
from tests.support.server import running_server

if TYPE_CHECKING:
    from scanner.client.scan.table_scan import Batches
    from scanner.client.scan.turns import Delivery

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS: Final = 120
SMALL_BATCHES: Final = ScannerConfig(block_rows_max=16, batch_rows_max=16)
WHERE: Final = (col("k") >= 20) & (col("text").is_not_null())
"""What two of the scans below want."""

Rows = dict[int | None, list[dict[str, Any]]]
"""Handed out of each bucket, in this order."""


class Cut(NamedTuple):
    """A position, and what was handed out up to it."""

    position: str
    before: Rows


class Run(NamedTuple):
    """A scan that was read to its end."""

    rows: Rows
    cuts: list[Cut]
    statistics: scanner.ScanStatistics


def kept(position: str) -> str:
    """As a program keeps a position that goes on in another process."""
    text: str = json.loads(json.dumps(position))
    return text


async def begun(batches: Batches, scan: scanner.Scan) -> None:
    """Wait until every bucket has begun: where one has not, nothing says of which state it is to be.

    The first, where there is a limit: the others may never do.
    """
    awaited = 1 if scan.plan.row_limit is not None else len(batches.statistics().buckets)
    while sum(each.log_offset is not None for each in batches.statistics().buckets) < awaited:
        await trio.lowlevel.checkpoint()


async def read(scan: scanner.Scan) -> Run:
    """Read a scan, and note its position before the first batch, behind each, behind the end, and when it was left."""
    run: Rows = defaultdict(list)
    cuts: list[Cut] = []

    def note() -> None:
        cuts.append(Cut(kept(batches.resume_position()), {each: list(run[each]) for each in run}))

    async with scan.execute() as batches:
        await begun(batches, scan)
        note()
        async for batch in batches:
            run[batches.bucket] += batch.to_pylist()
            note()
        note()
    note()
    return Run(dict(run), cuts, batches.statistics())


async def rest_of(scan: scanner.Scan) -> tuple[Rows, scanner.ScanStatistics]:
    """Read a scan that goes on."""
    run: Rows = defaultdict(list)
    async with scan.execute() as batches:
        async for batch in batches:
            run[batches.bucket] += batch.to_pylist()
    return dict(run), batches.statistics()


def joined(before: Rows, after: Rows) -> Rows:
    """Both halves."""
    return {
        bucket: [*before.get(bucket, []), *after.get(bucket, [])]
        for bucket in before.keys() | after.keys()
        if before.get(bucket) or after.get(bucket)
    }


def bounds(statistics: scanner.ScanStatistics) -> list[int | None]:
    """Which state of each bucket was read."""
    return [each.log_offset for each in statistics.buckets]


async def filled(client: scanner.Client, buckets: int) -> scanner.Table:
    """A table with rows."""
    table = await client.create_table("items", rows(0).schema, ["k"], buckets)
    await table.write(rows(ROWS, width=5))
    return table


async def change_everything(table: scanner.Table) -> None:
    """Updates, deletes and inserts all over the table."""
    await table.write(rows(ROWS, width=9))
    await table.delete([(key,) for key in range(0, ROWS, 3)])
    await table.write(rows(50, first=ROWS))


@dataclass(frozen=True)
class Case:
    """A scan, and what it hands out by an oracle that knows what was written."""

    name: str
    describe: Callable[[scanner.Table, dict[str, Any]], scanner.Scan]
    expects: Callable[[dict[str, Any]], bool] = lambda row: True
    """Whether a row is one of the scan."""
    columns: tuple[str, ...] = ("k", "text", "number")
    limit: int | None = None
    of_the_past: bool = False
    """Whether it shows a state that is kept, and not that of now."""


def _filtered(scan: scanner.Scan) -> scanner.Scan:
    return scan.select("number", "k").where(WHERE)


def _is_wanted(row: dict[str, Any]) -> bool:
    return row["k"] >= 20 and row["text"] is not None


CASES: Final = (
    Case("everything", lambda table, _: table.new_scan()),
    Case(
        "a filter and columns",
        lambda table, _: _filtered(table.new_scan()),
        _is_wanted,
        ("number", "k"),
    ),
    Case(
        "a range of keys",
        lambda table, _: table.new_scan().key_range((30,), (120,)),
        lambda row: 30 <= row["k"] < 120,
    ),
    Case("one bucket", lambda table, _: table.new_scan().bucket(0)),
    Case("a limit", lambda table, _: table.new_scan().limit(70), limit=70),
    Case("as of", lambda table, known: table.new_scan().as_of(known["offsets"]), of_the_past=True),
    Case("a lease", lambda table, _: table.new_scan().with_lease("kept"), of_the_past=True),
    Case("a checkpoint", lambda table, _: table.new_scan().with_source("snapshot"), of_the_past=True),
    Case("pages", lambda table, _: table.new_scan().with_mode("asof").with_page_bytes(1500)),
    Case(
        "pages with a filter",
        lambda table, _: _filtered(table.new_scan()).with_mode("asof").with_page_bytes(500),
        _is_wanted,
        ("number", "k"),
    ),
)


@pytest.mark.parametrize(
    ("case", "buckets"),
    [
        *((case, 3) for case in CASES),
        *((case, 1) for case in CASES if case.name in ("everything", "a limit", "pages")),
    ],
    ids=lambda given: getattr(given, "name", None),
)
async def test_both_halves_are_one_scan(case: Case, buckets: int, tmp_path: Path) -> None:
    """Cut anywhere, and gone on with behind a restart, when every row has been written or deleted since."""
    known: dict[str, Any] = {}
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, buckets)
        known["offsets"] = {each.bucket: each.end_offset for each in await table.offsets()}
        if case.of_the_past:
            await client.acquire_lease(scanner.LeaseTarget("items", state="new"), lease_id="kept")
            await change_everything(table)
        whole = await read(case.describe(table, known))
        await change_everything(table)
        if case.of_the_past:  # Neither the newest checkpoint nor the lease is of that state any more.
            await client.acquire_lease(scanner.LeaseTarget("items", state="new"), lease_id="kept")
    wanted = [row for row in rows(ROWS, width=5).to_pylist() if case.expects(row)]
    wanted = [{name: row[name] for name in case.columns} for row in wanted]
    got = sorted((row for of_bucket in whole.rows.values() for row in of_bucket), key=lambda row: row["k"])
    assert len(got) == case.limit if case.limit else got == wanted or case.name == "one bucket"
    assert all(row in wanted for row in got)
    assert len(whole.cuts) > 5

    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await client.table("items")
        for cut in whole.cuts:
            after, statistics = await rest_of(case.describe(table, known).resume_at(cut.position))
            both = joined(cut.before, after)
            if case.limit is None or buckets == 1:
                assert both == whole.rows
                assert statistics.digest == whole.statistics.digest is not None
            else:  # Which rows they are is not defined.
                keys = [row["k"] for of_bucket in both.values() for row in of_bucket]
                assert len(keys) == len(set(keys)) == case.limit
                assert after or statistics.requests == 0
                assert all(row in wanted for bucket in cut.before for row in both[bucket])
            if case.limit is None or buckets == 1:  # Else others may have begun.
                assert bounds(statistics) == bounds(whole.statistics)
            assert statistics.rows == sum(map(len, after.values()))


async def test_a_scan_in_many_pieces(tmp_path: Path) -> None:
    """Each batch in another client, beside writes: one scan, with its digest; a limit ends it where it was to end."""
    async with open_server(tmp_path, config=SMALL_BATCHES) as server:

        async def pieces(limit: int | None) -> tuple[Rows, int, scanner.ScanStatistics]:
            got: Rows = defaultdict(list)
            position, clients, began = None, 0, False
            while True:
                async with scanner.connect(f"127.0.0.1:{server.port}") as client:
                    table = await client.table("items")
                    scan = table.new_scan() if limit is None else table.new_scan().limit(limit)
                    clients += 1
                    scan = scan if position is None else scan.resume_at(position)
                    async with scan.execute() as batches:
                        while not began:
                            await begun(batches, scan)
                            began = True
                        batch = await anext(batches, None)
                        if batch is None:
                            return dict(got), clients, batches.statistics()
                        got[batches.bucket] += batch.to_pylist()
                        position = kept(batches.resume_position())
                    await table.write(rows(ROWS, width=clients))
                    await table.delete([(clients,)])

        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            table = await filled(client, 2)
            whole = await read(table.new_scan())
            got, clients, statistics = await pieces(None)
            assert got == whole.rows
            assert statistics.digest == whole.statistics.digest
            assert clients > 6
            got, _, _ = await pieces(50)
            assert sum(map(len, got.values())) == 50


@pytest.mark.parametrize(
    ("buckets", "whole_commits", "where", "stop"),
    [(2, False, None, "end"), (2, True, WHERE, None), (1, False, WHERE, "end"), (1, True, None, None)],
)
async def test_rows_and_changes(
    buckets: int, whole_commits: bool, where: scanner.Condition | None, stop: str | None, tmp_path: Path
) -> None:
    """HYBRID: cut before its snapshot, in it, behind it, in a commit and behind; so are its other positions.

    Where it is to stop at the end, that is the one of its beginning.
    """

    def described(table: scanner.Table) -> scanner.Scan:
        scan = table.new_scan().with_source("hybrid").as_of(starts).stop_at(stop or stops)
        scan = scan if where is None else scan.where(where)
        return scan.with_whole_commits() if whole_commits else scan

    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, buckets)
        starts = {each.bucket: each.end_offset for each in await table.offsets()}
        await change_everything(table)
        stops = {each.bucket: each.end_offset for each in await table.offsets()}
        places = []
        async with described(table).execute() as batches:
            got: Rows = defaultdict(list)
            await begun(batches, described(table))
            while True:
                before = {bucket: list(of_bucket) for bucket, of_bucket in got.items()}
                place = (batches.positions, batches.snapshot_ends, batches.watermark())
                places.append((kept(batches.resume_position()), before, place))
                batch = await anext(batches, None)
                if batch is None:
                    break
                got[batches.bucket] += batch.to_pylist()
        whole, digest = dict(got), batches.statistics().digest
        await change_everything(table)
        await table.add_column(pa.field("added", pa.string()))

    changes = [row["_log_offset"] for row in whole[0] if row["_log_offset"] is not None]
    assert changes == (list(range(starts[0], stops[0])) if where is None else sorted(set(changes)))
    assert len([row for row in whole[0] if row["_log_offset"] is None]) > 10
    assert len(places) > 8
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await client.table("items")
        for position, before, place in places:
            scan = described(table).resume_at(position)
            assert scan.schema.names == [
                *rows(0).schema.names,
                "_change_type",
                "_log_offset",
                "_commit_timestamp",
            ]
            async with scan.execute() as batches:
                assert (batches.positions, batches.snapshot_ends, batches.watermark()) == place
                got = defaultdict(list)
                async for batch in batches:
                    got[batches.bucket] += batch.to_pylist()
                assert joined(before, got) == whole
                assert batches.positions == stops
                assert batches.snapshot_ends == starts
                assert batches.statistics().digest == digest


async def test_images_make_no_difference(tmp_path: Path) -> None:
    """A position from an image goes on in the row store, and the other way."""
    count = 30_000
    config = ScannerConfig(image_core_share=1.0, block_rows_max=8192, batch_rows_max=8192)
    async with open_client(tmp_path, config) as (client, _):
        table = await client.create_table("items", rows(0).schema, ["k"], 1)
        await table.write(rows(count))
        plain = await read(table.new_scan())
        await client.make_images("items")
        imaged = await read(table.new_scan())
        assert imaged.statistics.buckets[0].read_sources == ("image",)
        assert imaged.statistics.digest == plain.statistics.digest
        for cut in plain.cuts[1:3]:
            after, statistics = await rest_of(table.new_scan().resume_at(cut.position))
            assert joined(cut.before, after) == plain.rows
            assert statistics.buckets[0].read_sources == ("image",)
        await client.drop_images("items")
        for cut in imaged.cuts[1:3]:
            after, statistics = await rest_of(table.new_scan().resume_at(cut.position))
            assert joined(cut.before, after) == plain.rows
            assert statistics.digest == plain.statistics.digest


async def test_an_error_leaves_the_last_good_position(tmp_path: Path) -> None:
    """What had come and was dropped with the failure, ends of buckets among it, comes again behind the position."""
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, 3)
        async with table.new_scan().execute() as batches:
            first = (await anext(batches)).to_pylist()
            while any(each.reason is None for each in batches.statistics().buckets):
                await trio.lowlevel.checkpoint()
            batches._hand_off.fail(SnapshotLost("by the test"))
            with pytest.raises(SnapshotLost):
                await anext(batches)
            position = batches.resume_position()
        await change_everything(table)
        after, _ = await rest_of(table.new_scan().resume_at(position))
        keys = [row["k"] for row in first] + [row["k"] for each in after.values() for row in each]
        assert sorted(keys) == list(range(ROWS))


@pytest.mark.parametrize("broken", [False, True])
async def test_a_position_behind_what_was_received_is_caught(
    broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A broken variant, whose position is behind what has come and not behind what was handed out, loses rows."""
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, 2)
        async with table.new_scan().execute() as batches:
            put = batches._hand_off.put

            def put_and_note(delivery: Delivery) -> None:
                put(delivery)
                if broken and delivery.behind is not None:
                    batches._behind[delivery.bucket] = delivery.behind

            monkeypatch.setattr(batches._hand_off, "put", put_and_note)
            got = (await anext(batches)).num_rows
            while any(each.reason is None for each in batches.statistics().buckets):
                await trio.lowlevel.checkpoint()
            position = batches.resume_position()
        after, _ = await rest_of(table.new_scan().resume_at(position))
        assert (got + sum(map(len, after.values())) == ROWS) is not broken


async def test_what_is_kept_for_how_long(tmp_path: Path) -> None:
    """Where the changelog was cut the state is gone, and that is said; a scan that had ended has nothing to ask for."""
    config = replace(SMALL_BATCHES, snapshot_linger_s=0.0)
    async with open_client(tmp_path, config) as (client, _):
        table = await filled(client, 2)
        whole = await read(table.new_scan())
        pages = await read(table.new_scan().with_mode("asof").with_page_bytes(500))
        await change_everything(table)
        await client.compact_log("items", before=datetime.datetime.now(datetime.UTC))
        for run, scan in ((whole, table.new_scan()), (pages, table.new_scan().with_mode("asof"))):
            with pytest.raises(SnapshotLost):
                await rest_of(scan.resume_at(run.cuts[2].position))
            for cut in run.cuts[-2:]:
                after, statistics = await rest_of(scan.resume_at(cut.position))
                assert after == {}
                assert statistics.digest == run.statistics.digest
                assert statistics.requests == 0


async def test_a_column_that_was_added_is_not_the_scans(tmp_path: Path) -> None:
    """A scan of all columns goes on with those that it began with, buckets that had not begun included."""
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        older = await filled(client, 2)
        whole = await read(older.new_scan())
        async with older.new_scan().execute() as batches:
            nothing = batches.resume_position()
        newer = await client.table("items")
        await newer.add_column(pa.field("added", pa.int64()))
        newest = await read(newer.new_scan())
        for cut in whole.cuts:
            after, _ = await rest_of(newer.new_scan().resume_at(cut.position))
            assert joined(cut.before, after) == whole.rows
        assert (await rest_of(newer.new_scan().resume_at(nothing)))[0] == whole.rows
        assert (await rest_of(newer.new_scan().resume_at(newest.cuts[1].position)))[1].digest is not None
        with pytest.raises(SchemaMismatch, match="ask the client for the table again"):
            await rest_of(older.new_scan().resume_at(newest.cuts[1].position))


async def test_another_scan_is_refused(tmp_path: Path) -> None:
    """By the client, before anything is asked for, and by name; a table that took the name included."""
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, 2)
        scan = table.new_scan().select("k", "text").where(WHERE).limit(90)
        async with scan.execute() as batches:
            await anext(batches)
            position = batches.resume_position()
        others = {
            "columns": scan.select("text", "k"),
            "conditions": scan.where("k < 100"),
            "limit": scan.limit(91),
            "key range": scan.key_range((3,)),
            "bucket": scan.bucket(1),
            "mode": scan.with_mode("asof"),
            "source": scan.with_source("hybrid"),
            "as_of": scan.as_of(1),
            "source, lease": scan.with_lease("other"),
            "source, stop_at": scan.with_source("hybrid").stop_at("end"),
            "source, whole commits": scan.with_source("hybrid").with_whole_commits(),
        }
        for differs, other in others.items():
            with pytest.raises(ResumeTokenInvalid, match=f"what differs: {differs}[.]"):
                await rest_of(other.resume_at(position))
        # How it travels is free.
        same = scan.with_credit(1000).with_retries(3).resume_every_batches(1)
        assert (await rest_of(same.resume_at(position)))[1].rows > 0
        other_table = await client.create_table("others", rows(0).schema, ["k"], 2)
        with pytest.raises(ResumeTokenInvalid, match="another table"):
            await rest_of(other_table.new_scan().resume_at(position))
        await client.drop_table("items")
        with pytest.raises(scanner.TableNotFound):
            await rest_of(scan.resume_at(position))
        anew = await filled(client, 2)
        with pytest.raises(ResumeTokenInvalid, match="dropped since"):
            await rest_of(anew.new_scan().select("k", "text").where(WHERE).limit(90).resume_at(position))


async def test_scans_without_positions(tmp_path: Path) -> None:
    """A tail has its own, the other pull models have none, and `to_table` needs all rows."""
    async with open_client(tmp_path, SMALL_BATCHES) as (client, _):
        table = await filled(client, 1)
        async with table.new_scan().execute() as batches:
            position = batches.resume_position()
        tail = table.new_scan().with_source("log")
        others = {
            "start_at": [tail, tail.with_mode("fetch")],
            "in the same state": [
                table.new_scan().with_mode(mode) for mode in ("session", "token", "cursor")
            ],
        }
        for why, scans in others.items():
            for scan in scans:
                async with scan.execute() as batches:
                    with pytest.raises(ArgumentInvalid, match=why):
                        batches.resume_position()
                with pytest.raises(ArgumentInvalid, match=why):
                    await rest_of(scan.resume_at(position))
        with pytest.raises(ArgumentInvalid, match="start_at"):
            async with tail.resume_at(position).in_group("g").execute():
                pass
        with pytest.raises(ArgumentInvalid, match="every row"):
            await table.new_scan().with_source("hybrid").resume_at(position).to_table()


async def test_another_principal_is_refused(tmp_path: Path) -> None:
    """By the server, which alone can tell."""
    tokens = {name: make_token() for name in ("ann", "bob")}
    credentials = Credentials.parse(
        "".join(
            f'[principals.{name}]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\n'
            for name, token in tokens.items()
        )
    )
    async with open_client(tmp_path) as (client, _):
        await filled(client, 1)
    async with open_server(tmp_path, config=SMALL_BATCHES, credentials=credentials) as server:
        positions: list[str] = []
        for token in tokens.values():
            async with scanner.connect(f"127.0.0.1:{server.port}", token=token) as client:
                table = await client.table("items")
                for position in positions:
                    with pytest.raises(ResumeTokenInvalid, match="another principal"):
                        await rest_of(table.new_scan().resume_at(position))
                async with table.new_scan().execute() as batches:
                    await anext(batches)
                    positions.append(batches.resume_position())


async def test_a_server_without_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """What it has handed out cannot be gone on with, and that is said."""
    async with scripted_table(Script([started(), rows_message(0, [0, 1]), hang])) as (table, _):
        async with table.new_scan().execute() as batches:
            await anext(batches)
            with pytest.raises(SourceUnsupported, match="makes no resume tokens"):
                batches.resume_position()


def test_blocking_twin(tmp_path: Path) -> None:
    """A server that ends in the middle, another one in its place, and a position that another thread asks for."""
    with ExitStack() as ends:
        running = ends.enter_context(running_server(tmp_path, SMALL_BATCHES))
        with scanner.sync.connect(running.endpoint, retries=0) as client:
            table = client.create_table("items", rows(0).schema, ["k"], 2)
            table.write(rows(ROWS))
            with table.new_scan().with_credit(1).execute() as batches:
                got = [row for _ in range(3) for row in next(batches).to_pylist()]
                positions = [batches.resume_position()]
                ends.close()
                with pytest.raises(ScannerError):
                    while True:
                        got += next(batches).to_pylist()
                        positions = [batches.resume_position()]
                asking = threading.Thread(target=lambda: positions.append(batches.resume_position()))
                asking.start()
                asking.join()
            positions.append(batches.resume_position())
        positions.append(batches.resume_position())
    assert 0 < len(got) < ROWS
    with running_server(tmp_path, SMALL_BATCHES) as running, scanner.sync.connect(running.endpoint) as client:
        table = client.table("items")
        table.delete([(key,) for key in range(ROWS)])
        for position in positions:
            scan = pickle.loads(pickle.dumps(table.new_scan().resume_at(kept(position)).plan))
            rest = client.scan(scan).to_arrow().to_pylist()
            assert sorted(got + rest, key=lambda row: row["k"]) == rows(ROWS).to_pylist()
