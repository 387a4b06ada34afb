"""What a table is at every log offset, from the commits that storage was given: the measure of every scan.

The model knows nothing of scans, snapshots, overlays and tokens: it is told of each commit as it is made, and folds
them, one after another, into dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.simulation.tables import Comparison, Key, Row, Rows, rows_of

if TYPE_CHECKING:
    from scanner.storage.interface import Mutation
    from scanner.storage.records import Entry


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One row of one state."""

    key: Key
    cells: Row
    """All columns."""
    stored: bytes


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One change, at its place in the changelog."""

    kind: str
    """As `scanner.data.changes` calls it."""
    row: ModelRow
    timestamp_us: int
    commit_end: int
    """Where its commit ends."""


@dataclass(slots=True)
class Commit:
    """One group of mutations, as storage has it."""

    start: int
    end: int
    at_s: float
    """When it was durable, virtual seconds."""
    timestamp_us: int
    """The time that storage gave it, microseconds since 1970; 0 if it changed nothing."""
    continues: bool
    """Whether it goes on with the share of a transaction that the one before it belongs to."""
    mutations: list[Mutation]


@dataclass
class Model:
    """Every state of every bucket.

    Args:
        rows: Of the table.
        decode: Stored rows to a batch of all columns.
    """

    rows: Rows
    decode: Callable[[Sequence[bytes]], Any]
    _commits: dict[int, list[Commit]] = field(default_factory=dict)
    _decoded: dict[bytes, Row] = field(default_factory=dict)
    _states: dict[tuple[int, int], list[ModelRow]] = field(default_factory=dict)
    _changes: dict[int, list[ModelChange]] = field(default_factory=dict)
    _ever: dict[int, list[ModelRow]] = field(default_factory=dict)
    _by_tag: dict[object, ModelRow] = field(default_factory=dict)
    _buckets: dict[Key, int] = field(default_factory=dict)

    def commit(
        self,
        bucket: int,
        start: int,
        end: int,
        mutations: Sequence[Mutation],
        entry: Entry | None,
        at_s: float,
    ) -> None:
        """Be told of a commit, at a time; one that changed nothing has no entry in the changelog."""
        timestamp_us, continues = (0, False) if entry is None else (entry.timestamp_us, entry.continues)
        commit = Commit(start, end, at_s, timestamp_us, continues, list(mutations))
        self._commits.setdefault(bucket, []).append(commit)

    def commits(self, bucket: int) -> list[Commit]:
        """Those that changed something, in their order."""
        return [commit for commit in self._commits.get(bucket, []) if commit.end > commit.start]

    def end(self, bucket: int) -> int:
        """One past the newest change."""
        return self.offsets(bucket)[-1]

    def changes(self, bucket: int) -> list[ModelChange]:
        """The whole changelog of a bucket, by offset, worked out from the mutations."""
        known = self._changes.get(bucket, [])
        if len(known) < self.end(bucket):
            found: list[ModelChange] = []
            state: dict[bytes, bytes] = {}
            for commit in self._commits.get(bucket, []):
                for key, row in commit.mutations:
                    for kind, stored in _changes_of(state.get(key), row):
                        (of,) = self._model_rows([stored])
                        found.append(ModelChange(kind, of, commit.timestamp_us, commit.end))
                    if row is None:
                        state.pop(key, None)
                    else:
                        state[key] = row
            self._changes[bucket] = found
            known = found
        return known

    def offsets(self, bucket: int) -> list[int]:
        """The log offsets that are states: not in the middle of a commit."""
        return [0, *(commit.end for commit in self._commits.get(bucket, []))]

    def offset_at(self, bucket: int, time_us: int) -> int:
        """Where the first commit since a time begins, or the share of a transaction that it is a part of."""
        start = 0
        for commit in self.commits(bucket):
            start = start if commit.continues else commit.start
            if commit.timestamp_us >= time_us:
                return start
        return self.end(bucket)

    def state(self, bucket: int, offset: int) -> list[ModelRow]:
        """A bucket as of an offset, in primary key order."""
        known = self._states.get((bucket, offset))
        if known is None:
            latest: dict[bytes, bytes | None] = {}
            for commit in self._commits.get(bucket, []):
                if commit.end > offset:
                    break
                latest.update(commit.mutations)
            known = self._states[bucket, offset] = sorted(
                self._model_rows([row for row in latest.values() if row is not None]), key=lambda row: row.key
            )
        return known

    def matching(
        self, bucket: int, offset: int, filter_: Sequence[Comparison], start: Key | None, end: Key | None
    ) -> list[ModelRow]:
        """The rows of a state that are in a key range and fulfil a filter."""
        return [row for row in self.in_range(bucket, offset, start, end) if self.fulfils(row, filter_)]

    def in_range(self, bucket: int, offset: int, start: Key | None, end: Key | None) -> list[ModelRow]:
        """The rows of a state that are in a key range."""
        return [row for row in self.state(bucket, offset) if self.is_between(row, start, end)]

    @staticmethod
    def is_between(row: ModelRow, start: Key | None, end: Key | None) -> bool:
        """Whether a row is in a key range."""
        return (start is None or row.key[: len(start)] >= start) and (
            end is None or row.key[: len(end)] < end
        )

    def ever(self, bucket: int) -> list[ModelRow]:
        """Every row that a bucket ever held, once for each time it was written. Once the run is over."""
        self._index()
        return self._ever.get(bucket, [])

    def bucket_of(self, key: Key) -> int | None:
        """The bucket of a key, if it was ever written. Once the run is over."""
        self._index()
        return self._buckets.get(key)

    def key_of_tag(self, tag: object) -> Key | None:
        """The key of the row with this tag, if there ever was one. Once the run is over."""
        self._index()
        row = self._by_tag.get(tag)
        return None if row is None else row.key

    def offsets_between(self, bucket: int, start_s: float, end_s: float) -> tuple[int, int]:
        """The log's end at two times."""
        commits = self._commits.get(bucket, [])
        return (
            max((each.end for each in commits if each.at_s < start_s), default=0),
            max((each.end for each in commits if each.at_s <= end_s), default=0),
        )

    def may_have_changed_nothing(self, key: Key, row: Row | None, start_s: float, end_s: float) -> bool:
        """Whether there was nothing to change, at some moment between two times, to give a key this row or none."""
        bucket = self.bucket_of(key)
        if row is not None or bucket is None:
            return row is None  # A row that is written is always another one.
        first, last = self.offsets_between(bucket, start_s, end_s)
        return any(
            all(row.key != key for row in self.state(bucket, offset))
            for offset in self.offsets(bucket)
            if first <= offset <= last
        )

    def _index(self) -> None:
        if self._ever:
            return
        tag = self.rows.schema.get_field_index("tag")
        for bucket, commits in self._commits.items():
            stored = [each.row for commit in commits for each in commit.mutations if each.row is not None]
            self._ever[bucket] = self._model_rows(stored)
            for row in self._ever[bucket]:
                self._by_tag[row.cells[tag]] = row
                self._buckets[row.key] = bucket

    def fulfils(self, row: ModelRow, filter_: Sequence[Comparison]) -> bool:
        """Whether a row passes a filter."""
        at = self.rows.schema.get_field_index
        return all(each.holds(row.cells[at(each.column)]) for each in filter_)

    def _model_rows(self, stored: Sequence[bytes]) -> list[ModelRow]:
        missing = [row for row in stored if row not in self._decoded]
        if missing:
            self._decoded.update(zip(missing, rows_of(self.decode(missing)), strict=True))
        width = len(self.rows.key_columns)
        return [ModelRow(cells[:width], cells, row) for row in stored for cells in (self._decoded[row],)]


def _changes_of(before: bytes | None, after: bytes | None) -> Sequence[tuple[str, bytes]]:
    """What a mutation does to its key: nothing, one change, or two."""
    if after is None:
        return () if before is None else (("delete", before),)
    if before is None:
        return (("insert", after),)
    return (("update_preimage", before), ("update_postimage", after))
