"""What a range of changes did, seen from its start: for every key that they touch, what the key had before.

Entries are added in log order, and the first of a key counts. They are kept in a dict until it takes its
share of the memory; then they are sorted and written to a temporary file as one run, and a new dict is begun.
When everything is added, the runs and the last dict are read as one, in key order.

Whatever takes longer than a few milliseconds is cut into pieces: as long as there is one to be done,
`wants_step` is true, and nothing can be added or taken.

Invariants:

1. The first entry of a key counts, wherever it lies by now.
2. The overlay takes at most `bytes_max` in memory, as far as it can be known: a dict up to three quarters, and
   the read buffers of at most 32 runs the rest. A single row may be larger. When there are more runs than
   that, they are merged into one.
3. After `close` no file and no entry is left.

This module knows no changelog and no storage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from scanner.sources.sorted_runs import (
    ENTRY_BYTES,
    Entries,
    FileRun,
    MemoryRun,
    MergedRuns,
    Run,
    SpillFile,
    cut,
)

if TYPE_CHECKING:
    from pathlib import Path

_FAN_IN: Final = 32
"""Runs that are merged at once."""
_BLOCK_BYTES_MAX: Final = 256 * 1024
"""Memory that a block of a run takes when it is read."""
_ADD_ENTRIES_MAX: Final = 2048
_ADD_BYTES_MAX: Final = 1024 * 1024
_SORT_ENTRIES: Final = 4096
"""Entries that are sorted at once: a millisecond."""
_MERGE_ENTRIES: Final = 1024
"""Entries, about, that are merged at once: a millisecond or two, with writing them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayLimits:
    """What one overlay may take."""

    bytes_max: int = 64 * 1024 * 1024
    """Memory, above 0. Some 200 bytes an entry beside its key and row; past it, entries go to disk."""
    spill_bytes_max: int = 8 * 1024 * 1024 * 1024
    """Temporary disk. Beyond it, the state is given up: SnapshotLost. Merging runs needs their size once more."""
    directory: Path | None = None
    """Of the temporary files; None: where the system has them."""

    def __post_init__(self) -> None:
        if self.bytes_max < 1:
            raise ValueError(f"bytes_max must be above 0, not {self.bytes_max}")
        if self.spill_bytes_max < 0:
            raise ValueError(f"spill_bytes_max must not be negative, not {self.spill_bytes_max}")

    @property
    def add_entries_max(self) -> int:
        """Entries that may be added at once, so that the memory limit holds; at least 1."""
        return max(1, min(_ADD_ENTRIES_MAX, self.bytes_max // (16 * ENTRY_BYTES)))

    @property
    def add_bytes_max(self) -> int:
        """Bytes of entries that may be added at once, so that the memory limit holds; at least 1."""
        return max(1, min(_ADD_BYTES_MAX, self.bytes_max // 16))


class Overlay:
    """See the module.

    Args:
        limits: To be kept.
    """

    def __init__(self, limits: OverlayLimits) -> None:
        self._limits = limits
        self._first: dict[bytes, bytes | None] = {}
        self._first_bytes = 0
        self._sorted: list[MemoryRun] = []
        """The entries of `_first`, as far as they are sorted."""
        self._file: SpillFile | None = None
        self._regions: list[tuple[int, int]] = []
        """Start and end of each run in the file, the earliest entries first."""
        self._merged: MergedRuns | None = None
        self.next_key: bytes | None = None
        """The smallest key that has not been taken; None: there is none."""
        self._work: Generator[None, None, None] | None = None
        self.entries = 0
        """Entries kept so far; a key that was added again after its entry went to disk counts again."""
        self.spilled_bytes = 0
        """Bytes written to disk so far, those of merges included."""

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the entries take now."""
        return self._first_bytes if self._merged is None else self._merged.memory_bytes

    @property
    def wants_step(self) -> bool:
        """Whether there is work to be done before anything else."""
        return self._work is not None

    @property
    def finished(self) -> bool:
        """Whether everything is added and sorted, so that entries can be taken."""
        return self._merged is not None

    def add(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Add what keys had; those that were added before keep their first value.

        Args:
            keys: In the order of their changes; at most `add_entries_max`, and with the rows about
                `add_bytes_max`.
            rows: What each had; None: it was absent.
        """
        before = len(self._first)
        deque(map(self._first.setdefault, keys, rows), maxlen=0)
        added = len(self._first) - before
        self.entries += added
        self._first_bytes += added * ENTRY_BYTES
        for key, row in islice(reversed(self._first.items()), added):
            self._first_bytes += len(key) if row is None else len(key) + len(row)
        if self._first_bytes >= self._limits.bytes_max * 3 // 4:
            self._work = self._spill()

    def finish(self) -> None:
        """Nothing more will be added; after the steps that this takes, entries can be taken."""
        self._work = self._open()

    def step(self) -> None:
        """Do one piece of the work, a few milliseconds.

        Raises:
            StoreFailed: The disk refused.
            SnapshotLost: The entries take more disk than they may.
            DataCorrupted: The disk gave something else than was written.
        """
        if self._work is not None and next(self._work, _DONE) is _DONE:
            self._work = None

    def take(self, last_key: bytes | None, count: int) -> tuple[Entries, bytes | None]:
        """Remove some of the next entries; see `MergedRuns.take`.

        Raises:
            StoreFailed: The disk refused a read.
            DataCorrupted: The disk gave something else than was written.
        """
        assert self._merged is not None
        taken = self._merged.take(last_key, count)
        self.next_key = self._merged.next_key
        return taken

    def close(self) -> None:
        """Drop everything. Idempotent."""
        if self._work is not None:
            self._work.close()
        self._work = self._merged = self.next_key = None
        self._first, self._sorted, self._regions = {}, [], []
        self._first_bytes = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _block_bytes(self) -> int:
        return max(1, min(_BLOCK_BYTES_MAX, self._limits.bytes_max // (4 * _FAN_IN)))

    def _sort(self) -> Generator[None, None, None]:
        """Turn the dict into sorted runs, which share its objects, and drop it."""
        entry_bytes = self._first_bytes // max(1, len(self._first))
        keys = iter(self._first)
        while piece := sorted(islice(keys, _SORT_ENTRIES)):
            entries = Entries(piece, list(map(self._first.__getitem__, piece)))
            self._sorted.append(MemoryRun(entries, entry_bytes))
            yield
        self._first = {}

    def _spill(self) -> Generator[None, None, None]:
        """Write the dict to disk as one run, and merge the runs there are if that makes too many."""
        yield from self._sort()
        if self._file is None:
            self._file = SpillFile(self._limits.directory, self._limits.spill_bytes_max)
        start = self._file.size_bytes
        merged = MergedRuns(self._sorted)
        self._sorted = []
        yield from self._write(merged, self._file)
        self._regions.append((start, self._file.size_bytes))
        self._first_bytes = 0
        if len(self._regions) == _FAN_IN:
            yield from self._merge_all(self._file)

    def _merge_all(self, old: SpillFile) -> Generator[None, None, None]:
        new = SpillFile(self._limits.directory, self._limits.spill_bytes_max - old.size_bytes)
        try:
            runs: list[Run] = []
            yield from self._open_runs(old, runs)
            yield from self._write(MergedRuns(runs), new)
        except BaseException:
            new.close()
            raise
        old.close()
        self._file, self._regions = new, [(0, new.size_bytes)]

    def _write(self, merged: MergedRuns, file: SpillFile) -> Generator[None, None, None]:
        while merged.next_key is not None:
            entries, _ = merged.take(None, _MERGE_ENTRIES)
            for block in cut(entries, self._block_bytes):
                before = file.size_bytes
                file.append(block)
                self.spilled_bytes += file.size_bytes - before
            yield

    def _open(self) -> Generator[None, None, None]:
        """Make ready what is taken from: the runs on disk, and the dict, whose entries are the latest."""
        yield from self._sort()
        runs: list[Run] = []
        if self._file is not None:
            yield from self._open_runs(self._file, runs)
        self._merged = MergedRuns([*runs, *self._sorted])
        self._sorted = []
        self.next_key = self._merged.next_key

    def _open_runs(self, file: SpillFile, runs: list[Run]) -> Generator[None, None, None]:
        for start, end in self._regions:
            runs.append(FileRun(file, start, end))
            yield


_DONE: Final = object()
