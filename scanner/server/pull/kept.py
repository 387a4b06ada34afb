"""What a server keeps between two calls of a pull scan, for a time to live: sessions, and the snapshots of pages.

    KEPT --begin--> IN USE --end--> KEPT
    KEPT --expire, remove--> (gone)

Invariants:

1. What is kept is closed exactly once.
2. Slots: reservations plus what is kept, per bucket and in all, never exceed the caps. A refused open changes nothing.
3. Time runs while no call uses it; what is in use does not expire.
4. What may not have reached its client (`give_up`) makes room for others, until a call uses it.
5. What is remembered of what is gone has a bound.

Everything is synchronous, so a check and what follows from it are one step for every other task. This module knows no
clock (`now` is passed in), no randomness (`make_id` is), no transport and no Arrow.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scanner.server.pull.slots import Reservation, Slots

if TYPE_CHECKING:
    from scanner.errors import ScannerError

IdT = TypeVar("IdT", bound=Hashable)


class Resource(Protocol):
    """What is kept: a scan."""

    def close(self, *, linger: bool = False) -> None:
        """Free it; `linger`: it may be wanted again soon."""


ResourceT = TypeVar("ResourceT", bound=Resource)


@dataclass(slots=True, eq=False, kw_only=True)
class Kept(Generic[IdT, ResourceT]):
    """One thing that is kept. Changed by its registry only."""

    id: IdT
    slot: Reservation
    resource: ResourceT
    expires_at: float
    """In seconds of the clock that `now` is of."""
    in_use: int = 0
    """Calls that use it."""
    confirmed: bool = False
    """The first page has arrived: its client said so, or has asked for another one."""
    given_up: bool = False
    """The first page may not have arrived, and its client has not come back yet."""


KeptT = TypeVar("KeptT", bound=Kept[Any, Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptLimits:
    """Of one registry."""

    what: str
    """Names what is kept in messages, in the plural, e.g. `sessions`."""
    per_bucket_max: int
    total_max: int
    """Of the server."""
    ttl_s: float
    """Time without a call after which it expires."""
    remembered_max: int
    """Ids of what is gone that are remembered; the oldest are forgotten first."""


class KeptRegistry(Generic[IdT, KeptT]):
    """All that a server keeps for one pull model.

    Args:
        limits: Caps and time to live.
        make_id: Makes an unguessable id.
        expired: What the calls on something that has expired fail with; None: as those on what never was.
    """

    def __init__(
        self, limits: KeptLimits, make_id: Callable[[], IdT], expired: ScannerError | None = None
    ) -> None:
        self._limits = limits
        self._expired = expired
        self._slots = Slots(limits.what, limits.per_bucket_max, limits.total_max)
        self._kept: dict[IdT, KeptT] = {}
        self._gone: OrderedDict[IdT, ScannerError | None] = OrderedDict()
        """Why they were ended; None: they have finished."""
        self.new_id = make_id

    def __len__(self) -> int:
        return len(self._kept)

    def all(self) -> list[KeptT]:
        """Everything that is kept."""
        return list(self._kept.values())

    def reserve(self, bucket: Hashable) -> Reservation:
        """Take a slot for what is about to be opened; put it into what is kept, or give it to `release`.

        Raises:
            TooManyScans: A cap is reached; nothing has changed.
        """
        given_up = [each for each in self._kept.values() if each.given_up and not each.in_use]
        self._slots.make_room(
            bucket, ((each.slot, functools.partial(self.remove, each)) for each in given_up)
        )
        return self._slots.reserve(bucket)

    def release(self, reservation: Reservation) -> None:
        """Give a slot back: the open failed, or its first page was the last. Idempotent; no effect once handed over."""
        self._slots.release(reservation)

    def add(self, kept: KeptT) -> None:
        """Keep something; its resource is closed by the registry from now on."""
        self._kept[kept.id] = kept

    def get(self, kept_id: IdT) -> KeptT | None:
        """What is kept under an id, expired or not; None: nothing."""
        return self._kept.get(kept_id)

    def find(self, kept_id: IdT, now: float) -> KeptT | None:
        """What is kept under an id; it is removed if it has expired. None: nothing.

        Raises:
            ScannerError: What it was ended by, as far as that is remembered.
        """
        kept = self._kept.get(kept_id)
        if kept is not None and self._is_overdue(kept, now):
            self.remove(kept, self._expired)
            kept = None
        if kept is None and (ended_by := self._gone.get(kept_id)) is not None:
            raise ended_by.reworded(ended_by.message)
        return kept

    def has_finished(self, kept_id: IdT) -> bool:
        """Whether the scan of an id came to its end, as far as that is remembered."""
        return kept_id in self._gone and self._gone[kept_id] is None

    def expires_at(self, now: float) -> float:
        """When something expires that is not used from now on."""
        return now + self._limits.ttl_s

    def begin(self, kept: KeptT) -> None:
        """A call uses it from now on."""
        kept.in_use += 1
        kept.given_up = False

    def end(self, kept: KeptT) -> None:
        """The call has ended for which `begin` was called."""
        kept.in_use -= 1

    def extend(self, kept: KeptT, now: float) -> None:
        """Begin its time to live anew."""
        kept.expires_at = self.expires_at(now)

    def confirm(self, kept: KeptT) -> None:
        """The first page has arrived."""
        kept.confirmed, kept.given_up = True, False

    def give_up(self, kept: KeptT, now: float, grace_s: float) -> None:
        """Remove it because its first page may not have arrived, unless it is used, now or soon.

        Args:
            kept: Gone is fine.
            now: Seconds.
            grace_s: How soon, seconds; 0: now.
        """
        if self._kept.get(kept.id) is not kept or kept.confirmed or kept.in_use:
            return
        kept.given_up = True
        kept.expires_at = min(kept.expires_at, now + grace_s)
        if grace_s <= 0:
            self.remove(kept)

    def remove(
        self,
        kept: KeptT,
        ended_by: ScannerError | None = None,
        *,
        finished: bool = False,
        linger: bool = False,
    ) -> None:
        """Free its slot and its resource. Idempotent.

        Args:
            kept: To be removed, in use or not.
            ended_by: What later calls on it fail with; None: as on what never was.
            finished: Its scan came to its end, which is remembered.
            linger: The resource may be wanted again soon.
        """
        if self._kept.get(kept.id) is not kept:
            return
        del self._kept[kept.id]
        self._slots.release(kept.slot)
        if finished or ended_by is not None:
            # Another one of its kind: its own traceback knows what was in hand where it was raised, pages among it.
            self._gone[kept.id] = ended_by and ended_by.reworded(ended_by.message)
            if len(self._gone) > self._limits.remembered_max:
                self._gone.popitem(last=False)
        kept.resource.close(linger=linger)

    def sweep(self, now: float) -> int:
        """Remove what has expired.

        Returns:
            How many these were.
        """
        overdue = [each for each in self._kept.values() if self._is_overdue(each, now)]
        for kept in overdue:
            self.remove(kept, self._expired)
        return len(overdue)

    def close_all(self) -> None:
        """Remove everything; for the end of the server, when no call runs any more."""
        for kept in self.all():
            self.remove(kept)

    @staticmethod
    def _is_overdue(kept: KeptT, now: float) -> bool:
        return not kept.in_use and now >= kept.expires_at
