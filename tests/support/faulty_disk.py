"""A disk that fails, or a process that is killed, at the n-th change that Python code makes to the file system."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

_CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "chmod")


class Killed(BaseException):
    """The process ends here: nothing that it would still do is done."""


class Faults:
    """Counts changes of the file system, and stops one of them. RocksDB's own are not seen.

    Args:
        at: Which change is stopped, from 0.
        kill: Whether the process is killed there: no later change is made either. Else one system call fails.
    """

    def __init__(self, at: int, *, kill: bool) -> None:
        self._at = at
        self._kill = kill
        self.seen = 0
        """Changes so far, the one that was stopped included."""

    @property
    def hit(self) -> bool:
        """Whether the change was reached."""
        return self.seen > self._at

    def check(self, name: str) -> None:
        """Count one change; raise if it is not to be made."""
        self.seen += 1
        if self._kill and self.hit:
            raise Killed(name)
        if self.seen == self._at + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)


@contextmanager
def faulty_disk(at: int, *, kill: bool) -> Iterator[Faults]:
    """Let the n-th change of this thread fail until the end of the block, which a kill ends quietly.

    Servers of other tests may be alive in this process, in threads of their own.
    """
    faults, ours = Faults(at, kill=kill), threading.get_ident()

    def faulty(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == ours:
                faults.check(name)
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _CHANGES:
            patch.setattr(os, name, faulty(name, getattr(os, name)))
        with suppress(Killed):
            yield faults
