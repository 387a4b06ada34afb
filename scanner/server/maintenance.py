"""What a server does beside its calls: checkpoints, leases, images, retention of changelogs, a watch over its disk."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

import trio

from scanner.errors import ScannerError
from scanner.server.clock import WallClock
from scanner.server.disk import DiskWatch
from scanner.server.failures import cause_of
from scanner.server.image_deltas import DeltaKeeper
from scanner.server.images import ImageKeeper
from scanner.server.retention.checkpoints import Checkpoints
from scanner.server.retention.lease_manager import LeaseKeeper
from scanner.server.retention.lease_targets import StateFinder
from scanner.server.retention.log_retention import Retention
from scanner.server.scan.checkpoint_scans import SnapshotScans
from scanner.server.services.checkpoints import CheckpointService
from scanner.server.services.images import ImageService
from scanner.server.services.leases import LeaseService
from scanner.server.services.log_compaction import CompactionService
from scanner.wire import methods

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.retention.lease_registry import CheckpointKey
    from scanner.server.scan.opener import ScanOpener
    from scanner.server.tables.catalog import Catalog
    from scanner.storage.interface import Store
    from scanner.tasks import RunBlocking
    from transport import ServerStream


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The parts of one server. Made by `Maintenance.load`."""

    catalog: Catalog
    config: ScannerConfig
    checkpoints: Checkpoints
    leases: LeaseKeeper
    retention: Retention
    disk: DiskWatch
    clock: WallClock
    images: ImageKeeper
    deltas: DeltaKeeper

    @classmethod
    async def load(
        cls,
        store: Store,
        catalog: Catalog,
        config: ScannerConfig,
        run_blocking: RunBlocking,
        clock: WallClock | None = None,
    ) -> Self:
        """Make the parts, and hold what leases of an earlier server keep.

        Args:
            store: Open store.
            catalog: Table catalog.
            config: Limits.
            run_blocking: Runs what storage does.
            clock: Tells the time; None: the system's.

        Raises:
            DataCorrupted: The leases cannot be read.
            StoreFailed: The disk refused.
        """
        clock = clock or WallClock()

        def references(checkpoint: CheckpointKey) -> int:
            return leases.references(checkpoint)

        checkpoints = Checkpoints(catalog, store, config, run_blocking, references)
        finder = StateFinder(catalog, checkpoints)
        leases = LeaseKeeper(store, catalog, finder, config, run_blocking, clock)
        await leases.load()
        retention = Retention(catalog, config, run_blocking, clock, leases.hold_again)
        disk = DiskWatch(store, catalog, config, run_blocking)
        images = ImageKeeper(catalog, store, config, run_blocking)
        await images.look()
        deltas = DeltaKeeper(catalog, config, run_blocking)
        return cls(catalog, config, checkpoints, leases, retention, disk, clock, images, deltas)

    def start(self, nursery: trio.Nursery) -> None:
        """Begin what is done from time to time; it ends with the nursery."""
        config = self.config
        for act, what, interval_s in (
            (self.look, "the look at the disk", config.disk_check_interval_s),
            (self.images.sweep, "the making of images", config.image_interval_s),
            (self.deltas.extend_all, "the reading of changes for images", config.image_delta_interval_s),
            (
                self.disk.flush_idle,
                "the flush of buckets that are not written to",
                config.disk_check_interval_s,
            ),
            (self.disk.close_idle, "the closing of unused buckets", config.bucket_idle_close_s / 4),
            (self.leases.sweep, "the release of leases that are over", config.lease_sweep_interval_s),
            (self.retention.sweep, "the cutting of changelogs", config.retention_interval_s),
            (self.checkpoints.prune_all, "the dropping of old checkpoints", config.retention_interval_s),
            (self.checkpoints.make_all, "the making of checkpoints", config.checkpoint_interval_s),
        ):
            if interval_s:
                nursery.start_soon(repeat, act, what, interval_s)

    async def look(self) -> None:
        """Look at the disk. Where rows have no room any more, images go, one at a time.

        Waits:
            For the disk.
        """
        await self.disk.look()
        if self.disk.status is not None and self.disk.status.read_only:
            await self.images.give_way()

    def snapshot_scans(self, opener: ScanOpener) -> SnapshotScans:
        """Scans of the checkpoints."""
        return SnapshotScans(opener, self.catalog, self.checkpoints, self.leases)

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The call of each path."""
        leases = LeaseService(self.leases, self.config, self.catalog.activity).calls()
        admin = {
            **CheckpointService(self.catalog, self.checkpoints).calls(),
            **CompactionService(self.catalog, self.retention, self.clock.now_us).calls(),
            **ImageService(self.catalog, self.images).calls(),
        }
        return {
            **{methods.LEASES + name: call for name, call in leases.items()},
            **{methods.ADMIN + name: call for name, call in admin.items()},
        }


async def repeat(act: Callable[[], Awaitable[None]], what: str, interval_s: float) -> NoReturn:
    """Do something every interval. A failure does not end the server; it is logged once, and once when it is over.

    Args:
        act: To be done.
        what: That is, for the log.
        interval_s: In seconds.

    Cancellation:
        No effect; this is how it ends.
    """
    cause: str | None = None
    while True:
        await trio.sleep(interval_s)
        before, cause = cause, None
        try:
            await act()
        except Exception as error:
            cause = cause_of(error)
            if cause == before:
                continue
            if isinstance(error, ScannerError):
                _logger.warning("%s failed, and is tried again: %s", what, error)
            else:
                _logger.exception("%s failed in an unforeseen way, and is tried again", what)
        else:
            if before is not None:
                _logger.warning("%s goes well again", what)
