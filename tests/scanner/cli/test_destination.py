"""Where `weir scan -o` writes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import click
import pytest

from scanner.cli.destination import written


def test_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    """A failure leaves the old file and no other; success replaces it."""
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(KeyError):
        with written(path) as file:
            file.write(b"half")
            raise KeyError
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"
    with written(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power leaves the old file or the new one, and the new one once the command has ended."""
    acts: list[tuple[str, int]] = []
    replace, fsync = os.replace, os.fsync

    def replacing(source: str, target: Path) -> None:
        acts.append(("named", os.stat(source).st_ino))
        replace(source, target)

    def syncing(descriptor: int) -> None:
        found = os.fstat(descriptor)
        acts.append((f"synced {0 if stat.S_ISDIR(found.st_mode) else found.st_size} bytes", found.st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", syncing)
    with written(tmp_path / "out") as file:
        file.write(b"rows")
    number, folder = (tmp_path / "out").stat().st_ino, tmp_path.stat().st_ino
    assert acts == [("synced 4 bytes", number), ("named", number), ("synced 0 bytes", folder)]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "日" * 85, "😀" * 63])
def test_the_longest_names(tmp_path: Path, name: str) -> None:
    """Whatever the system takes as a name is one, in characters of any size."""
    with written(tmp_path / name) as file:
        file.write(b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(name, b"new")]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_mode_stays(tmp_path: Path, mode: int) -> None:
    """A file that is there keeps its mode; a new one gets that of the umask."""
    path = tmp_path / "out"
    path.touch()
    path.chmod(mode)
    with written(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)
    with written(tmp_path / "other") as file:
        file.write(b"new")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o666 & ~umask


def test_links_are_followed(tmp_path: Path) -> None:
    """What a link names is written, whether it is there or not, and the link stays one."""
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    link = tmp_path / "link"
    link.symlink_to(Path("folder") / "target")
    for text in (b"first", b"second"):
        with written(link) as file:
            file.write(text)
        assert link.is_symlink()
        assert target.read_bytes() == text
        assert not target.is_symlink()
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["target"]


def test_pipes_and_devices_are_written_to(tmp_path: Path) -> None:
    """A FIFO and a device stay what they are, and get what is written."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    with written(path) as file:
        file.write(b"rows")
    reader.join()
    assert got == [b"rows"]
    assert path.is_fifo()
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    with written(link) as file:
        file.write(b"rows")
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_open_descriptors_are_written_to(tmp_path: Path) -> None:
    """/dev/fd/N is the file that is open there, at the place where it is open."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        log.write(b"before ")
        log.flush()
        with written(Path(f"/dev/fd/{log.fileno()}")) as file:
            file.write(b"rows")
    assert path.read_bytes() == b"before rows"


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes], name: str) -> None:
    """A dash is standard output, and so are its other names."""
    with written(Path(name)) as file:
        file.write(b"rows")
    assert capfdbinary.readouterr().out == b"rows"


def test_folder_that_is_missing(tmp_path: Path) -> None:
    """The message names the folder that was asked for, and no temporary file."""
    path = tmp_path / "missing" / "x.json"
    with pytest.raises(click.ClickException) as failure:
        with written(path):
            pass
    assert failure.value.format_message() == f"cannot write {path}: there is no folder {tmp_path / 'missing'}"
