"""The trio client against a real server: tables, writes and scans in both modes."""

from __future__ import annotations

import asyncio
import datetime
import functools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

import scanner
from scanner import ScanSource, col
from scanner.client.endpoints import parse_endpoint
from scanner.client.scan.page_receiver import PageReceiver
from scanner.client.scan.push_receiver import Arrival, PushReceiver
from scanner.client.scan.session_receiver import SessionReceiver
from scanner.client.transactions import PartWriter
from scanner.client.writer import Writer
from scanner.data.digest import combine_digests
from scanner.data.table import TableDescription
from scanner.errors import DiskFull
from scanner.proto.weir.v1 import admin_pb2, groups_pb2, leases_pb2, scanner_pb2, transactions_pb2
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.scan.push import PushScan
from scanner.server.server import Server, open_server
from scanner.server.services.scans import ScanService
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.arrow_ipc import encode_schema
from scanner.wire.batches import decode_scan_response
from scanner.wire.statuses import to_call_failed
from scanner.wire.tables import description_to_proto
from tests.support import wire
from tests.support.client import SCHEMA, open_client, open_table, rows
from tests.support.hosts import connected_to, memory_host
from tests.support.seals import unsealed
from transport import CallFailed, StallTimes, StreamReset, TransportConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from transport import Handler, ServerStream

pytestmark = [pytest.mark.socket, pytest.mark.rocks]
LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
both_modes = pytest.mark.parametrize("mode", ["push", "session"])


async def wait_released(server: Server) -> None:
    """Return when the server holds no scan any more."""
    with trio.fail_after(100):
        while server.statistics().iterators_open:
            await trio.lowlevel.checkpoint()


def test_asyncio_is_told_of_the_blocking_client() -> None:
    """In another loop than trio's the error says which one is needed, and what there is for others."""

    async def connect() -> None:
        async with scanner.connect("127.0.0.1:1"):
            pass

    with pytest.raises(RuntimeError, match=r"from asyncio use weir\.sync in threads"):
        asyncio.run(connect())


async def test_another_run_of_trio_is_told_to_connect(tmp_path: Path) -> None:
    """An answer would end the loop that the client lives in, and its other calls; the caller would wait for ever."""
    async with open_client(tmp_path) as (client, _):
        with pytest.raises(RuntimeError, match="belongs to another run of trio; connect again here"):
            await trio.to_thread.run_sync(trio.run, client.tables)
        assert await client.tables() == []


async def test_tables_come_and_go(tmp_path: Path) -> None:
    """A created table is listed and described as stored; a dropped one is gone, and errors name what is there."""
    async with open_client(tmp_path) as (client, _):
        await client.create_table("b", SCHEMA, ["k"], buckets=2)
        created = await client.create_table("a", SCHEMA, "k")
        assert (created.name, created.primary_key, created.buckets) == ("a", ("k",), 4)
        assert [table.name for table in await client.tables()] == ["a", "b"]
        with pytest.raises(scanner.TableExists):
            await client.create_table("a", SCHEMA, ["k"])
        await client.drop_table("a")
        with pytest.raises(scanner.TableNotFound, match="b"):
            await client.table("a")


async def test_a_table_that_may_be_there(tmp_path: Path) -> None:
    """With `exist_ok` the table that is there is taken if it is the one that was asked for, and kept if it is not."""
    async with open_client(tmp_path) as (client, _):
        created = await client.create_table("a", SCHEMA, ["k"], buckets=2, exist_ok=True)
        await created.write(rows(3))
        again = await client.create_table("a", SCHEMA, "k", buckets=2, exist_ok=True)
        assert (again.name, again.schema, again.buckets) == ("a", created.schema, 2)
        assert (await again.new_scan().to_arrow()).num_rows == 3
        with pytest.raises(scanner.SchemaMismatch, match="exists with other columns: k int64 not null"):
            await client.create_table("a", SCHEMA.append(pa.field("z", pa.int8())), ["k"], 2, exist_ok=True)
        with pytest.raises(
            scanner.TableExists, match=f"exists with the primary key k, not {SCHEMA.names[1]};"
        ):
            await client.create_table("a", SCHEMA, [SCHEMA.names[1]], 2, exist_ok=True)
        with pytest.raises(scanner.TableExists, match="exists with the bucket count 2, not 3"):
            await client.create_table("a", SCHEMA, ["k"], 3, exist_ok=True)
        with pytest.raises(scanner.TableExists):
            await client.create_table("a", SCHEMA, ["k"], 2)


async def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """A table object from before does nothing to the table that has its name now, and is told so."""
    async with open_client(tmp_path) as (client, _):
        stale = await client.create_table("a", SCHEMA, ["k"], buckets=1)
        await stale.write(rows(2))
        old = await stale.get([(1,)])
        await client.drop_table("a")
        table = await client.create_table("a", SCHEMA, ["k"], buckets=1)
        await table.write(rows(3))
        for attempt in (
            lambda: stale.write(rows(5)),
            lambda: stale.delete([(1,)]),
            lambda: stale.add_column(pa.field("colour", pa.string())),
            lambda: stale.offsets(),
            lambda: stale.offsets(at=LONG_AGO),
            lambda: stale.split(0, splits=2),
            lambda: stale.get([(1,)]),
            lambda: stale.get([(1,)], as_of=2, histories=old.histories),
            lambda: stale.measure_log({0: 2}),
            lambda: stale.measure_log({0: 1}, histories=old.histories),
            lambda: stale.transactions(),
        ):
            with pytest.raises(scanner.TableNotFound, match="created anew; look it up again"):
                await attempt()
        assert (await table.new_scan().to_arrow()).num_rows == 3
        assert (await client.table("a")).schema == table.schema


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.1:9123", "is a URL; write 127.0.0.1:9123"),
        ("https://weir.example.com/tables", "is a URL; write weir.example.com"),
        ("127.0.0.1/x", "is not HOST:PORT"),
        ("::1", "stands in brackets"),
        ("fe80::1", "stands in brackets"),
        ("2001:db8::1:23", "stands in brackets"),
        ("[::1:9123", "stands in brackets"),
        ("user@host:1", "an endpoint has no user; write host:1: who calls"),
        ("http://user:hush@host:1/x", "an endpoint has no user; write host:1: who calls"),
        ("http://user:/hush@host:1/x", "an endpoint has no user; write host:1: who calls"),
        ("user:/hush@host:1", "an endpoint has no user; write host:1: who calls"),
        *((each, "HOST:PORT") for each in ("", "host:", "host:0", "host:70000", ":9123", "a:b")),
        pytest.param("host:" + "9" * 5000, "HOST:PORT", id="long"),
    ],
)
async def test_endpoints_that_are_none(endpoint: str, message: str) -> None:
    """A URL is refused before anybody is asked, with what to write instead."""
    with pytest.raises(scanner.ArgumentInvalid, match=message) as refused:
        async with scanner.connect(endpoint):
            pass
    assert "hush" not in str(refused.value)


async def test_errors_of_the_block_leave_bare(tmp_path: Path) -> None:
    """An exception passes through client and scan as itself, not in an ExceptionGroup."""
    with pytest.raises(scanner.TableNotFound):
        async with open_client(tmp_path) as (client, _):
            await client.table("nope")
    with pytest.raises(KeyError):
        async with open_table(tmp_path, 10) as (table, _):
            async with table.new_scan().execute():
                raise KeyError
    async with open_table(tmp_path / "again", 10) as (table, server):
        with pytest.raises(SystemExit), trio.CancelScope() as scope:
            async with scanner.connect(f"127.0.0.1:{server.port}"), table.new_scan().execute():
                scope.cancel()
                sys.exit(3)


async def test_nobody_answers(kept_port: int) -> None:
    """A server that is not there is ServerUnavailable."""
    with pytest.raises(scanner.ServerUnavailable, match=str(kept_port)):
        async with scanner.connect(f"127.0.0.1:{kept_port}"):
            pass


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.Example", "xn--bcher-kva.Example"),
        ("日本語.example", "xn--wgv71a119e.example"),
        ("\uff11\uff12\uff17.0.0.1", "127.0.0.1"),
        ("Weir.example.", "Weir.example."),
        ("[::1]", "::1"),
    ],
)
def test_names_in_other_letters(host: str, name: str) -> None:
    """DNS, the certificate and HTTP are asked for one name, in ASCII; what is ASCII stays as it is."""
    assert parse_endpoint(f"{host}:1") == (name, 1)


async def test_errors_name_an_ipv6_address_in_brackets() -> None:
    """Its port could not be told from it."""
    with pytest.raises(scanner.ServerUnavailable, match=r"no weir server answers at \[::1\]:1: cannot"):
        async with scanner.connect("[::1]:1"):
            pass


@pytest.mark.parametrize(
    "host", ["straße.example", "a\uff0fb.example", "a\uff1a80.example", "user\uff20host.example"]
)
def test_names_that_could_be_two(host: str) -> None:
    """A name that two standards read differently, or that hides a sign of an endpoint, is asked for in ASCII."""
    with pytest.raises(scanner.ArgumentInvalid, match="write it as DNS has it, xn--"):
        parse_endpoint(f"{host}:1")


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..b", "a\udcff"])
async def test_names_that_no_machine_can_have(host: str) -> None:
    """What cannot even be asked for in the DNS is refused as an argument, not with Python's own error."""
    with pytest.raises(scanner.ArgumentInvalid, match="no name of a machine"):
        async with scanner.connect(f"{host}:9123"):
            pass


@both_modes
async def test_scan_returns_every_row_once(tmp_path: Path, mode: str) -> None:
    """A table scan sums the buckets, each row once, with matching digests and offsets."""
    async with open_table(tmp_path, 20_000) as (table, server):
        scan = table.new_scan().with_mode(mode).with_page_bytes(50_000)
        async with scan.execute() as batches:
            got = pa.Table.from_batches([batch async for batch in batches], schema=batches.schema)
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await anext(batches)
        assert got.sort_by("k").equals(rows(20_000).cast(table.schema))
        statistics = batches.statistics()
        assert statistics.rows == 20_000
        digests = [bucket.digest for bucket in statistics.buckets if bucket.digest is not None]
        assert statistics.digest == combine_digests(digests)
        offsets = [(each.bucket, each.end_offset) for each in await table.offsets()]
        assert [(bucket.bucket, bucket.log_offset) for bucket in statistics.buckets] == offsets
        assert {bucket.reason for bucket in statistics.buckets} == {"EXHAUSTED"}
        await wait_released(server)


@both_modes
async def test_projection_filter_and_range(tmp_path: Path, mode: str) -> None:
    """Columns, conditions and key ranges are pushed down together."""
    async with open_table(tmp_path, 1_000) as (table, _):
        scan = table.new_scan().with_mode(mode).select("number", "k")
        got = await scan.key_range((100,), (200,)).where(col("text").is_null()).to_arrow()
        assert got.schema.names == ["number", "k"]
        assert sorted(got["k"].to_pylist()) == [k for k in range(100, 200) if k % 7 == 0]


@both_modes
@pytest.mark.parametrize("limit", [0, 999, 5_000, 2**64 - 1])
async def test_limit_is_exact(tmp_path: Path, mode: str, limit: int) -> None:
    """A limit over several buckets gives exactly that many rows, if there are as many."""
    async with open_table(tmp_path, 5_000) as (table, server):
        got = await table.new_scan().with_mode(mode).limit(limit).to_arrow()
        assert got.num_rows == min(limit, 5_000)
        assert len(set(got["k"].to_pylist())) == got.num_rows
        await wait_released(server)


@pytest.mark.parametrize("width", [20, 20_000])
async def test_few_rows_are_one_call(tmp_path: Path, width: int) -> None:
    """A small limit is one request with all of its credit; rows that are larger than thought come by a second one."""
    async with open_table(tmp_path, 400, buckets=1, width=width) as (table, _):
        scan = table.new_scan().with_credit(1 << 20).limit(200)
        async with scan.execute() as batches:
            keys = [key async for batch in batches for key in batch["k"].to_pylist()]
        statistics = batches.statistics()
        assert (len(set(keys)), statistics.rows) == (200, 200)
        assert statistics.overrun_bytes <= 2 * width
        if width == 20:
            assert (statistics.requests, statistics.resumes, statistics.credit_messages) == (1, 0, 1)
        else:
            assert (statistics.requests, statistics.resumes) == (2, 1)
            assert statistics.credit_messages > 2  # The second one grants on.


async def test_few_rows_keep_their_place_without_retries(tmp_path: Path) -> None:
    """The second call might be refused at a server that is full, and nothing would be tried again."""
    async with open_table(tmp_path, 400, buckets=1, width=20_000) as (table, _):
        async with table.new_scan().with_credit(1 << 20).limit(200).with_retries(0).execute() as batches:
            assert sum([batch.num_rows async for batch in batches]) == 200
        assert (batches.statistics().requests, batches.statistics().resumes) == (1, 0)


@pytest.mark.parametrize(("limit", "begun"), [(0, 1), (10, 1), (400, 8), (500, 8)])
@both_modes
async def test_few_rows_open_few_buckets(tmp_path: Path, mode: str, limit: int, begun: int) -> None:
    """The first bucket may have all of them; if not, the others follow."""
    async with open_table(tmp_path, 400, buckets=8) as (table, server):
        async with table.new_scan().with_mode(mode).limit(limit).execute() as batches:
            keys = [key async for batch in batches for key in batch["k"].to_pylist()]
        assert len(keys) == len(set(keys)) == min(limit, 400)
        buckets = batches.statistics().buckets
        assert sum(bucket.log_offset is not None for bucket in buckets) == begun
        await wait_released(server)


async def test_few_rows_of_none_take_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first bucket has too few, all others are opened at once: over a long line each round counts."""
    handle, opened, all_opened = ScanService.scan, 0, trio.Event()

    async def scan(self: ScanService, stream: ServerStream) -> None:
        nonlocal opened
        opened += 1
        if opened == 8:
            all_opened.set()
        if opened > 1:
            await all_opened.wait()
        await handle(self, stream)

    monkeypatch.setattr(ScanService, "scan", scan)
    async with open_table(tmp_path, 400, buckets=8) as (table, _):
        assert (await table.new_scan().where(col("k") < 0).limit(10).to_arrow()).num_rows == 0


@pytest.mark.parametrize("staged", [False, True])
async def test_open_writers_leave_room_for_other_calls(tmp_path: Path, *, staged: bool) -> None:
    """As many as the server allows calls on a connection stay open, and a read beside them has its answer."""
    config = TransportConfig(streams_max=4)
    async with (
        open_server(tmp_path, transport_config=config) as server,
        scanner.connect(f"127.0.0.1:{server.port}") as client,
        AsyncExitStack() as writers,
    ):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        transaction = table.transaction("load", 1)
        for number in range(4):
            if staged:
                part = await writers.enter_async_context(transaction.part(number, 0))
                await part.upsert(rows(1))
            else:
                writer = await writers.enter_async_context(table.open_writer())
                await writer.write(rows(1))
                await writer.flush()
        assert (await table.get([(0,)])).found == (not staged,)


async def test_no_scan_waits_for_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan is complete with its end, which brings the server's stalls; the call ends behind it, without a reset."""
    status, ended = trio.Event(), list[bool]()
    wait_half_closed = PushScan.wait_half_closed

    async def wait_longer(push: PushScan) -> None:
        await wait_half_closed(push)
        await status.wait()
        ended.append(True)

    monkeypatch.setattr(PushScan, "wait_half_closed", wait_longer)
    async with open_table(tmp_path, 400, buckets=2) as (table, _):
        async with table.new_scan().execute() as batches:
            assert sum([batch.num_rows async for batch in batches]) == 400
        assert not ended
        statistics = batches.statistics()
        assert all(bucket.server_stalls is not None for bucket in statistics.buckets)
        assert statistics.server_stalls.total_s > 0
        status.set()
    assert ended == [True, True]


async def test_stalls_of_a_scan_in_two_calls_are_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first brings them, too, though it is not the scan's, and its status may come later."""
    told, status = list[StallTimes](), trio.Event()
    receive = PushReceiver.receive

    def take(receiver: PushReceiver, message: Buffer) -> Arrival | None:
        response = decode_scan_response(message)
        if isinstance(response, scanner_pb2.ScanResponse) and response.HasField("end"):
            told.append(StallTimes.decode_untrusted(response.end.stalls.encode()))
        return receive(receiver, message)

    monkeypatch.setattr(PushReceiver, "receive", take)
    monkeypatch.setattr(PushScan, "wait_half_closed", lambda _: status.wait())
    async with open_table(tmp_path, 400, buckets=1, width=20_000) as (table, _):
        async with table.new_scan().with_credit(1 << 20).limit(200).execute() as batches:
            assert sum([batch.num_rows async for batch in batches]) == 200
        assert len(told) == 2
        assert batches.statistics().server_stalls == told[0] + told[1]
        status.set()


@pytest.mark.parametrize(("credit", "rows"), [(1, 60), (3_000, 1_500), (600_000, 6_000)])
async def test_consumer_never_holds_more_than_the_credit(tmp_path: Path, credit: int, rows: int) -> None:
    """A consumer that stops has at most its credit waiting for it, but for one row's message per bucket."""
    async with open_table(tmp_path, rows, width=500) as (table, _):
        received = 0
        async with table.new_scan().with_credit(credit).execute() as batches:
            first = await anext(batches)
            await wait_all_tasks_blocked(0.05)
            async for batch in batches:
                received += batch.num_rows
        statistics = batches.statistics()
        assert first.num_rows + received == statistics.rows == rows
        one_row = 2_000
        assert statistics.overrun_bytes <= one_row
        assert statistics.held_bytes_max <= credit + 3 * one_row


async def test_a_scan_without_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own error comes out as itself, not in a group, and the client goes on."""

    def take(receiver: PushReceiver, message: Buffer) -> Arrival | None:
        raise MemoryError

    async with open_table(tmp_path, 10) as (table, _):
        with monkeypatch.context() as patched:
            patched.setattr(PushReceiver, "receive", take)
            with pytest.raises(MemoryError):
                await table.new_scan().to_arrow()
        assert (await table.new_scan().to_arrow()).num_rows == 10


async def test_scan_of_a_table_that_is_gone(tmp_path: Path) -> None:
    """A refusal by the server comes with the first batch asked for, typed."""
    async with open_client(tmp_path) as (client, _):
        table = await client.create_table("t", SCHEMA, ["k"])
        await client.drop_table("t")
        for mode in ("push", "session"):
            with pytest.raises(scanner.TableNotFound):
                await table.new_scan().with_mode(mode).to_arrow()


@pytest.mark.parametrize("bucket", [-1, 2**32, True])
async def test_numbers_that_no_message_holds(tmp_path: Path, bucket: int) -> None:
    """They are refused by a typed error, wherever they are given."""
    async with open_client(tmp_path) as (client, _):
        table = await client.create_table("t", SCHEMA, ["k"], buckets=1)
        with pytest.raises(scanner.BucketNotFound):
            table.new_scan().bucket(bucket)
        with pytest.raises(scanner.BucketNotFound):
            await table.measure_log({bucket: 0})
        with pytest.raises(scanner.BucketNotFound):
            await client.checkpoint("t", bucket)
        async with await client.acquire_lease("t") as lease:
            with pytest.raises(scanner.BucketNotFound):
                await lease.release("t", bucket)
        with pytest.raises(scanner.ArgumentInvalid, match="target_bytes must be a whole number"):
            await table.split(0, target_bytes=2**64)


async def test_more_buckets_than_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with more buckets than one scan opens at once is scanned whole, within the credit."""
    monkeypatch.setattr("scanner.client.scan.table_scan.BUCKETS_IN_PARALLEL_MAX", 4)
    async with open_table(tmp_path, 240, buckets=24) as (table, _):
        found = 0
        async with table.new_scan().with_credit(4_000).execute() as batches:
            async for batch in batches:
                found += batch.num_rows
                await trio.testing.wait_all_tasks_blocked()  # What can come does.
        statistics = batches.statistics()
        assert found == 240
        # Of each bucket that is open its share of the credit, and what its last message went past that.
        assert statistics.held_bytes_max <= 4_000 + 4 * statistics.overrun_bytes


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        (ScanSource.LIVE_KV, "push"),
        (ScanSource.LIVE_KV, "session"),
        (ScanSource.LIVE_KV, "asof"),
        (ScanSource.LOG, "push"),
        (ScanSource.HYBRID, "push"),
    ],
)
async def test_a_column_that_is_added_meanwhile(
    tmp_path: Path, source: ScanSource, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan keeps its columns, in buckets that it opens late, too; the next one is told to look the table up again."""
    monkeypatch.setattr("scanner.client.scan.table_scan.BUCKETS_IN_PARALLEL_MAX", 2)
    async with open_table(tmp_path, 3_000, buckets=5) as (table, _):
        scan = table.new_scan().with_source(source).with_mode(mode)
        if source is not ScanSource.LIVE_KV:
            scan = scan.stop_at("end")
        seen: list[int] = []
        async with scan.execute() as batches:
            seen += (await anext(batches))["k"].to_pylist()
            await table.add_column(pa.field("added", pa.int64()))
            async for batch in batches:
                assert batch.schema == batches.schema
                seen += batch["k"].to_pylist()
        assert "added" not in batches.schema.names
        assert sorted(seen) == list(range(3_000))
        with pytest.raises(scanner.errors.SchemaMismatch, match="ask the client for it again"):
            await scan.to_arrow()


every_isolated_mode = pytest.mark.parametrize("mode", ["push", "session", "token", "asof"])


@every_isolated_mode
async def test_a_column_that_is_added_while_a_bucket_is_refused(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is asked for again, after the scan has begun elsewhere, is asked for the scan's columns."""
    monkeypatch.setattr("scanner.client.scan.pull.OPEN_RETRY_DELAYS_S", (0.02,) * 1000)
    monkeypatch.setattr("scanner.client.retries.RetryPolicy.delay_bound_s", lambda *_: 0.02)
    config = ScannerConfig(snapshots_max=1, snapshot_linger_s=0)
    async with open_table(tmp_path, 800, buckets=2, config=config) as (table, _):
        scan = table.new_scan().with_mode(mode).with_retries(1000).with_credit(2_000).with_page_bytes(2_000)
        async with scan.execute() as batches:
            seen = (await anext(batches))["k"].to_pylist()
            await table.add_column(pa.field("added", pa.int64()))
            seen += [key async for batch in batches for key in batch["k"].to_pylist()]
        assert sorted(seen) == list(range(800))


@every_isolated_mode
async def test_a_column_that_is_added_while_a_bucket_is_opened(tmp_path: Path, mode: str) -> None:
    """A bucket that was asked for before any had begun, and answers with the new column, is asked for once more."""
    async with open_table(tmp_path, 3_000, buckets=2) as (table, server):
        catalog = server._services.catalog
        late = await catalog.bucket(await catalog.table("items"), 1)
        async with table.new_scan().with_mode(mode).execute() as batches:
            async with late.between_commits():
                seen = (await anext(batches))["k"].to_pylist()
                await table.add_column(pa.field("added", pa.int64()))
            seen += [key async for batch in batches for key in batch["k"].to_pylist()]
        assert sorted(seen) == list(range(3_000))
        assert server.statistics().sessions_open == server.statistics().page_snapshots_kept == 0


async def test_write_reports_ranges_and_progress(tmp_path: Path) -> None:
    """A write tells which changes it made, in order, and how many rows are durable as it goes."""
    async with open_table(tmp_path, 0) as (table, _):
        progress: list[int] = []
        result = await table.write(rows(20_000), progress.append)
        assert result.rows == progress[-1] == 20_000
        assert progress == sorted(progress)
        for bucket, _, end in await table.offsets():
            ranges = [each for each in result.ranges if each.bucket == bucket]
            assert ranges[0].start_offset == 0
            assert ranges[-1].end_offset == end
        (again,) = (await table.write(rows(1))).ranges
        assert again.end_offset - again.start_offset == 2


async def test_a_drop_that_comes_late_drops_no_other_table(tmp_path: Path) -> None:
    """A proxy may hold a request up, or send it again, when its table is gone and another one has the name."""
    async with open_table(tmp_path, 10) as (table, _):
        connection, call = table._connection, table._connection.call
        client, requests = scanner.Client(connection, "here"), list[bytes]()

        async def noted(path: str, request: Any, **options: Any) -> Any:
            if path == methods.TABLES + "DropTable":
                requests.append(request)
            return await call(path, request, **options)

        connection.call = noted  # type: ignore[method-assign]
        await client.drop_table("items")
        (late,) = requests
        again = await client.create_table("items", SCHEMA, ["k"], 2)
        await again.write(rows(3))
        with pytest.raises(CallFailed, match="dropped and created anew"):
            await call(methods.TABLES + "DropTable", late)
        with pytest.raises(scanner.TableNotFound, match="created anew"):
            await client.drop_table("items", table_id=table.table_id)
        assert (await again.new_scan().to_arrow()).num_rows == 3
        await client.drop_table("items", table_id=pa.scalar(again.table_id))
        assert await client.tables() == []


async def test_the_description_of_another_table_is_no_answer(tmp_path: Path) -> None:
    """Its rows would be read and written in place of those that were asked for."""
    async with open_table(tmp_path, 10) as (table, _):
        client = scanner.Client(table._connection, "here")
        other = await client.create_table("other", SCHEMA, ["k"])
        description = description_to_proto(other.description)
        answer = pb.DescribeTableResponse(table=description, table_id=other.table_id)

        async def answered(*_: object, **__: object) -> bytes:
            return answer.SerializeToString()

        table._connection.call = answered  # type: ignore[method-assign]
        assert (await client.table("other")).table_id == other.table_id
        for ask in (client.table("items"), client.create_table("items", SCHEMA, ["k"])):
            with pytest.raises(scanner.DataCorrupted, match="asked for table 'items', and describes 'other'"):
                await ask


@pytest.mark.parametrize(
    ("schema", "buckets"),
    [
        (encode_schema(SCHEMA.append(pa.field("new", pa.list_(pa.int8())))), 1),
        (encode_schema(SCHEMA), 5_000),
        (b"no schema", 1),
    ],
    ids=["type", "buckets", "octets"],
)
async def test_a_table_as_a_newer_server_may_have_it_is_no_mistake_of_the_caller(
    schema: bytes, buckets: int
) -> None:
    """The error names the table, also among others, and says whose it is."""
    told = pb.TableDescription(name="items", arrow_schema=schema, primary_key=["k"], buckets=buckets)
    answers = {
        "DescribeTable": pb.DescribeTableResponse(table=told),
        "ListTables": pb.ListTablesResponse(tables=[told]),
    }

    async def answer(name: str, stream: ServerStream) -> None:
        await stream.receive()
        stream.send_last(answers[name].SerializeToString())

    handlers: dict[str, Handler] = {
        methods.TABLES + name: functools.partial(answer, name) for name in answers
    }
    async with memory_host(handlers) as host, connected_to(host) as connection:
        client = scanner.Client(connection, "here")
        for ask in (client.table("items"), client.tables()):
            with pytest.raises(
                scanner.DataCorrupted, match=r"the server's description of table 'items'; is the server newer"
            ):
                await ask


async def test_a_column_was_added_if_the_table_of_the_answer_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer about another table, or one as of before, would have the next writes and scans be of that."""
    async with open_table(tmp_path, 10) as (table, _):
        client, connection = scanner.Client(table._connection, "here"), table._connection
        other = await client.create_table("other", pa.schema([*SCHEMA, ("more", pa.int8())]), ["k"])
        for described, lacks in ((other.description, "nothing"), (table.description, "more")):
            answer = pb.AddColumnResponse(table=description_to_proto(described)).SerializeToString()

            async def answered(*_: object, _answer: bytes = answer, **__: object) -> bytes:
                return _answer

            monkeypatch.setattr(connection, "call", answered)
            with pytest.raises(
                scanner.DataCorrupted, match=f"'{described.name}', which lacks {lacks}; look the table"
            ):
                await table.add_column(pa.field("more", pa.int8()))
            assert table.schema == SCHEMA.set(0, table.schema.field("k"))
        monkeypatch.undo()
        await table.add_column(pa.field("more", pa.int8()))
        assert table.schema.names == other.schema.names


@pytest.mark.parametrize("told", [(), (0, 2), (1, 2), (2, 2), (0, 0)])
@pytest.mark.parametrize("bucket", [None, 0])
async def test_what_was_done_with_other_buckets_is_no_answer(
    bucket: int | None, told: tuple[int, ...]
) -> None:
    """Nor is one that names none: whoever asked for checkpoints would take them for made."""

    async def answer(stream: ServerStream) -> None:
        await stream.receive()
        # The three answers have the bucket as field 1 of field 1.
        infos = [admin_pb2.CheckpointInfo(bucket=each) for each in told]
        await stream.send(admin_pb2.CheckpointResponse(checkpoints=infos).SerializeToString())

    calls = ("Checkpoint", "CompactLog", "MakeImages")
    handlers: dict[str, Handler] = {methods.ADMIN + name: answer for name in calls}
    async with memory_host(handlers) as host, connected_to(host) as connection:
        client = scanner.Client(connection, "here")
        for ask in (client.checkpoint, client.compact_log, client.make_images):
            with pytest.raises(scanner.DataCorrupted, match="nobody knows what was done"):
                await ask("items", bucket=bucket)


@pytest.mark.parametrize(
    ("mode", "receiver", "ask"),
    [
        ("push", PushReceiver, "begin_stream"),
        ("session", SessionReceiver, "next_request"),
        ("token", PageReceiver, "next_request"),
        ("cursor", PageReceiver, "next_request"),
        ("asof", PageReceiver, "next_request"),
    ],
)
async def test_the_rows_of_another_bucket_are_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, receiver: type, ask: str
) -> None:
    """As of a proxy that mixes answers up: of two scans both would get the rows of one; nor those of another table."""
    async with open_table(tmp_path, 10, buckets=2) as (table, _):
        other = await scanner.Client(table._connection, "here").create_table("other", SCHEMA, ["k"], 2)
        as_asked = getattr(receiver, ask)
        others = [(table.name, table.table_id, 1), (other.name, other.table_id, 0)]

        def asked(self: Any, *given: Any) -> Any:
            mine = as_asked(self, *given)
            request = type(mine).FromString(mine.SerializeToString())
            request.query.table, request.query.table_id, request.query.bucket = others.pop()
            return request

        scan = table.new_scan().bucket(0).with_mode(mode)
        assert (await scan.to_arrow()).num_rows
        monkeypatch.setattr(receiver, ask, asked)
        while others:
            with pytest.raises(
                scanner.DataCorrupted, match=r"bucket 0 of table .* was asked for, and the answer"
            ):
                await scan.to_arrow()


async def test_the_offsets_of_another_table_are_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins or ends there would miss changes of the one that was asked for."""
    async with open_table(tmp_path, 10) as (table, _):
        connection, call = table._connection, table._connection.call
        other = await scanner.Client(connection, "here").create_table("other", SCHEMA, ["k"], table.buckets)
        ours = await table.offsets()

        async def of_the_other(path: str, request: bytes, **options: Any) -> Any:
            asked = pb.ListOffsetsRequest.FromString(unsealed(request))
            asked.table, asked.table_id = other.name, other.table_id
            return await call(path, asked.SerializeToString(), **options)

        monkeypatch.setattr(connection, "call", of_the_other)
        for ask in (table.offsets(), table.offsets(at=LONG_AGO)):
            with pytest.raises(scanner.DataCorrupted, match=f"and tells those of table {other.table_id}"):
                await ask
        monkeypatch.undo()
        assert await table.offsets() == ours


async def test_what_is_told_of_another_table_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, and what was done: who asked would take it for that of the table that was named."""
    async with open_table(tmp_path, 10) as (table, _):
        connection, call = table._connection, table._connection.call
        client = scanner.Client(connection, "here")
        other = await client.create_table("other", SCHEMA, ["k"], table.buckets)
        asks: dict[str, tuple[Any, Any]] = {
            "Checkpoint": (client.checkpoint, admin_pb2.CheckpointRequest),
            "ListCheckpoints": (client.list_checkpoints, admin_pb2.ListCheckpointsRequest),
            "CompactLog": (client.compact_log, admin_pb2.CompactLogRequest),
            "MakeImages": (client.make_images, admin_pb2.MakeImagesRequest),
            "ListImages": (client.image_states, admin_pb2.ListImagesRequest),
            "DropImages": (client.drop_images, admin_pb2.DropImagesRequest),
            "ListLeases": (client.list_leases, leases_pb2.ListLeasesRequest),
            "ListGroups": (lambda _: table.groups(), groups_pb2.ListGroupsRequest),
            "ListTransactions": (lambda _: table.transactions(), transactions_pb2.ListTransactionsRequest),
            "SplitBucket": (lambda _: table.split(0, splits=2), pb.SplitBucketRequest),
            "DropUnwritten": (lambda _: table.drop_unwritten(), pb.DropUnwrittenRequest),
            "DropTable": (
                lambda name: client.drop_table(name, table_id=table.table_id),
                pb.DropTableRequest,
            ),
        }

        async def of_the_other(path: str, request: bytes, **options: Any) -> Any:
            asked = asks[path.rpartition("/")[2]][1].FromString(unsealed(request))
            asked.table = other.name
            if "table_id" in asked.DESCRIPTOR.fields_by_name:
                asked.table_id = other.table_id
            return await call(path, asked.SerializeToString(), **options)

        for method, (ask, _) in asks.items():
            monkeypatch.setattr(connection, "call", of_the_other)
            with pytest.raises(
                scanner.DataCorrupted, match=f"^{method} was asked about .* the answer is about"
            ):
                await ask(table.name)
            monkeypatch.undo()
            if method == "DropUnwritten":  # It has dropped the other one, to which nobody had written.
                other = await client.create_table("other", SCHEMA, ["k"], table.buckets)
            await ask(table.name)


async def test_the_answer_to_another_stage_or_abort_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a version that is decided, rows would be taken for published that nobody has; so would what is freed."""
    async with open_table(tmp_path, 10) as (table, _):
        await table.transaction("decided", 1).publish({})
        asked, begin = table.transaction("open", 1), PartWriter._begin

        async def begin_another(self: PartWriter) -> None:
            if self._opening is not None:
                self._opening.version.name, self._opening.session = "decided", bytes(16)
            await begin(self)

        monkeypatch.setattr(PartWriter, "_begin", begin_another)
        with pytest.raises(scanner.DataCorrupted, match="Stage was asked about"):
            await asked.stage(rows(2), part=0, attempt=0)
        monkeypatch.undo()
        assert not (await asked.stage(rows(2), part=0, attempt=0)).decided
        other = transactions_pb2.AbortResponse()
        other.version.name = "decided"

        async def answered(*_: object, **__: object) -> bytes:
            return other.SerializeToString()

        monkeypatch.setattr(asked._connection, "call", answered)
        with pytest.raises(scanner.DataCorrupted, match="Abort was asked about"):
            await asked.abort()
        monkeypatch.undo()
        await asked.abort()


async def test_an_answer_that_decides_other_attempts_is_none(tmp_path: Path) -> None:
    """A request decides what it names, or is told what another one has decided."""
    async with open_table(tmp_path, 10) as (table, _):
        answer = transactions_pb2.PublishResponse(decided=True)
        answer.attempts.add(part=0, attempt=2)

        async def answered(*_: object, **__: object) -> bytes:
            return answer.SerializeToString()

        table._connection.call = answered  # type: ignore[method-assign]
        transaction = table.transaction("load", 1)
        assert (await transaction.publish({0: 2})).decided
        for attempts, overwrite in (({0: 1}, False), ({}, False), ({0: 2, 1: 0}, False), ({0: 2}, True)):
            with pytest.raises(scanner.DataCorrupted, match="has decided"):
                await transaction.publish(attempts, overwrite=overwrite)
        answer.decided = False
        assert (await transaction.publish({0: 1})).attempts == {0: 2}


async def test_the_answer_about_another_version_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that nobody has published would be taken for published; so it is with one that says nothing."""
    async with open_table(tmp_path, 10) as (table, _):
        connection, asked = table._connection, table.transaction("load", 1)
        await asked.stage(rows(2), part=0, attempt=0)
        answers = [transactions_pb2.PublishResponse()]
        for other in (("load", 0), ("loaf", 1)):
            key = transactions_pb2.TransactionVersion(table="items", table_id=table.table_id)
            key.name, key.version = other
            answer = transactions_pb2.PublishResponse(version=key, decided=True)
            answer.attempts.add()
            answers.append(answer)

        async def answered(*_: object, **__: object) -> bytes:
            return answers[-1].SerializeToString()

        monkeypatch.setattr(connection, "call", answered)
        while answers:
            with pytest.raises(scanner.DataCorrupted, match="nobody knows whether it is; publish it again"):
                await asked.publish({0: 0})
            answers.pop()
        monkeypatch.undo()
        assert (await asked.publish({0: 0})).decided
        assert not (await asked.publish({0: 0})).decided


@pytest.mark.parametrize(
    ("staged", "error", "message"),
    [
        (1, scanner.DataCorrupted, "2 rows were sent, and the server has staged 1"),
        (3, scanner.DataCorrupted, "2 rows were sent, and the server has staged 3"),
        (None, scanner.ServerUnavailable, "before it said that it is durable"),
    ],
)
async def test_a_stage_of_other_rows_than_were_sent_is_none(
    autojump_clock: object, staged: int | None, error: type[scanner.ScannerError], message: str
) -> None:
    """What is missing would be published as if it were there. A stage that nobody has acknowledged is none, either."""

    async def stage(stream: ServerStream) -> None:
        while await stream.receive() is not None:
            pass
        if staged is not None:
            await stream.send(transactions_pb2.StageResponse(rows=staged).SerializeToString())

    async with memory_host({methods.STAGE: stage}) as host, connected_to(host) as connection:
        table = scanner.Table(connection, TableDescription("items", SCHEMA, ("k",), 1), 1)
        with pytest.raises(error, match=message):
            await table.transaction("load", 1).stage(rows(2), part=0, attempt=0)


@pytest.mark.parametrize("told", [(), (0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 2)])
async def test_offsets_of_other_buckets_than_the_table_has_are_no_answer(
    tmp_path: Path, told: tuple[int, ...]
) -> None:
    """Whoever reads the buckets that are named, as Spark does, would never miss those that are not."""
    async with open_table(tmp_path, 10, buckets=3) as (table, _):
        ranges = [pb.OffsetRange(bucket=bucket, end_offset=1, at_offset=0) for bucket in told]
        offsets = pb.ListOffsetsResponse(ranges=ranges)
        measured = [pb.MeasuredLog(bucket=bucket, end_offset=1) for bucket in told]
        measures = pb.MeasureLogResponse(logs=measured, table_id=table.table_id)

        async def answered(path: str, *_: object, **__: object) -> bytes:
            return (offsets if path == methods.LIST_OFFSETS else measures).SerializeToString()

        table._connection.call = answered  # type: ignore[method-assign]
        with pytest.raises(scanner.DataCorrupted, match=f"offsets of {len(told)} buckets of items"):
            await table.offsets()
        with pytest.raises(scanner.DataCorrupted, match="which has 3"):
            await table.offsets(at=LONG_AGO)
        with pytest.raises(scanner.DataCorrupted, match=r"\[0, 1, 2\] were to be measured"):
            await table.measure_log(dict.fromkeys(range(3), 0))


@asynccontextmanager
async def acknowledging(
    *answers: pb.WriteResponse, failure: scanner.ScannerError | None = None
) -> AsyncIterator[scanner.Table]:
    """A table whose server answers the requests of a write with these, whatever they were, and then fails."""

    async def write(stream: ServerStream) -> None:
        while await stream.receive() is not None:
            pass
        for each in answers:
            await stream.send(each.SerializeToString())
        if failure is not None:
            raise to_call_failed(failure)

    async with memory_host({methods.WRITE: write}) as host, connected_to(host) as connection:
        yield scanner.Table(connection, TableDescription("items", SCHEMA, ("k",), 1), 1)


FIRST = pb.WriteResponse(ranges=[pb.OffsetRange(bucket=0, start_offset=0, end_offset=8192)])
SECOND = pb.WriteResponse(ranges=[pb.OffsetRange(bucket=0, start_offset=8192, end_offset=8292)])


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            (FIRST, FIRST),
            r"\[0, 8192\) of bucket 0 are acknowledged after those up to 8192: .* older copy.*.8192 rows",
        ),
        ((SECOND, FIRST), "after those up to 8292"),
        ((FIRST, SECOND, SECOND), "more often than it was sent"),
        ((pb.WriteResponse(), FIRST, FIRST), "more often than it was sent"),
    ],
)
async def test_an_acknowledgement_that_comes_twice_counts_for_nothing(
    autojump_clock: object, answers: tuple[pb.WriteResponse, ...], message: str
) -> None:
    """It would stand for a request that has failed; the changes that it tells of were told before."""
    async with acknowledging(*answers, failure=DiskFull("full") if len(answers) == 2 else None) as table:
        with pytest.raises(scanner.DataCorrupted, match=message):
            await table.write(rows(8292))
    async with acknowledging(FIRST, SECOND) as table:
        assert (await table.write(rows(8292))).rows == 8292


async def test_an_acknowledgement_of_another_request_counts_for_nothing(autojump_clock: object) -> None:
    """What it tells of may be durable, and what was sent first may not."""
    for wrong in 2, 7:
        async with acknowledging(pb.WriteResponse(sequence=wrong, ranges=FIRST.ranges)) as table:
            with pytest.raises(
                scanner.DataCorrupted,
                match=rf"request {wrong} of this writer is acknowledged where 1 would be next.*\(0 rows",
            ):
                await table.write(rows(8292))


async def test_what_was_acknowledged_before_a_failed_request_counts(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where sending fails first, and the acknowledgement is read behind that: those rows are durable."""
    failed = trio.Event()

    async def write(stream: ServerStream) -> None:
        await stream.receive()
        await stream.send(FIRST.SerializeToString())
        failed.set()
        raise to_call_failed(DiskFull("full"))

    put = Writer._put

    async def send(writer: Writer, sent: Any) -> None:
        if writer._in_flight:
            await failed.wait()
            raise StreamReset(0, by_peer=True)
        await put(writer, sent)

    monkeypatch.setattr(Writer, "_put", send)
    async with memory_host({methods.WRITE: write}) as host, connected_to(host) as connection:
        table = scanner.Table(connection, TableDescription("items", SCHEMA, ("k",), 1), 1)
        with pytest.raises(scanner.DiskFull, match=r"\(8192 rows of this write"):
            await table.write(rows(8292))


async def test_a_write_that_an_older_server_had_twice_is_not_said_to_be_done(autojump_clock: object) -> None:
    """It numbers nothing, and nobody knows that before its first answer."""
    calls: list[int] = []

    async def write(stream: ServerStream) -> None:
        calls.append(0)
        while await stream.receive() is not None:
            calls[-1] += 1
        if len(calls) == 1:
            raise to_call_failed(scanner.ServerUnavailable("gone"))
        await stream.send(FIRST.SerializeToString())

    async with memory_host({methods.WRITE: write}) as host, connected_to(host) as connection:
        table = scanner.Table(connection, TableDescription("items", SCHEMA, ("k",), 1), 1)
        with pytest.raises(
            scanner.ServerUnavailable, match=r"may have been written twice.*\(0 rows of this write"
        ):
            await table.write(rows(8192))
        assert calls == [1, 1]
        assert (await table.write(rows(8192))).rows == 8192


async def test_delete_by_key(tmp_path: Path) -> None:
    """Deletes take tuples, dicts or Arrow keys; a key that is not there changes nothing."""
    async with open_table(tmp_path, 10) as (table, _):
        await table.delete([(0,), {"k": 1}])
        await table.delete(pa.table({"k": [2, 3]}))
        assert (await table.delete([(77,)])).ranges == ()
        assert sorted((await table.new_scan().to_arrow())["k"].to_pylist()) == [4, 5, 6, 7, 8, 9]
        for keys in ([(1, 2)], ["ab"], [("one",)], [{"x": 1}], [(None,)], [(4.5,)], [(True,)]):
            with pytest.raises(scanner.KeyInvalid):
                await table.delete(keys)
        assert (await table.new_scan().to_arrow()).num_rows == 6


async def test_bad_rows_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """Rows that do not fit change nothing, even where the mistake is far down."""
    async with open_table(tmp_path, 0) as (table, _):
        broken = pa.concat_tables([rows(20_000), rows(1).set_column(0, "k", pa.array([None], pa.int64()))])
        with pytest.raises(scanner.KeyInvalid, match="row 20000"):
            await table.write(broken)
        with pytest.raises(scanner.SchemaMismatch):
            await table.write(rows(1).drop_columns(["text"]))
        assert (await table.new_scan().to_arrow()).num_rows == 0


async def test_server_that_dies_under_a_scan(tmp_path: Path) -> None:
    """Without retries a lost connection fails the scan and the next call, typed and at once."""
    async with trio.open_nursery() as nursery:
        stop = trio.Event()

        async def serve(task_status: trio.TaskStatus[Server]) -> None:
            async with open_server(tmp_path) as server:
                task_status.started(server)
                await stop.wait()

        server = await nursery.start(serve)
        async with scanner.connect(f"127.0.0.1:{server.port}", retries=0) as client:
            table = await client.create_table("t", SCHEMA, ["k"])
            await table.write(rows(20_000, width=500))
            async with table.new_scan().with_credit(100_000).execute() as batches:
                await anext(batches)
                stop.set()
                with pytest.raises((scanner.ServerUnavailable, scanner.ScanIncomplete)):
                    async for _ in batches:
                        pass
            with pytest.raises(scanner.ServerUnavailable):
                await client.tables()


async def test_a_row_that_fits_into_no_message_is_refused_in_words_for_its_writer() -> None:
    """They say what is too long, and what to do; the server's transport refuses it, which knows no rows."""
    config = TransportConfig(message_bytes_max=1_000_000)
    async with open_server(MemoryStore(), transport_config=config) as server:
        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            table = await client.create_table("t", SCHEMA, ["k"])
            with pytest.raises(
                scanner.ArgumentInvalid,
                match=r"^the write to t is over a limit of .* limit of 1000000; .* shorten its longest row",
            ):
                await table.write(rows(2, width=1_000_000))


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            wire.headers(1, [(":status", "404"), ("content-type", "text/html")], end=True),
            "ServerUnavailable",
            "HTTP status 404",
        ),
        (
            wire.headers(1, [(":status", "415")], end=True),
            "ServerUnavailable",
            "was not answered by a weir server",
        ),
        (
            wire.headers(1, [(":status", "502")], end=True),
            "ServerUnavailable",
            "by a proxy: .* HTTP status 502, .* nothing of it was done, unless by a server behind that",
        ),
        (wire.headers(1, [(":status", "403")], end=True), "PermissionDenied", "HTTP status 403"),
        (wire.headers(1, [(":status", "413")], end=True), "ArgumentInvalid", "client_max_body_size 0"),
        (
            wire.headers(
                1, [*wire.RESPONSE, ("grpc-status", "2"), ("grpc-message", "Payload Too Large")], end=True
            ),
            "ArgumentInvalid",
            "more than a proxy on the way takes: Payload Too Large; .*Envoy: no buffer filter",
        ),
        (
            wire.headers(
                1, [*wire.RESPONSE, ("grpc-status", "2"), ("grpc-message", "stream timeout")], end=True
            ),
            "ServerUnavailable",
            "UNKNOWN: stream timeout",
        ),
        (wire.headers(1, wire.RESPONSE) + wire.data(1, b"\0\x7f\0\0\0"), "InternalError", "over the limit"),
        (wire.headers(1, wire.RESPONSE) + wire.data(1, b"\1\0\0\0\1"), "InternalError", "compressed"),
        (
            wire.headers(1, wire.RESPONSE) + wire.data(1, b"\0\0", end=True),
            "ScanIncomplete",
            "without trailers",
        ),
    ],
)
async def test_an_answer_that_no_server_of_weir_gives(answer: bytes, kind: str, message: str) -> None:
    """What a proxy answers is told as that, and not as what the same status means from a server."""

    async def answer_all(stream: trio.SocketStream) -> None:
        await stream.send_all(wire.SERVER_HELLO)
        octets, waiting = b"", True
        async for data in stream:
            octets += data
            # HEADERS of stream 1: nothing may be said of a stream before it is there.
            if waiting and b"\x01\x04\0\0\0\x01" in octets:
                waiting = False
                await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, answer_all, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        async with scanner.connect(f"127.0.0.1:{port}", retries=0) as client:
            with pytest.raises(scanner.ScannerError, match=message) as caught:
                await client.tables()
        assert type(caught.value).__name__ == kind
        nursery.cancel_scope.cancel()
