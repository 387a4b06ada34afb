"""The calls of `weir.v1.Admin` about checkpoints: making them, and listing those that are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from scanner.proto.weir.v1 import admin_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.server.retention.lease_registry import CheckpointKey
from scanner.wire.queries import parse_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.retention.checkpoints import Checkpoints
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.storage.interface import Checkpoint
    from transport import ServerStream


class CheckpointService:
    """Serves `Checkpoint` and `ListCheckpoints`.

    Args:
        catalog: Table catalog.
        checkpoints: Checkpoints of all buckets.
    """

    def __init__(self, catalog: Catalog, checkpoints: Checkpoints) -> None:
        self._catalog = catalog
        self._checkpoints = checkpoints

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each method."""
        return {"Checkpoint": self.checkpoint, "ListCheckpoints": self.list}

    async def checkpoint(self, request: Buffer, stream: ServerStream) -> bytes:
        """Make a checkpoint of one bucket or of all, one after another, and answer with them.

        No version of a transaction is applied meanwhile, if it is of all.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to make one of.
            StoreFailed, DataCorrupted: One could not be made; those of the buckets before it were.
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.CheckpointRequest, request)
        table = await self._catalog.table(message.table)
        made: list[pb.CheckpointInfo] = []
        try:
            if message.HasField("bucket"):
                await self._make(table, message.bucket, made)
            else:
                async with table.versions.taking():
                    for index in range(table.description.buckets):
                        await self._make(table, index, made)
                    offsets = {each.bucket: each.log_offset for each in made}
                    table.versions.half_applied(table.buckets, offsets)  # Logged.
        finally:
            if made:  # However it ends, these are there.
                event = AuditEvent.CHECKPOINT_MADE
                audit_call(self._catalog.activity, event, stream, table=message.table, buckets=len(made))
        return pb.CheckpointResponse(checkpoints=made, table=message.table).SerializeToString()

    async def _make(self, table: ServedTable, index: int, made: list[pb.CheckpointInfo]) -> None:
        checkpoint = await (await self._checkpoints.of(table, index)).create()
        made.append(self._info(table, index, checkpoint))

    async def list(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the checkpoints of a table.

        Raises:
            TableNotFound: There is none of that name.
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.ListCheckpointsRequest, request)
        table = await self._catalog.table(message.table)
        found = [
            self._info(table, index, checkpoint)
            for index in range(table.description.buckets)
            for checkpoint in await self._checkpoints.of(table, index)
        ]
        return pb.ListCheckpointsResponse(checkpoints=found, table=message.table).SerializeToString()

    def _info(self, table: ServedTable, index: int, checkpoint: Checkpoint) -> pb.CheckpointInfo:
        key = CheckpointKey(table.table_id, index, checkpoint.checkpoint_id)
        return pb.CheckpointInfo(
            bucket=index,
            checkpoint_id=checkpoint.checkpoint_id,
            log_offset=checkpoint.log_offset,
            timestamp_us=checkpoint.timestamp_us,
            leases=self._checkpoints.references(key),
            history=checkpoint.history,
        )
