"""Limits and sizes of storage, in one frozen record.

This module knows no RocksDB.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_MIB = 1024 * 1024


class Compression(enum.Enum):
    """How RocksDB compresses the blocks of its files."""

    NONE = "none"
    """Fastest to scan, largest on disk."""
    LZ4 = "lz4"
    """Costs a scan little and about halves the files."""
    ZSTD = "zstd"
    """The smallest files; a cold scan pays for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageConfig:
    """Sizes and limits of one store.

    Memory of a store, open scans apart, is about block_cache_bytes + write_buffers_bytes, and half a MiB for each
    bucket that is written to; each open scan adds scan_readahead_bytes and the blocks that it stands on.

    Raises:
        ValueError: a value is out of range, or two of them do not go together; the message names the fields.
    """

    block_cache_bytes: int = 128 * _MIB
    """Uncompressed blocks of all buckets kept in memory, in bytes, >= 1 MiB. Before-images and scans that run
    side by side read from it."""
    write_buffers_bytes: int = 128 * _MIB
    """Unflushed writes of all buckets together, in bytes, >= 1 MiB. From half of it on the buckets that are written to
    no more are flushed, within seconds; near the limit those that are written to. Writers do not wait."""
    bucket_write_buffer_bytes: int = 32 * _MIB
    """One write buffer of one bucket, in bytes, 64 KiB to write_buffers_bytes. Larger ones make fewer files."""
    compression: Compression = Compression.LZ4
    """Of rows. LZ4: a scan spends its time in decoding rows, and reads half the bytes."""
    log_compression: Compression = Compression.ZSTD
    """Of the changelog, whose chunks are LZ4 already: zstd packs digits, letters and prices once more. RocksDB keeps a
    block as it was where that spares less than an eighth of it."""
    block_bytes: int = 16 * 1024
    """Bytes of a block before compression, 1 KiB to 1 MiB. Scans like large ones, before-images small ones."""
    scan_readahead_bytes: int = 256 * 1024
    """Bytes that a scan reads from a file at once, 0 to 16 MiB; 0 leaves it to RocksDB, which starts small."""
    bucket_files_open_max: int = 256
    """Files that one bucket keeps open, >= 16. At the limit the least used is closed and opened again later."""
    disk_reserve_bytes: int = 256 * _MIB
    """Free bytes of the data directory's disk below which writes are refused with DISK_FULL, 0 to 1 TiB, and a
    twentieth of the disk at most; 0: they never are. Scans go on; writes are taken again when there is room."""
    background_jobs_max: int = 2
    """Threads that flush and compact, 1 to 64; shared by all buckets."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("block_cache_bytes", _MIB, 1 << 50),
            ("write_buffers_bytes", _MIB, 1 << 50),
            ("bucket_write_buffer_bytes", 64 * 1024, 1 << 40),
            ("block_bytes", 1024, _MIB),
            ("scan_readahead_bytes", 0, 16 * _MIB),
            ("bucket_files_open_max", 16, 1 << 20),
            ("disk_reserve_bytes", 0, 1 << 40),
            ("background_jobs_max", 1, 64),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        if self.bucket_write_buffer_bytes > self.write_buffers_bytes:
            # Otherwise no buffer ever fills: the shared limit flushes every one of them early.
            raise ValueError(
                f"bucket_write_buffer_bytes ({self.bucket_write_buffer_bytes}) must not exceed"
                f" write_buffers_bytes ({self.write_buffers_bytes})"
            )
