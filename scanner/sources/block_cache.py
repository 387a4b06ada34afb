"""Blocks of images that scans ask for again and again, in memory: read, verified and decoded once for all of them.

A block is kept from the second time on that it is asked for; so one scan of a large image keeps nothing. Where there is
no room, a newcomer takes the place of the block that was asked for least lately, but only if that was before the
newcomer was asked for the time before (the inter-reference recency of LIRS, Jiang and Zhang 2002). So scans that go
round and round over more than fits find as many blocks as do fit, where the least recently used rule would find none.

This module knows no scans and no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.sources.image_rows import BlockKeys
    from scanner.storage.images.reader import Image, ImageBlock


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """A block of an image, as scans use it; never changed."""

    block: ImageBlock
    batch: pa.RecordBatch
    """Its rows, which lie in it."""
    keys: BlockKeys
    """Of all its rows."""

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about, once its keys were looked for."""
        return self.block.size_bytes + self.keys.size_bytes


@dataclass(slots=True)
class _Kept:
    block: DecodedBlock
    size_bytes: int
    asked_at: int
    """When it was asked for last, in questions."""


@dataclass(slots=True)
class _Asked:
    """What was asked of one image."""

    last: dict[int, int] = field(default_factory=dict)
    """Of blocks that are not kept, by number: when they were asked for last, in questions."""
    before: dict[int, int] = field(default_factory=dict)
    """When they were asked for before that."""
    kept: set[int] = field(default_factory=set)
    """Numbers of those that are kept."""


class BlockCache:
    """The blocks that are kept, of all images of a server.

    Args:
        bytes_max: Memory that they take at most; 0: none is kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[Image, int], _Kept] = OrderedDict()
        """Those that were asked for least lately first."""
        self._images: dict[Image, _Asked] = {}
        self._questions = 0
        self.size_bytes = 0
        """Memory that they take."""

    def get(self, image: Image, number: int) -> DecodedBlock | None:
        """Ask for a block; None: it is not kept, and should be read and offered to `put`.

        Args:
            image: Held by the caller.
            number: Of the block.
        """
        self._questions += 1
        kept = self._kept.get((image, number))
        if kept is not None:
            kept.asked_at = self._questions
            self._kept.move_to_end((image, number))
            return kept.block
        if self._bytes_max:
            asked = self._asked_of(image)
            if number in asked.last:
                asked.before[number] = asked.last[number]
            asked.last[number] = self._questions
        return None

    def put(self, image: Image, number: int, block: DecodedBlock) -> None:
        """Keep a block that was asked for and read, if it was asked for before that, and there is room."""
        asked = self._images.get(image)
        before = None if asked is None else asked.before.get(number)
        if asked is None or before is None or number in asked.kept:
            return
        size = block.size_bytes
        if size > self._bytes_max:
            return
        while self.size_bytes + size > self._bytes_max:
            oldest = next(iter(self._kept.values()))
            if oldest.asked_at > before:
                return
            self._drop_oldest()
        self._kept[image, number] = _Kept(block, size, asked.last[number])
        self.size_bytes += size
        asked.kept.add(number)
        del asked.last[number], asked.before[number]

    def _asked_of(self, image: Image) -> _Asked:
        asked = self._images.get(image)
        if asked is None:
            asked = self._images[image] = _Asked()
            image.when_closed = self._forget
        return asked

    def _drop_oldest(self) -> None:
        (image, number), oldest = self._kept.popitem(last=False)
        self.size_bytes -= oldest.size_bytes
        asked = self._images[image]
        asked.kept.remove(number)
        asked.last[number] = oldest.asked_at

    def _forget(self, image: Image) -> None:
        """An image is closed: nobody will ask for its blocks."""
        for number in self._images.pop(image).kept:
            self.size_bytes -= self._kept.pop((image, number)).size_bytes
