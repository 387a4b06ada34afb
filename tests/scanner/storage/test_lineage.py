"""Histories: what tells a bucket's own past from that of a copy of it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, SnapshotLost, TooManyFiles
from scanner.storage.group_states import GroupState
from scanner.storage.lineage import (
    HISTORIES_MAX,
    NO_HISTORY,
    Lineage,
    decode_lineage,
    encode_lineage,
)
from scanner.storage.rocksdb import durable_end
from scanner.storage.rocksdb.catalog import load_table_entry
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.store import RocksStore
from tests.support.living import copy_living
from tests.support.storage_tables import ITEMS, contents, put


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_state_is_of_the_history_that_wrote_its_last_change() -> None:
    """Before the first change there is none; where one history ends and the next begins, the older one counts."""
    lineage = Lineage().begin(_id(1), 0, 0).begin(_id(2), 10, 0).begin(_id(3), 30, 0)
    assert [lineage.history_of(offset) for offset in (0, 1, 10, 11, 30, 31, 99)] == [
        NO_HISTORY,
        *map(_id, (1, 1, 2, 2, 3, 3)),
    ]


def test_what_was_made_later_than_its_history_lasted_is_refused() -> None:
    """An id in the lineage is not enough: up to where the next history begins, and no further."""
    lineage = Lineage().begin(_id(1), 0, 0).begin(_id(2), 10, 0)
    good = [(NO_HISTORY, 0), (_id(1), 0), (_id(1), 10), (_id(2), 3), (_id(2), 999)]
    bad = [(NO_HISTORY, 1), (_id(1), 11), (_id(3), 0), (_id(3), 5)]
    assert [lineage.holds(*each) for each in good + bad] == [True] * len(good) + [False] * len(bad)
    lineage.require(_id(1), 10, 12, "the token")
    for history, offset, end in ((_id(1), 11, 12), (_id(2), 13, 12)):
        with pytest.raises(SnapshotLost, match=r"the token is as of .* another history"):
            lineage.require(history, offset, end, "the token")


def test_a_history_ends_where_the_next_one_begins() -> None:
    """The newest one with the log; one that is not known, or was forgotten, has nothing."""
    lineage = Lineage()
    assert (lineage.newest, lineage.end_of(NO_HISTORY, 0)) == (NO_HISTORY, 0)
    lineage = lineage.begin(_id(1), 5, 0).begin(_id(2), 10, 0).begin(_id(3), 30, 0)
    assert lineage.newest == _id(3)
    ends = [lineage.end_of(history, 99) for history in (NO_HISTORY, *map(_id, range(1, 5)))]
    assert ends == [0, 10, 30, 99, 0]
    for history, end in ((_id(1), 10), (_id(2), 30)):
        assert lineage.holds(history, end)
        assert not lineage.holds(history, end + 1)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "open", "copy", "lose"]), st.integers(0, 3), st.integers(1, 5)),
    max_size=40,
)


class _Copy:
    """A bucket as a list of what each change is: every commit makes changes that nobody else makes."""

    def __init__(self, log: tuple[object, ...] = (), lineage: Lineage = Lineage()) -> None:  # noqa: B008
        self.log, self.lineage, self.began = log, lineage, False


@given(steps=_STEPS, cut=st.integers(0, 100))
def test_a_state_is_held_by_those_copies_alone_that_have_it(
    steps: list[tuple[str, int, int]], cut: int
) -> None:
    """Copied, opened, written and cut at random: (history, offset) is good iff the changes before it are the same."""
    copies, ids = [_Copy()], iter(range(1, 1000))
    for what, which, count in steps:
        copy = copies[which % len(copies)]
        if what == "commit":
            if not copy.began:
                copy.lineage = copy.lineage.begin(_id(next(ids)), len(copy.log), 0)
                copy.began = True
            copy.log += tuple(object() for _ in range(count))
        elif what == "open":
            copies[which % len(copies)] = _Copy(copy.log, copy.lineage)
        elif what == "copy":
            # Of a server that runs, too: the copy is opened, the original goes on.
            copies.append(_Copy(copy.log, copy.lineage))
        else:
            kept = max(0, len(copy.log) - count)
            histories = tuple(each for each in copy.lineage.histories if each.start < kept)
            copies[which % len(copies)] = _Copy(copy.log[:kept], Lineage(histories))
    for made in copies:
        for offset in {min(cut, len(made.log)), len(made.log), len(made.log) // 2}:
            history = made.lineage.history_of(offset)
            for other in copies:
                same = other.log[:offset] == made.log[:offset] and offset <= len(other.log)
                assert (offset <= len(other.log) and other.lineage.holds(history, offset)) == same


def test_what_is_written_is_read_back() -> None:
    """All fields, of none to many histories; older ones than can be kept are forgotten, and so refused."""
    lineage = Lineage()
    for number in range(HISTORIES_MAX + 10):
        lineage = lineage.begin(_id(number + 1), 3 * number, 3 * number + number % 2)
        if number < 3 or number > HISTORIES_MAX + 7:
            assert decode_lineage(encode_lineage(lineage)) == lineage
    assert len(lineage.histories) == HISTORIES_MAX
    assert not lineage.holds(_id(5), 12)
    assert lineage.lost_changes == HISTORIES_MAX // 2


def test_histories_that_do_not_ascend_are_damage() -> None:
    """Where one begins tells where the one before ends: in another order they say nothing."""
    good = Lineage().begin(_id(1), 5, 0).begin(_id(2), 5, 0).begin(_id(3), 9, 0)
    assert decode_lineage(encode_lineage(good)) == good
    with pytest.raises(DataCorrupted, match="do not ascend"):
        decode_lineage(encode_lineage(Lineage(good.histories[::-1])))


def test_the_past_before_all_known_histories_is_nobodys() -> None:
    """Histories that were forgotten leave states that no history is known of: as of no later than the oldest began."""
    lineage = Lineage().begin(_id(1), 10, 0)
    assert [lineage.holds(NO_HISTORY, offset) for offset in (0, 1, 10, 11)] == [True, True, True, False]


@pytest.mark.parametrize("damage", [b"", b"\x02\0\0\0\x01", b"\x63" + bytes(36), bytes(3)])
def test_a_damaged_lineage_is_damage(damage: bytes) -> None:
    """Too short, or of another format: an error, never an empty lineage."""
    with pytest.raises(DataCorrupted, match="lineage"):
        decode_lineage(damage)


@pytest.mark.rocks
def test_each_open_that_writes_begins_a_history(tmp_path: Path) -> None:
    """The first commit after an open, whatever it is, and no other; an open that writes nothing leaves no trace."""
    histories = []
    for number in range(4):
        with RocksStore.open(tmp_path) as store:
            if not number:
                store.create_table(ITEMS)
            bucket = store.bucket("items", 0)
            assert [each.start for each in bucket.lineage.histories] == [2 * each for each in range(number)]
            before = bucket.lineage
            bucket.truncate_log(bucket.log_end)
            bucket.commit([[]])
            assert bucket.lineage == before
            for each in range(2):
                bucket.commit([[put(10 * number + each, "a")]])
            histories.append(bucket.lineage.histories[-1].history_id)
            assert len(set(histories)) == number + 1
        with RocksStore.open(tmp_path) as store:
            store.bucket("items", 0)


def _with_lost_tail(directory: Path, cut_bytes: int | None) -> int:
    """A bucket whose write-ahead log lost its end, or all of it; how many changes had been acknowledged."""
    data = directory / "data"
    with RocksStore.open(data) as store:
        store.create_table(ITEMS)
        store.bucket("items", 0).commit([[put(number, "a")] for number in range(5)])
    # Opening flushed nothing, and a close leaves the log as it is.
    with RocksStore.open(data) as store:
        bucket = store.bucket("items", 0)
        bucket.flush()
        bucket.commit([[put(number, "b")] for number in range(100, 107)])
        end = bucket.log_end
        copy_living(data, directory / "killed")
    (bucket_directory,) = (directory / "killed").glob("tables/*/0000")
    wal = max(bucket_directory.glob("*.log"), key=lambda path: int(path.stem))
    if cut_bytes is None:
        wal.unlink()
    else:
        with wal.open("r+b") as file:
            file.truncate(wal.stat().st_size - cut_bytes)
    return end


@pytest.mark.rocks
@pytest.mark.parametrize("cut_bytes", [1, None], ids=["one byte", "the file"])
def test_a_lost_tail_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut_bytes: int | None
) -> None:
    """Acknowledged commits that are gone are an error in the log, a count, and refused states."""
    end = _with_lost_tail(tmp_path, cut_bytes)
    with RocksStore.open(tmp_path / "killed") as store:
        bucket = store.bucket("items", 0)
        lost = end - bucket.log_end
        assert lost == 7
        assert f"{lost} acknowledged changes are lost" in caplog.text
        assert bucket.lost_changes == lost
        (path,) = (tmp_path / "killed").glob(f"tables/*/0000/{durable_end.NAME}")
        # What begins no history leaves it to the file to tell of the loss.
        bucket.commit_prepared(bucket.prepare([]), {"group": GroupState(1)})
        known = durable_end.read_durable_end(path.parent, _identity_of(path.parent))
        assert known is not None
        assert known.end == end
        bucket.commit([[put(500, "c")]])
        assert bucket.lost_changes == lost
        assert sorted(contents(bucket)) == [0, 1, 2, 3, 4, 500]
        with RocksStore.open(tmp_path / "data") as original:
            history = original.bucket("items", 0).lineage.history_of(end)
            assert not bucket.lineage.holds(history, end)
    # It stays counted, and is not found anew.
    caplog.clear()
    with RocksStore.open(tmp_path / "killed") as store:
        assert store.bucket("items", 0).lost_changes == lost
        assert "lost" not in caplog.text


@pytest.mark.rocks
def test_a_lost_tail_is_noticed_where_files_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor for the side file the bucket stays closed: its next commit would write over the file."""
    _with_lost_tail(tmp_path, None)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == durable_end.NAME:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(path)

    with RocksStore.open(tmp_path / "killed") as store:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", refuse)
            with pytest.raises(TooManyFiles, match=durable_end.NAME):
                store.bucket("items", 0)
        assert store.bucket("items", 0).lost_changes == 7


@pytest.mark.rocks
@pytest.mark.parametrize("content", [None, b"", b"WEND", bytes(33)])
def test_a_side_file_that_says_nothing_costs_nothing(tmp_path: Path, content: bytes | None) -> None:
    """Without it, or with one that a crash tore, the bucket opens; the next commit writes it again."""
    with RocksStore.open(tmp_path, StorageConfig()) as store:
        store.create_table(ITEMS)
        store.bucket("items", 0).commit([[put(1, "a")]])
    (path,) = tmp_path.glob(f"tables/*/0000/{durable_end.NAME}")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with RocksStore.open(tmp_path) as store:
        bucket = store.bucket("items", 0)
        assert (bucket.log_end, bucket.lost_changes) == (1, 0)
        bucket.commit([[put(2, "a")]])
    for identity, known in ((_identity_of(path.parent), True), (b"another bucket", False)):
        found = durable_end.read_durable_end(path.parent, identity)
        assert (found is not None and found.end == 2) == known


@pytest.mark.rocks
def test_a_side_file_of_another_bucket_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was copied over this bucket's, and tells of more changes than this one ever had: none of them is lost."""
    with RocksStore.open(tmp_path, StorageConfig()) as store:
        for table, changes in ((ITEMS, 1), (replace(ITEMS, name="others"), 9)):
            store.create_table(table)
            store.bucket(table.name, 0).commit([[put(key, "a") for key in range(changes)]])
    ours, others = sorted(tmp_path.glob(f"tables/*/0000/{durable_end.NAME}"))
    ours.write_bytes(others.read_bytes())
    with RocksStore.open(tmp_path) as store:
        assert (store.bucket("items", 0).log_end, store.bucket("items", 0).lost_changes) == (1, 0)
    assert "lost" not in caplog.text


def _identity_of(bucket: Path) -> bytes:
    entry = load_table_entry(bucket.parent)
    assert entry is not None
    return entry.bucket_identity(0)
