"""Finds the states that are to be leased, and holds them in the same moment.

A held state cannot go away: retention stops in front of its offset, and its checkpoint is not dropped. Whether it is
there is looked at while no commit and no truncation of its bucket runs, so nothing comes between look and hold.

This module knows no wire and nothing of leases but their names.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    OffsetOutOfRange,
    PermissionDenied,
    ScannerError,
    SlowConsumer,
    SnapshotLost,
    TableNotFound,
)
from scanner.server.fairness import pass_turn
from scanner.server.retention.lease_registry import LeasedState, LeaseKey

if TYPE_CHECKING:
    from scanner.data.half_applied import HalfApplied
    from scanner.server.retention.checkpoints import BucketCheckpoints, Checkpoints
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.log_pins import LogPin
    from scanner.storage.interface import Checkpoint

PIN: Final = "lease"
"""What pins the log, for people."""

OnEnd = Callable[[LeasedState, ScannerError], None]


class Choice(enum.Enum):
    """Which state of a bucket."""

    NEWEST = enum.auto()
    """The newest checkpoint; one is made if there is none."""
    NEWEST_EXISTING = enum.auto()
    """The newest checkpoint."""
    NEW = enum.auto()
    """A checkpoint as of now."""
    LOG = enum.auto()
    """As of now, without a checkpoint."""
    CHECKPOINT = enum.auto()
    """The checkpoint of a given id."""
    OFFSET = enum.auto()
    """As of a given offset: the checkpoint of that state, or else without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A state that is asked for."""

    table: str
    buckets: tuple[int, ...]
    """Empty: all of the table."""
    choice: Choice
    number: int = 0
    """The id or the offset, where the choice gives one."""
    may_checkpoint: bool
    """Whether the caller may have a checkpoint made, where the choice needs one."""


@dataclass(frozen=True, slots=True)
class RefusedTarget:
    """A target, or one bucket of it, that cannot be leased, and why."""

    table: str
    bucket: int | None
    """None: the table as a whole."""
    error: ScannerError


class HeldState:
    """A state that stays readable until it is released."""

    def __init__(self, state: LeasedState, pin: LogPin, checkpoints: BucketCheckpoints) -> None:
        self.state = state
        self.pin = pin
        self.checkpoints = checkpoints
        self._released = False
        if state.checkpoint_id is not None:
            checkpoints.hold(state.checkpoint_id)

    def release(self) -> None:
        """Release it. Idempotent."""
        if not self._released:
            self._released = True
            self.pin.release()
            if self.state.checkpoint_id is not None:
                self.checkpoints.release(self.state.checkpoint_id)


class FoundStates(NamedTuple):
    """What became of targets."""

    held: list[HeldState]
    """What is held now; whoever gets it releases it."""
    missing: list[RefusedTarget]
    """What cannot be leased."""
    half_applied: list[HalfApplied]
    """The versions of transactions of which the states of a table have a part."""


class StateFinder:
    """Finds and holds states.

    Args:
        catalog: Table catalog.
        checkpoints: Checkpoints of all buckets.
    """

    def __init__(self, catalog: Catalog, checkpoints: Checkpoints) -> None:
        self._catalog = catalog
        self._checkpoints = checkpoints

    async def hold_all(
        self, key: LeaseKey, targets: Iterable[Target], on_end: OnEnd, buckets_max: int
    ) -> FoundStates:
        """Hold what is asked for, as far as it exists.

        No version of a transaction is applied while several buckets of a table are held as they are now.

        Args:
            key: For whom.
            targets: What is asked for.
            on_end: Called when the log is taken away from a held state.
            buckets_max: Buckets that may be asked for, each as often as it is named.

        Raises:
            ArgumentInvalid: More are; nothing stays held.

        Waits:
            For the versions that are being applied; for the commits that run now; for the disk where a checkpoint is
            made; for its turn, at each bucket.

        Cancellation:
            Nothing stays held; checkpoints may have been made.
        """
        found, named = FoundStates([], [], []), 0
        by_table: dict[str, list[Target]] = {}
        for target in targets:
            by_table.setdefault(target.table, []).append(target)
        try:
            for name, wanted in by_table.items():
                try:
                    table = await self._catalog.table(name)
                except TableNotFound:
                    # The error's own message lists the tables there are, which not everybody may know.
                    error = TableNotFound(f"there is no table {name!r}")
                    found.missing.extend(RefusedTarget(name, None, error) for _ in wanted)
                    continue
                named += sum(len(target.buckets) or table.description.buckets for target in wanted)
                if named > buckets_max:  # Before one is looked at: a short request names millions.
                    raise ArgumentInvalid(
                        f"one request leases at most {buckets_max} buckets; lease them in parts"
                    )
                async with self._together(table, wanted):
                    await self._hold_table(key, table, wanted, on_end, found)
        except BaseException:
            for each in found.held:
                each.release()
            raise
        return found

    @asynccontextmanager
    async def _together(self, table: ServedTable, targets: Iterable[Target]) -> AsyncIterator[None]:
        """Keep versions away while the states of several buckets are taken as they are now."""
        taken = {target.buckets for target in targets if await self._takes_new(table, target)}
        several = len(taken) > 1 or any(len(buckets) != 1 for buckets in taken)
        async with table.versions.taking() if several and table.description.buckets > 1 else nullcontext():
            yield

    async def _takes_new(self, table: ServedTable, target: Target) -> bool:
        """Whether a target is of a state as of now, of one bucket at least."""
        if target.choice is Choice.NEWEST:
            for index in target.buckets or range(table.description.buckets):
                await pass_turn()
                with suppress(ScannerError):  # It is told when its turn comes.
                    if _newest(await self._checkpoints.of(table, index)) is None:
                        return True
        return target.choice in (Choice.NEW, Choice.LOG)

    async def _hold_table(
        self,
        key: LeaseKey,
        table: ServedTable,
        targets: Iterable[Target],
        on_end: OnEnd,
        found: FoundStates,
    ) -> None:
        name, offsets = table.description.name, dict[int, int]()
        for target in targets:
            for index in target.buckets or range(table.description.buckets):
                await pass_turn()
                try:
                    held = await self._hold(key, table, index, target, on_end)
                except ScannerError as error:
                    found.missing.append(RefusedTarget(name, index, error))
                else:
                    found.held.append(held)
                    offsets[index] = held.state.log_offset
        found.half_applied.extend(table.versions.half_applied(table.buckets, offsets))

    async def hold_again(self, key: LeaseKey, state: LeasedState, on_end: OnEnd) -> HeldState:
        """Hold a state that was held before a restart.

        Raises:
            TableNotFound, BucketNotFound, SnapshotLost, OffsetOutOfRange: It is not there any more.
            ScannerError: Storage failed.

        Waits:
            For storage.
        """
        table = await self._catalog.table(state.table)
        if table.table_id != state.table_id:
            raise TableNotFound(f"table {state.table!r} was dropped, and created again")
        checkpoints = await self._checkpoints.of(table, state.bucket)
        async with checkpoints.bucket.between_commits():
            storage = checkpoints.bucket.storage
            storage.lineage.require(state.history, state.log_offset, storage.log_end, "what the lease keeps")
            return _held(key, state, checkpoints, on_end)

    def problem_of(self, held: HeldState) -> ScannerError | None:
        """Why a state is not held after all: its table was dropped, or its log was taken away; else None."""
        state = held.state
        if not self._catalog.has(state.table, state.table_id):
            return TableNotFound(f"table {state.table!r} was dropped")
        if not held.pin.held:
            return SlowConsumer("the log that it would keep is more than one principal may keep")
        return None

    async def _hold(
        self, key: LeaseKey, table: ServedTable, index: int, target: Target, on_end: OnEnd
    ) -> HeldState:
        if index >= table.description.buckets:
            raise BucketNotFound(
                f"table {target.table!r} has no bucket {index}; it has 0 to {table.description.buckets - 1}"
            )
        checkpoints = await self._checkpoints.of(table, index)
        wants_new = target.choice is Choice.NEW or (
            target.choice is Choice.NEWEST and _newest(checkpoints) is None
        )
        if wants_new and not target.may_checkpoint:
            raise PermissionDenied(
                "a new checkpoint would have to be made, which is for administrators; lease the newest existing one, or"
                " the changelog (state log)"
            )
        with ExitStack() as until_held:
            new = None
            if wants_new:
                # Its log is kept from before it is made: retention may have more to cut before our turn comes.
                bucket = checkpoints.bucket
                pin = bucket.pins.pin(bucket.storage.log_end, key.principal, PIN, lambda _error: None)
                until_held.callback(pin.release)
                # It is taken as it is, also when others are made and it would be dropped meanwhile.
                new = until_held.enter_context(checkpoints.held(await checkpoints.create()))
            async with checkpoints.bucket.between_commits():
                checkpoint, offset = new, 0
                if new is None:
                    checkpoint, offset = _choose(checkpoints, target)
                log_offset = offset if checkpoint is None else checkpoint.log_offset
                state = LeasedState(
                    table=target.table,
                    table_id=table.table_id,
                    bucket=index,
                    checkpoint_id=None if checkpoint is None else checkpoint.checkpoint_id,
                    log_offset=log_offset,
                    history=checkpoints.bucket.storage.lineage.history_of(log_offset),
                )
                return _held(key, state, checkpoints, on_end)


def _choose(checkpoints: BucketCheckpoints, target: Target) -> tuple[Checkpoint | None, int]:
    """The state that is asked for: a checkpoint, or an offset without one."""
    match target.choice:
        case Choice.LOG:
            return None, checkpoints.bucket.storage.log_end
        case Choice.CHECKPOINT:
            return _existing(checkpoints, target.number), 0
        case Choice.OFFSET:
            return checkpoints.as_of(target.number), target.number
        case _:
            newest = _newest(checkpoints)
            if newest is None:
                raise SnapshotLost(
                    "there is no checkpoint whose log is still there; let one be made, or make one with weir"
                    " checkpoint",
                    oldest_offset=checkpoints.bucket.storage.log_start,
                )
            return newest, 0


def _newest(checkpoints: BucketCheckpoints) -> Checkpoint | None:
    """The newest checkpoint, if the log still reaches back to it: a lease keeps both."""
    newest = checkpoints.newest
    return None if newest is None or newest.log_offset < checkpoints.bucket.storage.log_start else newest


def _existing(checkpoints: BucketCheckpoints, checkpoint_id: int) -> Checkpoint:
    checkpoint = checkpoints.get(checkpoint_id)
    if checkpoint is None:
        known = ", ".join(str(each.checkpoint_id) for each in checkpoints) or "none"
        raise SnapshotLost(
            f"there is no checkpoint {checkpoint_id} of this bucket; it has: {known}",
            oldest_offset=checkpoints.bucket.storage.log_start,
        )
    return checkpoint


def _held(key: LeaseKey, state: LeasedState, checkpoints: BucketCheckpoints, on_end: OnEnd) -> HeldState:
    """Hold a state, if its checkpoint and its log still exist. Between two commits."""
    bucket: ServedBucket = checkpoints.bucket
    if state.checkpoint_id is not None:
        offset = _existing(checkpoints, state.checkpoint_id).log_offset
        if offset != state.log_offset:
            raise SnapshotLost(
                f"checkpoint {state.checkpoint_id} is as of offset {offset}, and the lease of {state.log_offset}:"
                " they are not from one copy of the data directory"
            )
    start, end = bucket.storage.log_start, bucket.storage.log_end
    if not start <= state.log_offset <= end:
        raise OffsetOutOfRange(
            f"the changelog is [{start}, {end}), so what comes after offset {state.log_offset} cannot be kept",
            oldest_offset=start,
        )
    pin = bucket.pins.pin(state.log_offset, key.principal, PIN, functools.partial(on_end, state))
    return HeldState(state, pin, checkpoints)
