"""RocksDB as weir uses it: how a bucket's database is opened, and what its errors mean.

rocksdict raises bare `Exception` with RocksDB's prose; this is the only module that reads that prose. The
strings in `_MEANINGS` were seen with rocksdict 0.3.29 (RocksDB 10); tests provoke each.

Durability: writes go to the write-ahead log, and `flush_wal(sync=True)` makes them durable; no write
syncs by itself, so a commit syncs once. On recovery an incomplete record at the end of a log file is dropped:
at the end of the last one it was never acknowledged, and at the end of an older one it leaves a hole that the
bucket finds. Damage anywhere else refuses to open, because everything there was acknowledged; but for what a power
failure has left of the last record in pieces (`scanner.storage.rocksdb.torn_tail`), where the opener says so.

This module knows no tables and no change records.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ChecksumType,
    ColumnFamily,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
)

from scanner.errors import (
    DataCorrupted,
    DiskFull,
    ScannerError,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    TooManyFiles,
)
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.torn_tail import has_torn_tail

_COMPRESSION = {
    Compression.NONE: DBCompressionType.none,
    Compression.LZ4: DBCompressionType.lz4,
    Compression.ZSTD: DBCompressionType.zstd,
}

_MEANINGS: tuple[tuple[str, type[ScannerError], str], ...] = (
    ("lock hold by current process", StoreLocked, "it is open in this process already"),
    ("Too many open files", TooManyFiles, "the server may open no more files; raise its limit (ulimit -n)"),
    ("While lock file", StoreLocked, "another process has it open; stop that one, or use another directory"),
    ("Corruption:", DataCorrupted, "its files are damaged; restore them from a copy"),
    (
        "does not exist (create_if_missing is false)",
        DataCorrupted,
        "its files are gone; restore them from a copy",
    ),
    ("No such file or directory", DataCorrupted, "some of its files are gone; restore them from a copy"),
    ("Column families not opened", DataCorrupted, "it was written by another program or version"),
    ("No space left on device", DiskFull, "the disk is full; make room"),
    ("Disk quota exceeded", DiskFull, "the quota of the server's user is used up; make room"),
    ("File too large", StoreFailed, "a file may not grow further; raise the limit"),
    ("Permission denied", StoreFailed, "give the server's user read and write access"),
    ("Read-only file system", StoreFailed, "mount it writable"),
    ("Input/output error", StoreFailed, "the disk failed; the system's log may say why"),
    (
        "while link file to",
        StoreFailed,
        "a checkpoint consists of hard links; use a file system that has them, and files of the server's user",
    ),
)
"""What RocksDB says, what that is, and what to do about it. The first that fits is taken."""


_ZSTD_LEVEL = 1
"""The quickest: what it gains here is the coding of single octets, which higher levels do alike."""
_ZSTD_WINDOW_BITS = -14
"""RocksDB's default for all compressions."""
_ARENA_BLOCK_BYTES: Final = 64 * 1024
"""RocksDB's own are of 1 MiB, and a bucket of a few rows takes two of them: those of fifty buckets used up the write
buffers of all, and from then on small writes were each flushed into files of their own."""
_MEMTABLE_FILTER_SHARE = 0.01
"""Of a write buffer, for its filter: ten bits a key where a row has about a hundred bytes."""
_LASTING: Final = re.compile(r"/proc/self/fd/[0-9]+/[a-z]+/[0-9]+/[0-9]+")
"""How RocksDB calls a bucket's directory; see `DirectoryHandle.lasting`."""
_ABSENT = "key not found"
"""What a snapshot of rocksdict says of a key that it does not have."""
_ERRORS = "rocksdb.background-errors"
_PROBE = b"after an error"
"""A key of the column family `default`, which has no other."""


@contextmanager
def rocksdb_errors(path: Path) -> Iterator[None]:
    """Turn what rocksdict raises into scanner's errors; the message is one line and names the directory.

    Raises:
        StoreLocked, DataCorrupted, StoreFailed, StoreClosed: as `_MEANINGS` says; StoreFailed if nothing fits.
    """
    try:
        yield
    except DbClosedError as error:
        raise StoreClosed(f"{path} was closed") from error
    except OSError as error:
        # rocksdict reads a file of its own beside RocksDB's.
        raise translate(str(error), path) from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise translate(str(error), path) from error


def is_absent(error: Exception) -> bool:
    """Whether an error of rocksdict only says that a snapshot does not have a key."""
    return type(error) is Exception and str(error) == _ABSENT


def translate(prose: str, path: Path) -> ScannerError:
    """The error that a text of RocksDB's stands for."""
    text = _LASTING.sub(lambda _: str(path), " ".join(prose.split()))
    for pattern, kind, advice in _MEANINGS:
        if pattern in text:
            return kind(f"{path}: {advice} ({text})")
    return StoreFailed(f"{path}: the disk refused ({text})")


class RocksResources:
    """What all databases of a store share: the block cache and the budget of the write buffers.

    Args:
        config: Sizes.
    """

    def __init__(self, config: StorageConfig) -> None:
        self.config = config
        self._cache = Cache(config.block_cache_bytes)
        self._write_buffers = WriteBufferManager(config.write_buffers_bytes, allow_stall=False)
        self._writable: weakref.WeakSet[Database] = weakref.WeakSet()
        """The databases that are open for writing."""

    def count(self, database: Database) -> None:
        """Allow for what a database that was opened for writing takes for its first row, whatever that row takes.

        Without that, small writes to a few hundred buckets would each be flushed into files of their own.
        """
        self._writable.add(database)
        filter_bytes = int(self.config.bucket_write_buffer_bytes * _MEMTABLE_FILTER_SHARE)
        first_row_bytes = filter_bytes + 3 * _ARENA_BLOCK_BYTES
        self._write_buffers.set_buffer_size(
            self.config.write_buffers_bytes + len(self._writable) * first_row_bytes
        )

    @property
    def write_buffers_half_full(self) -> bool:
        """See `Store.write_buffers_half_full`."""
        return 2 * self._write_buffers.get_usage() > self._write_buffers.get_buffer_size()

    def database_options(self, *, create: bool, read_only: bool, torn_tail: bool) -> Options:
        """Options of a database as a whole."""
        config = self.config
        options = Options(raw_mode=True)
        options.create_if_missing(create)
        options.create_missing_column_families(create)
        options.set_error_if_exists(create)
        options.set_paranoid_checks(True)
        options.set_wal_recovery_mode(
            DBRecoveryMode.point_in_time() if torn_tail else DBRecoveryMode.tolerate_corrupted_tail_records()
        )
        # All column families are flushed together: should a part of the write-ahead log get lost, it is lost
        # for rows and changes alike, and the hole in the changes gives it away when the bucket is opened.
        options.set_atomic_flush(True)
        options.set_write_buffer_manager(self._write_buffers)
        # Without a bound, `meta`, whose buffer never fills, would keep every write-ahead log alive.
        options.set_max_total_wal_size(4 * config.bucket_write_buffer_bytes)
        # -1: all, from the start and as long as the database is open.
        options.set_max_open_files(-1 if read_only else config.bucket_files_open_max)
        options.set_max_background_jobs(config.background_jobs_max)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1024 * 1024)
        options.set_stats_dump_period_sec(0)
        return options

    def family_options(self, compression: Compression, *, point_reads: bool = False) -> Options:
        """Options of one column family.

        Args:
            compression: Of its blocks.
            point_reads: Whether single keys are looked up; a bloom filter then spares most misses.
        """
        config = self.config
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self._cache)
        blocks.set_block_size(config.block_bytes)
        blocks.set_checksum_type(ChecksumType.xxh3())
        blocks.set_format_version(5)
        if point_reads:
            blocks.set_bloom_filter(10, False)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(_COMPRESSION[compression]())
        if compression is Compression.ZSTD:
            options.set_compression_options(_ZSTD_WINDOW_BITS, _ZSTD_LEVEL, 0, 0)
        options.set_write_buffer_size(config.bucket_write_buffer_bytes)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        options.set_level_compaction_dynamic_level_bytes(True)
        if point_reads:
            # Before-images of new keys are not found: without a filter that is a walk down each memtable.
            options.set_memtable_whole_key_filtering(True)
            options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER_SHARE)
        return options


@dataclass(slots=True, eq=False, weakref_slot=True)
class Database:
    """An open database and its column families. Its directory stays locked while anything refers to any of them."""

    path: Path
    rocks: Rdict
    kv: Rdict
    log: Rdict
    meta: Rdict
    kv_family: ColumnFamily
    """For write batches, as are the other two."""
    log_family: ColumnFamily
    meta_family: ColumnFamily
    read_only: bool
    """Whether it was opened for reading only: nothing was and nothing is written to its directory."""
    torn_tail: bool
    """Whether the newest record of its write-ahead log was left out, as one in pieces."""
    hides: bool = False
    """Whether newer records of its write-ahead log were left out, since they may not be durable."""

    def read_meta(self, key: bytes) -> bytes | None:
        """What `meta` has under a key; None: nothing.

        Raises:
            DataCorrupted, StoreFailed, StoreClosed: It cannot be read.
        """
        with rocksdb_errors(self.path):
            value: bytes | None = self.meta.get(key)
            return value

    def close(self) -> None:
        """Close it, and drop all its parts, so that a reference to this record locks nothing.

        RocksDB repeats an error of an earlier write or compaction here. It was reported when it happened, and
        what was acknowledged is durable already, so it is not reported again.
        """
        try:
            with suppress(StoreFailed, DataCorrupted), rocksdb_errors(self.path):
                self.rocks.close()
        finally:
            del self.rocks, self.kv, self.log, self.meta, self.kv_family, self.log_family, self.meta_family


def write_synced(database: Database, batch: WriteBatch) -> None:
    """Write a batch; durable when this returns.

    Raises:
        StoreFailed: The disk refused. It is not known whether the batch is written.
    """
    with rocksdb_errors(database.path):
        database.rocks.write(batch)
        database.rocks.flush_wal(sync=True)


def compact_database(database: Database) -> None:
    """Rewrite rows and log without what is not needed any more.

    Raises:
        DataCorrupted: a file is damaged. The database takes no writes from now on.
        StoreFailed: the disk refused.
    """
    with _compaction(database):
        database.kv.compact_range(None, None)
        database.log.compact_range(None, None)


def compact_log(database: Database, end_key: bytes) -> None:
    """Rewrite the files of the log that reach into its beginning; those of which nothing is needed go.

    Args:
        database: Of the bucket.
        end_key: The last key of that beginning.

    Raises:
        DataCorrupted, StoreFailed: as `compact_database`.
    """
    with _compaction(database):
        # From None on it would flush what is in memory first.
        database.log.compact_range(b"", end_key)


def flush_database(database: Database) -> None:
    """Write what is in memory into files; nothing is written beside it.

    In this order: should the write-ahead log get lost in the middle of it, the log ends behind where `meta` says.

    Raises:
        StoreFailed: the disk refused.
    """
    with rocksdb_errors(database.path):
        # Each by its name: an error is kept, its traceback keeps this frame, and a variable the directory locked.
        database.log.flush()
        database.kv.flush()
        database.meta.flush()


def unflushed_bytes(database: Database) -> int:
    """What `flush_database` writes, at most.

    Raises:
        StoreFailed, StoreClosed: RocksDB does not say.
    """
    with rocksdb_errors(database.path):
        families = (database.log, database.kv, database.meta)
        return sum(family.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for family in families)


def join_log_files(database: Database, start_key: bytes, end_key: bytes) -> None:
    """Write the files of the log that have the keys of [start_key, end_key] anew, as one or a few.

    Raises:
        DataCorrupted, StoreFailed: as `compact_database`.
    """
    options = CompactOptions()
    # Otherwise files that are on the last level already stay as they are.
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    with _compaction(database):
        database.log.compact_range(start_key, end_key, options)


@contextmanager
def _compaction(database: Database) -> Iterator[None]:
    """See how the compactions of the block end: rocksdict does not say it; RocksDB counts their errors."""
    with rocksdb_errors(database.path):
        before = database.rocks.property_int_value(_ERRORS)
        yield
        if database.rocks.property_int_value(_ERRORS) != before:
            # Refused, with what it was.
            database.rocks.put(_PROBE, b"")
            raise StoreFailed(f"{database.path}: a compaction failed, see the file LOG there")


def background_errors(database: Database) -> int:
    """How many flushes and compactions have failed since it was opened; it takes no writes after one.

    Raises:
        StoreClosed: It was closed.
    """
    with rocksdb_errors(database.path):
        return database.rocks.property_int_value(_ERRORS) or 0


def open_database(
    path: Path,
    resources: RocksResources,
    *,
    through: Path | None = None,
    create: bool = False,
    read_only: bool = False,
    torn_tail: bool = False,
) -> Database:
    """Open the database of one bucket, or of a checkpoint of one.

    Args:
        path: Its directory, as errors name it.
        resources: Of the store.
        through: The path by which RocksDB finds it, for as long as it is open; None: the same.
        create: Make a new one, which must not exist; else it must.
        read_only: Nothing in the directory is changed but rocksdict's settings, and it is not locked. All files are
            kept open, so that it does not matter if they are removed meanwhile. A torn tail is left out.
        torn_tail: Drop what `has_torn_tail` has found: the write-ahead logs are replayed up to the first damage.

    Raises:
        StoreLocked: it is open already.
        DataCorrupted: it is damaged, or not there.
        StoreFailed: the disk refused.
    """
    try:
        return _open(
            path, resources, through or path, create=create, read_only=read_only, torn_tail=torn_tail
        )
    except DataCorrupted:
        if not (read_only and has_torn_tail(path)):
            raise
    return _open(path, resources, through or path, create=False, read_only=True, torn_tail=True)


def _open(
    path: Path, resources: RocksResources, through: Path, *, create: bool, read_only: bool, torn_tail: bool
) -> Database:
    config = resources.config
    families = {
        "kv": resources.family_options(config.compression, point_reads=True),
        "log": resources.family_options(config.log_compression),
        "meta": resources.family_options(config.compression),
    }
    with rocksdb_errors(path):
        options = resources.database_options(create=create, read_only=read_only, torn_tail=torn_tail)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        rocks = Rdict(str(through), options, families, access)
        database = Database(
            path,
            rocks,
            kv=rocks.get_column_family("kv"),
            log=rocks.get_column_family("log"),
            meta=rocks.get_column_family("meta"),
            kv_family=rocks.get_column_family_handle("kv"),
            log_family=rocks.get_column_family_handle("log"),
            meta_family=rocks.get_column_family_handle("meta"),
            read_only=read_only,
            torn_tail=torn_tail,
        )
        if not read_only:
            resources.count(database)
        return database
