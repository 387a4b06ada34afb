"""Files and directories that must survive a crash: whole, or as they were before; and private to their user.

A file is replaced, never modified: a new one is written beside it, synced, and renamed over it, and the
directory is synced. The rename is the moment.

This module knows no RocksDB.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scanner.errors import DiskFull, StoreFailed, TooManyFiles
from scanner.storage.rocksdb.envelope import seal, unseal

DIRECTORY_MODE = 0o700
"""Of every directory of a data directory."""
FILE_MODE = 0o600
"""Of every file in it: rows are in most of them, and secrets in some."""
_making_directories = threading.Lock()
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_KINDS: dict[int, type[StoreFailed]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EMFILE: TooManyFiles,
    errno.ENFILE: TooManyFiles,
}
"""What some errors of the operating system are; StoreFailed: any other."""
_ADVICE: dict[int, str] = {
    errno.EXDEV: "; if it is part of a container's image, which overlayfs renames no directory of, copy it to a volume",
    errno.ENOLCK: "; its file system takes no locks: let it, as by NFS with locks, or use another one",
}
"""What to do about one whose own words do not tell."""


def replace_file(path: Path, content: bytes) -> None:
    """Write or replace a file; durable when this returns. A crash may leave `<name>~` beside it.

    It belongs to whom its directory belongs to, also if root writes it: who serves that directory has to read it.

    Args:
        path: The file; its directory exists.
        content: The whole of it.

    Raises:
        StoreFailed: the disk refused; the old one is still there, unless only the last sync failed.
    """
    fresh = path.with_name(f"{path.name}~")
    with disk_errors(path):
        # Never into a file that a crash left: it may have another mode.
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "wb") as file:
            give_to_owner(file.fileno(), path.parent)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_directory(path.parent)


def give_to_owner(descriptor: int, directory: Path) -> None:
    """Give a file that was made in a directory to whom that belongs, if we may; see `replace_file`.

    Raises:
        OSError: The disk refused.
    """
    owner = directory.stat()
    if owner.st_uid != os.geteuid():
        with giving_away():
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def giving_away() -> Iterator[None]:
    """Change the owner of a file, if we may: only root may, and in a container not to a user that it does not know."""
    try:
        yield
    except PermissionError:
        pass
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def read_file(path: Path) -> bytes | None:
    """The content of a file; None if there is none.

    Raises:
        StoreFailed: the disk refused.
    """
    with disk_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def write_sealed(path: Path, content: bytes) -> None:
    """`replace_file`, in an envelope that says which file of which format it is."""
    replace_file(path, seal(path.name, content))


def read_sealed(path: Path) -> bytes | None:
    """The content of a file that `write_sealed` wrote; None if there is none.

    Raises:
        DataCorrupted: it is damaged, or another file under this name.
        StoreFailed: the disk refused, or a newer version wrote it.
    """
    sealed = read_file(path)
    return None if sealed is None else unseal(path.name, sealed, path)


def make_directories(path: Path, below: Path | None = None) -> None:
    """Make a directory and what is missing above it; durable when this returns.

    Threads may make directories with a common ancestor at a time: checkpoints of two buckets of a new table do.

    Args:
        path: The directory. It is for its user only.
        below: An ancestor of it, which exists; what is made between them is for the user only, too. None: any that
            ancestors exist; those that do not get the modes that the umask gives.

    Raises:
        StoreFailed: the disk refused.
    """
    # One thread at a time: what another has made and not yet made durable would pass for there.
    with _making_directories, disk_errors(path):
        missing = []
        for directory in (path, *path.parents):
            if directory == below or directory.is_dir():
                break
            missing.append(directory)
        for directory in reversed(missing):
            mode = 0o777 if below is None and directory != path else DIRECTORY_MODE
            try:
                directory.mkdir(mode)
            except FileExistsError:
                if not directory.is_dir():  # Else another process was quicker.
                    raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(directory)) from None
            try:
                sync_directory(directory.parent)
            except OSError:
                # The next call would take it for one that was there, and durable.
                with suppress(OSError):
                    directory.rmdir()
                raise


def is_directory(path: Path, *, untold: bool = False) -> bool:
    """Whether a path leads to a directory.

    Args:
        path: Where one may be.
        untold: What it is where the disk does not tell, as of a link into a directory that is closed to us.
    """
    try:
        return path.is_dir()
    except OSError:
        return untold


def make_private(trees: Iterable[Path], alone: Iterable[Path] = ()) -> int:
    """Take from files and directories what others than their user may do with them.

    Args:
        trees: Directories, each with all that is in it. Symbolic links in them are not followed.
        alone: Files and directories without what is in them; those that are not there are no error.

    Returns:
        How many others could use until now.

    Raises:
        StoreFailed: they belong to another user, or the disk refused.
    """
    changed = 0
    for path in alone:
        with disk_errors(path), suppress(FileNotFoundError):
            changed += _make_private(path, path.stat().st_mode)
    for tree in trees:
        with disk_errors(tree):
            for directory, _, files, descriptor in os.fwalk(tree):
                changed += _make_private(descriptor, os.fstat(descriptor).st_mode)
                for name in files:
                    # RocksDB removes its old files while we look.
                    with suppress(FileNotFoundError):
                        mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                        if stat.S_ISREG(mode):
                            changed += _make_private(Path(directory, name), mode)
    return changed


def _make_private(path: Path | int, mode: int) -> int:
    if not mode & _OTHERS:
        return 0
    os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
    return 1


class DirectoryHandle:
    """A directory that was opened under a path, and can be distinguished from another that has that path later.

    Raises:
        StoreFailed: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def require_in_place(self) -> None:
        """See that the path still leads to the directory.

        Raises:
            StoreFailed: it was moved or replaced, and what would be written now would go elsewhere; or the disk
                refused.
        """
        opened = self._status()
        require_directory(self.path, (opened.st_dev, opened.st_ino))

    def lasting(self, path: Path) -> Path:
        """Another path to what is in it, which leads there for as long as it is open, wherever it is moved.

        Raises:
            StoreFailed: the disk refused.
        """
        self._status()
        descriptor = Path(f"/proc/self/fd/{self._descriptor}")
        return descriptor / path.relative_to(self.path) if descriptor.exists() else path

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._descriptor)
        except OSError as error:
            raise StoreFailed(
                f"{self.path}: {error.strerror}; its disk is gone: bring it back, and start the server again if it does"
                " not go on by itself"
            ) from error

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def directory_number(path: Path) -> tuple[int, int]:
    """What distinguishes a directory, while something has it open, from another that has its path later.

    Raises:
        StoreFailed: There is none.
    """
    with disk_errors(path):
        found = path.stat()
    return found.st_dev, found.st_ino


def require_directory(path: Path, number: tuple[int, int]) -> None:
    """See that a path leads to a directory of this `directory_number`.

    Raises:
        StoreFailed: It was moved, removed or replaced.
    """
    with suppress(StoreFailed):
        if directory_number(path) == number:
            return
    raise StoreFailed(
        f"directory {path} was moved or replaced while a server has it open; stop the server, and put the directory"
        " back, or start the server with the path that it has now"
    )


def sync_tree(directory: Path) -> None:
    """Make the files of a directory durable, and their names. It holds no directories."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StoreFailed, or the kind of it that there is, in one line that names the path."""
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, StoreFailed)
        advice = _ADVICE.get(error.errno or 0, "")
        # Of what was done by a descriptor it would be a number.
        where = path if isinstance(error.filename, int) else error.filename or path
        raise kind(f"{where}: {error.strerror or error}{advice}") from error
