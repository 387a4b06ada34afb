"""Coordinators of reader groups that are broken on purpose, by replacing one thing of the product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.server.groups.coordinator import AssignedBucket, Member, ReaderGroup, _Seat
from scanner.storage.interface import GroupState

if TYPE_CHECKING:
    import pytest


def end_no_scan(patch: pytest.MonkeyPatch) -> None:
    """The scan of the reader before is left alone."""
    forgotten = property(lambda _seat: None, lambda _seat, _scan: None)
    patch.setattr(_Seat, "scan", forgotten, raising=False)


def accept_stale_epochs(patch: pytest.MonkeyPatch) -> None:
    """A position is stored whoever brings it."""
    original = ReaderGroup.commit

    async def commit(self: ReaderGroup, index: int, _epoch: int, position: int, **_: bool) -> None:
        await original(self, index, self._seats[index].state.epoch, position)

    patch.setattr(ReaderGroup, "commit", commit)


def give_to_everybody(patch: pytest.MonkeyPatch) -> None:
    """Each member is told that it has every bucket which somebody has."""

    def assignment(self: ReaderGroup, _member: Member) -> tuple[AssignedBucket, ...]:
        return tuple(
            AssignedBucket(seat.index, seat.state.epoch, False)
            for seat in self._seats
            if seat.owner is not None
        )

    patch.setattr(ReaderGroup, "assignment", assignment)


def count_epochs_down(patch: pytest.MonkeyPatch) -> None:
    """Each assignment of a bucket has a smaller epoch than the one before."""
    write = _Seat.write

    async def lower(self: _Seat, state: GroupState) -> None:
        before = self.state.epoch
        await write(self, state if not before or state.epoch == before else state._replace(epoch=before - 1))

    patch.setattr(_Seat, "write", lower)


def forget_positions(patch: pytest.MonkeyPatch) -> None:
    """Who gets a bucket gets it from its beginning."""
    write = _Seat.write

    async def anew(self: _Seat, state: GroupState) -> None:
        moved = state.epoch != self.state.epoch
        await write(self, GroupState(state.epoch) if moved else state)

    patch.setattr(_Seat, "write", anew)


def store_what_was_handed_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """A position stands where the log ends, not where the reader does."""
    original = ReaderGroup.commit

    async def commit(self: ReaderGroup, index: int, epoch: int, _position: int, **_: bool) -> None:
        await original(self, index, epoch, self._seats[index].bucket.storage.log_end)

    patch.setattr(ReaderGroup, "commit", commit)


def begin_one_commit_later(patch: pytest.MonkeyPatch) -> None:
    """Who gets a bucket is told to begin one commit behind the position that is stored."""

    def position(self: ReaderGroup, bucket: int) -> int | None:
        seat = self._seats[bucket]
        stored, storage = seat.state.position, seat.bucket.storage
        if stored is None or not storage.log_start <= stored < storage.log_end:
            return stored
        return storage.entry_at(stored).end

    patch.setattr(ReaderGroup, "position", position)
