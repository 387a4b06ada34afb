"""What to scan and how: an immutable plan, made and checked by `builder`, read by all that runs a scan.

Pure: no trio, no transport, no clock.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa

from scanner.client.scan.resume_position import ResumePosition
from scanner.data.changes import CHANGE_COLUMNS, change_schema
from scanner.data.filters import Predicate
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid

PAGE_BYTES_DEFAULT = 4 << 20
PAGE_DEPTH_DEFAULT = 1
MAX_WAIT_S_DEFAULT = 0.5

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
END: Final = "end"
LogStart: TypeAlias = str | int | datetime.datetime | Mapping[int, int]
"""Where a scan of the changes begins: `EARLIEST`, `LATEST`, an offset or one per bucket, a time."""
LogStop: TypeAlias = str | int | Mapping[int, int] | None
"""Where it ends: `END`, an offset or one per bucket; None: nowhere."""


class ScanSource(enum.Enum):
    """What a scan reads."""

    LIVE_KV = "live_kv"
    """The table as of the log offset at which each bucket's scan was opened."""
    SNAPSHOT = "snapshot"
    """A retained checkpoint."""
    LOG = "log"
    """The changes."""
    HYBRID = "hybrid"
    """The table as of an offset, then the changes from it."""

    @property
    def has_changes(self) -> bool:
        """Whether its rows are changes, with the columns of a change (`scanner.data.changes`)."""
        return self in (ScanSource.LOG, ScanSource.HYBRID)


class ScanMode(enum.Enum):
    """How the rows travel."""

    PUSH = "push"
    """One server-streaming call per bucket, paced by the consumer's credit."""
    SESSION = "session"
    """Request and response pages from a live iterator that the server keeps."""
    TOKEN = "token"
    """Pages by token, of a snapshot that the server keeps between them."""
    CURSOR = "cursor"
    """Pages by token, each as of when it is asked for: the server keeps nothing, and the scan is of no one state."""
    ASOF = "asof"
    """Pages by token, all as of the first one's log offset, rebuilt from the changelog: the server keeps nothing."""
    FETCH = "fetch"
    """Changes by long poll, all buckets in one request at a time: the server keeps nothing (source LOG)."""

    @property
    def of_changes(self) -> bool:
        """Whether changes travel so and nothing else does; push carries everything, the other models states only."""
        return self is ScanMode.FETCH


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanPlan:
    """A complete description of a table scan. Its hash leaves out what may be a dict."""

    table: TableDescription
    """As it was when the plan was made: name, columns, primary key, buckets."""
    table_id: int | None = None
    """The only table of its name that is read; None: whichever has the name when a bucket is opened."""
    source: ScanSource = ScanSource.LIVE_KV
    """What is read of the table."""
    columns: tuple[str, ...] = ()
    """Columns in the order wanted; empty: all."""
    predicates: tuple[Predicate, ...] = ()
    """All of them must be true of a row."""
    row_limit: int | None = None
    """Rows of the whole table scan; None: no limit."""
    key_range: KeyRange = ALL_KEYS
    """Encoded keys that are scanned, in every bucket."""
    bucket: int | None = None
    """The only bucket to scan; None: all of them."""
    lease_id: str = ""
    """SNAPSHOT: the lease that names the states; empty: the newest checkpoints."""
    mode: ScanMode = ScanMode.PUSH
    """How the rows travel."""
    credit_bytes: int | None = None
    """Message bytes that the consumer may have waiting for it, over all buckets (push); None: as many as are of use."""
    page_depth: int = PAGE_DEPTH_DEFAULT
    """Pages fetched ahead of the consumer, per bucket (all modes but push)."""
    page_bytes: int = PAGE_BYTES_DEFAULT
    """Size of the pages asked for; mode fetch: of each bucket's part of an answer (all modes but push)."""
    min_bytes: int = 1
    """Bytes for which the server waits (fetch)."""
    max_wait_s: float = MAX_WAIT_S_DEFAULT
    """The longest that it waits for them (fetch)."""
    as_of: int | Mapping[int, int] | None = dataclasses.field(default=None, hash=False)
    """The log offset that every bucket is read as of, or that of each; None: as of when it is opened."""
    start_at: LogStart = dataclasses.field(default=EARLIEST, hash=False)
    """LOG: where to begin."""
    stop_at: LogStop = dataclasses.field(default=None, hash=False)
    """LOG and HYBRID: where to end."""
    whole_commits: bool = False
    """LOG and HYBRID: hand out the changes of a commit together (push)."""
    histories: Mapping[int, bytes] = dataclasses.field(default_factory=dict, hash=False)
    """By bucket, the history that its offset is of, where that is known."""
    group: str = ""
    """LOG: the reader group that shares the buckets out; empty: none."""
    member: str = ""
    """Names this reader within the group; empty: a name is made up."""
    auto_commit: bool = False
    """Store the positions of what was handed out by itself."""
    resume_at: ResumePosition | None = None
    """Hand out what is behind it; None: everything."""
    retries: int | None = None
    """Attempts at going on, in a row and without progress, that may fail; None: as the client was told."""
    resume_every_batches: int | None = None
    """For tests: the client cuts each stream itself after so many batches, and goes on (push)."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """The buckets to scan, ascending."""
        return tuple(range(self.table.buckets)) if self.bucket is None else (self.bucket,)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        columns = self.columns
        if self.resume_at is not None and not columns:
            columns = self.table.column_names[: self.resume_at.columns]
            columns += tuple(each.name for each in CHANGE_COLUMNS if self.source.has_changes)
        if self.source.has_changes:
            return change_schema(self.table, columns)
        return self.table.project(columns or self.table.column_names)

    @property
    def endless(self) -> bool:
        """Whether it waits for changes, for ever."""
        return self.source.has_changes and self.stop_at is None and self.row_limit is None

    def require_end(self, call: str) -> None:
        """Check that every row can be collected.

        Args:
            call: The caller's name, for the message.

        Raises:
            ArgumentInvalid: The scan is endless.
        """
        if self.endless:
            raise ArgumentInvalid(
                f"{call} wants every row, and this scan waits for changes for ever;"
                " give it an end with stop_at('end') or limit(...), or take it batch by batch"
            )

    def log_start_of(self, bucket: int) -> str | int | datetime.datetime:
        """Where the scan of a bucket's changes begins.

        Raises:
            ArgumentInvalid: Offsets are given by bucket, and this one has none.
        """
        return _of_bucket(self.start_at, bucket, "start_at")

    def log_stop_of(self, bucket: int) -> str | int | None:
        """Where the scan of a bucket's changes ends.

        Raises:
            ArgumentInvalid: Offsets are given by bucket, and this one has none.
        """
        return _of_bucket(self.stop_at, bucket, "stop_at")

    def as_of_bucket(self, bucket: int) -> int | None:
        """The log offset that a bucket is to be read as of; None: as of when it is opened.

        Raises:
            ArgumentInvalid: Offsets are given by bucket, and this one has none.
        """
        return _of_bucket(self.as_of, bucket, "as_of")


_T = TypeVar("_T")


def _of_bucket(value: _T | Mapping[int, int], bucket: int, what: str) -> _T | int:
    """What is said of a bucket, where a mapping says it bucket by bucket."""
    if not isinstance(value, Mapping):
        return value
    if bucket not in value:
        raise ArgumentInvalid(
            f"{what} says nothing of bucket {bucket}; give every bucket that is scanned an offset"
        )
    return value[bucket]
