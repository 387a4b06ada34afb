"""A kernel that says no: files cannot grow, or none can be opened."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


def file_size_limit(limit_bytes: int) -> AbstractContextManager[None]:
    """Until the end of the block no file of this process can grow past a limit."""
    return _limited(resource.RLIMIT_FSIZE, limit_bytes)


def no_more_files() -> AbstractContextManager[None]:
    """Until the end of the block this process can open no file."""
    return _limited(resource.RLIMIT_NOFILE, 0)


@contextmanager
def _limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
