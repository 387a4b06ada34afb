"""Removes the images of a table that is gone: the files that are called as we call images, and nothing else."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

IMAGE_SUFFIX: Final = ".image"
UNFINISHED: Final = ".unfinished"
"""Behind the name of an image that is being written."""
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
