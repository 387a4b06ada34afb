"""Whether a bucket's changelog and its rows agree: the log is folded, change by change, and compared with the rows.

Where the log reaches back to offset 0 the fold must be exactly the rows. Where it was truncated, rows that
no change touched since are taken as they are; of each other key the first change says what was there before, so that
undoing the changes and redoing them would lead through the same states.

It takes microseconds a change: of a bucket it is given what `scanner.storage.rocksdb.agreement` suspects.

Memory is bounded: of each key 16 octets of its row's hash are kept, of `keys_max` keys at most. Where there are more,
the keys are divided by their checksums, and log and rows are read once for each part.

This module knows no RocksDB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from scanner.data.digest import checksum
from scanner.storage.records import ChangeKind

KEYS_MAX: Final = 1_000_000
"""Keys that are compared at once: some 200 MB."""
CONTRADICTIONS_MAX: Final = 1000
"""More are not counted."""
_END: Final = 1 << 32
"""Above every checksum."""
_ABSENT: Final = b""
"""Stands for the row of a key that is not there."""
_BEFORE: Final = frozenset({ChangeKind.UPDATE_BEFORE, ChangeKind.DELETE})

Keyed = tuple[bytes, bytes]
"""Key and row."""


@dataclass(slots=True)
class Disagreements:
    """Where log and rows disagree: how often, and the first key or offset of each kind."""

    contradictions: set[int] = field(default_factory=set)
    """Offsets of changes that do not follow from those before: an insert of a key that exists, an update of another
    row. `CONTRADICTIONS_MAX` at most."""
    missing: int = 0
    """Keys that the log leaves with a row, and that have none."""
    other: int = 0
    """Keys that have another row than the log leaves them with."""
    unexplained: int = 0
    """Keys that have a row and should have none."""
    first_key: bytes | None = None
    """Of the keys."""

    def __bool__(self) -> bool:
        return bool(self.contradictions or self.missing or self.other or self.unexplained)

    def note_key(self, key: bytes) -> None:
        """Remember the first key."""
        if self.first_key is None:
            self.first_key = key


def compare(
    log_start: int,
    changes: Callable[[], Iterable[tuple[int, int, bytes, bytes]]],
    rows: Callable[[], Iterable[Keyed]],
    keys_max: int = KEYS_MAX,
) -> Disagreements:
    """Fold a log that is dense, and compare what it gives with the rows.

    Args:
        log_start: The offset of the log's first change.
        changes: Reads the log, each time from its start: offset, `ChangeKind`, key and row of each change. All changes
            of a key that is not to be looked at may be missing.
        rows: Reads the rows, each time all that are to be looked at: keys are distinct.
        keys_max: Keys that are kept in memory, >= 1.
    """
    found = Disagreements()
    start = 0
    while start < _END:
        part = _Part(found, start, keys_max, complete=log_start == 0)
        for offset, kind, key, row in changes():
            part.add_change(offset, kind, key, row)
        for key, row in rows():
            part.add_row(key, row)
        part.finish()
        start = part.end
    return found


class _Part:
    """The keys whose checksums are in [start, end); `end` comes down when there are too many."""

    def __init__(self, found: Disagreements, start: int, keys_max: int, *, complete: bool) -> None:
        self._found = found
        self._start = start
        self.end = _END
        self._keys_max = keys_max
        self._complete = complete
        """The log reaches back to offset 0: what it does not name is not there."""
        self._left: dict[bytes, bytes] = {}
        """By key, the hash of the row that the log leaves, so far."""
        self._replaced: tuple[int, bytes] | None = None
        """Offset and key of the `-U` before, while the `+U` is awaited."""

    def add_change(self, offset: int, kind: int, key: bytes, row: bytes) -> None:
        replaced, self._replaced = self._replaced, None
        if replaced is not None and (kind, offset, key) != (
            ChangeKind.UPDATE_AFTER,
            replaced[0] + 1,
            replaced[1],
        ):
            self._contradicts(*replaced)
        if kind == ChangeKind.UPDATE_BEFORE:
            self._replaced = (offset, key)
        elif kind == ChangeKind.UPDATE_AFTER and (replaced is None or replaced[0] + 1 != offset):
            self._contradicts(offset, key)
        if not self._start <= checksum(key) < self.end:
            return
        if kind != ChangeKind.UPDATE_AFTER:  # The `-U` before that one was compared.
            before = self._left.get(key, _ABSENT if self._complete else None)
            if before is not None and before != (_hash(row) if kind in _BEFORE else _ABSENT):
                self._contradicts(offset, key)
        self._left[key] = _ABSENT if kind == ChangeKind.DELETE else _hash(row)
        if len(self._left) > self._keys_max:
            self._halve()

    def add_row(self, key: bytes, row: bytes) -> None:
        if not self._start <= checksum(key) < self.end:
            return
        left = self._left.pop(key, _ABSENT if self._complete else None)
        if left is None or left == _hash(row):
            return
        if left == _ABSENT:
            self._found.unexplained += 1
        else:
            self._found.other += 1
        self._found.note_key(key)

    def finish(self) -> None:
        if self._replaced is not None:
            self._contradicts(*self._replaced)
        for key, left in self._left.items():
            if left != _ABSENT:
                self._found.missing += 1
                self._found.note_key(key)

    def _contradicts(self, offset: int, key: bytes) -> None:
        if not self._start <= checksum(key) < self.end:
            return  # Counted in its own part.
        if len(self._found.contradictions) < CONTRADICTIONS_MAX:
            self._found.contradictions.add(offset)

    def _halve(self) -> None:
        # A part of one checksum may be too large all the same; that is no reason not to end.
        if self.end - self._start > 1:
            self.end = (self._start + self.end) // 2
            self._left = {key: left for key, left in self._left.items() if checksum(key) < self.end}


def _hash(row: bytes) -> bytes:
    return hashlib.blake2b(row, digest_size=16).digest()
