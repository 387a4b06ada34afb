"""Watches what Python code changes in the file system, and which of it a power failure could still undo."""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scanner.storage.rocksdb import durable_end, manifest_length

_WRITES = os.O_WRONLY | os.O_RDWR
_NOT_NEEDED = ("LOCK", durable_end.NAME, manifest_length.NAME)
"""Files that nothing depends on after a power failure."""
_REMOVED_FOR_GOOD = (".stage", "decision.json")


class SyncSpy:
    """What was changed and not synced since.

    Of removals only those of stages and decisions are looked at: whatever else comes back is removed again.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """By inode: directories in which a name is new."""
        self._files: dict[int, str] = {}
        """By inode: files that were written."""
        self._synced: set[int] = set()
        self.early: list[str] = []
        """What was given its name before it was durable itself."""

    def pending(self) -> list[str]:
        """What a power failure could undo now, or could have left in part."""
        there = [path for path in self._names.values() if os.path.isdir(path)]
        return sorted([*there, *self._files.values(), *self.early])

    def named(self, path: Path | str) -> None:
        """A name is new in a directory, or means something else."""
        parent = os.path.dirname(os.path.abspath(path))
        self._names[os.stat(parent).st_ino] = parent

    def written(self, descriptor: int, path: Path | str) -> None:
        """A file is open for writing."""
        self._files[os.fstat(descriptor).st_ino] = str(path)

    def opened(self, descriptor: int, path: Path | str, *, new: bool, writable: bool) -> None:
        """A file is open."""
        if str(path).endswith(_NOT_NEEDED):
            return
        if new:
            self.named(path)
        if writable:
            self.written(descriptor, path)

    def synced(self, descriptor: int) -> None:
        """A file or directory is durable."""
        inode = os.fstat(descriptor).st_ino
        self._names.pop(inode, None)
        self._files.pop(inode, None)
        self._synced.add(inode)

    def renaming(self, source: Path | str) -> None:
        """Something is about to get its final name: it must be whole on the disk."""
        found = os.stat(source)
        inside = []
        if stat.S_ISDIR(found.st_mode):
            if not str(source).endswith((".creating", "unfinished")):
                return  # It had been there all along.
            inside = [path for path in Path(source).iterdir() if path.is_file()]
            below = [path for path in self.pending() if path.startswith(f"{source}{os.sep}")]
            self.early += [f"{path} was not synced before {source} was renamed" for path in below]
        for path in (Path(source), *inside):
            if path.stat().st_ino not in self._synced:
                self.early.append(f"{path} was not synced before it was renamed")


def _opening_files(spy: SyncSpy) -> Callable[..., Any]:
    """Python's own `open`, which does not call `os.open`; of a descriptor that did, everything is known."""
    real_open = io.open

    def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return real_open(file, mode, *args, **kwargs)
        new = not os.path.exists(file)
        stream = real_open(file, mode, *args, **kwargs)
        spy.opened(stream.fileno(), file, new=new, writable=True)
        return stream

    return opening


@contextmanager
def spying_on_syncs() -> Iterator[SyncSpy]:
    """Watch until the end of the block."""
    spy = SyncSpy()
    real_open, real_mkdir, real_fsync, real_link = os.open, os.mkdir, os.fsync, os.link
    real_unlink, real_rmdir = os.unlink, os.rmdir

    def opening(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        descriptor = real_open(path, flags, *args, **kwargs)
        spy.opened(descriptor, path, new=new, writable=bool(flags & _WRITES))
        return descriptor

    def linking(source: Any, target: Any, **kwargs: Any) -> None:
        real_link(source, target, **kwargs)
        spy.named(target)

    def making(path: Any, *args: Any, **kwargs: Any) -> None:
        real_mkdir(path, *args, **kwargs)
        spy.named(path)

    def unlinking(path: Any, **kwargs: Any) -> None:
        real_unlink(path, **kwargs)
        if not kwargs and str(path).endswith(_REMOVED_FOR_GOOD):
            spy.named(path)

    def removing(path: Any, **kwargs: Any) -> None:
        real_rmdir(path, **kwargs)
        if not kwargs and os.path.basename(path).startswith("of-"):
            spy.named(path)

    def renaming(real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **kwargs: Any) -> None:
            spy.renaming(source)
            real(source, target, **kwargs)
            spy.named(source)
            spy.named(target)

        return rename

    def syncing(descriptor: int) -> None:
        real_fsync(descriptor)
        spy.synced(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opening)
        for module in (builtins, io):
            patch.setattr(module, "open", _opening_files(spy))
        patch.setattr(os, "link", linking)
        patch.setattr(os, "mkdir", making)
        patch.setattr(os, "unlink", unlinking)
        patch.setattr(os, "rmdir", removing)
        patch.setattr(os, "rename", renaming(os.rename))
        patch.setattr(os, "replace", renaming(os.replace))
        patch.setattr(os, "fsync", syncing)
        yield spy
