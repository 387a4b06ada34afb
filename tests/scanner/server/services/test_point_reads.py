"""`Get` message by message over a socket: what it answers, what it refuses, and what it leaves behind."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

from scanner.data.digest import checksum
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    ColumnNotFound,
    KeyInvalid,
    OffsetOutOfRange,
    SchemaMismatch,
    SlowConsumer,
    SnapshotLost,
    TableNotFound,
    TooManyScans,
)
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.services.point_reads import GET_TOO_LARGE
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.arrow_ipc import encode_stream
from tests.support.scans import (
    SCHEMA,
    TABLES,
    description,
    failure,
    filled_store,
    mutations,
    sample,
    serving,
    write,
    write_request,
)

if TYPE_CHECKING:
    import transport
    from scanner.storage.interface import ChangeBlock

pytestmark = pytest.mark.socket


def keys_of(ids: Iterable[int | None]) -> pa.RecordBatch:
    """Keys of the sample table."""
    return pa.record_batch([pa.array(list(ids), pa.int64())], ["id"])


def request_of(ids: Iterable[int | None], **fields: Any) -> pb.GetRequest:
    """A request for rows of the sample table."""
    return pb.GetRequest(**{"table": "items", "keys": encode_stream(keys_of(ids)), **fields})


async def get(client: transport.Client, request: pb.GetRequest) -> pb.GetResponse:
    """Make the call; its checksum is right."""
    answer = await client.call(TABLES + "Get", request.SerializeToString())
    response = pb.GetResponse.FromString(bytes(answer))
    assert response.crc32c == checksum(response.arrow_stream)
    return response


def rows_of(response: pb.GetResponse) -> pa.Table:
    """The rows of an answer."""
    return pa.ipc.open_stream(response.arrow_stream).read_all()


async def test_an_answer_names_its_state() -> None:
    """Rows in the order of the keys, a bool for each key, and offset and history of each bucket that was read."""
    store = MemoryStore()
    store.create_table(description(buckets=3))
    async with serving(store) as (_, client):
        await write(client, write_request(sample(range(20))))
        ends = {bucket: store.bucket("items", bucket).log_end for bucket in range(3)}
        response = await get(client, request_of([19, 99, 0, 19]))
        everything = await get(client, request_of(range(20), columns=["sold", "id"]))
        nothing = await get(client, request_of([]))
    assert rows_of(response).equals(pa.Table.from_batches([sample([19, 0, 19])]))
    assert list(response.found) == [True, False, True, True]
    assert rows_of(everything).column_names == ["sold", "id"]
    assert {each.bucket: each.log_offset for each in everything.states} == ends
    for each in everything.states:
        assert each.history == store.bucket("items", each.bucket).lineage.history_of(each.log_offset)
    assert everything.table_id == store.table_id("items")
    assert (list(nothing.found), rows_of(nothing).num_rows, list(nothing.states)) == ([], 0, [])
    assert rows_of(nothing).schema == SCHEMA


_HISTORY = b"h" * 16


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (request_of([1], table="none"), TableNotFound, "none"),
        (request_of([1], keys=b""), ArgumentInvalid, "Arrow IPC"),
        (request_of([1], keys=b"\xff" * 100), ArgumentInvalid, "Arrow IPC"),
        (request_of([1], keys=encode_stream(keys_of([1]))[:-40]), ArgumentInvalid, ""),
        (request_of([1], keys=encode_stream(sample([1]))), SchemaMismatch, "unknown"),
        (request_of([1], keys=encode_stream(pa.record_batch({"id": ["1"]}))), SchemaMismatch, "id"),
        (request_of([1], keys=encode_stream(pa.record_batch({"id": [1.0]}))), SchemaMismatch, "id"),
        (request_of([1], crc32c=0), ArgumentInvalid, "changed on its way"),
        (request_of([None]), KeyInvalid, "null in row 0"),
        (request_of([1], columns=["nope"]), ColumnNotFound, "nope"),
        (request_of([1], columns=["id", "id"]), ArgumentInvalid, "twice"),
        (request_of([1], as_of=[pb.BucketState(bucket=1)]), BucketNotFound, "no bucket 1"),
        (request_of([1], as_of=[pb.BucketState()] * 2), ArgumentInvalid, "says twice"),
        (request_of([1], as_of=[pb.BucketState(log_offset=11)]), OffsetOutOfRange, "no state as of 11"),
        (request_of([1], as_of=[pb.BucketState(log_offset=2**64 - 1)]), OffsetOutOfRange, "no state as of"),
        (request_of([1], as_of=[pb.BucketState(history=b"short")]), ArgumentInvalid, "16 bytes"),
        (request_of([1], as_of=[pb.BucketState(log_offset=5, history=_HISTORY)]), SnapshotLost, ""),
        (request_of(range(101)), ArgumentInvalid, "101 keys are asked for, and 100 are allowed"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    request_: pb.GetRequest, error: type[Exception], message: str
) -> None:
    """One typed error each, nothing left open, and the next call on the connection is served."""
    async with serving(filled_store(10), ScannerConfig(get_keys_max=100)) as (_, client):
        refused = await failure(lambda: get(client, request_))
        assert type(refused) is error
        assert message in refused.message
        assert list((await get(client, request_of([1]))).found) == [True]


async def test_octets_that_are_no_request_are_refused() -> None:
    """Hostile bytes are ARGUMENT_INVALID."""
    async with serving(filled_store(1)) as (_, client):
        refused = await failure(lambda: client.call(TABLES + "Get", b"\xff\xff\xff"))
    assert isinstance(refused, ArgumentInvalid)


async def test_too_much_is_refused_and_never_cut(tmp_path: Path) -> None:
    """Rows past the bound are an error that says so to machines, as of now and of the past; one row always comes."""
    table = description()
    wide = [sample([each]).set_column(1, SCHEMA.field(1), pa.array(["x" * 4000])) for each in range(10)]
    with RocksStore.open(tmp_path) as store:
        store.create_table(table)
        for batch in wide:
            store.bucket("items", 0).commit([mutations(store, "items", batch)])
        store.bucket("items", 0).commit([mutations(store, "items", sample(range(10)))])
        store.bucket("items", 0).commit([mutations(store, "items", batch) for batch in wide])
    config = ScannerConfig(get_bytes_max=3000)
    async with serving(tmp_path, config) as (_, client):
        for as_of in ([], [pb.BucketState(log_offset=10)]):
            assert rows_of(await get(client, request_of([3], as_of=as_of))).column("name")[0].as_py() == (
                "x" * 4000
            )
            for ids in ([3, 4], [3, 3]):
                call = functools.partial(get, client, request_of(ids, as_of=as_of))
                refused = await failure(call)
                assert isinstance(refused, ArgumentInvalid)
                assert refused.metadata[GET_TOO_LARGE] == "2"
        between = await get(client, request_of(range(10), as_of=[pb.BucketState(log_offset=30)]))
        assert rows_of(between).equals(pa.Table.from_batches([sample(range(10))]))


async def test_rows_of_before_a_column_count_as_they_are_sent() -> None:
    """Columns that were added take room in the answer, which is what is bounded, and not in the rows as stored."""
    store = filled_store(50)
    for number in range(20):
        store.add_column("items", pa.field(f"later_{number}", pa.decimal128(38)))
    async with serving(store, ScannerConfig(get_bytes_max=10_000)) as (_, client):
        refused = await failure(lambda: get(client, request_of(range(50))))
        assert refused.metadata[GET_TOO_LARGE] == "50"
        assert rows_of(await get(client, request_of(range(50), columns=["id", "later_1"]))).num_rows == 50


async def test_calls_past_the_bound_are_refused() -> None:
    """One more than may run is TOO_MANY_SCANS, which clients take up again; the one that runs is answered."""
    store = filled_store(10)
    async with serving(store, ScannerConfig(gets_max=1)) as (server, client):
        services = server._services
        bucket = await services.catalog.bucket(await services.catalog.table("items"), 0)
        async with trio.open_nursery() as nursery:
            async with bucket.between_commits():  # A point read waits for a commit that runs.
                nursery.start_soon(get, client, request_of(range(10)))
                while not services.gets.running:
                    await trio.lowlevel.checkpoint()
                refusal = await failure(lambda: get(client, request_of(range(10))))
        assert isinstance(refusal, TooManyScans)
        assert rows_of(await get(client, request_of(range(10)))).num_rows == 10


async def test_a_read_of_the_past_keeps_its_log_no_longer_than_it_runs() -> None:
    """The changes that a call walks are pinned meanwhile, counted to who asked; whoever takes them away ends it."""
    store = filled_store(20_000)
    past = request_of([19_999, 20_000], as_of=[pb.BucketState(log_offset=1)])
    async with serving(store) as (server, client), trio.open_nursery() as nursery:
        assert list((await get(client, past)).found) == [False, False]
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        assert len(bucket.pins) == 0

        async def end_it() -> None:
            while not len(bucket.pins):
                await trio.lowlevel.checkpoint()
            (pin,) = bucket.pins
            assert (pin.offset, pin.what) == (1, "get")
            pin.end(SlowConsumer("it keeps too much"))

        nursery.start_soon(end_it)
        assert isinstance(await failure(lambda: get(client, past)), SlowConsumer)
        assert len(bucket.pins) == 0


@pytest.mark.rocks
@pytest.mark.parametrize("states", [[], [pb.BucketState(log_offset=1)]])
async def test_a_read_begins_anew_when_storage_is_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[pb.BucketState]
) -> None:
    """Opened anew after a failed write, it waits for nothing in the loop of the server, and the rows are all there."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(description())
    reopening, read_meanwhile = False, False
    async with serving(tmp_path) as (server, client), trio.open_nursery() as nursery:
        for start in range(0, 8192, 2048):
            await write(client, write_request(sample(range(start, start + 2048))))
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        read = bucket.storage.read_change_block

        def read_block(start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
            nonlocal read_meanwhile
            read_meanwhile |= reopening
            return read(start_offset, end_offset, bytes_max)

        monkeypatch.setattr(bucket.storage, "read_change_block", read_block)

        async def open_anew() -> None:
            nonlocal reopening
            while not bucket.point_reads:
                await trio.lowlevel.checkpoint()
            async with bucket._commits:
                reopening = True
                await bucket._reopen(writable=True)
                reopening = False

        nursery.start_soon(open_anew)
        response = await get(client, request_of(range(8192), as_of=states))
    assert bucket.storage_openings == 1
    assert not read_meanwhile
    assert sum(response.found) == (1 if states else 8192)


async def test_others_have_their_turn_while_many_keys_are_read() -> None:
    """A request of as many keys as are allowed is worked on in pieces: the loop turns often while it runs."""
    store = filled_store(8192)
    async with serving(store, ScannerConfig()) as (server, client), trio.open_nursery() as nursery:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += bool(server._services.gets.running)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count)
        assert sum((await get(client, request_of(range(8192)))).found) == 8192
        nursery.cancel_scope.cancel()
    assert turns >= 8192 // 256


async def test_a_commit_does_not_wait_for_a_read() -> None:
    """Rows that are written while a call reads are durable before it ends, and not in its answer."""
    store = filled_store(8192)
    async with serving(store) as (server, client), trio.open_nursery() as nursery:
        await get(client, request_of([1]))
        written_during = False

        async def write_then() -> None:
            nonlocal written_during
            while not server._services.gets.running:
                await trio.lowlevel.checkpoint()
            ((_, _, bucket),) = server._services.catalog.open_buckets()
            changed = sample([8191]).set_column(1, SCHEMA.field(1), pa.array(["changed"]))
            while not bucket.storage.open_iterators:
                await trio.lowlevel.checkpoint()
            await bucket.submit(mutations(store, "items", changed)).wait_durable()
            written_during = bool(server._services.gets.running)

        nursery.start_soon(write_then)
        response = await get(client, request_of(range(8192)))
    assert written_during
    assert [each.log_offset for each in response.states] == [8192]
    assert rows_of(response).equals(pa.Table.from_batches([sample(range(8192))]))
