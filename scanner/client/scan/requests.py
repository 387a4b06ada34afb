"""What a plan asks of the server, as messages. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

from scanner.client.arguments import microseconds
from scanner.client.scan.plan import LATEST, ScanPlan, ScanSource
from scanner.data.keys import ALL_KEYS
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.queries import ScanQuery, query_to_proto

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange

_SOURCES: Final = {
    ScanSource.LIVE_KV: pb.SCAN_SOURCE_LIVE_KV,
    ScanSource.SNAPSHOT: pb.SCAN_SOURCE_SNAPSHOT,
    ScanSource.LOG: pb.SCAN_SOURCE_LOG,
    ScanSource.HYBRID: pb.SCAN_SOURCE_HYBRID,
}


def open_request(plan: ScanPlan, bucket: int, key_range: KeyRange) -> pb.ScanOpen:
    """What opens the scan of one bucket, or of a range of its keys, by push."""
    scan_open = pb.ScanOpen(
        source=_SOURCES[plan.source],
        query=bucket_query(plan, bucket, key_range),
        as_of=plan.as_of_bucket(bucket),
        as_of_history=plan.histories.get(bucket, b""),
        lease_id=plan.lease_id,
    )
    if plan.source is ScanSource.LOG:
        scan_open.log_start.CopyFrom(_log_start(plan, bucket))
    if plan.source.has_changes:
        match plan.log_stop_of(bucket):
            case int(offset):
                scan_open.stop_offset = offset
            case str():
                scan_open.stop_at_end = True
    return scan_open


def bucket_query(plan: ScanPlan, bucket: int, key_range: KeyRange) -> pb.ScanQuery:
    """What a plan asks of one bucket, or of a range of its keys."""
    return query_to_proto(
        ScanQuery(
            table=plan.table.name,
            bucket=bucket,
            columns=plan.columns,
            predicates=plan.predicates,
            row_limit=plan.row_limit,
            range=key_range,
            table_id=plan.table_id,
        )
    )


def fetch_query(plan: ScanPlan) -> pb.ScanQuery:
    """What a plan asks of all buckets at once, in mode fetch; the limit, one of all of them, is ours to keep."""
    query = bucket_query(plan, 0, ALL_KEYS)
    # By name: what is added to the table meanwhile is not this scan's.
    query.columns[:] = plan.schema.names
    query.ClearField("row_limit")
    return query


def fetch_position(plan: ScanPlan, bucket: int) -> pb.FetchPosition:
    """Where the fetches of a bucket's changes begin, and end if that is known."""
    stop = plan.log_stop_of(bucket)
    return pb.FetchPosition(
        bucket=bucket,
        start=_log_start(plan, bucket),
        stop_offset=stop if isinstance(stop, int) else None,
    )


def _log_start(plan: ScanPlan, bucket: int) -> pb.LogStart:
    match plan.log_start_of(bucket):
        case int(offset):
            return pb.LogStart(offset=offset)
        case datetime.datetime() as time:
            return pb.LogStart(timestamp_us=microseconds(time))
        case name:
            return pb.LogStart(latest=True) if name == LATEST else pb.LogStart(earliest=True)
