"""A disk that is small enough to be filled: a tmpfs of its own, where mounting is allowed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_STEP_BYTES = 64 * 1024


class SmallDisk:
    """A file system, and a file that takes up its room.

    Args:
        path: Where it is.
    """

    is_real = True
    """Whether it refuses by itself."""

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


class CountedDisk(SmallDisk):
    """A directory for which statvfs tells of a small disk: what is taken is counted, and nothing but that refuses.

    Args:
        path: Where it is.
        size_bytes: Of the disk.
    """

    is_real = False

    def __init__(self, path: Path, size_bytes: int) -> None:
        super().__init__(path)
        self._size_bytes = size_bytes
        self._taken_bytes = 0

    def fill(self, left_bytes: int = 0) -> None:
        """Take all of it but so much."""
        self._taken_bytes += max(0, self.free_bytes - left_bytes)

    def free(self) -> None:
        """Give it back."""
        self._taken_bytes = 0

    def statvfs(self, _path: object) -> os.statvfs_result:
        """What statvfs says of it."""
        used = self._taken_bytes
        for directory, _, names in os.walk(self.path):
            for name in names:
                with suppress(FileNotFoundError):
                    used += os.stat(os.path.join(directory, name)).st_size
        free = max(0, self._size_bytes - used)
        return os.statvfs_result((1, 1, self._size_bytes, free, free, 1, 1, 1, 0, 255))


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a small file system at a path until the end of the block.

    Where that is not allowed, the reason is printed, and statvfs tells of a small disk instead.
    """
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "weir-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        print(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        counted = CountedDisk(path, size_bytes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "statvfs", counted.statvfs)
            yield counted
        return
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
