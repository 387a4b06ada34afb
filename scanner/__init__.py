"""weir's tables and their scans: the trio client. `scanner.sync` is its blocking twin.

Everything public is here; modules below are reached through it, but for `scanner.sync`, `scanner.server.server` and the
command line in `scanner.cli`.

A module is imported when one of its names is first used: `weir --version` need not wait for Arrow and trio.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scanner.client.admin import (
        CheckpointInfo,
        CompactedLog,
        DrainBegun,
        LogPinInfo,
        ScanInfo,
        SnapshotInfo,
        StreamInfo,
    )
    from scanner.client.client import Client, connect
    from scanner.client.credentials import read_token, tls
    from scanner.client.groups import GroupBucket, GroupInfo, GroupSummary
    from scanner.client.held_lease import Lease
    from scanner.client.leases import LeasedBucket, LeaseInfo, LeaseState, LeaseTarget, NotLeased
    from scanner.client.log_measures import MeasuredLog
    from scanner.client.offsets import OffsetRange, OffsetsAt
    from scanner.client.point_reads import GetResult
    from scanner.client.scan.expressions import Column, Condition, col, parse_where
    from scanner.client.scan.group_scan import GroupBatches
    from scanner.client.scan.plan import ScanMode, ScanPlan, ScanSource
    from scanner.client.scan.scan import GroupScan, Scan
    from scanner.client.scan.statistics import BucketStatistics, ScanStatistics
    from scanner.client.scan.table_scan import Batches
    from scanner.client.splits import BucketRanges
    from scanner.client.table import Table
    from scanner.client.transactions import PartWriter, Published, Staged, Transaction, TransactionInfo
    from scanner.client.writer import Writer, WriteResult
    from scanner.data.digest import combine_digests, join_digests
    from scanner.data.folding import Fold
    from scanner.data.half_applied import HalfApplied
    from scanner.data.images import ImageInfo, ImageState
    from scanner.data.keys import KeyRange
    from scanner.data.table import TableDescription
    from scanner.errors import (
        ArgumentInvalid,
        BucketNotFound,
        ColumnNotFound,
        CreditInvalid,
        DataCorrupted,
        DiskFull,
        Draining,
        GroupEpochStale,
        GroupMemberExpired,
        GroupNotEmpty,
        GroupNotFound,
        InternalError,
        KeyInvalid,
        LeaseNotFound,
        NotLeader,
        OffsetOutOfRange,
        PartsConflict,
        PermissionDenied,
        ResumeTokenInvalid,
        ScanIncomplete,
        ScannerError,
        SchemaMismatch,
        SequenceInvalid,
        ServerUnavailable,
        SessionBusy,
        SessionExpired,
        SessionUnknown,
        SlowConsumer,
        SnapshotLost,
        SourceUnsupported,
        StageNotFound,
        StagesFull,
        StoreClosed,
        StoreFailed,
        StoreLocked,
        TableExists,
        TableNotFound,
        TooManyFiles,
        TooManyGroups,
        TooManyScans,
        TooManyTables,
        TooManyTransactions,
        TransactionDecided,
        Unauthenticated,
        VersionGap,
        VersionSuperseded,
    )
    from transport import StallReason, StallTimes

__all__ = [
    "ArgumentInvalid",
    "Batches",
    "BucketNotFound",
    "BucketRanges",
    "BucketStatistics",
    "CheckpointInfo",
    "Client",
    "Column",
    "ColumnNotFound",
    "CompactedLog",
    "Condition",
    "CreditInvalid",
    "DataCorrupted",
    "DiskFull",
    "DrainBegun",
    "Draining",
    "Fold",
    "GetResult",
    "GroupBatches",
    "GroupBucket",
    "GroupEpochStale",
    "GroupInfo",
    "GroupMemberExpired",
    "GroupNotEmpty",
    "GroupNotFound",
    "GroupScan",
    "GroupSummary",
    "HalfApplied",
    "ImageInfo",
    "ImageState",
    "InternalError",
    "KeyInvalid",
    "KeyRange",
    "Lease",
    "LeaseInfo",
    "LeaseNotFound",
    "LeaseState",
    "LeaseTarget",
    "LeasedBucket",
    "LogPinInfo",
    "MeasuredLog",
    "NotLeader",
    "NotLeased",
    "OffsetOutOfRange",
    "OffsetRange",
    "OffsetsAt",
    "PartWriter",
    "PartsConflict",
    "PermissionDenied",
    "Published",
    "ResumeTokenInvalid",
    "Scan",
    "ScanIncomplete",
    "ScanInfo",
    "ScanMode",
    "ScanPlan",
    "ScanSource",
    "ScanStatistics",
    "ScannerError",
    "SchemaMismatch",
    "SequenceInvalid",
    "ServerUnavailable",
    "SessionBusy",
    "SessionExpired",
    "SessionUnknown",
    "SlowConsumer",
    "SnapshotInfo",
    "SnapshotLost",
    "SourceUnsupported",
    "StageNotFound",
    "Staged",
    "StagesFull",
    "StallReason",
    "StallTimes",
    "StoreClosed",
    "StoreFailed",
    "StoreLocked",
    "StreamInfo",
    "Table",
    "TableDescription",
    "TableExists",
    "TableNotFound",
    "TooManyFiles",
    "TooManyGroups",
    "TooManyScans",
    "TooManyTables",
    "TooManyTransactions",
    "Transaction",
    "TransactionDecided",
    "TransactionInfo",
    "Unauthenticated",
    "VersionGap",
    "VersionSuperseded",
    "WriteResult",
    "Writer",
    "col",
    "combine_digests",
    "connect",
    "join_digests",
    "parse_where",
    "read_token",
    "tls",
]

_HOMES: Final = {
    "scanner.client.admin": (
        "CheckpointInfo CompactedLog DrainBegun LogPinInfo ScanInfo SnapshotInfo StreamInfo"
    ),
    "scanner.client.client": "Client connect",
    "scanner.client.credentials": "read_token tls",
    "scanner.client.groups": "GroupBucket GroupInfo GroupSummary",
    "scanner.client.scan.group_scan": "GroupBatches",
    "scanner.client.splits": "BucketRanges",
    "scanner.client.scan.scan": "GroupScan Scan",
    "scanner.client.table": "Table",
    "scanner.data.digest": "combine_digests join_digests",
    "scanner.data.folding": "Fold",
    "scanner.errors": (
        "ArgumentInvalid BucketNotFound ColumnNotFound CreditInvalid DataCorrupted DiskFull Draining "
        "GroupEpochStale GroupMemberExpired GroupNotEmpty GroupNotFound InternalError KeyInvalid "
        "LeaseNotFound NotLeader OffsetOutOfRange PartsConflict PermissionDenied ResumeTokenInvalid "
        "ScanIncomplete ScannerError SchemaMismatch SequenceInvalid ServerUnavailable SessionBusy "
        "SessionExpired SessionUnknown SlowConsumer SnapshotLost SourceUnsupported StageNotFound "
        "StagesFull StoreClosed StoreFailed StoreLocked TableExists TableNotFound TooManyFiles "
        "TooManyGroups TooManyScans TooManyTables TooManyTransactions TransactionDecided Unauthenticated "
        "VersionGap VersionSuperseded"
    ),
    "scanner.client.scan.expressions": "Column Condition col parse_where",
    "scanner.client.point_reads": "GetResult",
    "scanner.client.log_measures": "MeasuredLog",
    "scanner.data.half_applied": "HalfApplied",
    "scanner.data.images": "ImageInfo ImageState",
    "scanner.client.held_lease": "Lease",
    "scanner.client.leases": "LeasedBucket LeaseInfo LeaseState LeaseTarget NotLeased",
    "scanner.client.offsets": "OffsetRange OffsetsAt",
    "scanner.client.scan.plan": "ScanMode ScanPlan ScanSource",
    "scanner.client.scan.statistics": "BucketStatistics ScanStatistics",
    "scanner.data.keys": "KeyRange",
    "scanner.data.table": "TableDescription",
    "scanner.client.scan.table_scan": "Batches",
    "scanner.client.transactions": "PartWriter Published Staged Transaction TransactionInfo",
    "scanner.client.writer": "Writer WriteResult",
    "transport": "StallReason StallTimes",
}
"""Which module each name is from."""
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All that is public."""
    return sorted({*globals(), *__all__})
