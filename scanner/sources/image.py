"""A scan of an image: rows that are Arrow already, block by block, with what differs from them at the scan's offset.

Invariants:

1. It yields what a scan of the row store as of the same offset yields: rows, order, and the stored bytes' length and
   digest up to every row. So positions, and the tokens made of them, are those of the row store.
2. What differs at the offset that is shown is laid over it; a block without a change in it goes out as it lies.
3. A block that is damaged, or cannot be read, is not used. From its first row on the row store is read; so it is where
   the changes cannot be had.
4. A block is read whole, whatever is asked for: 2 MiB at most as a rule; one that is in the cache is not read again.
   A read does a few milliseconds of work: it reads one block at most, and merges a bounded number of changes. One that
   has no rows to show for it is unfinished.
5. A block of which no row passes the filter, by its statistics, and in which nothing was changed, is not read. Its
   rows are yielded all the same, to be counted: position and digest are those of a scan that reads them.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from scanner.data.keys import KeyRange, successor
from scanner.data.row_block import RowBlock
from scanner.errors import DataCorrupted, StoreClosed
from scanner.sources.block_cache import BlockCache, DecodedBlock
from scanner.sources.image_delta import DeltaChanges
from scanner.sources.image_rows import BlockKeys, ImageRows
from scanner.sources.merged_rows import merged
from scanner.sources.skipped_rows import SkippedRows
from scanner.sources.sorted_runs import Entries
from scanner.storage.images.format import ImageDamaged
from scanner.wire.arrow_ipc import decode_batch

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from scanner.data.keys import KeyCodec
    from scanner.data.rows import RowCodec
    from scanner.sources.interface import ReadRows, StoredRows
    from scanner.sources.merged_rows import MergedRows
    from scanner.storage.images.format import BlockPlace
    from scanner.storage.images.reader import Image, ImageBlock
    from scanner.storage.interface import BucketScan

_MERGE_ENTRIES: Final = 4096
"""Changes that are merged at once: a few milliseconds."""

_SKIP_BLOCKS: Final = 64
"""Blocks that are passed over in one read, at most: some hundred microseconds."""


class RowsRead:
    """What a read yields. See `scanner.sources.interface.ReadRows`.

    Args:
        rows: None: there are none.
        unfinished: That is not the end.
    """

    __slots__ = ("_rows", "last", "unfinished")

    def __init__(self, rows: StoredRows | None = None, *, unfinished: bool = False) -> None:
        self._rows = rows
        self.unfinished = unfinished
        self.last = False
        """Nothing follows; see `ReadRows`."""

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    @property
    def block(self) -> StoredRows:
        """The rows."""
        assert self._rows is not None
        return self._rows


_UNFINISHED: Final = RowsRead(unfinished=True)


class Changes(Protocol):
    """What differs between an image and the state that a scan of it shows, in the scan's key range."""

    @property
    def log_offset(self) -> int:
        """Of that state."""

    @property
    def ready(self) -> bool:
        """Whether it can be taken from."""

    @property
    def next_key(self) -> bytes | None:
        """Nothing is left to be taken in front of this key; None: nothing at all. Once it is ready."""

    def step(self) -> None:
        """Do a piece of what makes it ready, a few milliseconds long.

        Raises:
            ImageDamaged: The changes cannot be had.
            ScannerError: Storage failed, or that state can no longer be had.
        """

    def take(self, last_key: bytes | None, count: int, bytes_max: int) -> tuple[Entries, bytes | None]:
        """Remove some of the next entries, in a few milliseconds.

        Args:
            last_key: None is taken that has a greater key; None: any may be.
            count: About how many at most, above 0.
            bytes_max: About how many bytes of rows at most; one row may be larger.

        Returns:
            Entries, and a bound: no entry up to and with it is left. The bound is `last_key`, or less if there may be
            more up to there; None: no entry is left at all.
        """

    def close(self) -> None:
        """Free what only this scan uses. Idempotent."""


@dataclass(slots=True)
class _OpenBlock:
    """A block that is being given: with changes, piece by piece."""

    decoded: DecodedBlock
    start: int
    """The first row that was not given."""
    stop: int
    """The row behind the last one in the range."""
    state: Hashable | None
    """Of what is left, if that is the whole block with its changes; None: not known, or it is less than that."""

    def cut(self, stop: int) -> ImageRows:
        """The next rows, in front of `stop`; they count as given."""
        start, self.start = self.start, stop
        return ImageRows(self.decoded.block, self.decoded.batch, start, stop)


class ImageScan:
    """One pass over a key range of an image. See `scanner.sources.interface.RowScan`.

    Args:
        image: Held until this is closed or has ended.
        key_range: What of it.
        key_codec: Of the table.
        row_codec: Of the table as this scan sees it.
        from_rows: Opens the row store as of the same offset, from a key on, when the image fails.
        on_damage: Told when it does; called once.
        changes: What differs from the image at the offset that is shown, in this range; closed with this scan. None:
            the image is of that offset.
        wanted: Of each block of the image, whether a row of it may pass the filter; None: all are to be read.
        cache: Has blocks that were read before; None: there is none.
        all_columns: Whether all columns of the table are read. A scan of a few columns merges only these, and caches
            nothing.
    """

    def __init__(
        self,
        image: Image,
        key_range: KeyRange,
        key_codec: KeyCodec,
        row_codec: RowCodec,
        from_rows: Callable[[KeyRange], BucketScan],
        on_damage: Callable[[ImageDamaged], None],
        changes: Changes | None = None,
        wanted: NDArray[np.bool_] | None = None,
        cache: BlockCache | None = None,
        *,
        all_columns: bool = True,
    ) -> None:
        self._image: Image | None = image
        image.hold()
        self._schema = image.header.schema
        self._range = key_range
        self._key_codec = key_codec
        self._row_codec = row_codec
        self._from_rows = from_rows
        self._on_damage = on_damage
        self._first = self._next = image.block_of(key_range.start)
        self._changes = changes
        self._shared = changes if isinstance(changes, DeltaChanges) else None
        """Those changes, where other scans see the same."""
        self._wanted = wanted
        self._cache = BlockCache(0) if cache is None else cache
        self._all_columns = all_columns
        self.blocks_read = 0
        """Blocks of the image that were read from its file."""
        self.blocks_cached = 0
        """Blocks that were in the cache."""
        self.blocks_skipped = 0
        """Blocks that were not, since no row of them passes the filter."""
        self._open: _OpenBlock | None = None
        """The block that was read last, as long as there is more of it."""
        self._fetched: ImageBlock | ImageDamaged | None = None
        """What `fetch` has found, for the next read."""
        self.fetch: Callable[[], None] | None = None
        """Reads what the next read needs, and blocks on the disk: meant for a thread. None: nothing need be waited for.
        A read without it does it by itself."""
        self._rest: KeyRange | None = None
        """What is left for the row store, where the image has failed."""
        self._rows: BucketScan | None = None
        """The row store, open."""
        self._closed = False
        self.log_offset = image.header.log_offset if changes is None else changes.log_offset
        """The scan shows the changes with a smaller offset, and no other."""

    def read(self, rows_max: int, bytes_max: int) -> ReadRows:
        """Read the next block, whatever its size; where something was changed, a piece of it, no larger than asked for.

        Raises:
            ScannerError: The image failed, and so did the row store; or the state can no longer be had.
            StoreClosed: This was closed.
        """
        if self._closed:
            raise StoreClosed(f"this scan of an image as of {self.log_offset} was closed")
        if self._rest is None:
            try:
                read = self._read(rows_max, bytes_max)
                if len(read):
                    read.last = self._used_up
                return read
            except ImageDamaged as error:
                self._give_up(error)
        if self._rows is None:
            assert self._rest is not None
            self._rows = self._from_rows(self._rest)
        return self._rows.read(rows_max, bytes_max)

    def close(self) -> None:
        """Release image and row store. Idempotent."""
        self._closed = True
        self._release()
        if self._changes is not None:
            self._changes.close()
        if self._rows is not None:
            self._rows.close()

    @property
    def _used_up(self) -> bool:
        """Whether the end of the range was reached, and no change is left; the changes are ready."""
        image = self._image
        if self._open is not None or not (
            image is None or self._next == len(image) or self._is_past_end(image)
        ):
            return False
        return self._changes is None or self._changes.next_key is None

    def _read(self, rows_max: int, bytes_max: int) -> RowsRead:
        if self._changes is not None and not self._changes.ready:
            self._changes.step()
            return _UNFINISHED
        if self._open is None and self._image is not None:
            skipped = self._skipped(self._image)
            if skipped:
                return RowsRead(SkippedRows(skipped))
            merged_before = self._merged_before(self._image)
            if merged_before is not None:
                return RowsRead(merged_before)
            self._open = self._next_block(self._image)
            if self._open is None and self.fetch is not None:
                return _UNFINISHED
        entries, reached = Entries([], []), None if self._open is None else self._open.decoded.block.last_key
        if self._changes is not None:
            entries, reached = self._changes.take(reached, min(rows_max, _MERGE_ENTRIES), bytes_max)
        if self._open is None:
            return _added(entries, more=reached is not None)
        return self._of_block(self._open, entries, reached)

    def _skipped(self, image: Image) -> list[BlockPlace]:
        """The next blocks, as far as none of them need be read; they count as given."""
        stop = self._next
        if self._wanted is not None:
            changed = None if self._changes is None else self._changes.next_key
            end = min(len(image), stop + _SKIP_BLOCKS)
            while stop < end and not self._wanted[stop] and self._is_whole(image, stop):
                if changed is not None and changed <= image.last_key(stop):
                    break
                stop += 1
        skipped = [image.place(number) for number in range(self._next, stop)]
        self.blocks_skipped += len(skipped)
        self._next = stop
        return skipped

    def _is_whole(self, image: Image, number: int) -> bool:
        """Whether all rows of a block are in the range, as far as that is known without reading it."""
        low, high = self._range
        if high and image.last_key(number) >= high:
            return False
        return (
            number > self._first or not low or (number > 0 and low <= successor(image.last_key(number - 1)))
        )

    def _state_of_next(self, image: Image) -> Hashable | None:
        """Names the next block with its changes, if all of it is in the range; None: it has no name."""
        number = self._next
        if self._shared is None or number == len(image) or not self._is_whole(image, number):
            return None
        return self._shared.state_of(number)

    def _merged_before(self, image: Image) -> ImageRows | None:
        """The next block, if a scan that shows the same of it has merged it with its changes; it counts as given."""
        state = self._state_of_next(image) if self.fetch is None else None
        decoded = None if state is None else self._cache.get(image, self._next, state)
        if decoded is None or self._shared is None:
            return None
        self._shared.pass_over(image.last_key(self._next))
        self.blocks_cached += 1
        self._next += 1
        return _all_of(decoded)

    def _next_block(self, image: Image) -> _OpenBlock | None:
        """The next block; None: there are none left, and the image is released, or it has to be fetched first."""
        if self._next == len(image) or self._is_past_end(image):
            self._release()
            return None
        decoded = self._cache.get(image, self._next) if self.fetch is None else None
        if decoded is None:
            decoded = self._read_block(image)
            if decoded is None:
                return None
            self._cache.put(image, self._next, decoded)
            self.blocks_read += 1
        else:
            self.blocks_cached += 1
        start, stop = self._inside(decoded, first=self._next == self._first)
        state = self._state_of_next(image)
        self._next += 1
        return _OpenBlock(decoded, start, stop, state)

    def _read_block(self, image: Image) -> DecodedBlock | None:
        """Read the next block from the file; None: it has to be fetched first."""
        if self.fetch is not None and self._fetched is None:
            self.fetch()
        found, self.fetch, self._fetched = self._fetched, None, None
        if isinstance(found, ImageDamaged):
            raise found
        block = found or image.read_block(self._next)
        if block is None:
            self.fetch = functools.partial(self._fetch, image, self._next, self._wanted_stop())
            return None
        batch = self._decoded(block)
        return DecodedBlock(block, batch, BlockKeys(batch, self._key_codec))

    def _wanted_stop(self) -> int | None:
        """Number of the first block behind the next one that need not be read; None: not known."""
        if self._wanted is None:
            return None
        behind = self._wanted[self._next + 1 :]
        return self._next + 1 + (len(behind) if behind.all() else int(behind.argmin()))

    def _fetch(self, image: Image, number: int, stop: int | None) -> None:
        # The scan may be closed meanwhile, and the file with it; then nobody takes what is found.
        try:
            self._fetched = image.fetch(number, stop)
        except ImageDamaged as error:
            self._fetched = error

    def _of_block(self, part: _OpenBlock, entries: Entries, reached: bytes | None) -> RowsRead:
        """The rows of a block up to a key, with the changes up to there."""
        whole, keys = reached == part.decoded.block.last_key, part.decoded.keys
        if whole:
            self._open = None
        if not entries.keys:
            # What was looked up changed nothing, so the block is not cut there.
            return RowsRead(part.cut(part.stop)) if whole and part.start < part.stop else _UNFINISHED
        start, stop = part.start, part.stop
        places, found = keys.find(entries.keys)
        if not whole:
            assert reached is not None
            (place,), (is_there,) = keys.find([reached])
            stop = place + is_there
        rows = merged(part.cut(stop), [place - start for place in places], found, entries)
        if rows is None:
            return _UNFINISHED
        if whole:
            return RowsRead(self._kept(part, rows))
        # Also where no row of the block is in this piece: rows that were added in front of its first one are.
        part.state = None
        return RowsRead(rows)

    def _kept(self, part: _OpenBlock, rows: MergedRows) -> StoredRows:
        """All rows of a block with its changes; kept for scans that come, if one has asked for them before."""
        image, number = self._image, self._next - 1
        assert image is not None  # It is held until the block behind its last one is asked for.
        size_bytes = part.decoded.size_bytes + rows.changed_bytes
        if (
            part.state is None
            or not self._all_columns
            or not self._cache.wants(image, number, size_bytes, part.state)
        ):
            return rows
        block = rows.as_block(self._row_codec, self._key_codec)
        batch = decode_batch(block.payload, self._row_codec.schema)
        decoded = DecodedBlock(block, batch, BlockKeys(batch, self._key_codec))
        self._cache.put(image, number, decoded, part.state)
        return _all_of(decoded)

    def _decoded(self, block: ImageBlock) -> pa.RecordBatch:
        try:
            batch = decode_batch(block.payload, self._schema)
        except DataCorrupted as error:
            raise ImageDamaged(error.message) from error
        if batch.num_rows != len(block):
            raise ImageDamaged(f"a block has {batch.num_rows} rows, and digests of {len(block)}")
        return batch

    def _is_past_end(self, image: Image) -> bool:
        """Whether the block in front of the next one reaches to the end of the range."""
        end = self._range.end
        if not end:
            return False
        return end <= self._range.start or (
            self._next > 0 and successor(image.last_key(self._next - 1)) >= end
        )

    def _inside(self, decoded: DecodedBlock, *, first: bool) -> tuple[int, int]:
        """Which rows of a block are in the range."""
        low, high = self._range
        start, stop = 0, len(decoded.block)
        if first and low:
            ((start,), _) = decoded.keys.find([low])
        if high and decoded.block.last_key >= high:
            ((stop,), _) = decoded.keys.find([high])
        return start, max(start, stop)

    def _give_up(self, error: ImageDamaged) -> None:
        """Read the rest from the row store. Blocks fail as a whole, so it begins behind the last one that did not."""
        assert self._image is not None
        start = self._range.start
        if self._next > self._first:
            start = max(start, successor(self._image.last_key(self._next - 1)))
        self._rest = KeyRange(start, self._range.end)
        self._release()
        self._on_damage(error)

    def _release(self) -> None:
        """Give up the image, and what is read of it."""
        self.fetch = self._fetched = self._open = None
        if self._image is not None:
            image, self._image = self._image, None
            image.release()


def _all_of(decoded: DecodedBlock) -> ImageRows:
    return ImageRows(decoded.block, decoded.batch, 0, len(decoded.block))


def _added(entries: Entries, *, more: bool) -> RowsRead:
    """Rows that were added behind the last block."""
    rows = [row for row in entries.rows if row is not None]
    return RowsRead(RowBlock.join(rows) if rows else None, unfinished=more)
