"""Makes and drops images of buckets, on demand and by itself.

An image is made of a snapshot, a piece at a time beside everything else: reading takes a few milliseconds of the event
loop, encoding and writing a thread, and both together a share of one core, less while something is written. Scans use
the old image until the new one is durable. When one is made by itself says `scanner.server.image_policy`.

Images give way: to others that are asked for when all may not take more disk, and to rows when the disk is full.
The least useful goes first: one of a bucket that nobody has used, then the one that no scan has read for longest.

This module knows no wire.
"""

from __future__ import annotations

import functools
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from scanner.data.images import ImageInfo, ImageState
from scanner.data.key_ranges import SplitWish
from scanner.data.keys import ALL_KEYS
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    DiskFull,
    ScannerError,
    StoreClosed,
    StoreFailed,
    TableNotFound,
)
from scanner.server.failures import Failures
from scanner.server.image_policy import Shown, Verdict, is_stale, judge
from scanner.sources.image_builder import ImageBuilder
from scanner.storage.images.format import BLOCK_BYTES_MAX, ImageDamaged, ImageHeader, block_payload_bytes
from scanner.storage.images.reader import Image
from scanner.storage.images.removal import UNFINISHED, find_images, remove_strays
from scanner.storage.images.writer import ImageWriter
from scanner.storage.rocksdb.files import disk_errors, make_directories

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.data.table import TableDescription
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable, TableSchema
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Store
    from scanner.storage.records import DiskStatus
    from scanner.tasks import RunBlocking

UNUSED_S: Final = 3600.0
"""An image that no scan has read for so long makes room for another one."""
_FILES_BY_ROWS: Final = 4
"""Files may take so many times what their rows do, about: with what was replaced and is not cleaned up yet."""
_ROOM_BYTES: Final = 2 * BLOCK_BYTES_MAX
"""With less room than this beside the rows that are written next, another image goes: rows may take more as Arrow."""
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Making:
    """The image that is being made."""

    path: Path
    rows: int = 0
    """Written so far."""
    given_up: bool = False
    """Whether its disk is needed for rows."""


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
        path = store.image_path(0, 0)
        self._root = None if path is None else path.parents[1]
        self._failures = Failures(_logger)
        self._lock = trio.Lock()
        """Held while one is made or dropped: one at a time."""
        self._making: _Making | None = None
        self._started_at = trio.current_time()
        """What was read before is not known, and may have been read until then."""
        self._files: dict[Path, int] = {}
        """Length of each file, at the last look."""

    @property
    def disk_bytes(self) -> int:
        """What all images take on the disk, also of buckets that are not in use, at the last look."""
        return sum(self._files.values())

    async def look(self) -> None:
        """Look at what is on the disk, and remove what a crash has left; not where another directory has the path.

        Waits:
            For the disk.
        """
        if self._root is None or await self._run_blocking(self._store.check_disk) is None:
            return
        if not self._lock.locked():
            async with self._lock:
                tables = await self._catalog.descriptions()
                table_ids = {found for found in map(self._table_id, tables) if found is not None}
                removed = await self._run_blocking(functools.partial(remove_strays, self._root, table_ids))
            for path in removed:
                _logger.info("removed %s, which nothing needs", path)
        await self._measure()

    async def sweep(self) -> None:
        """Make the images that are due, those first that scans have asked for most. A failure is logged.

        Waits:
            For the making, which may take hours.

        Cancellation:
            What was written of one is removed.
        """
        await self.look()
        buckets = sorted(
            self._catalog.open_buckets(), key=lambda each: each[2].image.use.read_bytes, reverse=True
        )
        for name, index, bucket in buckets:
            if bucket.image.path is None or not bucket.is_open or not self._verdict(bucket).due:
                continue
            use = bucket.image.use
            failing = f"no image of {name}[{index}]"
            try:
                if await self._is_wanted(bucket):
                    made = await self.make(await self._catalog.table(name), index)
                    self._judge_made(bucket)
                    _logger.info(
                        "made an image of %s[%d] as of %d: %d rows, %d bytes",
                        name,
                        index,
                        made.log_offset,
                        made.rows,
                        made.disk_bytes,
                    )
                    self._failures.clear(failing, f"an image of {name}[{index}] was made again")
            except (TableNotFound, BucketNotFound):
                continue  # It was dropped meanwhile, and perhaps created anew with fewer buckets.
            except ScannerError as error:
                use.rest(trio.current_time(), error.message)
                self._failures.add(failing, error)
            except Exception:
                use.rest(
                    trio.current_time(), "it failed in an unforeseen way; the server's log has the details"
                )
                raise

    async def give_way(self) -> None:
        """Remove the image that is least useful: rows need its disk. Also the one that is being made, if there is one.

        Waits:
            For the disk.
        """
        if self._making is not None:
            self._making.given_up = True
        await self._measure()
        for path in self._least_useful(math.inf)[:1]:
            await self._give_up(path, "the disk is full")

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
            What was written is removed; an image that is complete is used.
        """
        bucket = await self._catalog.bucket(table, index)
        path = bucket.image.path
        if path is None:
            raise ArgumentInvalid("this server keeps its tables in memory alone, and no images of them")
        async with self._lock:
            self._making = _Making(path)
            try:
                image = await self._make(table, index, bucket, self._making)
            except ScannerError as error:
                self._require_table(table, error)
                raise
            finally:
                self._making = None
            bucket.image.replace(image)
            bucket.image.use.used_at = trio.current_time()
            if not self._catalog.has(table.description.name, table.table_id):
                bucket.image.drop()
            self._require_table(table)
            await self._measure()
            return _info(index, bucket, image)

    async def drop(self, table: ServedTable, index: int) -> bool:
        """Remove the image of a bucket; scans of it go on.

        Returns:
            Whether there was one.

        Raises:
            BucketNotFound, TableNotFound: There is no such bucket.
            StoreFailed: There may be another directory by now, whose image is none of ours.

        Waits:
            For an image that is made.
        """
        bucket = await self._catalog.bucket(table, index)
        async with self._lock:
            if self._root is not None:
                await self._check_disk()
            dropped = bucket.image.drop()
            await self._measure()
        return dropped

    async def find(self, table: ServedTable) -> list[ImageState]:
        """What there is of each bucket of a table, and why.

        Raises:
            TableNotFound: It was dropped.

        Waits:
            For storage, where buckets were not used yet.
        """
        buckets = [await self._catalog.bucket(table, index) for index in range(table.description.buckets)]
        return [self._state(index, bucket) for index, bucket in enumerate(buckets)]

    def _state(self, index: int, bucket: ServedBucket) -> ImageState:
        image, making = bucket.image.current, self._making
        if bucket.image.path is None:
            why = "this server keeps its tables in memory alone"
        elif making is not None and making.path == bucket.image.path:
            why = f"being made; {making.rows} rows are written"
        else:
            why = self._verdict(bucket).why
        info = None if image is None else _info(index, bucket, image)
        return ImageState(bucket=index, image=info, why=why)

    def _verdict(self, bucket: ServedBucket) -> Verdict:
        return judge(self._config, bucket.image.use, _shown(bucket), trio.current_time())

    async def _is_wanted(self, bucket: ServedBucket) -> bool:
        """Whether scans have not only read a small part of a large bucket, again and again."""
        if bucket.image.current is not None:
            return True
        files = await bucket.split(SplitWish(splits=1), ALL_KEYS)
        use = bucket.image.use
        if use.read_bytes * _FILES_BY_ROWS >= files.stored_bytes:
            return True
        use.rest(trio.current_time(), "scans have read a small part of the bucket")
        return False

    def _judge_made(self, bucket: ServedBucket) -> None:
        """See whether an image that was just made is of use."""
        shown, use = _shown(bucket), bucket.image.use
        if shown is not None and is_stale(self._config, shown):
            use.rest(trio.current_time(), "so much is written that an image is old when it is made")
        else:
            use.was_useful()

    async def _make(self, table: ServedTable, index: int, bucket: ServedBucket, making: _Making) -> Image:
        disk_bytes = await self._disk_room()
        async with bucket.between_commits():
            # Columns may be added at any time: one schema for all that follows.
            schema, storage = table.schema, bucket.storage
            header = ImageHeader(
                table.table_id,
                index,
                schema.row_codec.schema_id,
                storage.log_end,
                storage.lineage.history_of(storage.log_end),
                schema.row_codec.schema,
            )
            hold = bucket.snapshots.current()
        try:
            begin = functools.partial(
                _begin, making.path, header, min(disk_bytes, self._allowed(making.path))
            )
            writer = await self._run_blocking(begin)
            try:
                await self._write(writer, schema, hold, making, disk_bytes)
                await self._run_blocking(functools.partial(writer.finish, bucket.image.naming))
            except StoreClosed as error:
                bucket.check_served()  # Where the table was dropped, that is the error.
                raise StoreClosed(
                    f"bucket {index} was opened anew after a failed write while its image was made; make it again"
                ) from error
            finally:
                writer.abort()
        finally:
            hold.release(linger=False)
        try:
            # Shielded: the file has its name, and unopened it would stay there, unused, and not be found to be dropped.
            with trio.CancelScope(shield=True), disk_errors(making.path):
                image = await self._run_blocking(functools.partial(Image, making.path))
        except ImageDamaged as error:
            raise StoreFailed(f"the image {making.path} was written, and cannot be read: {error}") from error
        return image

    async def _write(
        self,
        writer: ImageWriter,
        schema: TableSchema,
        hold: SnapshotHold,
        making: _Making,
        disk_bytes: int,
    ) -> None:
        scan = hold.snapshot.scan()
        try:
            block_bytes = block_payload_bytes(schema.description.buckets)
            builder = ImageBuilder(scan, writer, schema.row_codec, schema.key_codec, block_bytes)
            more = True
            while more:
                begun_at, written = trio.current_time(), self._catalog.activity.commit_writes
                more = builder.read()
                wanted_bytes = writer.size_bytes + builder.waiting_bytes + _ROOM_BYTES
                if writer.bytes_max < wanted_bytes:
                    await self._make_room(making.path, wanted_bytes)
                    writer.bytes_max = min(disk_bytes, self._allowed(making.path))
                await self._run_blocking(builder.write)
                making.rows = builder.rows_written
                if making.given_up:
                    raise DiskFull("the disk is too full for an image; make room, and try again")
                # The rest of the time is for others.
                spent_s = trio.current_time() - begun_at
                share = self._config.image_core_share
                if self._catalog.activity.commit_writes != written:
                    share /= 2
                await trio.sleep(spent_s * (1 / share - 1))
        finally:
            scan.close()

    async def _disk_room(self) -> int:
        """How long the disk lets an image get, in bytes.

        Raises:
            DiskFull: There is too little room.
            StoreFailed: There may be another directory by now.
        """
        await self._measure()
        disk = await self._check_disk()
        if disk.read_only:
            raise DiskFull("the disk is too full for an image; make room, and try again")
        return disk.free_bytes // 2

    async def _check_disk(self) -> DiskStatus:
        """See that the directory is still ours; and how full its disk is.

        Raises:
            StoreFailed: There may be another directory by now.
        """
        disk = await self._run_blocking(self._store.check_disk)
        if disk is None:
            raise StoreFailed("the directory of the data is not where it was, or its disk does not answer")
        return disk

    async def _make_room(self, path: Path, wanted_bytes: int) -> None:
        """Remove images that no scan reads any more, as far as it takes, for another one that gets longer."""
        for each in self._least_useful(trio.current_time() - UNUSED_S):
            if self._allowed(path) >= wanted_bytes:
                break
            if each != path:
                await self._give_up(each, "another one needs its room")

    def _allowed(self, path: Path) -> int:
        own = (path, path.with_name(path.name + UNFINISHED))
        others = sum(size for each, size in self._files.items() if each not in own)
        return self._config.image_disk_bytes_max - others

    def _least_useful(self, unused_since: float) -> list[Path]:
        """The images that no scan has read since, the least useful first; none that is being made."""
        used = {bucket.image.path: bucket.image.use.used_at for _, _, bucket in self._catalog.open_buckets()}
        used_at = {
            path: max(self._started_at, used.get(path, -math.inf))
            for path in self._files
            if not path.name.endswith(UNFINISHED)
        }
        unused = (path for path, at in used_at.items() if at <= unused_since)
        return sorted(unused, key=lambda path: (path in used, used_at[path]))

    async def _give_up(self, path: Path, why: str) -> None:
        """Remove an image, as far as the disk lets us; its bucket gets no other one for a while."""
        images = {bucket.image.path: bucket.image for _, _, bucket in self._catalog.open_buckets()}
        image = images.get(path)
        if image is not None:
            image.drop()
            image.use.rest(trio.current_time(), why)
        else:
            with suppress(OSError):
                await self._run_blocking(functools.partial(path.unlink, missing_ok=True))
        _logger.warning("the image %s is removed: %s", path, why)
        self._files.pop(path, None)

    async def _measure(self) -> None:
        if self._root is not None:
            self._files = await self._run_blocking(functools.partial(find_images, self._root))

    def _require_table(self, table: ServedTable, error: ScannerError | None = None) -> None:
        """See that a table was not dropped while something failed."""
        name = table.description.name
        if not self._catalog.has(name, table.table_id):
            raise TableNotFound(f"table {name!r} was dropped") from error

    def _table_id(self, table: TableDescription) -> int | None:
        try:
            return self._store.table_id(table.name)
        except TableNotFound:
            return None


def _begin(path: Path, header: ImageHeader, bytes_max: int) -> ImageWriter:
    make_directories(path.parent, path.parents[2])
    return ImageWriter(path, header, bytes_max)


def _shown(bucket: ServedBucket) -> Shown | None:
    image, storage = bucket.image.current, bucket.storage
    if image is None:
        return None
    behind = storage.log_end - image.header.log_offset
    lost = image.header.log_offset < storage.log_start
    delta = bucket.image.delta
    return Shown(image.rows, behind, lost, 0 if delta is None else delta.memory_bytes)


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
