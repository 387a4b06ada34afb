"""The assignment of buckets to members: what it promises, for every group."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scanner.server.groups.assignment import assign

MEMBERS = st.sets(st.sampled_from([f"m{number}" for number in range(9)]), max_size=9)
OWNERS = st.dictionaries(st.integers(0, 40), st.sampled_from([f"m{number}" for number in range(12)]))


@given(st.integers(0, 32), MEMBERS, OWNERS)
def test_it_is_total_and_balanced(buckets: int, members: set[str], owners: dict[int, str]) -> None:
    """Every bucket has one owner, a member, and nobody has two more than another."""
    target = assign(range(buckets), members, owners)
    assert list(target) == (list(range(buckets)) if members else [])
    loads = Counter(target.values())
    assert set(loads) <= members
    if members:
        shares = [loads[name] for name in members]
        assert max(shares) - min(shares) <= 1


@given(st.integers(0, 32), MEMBERS, OWNERS)
def test_no_balanced_assignment_moves_fewer(buckets: int, members: set[str], owners: dict[int, str]) -> None:
    """As many stay as balance allows: each keeps its share, and those with more the buckets that are left over."""
    target = assign(range(buckets), members, owners)
    stayed = sum(owners.get(bucket) == name for bucket, name in target.items())
    if not members:
        return
    held = Counter(owners[each] for each in range(buckets) if owners.get(each) in members)
    share, extra = divmod(buckets, len(members))
    best = sum(min(held[name], share) for name in members)
    best += min(extra, sum(held[name] > share for name in members))
    assert stayed == best


@given(st.permutations(range(12)), st.permutations(["a", "b", "c", "d", "e"]), OWNERS)
def test_order_does_not_matter(buckets: list[int], members: list[str], owners: dict[int, str]) -> None:
    """Whoever asks gets the same answer; and to ask again with it moves nothing."""
    target = assign(buckets, members, dict(sorted(owners.items(), reverse=True)))
    assert target == assign(range(12), "abcde", owners)
    assert assign(buckets, members, target) == target


def test_a_member_that_joins_gets_its_share_and_no_more_moves() -> None:
    """Three have four buckets each of twelve; a fourth gets one of each. When it leaves, only its own move."""
    three = assign(range(12), ["a", "b", "c"], {})
    four = assign(range(12), ["a", "b", "c", "d"], three)
    moved = [bucket for bucket in three if three[bucket] != four[bucket]]
    assert Counter(three[bucket] for bucket in moved) == {"a": 1, "b": 1, "c": 1}
    assert {four[bucket] for bucket in moved} == {"d"}
    again = assign(range(12), ["a", "b", "c"], four)
    assert [bucket for bucket in four if four[bucket] != again[bucket]] == moved
