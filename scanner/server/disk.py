"""What a server does about its disk and its descriptors from time to time.

It checks for room, has failed buckets try to take writes again, has what unused ones keep in memory written into files,
and closes them.

This module knows no wire and no transport.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from scanner.errors import ScannerError
from scanner.server.failures import Failures

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.storage.interface import Store
    from scanner.storage.records import DiskStatus
    from scanner.tasks import RunBlocking

_logger = logging.getLogger(__name__)
_UNWRITTEN_S = 1.0
"""A bucket that was not written to for so long is no longer, for a while."""


class DiskWatch:
    """Watches the disk of one server.

    Args:
        store: Whose disk it is.
        catalog: Table catalog.
        config: How long a bucket may be idle.
        run_blocking: Runs what storage does.
    """

    def __init__(
        self, store: Store, catalog: Catalog, config: ScannerConfig, run_blocking: RunBlocking
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._config = config
        self._run_blocking = run_blocking
        self._failures = Failures(_logger)
        self.status: DiskStatus | None = None
        """At the last look; None: there is no disk, or it does not say."""

    @property
    def buckets_failed(self) -> int:
        """Buckets that take no writes since one has failed."""
        return sum(bucket.storage.failure is not None for _, _, bucket in self._catalog.open_buckets())

    async def look(self) -> None:
        """Look at the disk. If there is room, have every bucket that failed try to take writes again, when it is due.

        Waits:
            For the disk.

        Cancellation:
            Some may not have tried.
        """
        before = self.status
        self.status = await self._run_blocking(self._store.check_disk)
        if self.status is not None and self.status.read_only:
            return
        has_room_again = before is not None and before.read_only
        for name, index, bucket in list(self._catalog.open_buckets()):
            failing = f"{name}[{index}] cannot be opened, and is tried again"
            try:
                await bucket.recover(at_once=has_room_again)
            except ScannerError as error:
                self._failures.add(failing, error)
            else:
                if bucket.storage.readable:
                    self._failures.clear(failing, f"{name}[{index}] can be opened again")

    async def flush_idle(self) -> None:
        """Where memory for what is written gets short, flush buckets that are written to no more, the largest first.

        Else RocksDB flushes those that are written to, at each commit, as long as the others have the memory.

        Waits:
            For the disk.

        Cancellation:
            Some are flushed.
        """
        if not self._store.write_buffers_half_full:
            return
        since = trio.current_time() - _UNWRITTEN_S
        idle = [bucket for _, _, bucket in self._catalog.open_buckets() if bucket.written_at < since]
        sizes = await self._run_blocking(lambda: list(map(_unflushed_bytes, idle)))
        for size, bucket in sorted(zip(sizes, idle, strict=True), key=lambda each: each[0], reverse=True):
            if not size or not self._store.write_buffers_half_full:
                return
            # It was dropped, or its storage has said in the log why it takes no writes.
            with suppress(ScannerError):
                async with bucket.between_commits(upkeep=True):
                    await self._run_blocking(bucket.storage.flush)

    async def close_idle(self) -> None:
        """Close the files of buckets that were not used for a while."""
        for _, _, bucket in list(self._catalog.open_buckets()):
            await bucket.close_idle(self._config.bucket_idle_close_s)


def _unflushed_bytes(bucket: ServedBucket) -> int:
    try:
        return bucket.storage.unflushed_bytes
    except ScannerError:
        return 0  # It is being dropped.
