"""A disk that is small enough to be filled: a tmpfs of its own, where mounting is allowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STEP_BYTES = 64 * 1024


class SmallDisk:
    """A file system, and a file that takes up its room.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        """What is free."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, left_bytes: int = 0) -> None:
        """Take all of it but so much."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while (wanted := min(_STEP_BYTES, self.free_bytes - left_bytes)) > 0:
                os.write(descriptor, bytes(wanted))
        except OSError:
            pass  # Others take room, too.
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small file system at a path until the end of the block.

    Where that is not allowed the test is skipped, with the reason; those that stand beside it need no mount.
    """
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "weir-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
