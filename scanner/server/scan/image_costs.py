"""When a scan is quicker from an image than from the row store.

This module knows no images, only their sizes.
"""

from __future__ import annotations

from typing import Final

IMAGE_BLOCKS_MIN: Final = 2
"""Blocks that a range has to span for an image to be read: of one block most would be read and not used."""
SMALL_ROWS: Final = 100_000
"""Up to so many rows either takes milliseconds, and the image is read while changes are few, wherever they are."""
CHANGES_MIN: Final = 1000
_UNREAD_SHARE: Final = 0.02
"""Of the rows: the scan has to read so many changes before its first row, some microseconds each."""
_TOUCHED_SHARE: Final = 0.5
_CHANGE_ROWS: Final = 3
"""Blocks that changes touch are merged and encoded again. That takes 0.6 us of the server's time a row, and 1 us more
for a change, where the row store takes 0.44 us a row, and a block that nothing touches 0.22: so one is worth about half
of all blocks, the other three rows. `bench.questions.image` has the figures."""


def changed_image_is_quicker(rows: int, blocks: int, *, changes: int, unread: int, touched: int) -> bool:
    """Whether an image is quicker with the changes since laid over it, than the row store without.

    Args:
        rows: Of the image.
        blocks: Of the image.
        changes: Since; an update is two.
        unread: How many of them were not read from the changelog yet.
        touched: Blocks that changes touch.
    """
    few = max(CHANGES_MIN, _UNREAD_SHARE * rows)
    if rows <= SMALL_ROWS:
        return changes <= few
    return unread <= few and touched / max(1, blocks) + _CHANGE_ROWS * changes / rows <= _TOUCHED_SHARE
