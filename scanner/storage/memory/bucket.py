"""One bucket of the store in memory: its contents, and the scans and snapshots of them.

Part of the verified fake (`scanner.storage.memory.store`). A scan and a snapshot copy what they show, so nothing
that is committed later can be in them.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from scanner.data.keys import ALL_KEYS
from scanner.data.row_block import RowBlock
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    OffsetOutOfRange,
    ScannerError,
    StoreClosed,
    StoreFailed,
)
from scanner.storage.group_states import GivenEpochs
from scanner.storage.interface import (
    ENTRY_BYTES_MAX,
    Change,
    ChangeBlock,
    ChangeKind,
    Checkpoint,
    Entry,
    EntrySize,
    GroupState,
    KeyRange,
    KeysOf,
    Mutation,
    PreparedCommit,
    Rows,
)
from scanner.storage.lineage import HISTORY_BYTES, Lineage
from scanner.storage.splits import BucketSplit, Piece, choose_cuts
from scanner.storage.transactions import ALL_KNOWN, AppliedShare
from scanner.storage.writers import AppliedRequest, AppliedRequests, KnownWriters

if TYPE_CHECKING:
    from scanner.data.key_ranges import SplitWish


@dataclass(slots=True)
class BucketContents:
    """What a bucket keeps."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    log_start: int = 0
    truncated_us: int | None = None
    timestamp_us: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    group_states: dict[str, GroupState] = field(default_factory=dict)
    applied: dict[str, AppliedShare] = field(default_factory=lambda: {ALL_KNOWN: AppliedShare(0, 0, 0)})
    writers: KnownWriters = field(default_factory=KnownWriters)
    checkpoints: dict[int, tuple[Checkpoint, dict[bytes, bytes]]] = field(default_factory=dict)
    next_checkpoint_id: int = 0

    @property
    def log_end(self) -> int:
        """One past the newest change."""
        return self.log_start + len(self.log)


class MemoryBucket:
    """See `scanner.storage.interface.Bucket`.

    Args:
        keys_of: Keys of stored rows.
        clock: Microseconds since 1970 UTC.
        contents: What the bucket keeps.
    """

    def __init__(self, keys_of: KeysOf, clock: Callable[[], int], contents: BucketContents) -> None:
        self.contents = contents
        self._keys_of = keys_of
        self._clock = clock
        self._open: set[MemorySnapshot | MemoryReader] = set()
        self._closed = False
        self._began_history = False
        self._given_epochs = GivenEpochs()
        self._unfinished: BucketContents | None = None
        """Rows as they will be, and the changes since `log_end`, while something larger is being applied."""

    @property
    def log_start(self) -> int:
        """The oldest offset that is still readable."""
        return self.contents.log_start

    @property
    def log_end(self) -> int:
        """One past the newest change."""
        return self.contents.log_end

    @property
    def log_bytes(self) -> int:
        """See `Bucket.log_bytes`."""
        return self.log_bytes_from(self.log_start)

    def log_bytes_from(self, offset: int) -> int:
        """See `Bucket.log_bytes_from`."""
        self._require_open()
        return sum(len(change.row) + 17 for change in self.contents.log[max(0, offset - self.log_start) :])

    @property
    def newest_commit_us(self) -> int:
        """See `Bucket.newest_commit_us`."""
        return self.contents.timestamp_us

    @property
    def truncated_commit_us(self) -> int | None:
        """See `Bucket.truncated_commit_us`."""
        return self.contents.truncated_us

    @property
    def open_iterators(self) -> int:
        """See `Bucket.open_iterators`."""
        return len(self._open)

    @property
    def lineage(self) -> Lineage:
        """See `Bucket.lineage`."""
        return self.contents.lineage

    @property
    def group_states(self) -> Mapping[str, GroupState]:
        """See `Bucket.group_states`."""
        return self.contents.group_states

    @property
    def applied_shares(self) -> Mapping[str, AppliedShare]:
        """See `Bucket.applied_shares`."""
        return self.contents.applied

    def requests_of(self, writer_id: bytes) -> AppliedRequests:
        """See `Bucket.requests_of`."""
        return self.contents.writers.requests_of(writer_id)

    @property
    def lost_changes(self) -> int:
        """See `Bucket.lost_changes`; memory loses nothing."""
        return 0

    @property
    def failure(self) -> ScannerError | None:
        """See `Bucket.failure`; memory takes every write."""
        return None

    @property
    def readable(self) -> bool:
        """See `Bucket.readable`."""
        return True

    @property
    def hides(self) -> bool:
        """See `Bucket.hides`; no commit fails."""
        return False

    @property
    def idle(self) -> bool:
        """See `Bucket.idle`; there is nothing to close."""
        return False

    def reopen(self, *, writable: bool) -> None:
        """See `Bucket.reopen`."""
        self._require_open()
        for reader in list(self._open):
            reader.close()
        self._unfinished, self._began_history = None, False

    def close_idle(self) -> None:
        """See `Bucket.close_idle`."""

    def wake(self) -> None:
        """See `Bucket.wake`."""
        self._require_open()

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """See `Bucket.prepare`: the groups are applied to a copy."""
        self._require_open()
        now = self._clock() if clock_us is None else clock_us
        before = self._unfinished or self.contents
        continues = before.log_end != self.log_end
        fresh = BucketContents(rows=dict(before.rows), timestamp_us=before.timestamp_us)
        fresh.log_start = before.log_end
        offsets, refusals = [], {}
        for index, group in enumerate(groups):
            start = fresh.log_end
            timestamp_us = max(now, fresh.timestamp_us + 1, after_us + 1)
            for mutation in group:
                _apply(fresh, mutation, timestamp_us)
            changes = fresh.log[start - fresh.log_start :]
            size = sum(len(change.row) for change in changes)
            if size > ENTRY_BYTES_MAX and len(group) > 1:
                refusals[index] = ArgumentInvalid(
                    f"{len(group)} mutations are too large for one entry",
                    metadata={"write_too_large": str(len(group))},
                )
                _undo(fresh, changes)
            if fresh.log_end > start:
                fresh.timestamp_us = timestamp_us
                fresh.entries.append(Entry(start, fresh.log_end, timestamp_us, now, continues))
            offsets.append((start, fresh.log_end))
        return PreparedCommit(before.log_end, offsets, refusals, fresh)

    def commit_prepared(
        self,
        prepared: PreparedCommit,
        group_states: Mapping[str, GroupState | None] | None = None,
        applied: Mapping[str, AppliedShare | None] | None = None,
        requests: Mapping[bytes, Sequence[AppliedRequest]] | None = None,
        *,
        unfinished: bool = False,
    ) -> None:
        """See `Bucket.commit_prepared`."""
        self._require_open()
        before = self._unfinished or self.contents
        if prepared.start != before.log_end:
            raise StoreFailed(f"prepared for the end {prepared.start}, and the log ends at {before.log_end}")
        fresh: BucketContents = prepared.contents
        if self._unfinished is not None:
            fresh.log_start = self._unfinished.log_start
            fresh.log, fresh.entries = (
                self._unfinished.log + fresh.log,
                self._unfinished.entries + fresh.entries,
            )
        self._unfinished = fresh if unfinished else None
        if unfinished:
            return
        contents = self.contents
        for name, share in (applied or {}).items():
            if share is None:
                contents.applied.pop(name, None)
            else:
                contents.applied[name] = share
        contents.writers.take(contents.writers.updated(requests or {}))
        begun = bool(fresh.log) and not self._began_history
        if begun:
            contents.lineage = contents.lineage.begin(secrets.token_bytes(HISTORY_BYTES), self.log_end, 0)
            self._began_history = True
        states = self._given_epochs.with_histories(
            contents.group_states, group_states or {}, contents.lineage.newest, begun=begun
        )
        for name, state in states.items():
            if state is None:
                contents.group_states.pop(name, None)
            else:
                contents.group_states[name] = state
        if not fresh.log:
            return
        contents.rows = fresh.rows
        contents.log += fresh.log
        contents.entries += fresh.entries
        contents.timestamp_us = fresh.timestamp_us

    def commit(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None
    ) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        prepared = self.prepare(groups, clock_us)
        for refusal in prepared.refusals.values():
            raise refusal
        self.commit_prepared(prepared)
        return prepared.offsets

    def open_snapshot(self) -> MemorySnapshot:
        """See `Bucket.open_snapshot`."""
        self.require_finished()
        snapshot = MemorySnapshot(self.contents.rows, self.log_end, self._keys_of, self._open)
        self._open.add(snapshot)
        return snapshot

    def open_reader(self) -> MemoryReader:
        """See `Bucket.open_reader`."""
        self.require_finished()
        reader = MemoryReader(self.contents.rows, self.log_end, self._open)
        self._open.add(reader)
        return reader

    def require_finished(self) -> None:
        """Refuse what shows a state while something larger is being applied."""
        self._require_open()
        if self._unfinished is not None:
            raise StoreFailed("a transaction is being applied; nothing is opened beside it")

    def read_change_block(self, start_offset: int, end_offset: int, bytes_max: int) -> ChangeBlock:
        """See `Bucket.read_change_block`."""
        self._require_open()
        if not self.log_start <= start_offset <= end_offset <= self.log_end:
            raise self._out_of_range(start_offset, end_offset)
        changes: list[Change] = []
        for change in self._changes(start_offset, end_offset):
            changes.append(change)
            bytes_max -= len(change.row)
            if bytes_max <= 0:
                break
        return ChangeBlock(
            start_offset,
            np.array([change.kind for change in changes], np.uint8),
            np.array([change.timestamp_us for change in changes], np.int64),
            RowBlock.join([change.row for change in changes]),
            self.entry_at(changes[-1].offset).end if changes else start_offset,
            self._keys_of,
        )

    def entry_at(self, offset: int) -> Entry:
        """See `Bucket.entry_at`."""
        self._require_open()
        for entry in self.contents.entries:
            if entry.start <= offset < entry.end:
                return entry
        raise self._out_of_range(offset, offset + 1)

    def measure_entries(self, start_offset: int, entries_max: int, bytes_max: int) -> list[EntrySize]:
        """See `Bucket.measure_entries`."""
        self._require_open()
        if not self.log_start <= start_offset <= self.log_end:
            raise self._out_of_range(start_offset, start_offset + 1)
        if start_offset < self.log_end and self.entry_at(start_offset).start != start_offset:
            raise DataCorrupted(f"the change at offset {start_offset} is missing")
        sizes: list[EntrySize] = []
        for entry in self.contents.entries:
            if entry.start < start_offset:
                continue
            if len(sizes) == entries_max or bytes_max <= 0:
                break
            row_bytes = sum(len(change.row) for change in self._changes(entry.start, entry.end))
            sizes.append(EntrySize(entry.end, row_bytes, entry.timestamp_us))
            bytes_max -= row_bytes
        return sizes

    def offset_at(self, timestamp_us: int) -> int:
        """See `Bucket.offset_at`."""
        self._require_open()
        found = (entry.start for entry in self.contents.entries if entry.timestamp_us >= timestamp_us)
        return self.share_start(next(found, self.log_end))

    def share_start(self, offset: int) -> int:
        """See `Bucket.share_start`."""
        self._require_open()
        if offset >= self.log_end:
            return offset
        starts = (entry.start for entry in self.contents.entries if not entry.continues)
        return max((start for start in starts if start <= offset), default=self.log_start)

    def split(
        self, wish: SplitWish, key_range: KeyRange = ALL_KEYS, known: Sequence[Piece] = ()
    ) -> BucketSplit:
        """See `Bucket.split`: each row is a piece, whatever is known."""
        self._require_open()
        pieces = [
            Piece(key, len(key) + len(row))
            for key, row in self.contents.rows.items()
            if key_range.start <= key and (not key_range.end or key < key_range.end)
        ]
        stored_bytes = sum(piece.size_bytes for piece in pieces)
        return BucketSplit(choose_cuts(pieces, wish.count(stored_bytes), key_range), stored_bytes)

    def truncate_log(self, start_offset: int) -> None:
        """See `Bucket.truncate_log`."""
        self._require_open()
        contents = self.contents
        start_offset = self.share_start(start_offset)
        kept = [entry for entry in contents.entries if entry.end > start_offset]
        start = kept[0].start if kept else self.log_end
        if start > contents.log_start:
            contents.truncated_us = contents.entries[-len(kept) - 1].timestamp_us
        del contents.log[: start - contents.log_start]
        contents.log_start, contents.entries = start, kept

    def log_is_readable(self) -> bool:
        """See `Bucket.log_is_readable`."""
        self._require_open()
        return True

    @property
    def unflushed_bytes(self) -> int:
        """See `Bucket.unflushed_bytes`; there are no files."""
        self._require_open()
        return 0

    def flush(self) -> None:
        """See `Bucket.flush`; there are no files."""
        self._require_open()

    def free_log(self) -> bool:
        """See `Bucket.free_log`; what was truncated takes nothing."""
        self._require_open()
        return False

    def join_log(self) -> bool:
        """See `Bucket.join_log`; there are no files."""
        self._require_open()
        return False

    def compact(self) -> None:
        """See `Bucket.compact`; there is nothing to rewrite."""
        self._require_open()

    def close(self) -> None:
        """Close every scan and snapshot and refuse everything from now on. Idempotent."""
        self._closed = True
        for reader in list(self._open):
            reader.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("the bucket in /memory was closed")

    def _changes(self, start_offset: int, end_offset: int) -> list[Change]:
        return self.contents.log[start_offset - self.log_start : end_offset - self.log_start]

    def _out_of_range(self, start_offset: int, end_offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"changes [{start_offset}, {end_offset}) are not in the log [{self.log_start}, {self.log_end})",
            oldest_offset=self.log_start,
        )


def _apply(contents: BucketContents, mutation: Mutation, timestamp_us: int) -> None:
    """Apply a mutation, and append its changes."""
    key, row = mutation
    was = contents.rows.get(key)

    def append(kind: ChangeKind, changed: bytes) -> None:
        contents.log.append(Change(contents.log_end, kind, timestamp_us, key, changed))

    if row is None:
        if was is not None:
            append(ChangeKind.DELETE, was)
            del contents.rows[key]
        return
    if was is None:
        append(ChangeKind.INSERT, row)
    else:
        append(ChangeKind.UPDATE_BEFORE, was)
        append(ChangeKind.UPDATE_AFTER, row)
    contents.rows[key] = row


def _undo(contents: BucketContents, changes: Sequence[Change]) -> None:
    """Take back the newest changes."""
    for change in reversed(changes):
        if change.kind is ChangeKind.INSERT:
            del contents.rows[change.key]
        elif change.kind is not ChangeKind.UPDATE_AFTER:
            contents.rows[change.key] = change.row
    del contents.log[len(contents.log) - len(changes) :]


class MemorySnapshot:
    """See `scanner.storage.interface.BucketSnapshot`.

    Args:
        rows: What the bucket holds; copied.
        log_offset: What it is as of.
        keys_of: Keys of stored rows.
        among: The open ones, which it leaves when it is closed.
    """

    def __init__(
        self,
        rows: dict[bytes, bytes],
        log_offset: int,
        keys_of: KeysOf,
        among: set[MemorySnapshot | MemoryReader],
    ) -> None:
        self._rows = dict(rows)
        self.log_offset = log_offset
        """The snapshot shows the changes with a smaller offset, and no other."""
        self._keys_of = keys_of
        self._among = among
        self._scans: set[MemoryScan] = set()
        self._closed = False

    def scan(self, key_range: KeyRange = ALL_KEYS, *, short: bool = False) -> MemoryScan:
        """See `BucketSnapshot.scan`; nothing is read ahead."""
        if self._closed:
            raise StoreClosed("this snapshot in /memory was closed")
        scan = MemoryScan(self._rows, key_range, self.log_offset, self._keys_of, self._scans)
        self._scans.add(scan)
        return scan

    def close(self) -> None:
        """See `BucketSnapshot.close`."""
        self._closed = True
        self._among.discard(self)
        for scan in list(self._scans):
            scan.close()
        self._rows = {}


class MemoryScan:
    """See `scanner.storage.interface.BucketScan`.

    Args:
        rows: All rows of the bucket, as of now.
        key_range: Those to scan; they are copied.
        log_offset: What they are as of.
        keys_of: Keys of stored rows.
        among: The open ones, which it leaves when it is closed or at its end.
    """

    def __init__(
        self,
        rows: dict[bytes, bytes],
        key_range: KeyRange,
        log_offset: int,
        keys_of: KeysOf,
        among: set[MemoryScan],
    ) -> None:
        keys = sorted(rows)
        start = bisect_left(keys, key_range.start)
        end = bisect_left(keys, key_range.end) if key_range.end else len(keys)
        self._rows = [rows[key] for key in keys[start:end]]
        self._position = 0
        self.log_offset = log_offset
        """The scan shows the changes with a smaller offset, and no other."""
        self._keys_of = keys_of
        self._among = among
        self._closed = False

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """See `BucketScan.read`."""
        if self._closed:
            raise StoreClosed("this scan in /memory was closed")
        rows: list[bytes] = []
        size = 0
        for row in self._rows[self._position : self._position + rows_max]:
            size += len(row)
            if rows and size > bytes_max:
                break
            rows.append(row)
        self._position += len(rows)
        last = self._position == len(self._rows)
        if last:
            self._among.discard(self)
        return Rows(rows, self._keys_of, last=last)

    def close(self) -> None:
        """See `BucketScan.close`."""
        self._closed = True
        self._among.discard(self)
        self._rows = []


class MemoryReader:
    """See `scanner.storage.interface.BucketReader`.

    Args:
        rows: All rows of the bucket; a commit replaces this dict and never changes it.
        log_offset: What they are as of.
        among: The open ones, which it leaves when it is closed.
    """

    def __init__(
        self,
        rows: dict[bytes, bytes],
        log_offset: int,
        among: set[MemorySnapshot | MemoryReader],
    ) -> None:
        self._rows = rows
        self.log_offset = log_offset
        """The reader shows the changes with a smaller offset, and no other."""
        self._among = among
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """See `BucketReader.get`."""
        if self._closed:
            raise StoreClosed("this reader in /memory was closed")
        return self._rows.get(key)

    def close(self) -> None:
        """See `BucketReader.close`."""
        self._closed = True
        self._among.discard(self)
        self._rows = {}
