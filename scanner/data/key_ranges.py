"""Ranges of encoded keys: what two have in common, and what cuts make of one. Pure.

A range that ends before it begins is empty, and stays so: nothing here turns it into another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from scanner.data.keys import KeyRange
from scanner.errors import ArgumentInvalid

SPLITS_MAX: Final = 1024
"""Of one bucket, in one answer."""
_BYTES_END: Final = 2**64
"""A message holds no larger number."""
NO_KEYS: Final = KeyRange(b"\x00", b"\x00")
"""No key at all."""


@dataclass(frozen=True, slots=True)
class SplitWish:
    """How many ranges are wanted: so many, or of about such a size.

    Raises:
        ArgumentInvalid: Not one of both, or out of range.
    """

    splits: int | None = None
    """1 to `SPLITS_MAX`."""
    target_bytes: int | None = None
    """Stored bytes of one range, 1 or more. There are never more than `SPLITS_MAX`."""

    def __post_init__(self) -> None:
        if (self.splits is None) == (self.target_bytes is None):
            raise ArgumentInvalid("say either how many splits are wanted, or how many bytes one is to have")
        if self.splits is not None and not 1 <= self.splits <= SPLITS_MAX:
            raise ArgumentInvalid(f"a bucket is split in 1 to {SPLITS_MAX}, not in {self.splits}")
        if self.target_bytes is not None and not 1 <= self.target_bytes < _BYTES_END:
            raise ArgumentInvalid(f"a split has 1 byte or more, and less than 2^64, not {self.target_bytes}")

    def count(self, stored_bytes: int) -> int:
        """How many ranges so many bytes are to be cut into, 1 to `SPLITS_MAX`."""
        if self.target_bytes is None:
            return self.splits or 1
        return max(1, min(SPLITS_MAX, math.ceil(stored_bytes / self.target_bytes)))


def is_empty(key_range: KeyRange) -> bool:
    """Whether a range ends before it begins, so that no key is in it."""
    return bool(key_range.end) and key_range.start >= key_range.end


def intersection(first: KeyRange, second: KeyRange) -> KeyRange:
    """The keys that are in both ranges; a range that ends before it begins if there are none."""
    ends = [end for end in (first.end, second.end) if end]
    return KeyRange(max(first.start, second.start), min(ends, default=b""))


def ranges_between(key_range: KeyRange, cuts: Iterable[bytes]) -> list[KeyRange]:
    """The ranges that cuts make of one: adjacent, in key order, together the whole of it.

    Args:
        key_range: What is cut.
        cuts: Ascending, strictly inside of it.

    Raises:
        ArgumentInvalid: They are not.
    """
    ranges = []
    start = key_range.start
    for cut in cuts:
        if not start < cut or (key_range.end and cut >= key_range.end):
            raise ArgumentInvalid(
                f"cut {cut.hex()} is not behind {start.hex() or 'the first key'} in its range"
            )
        ranges.append(KeyRange(start, cut))
        start = cut
    return [*ranges, KeyRange(start, key_range.end)]
