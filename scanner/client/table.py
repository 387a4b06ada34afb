"""A table as a trio client sees it: its description, its writes, and where its scans begin.

Every exception that leaves it is a `ScannerError`, or one of trio's about the caller's own use.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, overload

import pyarrow as pa

from scanner.client.arguments import (
    TEXT_OR_OCTETS,
    UINT64_MAX,
    histories_by_bucket,
    require_kind,
    require_text,
    whole,
)
from scanner.client.arrow_input import ArrowRows, Rows, is_rows, read_arrow
from scanner.client.calls import call_unary, require_about, table_told
from scanner.client.connection import Connection, Lasting
from scanner.client.groups import GroupInfo, GroupSummary, delete_group, describe_group, list_groups
from scanner.client.html import html_table
from scanner.client.log_measures import MeasuredLog, measure_log
from scanner.client.offsets import OffsetRange, OffsetsAt, list_offsets, offsets_at
from scanner.client.point_reads import GetResult, get_rows
from scanner.client.scan.builder import KeyPrefix
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.scan import Scan
from scanner.client.splits import BucketRanges, split_bucket
from scanner.client.transactions import Transaction, TransactionInfo, list_transactions
from scanner.client.writer import OnAcknowledged, Writer, WriteResult, open_writer
from scanner.data.key_ranges import SPLITS_MAX, SplitWish
from scanner.data.keys import ALL_KEYS, KeyRange, key_cells
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, DataCorrupted, KeyInvalid
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods
from scanner.wire.arrow_ipc import encode_schema

Keys: TypeAlias = Rows | Sequence[Sequence[object] | Mapping[str, object]]
"""Primary keys: rows of the key columns, or tuples in key order, or dicts."""


class Table:
    """A table of a server.

    Args:
        connection: Owned by whoever made it.
        description: What the server said.
        table_id: Likewise.
    """

    def __init__(self, connection: Connection, description: TableDescription, table_id: int) -> None:
        self._connection = connection
        self.description = description
        self.table_id = table_id
        """The server gives it to no other table: one that is dropped and created anew has another id."""

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

    def _repr_html_(self) -> str:
        """What a notebook shows: columns, key and buckets."""
        key = {name: place for place, name in enumerate(self.primary_key, 1)}
        rows = [
            (each.name, each.type, "null" if each.nullable else "not null", key.get(each.name))
            for each in self.schema
        ]
        buckets = "1 bucket" if self.buckets == 1 else f"{self.buckets} buckets"
        return html_table(f"{self.name}: {buckets}", ("column", "type", "may be", "key"), rows)

    def new_scan(self) -> Scan:
        """Begin to describe a scan: all rows and columns, unless it is told otherwise."""
        return Scan(self._connection, ScanPlan(table=self.description, table_id=self.table_id))

    async def add_column(self, column: pa.Field) -> None:
        """Add a column behind the last one. Rows that are there read as null in it; this object has it from then on.

        Scans that run keep the columns with which they began. Other clients look the table up again to see the column,
        and must, to write: rows that lack it are refused, since nobody could tell null from forgotten.

        Args:
            column: Its name and type, nullable: `pa.field("colour", pa.string())`.

        Raises:
            SchemaMismatch: It is not nullable, of a type that cannot be stored, or one too many.
            ArgumentInvalid: There is a column of that name, or every change has one: `_change_type`, `_log_offset`,
                `_commit_timestamp`.
            TableNotFound: The table was dropped.
            PermissionDenied: The caller may not manage the table.
            DataCorrupted: The server answers with another table, or one without the column.

        Cancellation:
            The column may have been added.
        """
        require_kind("a column", column, pa.Field)
        wanted = self.description.with_column(column)  # Refuses here what cannot be.
        request = pb.AddColumnRequest(
            table=self.name, table_id=self.table_id, arrow_schema=encode_schema(pa.schema([column]))
        )
        reply = await call_unary(self._connection, methods.ADD_COLUMN, request, pb.AddColumnResponse)
        description = table_told(reply.table)
        missing = set(wanted.column_names).difference(description.column_names)
        if description.name != self.name or missing:
            raise DataCorrupted(
                f"column {column.name!r} was to be added to {self.name!r}, and the server answers with"
                f" {description.name!r}, which lacks {', '.join(sorted(missing)) or 'nothing'}; look the table up again"
            )
        self.description = description

    async def drop_unwritten(self) -> bool:
        """Drop the table, but only if nobody has ever written to it, and nobody does.

        Returns:
            Whether it is gone.

        Raises:
            TableNotFound: It was dropped before.
            PermissionDenied: The caller may not manage the table.
            SourceUnsupported: The server is older than this question.

        Cancellation:
            The table may have been dropped.
        """
        request = pb.DropUnwrittenRequest(table=self.name, table_id=self.table_id)
        reply = await call_unary(self._connection, methods.DROP_UNWRITTEN, request, pb.DropUnwrittenResponse)
        if reply.HasField("table_id"):
            require_about("DropUnwritten", self.table_id, reply.table_id)
        return reply.dropped

    async def write(self, rows: Rows, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Insert or update rows by their primary key, and wait until they are durable.

        Args:
            rows: All columns by name, as Arrow or a data frame. Rows of one key are applied in their order.
            on_acknowledged: Told the rows that are durable so far; must not block.

        Raises:
            SchemaMismatch: Columns do not fit; nothing was written.
            KeyInvalid: A key is null; nothing was written.
            TypeError: `rows` are no rows; nothing was written.
            ScannerError: It failed under way; the message says how many rows are durable. So it does if the server
                refuses a row for its size: KeyInvalid for a key above 64 KiB, SchemaMismatch for a row above its limit.

        Cancellation:
            Part of the rows may have been written.
        """
        return await self._write(pb.WriteRequest.OPERATION_UPSERT, rows, on_acknowledged)

    def open_writer(
        self, on_acknowledged: OnAcknowledged | None = None
    ) -> AbstractAsyncContextManager[Writer]:
        """Open a writer for many batches; see `scanner.client.writer.open_writer`."""
        operation = pb.WriteRequest.OPERATION_UPSERT
        lasting = Lasting.AS_ITS_USER_WANTS
        return open_writer(
            self._connection, self.description, self.table_id, operation, on_acknowledged, lasting
        )

    async def delete(self, keys: Keys, on_acknowledged: OnAcknowledged | None = None) -> WriteResult:
        """Delete rows by their primary key, and wait until that is durable. A key that is not there is no error.

        Args:
            keys: Arrow or a data frame of the key columns, or a list of tuples in key order or of dicts.
            on_acknowledged: Told the keys dealt with so far; must not block.

        Raises:
            KeyInvalid: A key is incomplete, null or of the wrong type; nothing was deleted.
            SchemaMismatch: Columns do not fit; nothing was deleted.
            ScannerError: It failed under way; the message says how far it came. So it does of KeyInvalid, if the server
                refuses a key above 64 KiB.

        Cancellation:
            Part of the keys may have been deleted.
        """
        rows = await self._read_keys(keys)
        return await self._write(pb.WriteRequest.OPERATION_DELETE, rows, on_acknowledged)

    async def _write(
        self, operation: pb.WriteRequest.Operation, rows: Rows, on_acknowledged: OnAcknowledged | None
    ) -> WriteResult:
        async with open_writer(
            self._connection, self.description, self.table_id, operation, on_acknowledged
        ) as writer:
            await writer.write(rows)
        return writer.result

    async def get(
        self,
        keys: Keys,
        *,
        columns: Sequence[str] = (),
        as_of: int | Mapping[int, int] | None = None,
        histories: Mapping[int, bytes] | None = None,
    ) -> GetResult:
        """Read rows by their primary key, in as many calls as that takes; calls that are cut are made again.

        All rows of one bucket are as of one log offset, that of the first call unless `as_of` gives one; those of
        different buckets may be as of different moments.

        Args:
            keys: Arrow or a data frame of the key columns, or a list of tuples in key order or of dicts. Without
                any, nothing is asked.
            columns: Those wanted, in this order; none of them means all that this object knows of.
            as_of: The log offset that every bucket is read as of; or a dict from bucket to offset, of every bucket that
                a key belongs to. None: as of now. How long that takes grows with the changes since then.
            histories: By bucket, the history that its offset is of, as in `ScanBuilder.as_of`.

        Example:
            >>> result = await table.get([(1,), (2,)])
            >>> result.rows, result.missing

        Raises:
            KeyInvalid: A key is incomplete, null or of the wrong type; nothing was read.
            SchemaMismatch: Columns do not fit, or a key is no value of its column's type.
            ColumnNotFound: There is no such column.
            ArgumentInvalid: `as_of` makes no sense, or leaves out a bucket.
            SnapshotLost: The changelog does not reach back to the offset any more, or the bucket has another history.
            OffsetOutOfRange: The changelog has not come to the offset yet.
            PermissionDenied: The caller may not read the table.
            ScannerError: It failed otherwise; nothing is returned of what was read.

        Waits:
            For the server, and between attempts.

        Cancellation:
            No effect.
        """
        wanted = () if columns is None else columns
        if isinstance(wanted, TEXT_OR_OCTETS) or not isinstance(wanted, Iterable):
            raise ArgumentInvalid(f"columns is a list of names, not {columns!r}")
        names = [require_text("the name of a column", each) for each in wanted]
        rows = await self._read_keys(keys)
        return await get_rows(
            self._connection,
            self.description,
            self.table_id,
            rows,
            names,
            as_of,
            histories_by_bucket(histories, self.buckets),
        )

    async def _read_keys(self, keys: Keys) -> ArrowRows:
        return await read_arrow(keys) if is_rows(keys) else keys_to_arrow(self.description, keys)

    @overload
    async def offsets(self) -> list[OffsetRange]: ...

    @overload
    async def offsets(self, *, at: datetime.datetime) -> list[OffsetsAt]: ...

    async def offsets(self, *, at: datetime.datetime | None = None) -> list[OffsetRange] | list[OffsetsAt]:
        """Per bucket, ascending: the oldest offset of the changelog still available, and its end.

        Args:
            at: Also tell where this time is; without a zone it is one of UTC. `ScanBuilder.start_at` begins there.

        Raises:
            TableNotFound: The table was dropped.
            ArgumentInvalid: The time is in the future.
            SourceUnsupported: The server is older than this question.
        """
        if at is None:
            return await list_offsets(self._connection, self.description, self.table_id)
        return await offsets_at(self._connection, self.description, self.table_id, at)

    async def split(
        self,
        bucket: int,
        *,
        splits: int | None = None,
        target_bytes: int | None = None,
        key_from: KeyPrefix | None = None,
        key_to: KeyPrefix | None = None,
        within: KeyRange = ALL_KEYS,
    ) -> BucketRanges:
        """Cut a bucket, or a range of its keys, so that scans of the parts read about as many stored bytes each.

        The server estimates, from samples, in a bounded time. Whatever it finds, the ranges have every key exactly
        once; to read them as of one state, give their scans one `as_of` or one lease.

        Args:
            bucket: Which one, from 0.
            splits: How many ranges are wanted, 1 to 1024; there are fewer where there is little to cut.
            target_bytes: Instead: stored bytes of one range, 1 or more. There are never more than 1024 ranges.
            key_from: Only keys from these on, as in `Scan.key_range`.
            key_to: Only keys before these.
            within: Only keys of this range, as another split gave it, or `Scan.plan.key_range`.

        Returns:
            The ranges, in key order: a sequence, for `Scan.within`; and what they hold.

        Raises:
            ArgumentInvalid: Not one of `splits` and `target_bytes`, or out of range, or no prefix of the key.
            KeyInvalid: A value does not fit its column.
            BucketNotFound: The table has fewer buckets.
            TableNotFound: The table was dropped.
            PermissionDenied: The caller may not read the table.
            SourceUnsupported: The server is older than this call.
            DataCorrupted: The answer makes no sense.

        Waits:
            For the server.

        Cancellation:
            No effect.

        Example:
            >>> for part in await table.split(0, splits=4):
            ...     await table.new_scan().bucket(0).within(part).to_arrow()
        """
        scan = self.new_scan().bucket(bucket).key_range(key_from, key_to).within(within)
        wish = SplitWish(
            None if splits is None else whole(splits, "splits", 1, SPLITS_MAX),
            None if target_bytes is None else whole(target_bytes, "target_bytes", 1, UINT64_MAX),
        )
        plan = scan.plan
        return await split_bucket(
            self._connection, self.name, self.table_id, plan.buckets[0], wish, plan.key_range
        )

    def transaction(self, name: str, version: int) -> Transaction:
        """Write rows that are seen together, once, however often parts of the work are done again.

        Args:
            name: Names the writer, 1 to 100 of A-Z, a-z, 0-9, `_`, `.`, `:` and `-`. The server remembers it for 30
                days after its last use, for an hour if it begins with `once:`.
            version: 0 to 2^63 - 1. Of one name, versions are published in ascending order, each once.

        Example:
            >>> load = table.transaction("nightly-load", 7)
            >>> await load.stage(rows, part=0, attempt=0)
            >>> await load.publish({0: 0})

        Raises:
            ArgumentInvalid: The version is no such number.
        """
        return Transaction(self._connection, self.description, self.table_id, name, version)

    async def transactions(self) -> list[TransactionInfo]:
        """What the server remembers of transactions of the table, by name.

        Raises:
            TableNotFound: The table was dropped.
            DataCorrupted: The answer is about another table.
        """
        return await list_transactions(self._connection, self.name, self.table_id)

    async def measure_log(
        self,
        positions: Mapping[int, int],
        *,
        histories: Mapping[int, bytes] | None = None,
        commits_max: int = 0,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> list[MeasuredLog]:
        """How large the commits behind some positions are, without their rows.

        A server measures only so much in one call. Where the last commit of a bucket is before its `end_offset` and no
        bound was reached, ask again from that commit's end; the lowest bucket is measured by a commit at least.

        Args:
            positions: From bucket to an offset, an end of a commit. One that is older than the changelog is not
                measured from: `start_offset` says where that begins.
            histories: By bucket, the history that its position is of, as `MeasuredLog.history_of` tells it.
            commits_max: Commits of a bucket at most; 0: only where its changelog begins and ends, and its histories.
            rows_max: Stop behind the commit with which a bucket has so many changes, >= 1. None: no bound.
            bytes_max: Stop behind the commit with which a bucket has so many stored bytes, >= 1. None: no bound.

        Returns:
            One for each position, ascending by bucket.

        Raises:
            TableNotFound: The table was dropped; another one may have its name.
            BucketNotFound: A bucket is not there.
            ArgumentInvalid: A position is inside a commit, or a number is out of range.
            OffsetOutOfRange: A position is past the end of a changelog.
            SnapshotLost: A position is of another history of its bucket, which was restored from a copy.
            PermissionDenied: The caller may neither read nor write the table.

        Waits:
            For the server.
        """
        return await measure_log(
            self._connection,
            self.name,
            self.table_id,
            positions,
            histories_by_bucket(histories, self.buckets),
            commits_max,
            rows_max,
            bytes_max,
        )

    async def groups(self) -> list[GroupSummary]:
        """The reader groups of the table, by name.

        Raises:
            TableNotFound: The table was dropped; another one of its name is none of it.
            DataCorrupted: The answer is about another table.
        """
        return await list_groups(self._connection, self.name, self.table_id)

    async def group(self, name: str) -> GroupInfo:
        """A reader group: who is in, who reads which bucket, and how far.

        Raises:
            TableNotFound: The table was dropped.
            GroupNotFound: The table has no such group.
            DataCorrupted: The answer is about another group.
        """
        return await describe_group(self._connection, self.name, self.table_id, name)

    async def delete_group(self, name: str) -> None:
        """Forget a reader group and its positions. The next reader begins it anew.

        Raises:
            TableNotFound: The table was dropped: what has its name now keeps its groups.
            GroupNotFound: The table has no such group.
            GroupNotEmpty: It has members.

        Cancellation:
            The group may be forgotten, or a part of its positions.
        """
        await delete_group(self._connection, self.name, self.table_id, name)


def keys_to_arrow(
    table: TableDescription, keys: Sequence[Sequence[object] | Mapping[str, object]]
) -> pa.RecordBatch:
    """Primary keys given as Python values, as a batch of the key columns.

    Raises:
        KeyInvalid: A key is incomplete, or a value does not fit its column.
    """
    names = table.primary_key
    require_kind("what keys are in, if it is no Arrow,", keys, Iterable)
    rows: list[Sequence[Any]] = []
    for key in keys:
        if isinstance(key, Mapping) and set(key) == set(names):
            rows.append([key[name] for name in names])
        elif isinstance(key, Sequence) and not isinstance(key, TEXT_OR_OCTETS) and len(key) == len(names):
            rows.append(key)
        else:
            raise KeyInvalid(
                f"a key of {table.name} is a tuple or a dict of its columns ({', '.join(names)}); got {key!r}"
            )
    columns = [key_cells([row[index] for row in rows], field) for index, field in enumerate(table.key_schema)]
    schema = pa.schema([field.with_nullable(True) for field in table.key_schema])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
