"""The oracle of the demo: what it accepts, and that it sees every kind of wrong scan."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory, Commit, Key, Row

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_arrays(
        [
            pa.array([key for key, _ in pairs], pa.int64()),
            pa.array([value for _, value in pairs], pa.string()),
        ],
        schema=SCHEMA,
    )


def history(*pairs: tuple[int, str | None]) -> BucketHistory:
    return BucketHistory(base=rows(*pairs), base_offset=10, primary_key=("id",))


def changed(start: int, end: int, changes: dict[int, str | None]) -> Commit:
    """A commit; None deletes."""
    return Commit(
        start, end, {(key,): None if value is None else (key, value) for key, value in changes.items()}
    )


def kinds(known: BucketHistory, offset: int, scanned: pa.Table) -> list[str]:
    return [violation.kind for violation in known.violations(offset, scanned)]


def test_the_base_is_the_state_at_its_offset() -> None:
    """Without commits, the base is the state, in whatever order it is scanned."""
    assert kinds(history((1, "a"), (2, None)), 10, rows((2, None), (1, "a"))) == []


def test_a_scan_shows_the_commits_below_its_offset_and_no_other() -> None:
    """Update, delete and re-insert show from the end offset of their commit on."""
    known = history((1, "a"), (2, "b"))
    known.record(changed(10, 12, {1: "x"}))
    known.record(changed(12, 13, {2: None}))
    known.record(changed(13, 14, {2: "again"}))
    assert kinds(known, 10, rows((1, "a"), (2, "b"))) == []
    assert kinds(known, 12, rows((1, "x"), (2, "b"))) == []
    assert kinds(known, 13, rows((1, "x"))) == []
    assert kinds(known, 14, rows((1, "x"), (2, "again"))) == []


@pytest.mark.parametrize(
    ("scanned", "kind"),
    [
        (rows((1, "a")), "missing"),
        (rows((1, "a"), (2, "b"), (3, "c")), "extra"),
        (rows((1, "a"), (2, "old")), "stale"),
        (rows((1, "a"), (2, None)), "stale"),
        (rows((1, "a"), (2, "b"), (2, "b")), "repeated"),
    ],
)
def test_every_wrong_row_has_a_name(scanned: pa.Table, kind: str) -> None:
    """A scan that differs in one row is told which way it differs."""
    assert kinds(history((1, "a"), (2, "b")), 10, scanned) == [kind]


@pytest.mark.parametrize(
    ("scanned", "wrong"),
    [
        ([0.0, math.nan], []),
        ([-0.0, math.nan], ["(1,)"]),
        ([0.0, None], ["(2,)"]),
        ([1.0, math.inf], ["(1,)", "(2,)"]),
    ],
)
def test_floats_are_compared_by_their_bits(scanned: list[float | None], wrong: list[str]) -> None:
    """-0.0 is not 0.0, and a NaN is itself."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
    base = pa.table({"id": [1, 2], "value": [0.0, math.nan]}, schema)
    known = BucketHistory(base=base, base_offset=10, primary_key=("id",))
    found = known.violations(10, pa.table({"id": [1, 2], "value": scanned}, schema))
    assert [(each.kind, each.detail.split(" is ")[0]) for each in found] == [("stale", key) for key in wrong]


def test_other_types_are_not_cast() -> None:
    """The same numbers as another type are not the rows that there must be."""
    scanned = rows((1, "a")).cast(pa.schema([("id", pa.int32()), ("value", pa.string())]))
    assert kinds(history((1, "a")), 10, scanned) == ["retyped"]


def test_an_offset_inside_a_commit_is_torn() -> None:
    """A scan between the two changes of one update broke the commit apart."""
    known = history((1, "a"))
    known.record(changed(10, 12, {1: "x"}))
    assert kinds(known, 11, rows((1, "a"))) == ["torn"]


def test_an_unknown_offset_is_not_judged() -> None:
    """Neither the past before the history nor the future is guessed at."""
    known = history((1, "a"))
    for offset in (9, 11):
        with pytest.raises(BenchFailed, match="outside the known"):
            known.violations(offset, rows((1, "a")))


@pytest.mark.parametrize("start", [9, 11])
def test_commits_follow_each_other_without_gap(start: int) -> None:
    """A commit that overlaps the last one, or leaves a gap, is refused and not recorded."""
    known = history((1, "a"))
    with pytest.raises(BenchFailed, match="the last ended at 10"):
        known.record(changed(start, 12, {1: "x"}))
    assert known.end_offset == 10


@given(
    st.lists(
        st.dictionaries(st.integers(0, 9), st.one_of(st.none(), st.text(max_size=3)), min_size=1), max_size=12
    ),
    st.data(),
)
def test_the_state_is_a_fold_of_the_commits(writes: list[dict[int, str | None]], data: st.DataObject) -> None:
    """At each commit's end, a plain dict that was written the same way is what the oracle accepts, and only that."""
    known = history((1, "a"), (2, "b"))
    model: dict[Key, Row] = {(1,): (1, "a"), (2,): (2, "b")}
    states = {10: dict(model)}
    for write in writes:
        commit = changed(known.end_offset, known.end_offset + len(write), write)
        known.record(commit)
        for key, row in commit.changes.items():
            model.pop(key, None)
            if row is not None:
                model[key] = row
        states[commit.end_offset] = dict(model)
    offset = data.draw(st.sampled_from(sorted(states)))
    scanned = [(int(str(row[0])), None if row[1] is None else str(row[1])) for row in states[offset].values()]
    assert kinds(known, offset, rows(*scanned)) == []
    assert kinds(known, offset, rows(*scanned, (99, "z"))) == ["extra"]
