"""The blocking client; public as `scanner.sync`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import Self, overload

import pyarrow as pa

from scanner.client import client as trio_client
from scanner.client import table as trio_table
from scanner.client.admin import CheckpointInfo, CompactedLog, DrainBegun, SnapshotInfo, StreamInfo
from scanner.client.arrow_input import Rows
from scanner.client.client import BUCKETS_DEFAULT
from scanner.client.credentials import TlsSource, TokenSource
from scanner.client.groups import GroupInfo, GroupSummary
from scanner.client.held_lease import Lease as TrioLease
from scanner.client.leases import Leasable, LeaseInfo
from scanner.client.log_measures import MeasuredLog
from scanner.client.offsets import OffsetRange, OffsetsAt
from scanner.client.point_reads import GetResult
from scanner.client.retries import RETRIES_DEFAULT
from scanner.client.scan.builder import KeyPrefix
from scanner.client.scan.plan import ScanPlan
from scanner.client.splits import BucketRanges
from scanner.client.table import Keys
from scanner.client.transactions import TransactionInfo
from scanner.client.writer import OnAcknowledged, WriteResult
from scanner.client.writer import Writer as TrioWriter
from scanner.data.images import ImageInfo, ImageState
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.table import TableDescription
from scanner.sync.leases import Lease, Leases
from scanner.sync.portal import Portal
from scanner.sync.rows import read_keys, read_rows
from scanner.sync.scan import Scan
from scanner.sync.transactions import Transaction
from transport import TransportConfig


def connect(
    endpoint: str,
    *,
    config: TransportConfig | None = None,
    ssl_context: TlsSource = None,
    token: TokenSource = None,
    insecure_token: bool = False,
    retries: int = RETRIES_DEFAULT,
    rng: Random | None = None,
) -> Client:
    """Connect to a server. Use the client in a `with` block, or close it.

    A connection that is lost is made again for the next call. A scan goes on where it was cut, by itself, and so does
    a write, which is applied once.

    Args:
        endpoint: `HOST:PORT`, or `HOST` for port 9123.
        config: Limits of the connection.
        ssl_context: For TLS, such as `scanner.tls` makes, or a function that returns one, at once, in the client's
            thread; None: plaintext. See `scanner.connect`.
        token: Bearer token that proves who calls, or a function that returns the one of the moment, at once, in the
            client's thread; see `scanner.connect`.
        insecure_token: Send the token in plaintext, even to another machine.
        retries: Attempts at going on, or at connecting again, in a row and without progress, that may fail; 0: errors
            come at once. This first connection is tried once.
        rng: Draws the delays between attempts, in the client's thread; None: seeded by the system.

    Raises:
        ArgumentInvalid: The endpoint cannot be read, the token may not be sent there, or another argument makes no
            sense.
        ServerUnavailable: Nobody answers there, or the server's certificate cannot be trusted.
        Unauthenticated: The server does not accept the client's certificate. (Some servers tell only in a call.)
        RuntimeError: The interpreter is ending.
    """
    portal = Portal(f"weir client of {endpoint}")
    try:
        held = portal.hold(
            trio_client.connect(
                endpoint,
                config=config,
                ssl_context=ssl_context,
                token=token,
                insecure_token=insecure_token,
                retries=retries,
                rng=rng,
            ),
            ends_last=True,
        )
    except BaseException:
        portal.close()
        raise
    return Client(portal, held.value)


class Client:
    """A connection to one server; made by `connect`. Any number of threads may use it."""

    def __init__(self, portal: Portal, client: trio_client.Client) -> None:
        self._portal = portal
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """What it is connected to."""
        return self._client.endpoint

    def close(self) -> None:
        """End the connection and the thread. Idempotent. Calls that run in other threads fail.

        Blocks in other threads are ended first: their leases are dropped, their reader groups left, for which it waits
        some seconds where the server does not answer.

        In a process that was forked from the client's it does nothing: the client is its parent's.
        """
        self._portal.close()

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        buckets: int = BUCKETS_DEFAULT,
        *,
        exist_ok: bool = False,
    ) -> Table:
        """Create a table; see `scanner.Client.create_table`."""
        created = self._portal.call(
            self._client.create_table, name, schema, primary_key, buckets, exist_ok=exist_ok
        )
        return Table(self._portal, created)

    def table(self, name: str) -> Table:
        """Look a table up; see `scanner.Client.table`."""
        return Table(self._portal, self._portal.call(self._client.table, name))

    def scan(self, plan: ScanPlan) -> Scan:
        """The scan that a plan describes, on this connection; see `scanner.Client.scan`."""
        return Scan(self._portal, self._client.scan(plan))

    def tables(self) -> list[TableDescription]:
        """All tables, by name."""
        return self._portal.call(self._client.tables)

    def drop_table(self, name: str, *, table_id: int | None = None) -> None:
        """Drop a table with everything in it; see `scanner.Client.drop_table`."""
        self._portal.call(self._client.drop_table, name, table_id=table_id)

    def list_streams(self) -> list[StreamInfo]:
        """Every call that runs at the server; see `scanner.Client.list_streams`."""
        return self._portal.call(self._client.list_streams)

    def list_snapshots(self, table: str | None = None) -> list[SnapshotInfo]:
        """Every scan that pins a state of a bucket; see `scanner.Client.list_snapshots`."""
        return self._portal.call(self._client.list_snapshots, table)

    def checkpoint(self, table: str, bucket: int | None = None) -> list[CheckpointInfo]:
        """Make a checkpoint of one bucket or of all; see `scanner.Client.checkpoint`."""
        return self._portal.call(self._client.checkpoint, table, bucket)

    def list_checkpoints(self, table: str) -> list[CheckpointInfo]:
        """The checkpoints of a table that are kept; see `scanner.Client.list_checkpoints`."""
        return self._portal.call(self._client.list_checkpoints, table)

    def compact_log(
        self, table: str, *, before: int | datetime.datetime | None = None, bucket: int | None = None
    ) -> list[CompactedLog]:
        """Cut a table's changelogs off now; see `scanner.Client.compact_log`."""
        return self._portal.call(self._client.compact_log, table, before=before, bucket=bucket)

    def make_images(self, table: str, *, bucket: int | None = None) -> list[ImageInfo]:
        """Make columnar images of a table's rows as of now; see `scanner.Client.make_images`."""
        return self._portal.call(self._client.make_images, table, bucket=bucket)

    def list_images(self, table: str) -> list[ImageInfo]:
        """The columnar images of a table; see `scanner.Client.list_images`."""
        return self._portal.call(self._client.list_images, table)

    def image_states(self, table: str) -> list[ImageState]:
        """Of each bucket whether it has a columnar image, and why; see `scanner.Client.image_states`."""
        return self._portal.call(self._client.image_states, table)

    def drop_images(self, table: str, *, bucket: int | None = None) -> int:
        """Remove columnar images; see `scanner.Client.drop_images`."""
        return self._portal.call(self._client.drop_images, table, bucket=bucket)

    def acquire_lease(
        self,
        *targets: Leasable,
        lease_id: str | None = None,
        ttl_s: float | None = None,
        partial: bool = False,
        if_absent: bool = False,
        id_age_s: float | None = None,
    ) -> Lease:
        """Keep states of buckets readable; see `scanner.Client.acquire_lease`. Use the lease in a `with` block."""
        acquired: list[TrioLease] = []
        given_up = False

        async def acquire() -> None:
            lease = await self._client.acquire_lease(
                *targets,
                lease_id=lease_id,
                ttl_s=ttl_s,
                partial=partial,
                if_absent=if_absent,
                id_age_s=id_age_s,
            )
            acquired.append(lease)
            if given_up and lease_id is None:
                await lease.drop()

        async def drop() -> None:
            if acquired and lease_id is None:
                await self._client.leases.drop_if_possible(acquired[0].id)

        try:
            self._portal.call_or_undo(acquire, drop)
            return Lease(self._portal, acquired[0])
        except BaseException:
            # Nobody knows an id that was made up, or would drop it. An interrupt may come when the lease is there
            # already; and one that comes twice does not wait for the end of the call, which may yet bring it.
            given_up = True
            if acquired and lease_id is None:
                self._portal.begin(acquired[0].drop)
            raise

    def list_leases(self, table: str | None = None) -> list[LeaseInfo]:
        """The caller's leases; see `scanner.Client.list_leases`."""
        return self._portal.call(self._client.list_leases, table)

    @property
    def leases(self) -> Leases:
        """The calls on leases by their ids."""
        return Leases(self._portal, self._client.leases)

    def drain(self, timeout_s: float | None = None) -> DrainBegun:
        """Begin the server's graceful drain; see `scanner.Client.drain`."""
        return self._portal.call(self._client.drain, timeout_s)


class Table:
    """A table of a server; see `scanner.Table`."""

    def __init__(self, portal: Portal, table: trio_table.Table) -> None:
        self._portal = portal
        self._table = table

    @property
    def description(self) -> TableDescription:
        """What the server said."""
        return self._table.description

    @property
    def table_id(self) -> int:
        """The server gives it to no other table: one that is dropped and created anew has another id."""
        return self._table.table_id

    @property
    def name(self) -> str:
        """Its name."""
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._table.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Its key columns, in key order."""
        return self._table.primary_key

    @property
    def buckets(self) -> int:
        """Its number of buckets."""
        return self._table.buckets

    def __repr__(self) -> str:
        return repr(self._table)

    def _repr_html_(self) -> str:
        return self._table._repr_html_()

    def new_scan(self) -> Scan:
        """Begin to describe a scan: all rows and columns, unless it is told otherwise."""
        return Scan(self._portal, self._table.new_scan())

    def add_column(self, column: pa.Field) -> None:
        """Add a nullable column behind the last one; see `scanner.Table.add_column`."""
        self._portal.call(self._table.add_column, column)

    def write(self, rows: Rows, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Insert or update rows; see `scanner.Table.write`. The callback runs in the client's thread."""
        return self._portal.call(self._table.write, read_rows(rows), on_acknowledged)

    def delete(self, keys: Keys, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Delete rows by their primary key; see `scanner.Table.delete`."""
        return self._portal.call(self._table.delete, read_keys(keys), on_acknowledged)

    def get(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] = (),
        as_of: int | Mapping[int, int] | None = None,
        histories: Mapping[int, bytes] | None = None,
    ) -> GetResult:
        """Read rows by their primary key; see `scanner.Table.get`."""
        return self._portal.read(
            self._table.get, read_keys(keys), columns=columns, as_of=as_of, histories=histories
        )

    @contextmanager
    def open_writer(self, on_acknowledged: OnAcknowledged | None = None) -> Iterator[Writer]:
        """Open a writer for many batches; leaving the block waits until everything is durable.

        Raises:
            trio.ClosedResourceError: The client was closed before that; a part of the rows may be durable.
        """
        held = self._portal.hold(self._table.open_writer(on_acknowledged))
        try:
            yield Writer(self._portal, held.value)
        except BaseException:
            held.leave(abandoned=True)
            raise
        held.finish()

    def drop_unwritten(self) -> bool:
        """Drop the table, but only if nobody has ever written to it; see `scanner.Table.drop_unwritten`."""
        return self._portal.call(self._table.drop_unwritten)

    @overload
    def offsets(self) -> list[OffsetRange]: ...

    @overload
    def offsets(self, *, at: datetime.datetime) -> list[OffsetsAt]: ...

    def offsets(self, *, at: datetime.datetime | None = None) -> list[OffsetRange] | list[OffsetsAt]:
        """Per bucket, where its changelog begins and ends, and where a time is; see `scanner.Table.offsets`."""
        if at is None:
            return self._portal.call(self._table.offsets)
        return self._portal.call(self._table.offsets, at=at)

    def split(
        self,
        bucket: int,
        *,
        splits: int | None = None,
        target_bytes: int | None = None,
        key_from: KeyPrefix | None = None,
        key_to: KeyPrefix | None = None,
        within: KeyRange = ALL_KEYS,
    ) -> BucketRanges:
        """Cut a bucket in key ranges of about as many bytes each; see `scanner.Table.split`."""
        return self._portal.call(
            self._table.split,
            bucket,
            splits=splits,
            target_bytes=target_bytes,
            key_from=key_from,
            key_to=key_to,
            within=within,
        )

    def transaction(self, name: str, version: int) -> Transaction:
        """Write rows that are seen together, once; see `scanner.Table.transaction`."""
        return Transaction(self._portal, self._table.transaction(name, version))

    def transactions(self) -> list[TransactionInfo]:
        """What the server remembers of transactions of the table; see `scanner.Table.transactions`."""
        return self._portal.call(self._table.transactions)

    def measure_log(
        self,
        positions: Mapping[int, int],
        *,
        histories: Mapping[int, bytes] | None = None,
        commits_max: int = 0,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> list[MeasuredLog]:
        """How large the commits behind some positions are; see `scanner.Table.measure_log`."""
        return self._portal.call(
            self._table.measure_log,
            positions,
            histories=histories,
            commits_max=commits_max,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )

    def groups(self) -> list[GroupSummary]:
        """The reader groups of the table; see `scanner.Table.groups`."""
        return self._portal.call(self._table.groups)

    def group(self, name: str) -> GroupInfo:
        """A reader group: members, buckets, positions; see `scanner.Table.group`."""
        return self._portal.call(self._table.group, name)

    def delete_group(self, name: str) -> None:
        """Forget a reader group and its positions; see `scanner.Table.delete_group`."""
        self._portal.call(self._table.delete_group, name)


class Writer:
    """Sends rows to one table; made by `Table.open_writer`. For one thread."""

    def __init__(self, portal: Portal, writer: TrioWriter) -> None:
        self._portal = portal
        self._writer = writer

    @property
    def result(self) -> WriteResult:
        """What is acknowledged until now; all of it once the block is left."""
        return self._writer.result

    def write(self, rows: Rows) -> None:
        """Send rows; see `scanner.client.writer.Writer.write`. Waits while too much is not acknowledged."""
        self._portal.call(self._writer.write, read_rows(rows))
