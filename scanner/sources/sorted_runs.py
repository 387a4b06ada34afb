"""Sorted runs of overlay entries, in memory and in a temporary file, read as one in key order.

An entry is a key and what it had: a row, or nothing. A run holds each key once, ascending. Several runs are
merged without a Python loop over entries: each gives its next few, up to the smallest key at which one of
them ends, and what they gave is put together by a dict and a sort, which is fast on runs that are in order.

Invariants:

1. Where runs share a key, the entry of the earlier run counts and the others are dropped.
2. Of a run on disk, the keys and rows of one block are in memory, and the rows only once they are wanted.
3. What is read from the file is what was written, or an error: every part has a CRC-32C.
4. The file has no name, so nothing is left of it when it is closed, or when the process dies.

This module knows no changelog and no storage.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from scanner.data.digest import checksum
from scanner.errors import DataCorrupted, SnapshotLost, StoreFailed, TooManyFiles

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ENTRY_BYTES = 200
"""What an entry takes in memory beside its bytes: two objects, their places in a dict and in two lists."""

_ROUNDS_MAX = 8
"""Times that the windows of all runs are looked at for one answer."""
_TAKEN_BYTES = 1024 * 1024
"""Bytes of rows at which an answer is large enough."""
_COUNTS = struct.Struct("<III")
"""What a block in the file begins with: entries, bytes of sizes and keys, bytes of rows."""
_CHECKS = struct.Struct("<II")
"""What follows: CRC-32C of the counts, the sizes and the keys, and CRC-32C of the rows."""


class Entries(NamedTuple):
    """Adjacent entries, keys ascending."""

    keys: list[bytes]
    rows: list[bytes | None]
    """None: the key was absent."""


class Run(Protocol):
    """Entries that are read once, from the smallest key on."""

    @property
    def keys(self) -> list[bytes]:
        """Keys of the next entries, as many as are in memory; none: the run is read. Not to be modified."""

    @property
    def memory_bytes(self) -> int:
        """Estimate of what the run takes in memory now."""

    def take(self, count: int) -> Entries:
        """Remove the first `count` entries, at most as many as there are `keys`.

        Raises:
            StoreFailed: The disk refused a read.
            DataCorrupted: The disk gave something else than was written.
        """


class MemoryRun:
    """A run that is in memory as a whole; it gets smaller as it is read.

    Args:
        entries: The run now owns the lists.
        entry_bytes: What an entry takes in memory, on average.
    """

    def __init__(self, entries: Entries, entry_bytes: int) -> None:
        self.keys, self._rows = entries
        self._entry_bytes = entry_bytes

    @property
    def memory_bytes(self) -> int:
        """See `Run.memory_bytes`."""
        return self._entry_bytes * len(self.keys)

    def take(self, count: int) -> Entries:
        """See `Run.take`."""
        taken = Entries(self.keys[:count], self._rows[:count])
        del self.keys[:count], self._rows[:count]
        return taken


class SpillFile:
    """A temporary file of blocks of entries.

    Args:
        directory: Where; None: where the system has temporary files.
        bytes_max: Of the file, above 0.

    Raises:
        StoreFailed, TooManyFiles: The file cannot be made.
    """

    def __init__(self, directory: Path | None, bytes_max: int) -> None:
        self._directory = "the system's temporary directory" if directory is None else str(directory)
        self._bytes_max = bytes_max
        self.size_bytes = 0
        """How long it is, which is where the next block will be."""
        with self._translated():
            self._directory = str(directory or tempfile.gettempdir())
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115, it lives on

    def append(self, entries: Entries) -> None:
        """Write a block of at least one entry.

        Raises:
            StoreFailed: The disk refused.
            SnapshotLost: The file would be longer than it may.
        """
        keys, rows = entries
        key_sizes = np.fromiter(map(len, keys), "<u4", len(keys))
        # 0 says absent, so that a row of no bytes differs from no row.
        row_sizes = np.fromiter((0 if row is None else len(row) + 1 for row in rows), "<u4", len(rows))
        head = b"".join([key_sizes.tobytes(), row_sizes.tobytes(), *keys])
        body = b"".join(filter(None, rows))
        counts = _COUNTS.pack(len(keys), len(head), len(body))
        checks = _CHECKS.pack(checksum(head, checksum(counts)), checksum(body))
        block = b"".join([counts, checks, head, body])
        if self.size_bytes + len(block) > self._bytes_max:
            raise SnapshotLost(
                "the changes since the scan's offset take more temporary disk than this server allows"
                " (overlay_spill_bytes_max); start a new scan"
            )
        self._write(block)

    def read_block(self, at: int) -> tuple[Block, int]:
        """Read the block at a place, without its rows.

        Returns:
            The block, and the place of the one behind it.

        Raises:
            StoreFailed: The disk refused.
            DataCorrupted: It is not what was written.
        """
        head_at = at + _COUNTS.size + _CHECKS.size
        front = self._read(at, head_at - at)
        count, head_bytes, body_bytes = _COUNTS.unpack_from(front)
        head_crc, body_crc = _CHECKS.unpack_from(front, _COUNTS.size)
        head = self._read(head_at, head_bytes, head_crc, checksum(front[: _COUNTS.size]))
        key_sizes = np.frombuffer(head, "<u4", count)
        row_sizes = np.frombuffer(head, "<u4", count, 4 * count)
        keys = _unjoin(key_sizes, memoryview(head)[8 * count :])
        body_at = head_at + head_bytes
        return Block(keys, row_sizes, body_at, body_bytes, body_crc), body_at + body_bytes

    def read_rows(self, block: Block) -> list[bytes | None]:
        """Read the rows of a block.

        Raises:
            StoreFailed: The disk refused.
            DataCorrupted: It is not what was written.
        """
        body = self._read(block.body_at, block.body_bytes, block.body_crc)
        present = block.row_sizes > 0
        return _unjoin(block.row_sizes - present, body, present)

    def close(self) -> None:
        """Give the file back to the system. Idempotent."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        with self._translated():
            while left:
                written = os.pwrite(self._file.fileno(), left, self.size_bytes)
                self.size_bytes += written
                left = left[written:]

    def _read(self, at: int, size: int, crc: int | None = None, before: int = 0) -> bytes:
        """Read, and compare with the checksum that continues the one of what is `before`."""
        data = b""
        if at + size <= self.size_bytes:  # else the size is damaged, and may be more than there is memory
            with self._translated():
                data = os.pread(self._file.fileno(), size, at)
        if len(data) != size or (crc is not None and checksum(data, before) != crc):
            raise DataCorrupted(
                f"a temporary file in {self._directory} reads back other bytes than were written;"
                " the disk is not reliable"
            )
        return data

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise TooManyFiles(
                    f"a temporary file in {self._directory} cannot be made: the server may open no more files; raise"
                    " its limit (ulimit -n)"
                ) from error
            raise StoreFailed(
                f"a temporary file in {self._directory} failed: {error}; make room there, and scan again"
            ) from error


class Block(NamedTuple):
    """A block of a `SpillFile`: its keys, and where its rows are."""

    keys: list[bytes]
    row_sizes: NDArray[np.uint32]
    """Of each row, plus one; 0: absent."""
    body_at: int
    body_bytes: int
    body_crc: int


class FileRun:
    """A run in a temporary file.

    Args:
        file: Where the run is.
        start: Place of its first block.
        end: Place behind its last one.

    Raises:
        StoreFailed: The disk refused a read.
        DataCorrupted: The disk gave something else than was written.
    """

    def __init__(self, file: SpillFile, start: int, end: int) -> None:
        self._file = file
        self._next = start
        self._end = end
        self._block: Block | None = None
        self._rows: list[bytes | None] | None = None
        self._load()

    @property
    def keys(self) -> list[bytes]:
        """See `Run.keys`."""
        return [] if self._block is None else self._block.keys

    @property
    def memory_bytes(self) -> int:
        """See `Run.memory_bytes`."""
        if self._block is None:
            return 0
        rows_bytes = 0 if self._rows is None else self._block.body_bytes
        return ENTRY_BYTES * len(self.keys) + sum(map(len, self.keys)) + rows_bytes

    def take(self, count: int) -> Entries:
        """See `Run.take`."""
        if self._block is None:
            return Entries([], [])
        if self._rows is None:
            self._rows = self._file.read_rows(self._block)
        taken = Entries(self._block.keys[:count], self._rows[:count])
        del self._block.keys[:count], self._rows[:count]
        if not self._block.keys:
            self._load()
        return taken

    def _load(self) -> None:
        self._block = self._rows = None
        if self._next < self._end:
            self._block, self._next = self._file.read_block(self._next)


class MergedRuns:
    """Several runs as one.

    Args:
        runs: The one whose entry counts, where they share a key, in front.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = [run for run in runs if run.keys]

    @property
    def next_key(self) -> bytes | None:
        """The smallest key that has not been taken; None: there is none."""
        return min((run.keys[0] for run in self._runs), default=None)

    @property
    def memory_bytes(self) -> int:
        """Estimate of what the runs take in memory now."""
        return sum(run.memory_bytes for run in self._runs)

    def take(self, last_key: bytes | None, count: int) -> tuple[Entries, bytes | None]:
        """Remove some of the next entries.

        Args:
            last_key: None is taken that has a greater key; None: any may be.
            count: About how many; four times as many at most, but for one of every run. Fewer where rows are large.

        Returns:
            Entries, each key once, and a bound: no entry up to and with it is left. The bound is `last_key`, or
            less if there are more up to there than can be taken at once; None: no entry is left at all.
        """
        taken = Entries([], [])
        row_bytes = 0
        for _ in range(_ROUNDS_MAX):
            some, bound = self._take_windows(last_key, count)
            taken.keys.extend(some.keys)
            taken.rows.extend(some.rows)
            row_bytes += sum(map(len, filter(None, some.rows)))
            if bound == last_key or len(taken.keys) >= count or row_bytes >= _TAKEN_BYTES:
                break
        return taken, bound

    def _take_windows(self, last_key: bytes | None, count: int) -> tuple[Entries, bytes | None]:
        """Take of every run up to the smallest key at which the window of one of them ends."""
        # Some run's window, or its block, ends early as a rule; so the windows are larger than the share.
        window = max(1, 3 * count // max(1, len(self._runs)))
        edges = [run.keys[min(window, len(run.keys)) - 1] for run in self._runs]
        bound = min(edges if last_key is None else [*edges, last_key], default=None)
        if bound is None:
            return Entries([], []), None
        merged: dict[bytes, bytes | None] = {}
        for run in reversed(self._runs):
            found = bisect_right(run.keys, bound)
            if found:
                merged.update(zip(*run.take(found), strict=True))
        self._runs = [run for run in self._runs if run.keys]
        next_key = self.next_key
        if next_key is None or (last_key is not None and next_key > last_key):
            bound = last_key
        keys = sorted(merged)
        return Entries(keys, list(map(merged.__getitem__, keys))), bound


def cut(entries: Entries, bytes_max: int) -> Iterator[Entries]:
    """Cut entries into blocks that take at most so much memory each, except that each has one entry at least."""
    ends = list(
        accumulate(
            ENTRY_BYTES + len(key) + (0 if row is None else len(row))
            for key, row in zip(entries.keys, entries.rows, strict=True)
        )
    )
    start, taken = 0, 0
    while start < len(ends):
        stop = max(start + 1, bisect_right(ends, taken + bytes_max, start))
        yield Entries(entries.keys[start:stop], entries.rows[start:stop])
        start, taken = stop, ends[stop - 1]


def _unjoin(
    sizes: NDArray[np.uint32], joined: bytes | memoryview, present: NDArray[np.bool_] | None = None
) -> list[Any]:
    """Cut joined bytes into pieces of these sizes; None in the place of those that are not present."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(joined)]
    pieces: list[Any] = pa.Array.from_buffers(pa.binary(), len(sizes), buffers).to_pylist()
    return pieces
