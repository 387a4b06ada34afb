"""When a scan may fail: what has to have happened for each error. Everything else is a violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulation.workload import State
from scanner import (
    LeaseNotFound,
    OffsetOutOfRange,
    ScanMode,
    SessionExpired,
    SessionUnknown,
    SlowConsumer,
    SnapshotLost,
    TooManyScans,
)

if TYPE_CHECKING:
    from bench.simulation.history import ScanRecord
    from bench.simulation.serving import Serving
    from bench.simulation.workload import Workload


MANY_BYTES: Final = 1 << 20
"""More changelog than a run writes."""

FEW: Final = 8
"""A cap that is lower can be reached."""


def excuse(
    scan: ScanRecord, workload: Workload, serving: Serving, *, disturbed: bool, restarted: bool
) -> bool:
    """Whether something happened that may end this scan with its error.

    Args:
        scan: It has just failed.
        workload: Its limits.
        serving: Knows how far back the logs reach.
        disturbed: A connection was struck, or the server, since the scan began.
        restarted: The server was ended since then, or told to forget the snapshots that linger.
    """
    error, config, mode = scan.error, workload.server_config, scan.task.mode
    cut_off = taken_away(workload)
    if isinstance(error, TooManyScans):
        caps = (config.sessions_per_bucket_max, config.page_snapshots_per_bucket_max, config.snapshots_max)
        return min(caps) < FEW
    log_is_gone = any(serving.log_start(bucket) > offset for bucket, offset in _offsets(scan).items())
    if mode is ScanMode.SESSION:
        # A session lives on its server and in its connection, and no longer than its TTL between two calls.
        lost = isinstance(error, SessionExpired | SessionUnknown)
        if disturbed:
            rebuilt = (
                isinstance(error, SnapshotLost) and log_is_gone
            )  # Its server was there, and had to open it anew.
            return lost or rebuilt or (error is not None and error.retriable)
        return lost and scan.task.pause_s >= config.session_ttl_s
    if not scan.task.retries and error is not None and error.retriable:
        return disturbed
    if isinstance(error, SlowConsumer):
        return cut_off
    if scan.task.tail is not None:
        return _excuse_tail(scan, workload, serving, disturbed=disturbed)
    cut_by_force = any(serving.cut_by_force[bucket] > offset for bucket, offset in _offsets(scan).items())
    if isinstance(error, LeaseNotFound):
        return cut_off or cut_by_force  # Nothing here keeps a client from renewing for as long as one lives.
    if not isinstance(error, SnapshotLost):
        return False
    if mode is ScanMode.TOKEN:
        return _excuse_token(scan, workload, restarted=restarted)
    if scan.task.state is State.CHECKPOINT and all(each.log_offset is None for each in scan.buckets.values()):
        return True  # There is none yet.
    if scan.task.state is State.LEASE:
        # None could be leased, of those there were; or what the lease keeps is gone, and the lease is not.
        return cut_by_force if scan.promised else scan.asked_for_existing
    if _was_pinned(scan) and not disturbed and not cut_off:
        return cut_by_force
    return log_is_gone


def taken_away(workload: Workload) -> bool:
    """Whether retention may end what pins the log of this run."""
    return workload.server_config.log_pinned_bytes_max < MANY_BYTES


def _excuse_token(scan: ScanRecord, workload: Workload, *, restarted: bool) -> bool:
    """Whether a snapshot may be lost that the server keeps between two pages.

    It keeps it for `page_snapshot_ttl_s` after each page that it has made, and, in case that the last page or the
    answer to the first request is lost on the way, for `snapshot_linger_s`. A page is made after the one before it has
    come, and may take long to come itself; until that time has passed since then, the scan must not fail, however its
    line was cut. Only a restart takes the snapshot, or somebody who has no room for another one.
    """
    config, task = workload.server_config, scan.task
    kept_s = min(config.snapshot_linger_s, config.page_snapshot_ttl_s)
    # What was fetched ahead came before its consumer paused.
    paused_s = task.pause_s * (task.page_depth + 1)
    return restarted or config.snapshots_max < FEW or scan.waited_s + paused_s >= kept_s


def _excuse_tail(scan: ScanRecord, workload: Workload, serving: Serving, *, disturbed: bool) -> bool:
    """Whether the log may be gone from where a tail stands."""
    if not isinstance(scan.error, OffsetOutOfRange | SnapshotLost) or scan.bounds is None:
        return False
    buckets = range(workload.rows.description.buckets) if scan.task.bucket is None else (scan.task.bucket,)
    # Where it stands, at least; it was not opened yet, or it is in its snapshot, where it begins.
    stands = {bucket: max(scan.bounds.earliest[bucket], scan.reached(bucket)) for bucket in buckets}
    opened = all(bucket in scan.buckets and scan.buckets[bucket].log_offset is not None for bucket in buckets)
    # Nothing is kept for a long poll.
    pinned = opened and scan.task.mode is ScanMode.PUSH
    if pinned and not scan.resumes and not disturbed and not taken_away(workload):
        return any(serving.cut_by_force[bucket] > stands[bucket] for bucket in buckets)
    return any(serving.log_start(bucket) > stands[bucket] for bucket in buckets)


def _was_pinned(scan: ScanRecord) -> bool:
    """Whether its log was kept from its beginning to its failure, as that of a push scan is which nobody cuts."""
    opened = all(each.log_offset is not None for each in scan.buckets.values())
    return scan.task.mode is ScanMode.PUSH and scan.task.state is State.NOW and opened and not scan.resumes


def _offsets(scan: ScanRecord) -> dict[int, int]:
    """The offset that each bucket is scanned as of, as far as it is known."""
    told = {bucket: each.log_offset for bucket, each in scan.buckets.items() if each.log_offset is not None}
    return dict(scan.promised) | told
