"""Snapshots of buckets that are open, shared by everything that reads a bucket as of the same offset.

Every reader has a hold (`SnapshotHold`). After the last hold is released a snapshot may linger, so that a scan that was
cut off goes on from it at no cost; then it is closed. All registries of a server share one cap (`SnapshotPool`).

Invariants:

1. At most one snapshot is open per bucket and offset.
2. A snapshot is open while it is held, and at most the linger time longer, unless its bucket is retired. A
   release without lingering never shortens another holder's linger.
3. At most `snapshots_max` are open on a server: one that lingers makes room for one that is needed.

This module knows no scan and no wire.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from scanner.errors import TooManyScans

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.storage.interface import Bucket, BucketSnapshot


class SnapshotPool:
    """What the registries of one server share.

    Args:
        nursery: Runs the lingering; may end before the pool does.
        snapshots_max: Snapshots open at once.
        linger_s: How long a snapshot stays open after its last hold; 0: not at all.
    """

    def __init__(self, nursery: trio.Nursery, snapshots_max: int, linger_s: float) -> None:
        self._nursery = nursery
        self._snapshots_max = snapshots_max
        self._linger_s = linger_s
        self._lingering: dict[SharedSnapshot, trio.CancelScope] = {}
        """The one that has lingered longest is the first."""
        self.snapshots_open = 0
        """Held or lingering."""

    def open_one(self) -> None:
        """Count a snapshot that is about to be opened; one that lingers goes if there is no room.

        Raises:
            TooManyScans: All are held; nothing was counted.
        """
        if self.snapshots_open >= self._snapshots_max:
            if not self._lingering:
                raise TooManyScans(
                    f"{self.snapshots_open} snapshots are held on this server, and no more are allowed;"
                    " try again later"
                )
            next(iter(self._lingering)).close()
        self.snapshots_open += 1

    def closed_one(self, shared: SharedSnapshot) -> None:
        """Take back the count of one."""
        self.revive(shared)
        self.snapshots_open -= 1

    def revive(self, shared: SharedSnapshot) -> None:
        """It is needed again, or gone: its time does not run any more."""
        scope = self._lingering.pop(shared, None)
        if scope is not None:
            scope.cancel()

    def lingers_until(self) -> float:
        """Until when a snapshot lingers that is released now."""
        return trio.current_time() + self._linger_s

    def let_linger(self, shared: SharedSnapshot) -> bool:
        """Close a snapshot when its last linger is over.

        Returns:
            Whether it lingers; else it is to be closed now.
        """
        if shared.wanted_until <= trio.current_time() or self._nursery.cancel_scope.cancel_called:
            return False
        self._lingering[shared] = trio.CancelScope()
        self._nursery.start_soon(self._close_later, shared, self._lingering[shared])
        return True

    async def _close_later(self, shared: SharedSnapshot, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_until(shared.wanted_until)
            shared.close()


class SharedSnapshot:
    """One open snapshot and how many hold it."""

    def __init__(self, registry: SnapshotRegistry, snapshot: BucketSnapshot) -> None:
        self._registry = registry
        self.snapshot = snapshot
        self.holds = 0
        self.wanted_until = -math.inf
        """Until when it lingers, at least."""
        self.opened_at = trio.current_time()
        """Seconds of trio's clock."""

    def close(self) -> None:
        """Close the snapshot, held or not. Idempotent."""
        self._registry.forget(self)
        self.snapshot.close()


class SnapshotHold:
    """Keeps a snapshot open until it is released. Made by a `SnapshotRegistry`."""

    def __init__(self, registry: SnapshotRegistry, shared: SharedSnapshot) -> None:
        self._registry = registry
        self._shared = shared
        self._released = False
        self.when_released: Callable[[], None] | None = None
        """Called once, when it is."""
        shared.holds += 1

    @property
    def snapshot(self) -> BucketSnapshot:
        """What is held; not to be closed by who holds it."""
        return self._shared.snapshot

    @property
    def log_offset(self) -> int:
        """What it is as of."""
        return self._shared.snapshot.log_offset

    def release(self, *, linger: bool = True) -> None:
        """Release it. Idempotent.

        Args:
            linger: The scan may be continued soon. False: it will not ask for this snapshot again, or its files
                shall be free at once; it is closed unless another hold, or another's linger, keeps it.
        """
        if not self._released:
            self._released = True
            if self.when_released is not None:
                self.when_released()
            self._registry.released(self._shared, linger=linger)


class SnapshotRegistry:
    """The open snapshots of one bucket, by log offset.

    Args:
        bucket: Of the storage.
        pool: Shares one cap with all other registries.
    """

    def __init__(self, bucket: Bucket, pool: SnapshotPool) -> None:
        self._bucket = bucket
        self._pool = pool
        self._snapshots: dict[int, SharedSnapshot] = {}

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def lingering(self) -> tuple[SharedSnapshot, ...]:
        """Those without a hold."""
        return tuple(each for each in self._snapshots.values() if not each.holds)

    def acquire(self, log_offset: int) -> SnapshotHold | None:
        """Hold the snapshot as of an offset, if it is open; None if it is not."""
        shared = self._snapshots.get(log_offset)
        if shared is None:
            return None
        self._pool.revive(shared)
        return SnapshotHold(self, shared)

    def current(self) -> SnapshotHold:
        """Hold the snapshot as of now; it is opened if it is not open. Only between two commits.

        Raises:
            TooManyScans: As many are held as the server allows.
            StoreClosed: The bucket was closed.
        """
        return self.acquire(self._bucket.log_end) or self.adopt(self._bucket.open_snapshot())

    def adopt(self, snapshot: BucketSnapshot) -> SnapshotHold:
        """Hold a snapshot that was opened elsewhere, such as a checkpoint's; it is this registry's from now on.

        If one as of the same offset is open already, that one is held, and the other one is closed.

        Raises:
            TooManyScans: As many are held as the server allows; the snapshot is closed.
        """
        held = self.acquire(snapshot.log_offset)
        if held is not None:
            snapshot.close()
            return held
        try:
            self._pool.open_one()
        except TooManyScans:
            snapshot.close()
            raise
        self._snapshots[snapshot.log_offset] = shared = SharedSnapshot(self, snapshot)
        return SnapshotHold(self, shared)

    def clear(self) -> None:
        """Close what lingers."""
        for shared in self.lingering:
            shared.close()

    def close(self) -> None:
        """Close everything; what is held raises StoreClosed when it is read from. Idempotent."""
        for shared in list(self._snapshots.values()):
            shared.close()

    # Called by what is made here.

    def released(self, shared: SharedSnapshot, *, linger: bool) -> None:
        """A hold on it was released."""
        shared.holds -= 1
        if linger:
            shared.wanted_until = self._pool.lingers_until()
        if shared.holds or self._snapshots.get(shared.snapshot.log_offset) is not shared:
            return
        if not self._pool.let_linger(shared):
            shared.close()

    def forget(self, shared: SharedSnapshot) -> None:
        """It is being closed, or was before."""
        if self._snapshots.get(shared.snapshot.log_offset) is shared:
            del self._snapshots[shared.snapshot.log_offset]
            self._pool.closed_one(shared)
