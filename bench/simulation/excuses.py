"""When a scan may fail: what has to have happened for each error. Everything else is a violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulation.workload import State
from scanner import (
    LeaseNotFound,
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


def excuse(scan: ScanRecord, workload: Workload, serving: Serving, *, disturbed: bool) -> bool:
    """Whether something happened that may end this scan with its error.

    Args:
        scan: It has just failed.
        workload: Its limits.
        serving: Knows how far back the logs reach.
        disturbed: A connection was struck, or the server, since the scan began.
    """
    error, config, mode = scan.error, workload.server_config, scan.task.mode
    taken_away = config.log_pinned_bytes_max < MANY_BYTES
    """Retention ends what pins more than that."""
    if isinstance(error, TooManyScans):
        caps = (config.sessions_per_bucket_max, config.page_snapshots_per_bucket_max, config.snapshots_max)
        return min(caps) < FEW
    if mode is ScanMode.SESSION:
        # A session lives on its server and in its connection, and no longer than its TTL between two calls.
        outlived = (
            isinstance(error, SessionExpired | SessionUnknown) and scan.task.pause_s >= config.session_ttl_s
        )
        return disturbed or outlived
    if not scan.task.retries and error is not None and error.retriable:
        return disturbed
    if isinstance(error, SlowConsumer):
        return taken_away
    log_is_gone = any(serving.log_start(bucket) > offset for bucket, offset in _offsets(scan).items())
    if isinstance(error, LeaseNotFound):
        return taken_away or log_is_gone
    if not isinstance(error, SnapshotLost):
        return False
    if mode is ScanMode.TOKEN:
        return disturbed or scan.task.pause_s >= config.page_snapshot_ttl_s
    if scan.task.state is State.CHECKPOINT and all(each.log_offset is None for each in scan.buckets.values()):
        return True  # There is none yet.
    if scan.task.state is State.LEASE and not scan.promised:
        return True  # There is none that could be leased.
    if _was_pinned(scan) and not disturbed and not taken_away:
        return any(serving.cut_by_force[bucket] > offset for bucket, offset in _offsets(scan).items())
    return log_is_gone


def _was_pinned(scan: ScanRecord) -> bool:
    """Whether its log was kept from its beginning to its failure, as that of a push scan is which nobody cuts."""
    opened = all(each.log_offset is not None for each in scan.buckets.values())
    return scan.task.mode is ScanMode.PUSH and scan.task.state is State.NOW and opened and not scan.resumes


def _offsets(scan: ScanRecord) -> dict[int, int]:
    """The offset that each bucket is scanned as of, as far as it is known."""
    told = {bucket: each.log_offset for bucket, each in scan.buckets.items() if each.log_offset is not None}
    return dict(scan.promised) | told
