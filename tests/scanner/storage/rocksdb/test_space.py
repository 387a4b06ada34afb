"""Room on the disk of a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scanner.storage.rocksdb.space import BALLAST_NAME, DiskSpace, Room

if TYPE_CHECKING:
    import pytest


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
