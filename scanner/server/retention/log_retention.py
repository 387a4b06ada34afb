"""Retention: changelogs are cut off by age and by size, never past what is still needed, up to a limit for that, too.

Invariants:

1. A changelog is cut between two commits, at the end of an entry, never inside a transaction's share, and never past
   the oldest pin of that moment: scans, parked scans and leases pin, and a pin is made between two commits as well.
2. What the pins of one principal keep of one bucket's log beyond retention is at most `log_pinned_bytes_max`, give
   or take what is written between two sweeps, and what is in front of a pin in its transaction's share: past it the
   pin that keeps the most ends, with SLOW_CONSUMER.
3. By age nothing goes early, whatever the clock said: commits are stamped and aged by one clock
   (`scanner.server.clock`), and what a wrong one stamped is taken for as young as it may be (`walk_expired`).

A bucket that was closed for being idle has not grown, but grown old: it is opened once in a while for a look. One that
was not used since the start is not looked at, and one that takes no writes cannot be cut.

This module knows no wire and no transport.
"""

from __future__ import annotations

import functools
import logging
import math
import weakref
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from scanner.errors import (
    DataCorrupted,
    OffsetOutOfRange,
    ScannerError,
    SlowConsumer,
    StoreClosed,
    StoreFailed,
    TableNotFound,
)
from scanner.server.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scanner.server.clock import WallClock
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.server.tables.log_pins import LogPin
    from scanner.storage.interface import Bucket
    from scanner.tasks import RunBlocking

_ENTRIES_WALKED_MAX: Final = 10_000
"""At once, where commit times are of no use; then other work of the thread has its turn."""
_IDLE_LOOK_S_MAX: Final = 3600.0
_REST_S: Final = 600.0
"""So long a changelog rests whose compaction has failed: each parks what reads its bucket, which is opened anew."""
_IDLE_LOOK_SHARE: Final = 10
"""A bucket that is closed for being idle is looked at so many times in the age that changes may reach, or each hour."""

_logger = logging.getLogger(__name__)


class AgeWalk(NamedTuple):
    """How far a changelog was looked through for what is too old."""

    at: int
    """The entry to look at next."""
    end: int
    """Up to here everything is too old."""
    newest_us: int
    """What the clock said of the newest entry so far whose clock can have been right."""
    is_done: bool
    """False: there is more to look at."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """A changelog that was cut, as it was then."""

    start: int
    """Offset of its oldest change."""
    end: int
    """One past its newest."""
    dropped: int
    """Changes that went."""
    pinned: int
    """Changes that were to go, too, and are pinned."""
    pins: tuple[LogPin, ...]
    """What keeps them; the one that keeps the most first."""


class Retention:
    """Cuts the changelogs of a server.

    Args:
        catalog: Table catalog.
        config: How much is kept.
        run_blocking: Runs what storage does.
        clock: Tells the time, for the age of changes.
        hold_leased: Pins what leases keep of a bucket, by table and number, before each cut; None: nothing is leased.
    """

    def __init__(
        self,
        catalog: Catalog,
        config: ScannerConfig,
        run_blocking: RunBlocking,
        clock: WallClock,
        hold_leased: Callable[[str, int], Awaitable[None]] | None = None,
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._run_blocking = run_blocking
        self._clock = clock
        self._hold_leased = hold_leased
        self._failures = Failures(_logger)
        self._looked_at: weakref.WeakKeyDictionary[ServedBucket, float] = weakref.WeakKeyDictionary()
        self._walks: weakref.WeakKeyDictionary[ServedBucket, AgeWalk] = weakref.WeakKeyDictionary()
        """Kept, so that no entry is looked at in each sweep."""
        self._rests: weakref.WeakKeyDictionary[ServedBucket, float] = weakref.WeakKeyDictionary()
        """Until when the changelogs of buckets rest."""

    async def sweep(self) -> None:
        """Look at every bucket that was used. A failure is logged, and the bucket tried again at the next sweep."""
        for name, index, bucket in list(self._catalog.open_buckets()):
            if bucket.storage.failure is not None or not self._is_due(bucket):
                continue
            idle = not bucket.is_open
            self._looked_at[bucket] = trio.current_time()
            try:
                wanted = await self.wanted_start(bucket)
                if wanted > bucket.storage.log_start:
                    async with bucket.between_commits(upkeep=True):
                        self._end_longest(f"{name}[{index}]", bucket, wanted)
                    await self.cut(name, index, bucket, wanted)
                await self._tidy(name, index, bucket)
                if idle:
                    await bucket.close_idle(0)
            except (StoreClosed, TableNotFound):
                continue  # It was dropped meanwhile.
            except ScannerError as error:
                self._failures.add(f"the changelog of {name}[{index}] is not cut", error)
            else:
                log = f"the changelog of {name}[{index}]"
                self._failures.clear(f"{log} is not cut", f"{log} is cut again, where it has to be")

    async def _tidy(self, name: str, index: int, bucket: ServedBucket) -> None:
        """Give back what is cut, and join small files: few, since others wait for the thread that compacts."""
        if trio.current_time() < self._rests.get(bucket, -math.inf):
            return
        log = f"the changelog of {name}[{index}]"
        await self._try(
            f"what is cut of {log} still takes disk", f"what is cut of {log} takes no disk", self.free(bucket)
        )
        if bucket.is_open:
            join = self._run_blocking(bucket.storage.join_log)
            await self._try(f"small files of {log} are not joined", f"{log} can be joined again", join)
        if bucket.storage.failure is not None:  # RocksDB takes no writes after that.
            self._rests[bucket] = trio.current_time() + _REST_S
            with suppress(ScannerError):  # Who looks at the disk tries again, and says so.
                await bucket.recover(at_once=True)

    async def _try(self, not_done: str, done: str, work: Awaitable[object]) -> None:
        try:
            await work
        except (DataCorrupted, StoreFailed) as error:
            self._failures.add(not_done, error)
        else:
            self._failures.clear(not_done, done)

    def _is_due(self, bucket: ServedBucket) -> bool:
        if bucket.is_open:
            return True
        if bucket.storage.log_start == bucket.storage.log_end:
            return False
        every_s = min(_IDLE_LOOK_S_MAX, self._config.log_retention_s / _IDLE_LOOK_SHARE)
        return trio.current_time() - self._looked_at.get(bucket, bucket.used_at) >= every_s

    async def wanted_start(self, bucket: ServedBucket) -> int:
        """Where a changelog would begin if nothing pinned it: by age and size.

        Raises:
            ScannerError: The bucket is retired, or storage failed.

        Waits:
            For the commit that runs now, if one does, and for storage; commits go on meanwhile.
        """
        async with bucket.between_commits(upkeep=True):
            pass  # It is open now, with room for its files, and with its image.
        now_us = self._clock.now_us()
        # However long, for ever included: nothing is older than the clock.
        oldest_us = now_us - round(min(self._config.log_retention_s * 1_000_000, now_us))
        while True:
            before = self._walks.get(bucket)
            look = functools.partial(self._look, bucket.storage, oldest_us, now_us, before)
            try:
                walk, wanted = await self._run_blocking(look)
            except OffsetOutOfRange:
                continue  # It was cut meanwhile, on demand or by a sweep.
            self._walks[bucket] = walk
            if walk.is_done:
                return wanted

    async def cut(self, name: str, index: int, bucket: ServedBucket, wanted: int) -> LogCut:
        """Cut a changelog in front of an offset and of what is still needed. A commit that it is inside of stays.

        Args:
            name: Of the table, for the log.
            index: Of the bucket.
            bucket: Whose changelog it is.
            wanted: Where it is to begin.

        Raises:
            ScannerError: Storage failed.

        Waits:
            For the commit that runs now, if one does, and for storage.

        Cancellation:
            It may have been cut.
        """
        if self._hold_leased is not None:
            await self._hold_leased(name, index)
        storage = bucket.storage
        if storage.log_start < storage.log_end <= wanted:
            await self._run_blocking(storage.log_is_readable)  # Here, where no commit waits for it.
        async with bucket.between_commits(upkeep=True):
            before, wanted = storage.log_start, min(wanted, storage.log_end)
            if before < wanted < storage.log_end:
                wanted = await self._run_blocking(functools.partial(storage.share_start, wanted))
            oldest = bucket.pins.oldest()
            start = wanted if oldest is None else min(wanted, oldest)
            if start > before:
                await self._run_blocking(functools.partial(storage.truncate_log, start))
            dropped = storage.log_start - before
            keeping = sorted((pin for pin in bucket.pins if pin.offset < wanted), key=lambda pin: pin.offset)
            pinned = max(0, wanted - storage.log_start) if keeping else 0
            done = LogCut(storage.log_start, storage.log_end, dropped, pinned, tuple(keeping))
        self._catalog.activity.log_changes_dropped += dropped
        if dropped:
            _logger.info("the changelog of %s[%d] lost its %d oldest changes", name, index, dropped)
        return done

    async def free(self, bucket: ServedBucket) -> None:
        """Give back the disk that changes take which were cut, where that costs less than it frees.

        Raises:
            ScannerError: Storage failed.

        Waits:
            For storage: seconds, where a GiB was cut. Commits wait for some tenths of one, scans go on.
        """
        if bucket.is_open and await self._run_blocking(bucket.storage.free_log):
            bucket.log_freed += 1

    def _look(
        self, storage: Bucket, oldest_us: int, now_us: int, before: AgeWalk | None
    ) -> tuple[AgeWalk, int]:
        """Walk on; and, once that is done, where the log would begin if nothing pinned it.

        What it would divide stays whole.
        """
        walk = walk_expired(storage, oldest_us, now_us, before)
        wanted = walk.end
        if not walk.is_done:
            return walk, wanted
        bytes_max = self._config.log_retention_bytes
        if storage.log_bytes > bytes_max:
            # By what each stretch takes: old changes may be much larger than new ones, or much smaller.
            offsets = range(storage.log_start, storage.log_end)
            kept = bisect_left(offsets, True, key=lambda offset: storage.log_bytes_from(offset) <= bytes_max)
            wanted = max(wanted, offsets.start + kept)
        return walk, storage.share_start(wanted)

    def _end_longest(self, where: str, bucket: ServedBucket, wanted: int) -> None:
        """End the pins that keep more than their principal may keep from retention."""
        storage, limit = bucket.storage, self._config.log_pinned_bytes_max
        wanted_bytes = storage.log_bytes_from(wanted)
        for principal in bucket.pins.oldest_by_principal():
            while (pin := bucket.pins.longest_of(principal)) is not None:
                kept = storage.log_bytes_from(pin.offset) - wanted_bytes
                if kept <= limit:
                    break
                error = SlowConsumer(
                    f"the {pin.what} kept {kept} bytes of the changelog of {where} from retention, "
                    f"and one principal may keep {limit}",
                    oldest_offset=storage.log_start,
                )
                _logger.warning("of %s: %s", principal, error.message)
                pin.end(error)


def walk_expired(
    storage: Bucket,
    oldest_us: int,
    now_us: int,
    before: AgeWalk | None = None,
    entries_max: int = _ENTRIES_WALKED_MAX,
) -> AgeWalk:
    """Where the entries end that are all older than a time.

    Commit times only grow, so a clock that was ahead once makes those of all later commits too young until it has
    caught up. There what the clock said decides, entry by entry. One whose clock cannot have been right, because it is
    ahead of the time or behind an entry before it, is as old as the next one whose clock can.

    Args:
        storage: Of the bucket.
        oldest_us: What is older goes, in microseconds since 1970 UTC.
        now_us: The time.
        before: What an earlier walk of the same server has found, to go on from there; None: begin anew.
        entries_max: How many entries are looked at.

    Returns:
        The walk. Its end is an offset of [log_start, log_end]; an entry's end.

    Raises:
        DataCorrupted: An entry cannot be read.
    """
    begin = storage.offset_at(oldest_us)
    if before is not None and begin <= before.at <= storage.log_end:
        at, end, newest_us = before.at, max(before.end, begin), before.newest_us
    else:
        at = end = begin
        newest_us = storage.entry_at(at - 1).clock_us if at > storage.log_start else 0
    for _ in range(entries_max):
        if at >= storage.log_end:
            break
        entry = storage.entry_at(at)
        if newest_us <= entry.clock_us <= now_us:
            if entry.clock_us >= oldest_us:
                break
            newest_us, end = entry.clock_us, entry.end
        at = entry.end
    else:
        return AgeWalk(at, end, newest_us, is_done=False)
    return AgeWalk(at, end, newest_us, is_done=True)
