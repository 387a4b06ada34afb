"""Cutting key ranges: the cuts of pieces, and the ranges between any cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scanner.data.key_ranges import ranges_between
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.storage.splits import Piece, choose_cuts, is_inside

KEYS = st.binary(max_size=6)
PIECES = st.lists(st.builds(Piece, KEYS, st.integers(0, 1000)), max_size=40)


@given(pieces=PIECES, count=st.integers(1, 50), start=KEYS, end=KEYS, probe=KEYS)
def test_ranges_between_cuts_have_every_key_once(
    pieces: list[Piece], count: int, start: bytes, end: bytes, probe: bytes
) -> None:
    """Whatever was measured: ascending cuts inside the range, at most as many as wished, and each key in one range."""
    key_range = KeyRange(start, end)
    cuts = choose_cuts(pieces, count, key_range)
    assert len(cuts) < count
    assert all(is_inside(cut, key_range) for cut in cuts)
    ranges = ranges_between(key_range, cuts)
    holding = [each for each in ranges if each.start <= probe and (not each.end or probe < each.end)]
    assert len(holding) == (start <= probe and (not end or probe < end))
    assert ranges[0].start == start
    assert ranges[-1].end == end


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=300), count=st.integers(1, 30))
def test_no_range_is_off_by_more_than_a_piece(sizes: list[int], count: int) -> None:
    """Each range has its share of what is left, give or take half of the largest piece at either end."""
    pieces = [Piece(number.to_bytes(2, "big"), size) for number, size in enumerate(sizes)]
    cuts = choose_cuts(pieces, count, ALL_KEYS)
    shares = [
        sum(size for key, size in pieces if start <= key and (not end or key < end))
        for start, end in ranges_between(ALL_KEYS, cuts)
    ]
    assert all(abs(share - sum(sizes) / count) <= 2 * max(sizes) for share in shares) or len(pieces) < count


def test_a_giant_piece_leaves_no_empty_ranges() -> None:
    """It is a range of its own, and the others share the rest."""
    pieces = [Piece(bytes([number]), 1000 if number == 50 else 1) for number in range(100)]
    cuts = choose_cuts(pieces, 4, ALL_KEYS)
    assert cuts[:2] == (b"\x31\x00", b"\x32\x00")
    assert 73 <= cuts[2][0] <= 75
