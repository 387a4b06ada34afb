"""A data directory: the lock, the catalog, and one RocksDB per bucket.

    LOCK                     held with flock while a server has the directory open; the kernel lets go of it
                             however the server ends. Holds the server's process id
    catalog.json             the tables (`scanner.storage.catalog`)
    tables/<id>/<bucket>/    one RocksDB per bucket
    checkpoints/<id>/        of one table (`scanner.storage.checkpoints`)
    documents/               small files of the server itself (`scanner.storage.documents`)

A table is created by making its buckets first and naming it in the catalog last, and dropped the other way
round. So a crash leaves directories that no table names at worst; they are removed at the next open.

This module knows no trio. One thread at a time may create and drop; any thread may look up.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from scanner.errors import (
    BucketNotFound,
    DataCorrupted,
    SchemaMismatch,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TableExists,
    TableNotFound,
)
from scanner.keys import KeyCodec
from scanner.rows import RowCodec, keys_of_rows
from scanner.storage.bucket import RocksBucket
from scanner.storage.catalog import CATALOG_NAME, Catalog, TableEntry, load_catalog, save_catalog
from scanner.storage.checkpoints import (
    drop_checkpoint,
    list_checkpoints,
    open_checkpoint,
    remove_leftovers,
)
from scanner.storage.config import StorageConfig
from scanner.storage.documents import read_document, write_document
from scanner.storage.files import disk_errors, make_directories, sync_directory
from scanner.storage.rocks import RocksResources

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from scanner.storage.interface import Checkpoint
    from scanner.storage.snapshot import RocksSnapshot
    from scanner.table import TableDescription

_LOCK_NAME = "LOCK"
_TABLES_NAME = "tables"
_CHECKPOINTS_NAME = "checkpoints"


class RocksStore:
    """See `scanner.storage.interface.Store`. Made by `RocksStore.open`; a context manager that closes it."""

    def __init__(self, path: Path, lock: int, catalog: Catalog, config: StorageConfig) -> None:
        self._path = path
        self._lock: int | None = lock
        self._catalog = catalog
        self._resources = RocksResources(config)
        self._tables = {name: _OpenTable(entry) for name, entry in catalog.tables.items()}
        self._opening = threading.Lock()
        """Held while a bucket or a checkpoint is opened, or ends."""

    @classmethod
    def open(cls, path: Path, config: StorageConfig | None = None) -> RocksStore:
        """Open a data directory; make it if it is missing or empty.

        Raises:
            StoreLocked: another server has it open; the message names the directory and its process.
            DataCorrupted: its catalog is damaged or gone.
            StoreFailed: the disk refused, or the directory is something else's.
        """
        path = Path(path).absolute()
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            catalog = load_catalog(path)
            if catalog is None:
                _require_fresh(path)
            lock = _acquire_lock(path)
        try:
            # Read again: only now can nobody else change it.
            catalog = load_catalog(path)
            if catalog is None:
                catalog = Catalog()
                save_catalog(path, catalog)
            _remove_leftovers(path, catalog)
            return cls(path, lock, catalog, config or StorageConfig())
        except BaseException:
            os.close(lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""
        return [self._tables[name].entry.description for name in sorted(self._tables)]

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
        self._require_open()
        if description.name in self._tables:
            raise TableExists(
                f"table {description.name!r} exists already; drop it first, or choose another name"
            )
        entry = TableEntry(table_id=self._catalog.next_table_id, description=description)
        table = _OpenTable(entry)
        directory = self._directory(entry)
        try:
            with disk_errors(directory):
                directory.mkdir(parents=True)
                for index in range(description.buckets):
                    table.buckets[index] = RocksBucket(
                        directory / _bucket_name(index), self._resources, table.keys_of, create=True
                    )
                sync_directory(directory)
                sync_directory(directory.parent)
                sync_directory(self._path)
            self._save(self._catalog.with_table(entry))
        except BaseException:
            table.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._tables[description.name] = table

    def drop_table(self, name: str) -> None:
        """See `Store.drop_table`."""
        self._require_open()
        table = self._table(name)
        self._save(self._catalog.without_table(name))
        del self._tables[name]
        with self._opening:
            table.close()
        with disk_errors(self._path):
            shutil.rmtree(self._directory(table.entry))
            shutil.rmtree(
                self._path / _CHECKPOINTS_NAME / _table_name(table.entry.table_id), ignore_errors=True
            )

    def add_column(self, name: str, column: pa.Field) -> None:
        """Add a column to a table, the last one. Rows that are there read as null in it.

        Codecs that were handed out before know nothing of it: ask for them again.

        Raises:
            TableNotFound: no such table.
            SchemaMismatch: the column is not nullable, so old rows have no value for it, or of a type that
                cannot be stored.
            ArgumentInvalid: the table has a column of that name.
            StoreFailed: the disk refused.
        """
        self._require_open()
        table = self._table(name)
        if not column.nullable:
            raise SchemaMismatch(
                f"column {column.name!r} must be nullable: the rows that are there have no value"
            )
        entry = table.entry.with_column(column)
        self._save(self._catalog.with_table(entry))
        table.use(entry)

    def bucket(self, name: str, index: int) -> RocksBucket:
        """See `Store.bucket`."""
        table = self._table_with_bucket(name, index)
        with self._opening:
            self._require_still_there(name, table)
            if index not in table.buckets:
                path = self._directory(table.entry) / _bucket_name(index)
                table.buckets[index] = RocksBucket(path, self._resources, table.keys_of)
            return table.buckets[index]

    def create_checkpoint(self, name: str, index: int) -> Checkpoint:
        """See `Store.create_checkpoint`."""
        bucket = self.bucket(name, index)
        directory = self._checkpoint_directory(self._table(name), index)
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
        with self._opening:
            self._require_still_there(name, table)
            snapshot = open_checkpoint(
                directory, checkpoint_id, self._resources, table.keys_of, table.snapshots.discard
            )
            table.snapshots.add(snapshot)
        return snapshot

    def drop_checkpoint(self, name: str, index: int, checkpoint_id: int, table_id: int | None = None) -> None:
        """See `Store.drop_checkpoint`."""
        directory = self._checkpoint_directory(self._table_with_bucket(name, index, table_id), index)
        with self._opening:
            drop_checkpoint(directory, checkpoint_id)

    def read_document(self, name: str) -> bytes | None:
        """See `Store.read_document`."""
        self._require_open()
        return read_document(self._path, name)

    def write_document(self, name: str, content: bytes) -> None:
        """See `Store.write_document`."""
        self._require_open()
        write_document(self._path, name, content)

    def close(self) -> None:
        """See `Store.close`."""
        with self._opening:
            lock, self._lock = self._lock, None
            if lock is None:
                return
            try:
                for table in self._tables.values():
                    table.close()
            finally:
                os.close(lock)

    def _require_open(self) -> None:
        if self._lock is None:
            raise StoreClosed(f"store {self._path} was closed")

    def _table(self, name: str) -> _OpenTable:
        try:
            return self._tables[name]
        except KeyError:
            raise self._not_found(name) from None

    def _table_with_bucket(self, name: str, index: int, table_id: int | None = None) -> _OpenTable:
        self._require_open()
        table = self._table(name)
        if table_id not in (None, table.entry.table_id):
            raise TableNotFound(f"table {name!r} was dropped, and created again")
        count = table.entry.description.buckets
        if not 0 <= index < count:
            raise BucketNotFound(f"table {name!r} has the buckets 0 to {count - 1}, not {index}")
        return table

    def _require_still_there(self, name: str, table: _OpenTable) -> None:
        self._require_open()
        if self._tables.get(name) is not table:
            raise self._not_found(name)

    def _checkpoint_directory(self, table: _OpenTable, index: int) -> Path:
        return self._path / _CHECKPOINTS_NAME / _table_name(table.entry.table_id) / _bucket_name(index)

    def _not_found(self, name: str) -> TableNotFound:
        known = ", ".join(sorted(self._tables)) or "there are none"
        return TableNotFound(f"no table {name!r}; the tables are: {known}")

    def _directory(self, entry: TableEntry) -> Path:
        return self._path / _TABLES_NAME / _table_name(entry.table_id)

    def _save(self, catalog: Catalog) -> None:
        save_catalog(self._path, catalog)
        self._catalog = catalog


class _OpenTable:
    """A table of an open store: its catalog entry, its codecs, its buckets and checkpoints that are open."""

    def __init__(self, entry: TableEntry) -> None:
        self.buckets: dict[int, RocksBucket] = {}
        self.snapshots: set[RocksSnapshot] = set()
        self.use(entry)

    def use(self, entry: TableEntry) -> None:
        self.entry = entry
        self.key_codec = KeyCodec(entry.description)
        self.row_codec = RowCodec(
            entry.description.schema, entry.schema_id, dict(enumerate(entry.older_schemas))
        )

    def keys_of(self, rows: Sequence[bytes]) -> list[bytes]:
        return keys_of_rows(rows, self.row_codec, self.key_codec)

    def close(self) -> None:
        for bucket in self.buckets.values():
            bucket.close()
        self.buckets.clear()
        for snapshot in list(self.snapshots):
            snapshot.close()


def _table_name(table_id: int) -> str:
    return f"{table_id:06d}"


def _bucket_name(index: int) -> str:
    return f"{index:04d}"


def _require_fresh(path: Path) -> None:
    """Refuse a directory that has no catalog, unless it is empty or an interrupted first start left it."""
    found = {entry.name for entry in path.iterdir()}
    if _TABLES_NAME in found and _LOCK_NAME in found:
        raise DataCorrupted(f"{path / CATALOG_NAME} is gone; restore it from a copy")
    if found - {_LOCK_NAME, CATALOG_NAME, f"{CATALOG_NAME}~"}:
        raise StoreFailed(f"{path} is not empty and is no data directory of weir; name an empty or a new one")


def _acquire_lock(path: Path) -> int:
    descriptor = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise StoreLocked(
            f"data directory {path} is in use by process {holder}; stop that server, or use another directory"
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_leftovers(path: Path, catalog: Catalog) -> None:
    """Remove what an interrupted create or drop left behind."""
    named = {_table_name(entry.table_id) for entry in catalog.tables.values()}
    with disk_errors(path):
        (path / _TABLES_NAME).mkdir(exist_ok=True)
        for directory in (*(path / _TABLES_NAME).iterdir(), *(path / _CHECKPOINTS_NAME).glob("*")):
            if directory.name not in named:
                shutil.rmtree(directory)
    for directory in (path / _CHECKPOINTS_NAME).glob("*/*"):
        remove_leftovers(directory)
