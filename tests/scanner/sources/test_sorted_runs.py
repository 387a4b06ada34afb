"""Sorted runs: merged in key order, on disk as in memory, and honest about a disk that fails."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, SnapshotLost, StoreFailed, TooManyFiles
from scanner.sources.sorted_runs import Entries, FileRun, MemoryRun, MergedRuns, Run, SpillFile, cut
from tests.support.file_limit import file_size_limit, no_more_files

ANY = 1 << 30
KEYS = st.binary(min_size=1, max_size=3)
RUN = st.dictionaries(KEYS, st.none() | st.binary(max_size=5), max_size=20)


def sorted_entries(content: dict[bytes, bytes | None]) -> Entries:
    """The entries of a dict, in key order."""
    keys = sorted(content)
    return Entries(keys, [content[key] for key in keys])


def spilled(file: SpillFile, content: dict[bytes, bytes | None], block_bytes: int = 450) -> FileRun:
    """A run on disk, of a few entries a block."""
    start = file.size_bytes
    for block in cut(sorted_entries(content), block_bytes):
        file.append(block)
    return FileRun(file, start, file.size_bytes)


@contextmanager
def spill_file(bytes_max: int = ANY) -> Iterator[SpillFile]:
    """A temporary file that is closed in the end."""
    file = SpillFile(None, bytes_max)
    try:
        yield file
    finally:
        file.close()


@given(st.lists(st.tuples(RUN, st.booleans()), max_size=6), st.integers(1, 30), KEYS | st.none())
def test_runs_are_read_as_one(
    contents: list[tuple[dict[bytes, bytes | None], bool]], count: int, last_key: bytes | None
) -> None:
    """Each key once and ascending, the first run's entry where they share it, up to the bound and no further."""
    with spill_file() as file:
        runs: list[Run] = [
            spilled(file, content) if on_disk else MemoryRun(sorted_entries(content), 200)
            for content, on_disk in contents
        ]
        merged = MergedRuns(runs)
        taken: list[tuple[bytes, bytes | None]] = []
        while (key := merged.next_key) is not None and (last_key is None or key <= last_key):
            entries, bound = merged.take(last_key, count)
            assert len(entries.keys) <= max(4 * count, len(runs) + count)
            assert entries.keys[0] == key
            assert bound is None or entries.keys[-1] <= bound
            assert merged.next_key is None or (bound is not None and merged.next_key > bound)
            taken += zip(*entries, strict=True)

    expected: dict[bytes, bytes | None] = {}
    for content, _ in reversed(contents):
        expected.update(content)
    assert taken == [(key, expected[key]) for key in sorted(expected) if last_key is None or key <= last_key]


def test_no_more_is_taken_of_many_runs_than_of_one() -> None:
    """At most four times what was asked for, whatever share of that each run has."""
    runs = [
        MemoryRun(sorted_entries({bytes([60 - 3 * at + run]): b"" for at in range(20)}), 200)
        for run in range(3)
    ]
    entries, _ = MergedRuns(list[Run](runs)).take(None, 1)
    assert 1 <= len(entries.keys) <= 4


def test_nothing_is_taken_of_no_runs() -> None:
    """Without runs everything up to any key has been taken."""
    merged = MergedRuns([])

    assert merged.next_key is None
    assert merged.take(b"k", 10) == (Entries([], []), b"k")
    assert merged.take(None, 10) == (Entries([], []), None)


@given(RUN, st.integers(1, 2000))
def test_blocks_are_cut_to_size(content: dict[bytes, bytes | None], bytes_max: int) -> None:
    """No entry is lost or moved, and a block takes no more than it may unless one entry does."""
    entries = sorted_entries(content)
    blocks = list(cut(entries, bytes_max))

    assert [key for block in blocks for key in block.keys] == entries.keys
    assert [row for block in blocks for row in block.rows] == entries.rows
    for block in blocks:
        size = sum(200 + len(key) + len(row or b"") for key, row in zip(*block, strict=True))
        assert size <= bytes_max or len(block.keys) == 1
    for one, other in pairwise(blocks):
        size = sum(200 + len(key) + len(row or b"") for key, row in zip(*one, strict=True))
        assert size + 200 + len(other.keys[0]) + len(other.rows[0] or b"") > bytes_max


def test_rows_of_a_block_stay_on_disk_until_they_are_wanted() -> None:
    """A run on disk that waits for its turn has the keys of one block in memory, and no rows."""
    with spill_file() as file:
        run = spilled(file, {bytes([number]): bytes(10_000) for number in range(50)}, 50_000)
        waiting, keys = run.memory_bytes, len(run.keys)
        run.take(1)
        assert waiting == (200 + 1) * keys < 2000
        assert 30_000 < run.memory_bytes < 60_000


def test_memory_runs_shrink_as_they_are_read() -> None:
    """What is taken counts no longer."""
    run = MemoryRun(sorted_entries({bytes([number]): b"row" for number in range(10)}), 300)
    assert run.memory_bytes == 3000
    run.take(4)
    assert run.memory_bytes == 1800


def test_an_empty_row_is_not_an_absent_one() -> None:
    """Both come back from disk as they were."""
    with spill_file() as file:
        run = spilled(file, {b"a": b"", b"b": None, b"c": b"row"}, 1000)
        assert run.take(3) == Entries([b"a", b"b", b"c"], [b"", None, b"row"])
        assert run.keys == []
        assert run.take(3) == Entries([], [])


def test_a_file_is_no_longer_than_it_may_be() -> None:
    """A block that does not fit any more is refused, and says which limit it was."""
    with spill_file(100) as file:
        file.append(Entries([b"a"], [b"row"]))
        with pytest.raises(SnapshotLost, match="overlay_spill_bytes_max"):
            file.append(Entries([b"b"], [bytes(80)]))


def test_a_full_disk_is_a_failed_store() -> None:
    """What the system refuses comes as one error, which names the directory."""
    with spill_file() as file, file_size_limit(1000):
        with pytest.raises(StoreFailed, match="make room there"):
            file.append(Entries([b"a"], [bytes(2000)]))


def test_a_directory_that_is_not_there_is_a_failed_store(tmp_path: Path) -> None:
    """The file cannot be made."""
    with pytest.raises(StoreFailed, match="nowhere"):
        SpillFile(tmp_path / "nowhere", ANY)


def test_no_descriptor_for_the_file_is_an_error_that_clients_try_again(tmp_path: Path) -> None:
    """It passes, and says nothing of the disk."""
    with no_more_files(), pytest.raises(TooManyFiles, match="ulimit"):
        SpillFile(tmp_path, ANY)


def test_a_disk_that_takes_a_part_of_a_write_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was given; what is read again is whole."""
    whole = os.pwrite

    def some(descriptor: int, data: memoryview, at: int) -> int:
        return whole(descriptor, data[: max(1, len(data) // 3)], at)

    monkeypatch.setattr(os, "pwrite", some)
    content: dict[bytes, bytes | None] = {bytes((number,)): bytes(number) for number in range(200)}
    with spill_file() as file:
        merged = MergedRuns([spilled(file, content)])
        found: dict[bytes, bytes | None] = {}
        while merged.next_key is not None:
            entries, _ = merged.take(None, 50)
            found.update(zip(*entries, strict=True))
    assert found == content


def test_no_directory_at_all_is_a_failed_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no temporary directory of the system can be written to, that is the same error."""

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(StoreFailed, match="No usable temporary directory"):
        SpillFile(None, ANY)


@pytest.mark.parametrize("bit", [0, 7])
def test_damage_on_disk_is_found(bit: int) -> None:
    """A bit that is another one when it is read back, wherever it is, is an error and never a row, or one less."""
    with spill_file() as file:
        file.append(Entries([b"key", b"other"], [b"row", None]))
        written = os.pread(file._file.fileno(), file.size_bytes, 0)
        for at, octet in enumerate(written):
            os.pwrite(file._file.fileno(), bytes([octet ^ 1 << bit]), at)
            with pytest.raises(DataCorrupted, match="other bytes than were written"):
                FileRun(file, 0, file.size_bytes).take(2)
            os.pwrite(file._file.fileno(), written, 0)
        assert FileRun(file, 0, file.size_bytes).take(2) == Entries([b"key", b"other"], [b"row", None])


def test_a_file_that_got_shorter_is_found() -> None:
    """So is a read that comes back short."""
    with spill_file() as file:
        file.append(Entries([b"key"], [b"row"]))
        os.ftruncate(file._file.fileno(), file.size_bytes - 1)
        with pytest.raises(DataCorrupted):
            FileRun(file, 0, file.size_bytes).take(1)


def test_the_file_has_no_name(tmp_path: Path) -> None:
    """Nothing is left in the directory, not even while it is open."""
    file = SpillFile(tmp_path, ANY)
    file.append(Entries([b"key"], [b"row"]))
    assert list(tmp_path.iterdir()) == []
    file.close()
    file.close()
