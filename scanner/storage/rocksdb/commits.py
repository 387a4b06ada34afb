"""What a commit writes, worked out before it may write: the changes of each request, and what becomes of each key.

Commonly no two mutations of a commit are of one key. Then all are worked out together, as columns: before-images are
read in key order, and changes and outcome are picked by index. A commit in which a key comes twice, or in which a
request is too large, is worked out mutation by mutation. Both give the same.

The before-image of every key that a request touches is read in slices, so that a request whose entry would be too
large is refused before it takes more memory than an entry may.

This module knows no RocksDB: it is given a function that reads rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.errors import ArgumentInvalid
from scanner.storage.records import ENTRY_BYTES_MAX, ChangeKind, Mutations

if TYPE_CHECKING:
    from numpy.typing import NDArray

ReadRows = Callable[[list[bytes]], Sequence[bytes | None]]
"""Keys to their stored rows; None for a key that is absent."""

_SLICE_KEYS_MIN: Final = 64
_SLICE_KEYS_MAX: Final = 4096
_SLICE_GROWTH: Final = 4
COLUMNS_ROWS_MIN: Final = 128
"""A commit of fewer mutations is worked out one by one: the fixed cost of columns is more than that."""
_COLUMNS_BYTES_MAX: Final = ENTRY_BYTES_MAX
"""Of the keys and rows of a commit, and of the rows that it replaces, if it is worked out as columns: they are copied
a few times."""

_NUMBER_BYTES: Final = 8

_INSERT, _DELETE = int(ChangeKind.INSERT), int(ChangeKind.DELETE)
_BEFORE, _AFTER = int(ChangeKind.UPDATE_BEFORE), int(ChangeKind.UPDATE_AFTER)


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The changes of one write request."""

    kinds: NDArray[np.uint8]
    """`ChangeKind` of each."""
    rows: pa.BinaryArray
    """The row of each."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a commit writes."""

    groups: list[GroupChanges | ArgumentInvalid]
    """The changes of each request, or why it is refused: it changes nothing then."""
    keys: list[bytes]
    """The keys that have another row than before, ascending."""
    rows: list[bytes | None]
    """The row of each from now on; None: it has none any more."""


def plan_commit(groups: Sequence[Mutations], read_rows: ReadRows) -> CommitPlan:
    """Work out a commit.

    Args:
        groups: The mutations of each request; a later one sees what those before it do.
        read_rows: Reads rows as of the end of the log.
    """
    return _plan_together(groups, _BeforeImages(read_rows)) or _plan_in_turn(groups, _BeforeImages(read_rows))


class _BeforeImages:
    """Reads before-images in slices that follow the size of the rows."""

    def __init__(self, read_rows: ReadRows) -> None:
        self._read_rows = read_rows
        self._slice_keys = _SLICE_KEYS_MIN

    def read(self, keys: list[bytes], bytes_max: int) -> tuple[list[bytes | None], int]:
        """The rows of keys, and the octets that they take; it ends early once those are more than `bytes_max`.

        Args:
            keys: Ascending: neighbours share the blocks and the branches of the memtable that they are looked up in.
            bytes_max: Octets of rows, above 0.
        """
        found: list[bytes | None] = []
        size = 0
        while len(found) < len(keys) and size <= bytes_max:
            part = keys[len(found) : len(found) + self._slice_keys]
            rows = self._read_rows(part)
            assert len(rows) == len(part)
            found += rows
            size += sum(map(len, filter(None, rows)))
            # As many keys at once as would fit if their rows were like those before.
            fitting = ENTRY_BYTES_MAX * len(found) // max(1, size)
            self._slice_keys = max(1, min(_SLICE_KEYS_MAX, fitting, _SLICE_GROWTH * self._slice_keys))
        return found, size


def _plan_together(groups: Sequence[Mutations], images: _BeforeImages) -> CommitPlan | None:
    """Work out a commit as columns; None: a key comes twice, or it is too little or too much for that."""
    if sum(map(len, groups)) < COLUMNS_ROWS_MIN:
        return None
    if sum(group.keys.nbytes + group.rows.nbytes for group in groups) > _COLUMNS_BYTES_MAX:
        return None
    together = Mutations.concat(groups)
    order = _ascending(together.keys)
    ordered = together.take(order)
    keys = ordered.keys.to_pylist()
    if len(set(keys)) < len(keys):
        return None
    replaced = _replaced(keys, images)
    if replaced is None:
        return None
    changed = _different(ordered.rows, replaced)
    if replaced.null_count == len(replaced):
        changes = [_insertions(group.rows) for group in groups]
    else:
        replaced = replaced.take(pa.array(_inverse(order)))
        changes = _updates(groups, replaced)
    # Of a large commit every copy counts.
    del replaced, order, together
    if any(_is_too_large(group, each.rows.nbytes) for group, each in zip(groups, changes, strict=True)):
        return None
    if not changed.all():
        ordered = ordered.take(np.flatnonzero(changed))
        keys = ordered.keys.to_pylist()
    return CommitPlan(list(changes), keys, ordered.rows.to_pylist())


def _ascending(keys: pa.BinaryArray) -> NDArray[Any]:
    """Where the keys stand, from the least to the greatest.

    Keys of eight octets, such as of one column of 64 bits, are compared as numbers: a quarter of the time.
    """
    count = len(keys)
    _, offsets, octets = keys.buffers()
    starts = np.frombuffer(offsets, np.int32, count + 1, 4 * keys.offset)
    if (np.diff(starts) != _NUMBER_BYTES).any():
        return np.asarray(pc.array_sort_indices(keys).to_numpy())
    return np.frombuffer(octets, ">u8", count, starts[0]).astype(np.uint64).argsort()


def _replaced(keys: list[bytes], images: _BeforeImages) -> pa.BinaryArray | None:
    """The rows of keys as a column; None: they are too much for that."""
    rows, size = images.read(keys, _COLUMNS_BYTES_MAX)
    return pa.array(rows, pa.binary()) if size <= _COLUMNS_BYTES_MAX else None


def _insertions(rows: pa.BinaryArray) -> GroupChanges:
    """The changes of mutations whose keys are absent."""
    rows = rows.drop_null()
    return GroupChanges(np.full(len(rows), _INSERT, np.uint8), rows)


def _updates(groups: Sequence[Mutations], replaced: pa.BinaryArray) -> list[GroupChanges]:
    """The changes of mutations, by what each of them replaces."""
    start, changes = 0, []
    for group in groups:
        count = len(group)
        before = replaced.slice(start, count)
        present = before.is_valid().to_numpy(zero_copy_only=False)
        put = group.rows.is_valid().to_numpy(zero_copy_only=False)
        # Two places for each mutation: what was there, and what is there now.
        places = np.column_stack((np.arange(count), np.arange(count, 2 * count)))
        kinds = np.column_stack((np.where(put, _BEFORE, _DELETE), np.where(present, _AFTER, _INSERT)))
        taken = np.column_stack((present, put))
        rows = pa.concat_arrays([before, group.rows]).take(pa.array(places[taken]))
        changes.append(GroupChanges(kinds[taken].astype(np.uint8), rows))
        start += count
    return changes


def _inverse(order: NDArray[Any]) -> NDArray[np.int64]:
    """Where each element came to stand."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _different(rows: pa.BinaryArray, replaced: pa.BinaryArray) -> NDArray[np.bool_]:
    """Where a key has another row than before, or none any more, or one at last."""
    same = pc.fill_null(pc.equal(rows, replaced), False)
    neither = pc.and_(rows.is_null(), replaced.is_null())
    return np.asarray(pc.invert(pc.or_(same, neither)).to_numpy(zero_copy_only=False))


def _plan_in_turn(groups: Sequence[Mutations], images: _BeforeImages) -> CommitPlan:
    """Work out a commit request by request, and mutation by mutation."""
    planner = _Planner(images)
    changes: list[GroupChanges | ArgumentInvalid] = []
    for group in groups:
        try:
            changes.append(planner.add(group))
        except ArgumentInvalid as refusal:
            changes.append(refusal)
    outcome = list(planner.outcome())
    return CommitPlan(changes, [key for key, _ in outcome], [row for _, row in outcome])


class _Planner:
    """Works out the changes of one commit, request by request.

    Args:
        images: Of the end of the log.
    """

    def __init__(self, images: _BeforeImages) -> None:
        self._images = images
        self._before: dict[bytes, bytes | None] = {}
        """What each key had before the commit, as far as it was read."""
        self._now: dict[bytes, bytes | None] = {}
        """What each key that was touched has after the requests so far."""

    def add(self, group: Mutations) -> GroupChanges:
        """The changes of the next request; what those before it did to a key is seen.

        Raises:
            ArgumentInvalid: Its entry would hold more than it may. It changes nothing then.
        """
        keys = group.keys.to_pylist()
        self._fetch(keys, group)
        touched = dict[bytes, bytes | None]()
        kinds, changed = bytearray(), list[bytes]()
        for key, row in zip(keys, group.rows.to_pylist(), strict=True):
            was = touched[key] if key in touched else self._current(key)
            if row is None:
                if was is None:
                    continue
                kinds.append(_DELETE)
                changed.append(was)
            elif was is None:
                kinds.append(_INSERT)
                changed.append(row)
            else:
                kinds += bytes((_BEFORE, _AFTER))
                changed += (was, row)
            touched[key] = row
        _require_size(sum(map(len, changed)), group)
        self._now.update(touched)
        return GroupChanges(np.frombuffer(kinds, np.uint8), pa.array(changed, pa.binary()))

    def outcome(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The keys that have another row than before, ascending, and that row; None: none any more."""
        before = self._before
        ordered = sorted(self._now.items(), key=itemgetter(0))
        return ((key, row) for key, row in ordered if row != before[key])

    def _current(self, key: bytes) -> bytes | None:
        return self._now[key] if key in self._now else self._before[key]

    def _fetch(self, keys: list[bytes], group: Mutations) -> None:
        """Read the before-images of a group that are not known yet, unless they are more than an entry may hold."""
        wanted = sorted(set(keys).difference(self._before))
        rows, size = self._images.read(wanted, ENTRY_BYTES_MAX)
        self._before.update(zip(wanted, rows, strict=False))
        _require_size(size, group)


def _is_too_large(group: Mutations, size: int) -> bool:
    return size > ENTRY_BYTES_MAX and len(group) > 1


def _require_size(size: int, group: Mutations) -> None:
    if _is_too_large(group, size):
        raise ArgumentInvalid(
            f"a write of {len(group)} rows or keys changes at least {size} bytes of rows in one bucket, those that it"
            f" replaces or deletes included, and {ENTRY_BYTES_MAX} are allowed; write fewer rows at once",
            metadata={"write_too_large": str(len(group))},
        )
