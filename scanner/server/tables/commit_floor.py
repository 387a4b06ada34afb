"""The commit-time floor: the newest time of which somebody was told that no later commit will be as old.

A bucket that is written tells by its commits how far its time has come. One that is idle tells nothing, and a watermark
over several buckets would stand still. So its tails are told a floor: every later commit has a later time. And who asks
where a time is in the log gets an answer that a later commit must not change.

Invariants:

1. A floor is durable before it is told, so it also binds a server that starts after a crash, whatever its clock says.
2. It only rises. It is the time of a moment that has passed, so it makes no commit time later than the clock, unless
   the clock was set back, or was ahead when the floor was told.
3. There is one floor for all buckets of a data directory: one small document, written only when somebody is told: for
   tails at most once an interval, and for a question if its time is newer than the floor and the bucket's commits. A
   copy or a backup of the directory may not know the newest ones.

How a commit that is being written meets a floor is the bucket's business
(`scanner.server.tables.bucket.ServedBucket.commit_time_floor_us`). This module knows no wire.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import trio

from scanner.errors import DataCorrupted, ScannerError

if TYPE_CHECKING:
    from scanner.storage.interface import Store
    from scanner.tasks import RunBlocking

FLOOR_DOCUMENT: Final = "commit_time_floor.json"
_TIME_US_MAX: Final = 2**63 - 1

_logger = logging.getLogger(__name__)


class CommitTimeFloor:
    """The floor of one data directory. Made by `CommitTimeFloor.load`.

    Args:
        store: Where it is kept.
        run_blocking: Runs what storage does.
        now_us: The clock that stamps the commits, in microseconds since 1970 UTC.
        floor_us: What was told last; 0: nothing.
    """

    def __init__(
        self, store: Store, run_blocking: RunBlocking, now_us: Callable[[], int], floor_us: int = 0
    ) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._now_us = now_us
        self._raising = trio.Lock()
        self._failed = False
        self.floor_us = floor_us
        """Durable. Every commit that begins now is stamped with a later time; microseconds since 1970 UTC."""

    @classmethod
    async def load(cls, store: Store, run_blocking: RunBlocking, now_us: Callable[[], int]) -> Self:
        """Read what earlier servers of the data directory have told.

        Raises:
            DataCorrupted: The document is damaged; the message says what to do.
            StoreFailed: It cannot be read.
        """
        try:
            document = await run_blocking(functools.partial(store.read_document, FLOOR_DOCUMENT))
            floor_us = 0 if document is None else _decode(document)
        except DataCorrupted as error:
            raise DataCorrupted(
                f"{error.message}; restore it from a copy, or remove it: if the clock is behind, commits then get times"
                " of which tails were told that they have passed"
            ) from error
        return cls(store, run_blocking, now_us, floor_us)

    async def refresh(self, age_us_max: int) -> None:
        """Raise the floor to the present, unless it is newer than `age_us_max`. A disk that refuses leaves it as it is.

        Args:
            age_us_max: Microseconds; above 0.

        Waits:
            For the disk, if the floor is older.

        Cancellation:
            It may have been raised.
        """
        async with self._raising:
            now_us = self._now_us()
            if now_us - self.floor_us >= age_us_max:
                await self._raise(now_us)

    async def cover(self, time_us: int) -> None:
        """Raise the floor to the present, if it is below a time that has passed.

        A disk that refuses leaves it as it is.

        Args:
            time_us: Microseconds since 1970 UTC. One that is in the future changes nothing.

        Waits:
            For the disk, if the floor is below.

        Cancellation:
            It may have been raised.
        """
        async with self._raising:
            now_us = self._now_us()
            if self.floor_us < time_us <= now_us:
                await self._raise(now_us)

    async def _raise(self, now_us: int) -> None:
        document = json.dumps({"floor_us": now_us}).encode() + b"\n"
        try:
            await self._run_blocking(functools.partial(self._store.write_document, FLOOR_DOCUMENT, document))
        except ScannerError as error:
            if not self._failed:
                _logger.warning(
                    "watermarks over idle buckets stand still, and what is told of times does not bind the next server:"
                    " %s",
                    error,
                )
            self._failed = True
            return
        if self._failed:
            _logger.warning("watermarks over idle buckets move again")
        self._failed = False
        self.floor_us = now_us


def _decode(document: bytes) -> int:
    try:
        floor_us = json.loads(document)["floor_us"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataCorrupted(f"the document {FLOOR_DOCUMENT} is no commit-time floor: {error!r}") from error
    if type(floor_us) is not int or not 0 <= floor_us <= _TIME_US_MAX:
        raise DataCorrupted(f"the document {FLOOR_DOCUMENT} names no time: {floor_us!r}")
    return floor_us
