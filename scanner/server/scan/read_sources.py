"""Read sources: what the rows of a scan as of an offset S are read from.

In this order:

1. the image of the bucket with what differs at S laid over it, if the scan is of many rows and that is quicker;
2. the snapshot of S, if it is open (another scan reads it, or it lingers), or if S is now;
3. a snapshot of now, with the changes since S undone (`AsOfScan`), as far back as the changelog goes;
4. none: SNAPSHOT_LOST, with the oldest offset that can still be read.

A scan of an image holds what would be read without it, too, and reads that from where the image proves damaged.

Invariant: what is opened as of S shows S. No read source ever stands in for another state.

This module knows no stream, no token and no query of a peer.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from scanner.data.block_ranges import may_pass
from scanner.errors import OffsetOutOfRange, SnapshotLost
from scanner.server.scan.image_costs import IMAGE_BLOCKS_MIN, changed_image_is_quicker
from scanner.sources.as_of import AsOfScan
from scanner.sources.block_cache import BlockCache
from scanner.sources.image import ImageScan
from scanner.sources.kv import KvSource
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import PastChanges

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from scanner.data.keys import KeyRange
    from scanner.data.position import Position
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import ServedTable
    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.sources.image import Changes
    from scanner.sources.interface import RowScan
    from scanner.storage.images.format import ImageDamaged
    from scanner.storage.images.reader import Image
    from scanner.storage.interface import BucketScan
    from scanner.wire.queries import ScanQuery

_SHORT_ROWS_MAX: Final = 1000
"""Of a row limit: so few rows are read without reading ahead."""
BLOCK_COMPARISONS_MAX: Final = 100_000
"""Comparisons of a filter, times blocks of an image. They are made when a scan is opened, and should
take some milliseconds at most; with more, all blocks are read."""


class ReadSource(enum.StrEnum):
    """What a scan is read from."""

    NOW = "now"
    """A snapshot of now, which is S."""
    SNAPSHOT = "snapshot"
    """The snapshot of S, which was open."""
    AS_OF = "as_of"
    """A snapshot of now, with the changes since S undone."""
    IMAGE = "image"
    """A columnar image, with what differs at S laid over it."""

    @property
    def on_wire(self) -> str:
        """Its name in the protocol."""
        return f"READ_SOURCE_{self.name}"


class Wanted(NamedTuple):
    """What a source is to show."""

    table: ServedTable
    """Of the bucket."""
    bucket: ServedBucket
    query: ScanQuery
    """What to deliver, with its columns."""
    log_offset: int | None
    """The changes with a smaller offset; None: all of them."""
    position: Position
    """Where to go on."""
    as_changes: bool = False
    """Deliver the rows as changes (`KvSource`)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A source that has been opened, and the snapshot under it."""

    source: KvSource
    hold: SnapshotHold
    """To be released when the source is closed."""
    read_source: ReadSource


class ReadSources:
    """Opens sources over the snapshots of a bucket.

    Args:
        config: Of the server: sizes of blocks and overlays.
    """

    def __init__(self, config: ScannerConfig) -> None:
        self._config = config
        self.block_cache = BlockCache(config.image_cache_bytes_max)
        """Blocks of images that many scans read."""
        self._limits = OverlayLimits(
            bytes_max=config.overlay_bytes_max, spill_bytes_max=config.overlay_spill_bytes_max
        )

    def open(self, wanted: Wanted) -> Reading:
        """Open the first read source that shows what is wanted. Only between two commits.

        Raises:
            OffsetOutOfRange: `log_offset` is past the end of the log.
            SnapshotLost: The log does not reach back to `log_offset`.
            TooManyScans: There is no room for another snapshot.
            ColumnNotFound, ArgumentInvalid: The query does not fit the table.
            ScannerError: Storage failed.
        """
        _, bucket, query, log_offset, *_ = wanted
        storage = bucket.storage
        if log_offset is not None and log_offset > storage.log_end:
            raise OffsetOutOfRange(
                f"the changelog of table {query.table!r} is [{storage.log_start}, {storage.log_end}):"
                f" there is no state as of {log_offset} yet",
                oldest_offset=storage.log_start,
            ).of_bucket(query.bucket)
        held = None if log_offset is None else bucket.snapshots.acquire(log_offset)
        hold = held or bucket.snapshots.current()
        read_source = ReadSource.NOW if held is None else ReadSource.SNAPSHOT
        try:
            return self._open_over(hold, read_source, wanted)
        except SnapshotLost as error:  # Each bucket has offsets of its own.
            raise error.of_bucket(query.bucket) from error

    def open_held(self, wanted: Wanted) -> Reading | None:
        """Open the snapshot of its offset if that is open, and no other read source; also beside a commit.

        Returns:
            The source; None: that snapshot is not open.

        Raises:
            ColumnNotFound, ArgumentInvalid: The query does not fit the table.
            ScannerError: Storage failed.
        """
        assert wanted.log_offset is not None
        hold = wanted.bucket.snapshots.acquire(wanted.log_offset)
        return None if hold is None else self._open_over(hold, ReadSource.SNAPSHOT, wanted)

    def _open_over(self, hold: SnapshotHold, read_source: ReadSource, wanted: Wanted) -> Reading:
        """Open a source over a snapshot, which is released if that fails."""
        table, bucket, query, log_offset, position, as_changes = wanted
        try:
            key_range = position.remaining(query.range)
            bucket.activity.seeks += 1
            shown = hold.log_offset if log_offset is None else log_offset
            # Rows that do not pass a filter do not count.
            short = (
                query.row_limit is not None and query.row_limit <= _SHORT_ROWS_MAX and not query.predicates
            )
            read_source = read_source if hold.log_offset == shown else ReadSource.AS_OF
            open_rows = functools.partial(self._open_rows, bucket, hold, shown, short)
            instead = functools.partial(_open_instead, bucket, read_source, open_rows)
            scan: RowScan | None = self._image_scan(
                wanted, shown, key_range, instead, rebuilt=hold.log_offset != shown
            )
            if scan is not None:
                read_source = ReadSource.IMAGE
            else:
                scan = open_rows(key_range)
            schema = table.schema
            source = KvSource(
                scan,
                schema.description,
                schema.row_codec,
                query,
                position=position,
                block_rows_max=self._config.block_rows_max,
                block_bytes_max=self._config.block_bytes_max,
                as_changes=as_changes,
            )
        except BaseException:
            hold.release()
            raise
        if log_offset is not None:
            bucket.activity.scans_resumed[read_source] += 1
        bucket.activity.scans_read[read_source] += 1
        if read_source is ReadSource.IMAGE:
            bucket.image.use.read_image(trio.current_time())
            hold.when_released = functools.partial(_count_blocks, bucket, scan)
        elif query.row_limit is None:
            hold.when_released = functools.partial(_count_read, bucket, source, position.stored_bytes)
        return Reading(source, hold, read_source)

    def _open_rows(
        self, bucket: ServedBucket, hold: SnapshotHold, log_offset: int, short: bool, key_range: KeyRange
    ) -> BucketScan:
        """Open the row store as of an offset; at any time while the snapshot is held."""
        scan: BucketScan = hold.snapshot.scan(key_range, short=short)
        if hold.log_offset == log_offset:
            return scan
        return AsOfScan(scan, bucket.past_of(log_offset, self._limits), key_range)

    def _image_scan(
        self,
        wanted: Wanted,
        log_offset: int,
        key_range: KeyRange,
        open_rows: Callable[[KeyRange], BucketScan],
        *,
        rebuilt: bool,
    ) -> ImageScan | None:
        """A scan of the bucket's image, if there is one and the row store would not be as quick; else None.

        Args:
            wanted: What to show.
            log_offset: As of which offset.
            key_range: What is left of it.
            open_rows: Opens the row store as of that offset.
            rebuilt: That would undo the changes since then.

        Raises:
            SnapshotLost: The log does not reach back to `log_offset`.
        """
        table, bucket, query, *_ = wanted
        storage = bucket.storage
        image = bucket.image.as_of(storage.lineage, storage.log_end)
        if image is None or query.row_limit is not None or not _is_wide(image, key_range):
            return None
        made_at = image.header.log_offset
        changes: Changes | None = None
        if log_offset < made_at:
            if not rebuilt:
                return None
            changes = PastChanges(bucket.past_of(log_offset, self._limits), made_at, key_range)
        elif log_offset > made_at:
            delta = bucket.image.delta_of(
                image, storage, bucket.storage_openings, self._config.image_delta_bytes_max
            )
            delta.count_blocks(image.block_of)
            if not changed_image_is_quicker(
                image.rows,
                len(image),
                changes=log_offset - made_at,
                unread=log_offset - delta.end,
                touched=delta.blocks_touched(log_offset),
            ):
                return None
            changes = delta.as_of(log_offset, key_range)

        def drop(damage: ImageDamaged) -> None:
            # Unless it was replaced since.
            if bucket.image.current is image:
                bucket.image.drop(str(damage))

        blocks = _wanted_blocks(image, query, table.schema.description.schema)
        return ImageScan(
            image,
            key_range,
            table.schema.key_codec,
            table.schema.row_codec,
            open_rows,
            drop,
            changes,
            blocks,
            self.block_cache,
            all_columns=not query.columns or set(query.columns) >= set(table.schema.description.column_names),
        )


def _open_instead(
    bucket: ServedBucket,
    read_source: ReadSource,
    open_rows: Callable[[KeyRange], BucketScan],
    key_range: KeyRange,
) -> BucketScan:
    """Open the row store for a scan whose image has failed; it counts for both."""
    bucket.activity.scans_read[read_source] += 1
    return open_rows(key_range)


def _count_read(bucket: ServedBucket, source: KvSource, before_bytes: int) -> None:
    """A scan of the row store is over that had read `before_bytes` of stored rows before."""
    bucket.image.use.read_rows(source.stored_bytes - before_bytes, source.stored_bytes)


def _count_blocks(bucket: ServedBucket, scan: RowScan) -> None:
    """A scan of an image is over."""
    assert isinstance(scan, ImageScan)
    bucket.activity.image_blocks_read += scan.blocks_read
    bucket.activity.image_blocks_cached += scan.blocks_cached
    bucket.activity.image_blocks_skipped += scan.blocks_skipped


def _wanted_blocks(image: Image, query: ScanQuery, schema: pa.Schema) -> NDArray[np.bool_] | None:
    """Of each block whether a row of it may pass the filter; None: all are to be read.

    A column that the table has not is for the source to refuse, as where there is no image.
    """
    compared = [leaf.column for predicate in query.predicates for leaf in predicate.leaves()]
    if len(compared) * len(image) > BLOCK_COMPARISONS_MAX or not set(compared) <= set(schema.names):
        return None
    return may_pass(query.predicates, schema, lambda name: image.ranges(schema.field(name)))


def _is_wide(image: Image, key_range: KeyRange) -> bool:
    """Whether a key range is large enough for an image to be read."""
    if not key_range.end:
        return True
    return image.block_of(key_range.end) - image.block_of(key_range.start) >= IMAGE_BLOCKS_MIN
