"""Tables and writes over real sockets: order, durability, refusals, and the data directory underneath."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast
from unittest.mock import ANY

import pyarrow as pa
import pytest
import trio
import trio.testing

import scanner
import transport
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.data.keys import bucket_of
from scanner.data.table import TableDescription
from scanner.errors import (
    ArgumentInvalid,
    DiskFull,
    Draining,
    KeyInvalid,
    ScannerError,
    SchemaMismatch,
    SequenceInvalid,
    TableExists,
    TableNotFound,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_manager import LeaseKeeper
from scanner.server.server import open_server
from scanner.server.services.tables import TablesService
from scanner.storage.memory.store import MemoryStore
from scanner.tasks import inline
from scanner.wire.arrow_ipc import encode_stream
from scanner.wire.tables import description_from_proto, description_to_proto
from tests.support.conformance import open_virtual_items
from tests.support.scans import (
    SCHEMA,
    SMALL,
    TABLES,
    create_table,
    description,
    failure,
    filled_store,
    open_scan,
    sample,
    serving,
    write,
    write_request,
)
from transport.protocol.messages import message_prefix

if TYPE_CHECKING:
    from transport import ServerStream

pytestmark = pytest.mark.socket
T = TypeVar("T")

BUCKETS = 3
WRITER = bytes(range(16))


async def call(client: transport.Client, name: str, request: bytes) -> bytes:
    """One unary call of Tables."""
    return bytes(await client.call(TABLES + name, request))


async def all_rows(client: transport.Client, buckets: int = BUCKETS) -> pa.Table:
    """All rows of the sample table, by key."""
    parts = []
    for bucket in range(buckets):
        async with open_scan(
            client, query=pb.ScanQuery(table="items", bucket=bucket), window_only=True
        ) as scan:
            await scan.receive_all()
        parts.append(scan.table())
    return pa.concat_tables(parts).sort_by("id").combine_chunks()


def table_of(batch: pa.RecordBatch) -> pa.Table:
    """A batch as a table."""
    return pa.Table.from_batches([batch])


async def test_tables_are_created_listed_described_and_dropped() -> None:
    """Each call answers with the table as it is stored; a name is taken once and free again after a drop."""
    table = description(buckets=BUCKETS)
    by_name = tables_pb2.DescribeTableRequest(table="items").SerializeToString()
    async with serving(MemoryStore()) as (_, client):
        await create_table(client, table)
        assert isinstance(await failure(lambda: create_table(client, table)), TableExists)
        await create_table(client, description("a.first"))
        listed = tables_pb2.ListTablesResponse.FromString(await call(client, "ListTables", b""))
        described = tables_pb2.DescribeTableResponse.FromString(await call(client, "DescribeTable", by_name))
        await call(client, "DropTable", tables_pb2.DropTableRequest(table="items").SerializeToString())
        gone = await failure(lambda: call(client, "DescribeTable", by_name))
        await create_table(client, description(buckets=1))

    assert [each.name for each in listed.tables] == ["a.first", "items"]
    assert description_from_proto(described.table) == table
    assert isinstance(gone, TableNotFound)
    assert "a.first" in gone.message


async def test_a_table_on_other_servers_is_refused() -> None:
    """Which server has each bucket can be said and is not served: here they would all be on this one."""
    request = tables_pb2.CreateTableRequest(table=description_to_proto(description(buckets=BUCKETS)))
    request.table.bucket_endpoints[:] = ["10.0.0.1:9123"] * BUCKETS
    store = MemoryStore()
    async with serving(store) as (_, client):
        error = await failure(lambda: call(client, "CreateTable", request.SerializeToString()))
    assert isinstance(error, ArgumentInvalid)
    assert "bucket_endpoints" in error.message
    assert store.tables() == []


async def test_a_table_is_dropped_only_if_nobody_has_written_to_it() -> None:
    """An unwritten one goes, one with a row in any bucket stays, and so does one that took the name meanwhile."""

    async def drop(client: transport.Client, table_id: int) -> bool:
        request = tables_pb2.DropUnwrittenRequest(table="items", table_id=table_id)
        reply = await call(client, "DropUnwritten", request.SerializeToString())
        return tables_pb2.DropUnwrittenResponse.FromString(reply).dropped

    store = MemoryStore()
    async with serving(store) as (_, client):
        await create_table(client, description(buckets=BUCKETS))
        first = store.table_id("items")
        assert await drop(client, first)
        gone = await failure(lambda: drop(client, first))
        await create_table(client, description(buckets=BUCKETS))
        another = await failure(lambda: drop(client, first))
        await write(client, write_request(sample(range(1))))
        assert not await drop(client, store.table_id("items"))
        await write(client, write_request(sample(range(2))))
        rows = await all_rows(client)

    assert isinstance(gone, TableNotFound)
    assert isinstance(another, TableNotFound)
    assert rows.equals(table_of(sample(range(2))))


@pytest.mark.parametrize("method", ["DropTable", "DropUnwritten"])
async def test_a_drop_whose_client_leaves_is_audited(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is there as soon as the table is gone, while what is tidied up behind it may still be cut off."""
    tidying = trio.Event()

    async def tidy(_: LeaseKeeper) -> None:
        tidying.set()
        await trio.sleep_forever()

    monkeypatch.setattr(LeaseKeeper, "_forget_dropped_now", tidy)
    async with serving(MemoryStore()) as (server, client):
        await create_table(client, description())
        request = tables_pb2.DropTableRequest(table="items").SerializeToString()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, client, method, request)
            await tidying.wait()
            nursery.cancel_scope.cancel()
        assert server.statistics().activity.audited.get("table_dropped") == 1


async def test_writes_are_answered_in_order_with_their_offsets() -> None:
    """Each response has the ranges of its own request, per bucket one after another."""
    store = MemoryStore()
    store.create_table(description(buckets=BUCKETS))
    async with serving(store) as (_, client):
        responses = await write(
            client, *(write_request(sample(range(start, start + 100))) for start in range(0, 3000, 100))
        )
        offsets = tables_pb2.ListOffsetsResponse.FromString(
            await call(
                client, "ListOffsets", tables_pb2.ListOffsetsRequest(table="items").SerializeToString()
            )
        )
        rows = await all_rows(client)

    assert len(responses) == 30
    ends = dict.fromkeys(range(BUCKETS), 0)
    for response in responses:
        assert sum(each.end_offset - each.start_offset for each in response.ranges) == 100
        for each in response.ranges:
            assert each.start_offset == ends[each.bucket]
            ends[each.bucket] = each.end_offset
    assert [(each.bucket, each.start_offset, each.end_offset) for each in offsets.ranges] == [
        (bucket, 0, ends[bucket]) for bucket in range(BUCKETS)
    ]
    assert rows.equals(table_of(sample(range(3000))))


async def test_rows_are_in_the_bucket_of_their_key() -> None:
    """A key is found in the bucket that its bytes name."""
    store = MemoryStore()
    store.create_table(description(buckets=BUCKETS))
    async with serving(store) as (_, client):
        await write(client, write_request(sample(range(50))))
        async with open_scan(client, query=pb.ScanQuery(table="items", bucket=1), window_only=True) as scan:
            await scan.receive_all()

    keys = store.key_codec("items").encode_batch(sample(range(50)))
    assert scan.table().column("id").to_pylist() == [
        index for index, key in enumerate(keys) if bucket_of(key, BUCKETS) == 1
    ]


async def test_updates_deletes_and_repetitions_apply_in_row_order() -> None:
    """The last row of a key wins; deleting what is not there changes nothing and says so."""
    store = filled_store(10)
    twice = pa.concat_batches([sample([3]), sample([3]).set_column(2, SCHEMA.field(2), pa.array([9.5]))])
    keys = pa.record_batch({"id": [4, 5, 77]})
    async with serving(store) as (_, client):
        changed, deleted, absent = await write(
            client,
            write_request(twice),
            write_request(keys, delete=True),
            write_request(keys.slice(2), delete=True),
        )
        rows = (await all_rows(client, 1)).to_pydict()

    assert [(each.start_offset, each.end_offset) for each in changed.ranges] == [(10, 14)]
    assert [(each.start_offset, each.end_offset) for each in deleted.ranges] == [(14, 16)]
    assert list(absent.ranges) == []
    assert rows["id"] == [0, 1, 2, 3, 6, 7, 8, 9]
    assert rows["price"][3] == 9.5


async def test_columns_go_by_name_and_are_cast_when_nothing_is_lost() -> None:
    """Column order and representation are the writer's business."""
    batch = sample(range(20))
    shuffled = pa.record_batch(
        {
            "sold": batch.column("sold"),
            "name": batch.column("name").cast(pa.large_string()).dictionary_encode(),
            "price": batch.column("price").cast(pa.float32()),
            "id": batch.column("id").cast(pa.int16()),
        }
    )
    async with serving(filled_store(0)) as (_, client):
        await write(client, write_request(shuffled))
        rows = await all_rows(client, 1)

    assert rows.equals(table_of(batch))


async def test_a_request_that_comes_again_is_answered_as_before_and_changes_nothing(tmp_path: Path) -> None:
    """On another stream, beside new ones, in some of its buckets or all, and after a restart."""

    def numbered(keys: Iterable[int], sequence: int, *, delete: bool = False) -> bytes:
        batch = sample(keys).select(["id"]) if delete else sample(keys)
        return write_request(batch, delete=delete, writer_id=WRITER, sequence=sequence)

    requests = [
        numbered(range(100), 1),
        numbered(range(5), 2, delete=True),
        numbered([500], 3, delete=True),
        numbered(range(50), 4),
    ]
    data = tmp_path / "data"
    async with serving(data) as (_, client):
        await create_table(client, description(buckets=BUCKETS))
        first = await write(client, *requests)
        await write(client, write_request(sample([500])))
        assert await write(client, *requests, numbered([77], 5)) == [*first, ANY]
    async with serving(data) as (_, client):
        assert await write(client, *requests) == first
        offsets = tables_pb2.ListOffsetsRequest(table="items").SerializeToString()
        listed = tables_pb2.ListOffsetsResponse.FromString(await call(client, "ListOffsets", offsets))
        rows = await all_rows(client)

    assert [each.sequence for each in first] == [1, 2, 3, 4]
    assert not first[2].ranges
    # 100 inserted, 5 deleted, 5 inserted, 45 of which each is two changes, and the two that had no number or were new.
    assert sum(each.end_offset for each in listed.ranges) == 100 + 5 + 5 + 2 * 45 + 1 + 2
    assert rows.equals(table_of(sample([*range(100), 500])))


async def test_a_request_that_comes_again_is_answered_though_a_column_was_added(tmp_path: Path) -> None:
    """Its rows lack the column, and are durable; new ones that lack it are refused, and what comes behind them."""
    first = write_request(sample(range(100)), writer_id=WRITER, sequence=1)
    other_rows = write_request(sample([1]), writer_id=WRITER, sequence=1)
    stale = write_request(sample([500]), writer_id=WRITER, sequence=3)
    wide = sample([600]).append_column("note", pa.array(["n"]))
    added = tables_pb2.AddColumnRequest(
        table="items", arrow_schema=pa.schema([("note", pa.string())]).serialize().to_pybytes()
    )
    async with serving(tmp_path / "data") as (_, client):
        await create_table(client, description(buckets=BUCKETS))
        answered = await write(client, first)
        await call(client, "AddColumn", added.SerializeToString())
        again = await write(client, first, write_request(wide, writer_id=WRITER, sequence=2))
        other = await failure(lambda: write(client, other_rows))
        refused = await failure(lambda: write(client, first, stale, write_request(wide)))
        rows = await all_rows(client)

    assert again == [*answered, ANY]
    assert type(other) is SequenceInvalid
    assert type(refused) is SchemaMismatch
    assert "note" in refused.message
    assert rows["id"].to_pylist() == [*range(100), 600]


@pytest.mark.parametrize(
    ("request_", "kind", "match"),
    [
        pytest.param(
            write_request(sample([1]), writer_id=WRITER, sequence=2),
            SequenceInvalid,
            "request 2 of this writer comes after its request 3",
            id="late",
        ),
        pytest.param(
            write_request(sample([2]), writer_id=WRITER, sequence=3),
            SequenceInvalid,
            "request 3 of this writer was applied with other rows",
            id="other rows",
        ),
        pytest.param(
            write_request(sample([1]).select(["id"]), delete=True, writer_id=WRITER, sequence=3),
            SequenceInvalid,
            "request 3 of this writer was applied with other rows",
            id="delete",
        ),
        pytest.param(
            write_request(sample([1]), writer_id=WRITER),
            ArgumentInvalid,
            "sequence is a number",
            id="no number",
        ),
        pytest.param(
            write_request(sample([1]), writer_id=WRITER, sequence=2**63),
            ArgumentInvalid,
            "sequence is a number",
            id="large number",
        ),
        pytest.param(
            write_request(sample([1]), sequence=4),
            ArgumentInvalid,
            "writer_id is 16 octets, not 0",
            id="nobody",
        ),
        pytest.param(
            write_request(sample([1]), writer_id=WRITER[1:], sequence=4),
            ArgumentInvalid,
            "writer_id is 16 octets, not 15",
            id="short id",
        ),
    ],
)
async def test_a_request_with_a_wrong_number_is_refused(
    request_: bytes, kind: type[ScannerError], match: str
) -> None:
    """It would replace newer rows, or pass for another; nothing is written."""
    store = filled_store(0)
    async with serving(store) as (_, client):
        await write(client, write_request(sample([1]), writer_id=WRITER, sequence=3))
        error = await failure(lambda: write(client, request_))
    assert type(error) is kind
    assert match in error.message
    assert store.bucket("items", 0).log_end == 1


async def test_an_empty_write_is_answered() -> None:
    """No rows, no ranges, one response."""
    async with serving(filled_store(0)) as (_, client):
        responses = await write(client, write_request(sample([])))

    assert [list(each.ranges) for each in responses] == [[]]


NULL_KEY = pa.record_batch(
    {"id": pa.array([1, 2, None], pa.int64()), "name": ["a"] * 3, "price": [1.0] * 3, "sold": [True] * 3}
)
UPSERT = tables_pb2.WriteRequest.OPERATION_UPSERT


def request(**fields: object) -> bytes:
    """A write with something wrong about it."""
    whole: dict[str, object] = {
        "table": "items",
        "operation": UPSERT,
        "arrow_stream": encode_stream(sample([1])),
        **fields,
    }
    return tables_pb2.WriteRequest(**whole).SerializeToString()  # type: ignore[arg-type]


def two_batches() -> bytes:
    """A stream of two batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(sample([1]))
        writer.write_batch(sample([2]))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        (b"\xff\xff\xff", ArgumentInvalid, "not a WriteRequest"),
        (request(table="nothing"), TableNotFound, "items"),
        (request(operation=0), ArgumentInvalid, "upsert or a delete"),
        (request(operation=9), ArgumentInvalid, "9"),
        (request(arrow_stream=b""), ArgumentInvalid, "Arrow IPC stream"),
        (request(arrow_stream=b"garbage"), ArgumentInvalid, "Arrow IPC stream"),
        (request(arrow_stream=encode_stream(sample(range(9)))[:-300]), ArgumentInvalid, "Arrow IPC stream"),
        (request(arrow_stream=two_batches()), ArgumentInvalid, "holds 2"),
        (request(crc32c=0), ArgumentInvalid, "changed on its way"),
        (write_request(sample(range(1001))), ArgumentInvalid, "1000 are allowed"),
        (write_request(NULL_KEY), KeyInvalid, "'id' is null in row 2"),
        (write_request(sample([1]).drop_columns(["price"])), SchemaMismatch, "price"),
        (
            write_request(sample([1]).append_column("colour", pa.array(["red"]))),
            SchemaMismatch,
            "colour",
        ),
        (
            write_request(sample([1]).set_column(2, "price", pa.array(["cheap"]))),
            SchemaMismatch,
            "price",
        ),
        (write_request(sample([1]), delete=True), SchemaMismatch, "name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_write_is_refused_after_the_good_ones_before_it(
    message: bytes, kind: type[ScannerError], says: str
) -> None:
    """The requests before it are written and answered; the bad one and those after it are not."""
    responses = []
    config = ScannerConfig(write_rows_max=1000)
    async with serving(filled_store(0), config) as (_, client):
        async with client.open_stream(TABLES + "Write") as stream:
            for each in (write_request(sample([10])), write_request(sample([11])), message):
                await stream.send(each)

            async def receive_all() -> None:
                while (response := await stream.receive()) is not None:
                    responses.append(response)

            error = await failure(receive_all)
        rows = await all_rows(client, 1)

    assert type(error) is kind
    assert says in error.message
    assert len(responses) == 2
    assert rows.column("id").to_pylist() == [10, 11]


@pytest.mark.parametrize("columns", [["id", "name", "price"], ["id", "name", "colour"]])
async def test_the_rows_of_a_refused_write_are_freed_at_once(
    columns: list[str],
) -> None:
    """Not when the garbage is collected: a few kilobytes become a hundred megabytes, and the next write has its own."""
    rows = pa.record_batch([pa.array([1]), pa.array(["\0" * 2**25]), pa.array([1.5])], names=columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    request = tables_pb2.WriteRequest(
        table="items",
        operation=tables_pb2.WriteRequest.OPERATION_UPSERT,
        arrow_stream=sink.getvalue().to_pybytes(),
    ).SerializeToString()
    del rows, sink, writer
    async with serving(filled_store(0), ScannerConfig(row_bytes_max=2**24)) as (_, client):
        gc.disable()
        try:
            before = pa.total_allocated_bytes()
            await failure(functools.partial(write, client, request))
            assert pa.total_allocated_bytes() - before < 2**20
        finally:
            gc.enable()


async def cut_write(client: transport.Client, whole: int) -> tuple[int, str]:
    """A write of so many requests and a part of one more: how many were answered, and the error."""
    answered = 0
    async with client.open_stream(TABLES + "Write") as stream:
        for key in range(whole):
            await stream.send(write_request(sample([key])))
        stream._core.queue_octets(message_prefix(100) + bytes(99))
        await stream.send_end()

        async def receive_all() -> None:
            nonlocal answered
            while await stream.receive() is not None:
                answered += 1

        error = await failure(receive_all)
    return answered, error.message


@pytest.mark.parametrize("whole", [0, 1, 3])
async def test_a_part_of_a_request_is_refused_after_the_whole_ones_before_it(whole: int) -> None:
    """However the server's tasks take turns: their order is drawn anew in each of many calls."""
    async with serving(filled_store(0)) as (_, client):
        for _ in range(16):
            answered, says = await cut_write(client, whole)
            assert answered == whole
            assert "in the middle of a message" in says


async def test_scans_between_writes_see_whole_requests() -> None:
    """Every scan, opened at any moment of a stream of writes, shows all of a request in a bucket or nothing."""
    store = MemoryStore()
    store.create_table(description(buckets=1))
    seen: list[int] = []
    async with serving(store) as (_, client):

        async def scan_on() -> None:
            while not seen or seen[-1] < 2000:
                async with open_scan(client, window_only=True) as scan:
                    await scan.receive_all()
                assert scan.log_offset == scan.rows
                seen.append(scan.rows)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scan_on)
            await write(
                client, *(write_request(sample(range(start, start + 50))) for start in range(0, 2000, 50))
            )

    assert all(rows % 50 == 0 for rows in seen)
    assert seen == sorted(seen)


@pytest.mark.rocks
async def test_acknowledged_writes_survive_a_restart(tmp_path: Path) -> None:
    """What was answered is there again after the server was closed, with its schema and its offsets."""
    async with serving(tmp_path, SMALL) as (_, client):
        await create_table(client, description(buckets=BUCKETS))
        await write(client, *(write_request(sample(range(start, start + 500))) for start in (0, 500, 1000)))
        await write(client, write_request(pa.record_batch({"id": [0, 700]}), delete=True))
    async with serving(tmp_path, SMALL) as (_, client):
        rows = await all_rows(client)

    assert rows.equals(table_of(sample(each for each in range(1500) if each not in (0, 700))))


@pytest.mark.rocks
async def test_concurrent_writers_share_commits_and_keep_their_order(tmp_path: Path) -> None:
    """Many writers on one bucket all get offsets of their own, and each one's last row wins."""
    async with serving(tmp_path, SMALL) as (_, client):
        await create_table(client, description(buckets=1))
        ranges: list[tuple[int, int]] = []

        async def writer(number: int) -> None:
            key = sample([number])
            versions = [
                key.set_column(2, SCHEMA.field("price"), pa.array([float(version)])) for version in range(20)
            ]
            for response in await write(client, *map(write_request, versions)):
                (only,) = response.ranges
                ranges.append((only.start_offset, only.end_offset))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(writer, number)
        rows = await all_rows(client, 1)

    assert rows.column("price").to_pylist() == [19.0] * 8
    ranges.sort()
    assert ranges[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert ranges[-1][1] == 8 * (1 + 19 * 2)


async def test_tables_are_listed_in_pages() -> None:
    """Pages stay below 4 MiB, however wide the tables are, and together they have every table."""
    store = MemoryStore()
    wide = pa.schema([("id", pa.int64()), *((f"{'c' * 240}{at}", pa.string()) for at in range(500))])
    for number in range(40):
        store.create_table(TableDescription(f"t{number:02}", wide, ("id",), 1))
    async with serving(store) as (server, client):
        names: list[str] = []
        sizes, request = [], tables_pb2.ListTablesRequest()
        while not names or request.page_token:
            answer = await call(client, "ListTables", request.SerializeToString())
            page = tables_pb2.ListTablesResponse.FromString(answer)
            names += [each.name for each in page.tables]
            sizes.append(len(answer))
            request.page_token = page.next_page_token
        assert names == [f"t{number:02}" for number in range(40)]
        assert len(sizes) > 1
        assert max(sizes) <= 2 << 20
        two = tables_pb2.ListTablesRequest(page_size=2, page_token="t37x").SerializeToString()
        page = tables_pb2.ListTablesResponse.FromString(await call(client, "ListTables", two))
        assert ([each.name for each in page.tables], page.next_page_token) == (["t38", "t39"], "")
        async with scanner.connect(f"127.0.0.1:{server.port}") as user:
            assert [each.name for each in await user.tables()] == names


async def test_a_write_that_fails_is_told_whatever_is_accepted_meanwhile() -> None:
    """A request that is accepted while the failure of one before it is on its way out does not fail in its place.

    The server's tasks run in either order; here the one that accepts is the one whose failure would count.
    """
    sender, receiver = trio.open_memory_channel[ScannerError](1)
    sender.send_nowait(DiskFull("no room"))
    with pytest.raises(DiskFull):
        await TablesService._respond(cast("ServerStream", None), receiver)
    sender.send_nowait(DiskFull("no room"))
    sender.close()
    receiver.close()


async def test_a_time_is_looked_up_when_storage_is_not_being_opened_anew() -> None:
    """Else whoever reads storage waits in the loop of the server, and with it everybody."""
    async with (
        serving(filled_store(3)) as (server, client),
        trio.open_nursery() as nursery,
    ):
        bucket = await server._services.catalog.bucket(await server._services.catalog.table("items"), 0)
        request = tables_pb2.ListOffsetsRequest(table="items", timestamp_us=1).SerializeToString()
        answers: list[tables_pb2.ListOffsetsResponse] = []

        async def ask() -> None:
            answer = await call(client, "ListOffsets", request)
            answers.append(tables_pb2.ListOffsetsResponse.FromString(answer))

        async with bucket.between_commits():
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):  # Answered behind it, if it was answered.
                await call(client, "ListTables", tables_pb2.ListTablesRequest().SerializeToString())
            assert answers == []
        while not answers:
            await trio.lowlevel.checkpoint()
    assert answers[0].ranges[0].end_offset == 3


async def test_a_drain_waits_for_rows_and_not_for_silence(autojump_clock: trio.abc.Clock) -> None:
    """A writer that sends nothing for a second is told of it; one whose rows come slowly is not, and ends well."""
    network = Network(lambda _connection, _fault: None)
    large = sample([2]).set_column(1, SCHEMA.field("name"), pa.array(["x" * 1_000_000]))
    ended: list[object] = []

    async def send_slowly() -> None:
        line = Line(latency_s=0.5)  # The row is under way for eight seconds.
        async with transport.connect_stream(await network.dial("slow", line)) as client:
            ended.extend(await write(client, write_request(large)))

    async def be_silent() -> None:
        async with (
            transport.connect_stream(await network.dial("silent", Line())) as client,
            client.open_stream(TABLES + "Write") as stream,
        ):
            await stream.send(write_request(sample([1])))
            assert await stream.receive() is not None
            began = trio.current_time()
            ended.append(await failure(stream.receive))
            assert trio.current_time() - began == pytest.approx(1 + drains_after_s, abs=0.2)

    drains_after_s = 3
    async with (
        open_server(filled_store(0), listener=network.listen(), run_blocking=inline) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(send_slowly)
        nursery.start_soon(be_silent)
        with trio.move_on_after(drains_after_s):
            await trio.sleep_forever()
        assert await server.drain(20)
    assert [type(each) for each in ended] == [Draining, tables_pb2.WriteResponse]


async def test_a_drain_waits_for_a_writer_that_waits_for_its_answer(autojump_clock: trio.abc.Clock) -> None:
    """Also for what it sends soon after that: it was silent because the disk is slow."""

    async def slowly(function: Callable[[], T]) -> T:
        with trio.move_on_after(5.3):
            await trio.sleep_forever()
        return await inline(function)

    async with open_virtual_items(0, run_blocking=slowly) as items, trio.open_nursery() as nursery:
        async with items.raw.open_stream(TABLES + "Write") as stream:
            await stream.send(write_request(sample([1])))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(items.server.drain, 50)
            assert await stream.receive() is not None
            with trio.move_on_after(0.7):  # Past the end of the second in which the answer came.
                await trio.sleep_forever()
            await stream.send(write_request(sample([2])))
            assert await stream.receive() is not None
            await stream.send_end()
            assert await stream.receive() is None
