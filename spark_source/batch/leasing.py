"""The lease that keeps the state of a read: the driver takes it while it plans, the tasks renew it while they read.

It keeps one state of every bucket. Each task reads its bucket as of that state; so do the task's retries and its
copies, the tasks of a stage that is computed again, and those of every later use of the DataFrame. Spark tells nobody
when a query is over; the lease ends with its time, counted from the last renewal.

Invariants:
1. A task reads the planned state or fails. When the lease is gone the changelog may still reach back to that state, and
   the task reads it; when it does not, the task fails with SNAPSHOT_LOST. It never reads another state instead: an
   offset goes with the history of the bucket that it is of, so that a restored copy is told from it.
2. All copies of one load read one state, though Spark plans both sides of a self-join at once, in two processes: the
   lease has the id of the load. The first caller acquires it, and the second gets the lease of the first. When it has
   ended, callers are refused.
"""

from __future__ import annotations

import functools
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner import LeaseNotFound, LeaseState, LeaseTarget, ScannerError, SnapshotLost, TooManyScans
from spark_source.connection import ask_again
from spark_source.options import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scanner import LeasedBucket, LeaseInfo
    from scanner.sync import Client, Table
    from spark_source.load import Load
    from spark_source.options import SourceOptions

_RENEWALS_PER_TTL: Final = 3
_logger = logging.getLogger("weir.spark")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStates:
    """What the tasks of a read are to read."""

    offsets: tuple[int | None, ...]
    """Of each bucket the log offset that it is read as of; None: what is there when its task begins."""
    histories: tuple[bytes, ...]
    """Of each bucket the history that the offset is of, by which a restored copy is told from it; empty: not known."""
    lease_id: str | None = None
    """Keeps the states readable; None: nothing does but the server's retention."""
    lease_ttl_s: float = 0.0
    """Time to live of that lease, seconds."""


def lease_states(
    client: Client,
    table: Table,
    options: SourceOptions,
    load: Load,
    find_offsets: Callable[[], Sequence[int] | None],
) -> PlannedStates:
    """Lease every bucket of a table, or learn what another copy of this load has leased.

    Args:
        client: Of the driver.
        table: What is read.
        options: The read.
        load: Names the lease.
        find_offsets: Asked if nothing is leased yet: of each bucket the state to lease; None: as it is now.

    Raises:
        TooManyScans: The server has no room for another lease.
        SnapshotLost: The changelog does not reach back to the offsets; or the load was planned before, and its lease
            has ended.
        ScannerError: The table is gone, or may not be read, or the server failed.

    Waits: For the server's disk, on which the lease is before it is answered.
    """

    def find_targets() -> list[LeaseTarget]:
        offsets = find_offsets()
        if offsets is None:
            return [LeaseTarget(table.name, state=LeaseState.LOG)]
        return [LeaseTarget(table.name, (each,), log_offset=offset) for each, offset in enumerate(offsets)]

    lease = shared_lease(client, table, load, find_targets, options.lease_ttl_s)
    return _states(lease.buckets, table, lease.lease_id, lease.ttl_s)


def shared_lease(
    client: Client,
    table: Table,
    load: Load,
    find_targets: Callable[[], Iterable[LeaseTarget]],
    ttl_s: float,
    of: str = "",
) -> LeaseInfo:
    """The lease that all copies of a load share: the first caller acquires it, later ones renew it.

    Args:
        client: Of the driver.
        table: Of which it keeps every bucket.
        load: Whose id it has.
        find_targets: Asked if there is none: what it is to keep. What it keeps may be all there is by now, and could
            not be found again.
        ttl_s: Its time to live, seconds.
        of: The end of its id, if a load has more than one.

    Raises:
        SnapshotLost: It was there and has ended, or keeps a bucket no more: another one would be of another state. Or
            what it is to keep is gone.
        TooManyScans: The server has no room for another lease. Nothing is read without one, since then nothing would
            make the copies of the load agree.
        ScannerError: The table is gone, or may not be read, or the server failed.

    Waits: For the server's disk, on which the lease is before it is answered.
    """
    lease_id = f"{load.id}{of}"
    with suppress(LeaseNotFound):
        return _whole(client.leases.renew(lease_id), table)
    targets = find_targets()
    try:
        lease = client.acquire_lease(
            *targets, lease_id=lease_id, ttl_s=ttl_s, if_absent=True, id_age_s=load.age_s
        )
        for half in lease.half_applied:
            _logger.warning("%s", half)
        return _whole(lease.info, table)
    except LeaseNotFound as error:
        raise SnapshotLost(
            f"nothing keeps the state that this load was planned with: {error.message}; load the DataFrame again, and"
            " give option leaseTtl more seconds if it is used for long"
        ) from None
    except TooManyScans as error:
        # A read of changes, whose leases have parts of its id, takes neither asOf nor leaseId.
        instead = (
            "or take none, leaseTtl 0: each plan then finds its own end"
            if of
            else "name the state with asOf or leaseId, or let each task read what is there when it begins, leaseTtl 0"
        )
        raise TooManyScans(
            "a read leases the state that its tasks read, and the server has no room for another lease:"
            f" {error.message}; let leases end sooner with a smaller leaseTtl, {instead}"
        ) from None


def _whole(lease: LeaseInfo, table: Table) -> LeaseInfo:
    """A lease that keeps every bucket of a table.

    Raises:
        SnapshotLost: It does not: somebody has released a bucket of it, whose tasks would read what is there now.
    """
    kept = {each.bucket for each in lease.buckets if each.table == table.name}
    missing = sorted(set(range(table.buckets)) - kept)
    if missing:
        raise SnapshotLost(
            f"nothing keeps the state that this load was planned with: lease {lease.lease_id!r} has nothing of table"
            f" {table.name!r}, bucket {', '.join(map(str, missing))}; load the DataFrame again"
        )
    return lease


def held_states(client: Client, table: Table, lease_id: str) -> PlannedStates:
    """What a lease of the user's keeps of a table. Its time begins anew.

    Raises:
        LeaseNotFound: The user has no such lease.
        SourceOptionError: It does not keep every bucket of the table.
        ScannerError: The server failed.

    Waits: For the server's disk.
    """
    info = client.leases.renew(lease_id)
    states = _states(info.buckets, table, lease_id, info.ttl_s)
    missing = [bucket for bucket, offset in enumerate(states.offsets) if offset is None]
    if missing:
        raise refused(
            "leaseId",
            lease_id,
            f"that lease keeps nothing of table {table.name!r}, bucket {', '.join(map(str, missing))};"
            " acquire one of the whole table",
        )
    return states


def _states(leased: Iterable[LeasedBucket], table: Table, lease_id: str, ttl_s: float) -> PlannedStates:
    """The states in a lease; an offset is None where it keeps nothing of a bucket."""
    kept = {each.bucket: each for each in leased if each.table == table.name}
    return PlannedStates(
        offsets=tuple(kept[each].log_offset if each in kept else None for each in range(table.buckets)),
        histories=tuple(kept[each].history if each in kept else b"" for each in range(table.buckets)),
        lease_id=lease_id,
        lease_ttl_s=ttl_s,
    )


class TaskLease:
    """Keeps leases alive while a task reads.

    Args:
        client: Of the task.
        lease_ids: What keeps the state that is read; none: nothing has to be kept.
        ttl_s: Time to live of the leases, seconds; ignored if there are none.
        clock: Tells monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        lease_ids: Iterable[str],
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._lease_ids = tuple(lease_ids)
        self._interval_s = ttl_s / _RENEWALS_PER_TTL
        self._clock = clock
        self._renewed_at = 0.0

    def begin(self) -> None:
        """Renew them before the first row. If one is gone, nothing keeps the state any more, and so be it.

        Raises:
            ScannerError: The server cannot be asked.
        """
        self._renewed_at = self._clock()
        kept = []
        for lease_id in self._lease_ids:
            try:
                ask_again(functools.partial(self._client.leases.renew, lease_id))
            except LeaseNotFound as error:
                _logger.info("reading without the lease of the planning: %s", error.message)
            else:
                kept.append(lease_id)
        self._lease_ids = tuple(kept)

    def renew_if_due(self) -> None:
        """Renew them once in a while, for the tasks that have not begun; this one's scan keeps what it needs itself.

        A renewal that fails is tried again when the next is due. A lease that has ended does not come back: it is
        warned of once.
        """
        now = self._clock()
        if now < self._renewed_at + self._interval_s:
            return
        self._renewed_at = now
        for lease_id in self._lease_ids:
            try:
                self._client.leases.renew(lease_id)
            except LeaseNotFound:
                self._lease_ids = tuple(each for each in self._lease_ids if each != lease_id)
                _logger.warning(
                    "lease %s has ended while a task read: what tasks that begin later read is kept as retention says"
                    " alone",
                    lease_id,
                )
            except ScannerError as error:
                _logger.warning("lease %s was not renewed: %s", lease_id, error.message)
