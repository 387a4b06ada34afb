"""Makes an image of a checkpoint in a process of its own, which is what a server could do instead of a thread.

    python -m bench.harness.image_process DATA TABLE IMAGE

DATA is the data directory of a server that runs, TABLE has one bucket with a checkpoint, IMAGE is the file to write. It
takes a fifth of a core at most and the lowest priority. Only `bench image-building` uses it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from scanner.data.keys import KeyCodec
from scanner.data.rows import RowCodec, keys_of_rows
from scanner.sources.image_builder import ImageBuilder
from scanner.storage.images.format import ImageHeader, block_payload_bytes
from scanner.storage.images.writer import ImageWriter
from scanner.storage.rocksdb.catalog import load_catalog
from scanner.storage.rocksdb.checkpoints import list_checkpoints, open_checkpoint
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.data_directory import bucket_name, checkpoints_directory
from scanner.storage.rocksdb.database import RocksResources

CORE_SHARE = 0.2


def build(data: Path, table: str, path: Path) -> None:
    """Write an image of the newest checkpoint of a table's only bucket."""
    catalog = load_catalog(data)
    assert catalog is not None
    entry = catalog.tables[table]
    schema, key_codec = entry.description.schema, KeyCodec(entry.description)
    codec = RowCodec(schema, entry.schema_id, dict(enumerate(entry.older_schemas)))
    directory = checkpoints_directory(data, entry.table_id) / bucket_name(0)
    checkpoint = list_checkpoints(directory)[-1]
    resources = RocksResources(StorageConfig(block_cache_bytes=8 << 20))
    snapshot = open_checkpoint(
        directory,
        checkpoint.checkpoint_id,
        resources,
        lambda rows: keys_of_rows(rows, codec, key_codec),
        lambda _: None,
    )
    header = ImageHeader(
        entry.table_id, 0, entry.schema_id, checkpoint.log_offset, checkpoint.history, schema
    )
    writer = ImageWriter(path, header, 1 << 40)
    builder = ImageBuilder(snapshot.scan(), writer, codec, key_codec, block_payload_bytes(1))
    more = True
    while more:
        begun_at = time.process_time()
        more = builder.read()
        builder.write()
        time.sleep((time.process_time() - begun_at) * (1 / CORE_SHARE - 1))
    writer.finish()
    snapshot.close()


if __name__ == "__main__":
    os.nice(19)
    build(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
