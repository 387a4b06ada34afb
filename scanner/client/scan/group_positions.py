"""How far a reader of a group was handed its buckets, by which epochs, and what of that is stored. Pure.

Invariants:

1. A position counts for the epoch that it was handed out for. What is stored is told by the server's answer alone.
2. What was handed out, and not stored before its epoch was over, is told once (`lost`), unless the program says first
   that it has dealt with it.
3. What the filter has passed over is no loss: nobody deals with it (`Handed.owed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Handed:
    """How far a bucket was handed out, by one epoch."""

    epoch: int
    position: int
    committed: bool = False
    owed: bool = True
    """Whether something was handed out before it that is not known to be stored: the program says when it is."""


class GroupPositions:
    """The positions of one reader."""

    def __init__(self) -> None:
        self._handed: dict[int, Handed] = {}
        """By bucket, how far it was handed out by its newest epoch."""
        self._before: dict[int, Handed] = {}
        """By bucket, how far it was ever handed out by an epoch that is over: the latest one, and the furthest."""
        self._amid: set[int] = set()
        """Buckets of which something was handed out behind their position, in the middle of a commit."""
        self._dropped: dict[int, Handed] = {}
        """By bucket, what was handed out and not stored before its epoch was over, until `lost` has told of it."""

    @property
    def ends(self) -> dict[int, int]:
        """By bucket, the end of the last commit of which every change was handed out."""
        return {bucket: handed.position for bucket, handed in self._handed.items()}

    @property
    def not_stored(self) -> dict[int, Handed]:
        """By bucket, what was handed out and is not known to be stored."""
        return {bucket: each for bucket, each in self._handed.items() if not each.committed}

    @property
    def passed_over(self) -> dict[int, Handed]:
        """Those of `not_stored` before which nothing is owed: the filter dropped what is new."""
        return {bucket: each for bucket, each in self._handed.items() if not (each.committed or each.owed)}

    @property
    def all_stored(self) -> bool:
        """Whether nothing is left to store."""
        return all(each.committed for each in self._handed.values())

    def is_stored(self, bucket: int) -> bool:
        """Whether nothing of a bucket is left to store."""
        handed = self._handed.get(bucket)
        return handed is None or handed.committed

    def take_rows(self, bucket: int) -> None:
        """Something of a bucket was handed out, behind its position."""
        self._amid.add(bucket)

    def take_position(self, bucket: int, epoch: int, position: int) -> None:
        """A bucket was handed out up to a commit's end."""
        handed = self._handed.get(bucket)
        if handed is None or handed.position != position:
            owed = bucket in self._amid or (handed is not None and handed.owed)
            self._handed[bucket] = Handed(epoch, position, owed=owed)
        self._amid.discard(bucket)

    def begin_epoch(self, bucket: int) -> None:
        """The epoch by which a bucket was handed out is over."""
        self._amid.discard(bucket)
        handed, before = self._handed.pop(bucket, None), self._before.get(bucket)
        if handed is not None:
            if handed.owed and not handed.committed:
                self._dropped[bucket] = handed
            furthest = handed.position if before is None else max(handed.position, before.position)
            self._before[bucket] = Handed(handed.epoch, furthest)

    def epoch_of(self, bucket: int, position: int, assigned: int | None) -> int | None:
        """The epoch by which a position was told; the present one if it was not told by this reader. None: none.

        By the present one the server would take what was told by an earlier one. It may be of another state of the
        bucket: since a backup was restored, it would go past changes that nobody was given.

        Args:
            bucket: Of the position.
            position: The end of a commit.
            assigned: The epoch of the bucket, if it is this reader's now.
        """
        handed, before = self._handed.get(bucket), self._before.get(bucket)
        if (
            before is not None
            and position <= before.position
            and (handed is None or position > handed.position)
        ):
            return before.epoch
        return assigned if handed is None else handed.epoch

    def was_told_before(self, bucket: int, position: int) -> bool:
        """Whether an earlier epoch may have told a position: the end of a commit of another state of the bucket."""
        before = self._before.get(bucket)
        return before is not None and position <= before.position

    def take_stored(self, bucket: int, stored: Handed) -> None:
        """The server has stored a position."""
        stored.committed = True
        handed = self._handed.get(bucket)
        if handed is not None and handed.epoch == stored.epoch:
            handed.committed |= handed.position == stored.position
            handed.owed = handed.position != stored.position

    def take_stale(self, bucket: int, refused: Handed) -> None:
        """The server has refused a position, because its epoch is over."""
        handed = self._handed.get(bucket)
        if handed is not None and handed.epoch == refused.epoch:
            self.begin_epoch(bucket)

    def lost(self, refused: Iterable[int], *, all_meant: bool) -> tuple[int, ...]:
        """The buckets of which a position is not known to be stored; they count as told.

        Args:
            refused: Buckets of which the server has refused a position.
            all_meant: Whether everything that was handed out was to be stored.
        """
        told = set(refused)
        if all_meant:
            told |= {bucket for bucket, each in self._dropped.items() if not each.committed}
        for bucket in told:
            self._dropped.pop(bucket, None)
        return tuple(sorted(told))
