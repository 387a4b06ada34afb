"""Where the changelogs of a table begin and end, and where a time is in them: what `Table.offsets` returns."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from scanner.client.arguments import microseconds
from scanner.client.calls import call_unary
from scanner.errors import DataCorrupted, SourceUnsupported
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection
    from scanner.data.table import TableDescription


class OffsetRange(NamedTuple):
    """Changes of one bucket: [start_offset, end_offset)."""

    bucket: int
    start_offset: int
    end_offset: int


class OffsetsAt(NamedTuple):
    """The changelog of one bucket, and where a time is in it."""

    bucket: int
    """Its number."""
    start_offset: int
    """The oldest offset still available."""
    end_offset: int
    """What the next change will have."""
    at_offset: int
    """Where the first commit at or after the time begins; `end_offset` if there is none yet."""
    is_kept: bool = True
    """Whether everything that was committed at or after the time is still there; False also if that cannot be told."""


async def list_offsets(connection: Connection, table: TableDescription, table_id: int) -> list[OffsetRange]:
    """Where each changelog begins and ends, ascending by bucket.

    Raises:
        DataCorrupted: The answer is of another table, or not of every bucket, once: whoever reads what it names would
            miss the others.
    """
    ranges = await _ask(connection, table, table_id)
    return [OffsetRange(r.bucket, r.start_offset, r.end_offset) for r in ranges]


async def offsets_at(
    connection: Connection, table: TableDescription, table_id: int | None, at: datetime.datetime
) -> list[OffsetsAt]:
    """Where a time is in each changelog, and where that begins and ends; ascending by bucket.

    Raises:
        DataCorrupted: See `list_offsets`.
        ArgumentInvalid: The time is none, or in the future.
        SourceUnsupported: The server is older than this question.
    """
    ranges = await _ask(connection, table, table_id, microseconds(at))
    if not all(each.HasField("at_offset") for each in ranges):
        raise SourceUnsupported("the server cannot tell where a time is in its changelogs; it is too old")
    return [OffsetsAt(r.bucket, r.start_offset, r.end_offset, r.at_offset, _is_kept(r)) for r in ranges]


async def _ask(
    connection: Connection, table: TableDescription, table_id: int | None, timestamp_us: int | None = None
) -> list[pb.OffsetRange]:
    request = pb.ListOffsetsRequest(table=table.name, table_id=table_id, timestamp_us=timestamp_us)
    reply = await call_unary(connection, methods.LIST_OFFSETS, request, pb.ListOffsetsResponse)
    if table_id is not None and reply.HasField("table_id") and reply.table_id != table_id:
        raise DataCorrupted(
            f"the server was asked for the offsets of {table.name}, table {table_id}, and tells those of table"
            f" {reply.table_id}"
        )
    ranges = sorted(reply.ranges, key=lambda each: each.bucket)
    if [each.bucket for each in ranges] != list(range(table.buckets)):
        raise DataCorrupted(
            f"the server told the offsets of {len(ranges)} buckets of {table.name}, which has {table.buckets}, 0 to"
            f" {table.buckets - 1}"
        )
    return ranges


def _is_kept(found: pb.OffsetRange) -> bool:
    """Whether everything since a time is kept; of an older server only where its changelog reaches back further."""
    if found.HasField("at_is_kept"):
        return found.at_is_kept
    return found.at_offset == 0 or found.at_offset > found.start_offset
