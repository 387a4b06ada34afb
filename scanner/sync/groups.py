"""Readers of groups in the blocking client; see `scanner.client.scan.group_scan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pyarrow as pa
import trio

from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.group_scan import GroupBatches as TrioGroupBatches
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.scan import GroupScan as TrioGroupScan
from scanner.sync.hand_over import HandOver
from scanner.sync.portal import Held, Portal


class GroupScan(ScanBuilder):
    """A scan of the changes of a table as a reader of a group; made by `Scan.in_group`."""

    def __init__(self, portal: Portal, scan: TrioGroupScan) -> None:
        super().__init__(scan.plan)
        self._portal = portal
        self._scan = scan

    def _derive(self, plan: ScanPlan) -> GroupScan:
        return GroupScan(self._portal, self._scan.with_plan(plan))

    @contextmanager
    def execute(self) -> Iterator[GroupBatches]:
        """Join the group for the length of a block, and read what is this reader's of it.

        The client's thread keeps the membership while the block computes, for as long as it takes.

        Example:
            >>> with orders.new_scan().with_source("log").in_group("billing").execute() as batches:
            ...     for batch in batches:
            ...         ...
            ...         batches.commit()
        """
        held = self._portal.hold(self._scan.execute())
        try:
            batches = GroupBatches(self._portal, held)
            yield batches
            batches._hold_back()
        except BaseException:
            held.leave(abandoned=True)
            raise
        held.leave()


class _Place(NamedTuple):
    """How far a reader has come."""

    bucket: int | None
    epoch: int | None
    positions: Mapping[int, int]


class GroupBatches(Iterator["pa.RecordBatch"]):
    """The batches of a reader of a group; made by `GroupScan.execute`. See `scanner.GroupBatches`."""

    def __init__(self, portal: Portal, held: Held[TrioGroupBatches]) -> None:
        self._portal = portal
        self._held = held
        self._batches = batches = held.value
        self._hand_over = HandOver(
            portal, batches, lambda: _Place(batches.bucket, batches.epoch, batches.positions)
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._batches.schema

    @property
    def member(self) -> str:
        """Names this reader within the group."""
        return self._batches.member

    @property
    def bucket(self) -> int | None:
        """The bucket that the newest batch is of; None: none has come."""
        return self._hand_over.place.bucket

    @property
    def epoch(self) -> int | None:
        """The epoch that the newest batch is of; see `scanner.GroupBatches.epoch`."""
        return self._hand_over.place.epoch

    @property
    def positions(self) -> dict[int, int]:
        """By bucket, how far it was handed out; see `scanner.GroupBatches.positions`."""
        return dict(self._hand_over.place.positions)

    @property
    def assigned(self) -> dict[int, int]:
        """The buckets that are this reader's now, and the epoch of each."""
        return self._portal.call(self._assigned)

    @property
    def schema_outdated(self) -> bool:
        """Whether the table has got columns since; see `scanner.GroupBatches.schema_outdated`."""
        return self._batches.schema_outdated

    def __next__(self) -> pa.RecordBatch:
        """The next batch; the one before counts as consumed. See `scanner.GroupBatches.__anext__`.

        Raises:
            StopIteration: Every bucket that is this reader's came to its stop, or the limit is reached.
            ScannerError: The scan failed, now and for ever.
            trio.ClosedResourceError: The scan or the client was left.

        Cancellation:
            KeyboardInterrupt loses and repeats nothing in a `for` loop: the next goes on. In `batch = next(batches)`
            Python may raise it between the two, when the batch counts as handed out and nobody has it.
        """
        return self._hand_over.next()

    def commit(self, positions: Mapping[int, int] | None = None) -> tuple[int, ...]:
        """Store positions, durably; see `scanner.GroupBatches.commit`.

        Returns:
            The buckets of which a position is not known to be stored, because they were given to a reader anew since.
        """
        return self._portal.call(self._commit, positions)

    def _hold_back(self) -> None:
        """Let the end store nothing of a batch that is there, and that nobody has got because of an interrupt."""
        with suppress(trio.ClosedResourceError):  # Then the end stores nothing at all.
            self._portal.call(self._hold_back_waiting)

    def close(self) -> None:
        """Leave the group soon, from any thread: who waits for a batch gets `trio.ClosedResourceError`. Idempotent."""
        self._held.leave_soon()

    # In the portal's thread, since a call that nobody waits for any more may bring a batch until then.

    async def _commit(self, positions: Mapping[int, int] | None) -> tuple[int, ...]:
        if positions is None and self._hand_over.waits:
            positions = self._hand_over.place.positions  # Not that of the batch which nobody has got.
        return await self._batches.commit(positions)

    async def _hold_back_waiting(self) -> None:
        if self._hand_over.waits:
            self._batches.hold_back(self._hand_over.place.positions)

    async def _assigned(self) -> dict[int, int]:
        return self._batches.assigned
