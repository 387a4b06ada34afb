"""What was changed since an image: its delta, shared by all scans of it.

It is read from the changelog as they ask, and soon after each commit while the image is in use.

Invariants:

1. The delta knows, of every key, every change in [B, E), where B is the image's offset: so it tells the state as of any
   S in between. (What undoes changes, `scanner.sources.overlay`, goes the other way, and needs a key's first change.)
2. It is bounded in bytes. Past that the image is of no use.
3. A commit costs it the commit's own changes, and a scan the keys that it comes to, however many there are of either:
   nothing is sorted or built anew. A step does a few milliseconds of work.

This module knows no tasks and no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final, TypeAlias

from scanner.data.keys import successor
from scanner.errors import DataCorrupted, OffsetOutOfRange
from scanner.sources.sorted_keys import SortedKeys
from scanner.sources.sorted_runs import Entries
from scanner.storage.images.format import ImageDamaged
from scanner.storage.interface import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from scanner.data.keys import KeyRange
    from scanner.storage.interface import Bucket, ChangeBlock

_STEP_CHANGES: Final = 2048
_STEP_BYTES: Final = 1024 * 1024
_ENTRY_BYTES: Final = 300
"""Of a change, about, beside its key and row."""
_TAKE_KEYS: Final = 4096
"""Keys that are looked up at once: a millisecond or two."""
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
        self._keys = SortedKeys()
        """Those of `_changes`."""
        self._start = start
        self._block_of: Callable[[bytes], int] | None = None
        self._touched: dict[int, int] = {}
        """Of each block of the image that changes touch, by number: the offset behind the last of them."""
        self._identity = object()
        """Of the states of its blocks: another delta may have read other changes at the same offsets."""
        self.end = start
        """E: it has the changes with a smaller offset."""
        self.memory_bytes = 0
        """Estimate of what it takes."""

    def as_of(self, log_offset: int, key_range: KeyRange) -> DeltaChanges:
        """What differs from the image as of an offset, at or above the image's, in a key range; for one scan."""
        return DeltaChanges(self, log_offset, key_range)

    def count_blocks(self, block_of: Callable[[bytes], int]) -> None:
        """Keep count of the blocks of the image that changes touch. Called again it does nothing.

        Args:
            block_of: Tells in which block a key is, or would be.
        """
        if self._block_of is None:
            self._block_of = block_of
            self._touch(block_of, {key: changes[-1][0] for key, changes in self._changes.items()})

    def blocks_touched(self, log_offset: int) -> int:
        """How many blocks of the image the changes up to an offset touch, about.

        Those that were not read yet are taken to be spread as the others are; where none was read, they touch none.
        """
        known = self.end - self._start
        if log_offset <= self.end or not known:
            return len(self._touched)
        return len(self._touched) * (log_offset - self._start) // known

    def state_of(self, number: int, log_offset: int) -> Hashable | None:
        """Names what a block of the image is as of an offset, at most `end`; see `DeltaChanges.state_of`.

        It is the same as of all offsets behind the last change that touches it.
        """
        touched = self._touched.get(number)
        return None if touched is None or touched > log_offset else (self._identity, touched)

    def extend(self, until: int) -> None:
        """Read some more changes, up to `until` at most.

        Raises:
            ImageDamaged: The changelog does not have them any more, or they take more than they may.
            ScannerError: Storage failed.
        """
        self.add(self.read(until))

    def read(self, until: int) -> ChangeBlock:
        """Read some changes that it does not have yet, up to `until` at most, for `add`; in any thread.

        Returns:
            The changes; none if it has them all.

        Raises:
            ImageDamaged: The changelog does not have them any more.
            ScannerError: Storage failed.
        """
        start = self.end
        stop = max(start, min(until, start + _STEP_CHANGES))  # Scans may have read beyond `until` meanwhile.
        try:
            block = self._bucket.read_change_block(start, stop, _STEP_BYTES)
        except (OffsetOutOfRange, DataCorrupted) as error:
            if self._bucket.log_start > start:  # dropped while they were read, they look damaged
                raise ImageDamaged(
                    f"the changelog was cut behind it, and changes from {start} on are gone"
                ) from error
            raise
        return block

    def add(self, block: ChangeBlock, changes_max: int = _STEP_CHANGES) -> None:
        """Take over changes that were read: those of them that it does not have, and at most so many.

        Args:
            block: What `read` has given; scans may have extended the delta since.
            changes_max: Above 0. A thousand take a millisecond or two.

        Raises:
            ImageDamaged: They take more than they may.
        """
        first = self.end - block.offset
        self._add(block, first, min(len(block), first + changes_max))
        if self.memory_bytes > self._bytes_max:
            raise ImageDamaged(
                f"the changes since take more memory than they may (image_delta_bytes_max, {self._bytes_max});"
                " make it again"
            )

    def _add(self, block: ChangeBlock, first: int, stop: int) -> None:
        rows, kinds = block.rows[first:stop], block.kinds[first:stop]
        put = (kinds == ChangeKind.INSERT) | (kinds == ChangeKind.UPDATE_AFTER)
        latest: dict[bytes, int] = {}
        for offset, (key, row, present) in enumerate(
            zip(block.keys_of(rows), rows, put.tolist(), strict=True), block.offset + first
        ):
            changes = self._changes.get(key)
            if changes is None:
                changes = self._changes[key] = []
                self._keys.add(key)
                self.memory_bytes += len(key)
            changes.append((offset, row if present else None))
            self.memory_bytes += _ENTRY_BYTES + (len(row) if present else 0)
            latest[key] = offset
        if self._block_of is not None:
            self._touch(self._block_of, latest)
        self.end += len(rows)

    def _touch(self, block_of: Callable[[bytes], int], latest: dict[bytes, int]) -> None:
        """Take note of the last change of some keys."""
        touched = self._touched
        for key, offset in latest.items():
            number = block_of(key)
            if touched.get(number, 0) <= offset:
                touched[number] = offset + 1

    def keys(self, start: bytes, count: int) -> list[bytes]:
        """The first `count` keys that were changed, from `start` on; fewer: there are no more."""
        return self._keys.first(start, count)

    def entries(self, keys: list[bytes], log_offset: int) -> Entries:
        """What changed keys have as of an offset, at most `end`; one that has what the image has is left out."""
        changes = self._changes
        if self.end == log_offset:  # It is the newest change of each, as a rule.
            return Entries(keys, [changes[key][-1][1] for key in keys])
        entries = Entries([], [])
        for key in keys:
            of_key = changes[key]
            count = len(of_key) if of_key[-1][0] < log_offset else bisect_left(of_key, (log_offset,))
            if count:
                entries.keys.append(key)
                entries.rows.append(of_key[count - 1][1])
        return entries


class DeltaChanges:
    """What differs from an image as of one offset, for one scan. See `scanner.sources.image.Changes`.

    Made by `ImageDelta.as_of`.

    Args:
        delta: Where the changes come from.
        log_offset: S.
        key_range: What of it.
    """

    def __init__(self, delta: ImageDelta, log_offset: int, key_range: KeyRange) -> None:
        self._delta = delta
        self.log_offset = log_offset
        self._next, self._end = key_range
        """The smallest key that was not taken, and the one behind the last."""

    @property
    def ready(self) -> bool:
        """See `Changes`."""
        return self._delta.end >= self.log_offset

    @property
    def next_key(self) -> bytes | None:
        """See `Changes`; a key of later changes, too."""
        return next(iter(self._delta.keys(self._next, 1)), None)

    def step(self) -> None:
        """See `Changes`.

        Raises:
            ImageDamaged: The changes cannot be had.
            ScannerError: Storage failed.
        """
        self._delta.extend(self.log_offset)

    def take(self, last_key: bytes | None, count: int, bytes_max: int) -> tuple[Entries, bytes | None]:
        """See `Changes`."""
        keys = self._delta.keys(self._next, min(count, _TAKE_KEYS))
        stop = bisect_left(keys, self._end) if self._end else len(keys)
        if last_key is not None:
            stop = min(stop, bisect_right(keys, last_key))
        all_there = stop < len(keys) or len(keys) < min(count, _TAKE_KEYS)
        entries = self._delta.entries(keys[:stop], self.log_offset)
        fitting = _fitting(entries.rows, bytes_max)
        if fitting < len(entries.keys):
            entries = Entries(entries.keys[:fitting], entries.rows[:fitting])
            reached: bytes | None = entries.keys[-1]
        else:
            reached = last_key if all_there else keys[stop - 1]
        self._next = max(self._next, successor(reached or keys[-1])) if keys else self._next
        return entries, reached

    def state_of(self, block: int) -> Hashable | None:
        """Names what a block of the image is with these changes: the same for all scans that get the same name.

        Args:
            block: Its number. All its keys are in the scan's range.

        Returns:
            The name; None: nothing changes the block, or it has changed again since.
        """
        return self._delta.state_of(block, self.log_offset)

    def pass_over(self, last_key: bytes) -> None:
        """Remove the entries up to and with a key: those of a block that was got merged with them."""
        self._next = max(self._next, successor(last_key))

    def close(self) -> None:
        """See `Changes`; the delta is shared."""


def _fitting(rows: list[bytes | None], bytes_max: int) -> int:
    """How many of the first rows take at most `bytes_max`; one at least, if there is one."""
    if sum(map(len, filter(None, rows))) <= bytes_max:
        return len(rows)
    sizes = accumulate(0 if row is None else len(row) for row in rows)
    return max(1, sum(1 for _ in takewhile(lambda size: size <= bytes_max, sizes)))
