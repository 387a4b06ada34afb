"""What the rest of scanner knows of storage: the records that pass, and the protocols of store, bucket and scan.

Two implementations pass one contract suite: the one on RocksDB (`scanner.storage.store`) and the
in-memory one (`scanner.storage.memory`). Everything here is synchronous. Keys are memcomparable
(`scanner.keys`), rows are encoded (`scanner.rows`); storage compares keys bytewise and looks into
neither.

Invariants that every implementation holds:

1. The changelog of a bucket is dense: every offset in [log_start, log_end) has exactly one change.
2. Folding the changes of [0, S) gives the bucket as of S; folding them all gives the bucket now.
3. A scan shows the bucket as of its `log_offset`, whatever is committed after it was opened.
4. A scan that ended has delivered every key of its range: the end is proven, or it is an error.
5. What `commit` returned is durable.

This module knows no RocksDB, no trio and no Arrow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scanner.keys import ALL_KEYS, KeyRange

if TYPE_CHECKING:
    from scanner.keys import KeyCodec
    from scanner.rows import RowCodec
    from scanner.table import TableDescription

__all__ = [
    "Bucket",
    "BucketScan",
    "Change",
    "ChangeKind",
    "KeyRange",
    "Mutation",
    "Rows",
    "Store",
]


class ChangeKind(enum.IntEnum):
    """What one change did to its key. An update is two changes, before and after, at adjacent offsets."""

    INSERT = 1
    """`+I`: the key was absent; the row is its first."""
    UPDATE_BEFORE = 2
    """`-U`: the row that the update at the next offset replaces."""
    UPDATE_AFTER = 3
    """`+U`: the row that replaces the one at the offset before."""
    DELETE = 4
    """`-D`: the key is gone; the row is its last."""

    @property
    def symbol(self) -> str:
        """The two characters that people write: `+I`, `-U`, `+U`, `-D`."""
        return _SYMBOLS[self]


_SYMBOLS = {
    ChangeKind.INSERT: "+I",
    ChangeKind.UPDATE_BEFORE: "-U",
    ChangeKind.UPDATE_AFTER: "+U",
    ChangeKind.DELETE: "-D",
}


class Mutation(NamedTuple):
    """One upsert or one delete."""

    key: bytes
    """Encoded primary key."""
    row: bytes | None
    """Encoded row, which holds the same primary key; None deletes."""


class Change(NamedTuple):
    """One record of the changelog."""

    offset: int
    """Position in the bucket's changelog."""
    kind: ChangeKind
    """What happened."""
    timestamp_us: int
    """Commit time in microseconds since 1970 UTC; never decreases along the log."""
    key: bytes
    """Encoded primary key."""
    row: bytes
    """Encoded row: the new one of `+I` and `+U`, the old one of `-U` and `-D`."""


class Rows:
    """What one `BucketScan.read` yields: stored rows in key order. None of them: the proven end.

    Args:
        rows: The stored rows.
        keys_of: Works out the keys of stored rows.
    """

    __slots__ = ("_keys_of", "_last_key", "rows")

    def __init__(self, rows: list[bytes], keys_of: KeysOf) -> None:
        self.rows = rows
        self._keys_of = keys_of
        self._last_key: bytes | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def last_key(self) -> bytes | None:
        """Key of the last row, worked out when first asked for (tens of microseconds); None without rows."""
        if self._last_key is None and self.rows:
            self._last_key = self._keys_of(self.rows[-1:])[0]
        return self._last_key


KeysOf = Callable[[Sequence[bytes]], list[bytes]]
"""Stored rows to their encoded keys. Raises DataCorrupted if a row cannot be read."""


class BucketScan(Protocol):
    """One pass over a key range of a bucket as of one log offset. Used by one task at a time."""

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """Read on, at least one row unless the end is reached.

        Args:
            rows_max: Rows at most, >= 1.
            bytes_max: Stored bytes at most, >= 1, except that the first row is always included.

        Returns:
            The next rows in key order. No rows: every row of the range was delivered, and that was checked;
            further reads return no rows again.

        Raises:
            DataCorrupted: a read failed its checks, or the end could not be proven. Raised again by every
                further read.
            StoreFailed: the disk refused a read.
            StoreClosed: the scan, its bucket or its store was closed.
        """

    def close(self) -> None:
        """Let go of everything in storage. Idempotent."""


class Bucket(Protocol):
    """One shard of a table: rows by key, and the changelog that produced them."""

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""

    @property
    def log_end(self) -> int:
        """One past the newest durable change."""

    def commit(self, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        """Apply all mutations atomically, in order, and make them durable.

        Blocks on the disk; meant for a worker thread, one caller at a time.

        Args:
            groups: The mutations, by the request that they came with. An upsert of an absent key is `+I`, of a
                present one `-U +U`, even if the row is the same; a delete of an absent key is no change.

        Returns:
            Per group, in order, the offsets of its changes: [start, end). Equal if nothing changed.

        Raises:
            StoreFailed: the disk refused. Whether the mutations survive is unknown until the store is reopened;
                until then every further commit raises this.
            DataCorrupted: a before-image could not be read; nothing was changed.
            StoreClosed: the bucket was closed.
        """

    def open_scan(self, key_range: KeyRange = ALL_KEYS) -> BucketScan:
        """Open a scan as of `log_end`. Not while a commit runs: its changes would be seen but not counted.

        Raises:
            StoreClosed: the bucket was closed.
        """

    def read_changes(self, start_offset: int, end_offset: int) -> Iterator[Change]:
        """Read the changes of [start_offset, end_offset), in offset order.

        Raises:
            OffsetOutOfRange: the range is not inside [log_start, log_end]; the message names both.
            DataCorrupted: an offset is missing or a record is damaged.
            StoreClosed: the bucket was closed.
        """


class Store(Protocol):
    """Tables, their schemas and their buckets."""

    def tables(self) -> list[TableDescription]:
        """All tables, ordered by name."""

    def table(self, name: str) -> TableDescription:
        """The description of a table.

        Raises:
            TableNotFound: no such table; the message lists those there are.
        """

    def create_table(self, description: TableDescription) -> None:
        """Create a table with empty buckets; durable when this returns.

        Raises:
            TableExists: the name is taken.
            StoreFailed: the disk refused.
        """

    def drop_table(self, name: str) -> None:
        """Drop a table and its rows; its buckets and their scans are closed.

        Raises:
            TableNotFound: no such table.
            StoreFailed: the disk refused.
        """

    def key_codec(self, name: str) -> KeyCodec:
        """The codec of the table's keys; the same object each time.

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
            StoreClosed: the store was closed.
        """

    def close(self) -> None:
        """Close every scan and bucket and let go of the directory. Idempotent."""
