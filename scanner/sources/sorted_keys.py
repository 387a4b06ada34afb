"""Keys in ascending order, to which keys are added for as long as they are read.

They are kept in pieces of a bounded length, so that adding one moves a bounded number of others.

This module knows no rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

_PIECE_KEYS_MAX: Final = 1024
"""Keys of a piece; one that would have more is halved."""


class SortedKeys:
    """A set of keys, in order. Adding and reading take microseconds a key, however many there are."""

    def __init__(self) -> None:
        self._pieces: list[list[bytes]] = []
        """None is empty; each is ascending, and so are all together."""
        self._last: list[bytes] = []
        """The last key of each."""

    def add(self, key: bytes) -> None:
        """Add a key that is not there yet."""
        if not self._pieces:
            self._pieces.append([key])
            self._last.append(key)
            return
        number = min(bisect_left(self._last, key), len(self._pieces) - 1)
        piece = self._pieces[number]
        insort(piece, key)
        if len(piece) > _PIECE_KEYS_MAX:
            half = len(piece) // 2
            self._pieces[number : number + 1] = [piece[:half], piece[half:]]
            self._last[number : number + 1] = [piece[half - 1], piece[-1]]
        else:
            self._last[number] = piece[-1]

    def append(self, keys: list[bytes]) -> None:
        """Add some keys, ascending, that are all behind those that are there."""
        for first in range(0, len(keys), _PIECE_KEYS_MAX):
            piece = keys[first : first + _PIECE_KEYS_MAX]
            self._pieces.append(piece)
            self._last.append(piece[-1])

    def first(self, start: bytes, count: int) -> list[bytes]:
        """The first keys from `start` on, itself included: `count` of them, or all that there are."""
        found: list[bytes] = []
        for number in range(bisect_left(self._last, start), len(self._pieces)):
            piece = self._pieces[number]
            at = 0 if found else bisect_left(piece, start)
            found += piece[at : at + count - len(found)]
            if len(found) >= count:
                break
        return found
