"""What a commit writes, worked out before it may write: the changes of each request, and what becomes of each key.

The before-image of every key that a request touches is read first, in slices, so that a request whose entry would be
too
large is refused before it takes more memory than an entry may.

This module knows no RocksDB: it is given a function that reads rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from scanner.errors import ArgumentInvalid
from scanner.storage.records import ENTRY_BYTES_MAX, ChangeKind, Mutation

ReadRows = Callable[[list[bytes]], Sequence[bytes | None]]
"""Keys to their stored rows; None for a key that is absent."""

_SLICE_KEYS_MIN: Final = 64
_SLICE_KEYS_MAX: Final = 4096
_SLICE_GROWTH: Final = 4

_INSERT, _DELETE = int(ChangeKind.INSERT), int(ChangeKind.DELETE)
_BEFORE, _AFTER = int(ChangeKind.UPDATE_BEFORE), int(ChangeKind.UPDATE_AFTER)


@dataclass(slots=True)
class GroupChanges:
    """The changes of one write request."""

    kinds: bytes | bytearray = b""
    """`ChangeKind` of each."""
    rows: list[bytes] = field(default_factory=list)
    """The row of each."""


class Planner:
    """Works out the changes of one commit, request by request.

    Args:
        read_rows: Reads rows as of the end of the log.
    """

    def __init__(self, read_rows: ReadRows) -> None:
        self._read_rows = read_rows
        self._before: dict[bytes, bytes | None] = {}
        """What each key had before the commit, as far as it was read."""
        self._now: dict[bytes, bytes | None] = {}
        """What each key that was touched has after the requests so far."""
        self._slice_keys = _SLICE_KEYS_MIN

    def add(self, group: Sequence[Mutation]) -> GroupChanges:
        """The changes of the next request; what those before it did to a key is seen.

        Raises:
            ArgumentInvalid: Its entry would hold more than it may. It changes nothing then.
        """
        self._fetch(group)
        now = self._now
        keys = [key for key, _ in group]
        rows = [row for _, row in group if row is not None]
        size = sum(map(len, rows))
        if len(rows) == len(keys) and len(set(keys)) == len(keys) and self._all_absent(keys):
            _require_size(size, group)
            now.update(zip(keys, rows, strict=True))
            return GroupChanges(bytes((_INSERT,)) * len(rows), rows)
        changes, touched = GroupChanges(bytearray()), dict[bytes, bytes | None]()
        kinds, changed = bytearray(), changes.rows
        for key, row in group:
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
        changes.kinds = kinds
        _require_size(sum(map(len, changed)), group)
        now.update(touched)
        return changes

    def outcome(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The keys that have another row than before, ascending, and that row; None: none any more."""
        before, ordered = self._before, sorted(self._now.items(), key=itemgetter(0))
        if not any(before.values()):
            return ((key, row) for key, row in ordered if row is not None)
        return ((key, row) for key, row in ordered if row != before[key])

    def _current(self, key: bytes) -> bytes | None:
        return self._now[key] if key in self._now else self._before[key]

    def _all_absent(self, keys: list[bytes]) -> bool:
        now, before = self._now, self._before
        if not now:
            return not any(map(before.__getitem__, keys))
        return all(self._current(key) is None for key in keys)

    def _fetch(self, group: Sequence[Mutation]) -> None:
        """Read the before-images of a group that are not known yet, unless they are more than an entry may hold."""
        before = self._before
        # In key order: neighbours share the blocks and the branches of the memtable that they are looked up in.
        wanted = sorted({key for key, _ in group if key not in before})
        size, at = 0, 0
        while at < len(wanted):
            part = wanted[at : at + self._slice_keys]
            rows = self._read_rows(part)
            before.update(zip(part, rows, strict=True))
            size += sum([len(row) for row in rows if row is not None])
            _require_size(size, group)
            at += len(part)
            # As many keys at once as would fit if their rows were like those before.
            fitting = ENTRY_BYTES_MAX * at // max(1, size)
            self._slice_keys = max(1, min(_SLICE_KEYS_MAX, fitting, _SLICE_GROWTH * self._slice_keys))


def _require_size(size: int, group: Sequence[Mutation]) -> None:
    if size > ENTRY_BYTES_MAX and len(group) > 1:
        raise ArgumentInvalid(
            f"a write of {len(group)} rows or keys changes at least {size} bytes of rows in one bucket, those that it"
            f" replaces or deletes included, and {ENTRY_BYTES_MAX} are allowed; write fewer rows at once",
            metadata={"write_too_large": str(len(group))},
        )
