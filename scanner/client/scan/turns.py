"""Batches of several buckets on their way to one consumer, in turns. Pure.

Invariants:

1. The batches of a bucket come in the order in which they were put.
2. Buckets that have something take turns, a batch each: a batch at the head of its bucket waits for one of each other
   bucket at most, however many those have and however quickly more come.
3. What has no rows takes no room: it joins what has none and waits right before it in its bucket, which counts as
   consumed then, so that a consumer that stands still does not collect heartbeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.client.scan.resume_position import BucketPosition


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch on its way to the consumer."""

    bucket: int
    batch: pa.RecordBatch
    size: int
    """Message bytes that it keeps in memory; 0: it has no rows and tells how far the bucket is."""
    consumed: Callable[[], None]
    """Called once: when the consumer asks for the next batch, or when another delivery has joined this one."""
    position: int | None = None
    """LOG and HYBRID: a commit's end; every change before it has come with this delivery or earlier."""
    snapshot_end: int | None = None
    """HYBRID: the snapshot of the bucket, as of this offset, is complete."""
    commit_time_floor_us: int | None = None
    """LOG and HYBRID: every change committed at this time or before it, in microseconds since 1970 UTC, has come with
    this delivery or earlier."""
    behind: BucketPosition | None = None
    """Where the scan of the bucket stands behind this delivery; None: it is not resumed by a position."""
    epoch: int = 0
    """Of the reader group's assignment that it is for; 0: it is for none."""

    def joined_by(self, later: Delivery) -> Delivery:
        """This and the next one, of which neither has rows, as one."""
        return replace(
            later,
            position=self.position if later.position is None else later.position,
            snapshot_end=self.snapshot_end if later.snapshot_end is None else later.snapshot_end,
            commit_time_floor_us=(
                self.commit_time_floor_us
                if later.commit_time_floor_us is None
                else later.commit_time_floor_us
            ),
        )


class Turns:
    """What waits for the consumer, bucket by bucket."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Delivery]] = {}
        self.ready: deque[deque[Delivery]] = deque()
        """The buckets that have something, in the order of their turns; to be asked whether there are any."""

    def put(self, delivery: Delivery) -> None:
        """Add a batch behind those of its bucket."""
        lane = self._lanes.get(delivery.bucket)
        if lane is None:
            lane = self._lanes[delivery.bucket] = deque()
        if not lane:
            self.ready.append(lane)
        elif not delivery.size and not lane[-1].size and delivery.epoch == lane[-1].epoch:
            before = lane.pop()
            delivery = before.joined_by(delivery)
            before.consumed()
        lane.append(delivery)

    def take(self) -> Delivery:
        """Remove and return the first batch of the bucket whose turn it is. There must be one."""
        lane = self.ready.popleft()
        delivery = lane.popleft()
        if lane:
            self.ready.append(lane)
        return delivery

    def has(self, bucket: int) -> bool:
        """Whether something of this bucket waits."""
        return bool(self._lanes.get(bucket))

    def clear(self) -> None:
        """Drop everything."""
        self._lanes.clear()
        self.ready.clear()
