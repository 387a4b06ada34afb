"""Makes and drops images of buckets, on demand.

An image is made of a snapshot, a piece at a time beside everything else: reading takes a few milliseconds of the event
loop, encoding and writing a thread, and both together a share of one core. Scans use the old image until the new one
is durable.

This module knows no wire.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from scanner.errors import ArgumentInvalid, DiskFull
from scanner.sources.image_builder import ImageBuilder
from scanner.storage.images.format import ImageHeader
from scanner.storage.images.reader import Image
from scanner.storage.images.writer import ImageWriter
from scanner.storage.rocksdb.files import make_directories

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Store
    from scanner.tasks import RunBlocking


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image that a bucket has."""

    bucket: int
    log_offset: int
    """It shows the changes with a smaller offset."""
    log_behind: int
    """Changes of the bucket since then."""
    rows: int
    disk_bytes: int
    memory_bytes: int
    """What it and its delta take while no scan reads it, about."""


class ImageKeeper:
    """The images of one server.

    Args:
        catalog: Whose buckets have them.
        store: Tells where they are, and how full the disk is.
        config: Bounds of their size, and of the time to make one.
        run_blocking: Runs what blocks on the disk.
    """

    def __init__(
        self, catalog: Catalog, store: Store, config: ScannerConfig, run_blocking: RunBlocking
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._config = config
        self._run_blocking = run_blocking
        self._making = trio.Lock()
        """One is made at a time."""

    async def make(self, table: ServedTable, index: int) -> ImageInfo:
        """Make an image of a bucket as of now, in place of the one that it has.

        Raises:
            ArgumentInvalid: This store keeps no images.
            BucketNotFound, TableNotFound: There is no such bucket, or not any more.
            DiskFull: There is too little room, or images may not take more.
            ScannerError: Storage failed; the bucket keeps the image that it has.

        Waits:
            For another image that is made, and for storage; minutes where there are millions of rows.

        Cancellation:
            What was written is removed.
        """
        bucket = await self._catalog.bucket(table, index)
        path = bucket.image.path
        if path is None:
            raise ArgumentInvalid("this server keeps its tables in memory alone, and no images of them")
        async with self._making:
            async with bucket.between_commits():
                hold = bucket.snapshots.current()
                storage, codec = bucket.storage, table.schema.row_codec
                header = ImageHeader(
                    table.table_id,
                    index,
                    codec.schema_id,
                    storage.log_end,
                    storage.lineage.history_of(storage.log_end),
                    codec.schema,
                )
            try:
                image = await self._write(path, header, table, hold)
            finally:
                hold.release(linger=False)
            if self._catalog.has(table.description.name, table.table_id):
                bucket.image.replace(image)
            else:
                image.retire()
                path.unlink(missing_ok=True)
        return _info(index, bucket, image)

    async def drop(self, table: ServedTable, index: int) -> bool:
        """Remove the image of a bucket; scans of it go on.

        Returns:
            Whether there was one.

        Raises:
            BucketNotFound, TableNotFound: There is no such bucket.

        Waits:
            For an image that is made.
        """
        bucket = await self._catalog.bucket(table, index)
        async with self._making:
            return bucket.image.drop()

    async def find(self, table: ServedTable) -> list[ImageInfo]:
        """The images of a table, by bucket.

        Raises:
            TableNotFound: It was dropped.

        Waits:
            For storage, where buckets were not used yet.
        """
        buckets = [await self._catalog.bucket(table, index) for index in range(table.description.buckets)]
        return [
            _info(index, bucket, bucket.image.current)
            for index, bucket in enumerate(buckets)
            if bucket.image.current is not None
        ]

    async def _write(self, path: Path, header: ImageHeader, table: ServedTable, hold: SnapshotHold) -> Image:
        bytes_max = await self._room(path)
        writer = await self._run_blocking(functools.partial(_begin, path, header, bytes_max))
        scan = hold.snapshot.scan()
        try:
            builder = ImageBuilder(scan, writer, table.schema.row_codec, table.schema.key_codec)
            more = True
            while more:
                begun_at = trio.current_time()
                more = builder.read()
                await self._run_blocking(builder.write)
                # The rest of the time is for others.
                spent_s = trio.current_time() - begun_at
                await trio.sleep(spent_s * (1 / self._config.image_core_share - 1))
            await self._run_blocking(writer.finish)
        finally:
            scan.close()
            writer.abort()
        return await self._run_blocking(functools.partial(Image, path))

    async def _room(self, path: Path) -> int:
        """How long an image may get, in bytes.

        Raises:
            DiskFull: There is too little room.
        """
        disk = await self._run_blocking(self._store.check_disk)
        if disk is not None and disk.read_only:
            raise DiskFull("the disk is too full for an image; make room, and try again")
        others = sum(each.disk_bytes for each in self._catalog.images if each.path != path)
        allowed = self._config.image_disk_bytes_max - others
        return allowed if disk is None else min(allowed, disk.free_bytes // 2)


def _begin(path: Path, header: ImageHeader, bytes_max: int) -> ImageWriter:
    make_directories(path.parent, path.parents[2])
    return ImageWriter(path, header, bytes_max)


def _info(index: int, bucket: ServedBucket, image: Image) -> ImageInfo:
    log_offset = image.header.log_offset
    return ImageInfo(
        bucket=index,
        log_offset=log_offset,
        log_behind=bucket.storage.log_end - log_offset,
        rows=image.rows,
        disk_bytes=image.size_bytes,
        memory_bytes=bucket.image.memory_bytes,
    )
