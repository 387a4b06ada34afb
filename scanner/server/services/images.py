"""The calls of `weir.v1.Admin` that make, list and drop images of buckets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from scanner.proto.weir.v1 import admin_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.wire.queries import parse_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.data.images import ImageInfo
    from scanner.server.images import ImageKeeper
    from scanner.server.tables.catalog import Catalog
    from transport import ServerStream


class ImageService:
    """Serves `MakeImages`, `ListImages` and `DropImages`.

    Args:
        catalog: Table catalog.
        images: Does it.
    """

    def __init__(self, catalog: Catalog, images: ImageKeeper) -> None:
        self._catalog = catalog
        self._images = images

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each method."""
        return {"MakeImages": self.make, "ListImages": self.list_all, "DropImages": self.drop}

    async def make(self, request: Buffer, stream: ServerStream) -> bytes:
        """Make images of one bucket or of all, one after another, and answer once they are used.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to make one of.
            ArgumentInvalid: This server keeps no images.
            DiskFull: There is too little room, or images may not take more.
            PermissionDenied: The caller may not administer the server.
            ScannerError: Storage failed; the buckets before have their images.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.MakeImagesRequest, request)
        table = await self._catalog.table(message.table)
        indices = [message.bucket] if message.HasField("bucket") else range(table.description.buckets)
        made: list[ImageInfo] = []
        try:
            for index in indices:
                made += [await self._images.make(table, index)]
        finally:
            self._audit(AuditEvent.IMAGES_MADE, stream, message.table, len(made))
        return pb.MakeImagesResponse(images=map(_to_proto, made), table=message.table).SerializeToString()

    async def list_all(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the images of a table, and of each bucket with why it has one or none.

        Raises:
            TableNotFound: There is none of that name.
            PermissionDenied: The caller may not know of it.
        """
        message = parse_request(pb.ListImagesRequest, request)
        authorize(stream, Right.DESCRIBE, message.table)
        found = await self._images.find(await self._catalog.table(message.table))
        return pb.ListImagesResponse(
            images=[_to_proto(each.image) for each in found if each.image is not None],
            reasons=[pb.ImageReason(bucket=each.bucket, why=each.why) for each in found],
            table=message.table,
        ).SerializeToString()

    async def drop(self, request: Buffer, stream: ServerStream) -> bytes:
        """Remove the images of one bucket or of all, and answer how many there were.

        Raises:
            TableNotFound, BucketNotFound: There is no such table or bucket.
            PermissionDenied: The caller may not administer the server.
        """
        authorize(stream, Right.ADMIN)
        message = parse_request(pb.DropImagesRequest, request)
        table = await self._catalog.table(message.table)
        indices = [message.bucket] if message.HasField("bucket") else range(table.description.buckets)
        dropped = 0
        try:
            for index in indices:
                dropped += await self._images.drop(table, index)
        finally:
            self._audit(AuditEvent.IMAGES_DROPPED, stream, message.table, dropped)
        return pb.DropImagesResponse(images=dropped, table=message.table).SerializeToString()

    def _audit(self, event: AuditEvent, stream: ServerStream, table: str, buckets: int) -> None:
        """Tell what was done, however the call ends; of nothing there is nothing to tell."""
        if buckets:
            audit_call(self._catalog.activity, event, stream, table=table, buckets=buckets)


def _to_proto(info: ImageInfo) -> pb.ImageInfo:
    return pb.ImageInfo(
        bucket=info.bucket,
        log_offset=info.log_offset,
        log_behind=info.log_behind,
        rows=info.rows,
        disk_bytes=info.disk_bytes,
        memory_bytes=info.memory_bytes,
    )
