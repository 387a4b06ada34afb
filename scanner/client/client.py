"""The trio client: a connection to one server, its tables, their scans and writes.

Every exception that leaves it is a `ScannerError`, or one of trio's about the caller's own use (`Cancelled`,
`ClosedResourceError`, `BusyResourceError`). Exceptions of the caller's blocks leave them as they are.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa
import trio
from google.protobuf.message import Message

import transport
from scanner.client.admin import (
    CheckpointInfo,
    CompactedLog,
    DrainBegun,
    SnapshotInfo,
    StreamInfo,
    checkpoint_from_proto,
    compacted_from_proto,
    image_from_proto,
    image_states_from_proto,
    snapshot_from_proto,
    stream_from_proto,
)
from scanner.client.arguments import (
    UINT64_MAX,
    bucket_number,
    flag,
    is_number,
    microseconds,
    require_kind,
    require_text,
    whole,
)
from scanner.client.calls import call_unary, require_about, table_told
from scanner.client.connection import Connection, open_connection
from scanner.client.credentials import CallCredentials, TlsSource, TokenSource
from scanner.client.endpoints import Dial, connect_by_tcp, parse_endpoint
from scanner.client.held_lease import Lease
from scanner.client.leases import AMBIGUOUS, Leasable, LeaseInfo, Leases, new_lease_id, refusal
from scanner.client.retries import RETRIES_DEFAULT, RETRIES_MAX, RetryPolicy
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.scan import Scan
from scanner.client.table import Table
from scanner.data.images import ImageInfo, ImageState
from scanner.data.table import BUCKETS_MAX, TableDescription
from scanner.errors import ArgumentInvalid, DataCorrupted, LeaseNotFound, SchemaMismatch, TableExists
from scanner.proto.weir.v1 import admin_pb2 as admin_pb
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods
from scanner.wire.tables import description_to_proto
from transport import TransportConfig

BUCKETS_DEFAULT: Final = 4
_DROP_S: Final = 1.0
"""How long an acquisition that is given up waits for its lease to be dropped; the lease's time ends it otherwise."""
_DRAIN_S_END: Final = 4_000_000
"""Milliseconds of it fit into 32 bits."""

_Reply = TypeVar("_Reply", bound=Message)
_OfBucket = TypeVar("_OfBucket", CheckpointInfo, CompactedLog, ImageInfo)
_OfTable: TypeAlias = (
    admin_pb.CheckpointRequest
    | admin_pb.ListCheckpointsRequest
    | admin_pb.CompactLogRequest
    | admin_pb.MakeImagesRequest
    | admin_pb.ListImagesRequest
    | admin_pb.DropImagesRequest
)
_Tells = TypeVar(
    "_Tells",
    admin_pb.CheckpointResponse,
    admin_pb.ListCheckpointsResponse,
    admin_pb.CompactLogResponse,
    admin_pb.MakeImagesResponse,
    admin_pb.ListImagesResponse,
    admin_pb.DropImagesResponse,
)
"""An answer that says which table it is about."""


@asynccontextmanager
async def connect(
    endpoint: str,
    *,
    config: TransportConfig | None = None,
    ssl_context: TlsSource = None,
    token: TokenSource = None,
    insecure_token: bool = False,
    retries: int = RETRIES_DEFAULT,
    rng: Random | None = None,
    dial: Dial | None = None,
) -> AsyncIterator[Client]:
    """Connect to a server for the length of a block.

    A connection that is lost is made again for the next call. A scan goes on where it was cut, by itself, and so does
    a write, which is applied once.

    Args:
        endpoint: `HOST:PORT`, or `HOST` for port 9123; an IPv6 address in brackets.
        config: Limits of the connection.
        ssl_context: For TLS, such as `scanner.tls` makes, or a function that returns one, at once, such as
            `functools.partial(scanner.tls, "ca.pem")`; None: plaintext. It is asked for each TCP connection, which has
            what the files are then. What it raises the first time is raised; later, that attempt to connect has failed.
        token: Bearer token that proves who calls, or a function that returns the one of the moment, at once, such as
            `functools.partial(scanner.read_token, "token")`. It is asked for each TCP connection, and again when the
            server does not know the token: where that was replaced, calls, scans and writes go on with the newer one.
        insecure_token: Send the token in plaintext, even to another machine.
        retries: Attempts at going on, or at connecting again, in a row and without progress, that may fail; 0: errors
            come at once. This first connection is tried once.
        rng: Draws the delays between attempts; None: seeded by the system.
        dial: Makes a connection instead of TCP to the endpoint, such as one in memory; OSError: nobody answers. It is
            used as it is, so `ssl_context` is refused beside it.

    Yields:
        The client.

    Raises:
        ArgumentInvalid: The endpoint cannot be read, the token may not be sent there, or another argument makes no
            sense.
        ServerUnavailable: Nobody answers there, or the server's certificate cannot be trusted.
        Unauthenticated: The server does not accept the client's certificate. (Some servers tell only in a call.)
        RuntimeError: The loop is another one than trio's.

    Cancellation:
        Closes the connection, when the blocks in this one have been left: leases are dropped before.

    Example:
        >>> async with scanner.connect("127.0.0.1:9123") as client:
        ...     orders = await client.table("orders")
        ...     async with orders.new_scan().select("o_orderkey").limit(10).execute() as batches:
        ...         async for batch in batches:
        ...             print(batch)
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "this client needs trio's loop, which does not run here; from asyncio use weir.sync in threads"
        )
    host, port = parse_endpoint(endpoint)
    policy = RetryPolicy(retries=whole(retries, "retries", 0, RETRIES_MAX))
    connect_once = connect_by_tcp(host, port, config=config, ssl_context=ssl_context, dial=dial)
    credentials = CallCredentials(
        token, host, ssl_context, insecure_token=flag("insecure_token", insecure_token)
    )
    async with open_connection(
        connect_once, transport.host_port(host, port), credentials=credentials, policy=policy, rng=rng
    ) as connection:
        yield Client(connection, endpoint)


class Client:
    """A connection to one server. Any number of tasks may use it at once.

    A call that is cancelled is reset; the server may have done it, unless its docstring says otherwise.

    Args:
        connection: Owned by whoever made it.
        endpoint: Names the server.
    """

    def __init__(self, connection: Connection, endpoint: str) -> None:
        self._connection = connection
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}>"

    async def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        buckets: int = BUCKETS_DEFAULT,
        *,
        exist_ok: bool = False,
    ) -> Table:
        """Create a table.

        Args:
            name: A letter or `_`, then up to 127 letters, digits, `_`, `.`, `-`.
            schema: All columns; those of the key become not nullable.
            primary_key: Names of the key columns, in key order, or the name of the only one.
            buckets: Shards, 1..1024; fixed for the table's life.
            exist_ok: Take the table that is there, rows and all, if it has this schema, primary key and bucket count.

        Raises:
            TableExists: There is one of that name; with `exist_ok`, of another primary key or bucket count.
            SchemaMismatch: With `exist_ok`, the one that is there has other columns.
            TableNotFound: With `exist_ok`, somebody dropped it in the meantime.
            ArgumentInvalid, ColumnNotFound, SchemaMismatch, KeyInvalid: It cannot be; see `TableDescription`.
        """
        exist_ok = flag("exist_ok", exist_ok)
        require_kind("the schema of a table", schema, pa.Schema)
        names = (primary_key,) if isinstance(primary_key, str) else primary_key
        require_kind("the primary key", names, Iterable)
        if isinstance(names, set | frozenset):  # Whose order is another one in each process.
            raise ArgumentInvalid(
                f"the primary key has an order: give its columns as a list, not as {names!r}"
            )
        description = TableDescription(
            name=_table_name(name),
            schema=schema,
            primary_key=tuple(require_text("the name of a key column", each) for each in names),
            buckets=whole(buckets, "the number of buckets", 1, BUCKETS_MAX),
        )
        request = pb.CreateTableRequest(table=description_to_proto(description))
        try:
            reply = await self._call("CreateTable", request, pb.CreateTableResponse)
        except TableExists:
            if not exist_ok:
                raise
            table = await self.table(name)
            _require_same(table.description, description)
            return table
        return self._described(name, reply)

    async def table(self, name: str) -> Table:
        """Look a table up.

        Raises:
            TableNotFound: There is none of that name; the message lists those that are.
        """
        request = pb.DescribeTableRequest(table=_table_name(name))
        return self._described(name, await self._call("DescribeTable", request, pb.DescribeTableResponse))

    def _described(self, name: str, reply: pb.DescribeTableResponse | pb.CreateTableResponse) -> Table:
        """The table that an answer describes.

        Raises:
            DataCorrupted: It is another one than was asked for, or none that this client knows.
        """
        if reply.table.name != name:
            raise DataCorrupted(
                f"the server was asked for table {name!r}, and describes {reply.table.name!r}"
            )
        return Table(self._connection, table_told(reply.table), reply.table_id)

    def scan(self, plan: ScanPlan) -> Scan:
        """The scan that a plan describes, on this connection; the server is not asked.

        A plan is data. One that was made from a table of another connection, or in another process, is run here without
        looking the table up again; `with_table_id` makes sure that it still is that table.

        Args:
            plan: Such as `ScanBuilder.plan` of another scan.
        """
        require_kind("a plan", plan, ScanPlan)
        return Scan(self._connection, plan)

    async def tables(self) -> list[TableDescription]:
        """All tables, by name; as many calls as it takes.

        Raises:
            DataCorrupted: The server's pages do not go on, or have a table that this client does not know.
        """
        found: list[TableDescription] = []
        token = ""
        while True:
            request = pb.ListTablesRequest(page_token=token)
            reply = await self._call("ListTables", request, pb.ListTablesResponse)
            found += map(table_told, reply.tables)
            if not reply.next_page_token:
                return sorted(found, key=lambda table: table.name)
            if reply.next_page_token <= token:
                raise DataCorrupted("the server's list of tables does not go on: it repeats its page token")
            token = reply.next_page_token

    async def drop_table(self, name: str, *, table_id: int | None = None) -> None:
        """Drop a table with everything in it; scans of it that run fail.

        Args:
            name: Its name.
            table_id: The only table that is meant, `Table.table_id`. None: the one that has the name now. So a request
                that a proxy holds up, or sends twice, never drops a table that was created meanwhile.

        Raises:
            TableNotFound: There is none of that name, or it has gone to another table.
            DataCorrupted: The answer is about another table; nobody knows whether this one is dropped.
        """
        if table_id is None:
            table_id = (await self.table(name)).table_id  # Whoever may drop it may see it.
        table_id = whole(table_id, "table id", 0, UINT64_MAX)
        request = pb.DropTableRequest(table=_table_name(name), table_id=table_id)
        reply = await self._call("DropTable", request, pb.DropTableResponse)
        if reply.HasField("table_id"):
            require_about("DropTable", table_id, reply.table_id)

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
        request = admin_pb.ListSnapshotsRequest(table=_table_name(table or ""))
        reply = await self._administer("ListSnapshots", request, admin_pb.ListSnapshotsResponse)
        return list(map(snapshot_from_proto, reply.snapshots))

    async def checkpoint(self, table: str, bucket: int | None = None) -> list[CheckpointInfo]:
        """Make a checkpoint of one bucket or of all, and wait until they are on the disk.

        Of all, they have a version of a transaction whole or not at all: this waits for one that is being applied.

        Args:
            table: Its name.
            bucket: The only one; None: all of the table.

        Returns:
            By bucket: the newest one of each now. One that nothing was stored after, a position of a reader group
            included, is not made again, but for the first after the server's start.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to make one of.
            PermissionDenied: The server lets others administer it.
        """
        request = admin_pb.CheckpointRequest(table=_table_name(table), bucket=_only_bucket(table, bucket))
        reply = await self._administer_table("Checkpoint", request, admin_pb.CheckpointResponse)
        return _of_buckets("checkpoints", table, bucket, list(map(checkpoint_from_proto, reply.checkpoints)))

    async def list_checkpoints(self, table: str) -> list[CheckpointInfo]:
        """The checkpoints of a table that are kept, by bucket, oldest first.

        Raises:
            TableNotFound: There is none of that name.
            PermissionDenied: The server lets others administer it.
        """
        request = admin_pb.ListCheckpointsRequest(table=_table_name(table))
        reply = await self._administer_table("ListCheckpoints", request, admin_pb.ListCheckpointsResponse)
        return list(map(checkpoint_from_proto, reply.checkpoints))

    async def compact_log(
        self, table: str, *, before: int | datetime.datetime | None = None, bucket: int | None = None
    ) -> list[CompactedLog]:
        """Cut a table's changelogs off now, as retention does from time to time; never past what is still needed.

        Args:
            table: Its name.
            before: What goes: commits that end at or before an offset, with `bucket`, or those before a time; without a
                zone it is one of UTC. None: those that the server's retention by age and size lets go.
            bucket: The only one; None: all of the table.

        Returns:
            By bucket, what went, and what keeps the rest.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to cut.
            ArgumentInvalid: An offset without its bucket, or a time in the future.
            OffsetOutOfRange: The offset is past the log's end.
            StoreFailed, DataCorrupted: Of the first that could not be cut; the others were, and the server's log names
                each that was not.
            PermissionDenied: The server lets others administer it.
        """
        request = admin_pb.CompactLogRequest(table=_table_name(table), bucket=_only_bucket(table, bucket))
        if isinstance(before, datetime.datetime):
            request.timestamp_us = microseconds(before)
        elif before is not None:
            request.offset = whole(before, "an offset", 0, UINT64_MAX)
        reply = await self._administer_table("CompactLog", request, admin_pb.CompactLogResponse)
        return _of_buckets("changelogs", table, bucket, list(map(compacted_from_proto, reply.buckets)))

    async def make_images(self, table: str, *, bucket: int | None = None) -> list[ImageInfo]:
        """Make columnar images of a table's rows as of now; whole scans read them as long as little was changed since.

        Args:
            table: Its name.
            bucket: The only one; None: all of the table, one after another.

        Returns:
            By bucket, what was made, in place of what there was.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to make one of.
            ArgumentInvalid: The server keeps its tables in memory alone.
            DiskFull: There is too little room, or images may not take more.
            PermissionDenied: The server lets others administer it.

        Waits:
            Until they are used: minutes where there are millions of rows.
        """
        request = admin_pb.MakeImagesRequest(table=_table_name(table), bucket=_only_bucket(table, bucket))
        reply = await self._administer_table("MakeImages", request, admin_pb.MakeImagesResponse)
        return _of_buckets("images", table, bucket, list(map(image_from_proto, reply.images)))

    async def list_images(self, table: str) -> list[ImageInfo]:
        """The columnar images of a table, by bucket; of those buckets that have one.

        Raises:
            TableNotFound: There is none of that name.
            PermissionDenied: The table may not be known of.
        """
        states = await self.image_states(table)
        return [each.image for each in states if each.image is not None]

    async def image_states(self, table: str) -> list[ImageState]:
        """Of each bucket of a table, by bucket, whether it has a columnar image, and why.

        Raises:
            TableNotFound: There is none of that name.
            PermissionDenied: The table may not be known of.
        """
        request = admin_pb.ListImagesRequest(table=_table_name(table))
        reply = await self._administer_table("ListImages", request, admin_pb.ListImagesResponse)
        return image_states_from_proto(reply)

    async def drop_images(self, table: str, *, bucket: int | None = None) -> int:
        """Remove columnar images. Scans that read them go on; later ones read the rows.

        Args:
            table: Its name.
            bucket: The only one; None: all of the table.

        Returns:
            How many there were.

        Raises:
            TableNotFound, BucketNotFound: There is no such table or bucket.
            PermissionDenied: The server lets others administer it.
        """
        request = admin_pb.DropImagesRequest(table=_table_name(table), bucket=_only_bucket(table, bucket))
        reply = await self._administer_table("DropImages", request, admin_pb.DropImagesResponse)
        return reply.images

    async def acquire_lease(
        self,
        *targets: Leasable,
        lease_id: str | None = None,
        ttl_s: float | None = None,
        partial: bool = False,
        if_absent: bool = False,
        id_age_s: float | None = None,
    ) -> Lease:
        """Keep states of buckets readable: acquire a lease, or add to the one of that id, or move its buckets.

        Args:
            targets: Names of tables, or `LeaseTarget`s. A table's name alone: the newest checkpoint of each bucket;
                where there is none, one is made, if the caller may administer the server. To take several buckets as
                of now waits for versions of transactions that are being applied.
            lease_id: 1 to 100 letters, digits, `_`, `.`, `:`, `-`; None: one that nobody has.
            ttl_s: How long it lives from now and from each renewal on, seconds; None: as it has, or a default.
            partial: Lease what is there, and tell of the rest in `Lease.not_leased`; else everything or nothing.
            if_absent: If you have a lease of that id, change nothing and return it as it is, whatever it keeps. Of
                calls at once one makes the lease, so that processes that know nothing of each other share its
                state. Needs `lease_id`.
            id_age_s: You made the id up so many seconds ago, 0 or more, for this lease alone: if it has ended since, do
                not make another one, which would keep another state. Needs `lease_id`.

        Returns:
            The lease. Use it in an `async with` block, to have it renewed and dropped; or see to that yourself. One
            that is shared is better without a block, whose end drops it for all.

        Raises:
            TableNotFound, BucketNotFound, SnapshotLost, OffsetOutOfRange, ...: Something cannot be leased; nothing was
                changed.
            PermissionDenied: A table may not be read, or a checkpoint would have to be made.
            LeaseNotFound: It ended again before the answer came, because it was dropped, or is too short. Or, with
                `id_age_s`, it had ended before, or the server no longer knows.
            TooManyScans: There are as many leases as the server allows.
            ArgumentInvalid: The request makes no sense.
            ServerUnavailable, ScanIncomplete: The answer did not come; see Cancellation.

        Cancellation:
            Without `lease_id` there is no lease then, as long as the server answers within a second; else it, or one of
            your id, may have been acquired, and ends with its time.

        Example:
            >>> async with await client.acquire_lease("orders") as lease:
            ...     frame = await orders.new_scan().with_lease(lease).to_arrow()
        """
        if if_absent and lease_id is None:
            raise ArgumentInvalid("if_absent needs a lease_id: an id that is made up is always absent")
        if id_age_s is not None and lease_id is None:
            raise ArgumentInvalid("id_age_s needs the lease_id that is so old")
        name = new_lease_id() if lease_id is None else lease_id
        try:
            info, missing, half_applied = await self.leases.acquire(
                name,
                targets,
                ttl_s,
                partial=partial,
                if_absent=if_absent,
                id_age_s=id_age_s,
            )
        except (trio.Cancelled, *AMBIGUOUS):
            if lease_id is None:  # Nobody knows the id, so nobody else would release it.
                with trio.move_on_after(_DROP_S, shield=True):
                    await self.leases.drop_if_possible(name)
            raise
        if info is None:
            if missing:
                raise refusal(missing)
            raise LeaseNotFound("the lease ended before its acquisition was answered; acquire it again")
        return Lease(self.leases, info, missing, half_applied, id_known=lease_id is not None)

    async def list_leases(self, table: str | None = None) -> list[LeaseInfo]:
        """The caller's leases, by id; to who administers the server everybody's.

        Args:
            table: Only those that keep something of this table; None: all.
        """
        return await self.leases.list(table)

    @property
    def leases(self) -> Leases:
        """The calls on leases by their ids."""
        return Leases(self._connection)

    async def drain(self, timeout_s: float | None = None) -> DrainBegun:
        """Begin the server's graceful drain, as SIGTERM does: no new calls, running ones may finish. Does not wait.

        Args:
            timeout_s: How long running calls may take, seconds; None: the server's own limit.

        Raises:
            ArgumentInvalid: `timeout_s` is negative, or too long to be told.
            PermissionDenied: The server lets others administer it.
        """
        if timeout_s is not None and not (is_number(timeout_s) and 0 <= timeout_s < _DRAIN_S_END):
            raise ArgumentInvalid(f"a drain takes 0 to {_DRAIN_S_END} seconds, not {timeout_s!r}")
        request = admin_pb.DrainRequest(
            timeout_ms=None if timeout_s is None else round(float(timeout_s) * 1000)
        )
        reply = await self._administer("Drain", request, admin_pb.DrainResponse)
        return DrainBegun(streams=reply.streams, already_draining=reply.already_draining)

    async def _administer(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        return await call_unary(self._connection, methods.ADMIN + method, request, reply)

    async def _administer_table(self, method: str, request: _OfTable, reply: type[_Tells]) -> _Tells:
        answer = await self._administer(method, request, reply)
        if answer.table:
            require_about(method, f"table {request.table!r}", f"table {answer.table!r}")
        return answer

    async def _call(self, method: str, request: Message, reply: type[_Reply]) -> _Reply:
        return await call_unary(self._connection, methods.TABLES + method, request, reply)


def _require_same(there: TableDescription, wanted: TableDescription) -> None:
    """Check that a table which is there is the one that was to be created.

    Raises:
        TableExists: It has another primary key or bucket count.
        SchemaMismatch: It has other columns.
    """
    # First: columns of another key are other columns, as they are not nullable.
    for what, has, want in (
        ("the primary key", ", ".join(there.primary_key), ", ".join(wanted.primary_key)),
        ("the bucket count", there.buckets, wanted.buckets),
    ):
        if has != want:
            raise TableExists(
                f"table {there.name!r} exists with {what} {has}, not {want}; ask for that, or choose another name"
            )
    if not there.schema.equals(wanted.schema):
        raise SchemaMismatch(
            f"table {there.name!r} exists with other columns: {_columns(there)}; these were wanted: {_columns(wanted)}"
        )


def _columns(table: TableDescription) -> str:
    return ", ".join(
        f"{each.name} {each.type}{'' if each.nullable else ' not null'}" for each in table.schema
    )


def _of_buckets(what: str, table: str, bucket: int | None, answered: list[_OfBucket]) -> list[_OfBucket]:
    """What a server says that it has done, if it is of the buckets that were meant, which is all without one.

    Raises:
        DataCorrupted: It is of others, or of none.
    """
    told = [each.bucket for each in answered]
    if told != ([bucket_number(table, bucket)] if bucket is not None else list(range(max(1, len(told))))):
        meant = "all buckets" if bucket is None else f"bucket {bucket}"
        raise DataCorrupted(
            f"the server was asked for {what} of {meant} of {table}, and answers with those of buckets {told}; nobody"
            " knows what was done"
        )
    return answered


def _table_name(name: str) -> str:
    return require_text("the name of a table", name)


def _only_bucket(table: str, bucket: int | None) -> int | None:
    return None if bucket is None else bucket_number(table, bucket)
