"""Where `weir scan -o` writes: a file appears when it is complete; what is no regular file is written to as it is."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from scanner.cli.app import fail

STANDARD_OUTPUT: Final = Path("-")
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")
_NAMED: Final = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to write a scan into.

    A regular file, or one that is not there yet, gets its content when the block ends well; until then, and otherwise,
    nothing changes there. A symbolic link is followed; mode and owner of a file that is there stay. Devices, pipes
    and open descriptors are written to directly.

    Args:
        path: `-` is standard output.

    Raises:
        Failure: It cannot be written; the message says why.
    """
    descriptor = _descriptor(path)
    if descriptor == 1:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        before = path.stat() if descriptor is None and path.exists() else None
        regular = descriptor is None and (before is None or stat.S_ISREG(before.st_mode))
        file = _beside(path, before) if regular else _opened(path, descriptor)
    except OSError as error:
        folder = Path(os.path.realpath(path)).parent
        reason = error.strerror if folder.is_dir() else f"there is no folder {folder}"
        fail(f"cannot write {path}: {reason}")
    if regular:
        with _replacing(file, path, before):
            yield file
    else:
        with file:
            yield file


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else _NAMED.get(str(path))


def _opened(path: Path, descriptor: int | None) -> IO[bytes]:
    return path.open("wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")


def _beside(path: Path, before: os.stat_result | None) -> IO[bytes]:
    """A file that will replace `path`, in its folder."""
    if before is not None and not os.access(path, os.W_OK):
        fail(f"cannot write {path}: it is read-only")
    target = Path(os.path.realpath(path))
    # NamedTemporaryFile knows its name; it is closed, and not deleted, by `_replacing`.
    file: IO[bytes] = tempfile.NamedTemporaryFile(  # noqa: SIM115
        prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent, delete=False
    )
    return file


@contextmanager
def _replacing(file: IO[bytes], path: Path, before: os.stat_result | None) -> Iterator[None]:
    try:
        with file:
            yield
            file.flush()
            _give_mode(file.fileno(), before)
        os.replace(file.name, os.path.realpath(path))
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def _give_mode(descriptor: int, before: os.stat_result | None) -> None:
    if before is None:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o666 & ~umask)  # It was made for the owner alone.
        return
    with suppress(PermissionError):  # Only root gives files away.
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
