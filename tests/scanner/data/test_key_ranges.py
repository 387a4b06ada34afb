"""Key ranges: what two have in common, what cuts make of one, and how many parts are wished for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.key_ranges import NO_KEYS, SPLITS_MAX, SplitWish, intersection, ranges_between
from scanner.data.keys import KeyRange
from scanner.errors import ArgumentInvalid

KEYS = st.binary(max_size=3)
RANGES = st.builds(KeyRange, KEYS, KEYS)


def has(key_range: KeyRange, key: bytes) -> bool:
    """Whether a key is in a range."""
    return key_range.start <= key and (not key_range.end or key < key_range.end)


@given(first=RANGES, second=RANGES, key=KEYS)
def test_a_key_is_in_both_ranges_or_not_in_what_they_have_in_common(
    first: KeyRange, second: KeyRange, key: bytes
) -> None:
    """Open ends and empty ranges included."""
    assert has(intersection(first, second), key) == (has(first, key) and has(second, key))
    assert not has(NO_KEYS, key)
    assert not has(intersection(first, NO_KEYS), key)


@pytest.mark.parametrize(
    ("splits", "target_bytes"),
    [(None, None), (2, 100), (0, None), (SPLITS_MAX + 1, None), (None, 0), (-1, None), (None, -5)],
)
def test_a_wish_that_makes_no_sense(splits: int | None, target_bytes: int | None) -> None:
    """Neither or both, or out of range: refused by name."""
    with pytest.raises(ArgumentInvalid, match="split"):
        SplitWish(splits, target_bytes)


def test_a_target_is_never_more_than_the_most_splits() -> None:
    """Its count is rounded up, and between 1 and the bound."""
    wish = SplitWish(target_bytes=100)
    assert [wish.count(size) for size in (0, 1, 100, 101, 10**9)] == [1, 1, 1, 2, SPLITS_MAX]


@pytest.mark.parametrize("cuts", [[b""], [b"a"], [b"c", b"b"], [b"c", b"c"], [b"x"], [b"y"]])
def test_cuts_that_are_not_inside_their_range(cuts: list[bytes]) -> None:
    """They would lose keys or have some twice."""
    with pytest.raises(ArgumentInvalid, match="not behind"):
        ranges_between(KeyRange(b"a", b"x"), cuts)
