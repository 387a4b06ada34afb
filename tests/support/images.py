"""Images of tables in memory, with blocks of a chosen size, and scans of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pyarrow as pa

from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.position import START, Position
from scanner.sources.image import ImageScan
from scanner.sources.kv import KvSource
from scanner.storage.interface import Mutation
from tests.support.histories import as_of
from tests.support.scans import SCHEMA, mutations, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.sources.block_cache import BlockCache
    from scanner.sources.image_delta import ImageDelta
    from scanner.sources.interface import Batch, ReadRows, RowScan
    from scanner.storage.images.format import ImageDamaged
    from scanner.storage.images.reader import Image
    from scanner.storage.interface import BucketScan
    from scanner.storage.memory.store import MemoryStore
    from scanner.wire.queries import ScanQuery

ANY = 1 << 30


class FetchedScan(ImageScan):
    """A scan whose blocks are always there, also on file systems that cannot say which pages are cached (tmpfs)."""

    def read(self, rows_max: int, bytes_max: int) -> ReadRows:
        """As `ImageScan.read`, with what it wants fetched."""
        while (read := super().read(rows_max, bytes_max)).unfinished and self.fetch is not None:
            self.fetch()
        return read


def unexpected_damage(error: ImageDamaged) -> Never:
    """For images that are whole."""
    raise error


def source_over(
    scan: RowScan,
    store: MemoryStore,
    query: ScanQuery,
    position: Position = START,
    rows_max: int = 50,
) -> KvSource:
    """A source as the server makes it."""
    return KvSource(
        scan,
        store.table("items"),
        store.row_codec("items"),
        query,
        position=position,
        block_rows_max=rows_max,
        block_bytes_max=ANY,
    )


def scan_of(
    image: Image,
    store: MemoryStore,
    key_range: KeyRange = ALL_KEYS,
    on_damage: Callable[[ImageDamaged], None] = unexpected_damage,
    cache: BlockCache | None = None,
) -> ImageScan:
    """A scan of an image, with the row store behind it."""
    return ImageScan(
        image,
        key_range,
        store.key_codec("items"),
        store.row_codec("items"),
        lambda rest: store.bucket("items", 0).open_snapshot().scan(rest),
        on_damage,
        cache=cache,
    )


def drive(source: KvSource, payload_bytes_max: int = ANY, batches_max: int = ANY) -> list[Batch]:
    """Step and take as a push scan does."""
    batches: list[Batch] = []
    while source.end is None and len(batches) < batches_max:
        batch = source.take(payload_bytes_max, ANY)
        if batch is None:
            source.step()
        else:
            batches.append(batch)
    return batches


def table_of(batches: list[Batch], schema: pa.Schema = SCHEMA) -> pa.Table:
    """All rows."""
    return pa.Table.from_batches([batch.rows for batch in batches], schema)


def changed(store: MemoryStore, puts: list[int], deletes: list[int]) -> None:
    """One commit."""
    keys = store.key_codec("items").encode_batch(sample(deletes))
    bucket = store.bucket("items", 0)
    bucket.commit([mutations(store, "items", repriced(puts)), [Mutation(key, None) for key in keys]])


def repriced(ids: list[int]) -> pa.RecordBatch:
    """Rows that differ from those of `sample`, in length too."""
    rows = sample(ids)
    return rows.set_column(
        1, SCHEMA.field("name"), pa.array([f"changed-{each}" for each in ids], pa.string())
    )


def scan_with_changes(
    image: Image,
    store: MemoryStore,
    delta: ImageDelta,
    log_offset: int,
    key_range: KeyRange = ALL_KEYS,
    kind: type[ImageScan] = ImageScan,
    cache: BlockCache | None = None,
    *,
    all_columns: bool = True,
) -> ImageScan:
    """A scan of an image with what was changed up to an offset, and the row store as of that offset behind it."""
    bucket = store.bucket("items", 0)
    delta.count_blocks(image.block_of)

    def from_rows(rest: KeyRange) -> BucketScan:
        return as_of(bucket, log_offset, rest)

    return kind(
        image,
        key_range,
        store.key_codec("items"),
        store.row_codec("items"),
        from_rows,
        lambda _: None,
        delta.as_of(log_offset, key_range),
        cache=cache,
        all_columns=all_columns,
    )
