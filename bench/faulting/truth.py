"""What was acknowledged, in plain dicts: the second oracle of the fault campaign.

It shares no code with the product: rows are what a client wrote, offsets are counted here (an insert or a delete takes
one, an update two). A cell that is null is left out of its row, so that rows of before and after a new column compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Key = object
Row = Mapping[str, Any]
Rows = dict[Key, Row]


@dataclass(slots=True)
class TableTruth:
    """One table."""

    name: str
    key: str
    """Its only key column."""
    buckets: int
    table_id: int
    home: dict[Key, int] = field(default_factory=dict)
    """The bucket of each key, as the table showed it when it was new."""
    states: list[dict[int, Rows]] = field(default_factory=list)
    """Of each bucket, by end of the changelog: every state that was acknowledged."""
    ends: list[int] = field(default_factory=list)
    """Of each bucket, the newest end."""

    def __post_init__(self) -> None:
        if not self.states:
            self.states = [{0: {}} for _ in range(self.buckets)]
            self.ends = [0] * self.buckets

    def newest(self, bucket: int) -> Rows:
        """The rows of a bucket now."""
        return self.states[bucket][self.ends[bucket]]

    def keys_of(self, bucket: int) -> list[Key]:
        """The keys that belong to a bucket, whether they have rows or not."""
        return [key for key, home in self.home.items() if home == bucket]

    def write(self, rows: Iterable[Row]) -> None:
        """An acknowledged write."""
        self._commit({row[self.key]: plain(row) for row in rows})

    def delete(self, keys: Iterable[Key]) -> None:
        """An acknowledged delete."""
        self._commit(dict.fromkeys(keys))

    def _commit(self, changed: Mapping[Key, Row | None]) -> None:
        for bucket in range(self.buckets):
            mine = {key: row for key, row in changed.items() if self.home[key] == bucket}
            end, rows = after(self.ends[bucket], self.newest(bucket), mine)
            self.ends[bucket] = end
            self.states[bucket][end] = rows


def after(end: int, rows: Rows, changed: Mapping[Key, Row | None]) -> tuple[int, Rows]:
    """The end of the changelog and the rows after a commit; a row of None is a delete."""
    fresh = dict(rows)
    for key, row in changed.items():
        if row is not None:
            end += 2 if key in fresh else 1
            fresh[key] = row
        elif key in fresh:
            end += 1
            del fresh[key]
    return end, fresh


def plain(row: Row) -> Row:
    """A row without its nulls."""
    return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A state that somebody may come back to."""

    table: str
    bucket: int
    offset: int
    history: bytes
    rows: Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenToken:
    """A resume token, and what a scan that goes on with it must deliver."""

    table: str
    bucket: int
    token: bytes
    ordinal: int
    rows: tuple[Row, ...]
    """The remaining ones, in order."""


@dataclass(slots=True)
class Truth:
    """A data directory, and what was taken from it."""

    tables: dict[str, TableTruth] = field(default_factory=dict)
    """Those that are there, by name."""
    dropped: dict[str, TableTruth] = field(default_factory=dict)
    """Those that were there."""
    marks: list[Mark] = field(default_factory=list)
    leases: dict[str, list[Mark]] = field(default_factory=dict)
    """By id, what each keeps."""
    tokens: list[TakenToken] = field(default_factory=list)


@dataclass(slots=True)
class Built:
    """A data directory that a history made, with older copies of it."""

    truth: Truth
    older_ends: list[dict[tuple[int, int], int]]
    """Of each older copy, oldest first: table id and bucket to the end of its changelog."""
