"""What a tail must hold to: the seven guarantees, each by its name, and that its changes fold to the table.

docs/simulation.md lists them.

The snapshot of a HYBRID is held to what any scan is: `isolated`, `complete`, `unique`, `ordered`, and its digest
`resumable`. The measure is the model's own changelog, worked out from the mutations that storage was given.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bench.simulation.workload import TailStop
from scanner import ScanSource
from scanner.data.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from scanner.data.digest import checksum

if TYPE_CHECKING:
    import datetime

    from bench.simulation.history import ScanRecord
    from bench.simulation.model import Model, ModelChange, ModelRow
    from bench.simulation.tables import Key, Row

Found = Iterator[tuple[str, str]]
"""Names of validators, and what is wrong."""


def judge_tail(scan: ScanRecord, model: Model) -> Found:
    """All that is wrong with the changes of one scan."""
    task = scan.task
    buckets = range(model.rows.description.buckets) if task.bucket is None else (task.bucket,)
    wrong = False
    for bucket in buckets:
        judged = _BucketTail(scan, model, bucket)
        for name, detail in judged.judge():
            wrong = True
            yield name, f"bucket {bucket}: {detail}"
    if wrong and scan.resumes:
        yield "resumable", f"after {scan.resumes} resumes the changes are not those of the model"
    if task.row_limit is not None and len(scan.rows) > task.row_limit:
        yield "reliable", f"{len(scan.rows)} rows, asked for {task.row_limit}"
    if scan.ended and task.tail is not None and task.tail.stop is TailStop.NEVER and task.row_limit is None:
        yield "reliable", "it ended by itself, and had no end"


@dataclass(frozen=True, slots=True)
class _Change:
    """A change as it was delivered."""

    offset: int
    kind: str
    cells: Row
    """Those of the table's columns that were asked for, in that order."""
    time: datetime.datetime | None


class _BucketTail:
    """What came of one bucket.

    Args:
        scan: The scan.
        model: Of the run.
        bucket: Of the scan.
    """

    def __init__(self, scan: ScanRecord, model: Model, bucket: int) -> None:
        self._scan = scan
        self._model = model
        self._bucket = bucket
        columns = scan.columns(model.rows)
        self._columns = [name for name in columns if model.rows.schema.get_field_index(name) >= 0]
        self._at = {name: columns.index(name) for name in columns}
        rows = scan.changes.get(bucket, [])
        offset_at = self._at[LOG_OFFSET]
        self._snapshot = list(itertools.takewhile(lambda row: row[offset_at] is None, rows))
        self._rows = rows[len(self._snapshot) :]
        self._bookmarks = [each for each in scan.bookmarks if each.bucket == bucket]
        told = scan.buckets.get(bucket)
        self._told = told
        self._log = model.changes(bucket)

    def judge(self) -> Found:
        """All that is wrong."""
        if self._told is None or self._told.log_offset is None:
            if self._snapshot or self._rows:
                yield "reliable", "changes came, and no scan was begun"
            return
        hybrid = self._source is ScanSource.HYBRID
        if hybrid:
            yield from self._judge_snapshot(self._told.log_offset)
        elif self._snapshot:
            yield "faithful", "rows of no offset in a scan of the log"
        if any(row[self._at[LOG_OFFSET]] is None for row in self._rows):
            yield "faithful", "rows of no offset behind changes"
            return
        changes = [self._change(row) for row in self._rows]
        start = self._start(changes)
        if start is None:
            return
        yield from self._judge_ends(start)
        yield from self._judge_sequence(changes)
        yield from self._judge_each(changes, start)
        yield from self._judge_bookmarks(changes, start)
        yield from self._judge_fold(changes, start)

    @property
    def _source(self) -> ScanSource:
        assert self._scan.task.tail is not None
        return self._scan.task.tail.source

    def _start(self, changes: Sequence[_Change]) -> int | None:
        """Where the changes begin that must be there; None: that is not known, and nothing came.

        A client that was cut off says of a LOG by push where it went on last; it has begun there, or earlier.
        """
        assert self._told is not None
        bounds, told = self._scan.bounds, self._told.log_offset
        assert bounds is not None
        if (
            self._source is ScanSource.HYBRID
            or not self._scan.resumes
            or self._scan.task.mode.of_changes
            or self._scan.task.client.value == "raw"
        ):
            return told
        if isinstance(bounds.start, Mapping):
            return bounds.earliest[self._bucket]
        return min((each.offset for each in self._bookmarks), default=None) if changes else None

    def _change(self, row: Row) -> _Change:
        return _Change(
            offset=cast("int", row[self._at[LOG_OFFSET]]),
            kind=str(row[self._at[CHANGE_TYPE]]),
            cells=self._cells(row),
            time=cast("datetime.datetime", row[self._at[COMMIT_TIMESTAMP]])
            if COMMIT_TIMESTAMP in self._at
            else None,
        )

    def _cells(self, row: Row) -> Row:
        return tuple(row[self._at[name]] for name in self._columns)

    def _projected(self, row: ModelRow) -> Row:
        index = self._model.rows.schema.get_field_index
        return tuple(row.cells[index(name)] for name in self._columns)

    def _passes(self, change: ModelChange) -> bool:
        return self._model.fulfils(change.row, self._scan.task.filter)

    def _judge_snapshot(self, offset: int) -> Found:
        model, task = self._model, self._scan.task
        if offset not in model.offsets(self._bucket):
            yield "isolated", f"the snapshot's offset {offset} is inside a commit"
            return
        if self._scan.promised.get(self._bucket, offset) != offset:
            yield (
                "isolated",
                f"a snapshot as of {self._scan.promised[self._bucket]} was asked for, not {offset}",
            )
        expected = [
            self._projected(row) for row in model.matching(self._bucket, offset, task.filter, None, None)
        ]
        rows = [self._cells(row) for row in self._snapshot]
        if any(row[self._at[CHANGE_TYPE]] != "insert" for row in self._snapshot):
            yield "faithful", "a row of the snapshot is no insert"
        behind = bool(self._bookmarks or self._rows)
        if rows == expected[: len(rows)] and (len(rows) == len(expected) or not behind):
            digest = checksum(b"".join(row.stored for row in model.state(self._bucket, offset)))
            assert self._told is not None
            if self._told.reason == "STOP_OFFSET" and self._told.digest not in (None, digest):
                yield "resumable", f"digest {self._told.digest:#x} of the snapshot, must be {digest:#x}"
            return
        place = {row: at for at, row in enumerate(expected)}
        places = [place[row] for row in rows if row in place]
        if len(places) < len(rows):
            yield (
                "isolated",
                f"{len(rows) - len(places)} rows of the snapshot are not of the state at {offset}",
            )
        if len(set(rows)) < len(rows):
            yield "unique", "a row of the snapshot came twice"
        if any(later < earlier for earlier, later in itertools.pairwise(places)):
            yield "ordered", "the rows of the snapshot are out of order"
        missing = (len(expected) if behind else max(places, default=-1) + 1) - len(set(places))
        if missing:
            yield "complete", f"{missing} of {len(expected)} rows of the snapshot are missing"

    def _judge_ends(self, start: int) -> Found:
        """Whether it begins and ends where it was told to."""
        scan, model, bounds = self._scan, self._model, self._scan.bounds
        assert bounds is not None
        assert self._told is not None
        if start not in model.offsets(self._bucket):
            yield "atomic", f"it begins at {start}, inside a commit"
        earliest = bounds.earliest[self._bucket]
        exact = isinstance(bounds.start, Mapping) or bool(scan.promised)
        if start < earliest or (exact and start != earliest):
            yield "reliable", f"it begins at {start}, and was to begin at {earliest}"
        if self._told.reason != "STOP_OFFSET":
            return
        end = self._bookmarks[-1].offset if self._bookmarks else -1
        first, last = model.offsets_between(self._bucket, scan.opened_at_s, scan.closed_at_s)
        if isinstance(bounds.stop, Mapping):
            first = last = bounds.stop[self._bucket]
        if scan.left or scan.error is not None or len(scan.rows) == scan.task.row_limit:
            # The end may have come behind what its consumer took: it left or had enough, or another bucket failed.
            first = min(first, end)
        if not first <= end <= last and (first < last or end != first):
            yield "reliable", f"it ended at {end}, and was to end in [{first}, {last}]"

    def _judge_sequence(self, changes: Sequence[_Change]) -> Found:
        offsets = [change.offset for change in changes]
        twice = [offset for offset, count in Counter(offsets).items() if count > 1]
        if twice:
            yield "unique", f"{len(twice)} changes came twice, the first at {twice[0]}"
        if any(later < earlier for earlier, later in itertools.pairwise(offsets)):
            yield "ordered", "changes are out of order"

    def _judge_each(self, changes: Sequence[_Change], start: int) -> Found:
        for at, change in enumerate(changes):
            if not 0 <= change.offset < len(self._log):
                yield "faithful", f"a change at {change.offset}, and the log ends at {len(self._log)}"
                continue
            model = self._log[change.offset]
            if (change.kind, change.cells) != (model.kind, self._projected(model.row)):
                yield "faithful", f"at {change.offset} {change.kind} {change.cells}, must be {model}"
            if change.time is not None and _microseconds(change.time) != model.timestamp_us:
                yield (
                    "faithful",
                    f"the change at {change.offset} is of {change.time}, must be {model.timestamp_us}",
                )
            if not self._passes(model):
                yield "filterable", f"the change at {change.offset} does not pass: {model.row.cells}"
            if change.kind == "update_preimage" and at + 1 < len(changes):
                pair = changes[at + 1]
                wanted = change.offset + 1 < len(self._log) and self._passes(self._log[change.offset + 1])
                if wanted and (pair.offset != change.offset + 1 or pair.time != change.time):
                    yield "atomic", f"between the two changes of the update at {change.offset} is another"
        delivered = {change.offset for change in changes}
        missing = [offset for offset in self._due(start, self._end(changes)) if offset not in delivered]
        if missing:
            yield "reliable", f"{len(missing)} changes are missing, the first at {missing[0]}"

    def _end(self, changes: Sequence[_Change]) -> int:
        """Up to where every change must have come."""
        reached = max((change.offset for change in changes), default=-1) + 1
        if self._told is not None and self._told.reason == "STOP_OFFSET" and self._bookmarks:
            return max(reached, self._bookmarks[-1].offset)
        return reached

    def _due(self, start: int, end: int) -> Iterator[int]:
        """Offsets of the changes that pass."""
        return (at for at in range(start, min(end, len(self._log))) if self._passes(self._log[at]))

    def _judge_bookmarks(self, changes: Sequence[_Change], start: int) -> Found:
        known = set(self._model.offsets(self._bucket))
        before = len(self._snapshot)
        for told in self._bookmarks:
            if told.offset not in known:
                yield "atomic", f"position {told.offset} is inside a commit"
            had = {change.offset for change in changes[: max(0, told.rows - before)]}
            missing = [at for at in self._due(start, told.offset) if at not in had]
            if missing:
                yield (
                    "bookmarkable",
                    f"position {told.offset} was told, and {len(missing)} changes before it had not come,"
                    f" the first at {missing[0]}",
                )

    def _judge_fold(self, changes: Sequence[_Change], start: int) -> Found:
        """Fold, and compare at each position that was told."""
        rows = [self._cells(row) for row in self._snapshot]
        if self._source is ScanSource.LOG:
            rows = list(self._state(start).values())
        folded: dict[Key | None, Row] = {self._key(row): row for row in rows}
        left = list(changes)[::-1]
        for position in sorted({told.offset for told in self._bookmarks if told.offset >= start}):
            while left and left[-1].offset < position:
                change = left.pop()
                if change.offset >= start and not _apply(folded, self._key(change.cells), change):
                    yield "foldable", f"the change at {change.offset} does not follow from those before it"
            if folded != self._state(position):
                yield "foldable", f"folded up to {position} it is not the table as of then"
                return

    def _state(self, offset: int) -> dict[Key | None, Row]:
        matching = self._model.matching(self._bucket, offset, self._scan.task.filter, None, None)
        return {row.key: self._projected(row) for row in matching}

    def _key(self, cells: Row) -> Key | None:
        """The key of a row, from its key columns or its tag."""
        names = self._model.rows.key_columns
        if set(names) <= set(self._columns):
            return tuple(cells[self._columns.index(name)] for name in names)
        return self._model.key_of_tag(cells[self._columns.index("tag")])


def _apply(folded: dict[Key | None, Row], key: Key | None, change: _Change) -> bool:
    """Fold one change; whether that makes sense."""
    if change.kind in ("delete", "update_preimage"):
        return folded.pop(key, None) == change.cells
    fresh = key not in folded
    folded[key] = change.cells
    return fresh


def _microseconds(time: datetime.datetime) -> int:
    return round(time.timestamp() * 1e6)
