"""`weir rotate-token-keys`: a new key, and the old one for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanner.cli import run
from scanner.server.scan.token_keys import load_token_keys
from scanner.storage.rocksdb.store import RocksStore

pytestmark = pytest.mark.rocks


def accepted(data: Path) -> list[int]:
    """The ids of the keys that a server would start with."""
    with RocksStore.open(data) as store:
        return [key.key_id for key in load_token_keys(store).accepted]


def test_rotation_keeps_the_old_key_for_the_overlap(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The new key signs; the one before is accepted for as long as was said, and it is told until when."""
    assert accepted(tmp_path) == [1]
    assert run(["rotate-token-keys", "--data", str(tmp_path)]) == 0
    said = capfd.readouterr().out
    assert "key 2 signs" in said
    assert "key 1 is accepted until 2" in said
    assert accepted(tmp_path) == [1, 2]
    assert run(["rotate-token-keys", "--data", str(tmp_path), "--overlap", "0"]) == 0
    assert "key 2 is accepted" not in capfd.readouterr().out
    assert accepted(tmp_path) == [1, 3]


@pytest.mark.parametrize("overlap", ["-1", "1e12", "inf", "nan"])
def test_an_overlap_that_no_calendar_has(
    tmp_path: Path, overlap: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is refused before a key is made: in words, and not once the new key signs."""
    assert accepted(tmp_path) == [1]
    assert run(["rotate-token-keys", "--data", str(tmp_path), "--overlap", overlap]) == 2
    assert "--overlap" in capfd.readouterr().err
    assert accepted(tmp_path) == [1]


def test_a_running_server_has_its_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A directory that is in use, or is not there, is one line on standard error."""
    with RocksStore.open(tmp_path):
        assert run(["rotate-token-keys", "--data", str(tmp_path)]) == 1
        assert len(capfd.readouterr().err.splitlines()) == 1
    assert run(["rotate-token-keys", "--data", str(tmp_path / "nowhere")]) == 2


def test_an_empty_directory_has_no_keys(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where a server would begin anew there is nothing to rotate: one line says so, and nothing is made."""
    assert run(["rotate-token-keys", "--data", str(tmp_path)]) == 1
    assert "is no data directory of weir" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
