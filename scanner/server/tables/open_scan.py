"""A scan that its bucket knows of: it can be ended, parked, and reopened in the same state.

A parked scan holds nothing in storage, and no rows; it is its log offset, its position, and a pin on the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from scanner.sources.interface import Source

if TYPE_CHECKING:
    from scanner.errors import ScannerError
    from scanner.server.counters import Holder
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.log_pins import LogPin
    from scanner.server.tables.snapshots import SnapshotHold

SourceT = TypeVar("SourceT", bound=Source)


class OpenScan(Generic[SourceT]):
    """A source that its bucket knows of, so that the bucket can end it. Made by `ServedBucket.admit`.

    Args:
        bucket: Whose scan it is.
        source: What is read.
        hold: The snapshot that the source reads; None: it reads something that is not shared.
    """

    def __init__(self, bucket: ServedBucket, source: SourceT, hold: SnapshotHold | None) -> None:
        self._bucket = bucket
        self._hold = hold
        self.source = source
        """While parked, one that is closed: it still tells schema, log offset, rows, digest and position."""
        self.pin: LogPin | None = None
        """What keeps the log from which the scan can be rebuilt; released with the scan."""
        self.parked = False
        self.reopener: Callable[[], Awaitable[None]] | None = None
        """Reopens it after a park, in the same state; None: it cannot be reopened."""
        self.ended_by: ScannerError | None = None
        """Why the bucket ended it; checked before every step of the source."""
        self._on_end: Callable[[ScannerError], None] | None = None
        self.opened_at = trio.current_time()
        """When it was opened, or reopened; seconds of trio's clock."""
        self.holder: Holder | None = None
        """Who keeps it open; set by the service that opened it."""

    @property
    def holds_iterator(self) -> bool:
        """Whether something in storage is held open for it; never so for a scan of the changelog."""
        return self._hold is not None

    def when_ended(self, callback: Callable[[ScannerError], None]) -> None:
        """Have `callback` called when the bucket ends the scan, or now if it has; it must see to a close soon."""
        self._on_end = callback
        if self.ended_by is not None:
            callback(self.ended_by)

    def finish(self, *, linger: bool = False) -> None:
        """Free what is in storage: nothing more will be read. Idempotent.

        Args:
            linger: The scan may be continued soon.
        """
        self.source.close()
        if self._hold is not None:
            # The snapshot under a rebuilt state does not help the scan's continuation.
            self._hold.release(linger=linger and self._hold.log_offset == self.source.log_offset)
            self._hold = None

    async def fetch(self) -> None:
        """Have read from the disk what the next step of the source would wait for; after every step.

        Waits:
            For the disk, in a thread.

        Cancellation:
            What is being read is read to its end.
        """
        fetch = self.source.fetch
        if fetch is not None:
            await self._bucket.fetch(fetch)

    def park(self) -> None:
        """Give up what is in storage, and the rows that were read and not taken; they will be read again."""
        self.finish()
        self.parked = True
        self._bucket.activity.scans_parked += 1

    async def unpark(self) -> None:
        """Go on if it is parked and can be reopened.

        Raises:
            SnapshotLost: Its state can no longer be read.
            TooManyScans: There is no room for a snapshot now; it stays parked.
            ScannerError: Storage failed.

        Waits:
            For a commit that runs, and for storage.

        Cancellation:
            It stays parked.
        """
        while self.parked and self.reopener is not None:
            await self.reopener()

    def reopen(self, source: SourceT, hold: SnapshotHold | None) -> None:
        """Go on with a source of the same state that begins where this one stood."""
        self.source, self._hold = source, hold
        self.parked = False
        self.opened_at = trio.current_time()

    def close(self, *, linger: bool = False) -> None:
        """Free the source and the log. Idempotent.

        Args:
            linger: The scan may be continued soon.
        """
        self.finish(linger=linger)
        if self.pin is not None:
            self.pin.release()
        self._bucket.forget(self)

    def end(self, error: ScannerError) -> None:
        """End the scan: the task that drives the source stops."""
        if self.ended_by is None:
            self.ended_by = error
            if self._on_end is not None:
                self._on_end(error)
