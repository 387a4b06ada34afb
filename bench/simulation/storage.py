"""The storage of a run: the in-memory store with somebody who listens in, and a disk that refuses writes.

A write that the disk refuses may be there all the same. Nobody knows until the bucket is opened anew, or the store by
another server: the log ends where it ended until then, and nothing is opened or written. So it is with the real one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from bench.simulation.tables import TABLE
from scanner.errors import ScannerError, StoreFailed
from scanner.storage.memory.store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.storage.interface import Checkpoint, GroupState, Mutation, PreparedCommit
    from scanner.storage.memory.bucket import MemoryBucket
    from scanner.storage.memory.store import MemoryDisk
    from scanner.storage.records import Entry
    from scanner.storage.transactions import AppliedShare
    from scanner.storage.writers import AppliedRequest

OnCommit = Callable[[int, int, int, "Sequence[Mutation]", "Entry | None"], None]
"""Told bucket, start, end, mutations and entry of every group that was committed."""


OnGroupStates = Callable[[int, "Mapping[str, GroupState | None]"], None]
"""Told bucket and what becomes of its reader groups with every commit that touches some."""


OnOther = Callable[[int, int, int, int, "Sequence[Mutation]", "Entry | None"], None]
"""Told the id of a table that comes and goes, and then what `OnCommit` is told."""

REFUSED: Final = "the simulated disk refuses"
"""What every error says that is the disk's."""
OPENED_BY: Final = frozenset({"reopen", "close_idle", "wake"})
"""Calls of a bucket during which the event loop would stand still if it read it."""
_NEEDS_READABLE: Final = frozenset({"open_snapshot", "open_reader"})
_NEEDS_WRITABLE: Final = frozenset({"truncate_log", "flush"})
_READS: Final = frozenset(
    {
        *_NEEDS_READABLE,
        "entry_at",
        "log_bytes_from",
        "log_is_readable",
        "measure_entries",
        "offset_at",
        "read_change_block",
        "split",
    }
)
"""Calls for which the real storage waits until it is open."""


@dataclass(slots=True)
class WriteFault:
    """What becomes of a bucket's next write."""

    durable: bool
    """It is there all the same."""
    refusals: int
    """Attempts to take writes again that fail."""


@dataclass
class DiskFaults:
    """What is wrong with the disk of a run, and what storage saw to be wrong."""

    next_writes: dict[tuple[str, int], WriteFault] = field(default_factory=dict)
    """By table and bucket."""
    stalls: list[str] = field(default_factory=list)
    """Calls in which the event loop would have stood still: a thread has the bucket that they read."""
    in_thread: bool = False
    """What is called now is called from a worker thread."""
    tell: Callable[[str, int], None] = lambda _what, _bucket: None
    """Told what happens to a bucket."""


class RecordingStore(MemoryStore):
    """A store that tells of every commit, and refuses some.

    Args:
        on_commit: Told at once.
        clock: See `MemoryStore`.
        disk: What outlives the store.
        on_group_states: Told likewise.
        images: See `MemoryStore`.
        faults: Of the disk; None: it has none.
        on_other: Told of commits to other tables than the one of the run.
    """

    def __init__(
        self,
        on_commit: OnCommit,
        clock: Callable[[], int],
        disk: MemoryDisk,
        on_group_states: OnGroupStates = lambda _bucket, _states: None,
        images: Path | None = None,
        faults: DiskFaults | None = None,
        on_other: OnOther = lambda *_: None,
    ) -> None:
        super().__init__(clock, disk, images)
        self._on_commit = on_commit
        self._on_group_states = on_group_states
        self._faults = faults or DiskFaults()
        self._on_other = on_other
        self._recording: dict[MemoryBucket, RecordingBucket] = {}

    def bucket(self, name: str, index: int) -> MemoryBucket:
        """The bucket, with somebody who listens in; what is opened of it is the real thing."""
        bucket = super().bucket(name, index)
        if bucket not in self._recording:
            on_commit, on_group_states = self._on_commit, self._on_group_states
            if name != TABLE:
                on_commit = functools.partial(self._on_other, self.table_id(name))
                on_group_states = _nobody_cares
            self._recording[bucket] = RecordingBucket(
                bucket, (name, index), on_commit, on_group_states, self._faults
            )
        return cast("MemoryBucket", self._recording[bucket])

    def create_checkpoint(self, name: str, index: int) -> Checkpoint:
        """See `Store.create_checkpoint`."""
        cast("RecordingBucket", self.bucket(name, index)).require_writable()
        return super().create_checkpoint(name, index)

    def close(self) -> None:
        """See `Store.close`. What was written all the same is found when it is opened again."""
        for table in self._tables.values():
            for bucket in table.buckets:
                if bucket in self._recording:
                    self._recording[bucket].settle()
        super().close()


def _nobody_cares(_bucket: int, _states: Mapping[str, GroupState | None]) -> None:
    """Of reader groups of other tables."""


class RecordingBucket:
    """A bucket that tells of every commit, and refuses some; else it is the one in memory.

    Args:
        bucket: That one.
        place: Name of its table, and its index.
        on_commit: Told at once.
        on_group_states: Told likewise.
        faults: Of the disk.
    """

    def __init__(
        self,
        bucket: MemoryBucket,
        place: tuple[str, int],
        on_commit: OnCommit,
        on_group_states: OnGroupStates,
        faults: DiskFaults,
    ) -> None:
        self._bucket = bucket
        self._place = place
        self._index = place[1]
        self._on_commit = on_commit
        self._on_group_states = on_group_states
        self._faults = faults
        self._groups: Sequence[Sequence[Mutation]] = ()
        self._unseen: list[tuple[int, int, Sequence[Mutation], Entry | None]] = []
        """What a commit that is not finished has written."""
        self._doubtful: Callable[[], None] | None = None
        """Writes what was refused, and is there all the same."""
        self._refusals = 0
        self.failure: ScannerError | None = None
        self.readable = True
        self.idle = False
        self._threads = 0
        """Worker threads that open or close it."""

    @contextmanager
    def in_thread(self, what: str) -> Iterator[None]:
        """Whoever reads it from the event loop during the block would wait.

        Args:
            what: One of `OPENED_BY`.
        """
        if what == "reopen":
            self._faults.tell("opens_anew", self._index)
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1

    def settle(self) -> None:
        """Come to what is on the disk."""
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is not None:
            doubtful()

    def reopen(self, *, writable: bool) -> None:
        """See `Bucket.reopen`."""
        if writable and self.failure is not None:
            self._refusals -= 1
            if self._refusals < 0:
                self.settle()
                self.failure = None
        self._bucket.reopen(writable=writable)
        self._unseen, self.readable, self.idle = [], True, False

    @property
    def hides(self) -> bool:
        """See `Bucket.hides`."""
        return self._doubtful is not None and self.readable

    def close_idle(self) -> None:
        """See `Bucket.close_idle`."""
        self.idle = self.idle or not (self.failure or self._bucket.open_iterators)

    def wake(self) -> None:
        """See `Bucket.wake`."""
        self._bucket.wake()
        self.idle = False

    def prepare(
        self, groups: Sequence[Sequence[Mutation]], clock_us: int | None = None, after_us: int = 0
    ) -> PreparedCommit:
        """See `Bucket.prepare`."""
        self.require_writable()
        self._groups = groups
        return self._bucket.prepare(groups, clock_us, after_us)

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
        self.require_writable()
        write = functools.partial(
            self._write, self._groups, prepared, group_states, applied, requests, unfinished=unfinished
        )
        fault = self._faults.next_writes.pop(self._place, None)
        if fault is None:
            write()
            return
        # A part of something larger is undone when the bucket is opened.
        self._doubtful = write if fault.durable and not unfinished else None
        self._refusals, self.readable = fault.refusals, False
        self._faults.tell("write_fails", self._index)
        self.failure = StoreFailed(f"{REFUSED} a write to bucket {self._index}")
        raise self.failure

    def _write(
        self,
        groups: Sequence[Sequence[Mutation]],
        prepared: PreparedCommit,
        group_states: Mapping[str, GroupState | None] | None,
        applied: Mapping[str, AppliedShare | None] | None,
        requests: Mapping[bytes, Sequence[AppliedRequest]] | None,
        *,
        unfinished: bool,
    ) -> None:
        self._bucket.commit_prepared(prepared, group_states, applied, requests, unfinished=unfinished)
        entries = {entry.start: entry for entry in prepared.contents.entries}
        for group, (start, end) in zip(groups, prepared.offsets, strict=True):
            self._unseen.append((start, end, group, entries.get(start)))
        if unfinished:
            return
        seen, self._unseen = self._unseen, []
        for start, end, group, entry in seen:
            self._on_commit(self._index, start, end, group, entry)
        if group_states:
            self._on_group_states(self._index, group_states)

    def commit(self, groups: Sequence[Sequence[Mutation]]) -> list[tuple[int, int]]:
        """See `Bucket.commit`."""
        prepared = self.prepare(groups)
        self.commit_prepared(prepared)
        return prepared.offsets

    def require_writable(self) -> None:
        """Refuse whatever writes since a write has failed."""
        if self.failure is not None:
            raise StoreFailed(f"no writes are taken: {self.failure}")

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._bucket, name)
        if name not in _READS and name not in _NEEDS_WRITABLE:
            return attribute

        @functools.wraps(attribute)
        def checked(*arguments: Any, **named: Any) -> Any:
            self._check(name)
            return attribute(*arguments, **named)

        return checked

    def _check(self, name: str) -> None:
        if name in _READS and not self._faults.in_thread and (self._threads or self.idle):
            where = "a thread has it" if self._threads else "it is closed"
            self._faults.stalls.append(f"{name} of bucket {self._index} was called while {where}")
        if name in _NEEDS_WRITABLE:
            self.require_writable()
        if name in _NEEDS_READABLE and not self.readable:
            raise StoreFailed(f"nothing is opened: {self.failure}")
