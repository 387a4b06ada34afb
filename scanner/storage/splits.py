"""Cuts a bucket's key space into ranges that hold about equal stored bytes.

A store measures (`Piece`s: how many bytes lie before a key), this module cuts. A cut is an estimate, and nothing that
is read depends on it (`scanner.data.key_ranges.ranges_between`).

Pure: this module knows no store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scanner.data.keys import KEY_BYTES_MAX, KeyRange, successor


class Piece(NamedTuple):
    """A part of what is stored."""

    end: bytes
    """A key that none of its rows is above."""
    size_bytes: int
    """As it is stored, 0 or more."""


@dataclass(frozen=True, slots=True)
class BucketSplit:
    """Where to cut a bucket, or a range of its keys."""

    cuts: tuple[bytes, ...]
    """Ascending, strictly inside the range: each begins another range. One less than was wished, or fewer."""
    stored_bytes: int
    """What the whole range holds, about, as it is stored: compressed, and with what is replaced but not cleaned up."""


def choose_cuts(pieces: Iterable[Piece], count: int, key_range: KeyRange) -> tuple[bytes, ...]:
    """Cut between pieces, so that each range has about the same share of the bytes.

    Args:
        pieces: Of the range, in any order; they may overlap.
        count: Ranges wanted, 1 or more.
        key_range: What is cut.

    Returns:
        At most `count - 1` keys, ascending, strictly inside the range. Fewer where there are fewer pieces.
    """
    ordered = sorted(pieces)
    left_bytes = sum(piece.size_bytes for piece in ordered)
    cuts: list[bytes] = []
    size = 0
    for piece, following in itertools.pairwise(ordered):
        if len(cuts) == count - 1:
            break
        size += piece.size_bytes
        # Of what is left, so that a piece that is larger than a share makes the other ranges smaller, not empty. The
        # border of pieces that is nearest to it is taken.
        if size + following.size_bytes / 2 < left_bytes / (count - len(cuts)):
            continue
        cut = successor(piece.end)  # Its last key stays on this side.
        if is_inside(cut, key_range) and (not cuts or cuts[-1] < cut):
            cuts.append(cut)
            left_bytes -= size
            size = 0
    return tuple(cuts)


def is_inside(cut: bytes, key_range: KeyRange) -> bool:
    """Whether a cut leaves something on both sides, as far as bounds tell."""
    return key_range.start < cut and (not key_range.end or cut < key_range.end) and len(cut) <= KEY_BYTES_MAX
