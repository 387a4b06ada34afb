"""What the tasks of a read are to do, settled on the driver: which state, which ranges of keys, one partition for each.

Invariants:
1. All ranges of a bucket are read as of one log offset, or no bucket is cut (`SourceOptions.reads_one_state`).
2. The ranges hold every key that the read is of and that can match its condition, once. There is at least one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scanner import ArgumentInvalid, OffsetOutOfRange
from spark_source.batch.leasing import PlannedStates, held_states, lease_states
from spark_source.batch.partitions import BucketPartition
from spark_source.options import refused

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator, Sequence

    from scanner import ScanPlan
    from scanner.sync import Client, Scan, Table
    from spark_source.load import Load
    from spark_source.options import SourceOptions


def plan_states(
    client: Client, table: Table, options: SourceOptions, load: Load, buckets: Iterable[int]
) -> PlannedStates:
    """Settle which state of each bucket is read, and keep it.

    Args:
        client: Of the driver.
        table: What is read.
        options: The read.
        load: The load.
        buckets: Those that are read.

    Raises:
        SourceOptionError: Option ``asOf``, ``asOfTimestamp`` or ``leaseId`` does not fit the table.
        OffsetOutOfRange: The changelog does not reach back to ``asOfTimestamp``.
        SnapshotLost: The load was planned before, and its lease has ended.
        ScannerError: The state cannot be leased, or the server failed.

    Waits: For the server, and for its disk if a lease is taken.
    """
    if options.lease_id is not None:
        return held_states(client, table, options.lease_id)

    def find_offsets() -> list[int] | None:
        return None if options.as_of_time is None else _offsets_at(table, options.as_of_time)

    if options.takes_lease:
        return lease_states(client, table, options, load, find_offsets)
    asked_for = find_offsets() or _offsets_asked_for(options, table.buckets)
    return PlannedStates(offsets=tuple(asked_for), histories=_histories_of(table, asked_for, buckets))


def bucket_partitions(
    options: SourceOptions, scan: Scan, table: Table, planned: PlannedStates
) -> list[BucketPartition]:
    """The partitions of a read, by bucket, and by key within a bucket; none of a bucket in which no row can match.

    Args:
        options: The read.
        scan: Of the whole table.
        table: What is read.
        planned: What the buckets are read as of, and what keeps that readable.

    Raises:
        ScannerError: The server could not say where to cut a bucket.

    Waits: For the server, once for each bucket that is cut.
    """
    return [
        BucketPartition(
            options=options,
            plan=part,
            split=split,
            lease_id=planned.lease_id,
            lease_ttl_s=planned.lease_ttl_s,
        )
        for plan in _plans_of_buckets(scan, planned)
        for split, part in enumerate(_parts(options, plan, table))
    ]


def _plans_of_buckets(scan: Scan, planned: PlannedStates) -> Iterator[ScanPlan]:
    for bucket, keys in scan.reads.items():
        history = planned.histories[bucket]
        yield replace(
            scan.plan,
            bucket=bucket,
            key_range=keys,
            as_of=planned.offsets[bucket],
            histories={bucket: history} if history else {},
        )


def _parts(options: SourceOptions, plan: ScanPlan, table: Table) -> list[ScanPlan]:
    """The scans of the ranges of one bucket, in key order; one, if it is not cut, and then the server is not asked."""
    assert plan.bucket is not None
    if options.splits in (None, 1) and options.split_bytes is None:
        return [plan]
    ranges = table.split(
        plan.bucket, splits=options.splits, target_bytes=options.split_bytes, within=plan.key_range
    )
    return [replace(plan, key_range=each) for each in ranges]


def _offsets_at(table: Table, instant: datetime.datetime) -> list[int]:
    """Of each bucket the offset behind the last commit before an instant."""
    try:
        found = table.offsets(at=instant)
    except ArgumentInvalid as error:
        raise refused("asOfTimestamp", instant.isoformat(), error.message) from None
    for each in found:
        if not each.is_kept:
            raise OffsetOutOfRange(
                f"the changelog of table {table.name!r}, bucket {each.bucket}, begins at offset {each.start_offset},"
                f" and what was before is gone: the table at {instant.isoformat()} cannot be told;"
                " use a later asOfTimestamp",
                oldest_offset=each.start_offset,
            )
    return [each.at_offset for each in sorted(found, key=lambda each: each.bucket)]


def _histories_of(table: Table, offsets: Sequence[int | None], buckets: Iterable[int]) -> tuple[bytes, ...]:
    """Of each bucket the history that its offset is of now; empty: it is not read, or the changelog ends before."""
    histories = [b""] * table.buckets
    # From 0, not from the offset, which may be inside a commit.
    wanted = {bucket: 0 for bucket in buckets if offsets[bucket] is not None}
    for log in table.measure_log(wanted) if wanted else ():
        offset = offsets[log.bucket]
        if offset is not None and offset <= log.end_offset:
            histories[log.bucket] = log.history_of(offset)
    return tuple(histories)


def _offsets_asked_for(options: SourceOptions, buckets: int) -> list[int | None]:
    """What option ``asOf`` says of each bucket.

    Raises:
        SourceOptionError: Not of every bucket, or of one that is not there.
    """
    if options.as_of is None or isinstance(options.as_of, int):
        return [options.as_of] * buckets
    named = [bucket for bucket, _ in options.as_of]
    if named != list(range(buckets)):
        value = ",".join(f"{bucket}:{offset}" for bucket, offset in options.as_of)
        why = f"table {options.table} has the buckets 0 to {buckets - 1}, and each of them needs an offset"
        raise refused("asOf", value, why)
    return [offset for _, offset in options.as_of]
