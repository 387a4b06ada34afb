"""How much of the changelogs goes into the next micro-batch.

A commit is in it whole or not at all. They are admitted one by one, each from the bucket that has got the least so
far, measured by its share of the limits; among equals the oldest commit is first. So a bucket that is a hundred times
busier than another takes what the other does not need (max-min fairness), and with a limit of a single commit the
oldest of all buckets is next, so that none starves.

Invariants:

1. A micro-batch ends at ends of commits, at or before `until`, and never before where it began.
2. It holds everything up to `until`, or reaches a limit; and it is past that by less than its last commit.
3. It holds at least a commit if there is one.
4. A bucket that has more to give has got no less than any other, but for the other's last commit.

Pure: knows no network, no Spark and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spark_source.stream.options import Limits


class Commit(NamedTuple):
    """A commit of one bucket's changelog."""

    end: int
    """One past the offset of its last change."""
    bytes: int
    """Stored rows of its changes."""
    timestamp_us: int
    """Its time, microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What a bucket has to give."""

    start: int
    """Where the micro-batch begins."""
    until: int
    """Where it ends at the latest: the end of a commit, at or behind `start`."""
    commits: tuple[Commit, ...]
    """From `start` on, adjacent, as far as they were measured; what is behind `until` does not count."""

    @property
    def measured(self) -> int:
        """How far they were measured."""
        return self.commits[-1].end if self.commits else self.start


@dataclass(frozen=True, slots=True)
class Admitted:
    """What goes in."""

    ends: Mapping[int, int]
    """By bucket, where the micro-batch ends."""
    short: frozenset[int]
    """Buckets of which more has to be measured before that can be said; then `ends` is not the answer yet."""


def admit(pending: Mapping[int, Pending], limits: Limits) -> Admitted:
    """Choose the ends of the next micro-batch.

    Args:
        pending: By bucket, what there is.
        limits: How much may go in; the minimum is the business of the caller.
    """
    if limits.unlimited:
        return Admitted({bucket: each.until for bucket, each in pending.items()}, frozenset())
    ends = {bucket: each.start for bucket, each in pending.items()}
    taken = dict.fromkeys(pending, 0)
    taken_bytes = dict.fromkeys(pending, 0)
    rows = size = 0
    turns = [
        (0.0, _first_time(each), bucket, 0)
        for bucket, each in sorted(pending.items())
        if each.start < each.until
    ]
    heapq.heapify(turns)
    while turns and not _reached(limits, rows, size):
        _, _, bucket, index = heapq.heappop(turns)
        each = pending[bucket]
        if index == len(each.commits):
            return Admitted(ends, _unmeasured(pending))
        commit = each.commits[index]
        changes = commit.end - ends[bucket]
        rows, size = rows + changes, size + commit.bytes
        taken[bucket] += changes
        taken_bytes[bucket] += commit.bytes
        ends[bucket] = commit.end
        if commit.end < each.until:
            following = each.commits[index + 1 : index + 2]
            share = _share(limits, taken[bucket], taken_bytes[bucket])
            heapq.heappush(turns, (share, following[0].timestamp_us if following else 0, bucket, index + 1))
    return Admitted(ends, frozenset())


def _unmeasured(pending: Mapping[int, Pending]) -> frozenset[int]:
    """Buckets that have more than what was measured of them."""
    return frozenset(bucket for bucket, each in pending.items() if each.measured < each.until)


def _first_time(pending: Pending) -> int:
    return pending.commits[0].timestamp_us if pending.commits else 0


def _reached(limits: Limits, rows: int, size: int) -> bool:
    return (limits.rows_max is not None and rows >= limits.rows_max) or (
        limits.bytes_max is not None and size >= limits.bytes_max
    )


def _share(limits: Limits, rows: int, size: int) -> float:
    """The part of the nearest limit that so much is."""
    of_rows = rows / limits.rows_max if limits.rows_max is not None else 0.0
    of_bytes = size / limits.bytes_max if limits.bytes_max is not None else 0.0
    return max(of_rows, of_bytes)


class Delay:
    """Whether a micro-batch waits for more changes: options ``minRowsPerTrigger`` and ``maxTriggerDelay``.

    The first one after a start does not wait, as Kafka's does not: what waited before the start has waited enough.

    Args:
        limits: Of the query.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last_s: float | None = None

    def waits(self, available: int, now_s: float) -> bool:
        """Whether to wait; if not, the delay begins anew.

        Args:
            available: Changes that there are.
            now_s: Seconds of a clock that never goes back.
        """
        limits = self._limits
        if (
            limits.rows_min is not None
            and available < limits.rows_min
            and self._last_s is not None
            and now_s < self._last_s + limits.delay_s
        ):
            return True
        if available:
            self._last_s = now_s
        return False
