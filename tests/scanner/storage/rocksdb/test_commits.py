"""What a commit writes: the same worked out as columns and mutation by mutation."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import ArgumentInvalid
from scanner.storage.records import Mutation, Mutations
from scanner.storage.rocksdb import commits
from scanner.storage.rocksdb.commits import CommitPlan, plan_commit

Groups: TypeAlias = list[list[Mutation]]
Rows: TypeAlias = dict[bytes, bytes]

_KEYS = st.binary(min_size=1, max_size=3)
_ROWS = st.binary(min_size=1, max_size=6)
_GROUPS = st.lists(st.lists(st.builds(Mutation, _KEYS, st.none() | _ROWS), max_size=6), max_size=4)
_STORED = st.dictionaries(_KEYS, _ROWS, max_size=12)


def planned(groups: Groups, stored: Rows, *, columns: bool, entry_bytes_max: int = 1 << 20) -> CommitPlan:
    """The plan of a commit, by either way where both are possible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "COLUMNS_ROWS_MIN", 1 if columns else 1 << 30)
        patch.setattr(commits, "ENTRY_BYTES_MAX", entry_bytes_max)
        return plan_commit(list(map(Mutations.of, groups)), lambda keys: [stored.get(key) for key in keys])


def shown(plan: CommitPlan) -> object:
    """What a plan says, as plain values."""
    groups = [
        str(group) if isinstance(group, ArgumentInvalid) else (group.kinds.tolist(), group.rows.to_pylist())
        for group in plan.groups
    ]
    return groups, plan.keys, plan.rows


def distinct(groups: Groups) -> Groups:
    """Without the later mutations of a key."""
    seen: set[bytes] = set()
    return [
        [each for each in group if not (each.key in seen or seen.add(each.key))]  # type: ignore[func-returns-value]
        for group in groups
    ]


@given(_GROUPS, _STORED)
def test_columns_give_what_single_mutations_give(groups: Groups, stored: Rows) -> None:
    """Changes of each request and outcome, whether keys are absent or present, once or twice, put or deleted."""
    for each in (groups, distinct(groups)):
        assert shown(planned(each, stored, columns=True)) == shown(planned(each, stored, columns=False))


@given(
    st.lists(st.builds(Mutation, st.binary(min_size=8, max_size=8), _ROWS), min_size=2), st.binary(max_size=8)
)
def test_keys_of_eight_octets_are_in_the_order_of_others(group: list[Mutation], odd: bytes) -> None:
    """With one of another length among them, and with none; also where the columns are parts of longer ones."""
    for each in (distinct([group]), distinct([[*group, Mutation(odd, b"row")]])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "COLUMNS_ROWS_MIN", 1)
            plan = plan_commit([Mutations.of(each[0])[1:]], lambda keys: [None] * len(keys))
        assert list(zip(plan.keys, plan.rows, strict=True)) == sorted(each[0][1:])


@given(_GROUPS, _STORED, st.integers(1, 20))
def test_both_ways_refuse_the_same_requests(groups: Groups, stored: Rows, entry_bytes_max: int) -> None:
    """A request whose entry would be too large is refused by itself, with what it replaces counted."""
    for each in (groups, distinct(groups)):
        ways = [
            planned(each, stored, columns=columns, entry_bytes_max=entry_bytes_max)
            for columns in (True, False)
        ]
        assert shown(ways[0]) == shown(ways[1])


@given(_GROUPS, _STORED)
def test_the_outcome_is_just_the_keys_that_differ(groups: Groups, stored: Rows) -> None:
    """In key order, with the row that each has then."""
    once = distinct(groups)
    plan = planned(once, stored, columns=True)
    expected = dict(stored)
    for key, row in (each for group in once for each in group):
        expected.pop(key, None)
        if row is not None:
            expected[key] = row
    changed = {key for key in stored | expected if stored.get(key) != expected.get(key)}
    assert plan.keys == sorted(changed)
    assert plan.rows == [expected.get(key) for key in plan.keys]


def test_one_slice_of_before_images_is_read_past_the_bound() -> None:
    """A request that replaces too much is refused without reading all that it replaces."""
    read = 0

    def read_rows(keys: list[bytes]) -> list[bytes | None]:
        nonlocal read
        read += len(keys)
        return [bytes(1 << 20)] * len(keys)

    deletes = Mutations.of([Mutation(b"%06d" % number, None) for number in range(10_000)])
    (refusal,) = plan_commit([deletes], read_rows).groups
    assert isinstance(refusal, ArgumentInvalid)
    assert read <= 2 * (64 + 64)
