"""Where `weir scan -o` writes: a file appears when it is complete; what is no regular file is written to as it is."""

from __future__ import annotations

import io
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
from scanner.cli.waiting import WaitingFile

_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")
_NAME_SHOWN: Final = 50
"""Characters of a file's name in the name that it has first: of four octets each, they leave room for the rest."""
_STANDARD_OUTPUT: Final = Path("-")
_NAMED: Final = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to write a scan into.

    A regular file, or one that is not there yet, gets its content when the block ends well, and that is durable then;
    until then, and otherwise, nothing changes there. A symbolic link is followed; mode and owner of a file that is
    there stay. Devices, pipes and open descriptors are written to directly.

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
    with _told(path), _file(path, descriptor) as file:
        yield file


@contextmanager
def destination(form: str, output: Path | None) -> Iterator[IO[bytes]]:
    """Where rows go: a file, see `written`, or standard output.

    Args:
        form: Their format; none has no file.
        output: The file; None: standard output.

    Raises:
        Failure: It cannot be written; the message says why.
    """
    with written(_STANDARD_OUTPUT if output is None or form == "none" else output) as file:
        yield file


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Name the file in errors of the system, which does not know it by that name."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        folder = Path(os.path.realpath(path)).parent
        reason = error.strerror or str(error) if folder.is_dir() else f"there is no folder {folder}"
        fail(f"cannot write {path}: {reason}")


@contextmanager
def _file(path: Path, descriptor: int | None) -> Iterator[IO[bytes]]:
    before = path.stat() if descriptor is None and path.exists() else None
    if descriptor is None and (before is None or stat.S_ISREG(before.st_mode)):
        with _beside(path, before) as file:
            yield file
        return
    with (
        path.open("wb")
        if descriptor is None
        else io.BufferedWriter(WaitingFile(os.dup(descriptor), "w")) as file
    ):
        yield file


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else _NAMED.get(str(path))


@contextmanager
def _beside(path: Path, before: os.stat_result | None) -> Iterator[IO[bytes]]:
    """A file in the folder of `path` that replaces it in the end."""
    if before is not None and not os.access(path, os.W_OK):
        fail(f"cannot write {path}: it is read-only")
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name[:_NAME_SHOWN]}.", suffix=".part", dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            _give_mode(file.fileno(), before)
            os.fsync(file.fileno())
        os.replace(name, target)
        _sync_folder(target.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # It may be one that we may write to, and not read.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _give_mode(descriptor: int, before: os.stat_result | None) -> None:
    if before is None:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o666 & ~umask)  # It was made for the owner alone.
        return
    with suppress(PermissionError):  # Only root gives files away.
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
