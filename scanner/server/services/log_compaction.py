"""The call of `weir.v1.Admin` that cuts changelogs off: what retention does from time to time, now."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError, StoreFailed
from scanner.proto.weir.v1 import admin_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.server.log.bounds import require_in_log, shown_time
from scanner.wire.queries import parse_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.retention.log_retention import LogCut, Retention
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from transport import ServerStream

_logger = logging.getLogger(__name__)


class CompactionService:
    """Serves `CompactLog`.

    Args:
        catalog: Table catalog.
        retention: Cuts the changelogs.
        now_us: Tells the time, microseconds since 1970 UTC.
    """

    def __init__(self, catalog: Catalog, retention: Retention, now_us: Callable[[], int]) -> None:
        self._catalog = catalog
        self._retention = retention
        self._now_us = now_us

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each method."""
        return {"CompactLog": self.compact}

    async def compact(self, request: Buffer, stream: ServerStream) -> bytes:
        """Cut the changelogs of one bucket or of all, one after another, and answer what went and what is pinned.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to cut, or not any more.
            ArgumentInvalid: An offset without its bucket, or a time in the future.
            OffsetOutOfRange: The offset is past the log's end.
            StoreFailed, DataCorrupted: Of the first that could not be cut, or whose disk could not be given back; the
                others were, and the server's log names each.
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.CompactLogRequest, request)
        before = message.WhichOneof("before")
        if before == "offset" and not message.HasField("bucket"):
            raise ArgumentInvalid("offsets are of one bucket; name that, too")
        if before == "timestamp_us" and message.timestamp_us > (now_us := self._now_us()):
            raise ArgumentInvalid(
                f"{shown_time(message.timestamp_us)} is in the future: the server's clock says {shown_time(now_us)}"
            )
        table = await self._catalog.table(message.table)
        indices = [message.bucket] if message.HasField("bucket") else range(table.description.buckets)
        cuts: list[pb.CompactedLog] = []
        failed: ScannerError | None = None
        try:
            async with self._catalog.unless_dropped(message.table, table.table_id):
                for index in indices:
                    log, became = f"the changelog of {message.table}[{index}]", "is not cut"
                    try:
                        bucket = await self._catalog.bucket(table, index)
                        wanted = await self._wanted(bucket, message)
                        cuts.append(
                            _info(index, await self._retention.cut(message.table, index, bucket, wanted))
                        )
                        became = "is cut, and what is cut still takes disk"
                        await self._retention.free(bucket)
                    except (StoreFailed, DataCorrupted) as error:
                        _logger.error("%s %s: %s", log, became, error.message)
                        failed = failed or error.reworded(f"{log} {became}: {error.message}")
            if failed is not None:
                raise failed
        finally:
            if cuts:  # However it ends, these were cut.
                audit_call(
                    self._catalog.activity,
                    AuditEvent.LOG_COMPACTED,
                    stream,
                    table=message.table,
                    buckets=len(cuts),
                    dropped=sum(each.changes_dropped for each in cuts),
                )
        return pb.CompactLogResponse(buckets=cuts, table=message.table).SerializeToString()

    async def _wanted(self, bucket: ServedBucket, message: pb.CompactLogRequest) -> int:
        before = message.WhichOneof("before")
        if before is None:
            return await self._retention.wanted_start(bucket)
        async with bucket.between_commits():
            storage = bucket.storage
            if before == "timestamp_us":
                return storage.offset_at(message.timestamp_us)
            # What went before is no error: it was asked to go.
            require_in_log(storage, max(message.offset, storage.log_start), "the offset")
            return message.offset


def _info(index: int, cut: LogCut) -> pb.CompactedLog:
    return pb.CompactedLog(
        bucket=index,
        start_offset=cut.start,
        end_offset=cut.end,
        changes_dropped=cut.dropped,
        changes_pinned=cut.pinned,
        pins=[pb.LogPinInfo(what=pin.what, principal=pin.principal, offset=pin.offset) for pin in cut.pins],
    )
