"""Caps on what a server keeps between the calls of a pull model: per bucket, and in all.

A slot is taken before anything is opened, so a cap refuses before anything is opened.

Invariants:

1. The slots that are taken never exceed the caps. A refusal changes nothing.
2. A slot is given back once, however often that is asked for.

Pure: no clock, no task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from scanner.errors import TooManyScans


@dataclass(slots=True, eq=False)
class Reservation:
    """A slot that is taken."""

    bucket: Hashable
    held: bool = True

    def hand_over(self) -> Reservation:
        """The slot, with a new owner; this reservation no longer holds it."""
        self.held = False
        return Reservation(self.bucket)


class Slots:
    """The slots of one pull model.

    Args:
        what: Names what takes them, in the plural, e.g. `sessions`.
        per_bucket_max: Slots of one bucket.
        total_max: Slots of the server.
    """

    def __init__(self, what: str, per_bucket_max: int, total_max: int) -> None:
        self._what = what
        self._per_bucket_max = per_bucket_max
        self._total_max = total_max
        self._taken: Counter[Hashable] = Counter()

    def reserve(self, bucket: Hashable) -> Reservation:
        """Take a slot; give it back with `release`.

        Raises:
            TooManyScans: A cap is reached; nothing has changed.
        """
        self._check(self._taken[bucket], self._per_bucket_max, "bucket")
        self._check(self._taken.total(), self._total_max, "server")
        self._taken[bucket] += 1
        return Reservation(bucket)

    def release(self, reservation: Reservation) -> None:
        """Give a slot back. Idempotent; without effect if it was handed over."""
        if not reservation.held:
            return
        reservation.held = False
        self._taken[reservation.bucket] -= 1
        if not self._taken[reservation.bucket]:
            del self._taken[reservation.bucket]

    def make_room(
        self, bucket: Hashable, dispensable: Iterable[tuple[Reservation, Callable[[], None]]]
    ) -> None:
        """Have what can be done without give its slots back, as far as `reserve` would be refused otherwise.

        Args:
            bucket: About to be reserved.
            dispensable: Slots, and what releases each, the first to go first.
        """
        for slot, free in dispensable:
            if self._taken[bucket] >= self._per_bucket_max:
                if slot.bucket == bucket:
                    free()
            elif self._taken.total() >= self._total_max:
                free()
            else:
                return

    def _check(self, taken: int, allowed: int, where: str) -> None:
        if taken >= allowed:
            raise TooManyScans(
                f"{taken} {self._what} are open on this {where}, and {allowed} are allowed;"
                " close one, or try again later"
            )
