"""Files that are replaced, and directories that threads make at a time.

Checkpoints of two buckets of a new table are in a directory that neither has.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from scanner.errors import StoreFailed
from scanner.storage.rocksdb.files import DirectoryHandle, disk_errors, make_directories, replace_file
from tests.support.faulty_disk import faulty_disk
from tests.support.sync_spy import spying_on_syncs

THREADS = 8
ROUNDS = 100


def test_threads_that_make_directories_with_a_common_ancestor_all_succeed(tmp_path: Path) -> None:
    """Eight threads at a time, a new ancestor each time."""
    barrier = Barrier(THREADS)

    def make(bucket: int) -> None:
        for table in range(ROUNDS):
            barrier.wait()
            try:
                make_directories(tmp_path / "checkpoints" / str(table) / str(bucket), tmp_path)
            except BaseException:
                barrier.abort()
                raise

    with ThreadPoolExecutor(THREADS) as pool:
        made = [pool.submit(make, bucket) for bucket in range(THREADS)]
    failures = [done.exception() for done in made]
    assert [each for each in failures if each is not None and not isinstance(each, BrokenBarrierError)] == []
    assert len([*tmp_path.glob("checkpoints/*/*")]) == THREADS * ROUNDS


def test_directories_are_durable_also_at_the_second_attempt(tmp_path: Path) -> None:
    """One that was made, and whose name the disk then refused to sync, does not pass for one that was there."""
    with spying_on_syncs() as spy:
        for at in range(6):
            wanted = tmp_path / str(at) / "table" / "bucket"
            with faulty_disk(at, kill=False), pytest.raises(StoreFailed):
                make_directories(wanted, tmp_path)
            make_directories(wanted, tmp_path)
            assert wanted.is_dir()
            assert spy.pending() == []


@pytest.mark.parametrize("wanted", ["taken", "taken/bucket"])
def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path, wanted: str) -> None:
    """It is not taken for one that another thread has made, and told of as the file that it is."""
    (tmp_path / "taken").touch()
    with pytest.raises(StoreFailed, match="/taken: Not a directory"):
        make_directories(tmp_path / wanted, tmp_path)


@pytest.mark.parametrize(
    "refusal", [PermissionError(), OSError(errno.EINVAL, "no such user in this container")]
)
def test_a_file_belongs_to_whom_its_directory_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError
) -> None:
    """What root writes is given to that user before it is in place, and who may not give it away keeps it."""
    given: list[tuple[int, int]] = []
    path = tmp_path / "document"

    def give(_descriptor: int, user: int, group: int) -> None:
        assert not path.exists()
        given.append((user, group))
        raise refusal

    owner = tmp_path.stat()
    monkeypatch.setattr(os, "fchown", give)
    replace_file(path, b"one")
    path.unlink()
    assert given == []
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    replace_file(path, b"two")
    assert (given, path.read_bytes()) == ([(owner.st_uid, owner.st_gid)], b"two")


def test_a_directory_that_does_not_answer_is_a_typed_error(tmp_path: Path) -> None:
    """Whoever asks whether it is in its place catches that: a disk that is gone is none of our bugs."""
    directory = DirectoryHandle(tmp_path)
    directory.close()  # The system refuses what it is asked of it, as of one whose disk is gone.
    for ask in (directory.require_in_place, lambda: directory.lasting(tmp_path / "tables")):
        with pytest.raises(StoreFailed, match=f"^{tmp_path}: .*; its disk is gone: "):
            ask()


def test_what_is_refused_of_a_descriptor_is_named_by_its_path(tmp_path: Path) -> None:
    """Python says its number, which is nobody's file."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(StoreFailed, match=f"^{tmp_path}: Bad file descriptor"), disk_errors(tmp_path):
        os.chmod(descriptor, 0o700)
