"""Sorted keys that grow: always the sorted set, however they were added."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scanner.sources.sorted_keys import SortedKeys

KEYS = st.binary(min_size=1, max_size=3)


@given(st.lists(KEYS, unique=True), KEYS | st.just(b""), st.integers(1, 20))
def test_keys_are_found_in_order(added: list[bytes], start: bytes, count: int) -> None:
    """From any key on, as many as are asked for."""
    keys = SortedKeys()
    for key in added:
        keys.add(key)
    assert keys.first(start, count) == sorted(key for key in added if key >= start)[:count]


def test_many_keys_are_in_pieces() -> None:
    """Ascending, descending and scattered: pieces are cut, and nothing is lost at their edges."""
    numbers = [*range(0, 9000, 3), *range(8998, 0, -3), *((7919 * n) % 3000 * 3 + 2 for n in range(3000))]
    keys = SortedKeys()
    for number in numbers:
        keys.add(number.to_bytes(4, "big"))
    expected = [number.to_bytes(4, "big") for number in sorted(numbers)]
    assert keys.first(b"", 10_000) == expected
    found, start = [], b""
    while some := keys.first(start, 100):
        found += some
        start = some[-1] + b"\0"
    assert found == expected
    assert all(left < right for left, right in pairwise(found))
