"""How many files a server may open, and what follows from that for its buckets."""

from __future__ import annotations

import logging
import resource
from typing import Final

from scanner.cli.units import counted
from scanner.server.config import ScannerConfig
from scanner.storage.rocksdb.config import StorageConfig

_OTHERS: Final = 64
"""Kept for connections, the catalog, and what Python has open."""
_BUCKET: Final = 20
"""Descriptors of one bucket: nine for RocksDB's own files, and some for tables and their compaction."""
_FILES_MIN: Final = 16
"""What RocksDB is told at least; it goes on with fewer."""
_FILES_WANTED: Final = 4096
"""With fewer a server of a few hundred tables closes and opens buckets all the time."""

_logger = logging.getLogger(__name__)


def raise_files_limit() -> int:
    """Raise the limit of this process to what it may raise it to, and log it.

    Returns:
        The files that it may have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS has another limit beside it.
            _logger.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
        else:
            soft = hard
    files_max = soft if soft != resource.RLIM_INFINITY else 1 << 20
    buckets = counted(buckets_within(files_max), "bucket")
    if files_max >= _FILES_WANTED:
        _logger.info("%d files may be open at once, enough for %s in use", files_max, buckets)
    else:
        told = "%d files may be open at once, enough for %s in use; for more, raise the limit (ulimit -Hn)"
        _logger.warning(told, files_max, buckets)
    return files_max


def buckets_within(files_max: int) -> int:
    """How many buckets may be open at once, where so many files may: no more than the server has open anyway."""
    return max(1, min(ScannerConfig().buckets_open_max, (files_max - _OTHERS) // _BUCKET))


def files_within(files_max: int) -> int:
    """How many files one bucket may keep open."""
    return max(_FILES_MIN, min(StorageConfig().bucket_files_open_max, files_max // 16))
