"""Blocks of images that scans ask for again and again, in memory: read, verified and decoded once for all of them.

So are blocks that have changes laid over them, merged once for all scans that show the same changes of a block. The
state of such a block names them; of each block only the state that was asked for last is of use.

A block is kept from the second time on that it is asked for; so one scan of a large image keeps nothing. Where there is
no room, a newcomer takes the place of the block that was asked for least lately, but only if that was before the
newcomer was asked for the time before (the inter-reference recency of LIRS, Jiang and Zhang 2002). So scans that go
round and round over more than fits find as many blocks as do fit, where the least recently used rule would find none.

This module knows no scans and no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pyarrow as pa

    from scanner.sources.image_rows import BlockKeys
    from scanner.storage.images.reader import Image, ImageBlock

    _Name: TypeAlias = tuple[int, Hashable]


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
    """What was asked of one image. Its blocks are named by their numbers and states."""

    last: dict[_Name, int] = field(default_factory=dict)
    """Of blocks that are not kept: when they were asked for last, in questions."""
    before: dict[_Name, int] = field(default_factory=dict)
    """When they were asked for before that."""
    kept: set[_Name] = field(default_factory=set)
    """Those that are kept."""
    states: dict[int, Hashable] = field(default_factory=dict)
    """Of each block, by number, that was asked for with changes: the state that was asked for last."""


class BlockCache:
    """The blocks that are kept, of all images of a server.

    Args:
        bytes_max: Memory that they take at most; 0: none is kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[Image, _Name], _Kept] = OrderedDict()
        """Those that were asked for least lately first."""
        self._images: dict[Image, _Asked] = {}
        self._questions = 0
        self.size_bytes = 0
        """Memory that they take."""

    def get(self, image: Image, number: int, state: Hashable = None) -> DecodedBlock | None:
        """Ask for a block; None: it is not kept, and should be read and offered to `put`.

        Args:
            image: Held by the caller.
            number: Of the block.
            state: Of the block with changes, which is asked for; another one than the last time: that one is forgotten.
                None: the block as it is in the image.
        """
        self._questions += 1
        if not self._bytes_max:
            return None
        asked, name = self._asked_of(image), (number, state)
        if state is not None and asked.states.get(number) != state:
            if number in asked.states:
                self._forget_block(image, asked, (number, asked.states[number]))
            asked.states[number] = state
        kept = self._kept.get((image, name))
        if kept is not None:
            kept.asked_at = self._questions
            self._kept.move_to_end((image, name))
            return kept.block
        if name in asked.last:
            asked.before[name] = asked.last[name]
        asked.last[name] = self._questions
        return None

    def wants(self, image: Image, number: int, size_bytes: int, state: Hashable) -> bool:
        """Whether `put` would keep a block that was asked for: it was before that, and there is room."""
        asked, name = self._images.get(image), (number, state)
        before = None if asked is None else asked.before.get(name)
        if asked is None or before is None or name in asked.kept or size_bytes > self._bytes_max:
            return False
        room = self._bytes_max - self.size_bytes
        for kept in self._kept.values():
            if room >= size_bytes or kept.asked_at > before:
                break
            room += kept.size_bytes
        return room >= size_bytes

    def put(self, image: Image, number: int, block: DecodedBlock, state: Hashable = None) -> None:
        """Keep a block that was asked for and read, if it is wanted."""
        size, name = block.size_bytes, (number, state)
        if not self.wants(image, number, size, state):
            return
        while self.size_bytes + size > self._bytes_max:
            self._drop_oldest()
        asked = self._images[image]
        self._kept[image, name] = _Kept(block, size, asked.last[name])
        self.size_bytes += size
        asked.kept.add(name)
        del asked.last[name], asked.before[name]

    def _asked_of(self, image: Image) -> _Asked:
        asked = self._images.get(image)
        if asked is None:
            asked = self._images[image] = _Asked()
            image.when_closed = self._forget
        return asked

    def _drop_oldest(self) -> None:
        (image, name), oldest = self._kept.popitem(last=False)
        self.size_bytes -= oldest.size_bytes
        asked = self._images[image]
        asked.kept.remove(name)
        asked.last[name] = oldest.asked_at

    def _forget_block(self, image: Image, asked: _Asked, name: _Name) -> None:
        """Nobody will ask for a block."""
        asked.last.pop(name, None)
        asked.before.pop(name, None)
        if name in asked.kept:
            asked.kept.remove(name)
            self.size_bytes -= self._kept.pop((image, name)).size_bytes

    def _forget(self, image: Image) -> None:
        """An image is closed: nobody will ask for its blocks."""
        for name in self._images.pop(image).kept:
            self.size_bytes -= self._kept.pop((image, name)).size_bytes
