"""Room on the disk of a data directory: how much is kept free, and a file that can be given up in need.

Writes of rows are refused while less than the reserve is free, before RocksDB sees them: what is left is for what
RocksDB still has in memory, for its compactions, and for the catalog. The *ballast* is a file of its own. It is removed
to make a drop, the end of a lease or a shutdown possible on a disk that others have filled, and made again when there
is room.

Sources: CockroachDB's ballast file and TiKV's reserved space.

This module knows no RocksDB. It may be used from any thread.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scanner.errors import DiskFull, StoreFailed
from scanner.storage.records import DiskStatus
from scanner.storage.rocksdb.files import FILE_MODE, directory_number, require_directory, sync_directory

BALLAST_NAME: Final = "BALLAST"
_BALLAST_BYTES_MAX: Final = 16 * 1024 * 1024
_BALLAST_SHARE: Final = 4
"""The ballast is one part in so many of the reserve at most."""
_DISK_SHARE: Final = 20
"""The reserve is one part in so many of the disk at most, or a small disk could hold nothing."""
_HYSTERESIS_SHARE: Final = 8
"""Writes are taken again when one part in so many of the reserve more is free, so that not each write tips it over."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """What statvfs says of a file system."""

    free_bytes: int
    """That our user may use."""
    total_bytes: int


def room_of(path: Path) -> Room:
    """Ask the file system of a path.

    Raises:
        OSError: It does not answer.
    """
    found = os.statvfs(path)
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class DiskSpace:
    """Keeps room on the disk of one data directory.

    Args:
        path: The data directory.
        reserve_bytes: Free bytes below which writes are refused, as far as they are a twentieth of the disk at most; 0:
            they never are, and there is no ballast.
        measure: Asks the file system.

    Raises:
        StoreFailed: There is no such directory.
    """

    def __init__(self, path: Path, reserve_bytes: int, measure: Callable[[Path], Room] = room_of) -> None:
        self._path = path
        self._number = directory_number(path)
        self._reserve_bytes = reserve_bytes
        self._measure = measure
        self._ballast = path / BALLAST_NAME
        self._changing = threading.Lock()
        self._refusing = False
        """Whether every write is refused, however small."""
        self._missing_bytes = 0
        """What the largest write takes that was refused alone, because it left less than the reserve; 0: none was."""
        self._ballast_failed = False

    def require_room(self, wanted_bytes: int = 0) -> None:
        """See that there is room for a write. Costs a statvfs, some microseconds.

        Args:
            wanted_bytes: What it takes, about.

        Raises:
            DiskFull: There is not; nothing was written.
        """
        if not self._reserve_bytes:
            return
        room = self._room()
        if room is None:
            return
        reserve = self._reserve_of(room)
        fits = room.free_bytes - wanted_bytes >= reserve
        # A transaction may want more than was ever free, which says nothing of other writes.
        self._note(room, 0 if fits or wanted_bytes > reserve else wanted_bytes)
        if self._refusing or not fits:
            raise DiskFull(
                f"the disk of {self._path} has {room.free_bytes} bytes free, and {reserve} are kept as a reserve:"
                " nothing was written; make room, and write again, the server takes it by itself"
            )

    def has_free(self, wanted_bytes: int, *, reserve: bool) -> bool:
        """Whether so much is free. What frees more than it takes may have the reserve, too.

        Args:
            wanted_bytes: How much.
            reserve: Whether the reserve has to stay free beside it.
        """
        room = self._room()
        return room is None or room.free_bytes - (self._reserve_of(room) if reserve else 0) > wanted_bytes

    def refresh(self) -> DiskStatus | None:
        """Look at the disk, make the ballast again if there is room for it, and log what has changed.

        Returns:
            What there is; None: the file system does not say.
        """
        room = self._room()
        if room is None:
            return None
        status = self._note(room)
        with self._changing:
            self._make_ballast(room)
        return status

    @contextmanager
    def in_need(self) -> Iterator[None]:
        """Run what has to work on a full disk: the ballast goes first, if there is less free than it has."""
        room = self._room()
        if room is not None and self._reserve_bytes and room.free_bytes < self._ballast_bytes(room):
            with self._changing:
                self._remove_ballast(room)
        yield

    def _room(self) -> Room | None:
        try:
            require_directory(self._path, self._number)  # No ballast is made or removed in another one.
            return self._measure(self._path)
        except (StoreFailed, OSError):
            return None  # A disk that is gone refuses by itself.

    def _note(self, room: Room, refused_bytes: int = 0) -> DiskStatus:
        """Tell from what is free, and from a write that found no room, whether writes are refused; log a change."""
        reserve = self._reserve_of(room)
        more = reserve // _HYSTERESIS_SHARE
        with self._changing:
            was_read_only = self._refusing or self._missing_bytes > 0
            self._refusing = room.free_bytes < reserve + (more if self._refusing else 0)
            missing = max(self._missing_bytes, refused_bytes)
            self._missing_bytes = missing if room.free_bytes < reserve + max(missing, more) else 0
            read_only = self._refusing or self._missing_bytes > 0
            if read_only != was_read_only:
                if read_only:
                    _logger.error(
                        "the disk of %s is full: %d bytes are free, and %d are kept as a reserve; writes that leave"
                        " less are refused until there is room, scans go on",
                        self._path,
                        room.free_bytes,
                        reserve,
                    )
                else:
                    _logger.warning(
                        "the disk of %s has room again: %d bytes are free; writes are taken",
                        self._path,
                        room.free_bytes,
                    )
        return DiskStatus(room.free_bytes, read_only)

    def _reserve_of(self, room: Room) -> int:
        return min(self._reserve_bytes, room.total_bytes // _DISK_SHARE)

    def _ballast_bytes(self, room: Room) -> int:
        return min(_BALLAST_BYTES_MAX, self._reserve_of(room) // _BALLAST_SHARE)

    def _make_ballast(self, room: Room) -> None:
        size = self._ballast_bytes(room)
        if not size or self._size() >= size or room.free_bytes < self._reserve_of(room) + 2 * size:
            return
        try:
            descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                _allocate(descriptor, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(self._path)
        except OSError as error:
            with suppress(OSError):
                self._ballast.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return
            if not self._ballast_failed:
                _logger.warning("%s cannot be made, which is tried again: %s", self._ballast, error.strerror)
            self._ballast_failed = True
        else:
            if self._ballast_failed:
                _logger.warning("%s is there again", self._ballast)
            self._ballast_failed = False

    def _remove_ballast(self, room: Room) -> None:
        with suppress(OSError):
            self._ballast.unlink()
            _logger.warning(
                "%s was removed: %d bytes are free on its disk, and something has to be written",
                self._ballast,
                room.free_bytes,
            )

    def _size(self) -> int:
        try:
            return self._ballast.stat().st_size
        except OSError:
            return 0


def _allocate(descriptor: int, size: int) -> None:
    """Take room on the disk for a file; with zeros where the system has no call for that, as macOS has not."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(bytes(size))
