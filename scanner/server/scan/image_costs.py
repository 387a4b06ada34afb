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
_ROW_STORE_US: Final = 0.41
"""Of the server's CPU, in microseconds, for a row from the row store; a little less than was measured, since
merged blocks cost the client more, too. `bench.questions.image` has the figures."""
_IMAGE_US: Final = 0.10
"""For a row of an image."""
_TOUCHED_BLOCK_US: Final = 1200
_TOUCHED_US: Final = 0.05
"""For a block that changes touch, and for each row of it: it is merged with them, and encoded again."""
_CHANGE_US: Final = 2.0
"""For a change."""


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
    merging_us = touched * (_TOUCHED_BLOCK_US + _TOUCHED_US * rows / max(1, blocks)) + _CHANGE_US * changes
    return unread <= few and _IMAGE_US * rows + merging_us <= _ROW_STORE_US * rows
