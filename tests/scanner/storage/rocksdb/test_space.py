"""Room on the disk of a data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scanner.errors import DiskFull
from scanner.storage.rocksdb.space import BALLAST_NAME, DiskSpace, Room


def test_a_ballast_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk is looked at every second: the log has one line when that begins, and one when it is over."""
    ballast = tmp_path / BALLAST_NAME
    ballast.mkdir()
    space = DiskSpace(tmp_path, 1 << 20, lambda _: Room(1 << 40, 1 << 40))
    for _ in range(3):
        space.refresh()
    ballast.rmdir()
    for _ in range(3):
        space.refresh()
    assert ballast.is_file()
    failed, well = (record.getMessage() for record in caplog.records)
    assert failed == f"{ballast} cannot be made, which is tried again: Is a directory"
    assert well == f"{ballast} is there again"


def test_a_ballast_is_made_without_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written, and takes its room: macOS has no call that allocates."""
    monkeypatch.delattr(os, "posix_fallocate")
    DiskSpace(tmp_path, 1 << 20, lambda _: Room(1 << 40, 1 << 40)).refresh()
    with (tmp_path / BALLAST_NAME).open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == os.fstat(file.fileno()).st_size == 1 << 18


def test_no_ballast_in_another_directory(tmp_path: Path) -> None:
    """A directory that has the path later is somebody else's: its ballast is neither made nor removed."""
    path, room = tmp_path / "data", [Room(1 << 40, 1 << 40)]
    path.mkdir()
    space = DiskSpace(path, 1 << 20, lambda _: room[0])
    path.rename(tmp_path / "moved")
    path.mkdir()
    assert space.refresh() is None
    assert list(path.iterdir()) == []
    (path / BALLAST_NAME).touch()
    room[0] = Room(0, 1 << 40)
    with space.in_need():
        assert (path / BALLAST_NAME).exists()


def test_a_write_that_is_refused_alone_makes_the_disk_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A large write finds no room, and a small one does: the status says so, and the log, once for begin and end."""
    free = [1000]
    space = DiskSpace(tmp_path, 800, lambda _: Room(free[0], 1 << 20))

    def read_only() -> bool:
        status = space.refresh()
        assert status is not None
        return status.read_only

    with pytest.raises(DiskFull):
        space.require_room(1 << 20)  # A transaction that no disk has room for.
    assert not read_only()
    for _ in range(2):
        with pytest.raises(DiskFull):
            space.require_room(300)
        assert read_only()
    space.require_room(200)
    free[0] = 1099
    assert read_only()
    free[0] = 1100
    assert not read_only()
    space.require_room(300)
    full, room_again = (record.getMessage() for record in caplog.records)
    assert f"the disk of {tmp_path} is full: 1000 bytes are free" in full
    assert f"the disk of {tmp_path} has room again: 1100 bytes are free" in room_again
