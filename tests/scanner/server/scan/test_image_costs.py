"""The choice between an image and the row store, by what bench image has measured."""

from __future__ import annotations

import pytest

from scanner.server.scan.image_costs import CHANGES_MIN, SMALL_ROWS, changed_image_is_quicker


@pytest.mark.parametrize(
    ("blocks", "changes", "unread", "touched", "quicker"),
    [
        (80, 1, 1, 0, True),
        (80, 20_000, 0, 80, True),  # updates of one per cent of the rows, spread: all blocks are merged
        (80, 100_000, 0, 80, False),  # of five per cent
        (160, 20_000, 0, 160, True),
        (160, 40_000, 0, 160, False),  # many small blocks cost more than few large ones
        (300, 1_000, 0, 150, True),
        (300, 1_000, 0, 300, False),
        (1_000, 1_000, 0, 1_000, False),
        (300, 20_000, 20_000, 10, True),  # together: few of them
        (300, 140_000, 0, 10, True),
        (300, 150_000, 0, 60, False),  # together, but each costs as much as some rows of the row store
        (300, 150_000, 30_000, 10, False),  # the first row would wait for them
    ],
)
def test_blocks_that_are_touched_count(
    blocks: int, changes: int, unread: int, touched: int, quicker: bool
) -> None:
    """With a million rows, what is changed counts, and how many blocks that touches."""
    found = changed_image_is_quicker(1_000_000, blocks, changes=changes, unread=unread, touched=touched)
    assert found == quicker


@pytest.mark.parametrize(
    ("rows", "changes", "quicker"),
    [
        (0, 5, True),
        (10, CHANGES_MIN, True),
        (10, CHANGES_MIN + 1, False),
        (SMALL_ROWS, 2_000, True),
        (SMALL_ROWS, 2_001, False),
    ],
)
def test_small_images_are_read_while_changes_are_few(rows: int, changes: int, quicker: bool) -> None:
    """However these are spread."""
    blocks = rows // 3_000
    found = changed_image_is_quicker(rows, blocks, changes=changes, unread=changes, touched=blocks)
    assert found == quicker
