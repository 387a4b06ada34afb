"""What a server has done since its start, as counters that only grow, and who holds what it has open. Pure.

Everything here is written by the server's one thread and read by it, between two steps of anything else: no locks.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of commit times: an fsync takes a fraction of the first to some of the last."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram, now."""

    bounds: tuple[float, ...]
    """Upper bounds, inclusive, ascending; above the last there is one more class."""
    counts: tuple[int, ...]
    """Observations of each class, not cumulative; one more than `bounds`."""
    total: float
    """Sum of what was observed."""

    @property
    def count(self) -> int:
        """Observations."""
        return sum(self.counts)


class Histogram:
    """Counts observations by class.

    Args:
        bounds: Upper bounds of the classes, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._total += value

    def freeze(self) -> HistogramSnapshot:
        """What it is now."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivityStatistics:
    """What a server has done since its start."""

    scans_opened: int
    """Push scans whose source was opened; one that is cut and goes on counts again."""
    scans_ended: Mapping[str, int]
    """Push scans that ended, by reason: `exhausted`, `limit`, `stop_offset`, `drained`, the reason of an error in lower
    case, or `cut_off`: the client or its connection went away."""
    scan_rows: int
    """Rows that push scans have sent. After a cut those that have not arrived are sent, and count, again."""
    payload_bytes_encoded: int
    """Arrow payload that push scans of rows have encoded."""
    payload_bytes_reused: int
    """The same that they sent as it lies in an image."""
    image_blocks_read: int
    """Blocks of images that scans have read from their files, counted when they end or park."""
    image_blocks_cached: int
    """The same that they found in memory (`image_cache_bytes_max`)."""
    image_blocks_skipped: int
    """The same that they passed over unread, since no row of them passes the filter."""
    scans_parked: int
    """Times that a push scan was parked."""
    scans_resumed: Mapping[str, int]
    """Times that a scan was continued, or opened as of an offset, by its `ReadSource`."""
    scans_read: Mapping[str, int]
    """Times that a scan or a page was opened, by its `ReadSource`. One whose image fails counts again, by what it
    goes on with."""
    seeks: int
    """Times that something was placed on a key to read rows on from there: a scan opened or continued, a page begun of
    which the server keeps nothing."""
    sessions_opened: int
    """Sessions of the pull model; one whose first page is its last is none."""
    group_assignments: int
    """Times that a bucket was given to a member of a reader group."""
    group_refusals: int
    """Scans and positions that were refused because their epoch was no longer their bucket's."""
    checkpoints_made: int
    """Checkpoints of buckets."""
    log_changes_dropped: int
    """Changes that retention cut off the changelogs."""
    log_blocks_decoded: int
    """Blocks of changelogs that were read and decoded."""
    commits: HistogramSnapshot
    """Seconds that each group commit took, its fsync included."""
    commit_writes: int
    """Writes that were committed; several share a commit."""
    commit_rows: int
    """Rows in them."""
    duplicate_writes: int
    """Writes that came again, in some bucket, after they were committed there; they changed nothing."""
    commits_failed: int
    audited: Mapping[str, int]
    """Events of the audit trail, by name: see `scanner.server.auth.audit`."""


@dataclass(kw_only=True, slots=True)
class Activity:
    """The counters themselves; written where things happen."""

    scans_opened: int = 0
    scans_ended: Counter[str] = field(default_factory=Counter)
    scan_rows: int = 0
    payload_bytes_encoded: int = 0
    payload_bytes_reused: int = 0
    image_blocks_read: int = 0
    image_blocks_cached: int = 0
    image_blocks_skipped: int = 0
    scans_parked: int = 0
    scans_resumed: Counter[str] = field(default_factory=Counter)
    scans_read: Counter[str] = field(default_factory=Counter)
    seeks: int = 0
    sessions_opened: int = 0
    group_assignments: int = 0
    group_refusals: int = 0
    checkpoints_made: int = 0
    log_changes_dropped: int = 0
    log_blocks_decoded: int = 0
    commits: Histogram = field(default_factory=lambda: Histogram(COMMIT_SECONDS))
    commit_writes: int = 0
    commit_rows: int = 0
    duplicate_writes: int = 0
    commits_failed: int = 0
    audited: Counter[str] = field(default_factory=Counter)

    def count_group_assignment(self) -> None:
        """A bucket was given to a member of a reader group."""
        self.group_assignments += 1

    def count_group_refusal(self) -> None:
        """A scan or a position was refused, because its epoch was old."""
        self.group_refusals += 1

    def count_log_block(self) -> None:
        """A block of a changelog was read and decoded."""
        self.log_blocks_decoded += 1

    def freeze(self) -> ActivityStatistics:
        """What they are now."""
        return ActivityStatistics(**{each.name: _frozen(getattr(self, each.name)) for each in fields(self)})


def _frozen(value: Any) -> Any:
    """A counter as it is now."""
    if isinstance(value, Histogram):
        return value.freeze()
    return dict(value) if isinstance(value, Counter) else value


class HolderKind(enum.Enum):
    """What keeps a scan open."""

    STREAM = "stream"
    """A push stream."""
    SESSION = "session"
    """A session of the pull model."""
    PAGE = "page"
    """A page that is being made, or, between two calls, what is kept for the next one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps a scan open, for people."""

    kind: HolderKind
    source: str
    """LIVE_KV, ..."""
    connection_id: int
    """Of the call that opened it."""
    stream_id: int
    peer: str
    principal: str
    """Name of who opened it."""

    def is_call(self, connection_id: int, stream_id: int | None) -> bool:
        """Whether it is that call; None: any call of the connection."""
        return self.connection_id == connection_id and stream_id in (None, self.stream_id)
