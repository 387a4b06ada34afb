"""Proves that a bucket's changelog leads to its rows, or names the keys for which it may not.

Rows and keys are compared by 64 bits of a hash, in columns. Two keys of one hash are suspected, and no more:
`scanner.storage.rocksdb.folding` looks at what is suspected octet by octet, and it alone says what is wrong.

Memory is bounded: 16 octets for each of `keys_max` keys, and some megabytes for what is sorted and for the hashes that
are suspected. Where there are more keys, they are divided by their hashes, and log and rows are read once for each
part.

This module knows no RocksDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from scanner.storage.records import ChangeKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes: TypeAlias = NDArray[np.int64]

_FIRST: Final = -(1 << 63)
_END: Final = 1 << 63
"""Above every hash."""
_ABSENT: Final = 0
"""Stands for the row of a key that is not there."""
_SHARDS: Final = 64
"""Parts of the sorted columns. New keys copy one part at a time: it is small beside all of them."""
_PENDING_MAX: Final = 256 * 1024
"""Changes or rows that are sorted at once."""


def hashes_of(values: Sequence[bytes]) -> Hashes:
    """A hash of each value, which is good in this process alone."""
    return np.fromiter(map(hash, values), np.int64, len(values))


def among(hashes: Hashes, wanted: Hashes | None) -> NDArray[np.bool_]:
    """Of each hash, whether it is among those that are wanted: a sorted array, or None for all."""
    if wanted is None:
        return np.ones(len(hashes), np.bool_)
    return _found(wanted, hashes, np.searchsorted(wanted, hashes))


class Agreement:
    """Folds a log that is dense, and compares what it gives with the rows.

    In each pass `begin` comes first, then all changes in their order, then all rows, then `finish`.

    Args:
        keys_max: Keys that are kept in memory, >= 1.
        suspects_max: Suspected hashes that are kept, >= 1.
    """

    def __init__(self, keys_max: int, suspects_max: int) -> None:
        self._keys_max = keys_max
        self._suspects_max = suspects_max
        self._start = self._end = _FIRST
        self._shards: list[_Shard] = []
        self._bounds: list[int] = []
        self._pending: list[tuple[Hashes, Hashes, NDArray[np.uint8]]] = []
        self._pending_count = 0
        self._newest: tuple[int, int] | None = None
        """Kind and key of the change before, while it may need the one that follows."""
        self.suspected: Hashes | None = np.empty(0, np.int64)
        """Hashes of the keys that log and rows may disagree about, sorted; None: of too many to keep."""
        self.passes = 0
        """How many were begun."""

    @property
    def has_ended(self) -> bool:
        """Whether all keys were compared. If not, it takes another pass."""
        return self._end == _END

    @property
    def part(self) -> tuple[float, float]:
        """The keys that this pass compares, as it stands: from which share of all to which."""
        return (self._start - _FIRST) / (_END - _FIRST), (self._end - _FIRST) / (_END - _FIRST)

    def begin(self, *, complete: bool) -> None:
        """Begin a pass.

        Args:
            complete: The log reaches back to offset 0: what it does not name is not there.
        """
        self.passes += 1
        self._start, self._end = self._end, _END
        width = self._end - self._start
        self._bounds = [self._start + width * number // _SHARDS for number in range(1, _SHARDS)]
        self._shards = [_Shard(complete=complete) for _ in range(_SHARDS)]

    def add_changes(self, kinds: NDArray[np.uint8], keys: Hashes, rows: Hashes) -> None:
        """Add changes.

        Args:
            kinds: `ChangeKind` of each.
            keys: Hashes of their keys.
            rows: Hashes of their rows.
        """
        if self.passes == 1 and len(kinds):
            self._pair(kinds, keys)
        self._add(keys, rows, kinds)

    def add_rows(self, keys: Hashes, rows: Hashes) -> None:
        """Add rows, after all changes.

        Args:
            keys: Hashes of their keys.
            rows: Hashes of them.
        """
        if self._pending and len(self._pending[0][2]):
            self._settle()  # These are changes.
        self._add(keys, rows, np.empty(0, np.uint8))

    def finish(self) -> None:
        """End a pass: `suspected` has what is in its part."""
        self._settle()
        if self.passes == 1 and self._newest is not None and self._newest[0] == ChangeKind.UPDATE_BEFORE:
            self._suspect([np.array([self._newest[1]], np.int64)])
        self._suspect([shard.left_over() for shard in self._shards])
        self._shards = []

    def _pair(self, kinds: NDArray[np.uint8], keys: Hashes) -> None:
        """Suspect each `-U` that no `+U` of its key follows, and each `+U` that follows on no `-U`."""
        if self._newest is not None:
            kinds = np.insert(kinds, 0, self._newest[0])
            keys = np.insert(keys, 0, self._newest[1])
        is_before, is_after = kinds == ChangeKind.UPDATE_BEFORE, kinds == ChangeKind.UPDATE_AFTER
        lonely = is_before[:-1] & ~(is_after[1:] & (keys[1:] == keys[:-1]))
        self._suspect([keys[:-1][lonely], keys[1:][is_after[1:] & ~is_before[:-1]]])
        if self._newest is None and is_after[0]:
            self._suspect([keys[:1]])
        self._newest = int(kinds[-1]), int(keys[-1])

    def _add(self, keys: Hashes, rows: Hashes, kinds: NDArray[np.uint8]) -> None:
        rows = np.where(rows == _ABSENT, _ABSENT + 1, rows)
        if (self._start, self._end) != (_FIRST, _END):
            inside = (keys >= self._start) & (keys <= self._end - 1)
            keys, rows, kinds = keys[inside], rows[inside], kinds[inside] if len(kinds) else kinds
        if len(keys):
            self._pending.append((keys, rows, kinds))
            self._pending_count += len(keys)
            if self._pending_count >= _PENDING_MAX:
                self._settle()

    def _settle(self) -> None:
        """Fold the changes, or compare the rows, that are pending."""
        if not self._pending:
            return
        keys, rows, kinds = (np.concatenate(each) for each in zip(*self._pending, strict=True))
        self._pending, self._pending_count = [], 0
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        cuts = [0, *np.searchsorted(keys, self._bounds).tolist(), len(keys)]
        parts = [
            (shard, slice(start, end))
            for shard, start, end in zip(self._shards, cuts[:-1], cuts[1:], strict=True)
            if start < end
        ]
        if not len(kinds):
            self._suspect([shard.compare(keys[part], rows[part]) for shard, part in parts])
            return
        kinds = kinds[order]
        left = np.where(kinds == ChangeKind.DELETE, _ABSENT, rows)
        needed = np.where(kinds == ChangeKind.INSERT, _ABSENT, rows)
        # The `-U` before a `+U` is compared.
        is_bound = kinds != ChangeKind.UPDATE_AFTER
        self._suspect(
            [shard.fold(keys[part], left[part], needed[part], is_bound[part]) for shard, part in parts]
        )
        # A part of one hash may be too large all the same; that is no reason not to end.
        while sum(map(len, self._shards)) > self._keys_max and self._end - self._start > 1:
            self._end = (self._start + self._end) // 2
            for shard in self._shards:
                shard.drop_from(self._end)

    def _suspect(self, found: Sequence[Hashes]) -> None:
        if self.suspected is None or not any(map(len, found)):
            return
        suspected = np.unique(np.concatenate([self.suspected, *found]))
        self.suspected = suspected if len(suspected) <= self._suspects_max else None


class _Shard:
    """Some keys, and the row that the log leaves each with, so far; both as hashes, sorted by the keys'."""

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete
        self._keys = np.empty(0, np.int64)
        self._rows = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def fold(self, keys: Hashes, left: Hashes, needed: Hashes, is_bound: NDArray[np.bool_]) -> Hashes:
        """Apply changes, sorted by key and then in their order; returns the keys for which one does not follow.

        Args:
            keys: Of the changes.
            left: The row that each leaves.
            needed: The row that has to be there before.
            is_bound: Whether it has to.
        """
        is_first = np.append(True, keys[1:] != keys[:-1])
        is_last = np.append(is_first[1:], True)
        firsts = keys[is_first]
        places = np.searchsorted(self._keys, firsts)
        is_known = _found(self._keys, firsts, places)
        before = np.append(_ABSENT, left[:-1])
        before[is_first] = _ABSENT
        before[np.flatnonzero(is_first)[is_known]] = self._rows[places[is_known]]
        follows = before == needed
        if not self._complete:
            follows[np.flatnonzero(is_first)[~is_known]] = True
        self._rows[places[is_known]] = left[is_last][is_known]
        self._rows = np.insert(self._rows, places[~is_known], left[is_last][~is_known])
        self._keys = np.insert(self._keys, places[~is_known], firsts[~is_known])
        does_not: Hashes = keys[is_bound & ~follows]
        return does_not

    def compare(self, keys: Hashes, rows: Hashes) -> Hashes:
        """Compare rows, sorted by key, with what the log leaves; returns the keys of those that differ.

        Of two rows of one hash the log may have left one alone.
        """
        places = np.searchsorted(self._keys, keys)
        is_known = _found(self._keys, keys, places)
        expected = np.full(len(keys), _ABSENT, np.int64) if self._complete else rows.copy()
        expected[is_known] = self._rows[places[is_known]]
        # What is left in the end has no row.
        self._rows[places[is_known]] = _ABSENT
        is_second = np.append(False, keys[1:] == keys[:-1])
        differing: Hashes = keys[(expected != rows) | is_second]
        return differing

    def left_over(self) -> Hashes:
        """Keys that the log leaves with a row, and for which none came."""
        left: Hashes = self._keys[self._rows != _ABSENT]
        return left

    def drop_from(self, end: int) -> None:
        """Forget the keys from a hash on."""
        count = int(np.searchsorted(self._keys, end))
        if count < len(self._keys):
            self._keys, self._rows = self._keys[:count].copy(), self._rows[:count].copy()


def _found(ordered: Hashes, wanted: Hashes, places: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each of what is wanted is in a sorted array, of which `searchsorted` gave the places."""
    if not len(ordered):
        return np.zeros(len(wanted), np.bool_)
    found: NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == wanted
    return found
