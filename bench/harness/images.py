"""Images of buckets, made on the spot with blocks of a chosen size, and damaged: for campaigns over small tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from scanner.storage.images.format import ImageHeader
from scanner.storage.images.reader import Image
from scanner.storage.images.writer import ImageWriter

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from scanner.server.tables.bucket import ServedBucket
    from scanner.storage.interface import Store

_ANY: Final = 1 << 30
_TRUNCATED: Final = 0.3
"""How likely a damaged image has lost its end instead of a bit."""


def write_image(
    path: Path,
    store: Store,
    *,
    table: str = "items",
    index: int = 0,
    rows_max: int = 64,
    bytes_max: int = _ANY,
) -> Image:
    """An image of a bucket as of now.

    Args:
        path: Of the file; its directory is made.
        store: Has the table.
        table: Its name.
        index: Of the bucket.
        rows_max: Rows of a block.
        bytes_max: Stored bytes of a block; one row may be larger.
    """
    bucket, codec, key_codec = store.bucket(table, index), store.row_codec(table), store.key_codec(table)
    history = bucket.lineage.history_of(bucket.log_end)
    header = ImageHeader(store.table_id(table), index, codec.schema_id, bucket.log_end, history, codec.schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, snapshot = ImageWriter(path, header, _ANY), bucket.open_snapshot()
    try:
        scan = snapshot.scan()
        while len(read := scan.read(rows_max, bytes_max)):
            last_key = read.block.key_of(len(read) - 1, codec, key_codec)()
            writer.add(codec.decode_block(read.block), read.block, last_key)
        writer.finish()
    finally:
        snapshot.close()
        writer.abort()
    return Image(path)


def give_image(served: ServedBucket, store: Store, table: str, index: int, rows_max: int) -> None:
    """Have a running server's bucket read an image as of now; between two commits, of a store that keeps images."""
    path = store.image_path(store.table_id(table), index)
    assert path is not None
    served.image.replace(write_image(path, store, table=table, index=index, rows_max=rows_max))


def damage_image(path: Path, rng: random.Random) -> None:
    """Change a bit of an image's file, or cut it off, whoever reads it."""
    size = path.stat().st_size
    if rng.random() < _TRUNCATED:
        os.truncate(path, rng.randrange(size))
        return
    at = rng.randrange(size)
    with path.open("r+b") as file:
        file.seek(at)
        (octet,) = file.read(1)
        file.seek(at)
        file.write(bytes((octet ^ 1 << rng.randrange(8),)))
