"""What was changed since an image: its delta, shared by all scans of it, and read from the changelog as they ask.

Invariants:

1. The delta knows, of every key, every change in [B, E), where B is the image's offset: so it tells the state as of any
   S in between. (What undoes changes, `scanner.sources.overlay`, goes the other way, and needs a key's first change.)
2. It is bounded in bytes. Past that the image is of no use.
3. A step does a few milliseconds of work.

This module knows no tasks and no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

from scanner.errors import DataCorrupted, OffsetOutOfRange
from scanner.sources.sorted_runs import Entries
from scanner.storage.images.format import ImageDamaged
from scanner.storage.interface import ChangeKind

if TYPE_CHECKING:
    from scanner.data.keys import KeyRange
    from scanner.storage.interface import Bucket, ChangeBlock

_STEP_CHANGES: Final = 4096
_STEP_BYTES: Final = 1024 * 1024
_STEP_KEYS: Final = 8192
_ENTRY_BYTES: Final = 300
"""Of a change, about, beside its key and row."""
_Changes: TypeAlias = list[tuple[int, bytes | None]]
"""Of one key, oldest first: the offset of each change, and the row since then; None: there is none."""


class ImageDelta:
    """The changes of a bucket from the offset of its image on.

    Args:
        bucket: Whose changelog is read.
        start: B.
        bytes_max: Memory, above 0.
    """

    def __init__(self, bucket: Bucket, start: int, bytes_max: int) -> None:
        self._bucket = bucket
        self._bytes_max = bytes_max
        self._changes: dict[bytes, _Changes] = {}
        self.end = start
        """E: it has the changes with a smaller offset."""
        self.memory_bytes = 0
        """Estimate of what it takes."""
        self._view: DeltaView | None = None

    def as_of(self, log_offset: int) -> DeltaView:
        """What differs from the image as of an offset, at or above the image's; shared by all that ask for the same."""
        if self._view is None or self._view.log_offset != log_offset:
            self._view = DeltaView(self, log_offset)
        return self._view

    def extend(self, until: int) -> None:
        """Read some more changes, up to `until` at most.

        Raises:
            ImageDamaged: The changelog does not have them any more, or they take more than they may.
            ScannerError: Storage failed.
        """
        start, end = self.end, min(until, self.end + _STEP_CHANGES)
        try:
            block = self._bucket.read_change_block(start, end, _STEP_BYTES)
        except (OffsetOutOfRange, DataCorrupted) as error:
            if self._bucket.log_start > start:  # dropped while they were read, they look damaged
                raise ImageDamaged(f"the changelog has lost changes since, from {start} on") from error
            raise
        self._add(block)
        if self.memory_bytes > self._bytes_max:
            raise ImageDamaged(
                f"the changes since take more memory than they may (image_delta_bytes_max, {self._bytes_max});"
                " make it again"
            )

    def _add(self, block: ChangeBlock) -> None:
        keys = block.keys_of(block.rows)
        put = (block.kinds == ChangeKind.INSERT) | (block.kinds == ChangeKind.UPDATE_AFTER)
        for offset, (key, row, present) in enumerate(
            zip(keys, block.rows, put.tolist(), strict=True), block.offset
        ):
            changes = self._changes.setdefault(key, [])
            changes.append((offset, row if present else None))
            self.memory_bytes += (
                _ENTRY_BYTES + (len(row) if present else 0) + (len(key) if len(changes) == 1 else 0)
            )
        self.end += len(block)

    def keys(self) -> list[bytes]:
        """All keys that were changed, ascending."""
        return sorted(self._changes)

    def below(self, keys: list[bytes], log_offset: int) -> Entries:
        """What some keys have as of an offset, of those that were changed before it.

        Args:
            keys: Ascending.
            log_offset: At most `end`.
        """
        entries = Entries([], [])
        for key in keys:
            changes = self._changes[key]
            count = bisect_left(changes, (log_offset,))
            if count:
                entries.keys.append(key)
                entries.rows.append(changes[count - 1][1])
        return entries


class DeltaView:
    """What differs from an image as of one offset. Made by `ImageDelta.as_of`.

    Args:
        delta: Where the changes come from.
        log_offset: S.
    """

    def __init__(self, delta: ImageDelta, log_offset: int) -> None:
        self._delta = delta
        self.log_offset = log_offset
        self._left: list[bytes] | None = None
        """Keys that were not looked up yet; None: they are not known yet."""
        self._entries = Entries([], [])

    @property
    def ready(self) -> bool:
        """Whether it can be read."""
        return self._left == [] and self._delta.end >= self.log_offset

    def step(self) -> None:
        """Do a piece of what makes it ready.

        Raises:
            ImageDamaged: The changes cannot be had.
            ScannerError: Storage failed.
        """
        if self._delta.end < self.log_offset:
            self._delta.extend(self.log_offset)
        elif self._left is None:
            # What is added from now on has offsets behind this one.
            self._left = self._delta.keys()
        else:
            some, self._left = self._left[:_STEP_KEYS], self._left[_STEP_KEYS:]
            found = self._delta.below(some, self.log_offset)
            self._entries.keys.extend(found.keys)
            self._entries.rows.extend(found.rows)

    def bounds(self, key_range: KeyRange) -> tuple[int, int]:
        """Which entries are in a key range: their numbers, [start, end)."""
        keys = self._entries.keys
        start = bisect_left(keys, key_range.start)
        return start, max(start, bisect_left(keys, key_range.end) if key_range.end else len(keys))

    def up_to(self, start: int, end: int, last_key: bytes) -> int:
        """The number behind the last of the entries [start, end) whose key is not behind `last_key`."""
        return bisect_right(self._entries.keys, last_key, start, end)

    def entries(self, start: int, end: int) -> Entries:
        """The entries [start, end): keys, ascending, and the row of each, or None where there is none."""
        return Entries(self._entries.keys[start:end], self._entries.rows[start:end])
