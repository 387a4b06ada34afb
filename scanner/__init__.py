"""weir's tables and their scans: the trio client. `scanner.sync` is its blocking twin.

Everything public is here; modules below are reached through it, but for `scanner.sync`, `scanner.server` and the
command line in `scanner.cli`.

A module is imported when one of its names is first used: `weir --version` need not wait for Arrow and trio.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scanner.admin import CheckpointInfo, DrainBegun, ScanInfo, SnapshotInfo, StreamInfo
    from scanner.client import Client, connect
    from scanner.client_security import read_token, tls
    from scanner.client_table import Scan, Table
    from scanner.digest import combine_digests
    from scanner.errors import (
        ArgumentInvalid,
        BucketNotFound,
        ColumnNotFound,
        CreditInvalid,
        DataCorrupted,
        Draining,
        InternalError,
        KeyInvalid,
        LeaseNotFound,
        NotLeader,
        OffsetOutOfRange,
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
        StoreClosed,
        StoreFailed,
        StoreLocked,
        TableExists,
        TableNotFound,
        TooManyScans,
        Unauthenticated,
    )
    from scanner.expressions import Column, Condition, col, parse_where
    from scanner.get_client import GetResult
    from scanner.lease_client import Lease, LeasedBucket, LeaseInfo, LeaseState, LeaseTarget, NotLeased
    from scanner.scan import ScanMode, ScanSource
    from scanner.statistics import BucketStatistics, ScanStatistics
    from scanner.table import TableDescription
    from scanner.table_scan import Batches
    from scanner.writer import OffsetRange, Writer, WriteResult
    from transport import StallReason, StallTimes

__all__ = [
    "ArgumentInvalid",
    "Batches",
    "BucketNotFound",
    "BucketStatistics",
    "CheckpointInfo",
    "Client",
    "Column",
    "ColumnNotFound",
    "Condition",
    "CreditInvalid",
    "DataCorrupted",
    "DrainBegun",
    "Draining",
    "GetResult",
    "InternalError",
    "KeyInvalid",
    "Lease",
    "LeaseInfo",
    "LeaseNotFound",
    "LeaseState",
    "LeaseTarget",
    "LeasedBucket",
    "NotLeader",
    "NotLeased",
    "OffsetOutOfRange",
    "OffsetRange",
    "PermissionDenied",
    "ResumeTokenInvalid",
    "Scan",
    "ScanIncomplete",
    "ScanInfo",
    "ScanMode",
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
    "TooManyScans",
    "Unauthenticated",
    "WriteResult",
    "Writer",
    "col",
    "combine_digests",
    "connect",
    "parse_where",
    "read_token",
    "tls",
]

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "scanner.admin": (
        "CheckpointInfo",
        "DrainBegun",
        "ScanInfo",
        "SnapshotInfo",
        "StreamInfo",
    ),
    "scanner.client": (
        "Client",
        "connect",
    ),
    "scanner.client_security": (
        "read_token",
        "tls",
    ),
    "scanner.client_table": (
        "Scan",
        "Table",
    ),
    "scanner.digest": ("combine_digests",),
    "scanner.errors": (
        "ArgumentInvalid",
        "BucketNotFound",
        "ColumnNotFound",
        "CreditInvalid",
        "DataCorrupted",
        "Draining",
        "InternalError",
        "KeyInvalid",
        "LeaseNotFound",
        "NotLeader",
        "OffsetOutOfRange",
        "PermissionDenied",
        "ResumeTokenInvalid",
        "ScanIncomplete",
        "ScannerError",
        "SchemaMismatch",
        "SequenceInvalid",
        "ServerUnavailable",
        "SessionBusy",
        "SessionExpired",
        "SessionUnknown",
        "SlowConsumer",
        "SnapshotLost",
        "SourceUnsupported",
        "StoreClosed",
        "StoreFailed",
        "StoreLocked",
        "TableExists",
        "TableNotFound",
        "TooManyScans",
        "Unauthenticated",
    ),
    "scanner.expressions": (
        "Column",
        "Condition",
        "col",
    ),
    "scanner.get_client": ("GetResult",),
    "scanner.lease_client": (
        "Lease",
        "LeasedBucket",
        "LeaseInfo",
        "LeaseState",
        "LeaseTarget",
        "NotLeased",
    ),
    "scanner.scan": (
        "ScanMode",
        "ScanSource",
    ),
    "scanner.statistics": (
        "BucketStatistics",
        "ScanStatistics",
    ),
    "scanner.table": ("TableDescription",),
    "scanner.table_scan": ("Batches",),
    "scanner.writer": (
        "OffsetRange",
        "Writer",
        "WriteResult",
    ),
    "transport": (
        "StallReason",
        "StallTimes",
    ),
}
"""Which module each name is from."""
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


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
