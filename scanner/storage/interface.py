"""What the rest of scanner knows of storage: the protocols of store, bucket, snapshot and scan.

Two implementations pass one contract suite: the one on RocksDB (`scanner.storage.rocksdb.store`) and the
in-memory one (`scanner.storage.memory.store`). Everything here is synchronous. Keys are memcomparable
(`scanner.data.keys`), rows are encoded (`scanner.data.rows`); storage compares keys bytewise and looks into
neither. The records that pass are in `scanner.storage.records`, and are exported here too.

Invariants that every implementation holds:

1. The changelog of a bucket is dense: every offset in [log_start, log_end) has exactly one change. It is made of whole
   entries: `log_start`, `log_end` and what `offset_at` returns are ends of entries, and never inside the share of a
   transaction, which may be several entries.
2. Folding the changes of [0, S) gives the bucket as of S; folding them all gives the bucket now.
3. A scan shows the bucket as of its `log_offset`, whatever is committed, truncated or compacted after it
   was opened. So does a snapshot, every scan of it, and a reader of single rows.
4. A scan that ended has delivered every key of its range: the end is proven, or it is an error.
5. What `commit_prepared` (rows and states of reader groups), `truncate_log`, `create_checkpoint`, `drop_checkpoint`
   and `write_document` returned from is durable.

This module knows no RocksDB, no trio and no Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from scanner.data.key_ranges import SplitWish
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.storage.group_states import GroupState
from scanner.storage.records import (
    ENTRY_BYTES_MAX,
    Change,
    ChangeBlock,
    ChangeKind,
    Checkpoint,
    Entry,
    EntrySize,
    KeysOf,
    Mutation,
    Mutations,
    PreparedCommit,
    Rows,
)
from scanner.storage.splits import BucketSplit, Piece

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from scanner.data.keys import KeyCodec
    from scanner.data.rows import RowCodec
    from scanner.data.table import TableDescription
    from scanner.errors import ScannerError
    from scanner.storage.lineage import Lineage
    from scanner.storage.records import DiskStatus
    from scanner.storage.transactions import AppliedShare, TransactionFiles
    from scanner.storage.writers import AppliedRequest, AppliedRequests

__all__ = [
    "ENTRY_BYTES_MAX",
    "Bucket",
    "BucketReader",
    "BucketScan",
    "BucketSnapshot",
    "BucketSplit",
    "Change",
    "ChangeBlock",
    "ChangeKind",
    "Checkpoint",
    "Entry",
    "EntrySize",
    "GroupState",
    "KeyRange",
    "KeysOf",
    "Mutation",
    "Mutations",
    "PreparedCommit",
    "Rows",
    "SplitWish",
    "Store",
]


class BucketScan(Protocol):
    """One pass over a key range of a bucket as of one log offset. Used by one task at a time."""

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """Read on, at least one row unless the end is reached or the answer is unfinished.

        Args:
            rows_max: Rows at most, >= 1.
            bytes_max: Stored bytes at most, >= 1, except that the first row is always included.

        Returns:
            The next rows in key order. No rows, and not `unfinished`: every row of the range was delivered,
            and that was checked; further reads return no rows again.

        Raises:
            DataCorrupted: a read failed its checks, or the end could not be proven. Raised again by every
                further read.
            StoreFailed: the disk refused a read.
            StoreClosed: the scan, its snapshot, its bucket or its store was closed.
        """

    def close(self) -> None:
        """Release everything in storage. Idempotent."""


class BucketSnapshot(Protocol):
    """A bucket as of one log offset, held open. Any number of scans read it in turn, all in one thread."""

    @property
    def log_offset(self) -> int:
        """The snapshot shows the changes with a smaller offset, and no other."""

    def scan(self, key_range: KeyRange = ALL_KEYS, *, short: bool = False) -> BucketScan:
        """Open a scan as of `log_offset`, at any time, whatever was committed since and even while a commit runs.

        Closing the scan does not close the snapshot.

        Args:
            key_range: What to scan.
            short: Few rows will be read: little is read ahead of them. All of the range can be read all the same.

        Raises:
            StoreClosed: the snapshot, its bucket or its store was closed.
        """

    def close(self) -> None:
        """Release everything in storage; its scans raise StoreClosed from now on. Idempotent."""


class BucketReader(Protocol):
    """Rows of a bucket by their keys, as of one log offset. Used by one task at a time."""

    @property
    def log_offset(self) -> int:
        """The reader shows the changes with a smaller offset, and no other."""

    def get(self, key: bytes) -> bytes | None:
        """The stored row of a key; None if there is none. One point read, whatever was committed since the opening.

        Raises:
            DataCorrupted: the read failed its checks.
            StoreFailed: the disk refused the read.
            StoreClosed: the reader, its bucket or its store was closed.
        """

    def close(self) -> None:
        """Free what it holds in storage. Idempotent."""


class Bucket(Protocol):
    """One shard of a table: rows by key, and the changelog that produced them.

    Once it was closed, whatever reads storage or writes it raises StoreClosed.
    """

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""

    @property
    def log_bytes(self) -> int:
        """Rough stored size of the changes in [log_start, log_end), in bytes; falls at once with `truncate_log`."""

    def log_bytes_from(self, offset: int) -> int:
        """The part of `log_bytes` that the changes from an offset on have; all of it, of one at or before log_start.

        Raises:
            OffsetOutOfRange: Retention passes the offset now.
            DataCorrupted: the change is missing, or its record is damaged.
        """

    @property
    def newest_commit_us(self) -> int:
        """Time of the newest durable commit, in microseconds since 1970 UTC; later ones have later times. 0: none."""

    @property
    def truncated_commit_us(self) -> int | None:
        """Time of the newest commit that was truncated, as `newest_commit_us`; None: of that nothing is known."""

    @property
    def open_iterators(self) -> int:
        """Iterators that snapshots of the live bucket and their scans hold, and its readers: they pin the directory."""

    @property
    def lineage(self) -> Lineage:
        """The histories that the changelog is made of."""

    @property
    def group_states(self) -> Mapping[str, GroupState]:
        """The reader groups of the bucket that have a state, by name; all of it durable. Not to be changed."""

    @property
    def applied_shares(self) -> Mapping[str, AppliedShare]:
        """By name of a transaction, the newest version that was applied here; all of it durable. Not to be changed.

        A bucket that is made has one of `ALL_KNOWN`, too.
        """

    def requests_of(self, writer_id: bytes) -> AppliedRequests:
        """What is known of the requests of a writer that were applied here; all of it durable. Empty: nothing."""

    @property
    def lost_changes(self) -> int:
        """Acknowledged changes that were not there any more when the bucket was opened, ever, as far as is known."""

    @property
    def failure(self) -> ScannerError | None:
        """Why it takes no writes since one has failed; None: it does."""

    @property
    def readable(self) -> bool:
        """Whether scans can be opened; not between a failed write and `reopen`."""

    @property
    def hides(self) -> bool:
        """Whether a commit that has failed is kept from readers, since it may not be durable.

        It may turn out to be there when the bucket takes writes again.
        """

    @property
    def idle(self) -> bool:
        """Whether it was closed for being idle; its next use waits for the disk."""

    def reopen(self, *, writable: bool) -> None:
        """Close what is open of the bucket, and open it anew: after a failed write, to find what is on the disk.

        Scans and snapshots that were not closed raise StoreClosed from now on. `log_end` is what was found. Blocks on
        the disk; meant for a worker thread, not while a commit or anything like it runs.

        Args:
            writable: Try to take writes again. If that fails, or is not asked for, the bucket is open for reading only,
                which needs no room on the disk, and `failure` says why.

        Raises:
            StoreFailed, DataCorrupted: Not even that; nothing can be read. It can be tried again.
        """

    def close_idle(self) -> None:
        """Close the bucket's files until it is used again; without effect while something is read, or `unfinished`.

        Blocks on the disk; meant for a worker thread.
        """

    def wake(self) -> None:
        """Open what `close_idle` has closed. Blocks on the disk; meant for a worker thread.

        Raises:
            StoreFailed, DataCorrupted, StoreClosed: it cannot be opened.
        """

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """Work out a commit: read what it replaces, and encode what it writes. Nothing is changed yet.

        Blocks on the disk and computes; meant for a worker thread, one caller at a time, beside scans that are opened
        and read. The log's end must not move between this and `commit_prepared`.

        Args:
            groups: The mutations, by the request that they came with; each makes one entry of the changelog. An upsert
                of an absent key is `+I`, of a present one `-U +U`, even if the row is the same; a delete of an absent
                key is no change, and a group without changes makes no entry.
            clock_us: What the clock says, in microseconds since 1970 UTC; None: the system's. Entries are stamped with
                it, or with a microsecond more than the one before, whichever is later.
            after_us: Every entry is stamped with a later time than this one, in microseconds since 1970 UTC.

        Returns:
            The commit. A group whose entry would hold more than `ENTRY_BYTES_MAX` is refused by itself.

        Raises:
            DataCorrupted: a before-image could not be read.
            StoreFailed: the disk refused, now or at an earlier commit.
        """

    def commit_prepared(
        self,
        prepared: PreparedCommit,
        group_states: Mapping[str, GroupState | None] | None = None,
        applied: Mapping[str, AppliedShare | None] | None = None,
        requests: Mapping[bytes, Sequence[AppliedRequest]] | None = None,
        *,
        unfinished: bool = False,
    ) -> None:
        """Apply a prepared commit atomically, and make it durable. One that changes nothing writes no change.

        Blocks on the disk; meant for a worker thread, one caller at a time.

        Args:
            prepared: The commit.
            group_states: What becomes of these reader groups in the same commit, by name; None: it is forgotten.
                Their `epoch_history` is not looked at: the bucket knows what it has begun.
            applied: What is remembered of these transactions from the same commit on, by name; None: it is forgotten.
            requests: By writer, `WRITERS_MAX` at most, what is remembered of its requests from the same commit on,
                ascending; see `scanner.storage.writers`.
            unfinished: It is a part of something larger, which the next commits continue and the first one that is not
                `unfinished` ends. Until then `log_end` stays where it is, no scan, snapshot, reader or checkpoint can
                be opened, and when the bucket is opened anew all of it is undone.

        Raises:
            StoreFailed: the disk refused. Whether the mutations survive is unknown until the store is reopened;
                until then every further commit raises this. Or the log's end has moved: nothing was written.
        """

    def commit(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None
    ) -> list[tuple[int, int]]:
        """Both at once; a refused group refuses all.

        Returns:
            Per group, in order, the offsets of its changes: [start, end). Equal if nothing changed.

        Raises:
            ArgumentInvalid: a group's entry would hold more than `ENTRY_BYTES_MAX`; nothing was changed.
            StoreFailed, DataCorrupted, StoreClosed: see `prepare` and `commit_prepared`.
        """

    def open_snapshot(self) -> BucketSnapshot:
        """Open a snapshot as of `log_end`. Not while a commit runs: its changes would be seen but not counted."""

    def open_reader(self) -> BucketReader:
        """Open a reader of single rows as of `log_end`. Not while a commit runs, as `open_snapshot`."""

    def read_change_block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """Read changes from start_offset on, at most to end_offset, a bounded number at once; in any thread.

        Args:
            start_offset: Of the first change.
            end_offset: One past the last one that is wanted; some thousand more at most.
            bytes_max: Reading stops when the records read take this much, >= 1; about, where sizes vary. A
                thousand or so small commits are enough, too. At least one change is read unless there is none to read.

        Raises:
            OffsetOutOfRange: the range is not inside [log_start, log_end]; the message names both, and
                `oldest_offset` is log_start. Also when a truncation overtakes it.
            DataCorrupted: an offset is missing or a record is damaged.
        """

    def entry_at(self, offset: int) -> Entry:
        """The entry that holds the change at an offset. One point read.

        Raises:
            OffsetOutOfRange: the offset is not inside [log_start, log_end).
            DataCorrupted: the change is missing, or its record is damaged.
        """

    def measure_entries(self, start_offset: int, entries_max: int, bytes_max: int) -> list[EntrySize]:
        """The sizes of the entries from an offset on; their rows are not decoded.

        Args:
            start_offset: Where an entry begins, or log_end.
            entries_max: Entries at most, >= 1.
            bytes_max: Stop behind the entry with which their rows reach so many stored bytes, >= 1.

        Returns:
            In order; none at the end of the log.

        Raises:
            OffsetOutOfRange: the offset is not inside [log_start, log_end].
            DataCorrupted: a change is missing, a record is damaged, or no entry begins there.
        """

    def offset_at(self, timestamp_us: int) -> int:
        """Where the first entry begins whose commit time is at or after a time; log_end if none is.

        In front of it nothing of a share is half: where that entry continues one, the share's first entry begins. A
        few point reads, and one for each piece of such a share.

        Args:
            timestamp_us: Microseconds since 1970 UTC.

        Raises:
            DataCorrupted: an offset is missing or a record is damaged.
        """

    def share_start(self, offset: int) -> int:
        """Where the entry begins that an offset is in, or the first entry of the share which that continues.

        At or below log_start that is log_start; at log_end and behind it the offset itself. A point read an entry.

        Raises:
            DataCorrupted: an offset is missing or a record is damaged.
        """

    def split(
        self, wish: SplitWish, key_range: KeyRange = ALL_KEYS, known: Sequence[Piece] = ()
    ) -> BucketSplit:
        """Where to cut the rows, or a range of them, so that each part takes about as many bytes. Changes nothing.

        An estimate, from samples: rows that were written a moment ago, replaced or deleted may count or not. Takes a
        bounded time, however many rows there are. Blocks on the disk; meant for a worker thread, beside commits, and
        while no scan can be opened since one has failed.

        Args:
            wish: How many parts, or how large.
            key_range: What is cut.
            known: All rows as ascending pieces, with their sizes before compression, as they were a moment ago. Rows
                that could only be found by reading them need not be read then. Empty: nothing is known.

        Raises:
            StoreFailed, DataCorrupted: the disk refused, or a file is damaged.
        """

    def truncate_log(self, start_offset: int) -> None:
        """Drop the entries and shares that end at or before an offset. Rows, scans and snapshots are untouched.

        Blocks on the disk; meant for a worker thread, not while a commit runs. The space comes back with
        `free_log`.

        Args:
            start_offset: The oldest offset to keep: log_start moves to its `share_start`. At or below log_start nothing
                happens; past log_end: all changes are dropped, but the last entry, or share, where a file of them is
                damaged.

        Raises:
            DataCorrupted: a record is damaged that tells where the share begins, or what the offset is in; nothing is
                cut. An offset behind the share can be cut to.
            StoreFailed: the disk refused; as after a failed commit.
        """

    def log_is_readable(self) -> bool:
        """Whether no file of the log is damaged, and all of it can be truncated. Found so, it is known until a commit.

        Blocks while the log is read, seconds for a GiB; meant for a worker thread. Commits and scans go on beside it.
        `truncate_log` asks itself where all is to go; who asks before keeps no commit waiting for that.

        Raises:
            StoreFailed: the disk refused.
        """

    @property
    def unflushed_bytes(self) -> int:
        """What is in memory and not yet in files; 0 of a bucket that is closed, or takes no writes.

        Raises:
            StoreFailed, StoreClosed: it is not known.
        """

    def flush(self) -> None:
        """Write what is in memory into files; commits wait. Blocks for as long as that takes.

        Raises:
            StoreFailed: the disk refused; as after a failed commit.
        """

    def free_log(self) -> bool:
        """Give back the disk that truncated entries take, if that is much of the log, and more than is written again.

        Blocks for as long as that takes; meant for a worker thread. Commits wait while what is in memory is written, as
        for a checkpoint; scans go on beside it. What checkpoints have of the same files stays as long as they do.

        Returns:
            Whether something was given back.

        Raises:
            StoreFailed: the disk refused; as after a failed commit.
            DataCorrupted: a file is damaged.
        """

    def join_log(self) -> bool:
        """Make one file of some small files of the log, where there are many; none that it reads is large.

        Blocks for as long as that takes, a second or two; meant for a worker thread. Commits and scans go on beside it.

        Returns:
            Whether some were joined.

        Raises:
            StoreFailed: the disk refused; as after a failed commit.
            DataCorrupted: a file is damaged; nothing was done.
        """

    def compact(self) -> None:
        """Rewrite rows and log without what was replaced, deleted or truncated and is pinned by no snapshot.

        Blocks for as long as that takes; meant for a worker thread. Commits and scans go on beside it.

        Raises:
            StoreFailed: the disk refused; as after a failed commit.
            DataCorrupted: a file is damaged.
        """


class Store(Protocol):
    """Tables, their schemas and their buckets.

    Once it was closed, whatever reads storage or writes it raises StoreClosed.
    """

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""

    def table(self, name: str) -> TableDescription:
        """The description of a table.

        Raises:
            TableNotFound: no such table; the message lists those there are.
        """

    def transaction_files(self, name: str) -> TransactionFiles:
        """The stages and decisions of a table's transactions.

        Raises:
            TableNotFound: no such table.
        """

    def create_table(self, description: TableDescription) -> None:
        """Create a table with empty buckets; durable when this returns.

        Raises:
            TableExists: the name is taken.
            StoreFailed: the disk refused.
        """

    def table_id(self, name: str) -> int:
        """Number of a table; a table created under the same name after a drop has another. Survives a restart.

        Raises:
            TableNotFound: no such table.
        """

    def add_column(self, name: str, column: pa.Field) -> None:
        """Add a column to a table, the last one; durable when this returns. Present rows read as null in it.

        Codecs that were handed out before know nothing of it: ask for them again.

        Raises:
            TableNotFound: no such table.
            SchemaMismatch: the column is not nullable, so old rows have no value for it, or of a type that
                cannot be stored, or one too many.
            ArgumentInvalid: the table has a column of that name.
            StoreFailed: the disk refused.
        """

    def drop_table(self, name: str) -> Callable[[], None]:
        """Drop a table, its rows and its checkpoints; buckets, snapshots and scans are closed.

        Returns:
            Removes its files: to be called once. It may take long, and run beside whatever else is done. It raises
            StoreFailed where the disk refuses; what it leaves goes at the next start.

        Raises:
            TableNotFound: no such table.
            StoreFailed: the disk refused.
        """

    def key_codec(self, name: str) -> KeyCodec:
        """The codec of the table's keys; the same object each time, until a column is added.

        Raises:
            TableNotFound: no such table.
        """

    def row_codec(self, name: str) -> RowCodec:
        """The codec of the table's rows: writes the current schema, reads every schema the table ever had.

        Raises:
            TableNotFound: no such table.
        """

    def bucket(self, name: str, index: int) -> Bucket:
        """A bucket, opened at first use and kept; the same object each time.

        Raises:
            TableNotFound: no such table.
            BucketNotFound: the table has fewer buckets; the message says how many.
            DataCorrupted: its files are damaged.
            StoreFailed: the disk refused.
        """

    def create_checkpoint(self, name: str, index: int) -> Checkpoint:
        """Keep the state of a bucket as of its log_end on disk, in hard links to its files.

        Blocks on the disk; meant for a worker thread, not while a commit runs. A crash leaves the whole
        checkpoint or none.

        Raises:
            TableNotFound, BucketNotFound: there is no such bucket.
            DataCorrupted: its files are damaged.
            StoreFailed: the disk refused.
        """

    def checkpoints(self, name: str, index: int) -> list[Checkpoint]:
        """The checkpoints of a bucket, oldest first.

        Raises:
            TableNotFound, BucketNotFound: there is no such bucket.
            StoreFailed: the disk refused.
        """

    def open_checkpoint(
        self, name: str, index: int, checkpoint_id: int, table_id: int | None = None
    ) -> BucketSnapshot:
        """Open a checkpoint for reading, as of its log offset. Blocks for some milliseconds.

        Args:
            name: Of the table.
            index: Of the bucket.
            checkpoint_id: Which one.
            table_id: The table that is meant, as `table_id` numbers it; None: any of the name.

        Raises:
            SnapshotLost: there is no such checkpoint, or not any more.
            TableNotFound, BucketNotFound: there is no such bucket, or the table of that name is another one.
            DataCorrupted: its files are damaged.
            StoreFailed: the disk refused.
        """

    def drop_checkpoint(self, name: str, index: int, checkpoint_id: int, table_id: int | None = None) -> None:
        """Drop a checkpoint. Snapshots that are open on it go on; its files go when they are closed. Idempotent.

        Args:
            name: Of the table.
            index: Of the bucket.
            checkpoint_id: Which one. Ids are counted by bucket: a table created anew has the same ones.
            table_id: The table that is meant, as `table_id` numbers it; None: any of the name.

        Raises:
            TableNotFound, BucketNotFound: there is no such bucket, or the table of that name is another one.
            StoreFailed: the disk refused.
        """

    def image_path(self, table_id: int, index: int) -> Path | None:
        """Where the image of a bucket is, if it has one; None: this store keeps none. Its directory may be missing."""

    def read_document(self, name: str) -> bytes | None:
        """A small file of the data directory; None if it was never written.

        Args:
            name: 1 to 64 of a-z, 0-9, `_`, `-` and `.`, starting with a letter.

        Raises:
            ArgumentInvalid: the name is not one.
            StoreFailed: the disk refused.
        """

    def write_document(self, name: str, content: bytes) -> None:
        """Write or replace a document: atomic, durable, readable to the server's user only. Blocks on the disk.

        Args:
            name: As for `read_document`.
            content: The whole of it; meant for kilobytes.

        Raises:
            ArgumentInvalid: the name is not one.
            StoreFailed: the disk refused; the old one is still there, unless only the last sync failed.
        """

    @property
    def write_buffers_half_full(self) -> bool:
        """Whether half of the memory for what is not in files yet is used.

        When nearly all of it is, each write to a bucket has what the bucket has in memory flushed, however little that
        is, and whoever has used it up.
        """

    def check_disk(self) -> DiskStatus | None:
        """Look at the disk: whether writes are refused because it is full. Meant for a worker thread, now and then.

        Returns:
            What there is; None: there is no disk, or it does not say.
        """

    def close(self) -> None:
        """Close every scan, snapshot and bucket, and unlock the directory. Idempotent."""
