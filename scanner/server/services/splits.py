"""`SplitBucket` of `weir.v1.Tables`: where to cut a bucket's keys, so that several scans share its rows evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from scanner.data.key_ranges import SplitWish, is_empty
from scanner.data.keys import KeyRange
from scanner.errors import ArgumentInvalid, StoreClosed
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.auth.access import Right, authorize
from scanner.wire.queries import meant_table_id, parse_request
from transport import StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.tables.catalog import Catalog
    from transport import ServerStream

_AT_ONCE: Final = 2
"""Calls that measure; the others wait, so that commits find a thread."""


class SplitService:
    """Serves `SplitBucket`.

    Args:
        catalog: Table catalog.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._turns = trio.CapacityLimiter(_AT_ONCE)

    async def split_bucket(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with cuts of a bucket, or of a range of its keys.

        Raises:
            ArgumentInvalid: The request makes no sense.
            ScannerError: There is no such table or bucket, or it cannot be read.
        """
        message = parse_request(pb.SplitBucketRequest, request)
        authorize(stream, Right.READ, message.table)
        wish = _wish(message)
        key_range = KeyRange(message.key_start, message.key_end)
        if is_empty(key_range):
            raise ArgumentInvalid("the range that is to be split ends before it begins")
        table = await self._catalog.table(message.table, meant_table_id(message))
        bucket = await self._catalog.bucket(table, message.bucket)
        with stream.blocked_on(StallReason.STORAGE):
            async with self._turns:
                try:
                    split = await bucket.split(wish, key_range)
                except StoreClosed:
                    bucket.check_served()  # Where the table was dropped, that is the error.
                    raise
        return pb.SplitBucketResponse(
            cut_keys=split.cuts,
            stored_bytes=split.stored_bytes,
            table_id=table.table_id,
            bucket=message.bucket,
        ).SerializeToString()


def _wish(message: pb.SplitBucketRequest) -> SplitWish:
    asked = message.WhichOneof("wish")
    return SplitWish(
        splits=message.splits if asked == "splits" else None,
        target_bytes=message.target_split_bytes if asked == "target_split_bytes" else None,
    )
