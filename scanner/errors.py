"""What can go wrong with tables and scans, and what each failure means to its caller.

Every error that crosses the wire is one row of `ERRORS`: its machine-readable reason, the name of
its gRPC status, its exception class and whether trying again can help. Raise sites pick a class and
say what happened; status and retriability follow from the table and are decided nowhere else.

This module knows no transport, no storage and no Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from scanner.escapes import escaped

RETRY_AFTER_MS: Final = "retry_after_ms"
"""Key of an error's metadata: milliseconds for which trying again is of no use, as the server says."""
_RETRY_AFTER_S_MAX: Final = 60.0


class ScannerError(Exception):
    """Base of everything that scanner raises on purpose.

    Args:
        message: What happened, with which numbers, what to do about it; for a person, and kept as one line: control
            characters, of a column's name for instance, are written out.
        resume_token: Continues the scan, where it can go on; else None.
        oldest_offset: The oldest log offset still available, where that is the point; else None.
        metadata: Names and numbers of the case, for machines.
    """

    reason: str = "INTERNAL"
    """Its row in docs/errors.md, the same for every language."""

    def __init__(
        self,
        message: str,
        *,
        resume_token: bytes | None = None,
        oldest_offset: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.message = escaped(message)
        super().__init__(self.message)
        self.resume_token = resume_token
        self.oldest_offset = oldest_offset
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return self.message

    def of_bucket(self, bucket: int) -> Self:
        """The same error, in words that say of which bucket it is; this one, if it does."""
        if "bucket" in self.metadata:
            return self
        return self.reworded(f"bucket {bucket}: {self.message}", bucket=str(bucket))

    def reworded(self, message: str, **metadata: str) -> Self:
        """The same error in other words, and with more metadata."""
        return type(self)(
            message,
            resume_token=self.resume_token,
            oldest_offset=self.oldest_offset,
            metadata={**self.metadata, **metadata},
        )

    @property
    def retriable(self) -> bool:
        """Whether the same request can succeed later, unchanged."""
        return error_row(type(self)).retriable

    @property
    def retry_after_s(self) -> float:
        """Seconds for which trying again is of no use, as the server says; 0 if it does not, 60 at most."""
        said = self.metadata.get(RETRY_AFTER_MS, "")
        if not (said.isascii() and said.isdigit() and len(said) < 16):
            return 0.0
        return min(int(said) / 1000, _RETRY_AFTER_S_MAX)


class InternalError(ScannerError):
    """The server failed in a way it did not foresee; its log has the traceback."""

    reason = "INTERNAL"


class ArgumentInvalid(ScannerError):
    """A request asks for something that makes no sense; nothing was done."""

    reason = "ARGUMENT_INVALID"


class TableNotFound(ScannerError):
    """No table has that name."""

    reason = "TABLE_NOT_FOUND"


class TableExists(ScannerError):
    """A table of that name is there already."""

    reason = "TABLE_EXISTS"


class BucketNotFound(ScannerError):
    """The table has fewer buckets than that."""

    reason = "BUCKET_NOT_FOUND"


class ColumnNotFound(ScannerError):
    """The table has no such column; the message lists those it has, of many the first 20."""

    reason = "COLUMN_NOT_FOUND"


class SchemaMismatch(ScannerError):
    """Rows do not fit the table: a column is missing, has another type, or is of a type that is not stored."""

    reason = "SCHEMA_MISMATCH"


class KeyInvalid(ScannerError):
    """A primary key is null, incomplete or too long; nothing of the request was written."""

    reason = "KEY_INVALID"


class SourceUnsupported(ScannerError):
    """This server cannot scan that source of that table."""

    reason = "SOURCE_UNSUPPORTED"


class CreditInvalid(ScannerError):
    """A demand overflows what a byte limit can be."""

    reason = "CREDIT_INVALID"


class ResumeTokenInvalid(ScannerError):
    """The token is damaged, or was made for another query, table or principal."""

    reason = "RESUME_TOKEN_INVALID"


class SnapshotLost(ScannerError):
    """The state the scan was reading is kept no longer and cannot be rebuilt; start a new scan."""

    reason = "SNAPSHOT_LOST"


class OffsetOutOfRange(ScannerError):
    """The changelog does not hold that offset."""

    reason = "OFFSET_OUT_OF_RANGE"


class SlowConsumer(ScannerError):
    """The scan pinned more than its share for too long and was ended."""

    reason = "SLOW_CONSUMER"


class LeaseNotFound(ScannerError):
    """The lease does not exist, or not any more."""

    reason = "LEASE_NOT_FOUND"


class GroupNotFound(ScannerError):
    """The table has no such reader group."""

    reason = "GROUP_NOT_FOUND"


class GroupNotEmpty(ScannerError):
    """The reader group has members, and this can be done without any only."""

    reason = "GROUP_NOT_EMPTY"


class TooManyGroups(ScannerError):
    """The table has as many reader groups as it may have; none was begun. Delete one first."""

    reason = "TOO_MANY_GROUPS"


class GroupEpochStale(ScannerError):
    """The reader group has given the bucket, or the member's name, to another reader since."""

    reason = "GROUP_EPOCH_STALE"


class GroupMemberExpired(ScannerError):
    """A member of a reader group said nothing for too long, and its buckets went to others; it may join again."""

    reason = "GROUP_MEMBER_EXPIRED"


class VersionSuperseded(ScannerError):
    """A newer version of the transaction is decided; this one can no longer be staged or published."""

    reason = "VERSION_SUPERSEDED"


class VersionGap(ScannerError):
    """The newest decided version is not the one that its publisher names as the one before; nothing was decided."""

    reason = "VERSION_GAP"


class TransactionDecided(ScannerError):
    """The version of the transaction is decided; it cannot be aborted any more."""

    reason = "TRANSACTION_DECIDED"


class StageNotFound(ScannerError):
    """An attempt has staged nothing, or lost rows, or its version was aborted meanwhile; nothing was decided."""

    reason = "STAGE_NOT_FOUND"


class PartsConflict(ScannerError):
    """Two parts of one version touch one key, and nobody could say which is the later; nothing was decided."""

    reason = "PARTS_CONFLICT"


class StagesFull(ScannerError):
    """The stages of this server take as much of the disk as they may; nothing of this one was kept."""

    reason = "STAGES_FULL"


class TooManyTransactions(ScannerError):
    """The table has as many transaction names as it may have; none was begun."""

    reason = "TOO_MANY_TRANSACTIONS"


class NotLeader(ScannerError):
    """Another server owns the bucket. No server says so yet: each has all buckets."""

    reason = "NOT_LEADER"


class TooManyScans(ScannerError):
    """A cap on open scans, sessions, leases or members of a reader group is reached; nothing was opened."""

    reason = "TOO_MANY_SCANS"


class SessionUnknown(ScannerError):
    """No session has that id: it ended by itself, was closed, or never was."""

    reason = "SESSION_UNKNOWN"


class SessionExpired(ScannerError):
    """The session was idle past its TTL, or its opening call was cut off, and has been reclaimed."""

    reason = "SESSION_EXPIRED"


class SessionBusy(ScannerError):
    """Another request is using the session now; it is unharmed."""

    reason = "SESSION_BUSY"


class SequenceInvalid(ScannerError):
    """A sequence number is missing, leaves a gap or comes too late; the session is unharmed, nothing was written."""

    reason = "SEQUENCE_INVALID"


class DataCorrupted(ScannerError):
    """Stored or transmitted bytes fail their check; what was delivered before is right, the rest is unknown."""

    reason = "DATA_CORRUPTED"


class StoreLocked(ScannerError):
    """Another process has the data directory open."""

    reason = "STORE_LOCKED"


class StoreFailed(ScannerError):
    """The disk refused a read or a write; nothing unacknowledged is promised."""

    reason = "STORE_FAILED"


class DiskFull(StoreFailed):
    """The server's disk has no room for a write; scans go on, and writes are taken again when there is room."""

    reason = "DISK_FULL"


class TooManyFiles(StoreFailed):
    """The server may open no more files; nothing was done."""

    reason = "TOO_MANY_FILES"


class TooManyTables(ScannerError):
    """The server has as many tables or buckets as it may have; nothing was created."""

    reason = "TOO_MANY_TABLES"


class StoreClosed(ScannerError):
    """The store was closed while it was asked for something."""

    reason = "STORE_CLOSED"


class Draining(ScannerError):
    """The server is going down in good order and takes no new work."""

    reason = "DRAINING"


class ServerUnavailable(ScannerError):
    """The server cannot be reached, or the connection to it was lost."""

    reason = "SERVER_UNAVAILABLE"


class ScanIncomplete(ScannerError):
    """The stream ended without its explicit end: what was delivered is a part."""

    reason = "SCAN_INCOMPLETE"


class Unauthenticated(ScannerError):
    """The server does not know who calls: no credentials, wrong ones, or a certificate that names nobody."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(ScannerError):
    """Who calls is known, and may not do that."""

    reason = "PERMISSION_DENIED"


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorRow:
    """One row of the error table."""

    reason: str
    """Stable name, in the details of the status and in docs/errors.md."""
    status: str
    """Name of the gRPC status code."""
    exception: type[ScannerError]
    """What the client raises."""
    retriable: bool
    """Whether the same request can succeed later, unchanged."""


def _row(exception: type[ScannerError], status: str, *, retriable: bool = False) -> ErrorRow:
    return ErrorRow(reason=exception.reason, status=status, exception=exception, retriable=retriable)


ERRORS: tuple[ErrorRow, ...] = (
    _row(InternalError, "INTERNAL"),
    _row(ArgumentInvalid, "INVALID_ARGUMENT"),
    _row(TableNotFound, "NOT_FOUND"),
    _row(TableExists, "ALREADY_EXISTS"),
    _row(BucketNotFound, "NOT_FOUND"),
    _row(ColumnNotFound, "INVALID_ARGUMENT"),
    _row(SchemaMismatch, "INVALID_ARGUMENT"),
    _row(KeyInvalid, "INVALID_ARGUMENT"),
    _row(SourceUnsupported, "UNIMPLEMENTED"),
    _row(CreditInvalid, "INVALID_ARGUMENT"),
    _row(ResumeTokenInvalid, "INVALID_ARGUMENT"),
    _row(SnapshotLost, "FAILED_PRECONDITION"),
    _row(OffsetOutOfRange, "OUT_OF_RANGE"),
    _row(SlowConsumer, "RESOURCE_EXHAUSTED"),
    _row(LeaseNotFound, "NOT_FOUND"),
    _row(GroupNotFound, "NOT_FOUND"),
    _row(GroupNotEmpty, "FAILED_PRECONDITION"),
    _row(TooManyGroups, "RESOURCE_EXHAUSTED"),
    _row(GroupEpochStale, "FAILED_PRECONDITION"),
    _row(GroupMemberExpired, "ABORTED", retriable=True),
    _row(VersionSuperseded, "FAILED_PRECONDITION"),
    _row(VersionGap, "FAILED_PRECONDITION"),
    _row(TransactionDecided, "FAILED_PRECONDITION"),
    _row(StageNotFound, "NOT_FOUND"),
    _row(PartsConflict, "FAILED_PRECONDITION"),
    _row(StagesFull, "RESOURCE_EXHAUSTED", retriable=True),
    _row(TooManyTransactions, "RESOURCE_EXHAUSTED"),
    _row(NotLeader, "FAILED_PRECONDITION", retriable=True),
    _row(TooManyScans, "RESOURCE_EXHAUSTED", retriable=True),
    _row(SessionUnknown, "NOT_FOUND"),
    _row(SessionExpired, "FAILED_PRECONDITION"),
    _row(SessionBusy, "ABORTED", retriable=True),
    _row(SequenceInvalid, "INVALID_ARGUMENT"),
    _row(DataCorrupted, "DATA_LOSS"),
    _row(StoreLocked, "FAILED_PRECONDITION"),
    _row(StoreFailed, "INTERNAL"),
    _row(DiskFull, "RESOURCE_EXHAUSTED", retriable=True),
    _row(TooManyFiles, "RESOURCE_EXHAUSTED", retriable=True),
    _row(TooManyTables, "RESOURCE_EXHAUSTED"),
    _row(StoreClosed, "UNAVAILABLE", retriable=True),
    _row(Draining, "UNAVAILABLE", retriable=True),
    _row(ServerUnavailable, "UNAVAILABLE", retriable=True),
    _row(ScanIncomplete, "DATA_LOSS", retriable=True),
    _row(Unauthenticated, "UNAUTHENTICATED"),
    _row(PermissionDenied, "PERMISSION_DENIED"),
)

_BY_EXCEPTION = {row.exception: row for row in ERRORS}
_BY_REASON = {row.reason: row for row in ERRORS}


def error_row(kind: type[ScannerError]) -> ErrorRow:
    """The row of an exception class, or of its nearest ancestor that has one."""
    for ancestor in kind.__mro__:
        if ancestor in _BY_EXCEPTION:
            return _BY_EXCEPTION[ancestor]
    return _BY_EXCEPTION[InternalError]


def error_row_of_reason(reason: str) -> ErrorRow | None:
    """The row of a reason as read from the wire; None if this version does not know it."""
    return _BY_REASON.get(reason)
