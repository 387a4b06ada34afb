"""What a bucket must contain at a log offset, worked out from what the writer knows it wrote.

The oracle knows nothing of servers, scans or storage: a history of one bucket starts from its rows at some offset, and
is told of every acknowledged commit in order. A scan that claims the log offset S must then show exactly the state that
the commits with an end offset <= S produce. Anything else has a name: a row missing, a row too many, a row of another
time, a row twice, an offset in the middle of a commit. Cells are compared as they are stored: nothing is cast, -0.0 is
not 0.0, and a NaN is itself.

An offset beyond what was recorded cannot be judged yet: ask `end_offset` first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from bench.harness.errors import BenchFailed

Key = tuple[object, ...]
Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """One acknowledged write, as far as it concerns one bucket."""

    start_offset: int
    end_offset: int
    changes: Mapping[Key, Row | None]
    """What each key holds afterwards; None: nothing."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which a scan is not the state at the offset it was given."""

    kind: str
    """missing | extra | stale | repeated | torn | retyped."""
    detail: str


@dataclass
class BucketHistory:
    """The known history of one bucket.

    Args:
        base: The bucket's rows at `base_offset`.
        base_offset: The log offset at which the history begins.
        primary_key: Names of the key columns.
    """

    base: pa.Table
    base_offset: int
    primary_key: tuple[str, ...]
    commits: list[Commit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._position = {key: at for at, key in enumerate(keys_of(self.base, self.primary_key))}

    @property
    def end_offset(self) -> int:
        """The log offset up to which everything is known."""
        return self.commits[-1].end_offset if self.commits else self.base_offset

    def record(self, commit: Commit) -> None:
        """Add the next commit.

        Raises:
            BenchFailed: It does not begin where the last one ended: the log has a gap, an overlap, or another writer.
        """
        if commit.start_offset != self.end_offset:
            raise BenchFailed(
                f"a commit begins at log offset {commit.start_offset}, the last ended at {self.end_offset}"
            )
        # Appended whole: a reader in another thread sees all of the commit or nothing.
        self.commits.append(commit)

    def since(self, offset: int) -> "BucketHistory":
        """The same history, told from a later offset on.

        Args:
            offset: Not inside a commit, at most `end_offset`; nothing before it can be judged any more.
        """
        later = BucketHistory(self.state(offset), offset, self.primary_key)
        later.commits = [commit for commit in self.commits if commit.start_offset >= offset]
        return later

    def violations(self, offset: int, scanned: pa.Table, *, is_beginning: bool = False) -> list[Violation]:
        """Compare the rows of a scan with the state at the offset it claims.

        Args:
            offset: The scan's log offset, at most `end_offset`.
            scanned: Its rows, all columns, in any order.
            is_beginning: It has a part of the rows, the first by their keys, as a scan with a limit.

        Raises:
            BenchFailed: The offset is outside the known history.
        """
        if not self.base_offset <= offset <= self.end_offset:
            raise BenchFailed(
                f"log offset {offset} is outside the known [{self.base_offset}, {self.end_offset}]"
            )
        commits = list(self.commits)
        torn = [commit for commit in commits if commit.start_offset < offset < commit.end_offset]
        if torn:
            commit = torn[0]
            detail = f"log offset {offset} is inside the commit [{commit.start_offset}, {commit.end_offset})"
            return [Violation("torn", detail)]
        expected = self._state(offset, commits)
        if is_beginning:
            order = [(name, "ascending") for name in self.primary_key]
            expected = expected.sort_by(order).slice(0, scanned.num_rows)
        return list(_differences(expected, scanned.select(expected.column_names), self.primary_key))

    def state(self, offset: int) -> pa.Table:
        """The rows at an offset, in no order.

        Args:
            offset: Not inside a commit, `base_offset` to `end_offset`.
        """
        return self._state(offset, self.commits)

    def _state(self, offset: int, commits: Sequence[Commit]) -> pa.Table:
        latest: dict[Key, Row | None] = {}
        for commit in commits:
            if commit.end_offset > offset:
                break
            latest.update(commit.changes)
        keep = [True] * self.base.num_rows
        for key in latest:
            if key in self._position:
                keep[self._position[key]] = False
        written = [row for row in latest.values() if row is not None]
        untouched = self.base.filter(pa.array(keep, pa.bool_()))
        return pa.concat_tables([untouched, _table(written, self.base.schema)])


def keys_of(table: pa.Table, primary_key: Sequence[str]) -> list[Key]:
    """The primary key of every row, in row order."""
    return list(zip(*(table.column(name).to_pylist() for name in primary_key), strict=True))


def _table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(cells, kind.type) for cells, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _differences(expected: pa.Table, scanned: pa.Table, primary_key: Sequence[str]) -> Iterator[Violation]:
    if scanned.schema.types != expected.schema.types:
        yield Violation(
            "retyped", f"the columns are of {scanned.schema.types}, must be of {expected.schema.types}"
        )
        return
    order = [(name, "ascending") for name in primary_key]
    left, right = (_in_bits(table.sort_by(order)) for table in (expected, scanned))
    if left.equals(right):
        return
    # Slow from here on, row by row: something is wrong and wants a name.
    wanted, found = (_rows_by_key(table, primary_key) for table in (left, right))
    for key, rows in found.items():
        if len(rows) > 1:
            yield Violation("repeated", f"{key} occurs {len(rows)} times")
        if key not in wanted:
            yield Violation("extra", f"{key} does not exist at this offset: {rows[0]}")
        elif rows[0] != wanted[key][0]:
            yield Violation("stale", f"{key} is {rows[0]}, must be {wanted[key][0]}")
    for key in wanted:
        if key not in found:
            yield Violation("missing", f"{key} must be {wanted[key][0]}")


def _in_bits(table: pa.Table) -> pa.Table:
    """A table with the bits of each float as an integer: as floats Arrow takes -0.0 for 0.0, and no NaN for itself."""
    columns = [
        column.combine_chunks().view(f"int{column.type.bit_width}")
        if pa.types.is_floating(column.type)
        else column.combine_chunks()
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, table.column_names)


def _rows_by_key(table: pa.Table, primary_key: Sequence[str]) -> dict[Key, list[Row]]:
    by_key: dict[Key, list[Row]] = {}
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for key, row in zip(keys_of(table, primary_key), rows, strict=True):
        by_key.setdefault(key, []).append(row)
    return by_key
