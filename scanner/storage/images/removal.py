"""Finds images on the disk, and removes those that nobody needs: files that are called as we call images, no others."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

IMAGE_SUFFIX: Final = ".image"
UNFINISHED: Final = ".unfinished"
"""Behind the name of an image that is being written."""
_TABLE: Final = re.compile(r"[0-9]{6,10}")
_IMAGE: Final = re.compile(r"[0-9]{4,10}" + re.escape(IMAGE_SUFFIX) + f"({re.escape(UNFINISHED)})?")


def remove_images(directory: Path) -> None:
    """Remove the images of a table, as far as the disk lets us; nothing reads them any more.

    Args:
        directory: Where they are, if there are any.
    """
    with suppress(OSError):
        for entry in list(directory.iterdir()):
            if _IMAGE.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
        directory.rmdir()


def find_images(root: Path) -> dict[Path, int]:
    """The length of each file of an image, unfinished ones included; as far as the disk tells.

    Args:
        root: Has the directories of all tables that have images; may be missing.
    """
    found: dict[Path, int] = {}
    for directory in _entries(root):
        if _TABLE.fullmatch(directory.name):
            for entry in _entries(directory):
                if _IMAGE.fullmatch(entry.name):
                    with suppress(OSError):
                        found[entry] = entry.stat().st_size
    return found


def remove_strays(root: Path, table_ids: Container[int]) -> list[Path]:
    """Remove what a crash has left: images of tables that are gone, and what nobody finishes. None is being made.

    Args:
        root: As in `find_images`.
        table_ids: Of the tables that there are.

    Returns:
        What was removed.
    """
    removed = []
    for path in find_images(root):
        if path.name.endswith(UNFINISHED) or int(path.parent.name) not in table_ids:
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    for directory in _entries(root):
        if _TABLE.fullmatch(directory.name) and int(directory.name) not in table_ids:
            with suppress(OSError):
                directory.rmdir()
    return removed


def _entries(directory: Path) -> list[Path]:
    with suppress(OSError):
        return list(directory.iterdir())
    return []
