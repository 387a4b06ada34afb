"""Where to cut a bucket, so that several scans share its rows: `SplitBucket` as a client calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from scanner.client.calls import call_unary, require_about
from scanner.data.key_ranges import SplitWish, is_empty, ranges_between
from scanner.data.keys import KeyRange
from scanner.errors import ArgumentInvalid, DataCorrupted
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection


@dataclass(frozen=True, slots=True)
class BucketRanges(Sequence[KeyRange]):
    """A bucket, or a part of it, as adjacent key ranges: a sequence of them, for `Scan.within`."""

    bucket: int
    """Which one; `Scan.bucket` chooses it."""
    ranges: tuple[KeyRange, ...]
    """In key order; every key of the whole is in exactly one."""
    stored_bytes: int
    """What they hold together at the server, about: compressed, with what was replaced and not cleaned up yet."""

    @overload
    def __getitem__(self, index: int) -> KeyRange: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[KeyRange]: ...

    def __getitem__(self, index: int | slice) -> KeyRange | Sequence[KeyRange]:
        return self.ranges[index]

    def __len__(self) -> int:
        return len(self.ranges)


async def split_bucket(
    connection: Connection, table: str, table_id: int, bucket: int, wish: SplitWish, key_range: KeyRange
) -> BucketRanges:
    """Cut a bucket; see `scanner.Table.split`."""
    if is_empty(key_range):
        return BucketRanges(bucket, (key_range,), 0)
    request = pb.SplitBucketRequest(
        table=table,
        table_id=table_id,
        bucket=bucket,
        splits=wish.splits,
        target_split_bytes=wish.target_bytes,
        key_start=key_range.start,
        key_end=key_range.end,
    )
    reply = await call_unary(connection, methods.SPLIT_BUCKET, request, pb.SplitBucketResponse)
    if reply.HasField("table_id"):
        require_about("SplitBucket", (table_id, bucket), (reply.table_id, reply.bucket))
    try:
        ranges = ranges_between(key_range, reply.cut_keys)
    except ArgumentInvalid as error:
        raise DataCorrupted(f"the cuts of {table} bucket {bucket} make no ranges: {error}") from error
    return BucketRanges(bucket, tuple(ranges), reply.stored_bytes)
