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
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_source.stream.options import Limits

_UNKNOWN_TIME: Final = -(2**63)
"""Before every time."""


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


class Admission:
    """Chooses the ends of one micro-batch, as the commits become known.

    Holds the commits that were measured and have not gone in yet; each is looked at once, however often is measured.

    Args:
        pending: By bucket, what there is; nothing of it is measured yet.
        limits: How much may go in; the minimum is the business of the caller.
    """

    def __init__(self, pending: Mapping[int, Pending], limits: Limits) -> None:
        self._limits = limits
        self._rows = 0
        self._bytes = 0
        self._buckets = {
            bucket: _Bucket(limits, each.start, each.until) for bucket, each in sorted(pending.items())
        }
        self._turns = [
            each.turn(bucket) for bucket, each in self._buckets.items() if each.admitted < each.until
        ]
        heapq.heapify(self._turns)

    @property
    def ends(self) -> dict[int, int]:
        """By bucket, where the micro-batch ends as far as that is settled."""
        return {bucket: each.admitted for bucket, each in self._buckets.items()}

    @property
    def short(self) -> dict[int, int]:
        """Buckets of which less is known than `part`, and where to measure on; all that keep it from being settled."""
        part = self.part
        return {
            bucket: each.measured
            for *_, bucket in self._turns
            if (each := self._buckets[bucket]).measured < each.until and each.has_less_than(part)
        }

    @property
    def part(self) -> Limits:
        """An equal part of what may still go in, of each bucket that has more to give."""
        rows_max, bytes_max, count = self._limits.rows_max, self._limits.bytes_max, max(1, len(self._turns))
        return Limits(
            rows_max=None if rows_max is None else -(-(rows_max - self._rows) // count),
            bytes_max=None if bytes_max is None else -(-(bytes_max - self._bytes) // count),
        )

    def add(self, bucket: int, commits: Iterable[Commit]) -> None:
        """Note commits of a bucket, adjacent to those that are known of it."""
        self._buckets[bucket].add(commits)

    def settle(self) -> bool:
        """Let in what is known.

        Returns:
            Whether `ends` is the answer; if not, more of `short` has to be measured.
        """
        while self._turns and not self._reached():
            turn = self._turns[0]
            bucket = turn[-1]
            each = self._buckets[bucket]
            if not each.commits:
                return False
            if (now := each.turn(bucket)) != turn:
                heapq.heapreplace(self._turns, now)  # Its next commit was not known when it was queued.
                continue
            self._take(each)
            if each.admitted < each.until:
                heapq.heapreplace(self._turns, each.turn(bucket))
            else:
                heapq.heappop(self._turns)
        return True

    def _take(self, each: _Bucket) -> None:
        commit = each.commits.popleft()
        self._rows += commit.end - each.admitted
        self._bytes += commit.bytes
        each.take(commit)

    def _reached(self) -> bool:
        limits = self._limits
        return (limits.rows_max is not None and self._rows >= limits.rows_max) or (
            limits.bytes_max is not None and self._bytes >= limits.bytes_max
        )


class _Bucket:
    """What one bucket has got, and what is known of what it has to give."""

    def __init__(self, limits: Limits, start: int, until: int) -> None:
        self._limits = limits
        self._rows = 0
        self._bytes = 0
        self._bytes_ahead = 0
        self.admitted = start
        """Where the micro-batch ends."""
        self.measured = start
        """How far its commits are known."""
        self.until = until
        self.commits: deque[Commit] = deque()
        """From `admitted` to `measured`; what is behind `until` does not count."""

    def add(self, commits: Iterable[Commit]) -> None:
        """Note commits from `measured` on."""
        for commit in commits:
            self.commits.append(commit)
            self._bytes_ahead += commit.bytes
            self.measured = commit.end

    def has_less_than(self, part: Limits) -> bool:
        """Whether what is known and has not gone in reaches none of these limits."""
        return (part.rows_max is None or self.measured - self.admitted < part.rows_max) and (
            part.bytes_max is None or self._bytes_ahead < part.bytes_max
        )

    def turn(self, bucket: int) -> tuple[float, int, int]:
        """Its place among the others: by its share, then by the time of its next commit, unknown ones first."""
        return (self._share(), self.commits[0].timestamp_us if self.commits else _UNKNOWN_TIME, bucket)

    def take(self, commit: Commit) -> None:
        """Let a commit in."""
        self._rows += commit.end - self.admitted
        self._bytes += commit.bytes
        self._bytes_ahead -= commit.bytes
        self.admitted = commit.end

    def _share(self) -> float:
        """The part of the nearest limit that it has got."""
        rows_max, bytes_max = self._limits.rows_max, self._limits.bytes_max
        of_rows = self._rows / rows_max if rows_max is not None else 0.0
        of_bytes = self._bytes / bytes_max if bytes_max is not None else 0.0
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
        """Whether to wait.

        Args:
            available: Changes that there are.
            now_s: Seconds of a clock that never goes back.
        """
        limits = self._limits
        return (
            limits.rows_min is not None
            and available < limits.rows_min
            and self._last_s is not None
            and now_s < self._last_s + limits.delay_s
        )

    def begin(self, now_s: float) -> None:
        """Begin the delay of the next micro-batch: one is planned. Before that its planning may fail, and be repeated.

        Args:
            now_s: As for `waits`.
        """
        self._last_s = now_s
