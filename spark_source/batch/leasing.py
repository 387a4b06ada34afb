"""The lease that the driver takes while it plans a read, and that the tasks renew while they read.

It keeps, of every bucket, the state of the moment of planning. Each task reads its bucket as of that state: so do the
task's retries and speculative copies, the tasks of a stage that is computed again, and those of every later use of the
DataFrame, because Spark plans a ``load()`` once. Spark tells nobody when a query is over; the lease ends with its time,
counted from the last renewal.

Invariant: a task reads the planned state or fails. When the lease is gone the changelog may still reach back to that
state, and the task reads it; when it does not, the task fails with SNAPSHOT_LOST. It never reads another state instead:
an offset goes with the history of the bucket that it is of, so that a restored copy is told from it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner import LeaseNotFound, LeaseState, LeaseTarget, ScannerError, TooManyScans

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.sync import Client
    from spark_source.options import SourceOptions

_RENEWALS_PER_TTL: Final = 3
_logger = logging.getLogger("weir.spark")


@dataclass(frozen=True, slots=True)
class PlannedStates:
    """What the tasks of a read are to read."""

    lease_id: str | None
    """Keeps the states readable; None: nothing does but the server's retention."""
    offsets: tuple[int | None, ...]
    """Of each bucket the log offset that it is read as of; None: what is there when its task begins."""
    histories: tuple[bytes, ...]
    """Of each bucket the history that the offset is of, by which a restored copy is told from it; empty: not known."""


def lease_states(client: Client, options: SourceOptions) -> PlannedStates:
    """Lease every bucket of the table as it is now.

    If the server has no room for another lease the states are named all the same: the tasks read them or fail, for as
    long as the server's retention keeps them.

    Raises:
        ScannerError: The table is gone, or may not be read, or the server failed.

    Waits: For the server's disk, on which the lease is before it is answered.
    """
    try:
        lease = client.acquire_lease(
            LeaseTarget(options.table, state=LeaseState.LOG), ttl_s=options.lease_ttl_s
        )
    except TooManyScans as error:
        _logger.warning(
            "table %s is read without a lease: %s; a smaller leaseTtl lets leases end sooner",
            options.table,
            error.message,
        )
        ends = sorted(client.table(options.table).offsets(), key=lambda each: each.bucket)
        return PlannedStates(None, tuple(each.end_offset for each in ends), (b"",) * len(ends))
    leased = sorted(lease.buckets, key=lambda each: each.bucket)
    return PlannedStates(
        lease.id, tuple(each.log_offset for each in leased), tuple(each.history for each in leased)
    )


class TaskLease:
    """Keeps a lease alive while a task reads.

    Args:
        client: Of the task.
        lease_id: What the driver acquired; None: there is nothing to keep.
        ttl_s: Time to live of the lease, seconds, above 0.
        clock: Tells monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        lease_id: str | None,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._lease_id = lease_id
        self._interval_s = ttl_s / _RENEWALS_PER_TTL
        self._clock = clock
        self._renewed_at = 0.0

    def begin(self) -> None:
        """Renew the lease before the first row. If it is gone, nothing keeps the state any more, and so be it.

        Raises:
            ScannerError: The server cannot be asked.
        """
        if self._lease_id is None:
            return
        self._renewed_at = self._clock()
        try:
            self._client.leases.renew(self._lease_id)
        except LeaseNotFound as error:
            _logger.info("reading without the lease of the planning: %s", error.message)
            self._lease_id = None

    def renew_if_due(self) -> None:
        """Renew it once in a while, for the tasks that have not begun; this one's scan keeps what it needs itself.

        A renewal that fails is tried again when the next is due.
        """
        now = self._clock()
        if self._lease_id is None or now < self._renewed_at + self._interval_s:
            return
        self._renewed_at = now
        try:
            self._client.leases.renew(self._lease_id)
        except ScannerError as error:
            _logger.warning("lease %s was not renewed: %s", self._lease_id, error.message)
