"""Two folds of a snapshot and the changes behind it, which share no code: of batches, and of printed lines.

Both hold a stream to more than its result: the changes of a bucket are dense from where its snapshot ends, and each
follows from what is there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = dict[int, tuple[object, ...]]
"""By key, all columns of a row."""


class BatchFold:
    """Folds what `scanner` and `scanner.sync` hand out. May be asked by another thread.

    Args:
        buckets: How many the table has.
    """

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._lock = threading.Lock()
        self._rows: Rows = {}
        self._waiting: dict[int, list[tuple[int, str, tuple[object, ...]]]] = {}
        """By bucket, the changes of commits that are not complete."""
        self._next: dict[int, int] = {}
        """By bucket, the offset of the next change."""
        self._positions: dict[int, int] = {}
        self.taken = 0
        """Batches."""
        self.changes = 0
        self.wrong: list[str] = []

    def take(
        self,
        bucket: int,
        batch: pa.RecordBatch,
        positions: Mapping[int, int],
        snapshot_ends: Mapping[int, int],
    ) -> None:
        """Take a batch, and what the scan says with it."""
        with self._lock:
            for each, offset in snapshot_ends.items():
                self._next.setdefault(each, offset)
            names = ("id", "version", "text", "_change_type", "_log_offset")
            for *cells, kind, offset in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                self._take_row(bucket, tuple(cells), kind, offset)
            for each, position in positions.items():
                self._apply(each, position)
            self._positions = dict(positions)
            self.taken += 1

    def committed(self) -> tuple[dict[int, int], Rows] | None:
        """Positions, and the rows as of them; None as long as a bucket has none."""
        with self._lock:
            if len(self._positions) < self._buckets:
                return None
            return dict(self._positions), dict(self._rows)

    @property
    def in_snapshot(self) -> bool:
        """Whether the snapshot of some bucket is not complete."""
        with self._lock:
            return len(self._next) < self._buckets

    def _take_row(self, bucket: int, cells: tuple[object, ...], kind: str, offset: int | None) -> None:
        if offset is None:
            if bucket in self._next:
                self.wrong.append(f"bucket {bucket}: a row of the snapshot behind its end")
            self._change("insert", cells)
            return
        due = self._next.get(bucket)
        if offset != due:
            self.wrong.append(f"bucket {bucket}: the change at {offset} came, due was {due}")
        self._next[bucket] = offset + 1
        self.changes += 1
        self._waiting.setdefault(bucket, []).append((offset, kind, cells))

    def _apply(self, bucket: int, position: int) -> None:
        waiting = self._waiting.get(bucket, [])
        ready = [each for each in waiting if each[0] < position]
        del waiting[: len(ready)]
        for _, kind, cells in ready:
            self._change(kind, cells)

    def _change(self, kind: str, cells: tuple[object, ...]) -> None:
        key = cells[0]
        assert isinstance(key, int)
        if kind in ("insert", "update_postimage"):
            if key in self._rows:
                self.wrong.append(f"{kind} of {cells}, and there is {self._rows[key]}")
            self._rows[key] = cells
        elif self._rows.pop(key, None) != cells:
            self.wrong.append(f"{kind} of {cells}, which is not there")


class LineFold:
    """Folds what `weir tail --snapshot --json` prints."""

    def __init__(self) -> None:
        self.table: dict[int, list[object]] = {}
        self.wrong: list[str] = []
        self.lines = 0
        self._ends: dict[int, int] = {}

    def take(self, line: str) -> None:
        """Take one line."""
        said = json.loads(line)
        self.lines += 1
        place, bucket, key = said["_log_offset"], said["_bucket"], said["id"]
        row = [key, said["version"], said["text"]]
        if place is not None:
            if self._ends.setdefault(bucket, place) != place:
                self.wrong.append(
                    f"line {self.lines}: bucket {bucket} at {place}, expected {self._ends[bucket]}"
                )
            self._ends[bucket] = place + 1
        elif bucket in self._ends:
            self.wrong.append(f"line {self.lines}: a snapshot row of bucket {bucket} after its changes")
        match said["_change_type"]:
            case "update_preimage" | "delete":
                gone = self.table.pop(key, None)
                if gone != row:
                    self.wrong.append(f"line {self.lines}: removes {row}, has {gone}")
            case "insert" | "update_postimage" if key not in self.table:
                self.table[key] = row
            case other:
                self.wrong.append(f"line {self.lines}: {other} of {row}, has {self.table.get(key)}")
                self.table[key] = row
