"""What a server keeps for `token` scans between their pages: a snapshot each, for a time.

    KEPT --page--> KEPT                       the token names it by an id
    KEPT --the last page--> FINISHED          gone, and it may linger: the last page can be asked for again for a while
    KEPT --close, expire--> (gone)
    KEPT --end of the bucket--> ENDED         gone, and a later page is told why

A page uses a kept snapshot (`enter`, `leave`) and has a hold of its own on it, so letting go of what is kept harms no
page that is being made.

Invariants:

1. What is kept is closed exactly once.
2. Slots: reservations plus kept snapshots, per bucket and in all, never exceed the caps.
3. Only a page that was made extends a life; one that is being made outlasts it.
4. What is remembered of scans that have finished, or were ended, has a bound.

This module knows no clock (`now` is passed in), no randomness (`make_id` is), no transport and no Arrow.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from scanner.errors import SnapshotLost
from scanner.server.pull.slots import Reservation, Slots

if TYPE_CHECKING:
    from scanner.errors import ScannerError
    from scanner.server.config import ScannerConfig

_GONE_MAX: Final = 10_000
"""Ids of scans that have finished or were ended that are remembered; the oldest go first."""


class Resource(Protocol):
    """What keeps a snapshot open."""

    def close(self, *, linger: bool = False) -> None:
        """Let go of it; `linger`: it may be wanted again soon."""


ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(slots=True, eq=False)
class Kept(Generic[ResourceT]):
    """The snapshot of one scan between its pages. Changed by the registry only."""

    id: int
    slot: Reservation
    resource: ResourceT
    expires_at: float
    pages: int = 0
    """Pages that are being made of it."""
    confirmed: bool = False
    """The first page has arrived: its client said so, or has asked for another one."""
    given_up: bool = False
    """The first one may not have, and nobody has come back yet: it makes room for others."""


class PageSnapshots(Generic[ResourceT]):
    """All that a server keeps for scans by token.

    Args:
        config: Caps and TTL.
        make_id: Makes an unguessable id, 1 to 2^64 - 1.
    """

    def __init__(self, config: ScannerConfig, make_id: Callable[[], int]) -> None:
        self._ttl_s = config.page_snapshot_ttl_s
        self._make_id = make_id
        self._slots = Slots("scans by token", config.page_snapshots_per_bucket_max, config.page_snapshots_max)
        self._kept: dict[int, Kept[ResourceT]] = {}
        self._gone: OrderedDict[int, ScannerError | None] = OrderedDict()
        """Why they were ended; None: they have finished."""

    def __len__(self) -> int:
        return len(self._kept)

    def reserve(self, bucket: Hashable) -> Reservation:
        """Take a slot for a scan that is about to be opened; give it to `keep` or to `release`.

        Raises:
            TooManyScans: A cap is reached; nothing has changed.
        """
        given_up = [each for each in self._kept.values() if each.given_up and not each.pages]
        self._slots.make_room(
            bucket, ((each.slot, functools.partial(self._remove, each)) for each in given_up)
        )
        return self._slots.reserve(bucket)

    def kept(self) -> list[Kept[ResourceT]]:
        """All there is now."""
        return list(self._kept.values())

    def confirm(self, kept_id: int) -> None:
        """Take it that the first page has arrived; gone is fine."""
        kept = self._kept.get(kept_id)
        if kept is not None:
            kept.confirmed, kept.given_up = True, False

    def release(self, reservation: Reservation) -> None:
        """Give a slot back: the first page failed, or was the last. Idempotent; without effect after `keep`."""
        self._slots.release(reservation)

    def new_id(self) -> int:
        """An id for what is kept, to be written into the first page's token."""
        return self._make_id()

    def keep(self, reservation: Reservation, kept_id: int, resource: ResourceT, now: float) -> None:
        """Keep a snapshot whose scan has made its first page, and will make more.

        Args:
            reservation: Held; it is the snapshot's from now on.
            kept_id: From `new_id`.
            resource: Closed by the registry from now on.
            now: Seconds, of the same clock in all calls.
        """
        self._kept[kept_id] = Kept(kept_id, reservation.hand_over(), resource, now + self._ttl_s)

    def enter(self, kept_id: int, now: float) -> Kept[ResourceT] | None:
        """Begin a page.

        Args:
            kept_id: From a token that is one of ours.
            now: Seconds.

        Returns:
            What is kept, to be given to `leave`. None: the scan has finished, and its snapshot may linger.

        Raises:
            SnapshotLost: There is none of that id: its time was over, it was closed, or the server was started anew.
            ScannerError: What it was ended by.
        """
        kept = self._kept.get(kept_id)
        if kept is not None and not self._is_overdue(kept, now):
            kept.pages += 1
            kept.confirmed, kept.given_up = True, False
            return kept
        if kept is not None:
            self._remove(kept)
        if kept_id in self._gone:
            ended_by = self._gone[kept_id]
            if ended_by is None:
                return None
            raise type(ended_by)(ended_by.message, metadata=ended_by.metadata)
        raise lost(
            f"it is kept for {self._ttl_s:g} s after a page, until it is closed, or the server goes down"
        )

    def leave(self, kept: Kept[ResourceT], now: float, *, made: bool) -> None:
        """End a page.

        Args:
            kept: From `enter`.
            now: Seconds.
            made: Whether there is a page.
        """
        kept.pages -= 1
        if made:
            kept.expires_at = now + self._ttl_s

    def finish(self, kept: Kept[ResourceT]) -> None:
        """Let go of the snapshot of a scan whose last page was made; it may be asked for again. Idempotent."""
        if self._kept.get(kept.id) is not kept:
            return
        self._remember(kept.id, None)
        self._remove(kept, linger=True)

    def end(self, kept_id: int, error: ScannerError) -> None:
        """Let go because the bucket ends; later pages fail with `error`. Gone is fine."""
        kept = self._kept.get(kept_id)
        if kept is not None:
            self._remember(kept_id, error)
            self._remove(kept)

    def close(self, kept_id: int) -> None:
        """Let go as the client asks; of what is gone, too."""
        kept = self._kept.get(kept_id)
        if kept is not None:
            self._remove(kept)

    def give_up(self, kept_id: int, now: float, grace_s: float) -> None:
        """Let go because the first page may not have arrived, unless it is continued, now or soon.

        Args:
            kept_id: From `new_id`; gone is fine.
            now: Seconds.
            grace_s: How soon, seconds; 0: now.
        """
        kept = self._kept.get(kept_id)
        if kept is None or kept.confirmed:
            return
        kept.given_up = True
        kept.expires_at = min(kept.expires_at, now + grace_s)
        if self._is_overdue(kept, now):
            self._remove(kept)

    def sweep(self, now: float) -> int:
        """Reclaim what no page was made of for its TTL.

        Returns:
            How many these were.
        """
        overdue = [each for each in self._kept.values() if self._is_overdue(each, now)]
        for kept in overdue:
            self._remove(kept)
        return len(overdue)

    def close_all(self) -> None:
        """Let go of everything; for the end of the server, when no call runs any more."""
        for kept in list(self._kept.values()):
            self._remove(kept)

    @staticmethod
    def _is_overdue(kept: Kept[ResourceT], now: float) -> bool:
        return not kept.pages and now >= kept.expires_at

    def _remember(self, kept_id: int, ended_by: ScannerError | None) -> None:
        self._gone[kept_id] = ended_by
        if len(self._gone) > _GONE_MAX:
            self._gone.popitem(last=False)

    def _remove(self, kept: Kept[ResourceT], *, linger: bool = False) -> None:
        del self._kept[kept.id]
        self._slots.release(kept.slot)
        kept.resource.close(linger=linger)


def lost(why: str) -> SnapshotLost:
    """The error of a page whose snapshot is gone."""
    return SnapshotLost(f"the snapshot of this scan by token is gone ({why}); start a new scan")
