"""A data directory, open: its tables, and one RocksDB per bucket.

    tables/<id>/table.json       what the directory holds, as in the catalog
    tables/<id>/<bucket>/        one RocksDB per bucket
    checkpoints/<id>/<bucket>/   of one bucket (`scanner.storage.rocksdb.checkpoints`)

What else is in the directory, and how a table comes and goes without losing anything, is in
`scanner.storage.rocksdb.data_directory`. A table whose directory is not the one that the catalog means is refused, by
itself.

This module knows no trio. One thread at a time may create and drop; any thread may look up.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from scanner.data.keys import KeyCodec
from scanner.data.rows import RowCodec, keys_of_rows
from scanner.data.table import no_table
from scanner.errors import (
    BucketNotFound,
    ScannerError,
    StoreClosed,
    TableExists,
    TableNotFound,
    TooManyFiles,
)
from scanner.storage.images.removal import IMAGE_SUFFIX, remove_images
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.catalog import (
    CatalogFile,
    TableEntry,
    load_catalog,
    save_catalog,
    save_table_entry,
)
from scanner.storage.rocksdb.checkpoints import drop_checkpoint, list_checkpoints, open_checkpoint
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.data_directory import (
    acquire_lock,
    begin,
    bucket_name,
    checkpoints_directory,
    images_directory,
    prepare,
    require_lock,
    table_directory,
)
from scanner.storage.rocksdb.database import RocksResources
from scanner.storage.rocksdb.documents import read_document, write_document
from scanner.storage.rocksdb.files import (
    DirectoryHandle,
    disk_errors,
    make_directories,
    make_private,
    sync_directory,
)
from scanner.storage.rocksdb.space import DiskSpace
from scanner.storage.rocksdb.table_directories import (
    begin_creation,
    finish_creation,
    found_in,
    mark_dropping,
    next_table_id,
    remove_dropped,
    settle,
    undo_creation,
    unmark_dropping,
)
from scanner.storage.rocksdb.transaction_files import RocksTransactionFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from scanner.data.table import TableDescription
    from scanner.storage.interface import Checkpoint
    from scanner.storage.records import DiskStatus
    from scanner.storage.rocksdb.snapshot import RocksSnapshot

_logger = logging.getLogger(__name__)
_CLOSED_AT_ONCE: Final = 8
"""Buckets that are closed at once when the store is; more are hardly faster, and each may flush a memtable."""


class RocksStore:
    """See `scanner.storage.interface.Store`. Made by `RocksStore.open`; a context manager that closes it."""

    def __init__(
        self,
        path: Path,
        place: DirectoryHandle,
        lock: int,
        catalog: CatalogFile,
        config: StorageConfig,
        space: DiskSpace,
    ) -> None:
        self._path = path
        self._place = place
        self._lock: int | None = lock
        self._catalog = catalog
        self._resources = RocksResources(config)
        self._space = space
        self._space.refresh()
        self._tables = {name: _OpenTable(entry) for name, entry in catalog.tables.items()}
        for table in self._tables.values():
            self._identify(table)

    @classmethod
    def open(cls, path: Path, config: StorageConfig | None = None) -> RocksStore:
        """Open a data directory; make it if it is missing or empty.

        Strays in it are left as they are and reported, by a warning each. So is a table whose directory
        is gone, damaged, or another table's: the others are served.

        Raises:
            StoreLocked: another server has it open; the message names the directory and its process.
            DataCorrupted: its catalog is damaged or gone.
            StoreFailed: the disk refused, or the directory is of another format or something else's.
        """
        path = Path(path).absolute()
        prepare(path)
        place = DirectoryHandle(path)
        lock: int | None = None
        config = config or StorageConfig()
        space = DiskSpace(path, config.disk_reserve_bytes)
        try:
            with space.in_need():
                lock = acquire_lock(path)
                # Only now it cannot change any more.
                catalog = begin(path)
                settle(path, catalog)
                return cls(path, place, lock, catalog, config, space)
        except BaseException:
            place.close()
            if lock is not None:
                os.close(lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""
        # As they are at this moment: another thread may drop one while this goes through them.
        return [table.entry.description for _, table in sorted(self._tables.items())]

    def table(self, name: str) -> TableDescription:
        """See `Store.table`."""
        return self._table(name).entry.description

    def key_codec(self, name: str) -> KeyCodec:
        """See `Store.key_codec`."""
        return self._table(name).key_codec

    def row_codec(self, name: str) -> RowCodec:
        """See `Store.row_codec`."""
        return self._table(name).row_codec

    def table_id(self, name: str) -> int:
        """See `Store.table_id`."""
        return self._table(name).entry.table_id

    def create_table(self, description: TableDescription) -> None:
        """See `Store.create_table`."""
        self._require_in_place()
        self._space.require_room()
        if description.name in self._tables:
            raise TableExists(
                f"table {description.name!r} exists already; use it (exist_ok=True in Python), choose another name, or"
                " drop it first"
            )
        entry = TableEntry(table_id=next_table_id(self._path, self._catalog), description=description)
        table = _OpenTable(entry)
        before, after = self._catalog, self._catalog.with_table(entry)
        marked = begin_creation(self._path, entry.table_id)
        try:
            for index in range(description.buckets):
                # Closed at once: RocksDB has the path for as long as it is open, and the path is about to change.
                at, identity = marked / bucket_name(index), entry.bucket_identity(index)
                RocksBucket(at, self._resources, table.keys_of, identity, create=True).close()
            make_private([marked])
            save_table_entry(marked, entry)
            with disk_errors(marked):
                sync_directory(marked.parent)
                sync_directory(self._path)
            self._save(after)
            finish_creation(marked)
            self._place.require_in_place()
        except BaseException:
            if self._restore_catalog(before):
                undo_creation(marked)
            raise
        self._tables[description.name] = table

    def drop_table(self, name: str) -> Callable[[], None]:
        """See `Store.drop_table`."""
        self._require_in_place()
        table = self._table(name)
        if table.damage is not None:
            with disk_errors(directory := self._directory(table.entry)):
                if directory.exists():
                    raise table.damage
        before = self._catalog
        with table.opening, self._space.in_need():
            # It is used again, should the disk refuse.
            table.suspend()
            try:
                marked = mark_dropping(self._path, table.entry.table_id)
                try:
                    self._save(before.without_table(name))
                except BaseException:
                    self._restore_catalog(before)
                    unmark_dropping(marked)
                    raise
            except BaseException:
                table.stay()
                raise
            table.close()
            del self._tables[name]

        def remove() -> None:
            remove_dropped(marked)
            remove_images(images_directory(self._path, table.entry.table_id))

        return remove

    def add_column(self, name: str, column: pa.Field) -> None:
        """See `Store.add_column`."""
        self._require_in_place()
        table = self._table(name)
        table.require_undamaged()
        entry = table.entry.with_column(column)
        self._space.require_room()
        before = self._catalog
        try:
            # The directory first: at the next start it may be ahead of the catalog, and not the other way round.
            save_table_entry(self._directory(entry), entry)
            self._save(before.with_table(entry))
        except BaseException:
            if self._restore_catalog(before):
                with suppress(ScannerError):
                    save_table_entry(self._directory(entry), table.entry)
            raise
        table.use(entry)

    def bucket(self, name: str, index: int) -> RocksBucket:
        """See `Store.bucket`."""
        table = self._table_with_bucket(name, index)
        with table.opening:
            self._require_still_there(name, table)
            if index not in table.buckets:
                self._place.require_in_place()
                path = self._directory(table.entry) / bucket_name(index)
                table.buckets[index] = RocksBucket(
                    path,
                    self._resources,
                    table.keys_of,
                    table.entry.bucket_identity(index),
                    place=self._place,
                    space=self._space,
                )
            return table.buckets[index]

    def transaction_files(self, name: str) -> RocksTransactionFiles:
        """See `Store.transaction_files`."""
        self._require_open()
        table = self._table(name)
        table.require_undamaged()
        return RocksTransactionFiles(
            self._directory(table.entry), table.entry.table_id, self._place, self._space
        )

    def create_checkpoint(self, name: str, index: int) -> Checkpoint:
        """See `Store.create_checkpoint`."""
        bucket = self.bucket(name, index)
        self._require_in_place()
        directory = self._checkpoint_directory(self._table(name), index)
        self._space.require_room()
        make_directories(directory, self._path)
        return bucket.create_checkpoint(directory)

    def checkpoints(self, name: str, index: int) -> list[Checkpoint]:
        """See `Store.checkpoints`."""
        return list_checkpoints(self._checkpoint_directory(self._table_with_bucket(name, index), index))

    def open_checkpoint(
        self, name: str, index: int, checkpoint_id: int, table_id: int | None = None
    ) -> RocksSnapshot:
        """See `Store.open_checkpoint`."""
        table = self._table_with_bucket(name, index, table_id)
        directory = self._checkpoint_directory(table, index)
        with table.opening:
            self._require_still_there(name, table)
            snapshot = open_checkpoint(
                directory, checkpoint_id, self._resources, table.keys_of, table.snapshots.discard
            )
            table.snapshots.add(snapshot)
        return snapshot

    def drop_checkpoint(self, name: str, index: int, checkpoint_id: int, table_id: int | None = None) -> None:
        """See `Store.drop_checkpoint`."""
        table = self._table_with_bucket(name, index, table_id)
        directory = self._checkpoint_directory(table, index)
        self._require_in_place()
        with table.opening:
            drop_checkpoint(directory, checkpoint_id)

    def read_document(self, name: str) -> bytes | None:
        """See `Store.read_document`."""
        self._require_open()
        return read_document(self._path, name)

    def write_document(self, name: str, content: bytes) -> None:
        """See `Store.write_document`."""
        self._require_in_place()
        with self._space.in_need():
            write_document(self._path, name, content)

    def image_path(self, table_id: int, index: int) -> Path:
        """See `Store.image_path`."""
        return images_directory(self._path, table_id) / f"{bucket_name(index)}{IMAGE_SUFFIX}"

    @property
    def write_buffers_half_full(self) -> bool:
        """See `Store.write_buffers_half_full`."""
        return self._resources.write_buffers_half_full

    def check_disk(self) -> DiskStatus | None:
        """See `Store.check_disk`."""
        self._require_open()
        return self._space.refresh()

    def close(self) -> None:
        """See `Store.close`."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            with self._space.in_need():
                tables = list(self._tables.values())
                _close_several([bucket for table in tables for bucket in list(table.buckets.values())])
                for table in tables:
                    with table.opening:  # What is opened behind it finds the store closed.
                        table.close()
        finally:
            self._place.close()
            os.close(lock)

    def _require_in_place(self) -> None:
        self._require_open()
        self._place.require_in_place()
        if (lock := self._lock) is not None:
            require_lock(self._path, lock)

    def _require_open(self) -> None:
        if self._lock is None:
            raise StoreClosed(f"store {self._path} was closed")

    def _table(self, name: str) -> _OpenTable:
        try:
            return self._tables[name]
        except KeyError:
            raise no_table(name, self._tables) from None

    def _table_with_bucket(self, name: str, index: int, table_id: int | None = None) -> _OpenTable:
        self._require_open()
        table = self._table(name)
        if table_id not in (None, table.entry.table_id):
            raise TableNotFound(f"table {name!r} was dropped, and created again")
        count = table.entry.description.buckets
        if not 0 <= index < count:
            raise BucketNotFound(f"table {name!r} has the buckets 0 to {count - 1}, not {index}")
        table.require_undamaged()
        return table

    def _require_still_there(self, name: str, table: _OpenTable) -> None:
        self._require_open()
        if self._tables.get(name) is not table:
            raise no_table(name, self._tables)

    def _checkpoint_directory(self, table: _OpenTable, index: int) -> Path:
        return checkpoints_directory(self._path, table.entry.table_id) / bucket_name(index)

    def _directory(self, entry: TableEntry) -> Path:
        return table_directory(self._path, entry.table_id)

    def _save(self, catalog: CatalogFile) -> None:
        save_catalog(self._path, catalog)
        self._catalog = catalog

    def _restore_catalog(self, before: CatalogFile) -> bool:
        """Go back to a catalog after a failure; False if the disk's may be another one."""
        self._catalog = before
        try:
            self._place.require_in_place()
            if load_catalog(self._path) != before:
                save_catalog(self._path, before)
        except ScannerError:
            return False
        return True

    def _identify(self, table: _OpenTable) -> None:
        """Compare a table's directory with the catalog's entry; refuse the table if it is not the one."""
        entry = table.entry
        name, directory = entry.description.name, self._directory(entry)
        try:
            found = found_in(directory, entry)
        except TooManyFiles:
            raise  # It says nothing of the table, which would be refused until the server ends.
        except ScannerError as error:
            table.damage = type(error)(f"table {name!r} is refused: {error.message}")
            _logger.warning("%s", table.damage.message)
            return
        if found != entry:
            # A column was being added when the server ended, or the catalog is a copy from before that.
            _logger.warning("table %r has columns that the catalog did not name; now it does", name)
            self._save(self._catalog.with_table(found))
            table.use(found)


def _close_several(buckets: list[RocksBucket]) -> None:
    """Close them, several at once: each waits for the disk, and rocksdict lets other threads run meanwhile."""
    with ThreadPoolExecutor(_CLOSED_AT_ONCE) as threads:
        closing: list[Future[None]] = []
        with suppress(RuntimeError):  # At a limit of threads: their tables close the rest, one by one.
            closing.extend(threads.submit(bucket.close) for bucket in buckets)
    for closed in closing:
        closed.result()


class _OpenTable:
    """A table of an open store: its catalog entry, its codecs, its buckets and checkpoints that are open."""

    def __init__(self, entry: TableEntry) -> None:
        self.opening = threading.Lock()
        """Held while a bucket or a checkpoint of it is opened, or ends. What a crash has cut off is undone then, which
        may take long, and other tables do not wait for it."""
        self.buckets: dict[int, RocksBucket] = {}
        self.snapshots: set[RocksSnapshot] = set()
        self.damage: ScannerError | None = None
        """Why the table is refused; None: it is not."""
        self.use(entry)

    def require_undamaged(self) -> None:
        if self.damage is not None:
            raise type(self.damage)(self.damage.message) from self.damage

    def use(self, entry: TableEntry) -> None:
        self.entry = entry
        self.key_codec = KeyCodec(entry.description)
        self.row_codec = RowCodec(
            entry.description.schema, entry.schema_id, dict(enumerate(entry.older_schemas))
        )

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes]:
        return keys_of_rows(rows, self.row_codec, self.key_codec)

    def suspend(self) -> None:
        """Close everything; its buckets cannot be used until `stay`, since their directory is about to go."""
        for bucket in self.buckets.values():
            bucket.suspend(leaving=True)
        for snapshot in list(self.snapshots):
            snapshot.close()

    def stay(self) -> None:
        """Let the buckets be used again."""
        for bucket in self.buckets.values():
            bucket.stay()

    def close(self) -> None:
        for bucket in self.buckets.values():
            bucket.close()
        self.buckets.clear()
        for snapshot in list(self.snapshots):
            snapshot.close()
