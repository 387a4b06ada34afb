"""A sample table, and the wire protocol of scans spoken message by message, for tests of the server side."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

import transport
from scanner.data.digest import checksum
from scanner.data.table import TableDescription
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.proto.weir.v1 import tables_pb2
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.interface import Mutation, Store
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_batch, decode_schema, encode_stream, verify_payload
from scanner.wire.batches import RowBatch, decode_scan_response
from scanner.wire.statuses import from_call_failed
from scanner.wire.tables import description_to_proto

if TYPE_CHECKING:
    from scanner.data.changes import ChangeRange
    from scanner.errors import ScannerError
    from scanner.storage.interface import PreparedCommit

SCAN, SESSION, TABLES = methods.SCAN, methods.SCAN_SESSION, methods.TABLES

SMALL = ScannerConfig(block_rows_max=500, block_bytes_max=8192, heartbeat_interval_s=0.05)
"""Limits that a few thousand rows reach."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("sold", pa.bool_()),
    ]
)


def description(name: str = "items", buckets: int = 1) -> TableDescription:
    """The sample table."""
    return TableDescription(name, SCHEMA, ("id",), buckets)


def sample(ids: Iterable[int]) -> pa.RecordBatch:
    """Rows of the sample table; every third name is null, sizes vary."""
    ids = list(ids)
    return pa.record_batch(
        [
            pa.array(ids, pa.int64()),
            pa.array([None if i % 3 == 0 else f"name-{i}" * (i % 4) for i in ids], pa.string()),
            pa.array([i / 4 for i in ids], pa.float64()),
            pa.array([i % 2 == 0 for i in ids], pa.bool_()),
        ],
        schema=SCHEMA,
    )


def mutations(store: Store, table: str, batch: pa.RecordBatch) -> list[Mutation]:
    """The upserts of a batch."""
    keys, rows = store.key_codec(table).encode_batch(batch), store.row_codec(table).encode_batch(batch)
    return [Mutation(key, row) for key, row in zip(keys, rows, strict=True)]


def filled_store(rows: int, table: TableDescription | None = None) -> MemoryStore:
    """A store in memory with one table, the sample table with rows 0, 1, 2, ... unless another is given."""
    store = MemoryStore()
    store.create_table(table or description())
    if rows:
        store.bucket("items", 0).commit_prepared(_prepared(rows))
    return store


@functools.cache
def _prepared(rows: int) -> PreparedCommit:
    """An entry for each row. Hundreds of tests begin with them, and any empty bucket takes what was prepared once."""
    store = filled_store(0)
    return store.bucket("items", 0).prepare(
        [[each] for each in mutations(store, "items", sample(range(rows)))]
    )


def stored_digest(store: MemoryStore, ids: Iterable[int]) -> int:
    """CRC-32C over the stored rows of these ids, joined in this order."""
    rows = store.row_codec("items").encode_batch(sample(ids))
    return checksum(b"".join(rows))


def stored_size(store: MemoryStore, ids: Iterable[int]) -> int:
    """Length of the stored rows of these ids."""
    return sum(map(len, store.row_codec("items").encode_batch(sample(ids))))


def write_request(
    batch: pa.RecordBatch,
    *,
    table: str = "items",
    delete: bool = False,
    writer_id: bytes = b"",
    sequence: int = 0,
) -> bytes:
    """A write of a batch."""
    operation = (
        tables_pb2.WriteRequest.OPERATION_DELETE if delete else tables_pb2.WriteRequest.OPERATION_UPSERT
    )
    return tables_pb2.WriteRequest(
        table=table,
        operation=operation,
        arrow_stream=encode_stream(batch),
        writer_id=writer_id,
        sequence=sequence,
    ).SerializeToString()


async def create_table(client: transport.Client, table: TableDescription) -> None:
    """Create a table by its call."""
    request = tables_pb2.CreateTableRequest(table=description_to_proto(table))
    await client.call(TABLES + "CreateTable", request.SerializeToString())


async def write(client: transport.Client, *requests: bytes) -> list[tables_pb2.WriteResponse]:
    """Send writes on one stream, all at once, and take their responses."""
    responses = []
    async with client.open_stream(TABLES + "Write") as stream:
        for request in requests:
            await stream.send(request)
        await stream.send_end()
        while (message := await stream.receive()) is not None:
            responses.append(tables_pb2.WriteResponse.FromString(bytes(message)))
    return responses


@dataclass
class RawScan:
    """One push scan, driven message by message, that checks what every batch must hold to."""

    stream: transport.Stream
    schema: pa.Schema | None = None
    started: pb.ScanStarted | None = None
    log_offset: int | None = None
    row_ordinal: int = 0
    """Of the first row: what a resumed scan begins with."""
    tokens: list[bytes] = field(default_factory=list)
    """Resume tokens of the batches."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    changes: list[ChangeRange] = field(default_factory=list)
    """What the batches cover of the changelog."""
    heartbeats: list[pb.Heartbeat] = field(default_factory=list)
    rows: int = 0
    """Received."""
    received_bytes: int = 0
    """Of the batches' messages."""
    snapshot_end: int | None = None
    """The offset that it names, once it came."""
    end: pb.ScanEnd | None = None

    def table(self) -> pa.Table:
        """All rows received."""
        return pa.Table.from_batches(self.batches, self.schema)

    async def demand(self, limit: int) -> None:
        """Raise the credit to `limit` bytes in all."""
        await self.stream.send(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)).SerializeToString())

    async def drain(self) -> None:
        """Ask for an early end."""
        await self.stream.send(pb.ScanRequest(drain=pb.Drain()).SerializeToString())

    async def receive(self) -> RowBatch | pb.ScanResponse | None:
        """Take one response and check it; None at the stream's end."""
        message = await self.stream.receive()
        if message is None:
            return None
        assert self.end is None, "a response came after the end"
        response = decode_scan_response(message)
        if isinstance(response, RowBatch):
            self._take_batch(response)
        elif response.HasField("started"):
            assert self.schema is None
            self.started = response.started
            self.schema = decode_schema(response.started.arrow_schema)
            self.log_offset = response.started.log_offset
            self.row_ordinal = response.started.row_ordinal
        elif response.HasField("heartbeat"):
            self.heartbeats.append(response.heartbeat)
        elif response.HasField("snapshot_end"):
            self.snapshot_end = response.snapshot_end.log_offset
        else:
            self.end = response.end
            await self.stream.send_end()  # the server waits for it, for a while
        return response

    async def receive_credit(self, limit: int) -> None:
        """Take all that credit of `limit` bytes lets out, and the heartbeat behind it.

        On a busy machine heartbeats come before it, too.
        """
        while self.received_bytes < limit:
            await self.receive()
        self.heartbeats.clear()
        while not self.heartbeats:
            await self.receive()

    async def receive_all(self) -> None:
        """Take everything up to the stream's end."""
        while await self.receive() is not None:
            pass

    def _take_batch(self, response: RowBatch) -> None:
        assert self.schema is not None
        assert response.row_ordinal == self.row_ordinal + self.rows
        verify_payload(response.payload, response.crc32c)
        batch = decode_batch(response.payload, self.schema)
        batch.validate(full=True)
        assert batch.num_rows == response.row_count > 0
        self.rows += batch.num_rows
        self.received_bytes += response.message_bytes
        self.batches.append(batch)
        self.batch_sizes.append(response.message_bytes)
        self.tokens.append(response.resume_token)
        self.changes.append(response.changes)


@asynccontextmanager
async def open_scan(
    client: transport.Client,
    *,
    query: pb.ScanQuery | None = None,
    credit: int | None = None,
    window_only: bool = False,
    batch_bytes_max: int = 0,
    batch_rows_max: int = 0,
    stream_id: bytes = b"",
    resume_token: bytes = b"",
    as_of: int | None = None,
    source: pb.ScanSource = pb.SCAN_SOURCE_LIVE_KV,
    log_start: pb.LogStart | None = None,
    stop_offset: int | None = None,
    stop_at_end: bool = False,
    group: str = "",
    group_epoch: int = 0,
) -> AsyncIterator[RawScan]:
    """Open a push scan of the sample table, or continue one."""
    opening = pb.ScanOpen(
        source=source,
        log_start=log_start,
        stop_offset=stop_offset,
        stop_at_end=stop_at_end,
        group=group,
        group_epoch=group_epoch,
        query=query or pb.ScanQuery(table="items"),
        batch_bytes_max=batch_bytes_max,
        batch_rows_max=batch_rows_max,
        stream_id=stream_id,
        resume_token=resume_token,
        as_of=as_of,
    )
    async with client.open_stream(SCAN) as stream:
        await stream.send(pb.ScanRequest(open=opening).SerializeToString())
        scan = RawScan(stream)
        if credit is not None:
            await scan.demand(credit)
        if window_only:
            await stream.send_end()
        yield scan


@asynccontextmanager
async def serving(
    store: MemoryStore | Path, config: ScannerConfig = SMALL
) -> AsyncIterator[tuple[Server, transport.Client]]:
    """A server and a connection to it. Leaving it checks that nothing is left open."""
    with trio.fail_after(100):
        async with open_server(store, config=config) as server:
            async with transport.connect(server.host, server.port) as client:
                yield server, client
                await released(server)


async def released(server: Server) -> None:
    """Wait until the server holds no scan any more."""
    while True:
        now = server.statistics()
        if (now.iterators_open, now.push_scans_open, now.sessions_open, now.fetches_open) == (0, 0, 0, 0):
            return
        await trio.lowlevel.checkpoint()


async def failure(act: Callable[[], Awaitable[object]]) -> ScannerError:
    """The error of a call that fails."""
    with pytest.raises(transport.CallFailed) as caught:
        await act()
    return from_call_failed(caught.value)
