"""The trio client: a connection to one server, its tables, their scans and writes.

Every exception that leaves it is a `ScannerError`, or one of trio's about the caller's own use (`Cancelled`,
`ClosedResourceError`, `BusyResourceError`). Exceptions of the caller's blocks leave them as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

import transport
from scanner.admin import DrainBegun, SnapshotInfo, StreamInfo, snapshot_from_proto, stream_from_proto
from scanner.client_security import credentials_metadata
from scanner.descriptions import description_from_proto, description_to_proto
from scanner.errors import ArgumentInvalid, DataCorrupted, KeyInvalid, ServerUnavailable, Unauthenticated
from scanner.nesting import bare
from scanner.proto.weir.v1 import admin_pb2 as admin_pb
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.scan import ScanBuilder, ScanPlan
from scanner.table import TableDescription
from scanner.table_scan import Batches, open_scan
from scanner.transport_errors import translated
from scanner.writer import OffsetRange, OnAcknowledged, Rows, Writer, WriteResult, open_writer

if TYPE_CHECKING:
    import ssl

PORT_DEFAULT: Final = 9123
BUCKETS_DEFAULT: Final = 4
_TABLES: Final = "/weir.v1.Tables/"
_ADMIN: Final = "/weir.v1.Admin/"
_DRAIN_S_END: Final = 4_000_000
"""Milliseconds of it fit into 32 bits."""

_Reply = TypeVar("_Reply", bound=Message)

Keys: TypeAlias = Rows | Sequence[Sequence[object] | Mapping[str, object]]
"""Primary keys: an Arrow table of the key columns, or tuples in key order, or dicts."""


@asynccontextmanager
async def connect(
    endpoint: str,
    *,
    config: transport.TransportConfig | None = None,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
    insecure_token: bool = False,
) -> AsyncIterator[Client]:
    """Connect to a server for the length of a block.

    Args:
        endpoint: `HOST:PORT`, or `HOST` for port 9123; an IPv6 address in brackets.
        config: Limits of the connection.
        ssl_context: For TLS, such as `scanner.tls` makes; None: plaintext.
        token: Bearer token that proves who calls; see `scanner.read_token`.
        insecure_token: Send the token in plaintext, even to another machine.

    Yields:
        The client.

    Raises:
        ArgumentInvalid: The endpoint cannot be read, or the token may not be sent there.
        ServerUnavailable: Nobody answers there, or the server's certificate cannot be trusted.
        Unauthenticated: The server does not accept the client's certificate. (Some servers tell only in a call.)

    Cancellation:
        Closes the connection.

    Example:
        >>> async with scanner.connect("127.0.0.1:9123") as client:
        ...     orders = await client.table("orders")
        ...     async with orders.new_scan().select("o_orderkey").limit(10).execute() as batches:
        ...         async for batch in batches:
        ...             print(batch)
    """
    host, port = parse_endpoint(endpoint)
    metadata = credentials_metadata(token, host, ssl_context, insecure_token=insecure_token)
    connection = transport.connect(
        host,
        port,
        config=config or transport.TransportConfig(),
        ssl_context=ssl_context,
        metadata=metadata,
        # A message is assembled where its batch will live: no copy between the socket buffer and the columns.
        allocate=pa.allocate_buffer,
    )
    opened = False
    try:
        async with bare(connection) as client:
            opened = True
            yield Client(client, endpoint)
    except transport.TransportError as error:
        if opened:
            raise
        if transport.certificate_refused(error):
            raise Unauthenticated(
                f"the server at {host}:{port} wants another certificate: {error}"
            ) from error
        if isinstance(error, transport.TlsFailed):
            raise ServerUnavailable(str(error)) from error
        raise ServerUnavailable(f"no weir server answers at {host}:{port}: {error}") from error


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `HOST:PORT`.

    Raises:
        ArgumentInvalid: It is neither that nor `HOST`.
    """
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]"):
        host, port = endpoint, str(PORT_DEFAULT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ArgumentInvalid(f"endpoint {endpoint!r} is not HOST:PORT, e.g. 127.0.0.1:{PORT_DEFAULT}")
    return host, int(port)


class Client:
    """A connection to one server. Any number of tasks may use it at once.

    Args:
        connection: Owned by whoever made it.
        endpoint: Names the server.
    """

    def __init__(self, connection: transport.Client, endpoint: str) -> None:
        self._connection = connection
        self.endpoint = endpoint

    async def create_table(
        self, name: str, schema: pa.Schema, primary_key: Sequence[str], buckets: int = BUCKETS_DEFAULT
    ) -> Table:
        """Create a table.

        Args:
            name: Letters, digits, `_`, `.`, `-`.
            schema: All columns; those of the key become not nullable.
            primary_key: Names of the key columns, in key order, or the name of the only one.
            buckets: Shards, 1..1024; fixed for the table's life.

        Raises:
            TableExists: There is one of that name.
            ArgumentInvalid, ColumnNotFound, SchemaMismatch, KeyInvalid: It cannot be; see `TableDescription`.
        """
        key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
        description = TableDescription(name=name, schema=schema, primary_key=key, buckets=buckets)
        request = pb.CreateTableRequest(table=description_to_proto(description))
        reply = await self._call("CreateTable", request, pb.CreateTableResponse)
        return Table(self._connection, description_from_proto(reply.table))

    async def table(self, name: str) -> Table:
        """Look a table up.

        Raises:
            TableNotFound: There is none of that name; the message lists those that are.
        """
        request = pb.DescribeTableRequest(table=name)
        reply = await self._call("DescribeTable", request, pb.DescribeTableResponse)
        return Table(self._connection, description_from_proto(reply.table))

    async def tables(self) -> list[TableDescription]:
        """All tables, by name."""
        reply = await self._call("ListTables", pb.ListTablesRequest(), pb.ListTablesResponse)
        return sorted(map(description_from_proto, reply.tables), key=lambda table: table.name)

    async def drop_table(self, name: str) -> None:
        """Drop a table with everything in it; scans of it that run fail.

        Raises:
            TableNotFound: There is none of that name.
        """
        await self._call("DropTable", pb.DropTableRequest(table=name), pb.DropTableResponse)

    async def list_streams(self) -> list[StreamInfo]:
        """Every call that runs at the server, this one included, by connection and stream.

        Raises:
            PermissionDenied: The server lets others administer it.
        """
        reply = await self._administer(
            "ListStreams", admin_pb.ListStreamsRequest(), admin_pb.ListStreamsResponse
        )
        return list(map(stream_from_proto, reply.streams))

    async def list_snapshots(self, table: str | None = None) -> list[SnapshotInfo]:
        """Every scan that pins a state of a bucket, by table, bucket and log offset.

        Args:
            table: Only of this table; None: of all.

        Raises:
            PermissionDenied: The server lets others administer it.
        """
        request = admin_pb.ListSnapshotsRequest(table=table or "")
        reply = await self._administer("ListSnapshots", request, admin_pb.ListSnapshotsResponse)
        return list(map(snapshot_from_proto, reply.snapshots))

    async def drain(self, timeout_s: float | None = None) -> DrainBegun:
        """Begin the server's graceful drain, as SIGTERM does: no new calls, running ones may finish. Does not wait.

        Args:
            timeout_s: How long running calls may take, seconds; None: the server's own limit.

        Raises:
            ArgumentInvalid: `timeout_s` is negative, or too long to be told.
            PermissionDenied: The server lets others administer it.
        """
        if timeout_s is not None and not 0 <= timeout_s < _DRAIN_S_END:
            raise ArgumentInvalid(f"a drain takes 0 to {_DRAIN_S_END} seconds, not {timeout_s:g}")
        request = admin_pb.DrainRequest(timeout_ms=None if timeout_s is None else round(timeout_s * 1000))
        reply = await self._administer("Drain", request, admin_pb.DrainResponse)
        return DrainBegun(streams=reply.streams, already_draining=reply.already_draining)

    async def _administer(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        return await _call(self._connection, method, request, reply, service=_ADMIN)

    async def _call(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        return await _call(self._connection, method, request, reply)


class Table:
    """A table of a server.

    Args:
        connection: Owned by whoever made it.
        description: What the server said.
    """

    def __init__(self, connection: transport.Client, description: TableDescription) -> None:
        self._connection = connection
        self.description = description

    @property
    def name(self) -> str:
        """Its name."""
        return self.description.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.description.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Its key columns, in key order."""
        return self.description.primary_key

    @property
    def buckets(self) -> int:
        """Its number of buckets."""
        return self.description.buckets

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self.schema)} columns, {self.buckets} buckets>"

    def new_scan(self) -> Scan:
        """Begin to describe a scan: all rows and columns, unless it is told otherwise."""
        return Scan(self._connection, ScanPlan(table=self.description))

    async def write(self, rows: Rows, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Insert or update rows by their primary key, and wait until they are durable.

        Args:
            rows: All columns by name. Rows of one key are applied in their order.
            on_acknowledged: Told the rows that are durable so far; must not block.

        Raises:
            SchemaMismatch: Columns do not fit; nothing was written.
            KeyInvalid: A key is null; nothing was written.
            ScannerError: It failed under way; the message says how many rows are durable.

        Cancellation:
            Part of the rows may have been written.
        """
        async with self.open_writer(on_acknowledged) as writer:
            await writer.write(rows)
        return writer.result

    def open_writer(
        self, on_acknowledged: OnAcknowledged | None = None
    ) -> AbstractAsyncContextManager[Writer]:
        """Open a writer for many batches; see `scanner.writer.open_writer`."""
        operation = pb.WriteRequest.OPERATION_UPSERT
        return open_writer(self._connection, self.description, operation, on_acknowledged)

    async def delete(self, keys: Keys, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Delete rows by their primary key, and wait until that is durable. A key that is not there is no error.

        Args:
            keys: An Arrow table of the key columns, or a list of tuples in key order or of dicts.
            on_acknowledged: Told the keys dealt with so far; must not block.

        Raises:
            KeyInvalid: A key is incomplete, null or of the wrong type; nothing was deleted.
            SchemaMismatch: Columns do not fit; nothing was deleted.
            ScannerError: It failed under way; the message says how far it came.

        Cancellation:
            Part of the keys may have been deleted.
        """
        rows = keys if isinstance(keys, pa.Table | pa.RecordBatch) else keys_to_arrow(self.description, keys)
        operation = pb.WriteRequest.OPERATION_DELETE
        async with open_writer(self._connection, self.description, operation, on_acknowledged) as writer:
            await writer.write(rows)
        return writer.result

    async def offsets(self) -> list[OffsetRange]:
        """Per bucket, ascending: the oldest offset of the changelog still available, and its end."""
        request = pb.ListOffsetsRequest(table=self.name)
        reply = await _call(self._connection, "ListOffsets", request, pb.ListOffsetsResponse)
        return sorted(OffsetRange(r.bucket, r.start_offset, r.end_offset) for r in reply.ranges)


class Scan(ScanBuilder):
    """A scan of a table: described by its builder methods, run by `execute`, any number of times."""

    def __init__(self, connection: transport.Client, plan: ScanPlan) -> None:
        super().__init__(plan)
        self._connection = connection

    def with_plan(self, plan: ScanPlan) -> Scan:
        """The scan that `plan` describes, on the same connection."""
        return Scan(self._connection, plan)

    _derive = with_plan

    def execute(self) -> AbstractAsyncContextManager[Batches]:
        """Run the scan for the length of a block; leaving the block early ends it at the server, too.

        Example:
            >>> async with scan.execute() as batches:
            ...     async for batch in batches: ...
            >>> batches.statistics().rows
        """
        return open_scan(self._connection, self._plan)

    async def to_arrow(self) -> pa.Table:
        """Run the scan and collect every row.

        Raises:
            ScannerError: The scan failed.
        """
        async with self.execute() as batches:
            return pa.Table.from_batches([batch async for batch in batches], schema=batches.schema)


def keys_to_arrow(
    table: TableDescription, keys: Sequence[Sequence[object] | Mapping[str, object]]
) -> pa.RecordBatch:
    """Primary keys given as Python values, as a batch of the key columns.

    Raises:
        KeyInvalid: A key is incomplete, or a value does not fit its column.
    """
    names = table.primary_key
    rows: list[Sequence[Any]] = []
    for key in keys:
        if isinstance(key, Mapping) and set(key) == set(names):
            rows.append([key[name] for name in names])
        elif isinstance(key, Sequence) and not isinstance(key, str | bytes) and len(key) == len(names):
            rows.append(key)
        else:
            raise KeyInvalid(
                f"a key of {table.name} has the columns {', '.join(names)}, in this order; got {key!r}"
            )
    columns = []
    for index, field in enumerate(table.key_schema):
        try:
            columns.append(pa.array([row[index] for row in rows], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise KeyInvalid(f"a value of key column {field.name!r} is no {field.type}: {error}") from error
    schema = pa.schema([field.with_nullable(True) for field in table.key_schema])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


async def _call(
    connection: transport.Client, method: str, request: Message, reply: type[_Reply], service: str = _TABLES
) -> _Reply:
    with translated(method):
        answer = await connection.call(service + method, request.SerializeToString())
    try:
        return reply.FromString(bytes(answer))
    except DecodeError as error:
        raise DataCorrupted(f"the answer to {method} cannot be read: {error}") from error
