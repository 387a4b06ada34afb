"""The records that pass between storage and the rest of scanner: mutations in, changes, rows and checkpoints out.

Pure data. This module knows no RocksDB and no trio.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.row_block import RowBlock
from scanner.storage.lineage import NO_HISTORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.errors import ScannerError

ENTRY_BYTES_MAX = 64 * 1024 * 1024
"""Row images of one entry, in bytes, before and after, unless it is a single upsert or delete."""

KeysOf = Callable[[Sequence[bytes]], list[bytes]]
"""Stored rows to their encoded keys. Raises DataCorrupted if a row cannot be read."""


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


class Mutation(NamedTuple):
    """One upsert or one delete."""

    key: bytes
    """Encoded primary key."""
    row: bytes | None
    """Encoded row, which holds the same primary key; None deletes."""


class Mutations(Sequence[Mutation]):
    """Upserts and deletes, in order, as two columns: without objects for each of them.

    Args:
        keys: Binary array of encoded primary keys, without nulls.
        rows: Binary array of encoded rows, as many; null deletes.
    """

    __slots__ = ("keys", "rows")

    def __init__(self, keys: pa.BinaryArray, rows: pa.BinaryArray) -> None:
        self.keys = keys
        self.rows = rows

    @classmethod
    def of(cls, mutations: Sequence[Mutation]) -> Mutations:
        """Mutations as columns; those that are so already are themselves.

        Raises:
            pyarrow.ArrowInvalid: Their keys or their rows take more than 2 GiB.
        """
        if isinstance(mutations, Mutations):
            return mutations
        keys, rows = ([each[at] for each in mutations] for at in (0, 1))
        return cls(_binary(keys), _binary(rows))

    @classmethod
    def concat(cls, parts: Sequence[Mutations]) -> Mutations:
        """Several, one after the other; a single one is that one.

        Args:
            parts: One or more; their keys and their rows take less than 2 GiB each.
        """
        if len(parts) == 1:
            return parts[0]
        return cls(
            pa.concat_arrays([part.keys for part in parts]), pa.concat_arrays([part.rows for part in parts])
        )

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Mutation: ...

    @overload
    def __getitem__(self, index: slice) -> Mutations: ...

    def __getitem__(self, index: int | slice) -> Mutation | Mutations:
        if isinstance(index, slice):
            return Mutations(self.keys[index], self.rows[index])
        return Mutation(self.keys[index].as_py(), self.rows[index].as_py())

    def __iter__(self) -> Iterator[Mutation]:
        return map(Mutation, self.keys.to_pylist(), self.rows.to_pylist())

    @property
    def octets(self) -> int:
        """Of all keys and rows."""
        return sum(int(pc.sum(pc.binary_length(each)).as_py() or 0) for each in (self.keys, self.rows))

    def take(self, indices: NDArray[np.int64]) -> Mutations:
        """Copy some of them, in the order of their indices."""
        wanted = pa.array(indices)
        return Mutations(self.keys.take(wanted), self.rows.take(wanted))


def _binary(values: list[bytes | None]) -> pa.BinaryArray:
    array = pa.array(values, pa.binary())
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowInvalid("values of more than 2 GiB")
    return array


class Entry(NamedTuple):
    """The changes of one write request in one bucket: what the changelog is made of."""

    start: int
    """Offset of its first change."""
    end: int
    """One past its last."""
    timestamp_us: int
    """Commit time in microseconds since 1970 UTC; grows from entry to entry of a bucket, whatever the clock does."""
    clock_us: int
    """What the clock said when it was committed. It is less than `timestamp_us` after the clock was set back."""
    continues: bool = False
    """Whether it goes on with what the entry before began: both are of one share of a transaction."""


class EntrySize(NamedTuple):
    """How large an entry of the changelog is."""

    end: int
    """One past the offset of its last change; its first one is at the end of the entry before."""
    row_bytes: int
    """Stored rows of its changes, in bytes."""
    timestamp_us: int
    """As in `Entry`."""


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit that is ready to be written. Made by `Bucket.prepare`."""

    start: int
    """The end of the log that it follows; it can be written there and nowhere else."""
    offsets: list[tuple[int, int]]
    """Per group, in order, the offsets that its changes will have: [start, end)."""
    refusals: Mapping[int, ScannerError]
    """By index, the groups that are refused; they change nothing, and the others are not affected."""
    contents: Any = field(repr=False)
    """What the implementation writes."""


class Change(NamedTuple):
    """One record of the changelog."""

    offset: int
    """Position in the bucket's changelog."""
    kind: ChangeKind
    """What happened."""
    timestamp_us: int
    """Commit time of its entry in microseconds since 1970 UTC; never decreases along the log."""
    key: bytes
    """Encoded primary key."""
    row: bytes
    """Encoded row: the new one of `+I` and `+U`, the old one of `-U` and `-D`."""


@dataclass(frozen=True)
class ChangeBlock:
    """Adjacent records of the changelog, column by column, for readers to whom an object a record is too slow."""

    offset: int
    """Of the first one."""
    kinds: NDArray[np.uint8]
    """`ChangeKind` of each."""
    timestamps_us: NDArray[np.int64]
    """Commit time of each, in microseconds since 1970 UTC; the changes of one entry share it, those of two never do."""
    stored: RowBlock
    """Encoded rows, as in `Change`."""
    last_entry_end: int
    """Where the entry of the last change ends, which may be behind the block; without changes `offset`."""
    keys_of: KeysOf
    """Works out the keys of those rows that the reader wants them of."""

    @cached_property
    def rows(self) -> list[bytes]:
        """The encoded rows, one by one."""
        return self.stored.to_list()

    @property
    def end(self) -> int:
        """One past the offset of the last change."""
        return self.offset + len(self)

    @cached_property
    def entry_ends(self) -> NDArray[np.int64]:
        """The offsets in (offset, end] at which entries end, ascending."""
        ends = self.offset + 1 + np.flatnonzero(np.diff(self.timestamps_us))
        return np.append(ends, self.end) if len(self) and self.last_entry_end == self.end else ends

    def __len__(self) -> int:
        return len(self.stored)


class Rows:
    """What one `BucketScan.read` yields: stored rows in key order. None of them: the proven end, unless unfinished.

    Args:
        rows: The stored rows, one by one or joined; the other form is made when it is asked for.
        keys_of: Works out the keys of stored rows.
        unfinished: There are no rows yet, but this is not the end: the scan had work to do before its first
            row and did a piece of it. Read again.
        last: Nothing follows them, and that was proven; the next read gives no rows. False: not known.
    """

    __slots__ = ("_block", "_last_key", "_rows", "keys_of", "last", "unfinished")

    def __init__(
        self, rows: list[bytes] | RowBlock, keys_of: KeysOf, *, unfinished: bool = False, last: bool = False
    ) -> None:
        self._rows = rows if isinstance(rows, list) else None
        self._block = rows if isinstance(rows, RowBlock) else None
        self.unfinished = unfinished
        self.last = last
        self.keys_of = keys_of
        self._last_key: bytes | None = None

    def __len__(self) -> int:
        return len(self.rows if self._block is None else self._block)

    @property
    def rows(self) -> list[bytes]:
        """The rows, one by one."""
        if self._rows is None:
            assert self._block is not None
            self._rows = self._block.to_list()
        return self._rows

    @property
    def block(self) -> RowBlock:
        """The rows, joined.

        Raises:
            ValueError: They take more than `scanner.data.row_block.BLOCK_BYTES_MAX`.
        """
        if self._block is None:
            assert self._rows is not None
            self._block = RowBlock.join(self._rows)
        return self._block

    @property
    def last_key(self) -> bytes | None:
        """Key of the last row, worked out when first asked for (tens of microseconds); None without rows."""
        if self._last_key is None and len(self):
            last = self.rows[-1] if self._block is None else self._block.row(len(self) - 1)
            self._last_key = self.keys_of([last])[0]
        return self._last_key


class Checkpoint(NamedTuple):
    """A copy of a bucket's state that stays on disk until it is dropped, across restarts."""

    checkpoint_id: int
    """Never used again in its bucket, not even after the checkpoint was dropped; ascending."""
    log_offset: int
    """It shows the changes with a smaller offset, and no other."""
    timestamp_us: int
    """When it was made, in microseconds since 1970 UTC."""
    history: bytes = NO_HISTORY
    """Which history its state is of (`scanner.storage.lineage`)."""


@dataclass(frozen=True, slots=True)
class DiskStatus:
    """The disk of a data directory, now."""

    free_bytes: int
    read_only: bool
    """Writes are refused until there is room."""
