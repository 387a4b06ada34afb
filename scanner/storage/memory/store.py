"""A store in memory: a verified fake. It passes the same contract suite as the one on RocksDB.

For tests that must not touch a disk or a thread, such as those on a virtual clock. Written for
obviousness, and on purpose without any code of the real one: where they agree, both are right.

What would be on a disk is in a `MemoryDisk`, which outlives the store as files outlive a server: a store
made later over the same one finds what the first one left.

Nothing in it blocks, so a commit needs no worker thread.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scanner.data.keys import KeyCodec
from scanner.data.rows import RowCodec, keys_of_rows
from scanner.data.table import no_table
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    SnapshotLost,
    StoreClosed,
    TableExists,
    TableNotFound,
)
from scanner.storage.images.removal import IMAGE_SUFFIX, remove_images
from scanner.storage.interface import Checkpoint
from scanner.storage.memory.bucket import (
    BucketContents,
    MemoryBucket,
    MemoryReader,
    MemorySnapshot,
)
from scanner.storage.memory.transaction_files import MemoryTransactionFiles, TransactionContents
from scanner.storage.records import DiskStatus

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from scanner.data.table import TableDescription


@dataclass(frozen=True, slots=True)
class TableContents:
    """What a table keeps."""

    table_id: int
    description: TableDescription
    buckets: list[BucketContents]
    older_schemas: tuple[pa.Schema, ...] = ()
    transactions: TransactionContents = field(default_factory=TransactionContents)


@dataclass(slots=True)
class MemoryDisk:
    """What a store keeps: it survives the store. One open store at a time."""

    tables: dict[str, TableContents] = field(default_factory=dict)
    next_table_id: int = 0
    documents: dict[str, bytes] = field(default_factory=dict)


class MemoryStore:
    """See `scanner.storage.interface.Store`.

    Args:
        clock: Microseconds since 1970 UTC, for commit timestamps.
        disk: What an earlier store left, and where this one keeps everything; None for an empty one.
        images: Directory of its images, which are files all the same; None: there are none.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        disk: MemoryDisk | None = None,
        images: Path | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self._images = images
        self._clock = clock
        self._tables = {name: _MemoryTable(table, clock) for name, table in self.disk.tables.items()}
        self._closed = False

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""
        return [self._tables[name].contents.description for name in sorted(self._tables)]

    def table(self, name: str) -> TableDescription:
        """See `Store.table`."""
        return self._table(name).contents.description

    def key_codec(self, name: str) -> KeyCodec:
        """See `Store.key_codec`."""
        return self._table(name).key_codec

    def row_codec(self, name: str) -> RowCodec:
        """See `Store.row_codec`."""
        return self._table(name).row_codec

    def create_table(self, description: TableDescription) -> None:
        """See `Store.create_table`."""
        self._require_open()
        if description.name in self._tables:
            raise TableExists(
                f"table {description.name!r} exists already; use it (exist_ok=True in Python), choose another name, or"
                " drop it first"
            )
        contents = TableContents(
            self.disk.next_table_id, description, [BucketContents() for _ in range(description.buckets)]
        )
        self.disk.next_table_id += 1
        self.disk.tables[description.name] = contents
        self._tables[description.name] = _MemoryTable(contents, self._clock)

    def table_id(self, name: str) -> int:
        """See `Store.table_id`."""
        return self._table(name).contents.table_id

    def add_column(self, name: str, column: pa.Field) -> None:
        """See `Store.add_column`."""
        self._require_open()
        table = self._table(name)
        before = table.contents
        after = replace(
            before,
            description=before.description.with_column(column),
            older_schemas=(*before.older_schemas, before.description.schema),
        )
        self.disk.tables[name] = after
        table.use(after)

    def drop_table(self, name: str) -> Callable[[], None]:
        """See `Store.drop_table`."""
        self._require_open()
        table = self._table(name)
        del self._tables[name], self.disk.tables[name]
        table.close()
        table.contents.transactions.stages.clear()
        path = self.image_path(table.contents.table_id, 0)

        def remove() -> None:
            if path is not None:
                remove_images(path.parent)

        return remove

    def bucket(self, name: str, index: int) -> MemoryBucket:
        """See `Store.bucket`."""
        self._require_open()
        buckets = self._table(name).buckets
        if not 0 <= index < len(buckets):
            raise BucketNotFound(f"table {name!r} has the buckets 0 to {len(buckets) - 1}, not {index}")
        return buckets[index]

    def transaction_files(self, name: str) -> MemoryTransactionFiles:
        """See `Store.transaction_files`."""
        self._require_open()
        contents = self._table(name).contents
        return MemoryTransactionFiles(contents.table_id, contents.transactions)

    def create_checkpoint(self, name: str, index: int) -> Checkpoint:
        """See `Store.create_checkpoint`."""
        bucket = self.bucket(name, index)
        bucket.require_finished()
        contents = bucket.contents
        log_offset = contents.log_end
        history = contents.lineage.history_of(log_offset)
        checkpoint = Checkpoint(contents.next_checkpoint_id, log_offset, self._clock(), history)
        contents.next_checkpoint_id += 1
        contents.checkpoints[checkpoint.checkpoint_id] = (checkpoint, dict(contents.rows))
        return checkpoint

    def checkpoints(self, name: str, index: int) -> list[Checkpoint]:
        """See `Store.checkpoints`."""
        return [checkpoint for checkpoint, _ in self.bucket(name, index).contents.checkpoints.values()]

    def open_checkpoint(
        self, name: str, index: int, checkpoint_id: int, table_id: int | None = None
    ) -> MemorySnapshot:
        """See `Store.open_checkpoint`."""
        bucket = self._bucket_of(name, index, table_id)
        if checkpoint_id not in bucket.contents.checkpoints:
            raise SnapshotLost(f"bucket {index} of table {name!r} has no checkpoint {checkpoint_id}")
        checkpoint, rows = bucket.contents.checkpoints[checkpoint_id]
        return self._table(name).opened(rows, checkpoint.log_offset)

    def drop_checkpoint(self, name: str, index: int, checkpoint_id: int, table_id: int | None = None) -> None:
        """See `Store.drop_checkpoint`."""
        self._bucket_of(name, index, table_id).contents.checkpoints.pop(checkpoint_id, None)

    def read_document(self, name: str) -> bytes | None:
        """See `Store.read_document`."""
        return self.disk.documents.get(self._document(name))

    def write_document(self, name: str, content: bytes) -> None:
        """See `Store.write_document`."""
        self.disk.documents[self._document(name)] = bytes(content)

    def image_path(self, table_id: int, index: int) -> Path | None:
        """See `Store.image_path`."""
        if self._images is None:
            return None
        return self._images / f"images/{table_id:06d}/{index:04d}{IMAGE_SUFFIX}"

    @property
    def write_buffers_half_full(self) -> bool:
        """See `Store.write_buffers_half_full`; there are no files."""
        return False

    def check_disk(self) -> DiskStatus | None:
        """See `Store.check_disk`; there is one of the images alone."""
        self._require_open()
        return None if self._images is None else DiskStatus(shutil.disk_usage(self._images).free, False)

    def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        for table in self._tables.values():
            table.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store in memory was closed")

    def _bucket_of(self, name: str, index: int, table_id: int | None) -> MemoryBucket:
        bucket = self.bucket(name, index)
        if table_id not in (None, self.table_id(name)):
            raise TableNotFound(f"table {name!r} was dropped, and created again")
        return bucket

    def _document(self, name: str) -> str:
        self._require_open()
        if not re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", name):
            raise ArgumentInvalid(f"{name!r} is no name of a document")
        return name

    def _table(self, name: str) -> _MemoryTable:
        if name not in self._tables:
            raise no_table(name, self._tables)
        return self._tables[name]


class _MemoryTable:
    """A table of an open store."""

    def __init__(self, contents: TableContents, clock: Callable[[], int]) -> None:
        self.use(contents)
        self.buckets = [MemoryBucket(self.keys_of, clock, bucket) for bucket in contents.buckets]
        self._checkpoints: set[MemorySnapshot | MemoryReader] = set()

    def use(self, contents: TableContents) -> None:
        self.contents = contents
        self.key_codec = KeyCodec(contents.description)
        older = contents.older_schemas
        self.row_codec = RowCodec(contents.description.schema, len(older), dict(enumerate(older)))

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes]:
        return keys_of_rows(rows, self.row_codec, self.key_codec)

    def opened(self, rows: dict[bytes, bytes], log_offset: int) -> MemorySnapshot:
        snapshot = MemorySnapshot(rows, log_offset, self.keys_of, self._checkpoints)
        self._checkpoints.add(snapshot)
        return snapshot

    def close(self) -> None:
        for bucket in self.buckets:
            bucket.close()
        for snapshot in list(self._checkpoints):
            snapshot.close()
