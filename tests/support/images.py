"""Images of tables in memory, with blocks of a chosen size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from scanner.sources.image import ImageScan
from scanner.storage.images.format import ImageDamaged, ImageHeader
from scanner.storage.images.reader import Image
from scanner.storage.images.writer import ImageWriter

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.sources.interface import ReadRows
    from scanner.storage.memory.store import MemoryStore

ANY = 1 << 30


def write_image(
    path: Path, store: MemoryStore, *, table: str = "items", rows_max: int = 64, bytes_max: int = ANY
) -> Image:
    """An image of bucket 0 as of now.

    Args:
        path: Of the file.
        store: Has the table.
        table: Its name.
        rows_max: Rows of a block.
        bytes_max: Stored bytes of a block; one row may be larger.
    """
    bucket, codec, key_codec = store.bucket(table, 0), store.row_codec(table), store.key_codec(table)
    history = bucket.lineage.history_of(bucket.log_end)
    header = ImageHeader(store.table_id(table), 0, codec.schema_id, bucket.log_end, history, codec.schema)
    writer = ImageWriter(path, header, ANY)
    scan = bucket.open_scan()
    while len(read := scan.read(rows_max, bytes_max)):
        last_key = read.block.key_of(len(read) - 1, codec, key_codec)()
        writer.add(codec.decode_block(read.block), read.block, last_key)
    scan.close()
    writer.finish()
    return Image(path)


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
