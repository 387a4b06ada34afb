"""The changelog in RocksDB: dense whatever was truncated, cheap to check, and its space comes back."""

from __future__ import annotations

import functools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, StoreClosed, StoreFailed
from scanner.storage.records import ChangeKind, Entry
from scanner.storage.rocksdb import bucket as rocks_bucket
from scanner.storage.rocksdb import log as rocks_log
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.changelog import LogRange, decode_chunk, last_key, log_key
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.log import (
    CHUNKS_AT_ONCE,
    KeySpan,
    LogFile,
    files_to_join,
    log_files,
    require_readable,
    unproven_spans,
)
from scanner.storage.rocksdb.log_reader import LogReader
from scanner.storage.rocksdb.space import DiskSpace, Room
from scanner.storage.rocksdb.sst_files import sst_files
from scanner.storage.rocksdb.store import RocksStore
from tests.support.changelog import chunks
from tests.support.changes import read_changes
from tests.support.file_limit import file_size_limit
from tests.support.living import copy_living
from tests.support.storage_damage import delete_change, flip, raw_database
from tests.support.storage_tables import ITEMS, changes_of, put, puts

if TYPE_CHECKING:
    from rocksdict import WriteBatch

    from scanner.storage.rocksdb.database import Database

_SMALL = StorageConfig(
    compression=Compression.NONE, bucket_write_buffer_bytes=64 * 1024, write_buffers_bytes=1024 * 1024
)


_WAIT_S: Final = 100
"""Far longer than anything takes: only what will never come takes it."""


def _file(start: int, end: int, entries: int, deletions: int) -> LogFile:
    # As if each chunk had ten changes.
    return LogFile(
        Path(), log_key(10 * start, start), log_key(10 * (end - 1), end - 1), entries, deletions, 1, 0
    )


def _dense(start: int, end: int) -> LogFile:
    return _file(start, end, end - start, 0)


def _hiding(start: int, end: int, entries: int = 1) -> LogFile:
    return _file(start, end, entries, 1)


@pytest.mark.parametrize(
    ("files", "log_range", "expected"),
    [
        ([], (0, 0), []),
        ([], (3, 9), [(3, 9)]),
        ([_dense(0, 9)], (0, 9), []),
        ([_dense(0, 9)], (4, 6), []),
        ([_dense(0, 4), _dense(6, 9)], (0, 9), [(4, 6)]),
        ([_dense(0, 4), _dense(2, 9)], (0, 9), []),
        ([_file(0, 9, 8, 0)], (0, 9), [(0, 9)]),
        ([_dense(0, 9), _hiding(0, 4)], (3, 9), [(3, 4)]),
        ([_dense(0, 9), _hiding(3, 4)], (0, 9), [(3, 4)]),
        ([_dense(0, 9), _hiding(0, 20, 12)], (5, 20), [(5, 20)]),
        ([_dense(0, 5), _dense(7, 9), _hiding(4, 8)], (0, 9), [(4, 8)]),
    ],
)
def test_only_what_no_file_vouches_for_is_counted(
    files: list[LogFile], log_range: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    """A full file without deletions proves its chunks, unless a deletion elsewhere may hide some."""
    start, end = log_range
    for order in (files, files[::-1]):
        spans = unproven_spans(order, LogRange(10 * start, 10 * end, start, end, 0, 0))
        assert [(span.start, span.end) for span in spans] == expected
        for span in spans:
            assert span.start_key <= log_key(10 * span.start, span.start)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each check of a log had to count."""
    counts: list[int] = []

    def counting(files: list[LogFile], log_range: LogRange) -> list[KeySpan]:
        spans = unproven_spans(files, log_range)
        counts.append(sum(span.end - span.start for span in spans))
        return spans

    monkeypatch.setattr(rocks_log, "unproven_spans", counting)
    return counts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with a log of twenty thousand commits, which tests copy: it takes a second to write."""
    directory = tmp_path_factory.mktemp("made") / "store"
    with RocksStore.open(directory, _SMALL) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for first in range(0, 20_000, 500):
            items = puts((number, "x" * 50) for number in range(first, first + 500))
            bucket.commit([[each] for each in items])
    return directory


@pytest.fixture
def full_log(made: Path, tmp_path: Path) -> Path:
    """A store of the test's own with that log."""
    return Path(shutil.copytree(made, tmp_path / "store"))


@pytest.mark.parametrize("compacted", [False, True])
def test_an_open_after_a_truncation_counts_little(
    full_log: Path, counted: list[int], compacted: bool
) -> None:
    """However often the log was truncated, the check at open reads no more than a few write buffers."""
    for start in (100, 5000, 5001, 12_345):
        with RocksStore.open(full_log, _SMALL) as store:
            bucket = store.bucket("items", 0)
            bucket.truncate_log(start)
            if compacted:
                bucket.compact()
    with RocksStore.open(full_log, _SMALL) as store:
        bucket = store.bucket("items", 0)
        assert (bucket.log_start, bucket.log_end) == (12_345, 20_000)
        assert len(changes_of(bucket)) == 7_655
    assert len(counted) == 4 + 1
    assert max(counted) == 0 if compacted else max(counted) < 5_000


@pytest.mark.parametrize("offset", [12_345, 12_346, 15_000, 19_998])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_hole_in_a_truncated_log_is_refused_at_open(full_log: Path, offset: int, compacted: bool) -> None:
    """The check finds one missing change wherever it is, beside deletions that are as they should be, each time.

    An error that somebody keeps keeps no file open.
    """
    with RocksStore.open(full_log, _SMALL) as store:
        store.bucket("items", 0).truncate_log(12_345)
        if compacted:
            store.bucket("items", 0).compact()
    delete_change(full_log, offset)
    kept = []
    with RocksStore.open(full_log, _SMALL) as store:
        for _ in range(2):
            with pytest.raises(
                DataCorrupted, match=r"1 of the 7655 pieces|the first changes of the log"
            ) as error:
                store.bucket("items", 0)
            kept.append(error)


def test_what_was_truncated_may_be_missing(full_log: Path) -> None:
    """Only the log's range must be dense: what is before it is nobody's."""
    with RocksStore.open(full_log, _SMALL) as store:
        store.bucket("items", 0).truncate_log(12_345)
    with raw_database(full_log) as raw:
        raw.get_column_family("log").delete(log_key(12_344, 12_344))
    with RocksStore.open(full_log, _SMALL) as store:
        assert store.bucket("items", 0).log_start == 12_345


def test_a_compaction_gives_the_space_of_a_truncated_log_back(full_log: Path) -> None:
    """The files shrink by about what was dropped, and log_bytes says the same before and after."""

    def size() -> int:
        return sum(path.stat().st_size for path in full_log.glob("tables/*/0000/*.sst"))

    with RocksStore.open(full_log, _SMALL) as store:
        bucket = store.bucket("items", 0)
        bucket.compact()
        full, log_full = size(), bucket.log_bytes
        bucket.truncate_log(18_000)
        log_left = bucket.log_bytes
        assert log_left == pytest.approx(log_full / 10, rel=0.3)
        bucket.compact()
        assert size() == pytest.approx(full - (log_full - log_left), rel=0.1)
        assert bucket.log_bytes == pytest.approx(log_left, rel=0.3)


def test_digits_take_less_in_the_log_than_they_are_long(tmp_path: Path) -> None:
    """Random hexadecimal digits have four bits each: LZ4 leaves all of them, zstd about five eighths."""
    texts = [random.Random(number).randbytes(200).hex() for number in range(2000)]
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts(enumerate(texts))])
        bucket.flush()
        assert bucket.log_bytes < 0.75 * sum(map(len, texts))
        assert [text for _, _, text in changes_of(bucket)] == texts


def test_a_block_of_small_commits_is_bounded_by_their_number(tmp_path: Path) -> None:
    """Each takes as long as hundreds of rows of a larger one, however few octets it has."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([[each] for each in puts((number, None) for number in range(CHUNKS_AT_ONCE + 3))])
        assert len(bucket.read_change_block(0, bucket.log_end, 1 << 30)) == CHUNKS_AT_ONCE
        assert len(bucket.read_change_block(CHUNKS_AT_ONCE, bucket.log_end, 1 << 30)) == 3


def test_a_log_whose_compression_changes_is_read_whole(tmp_path: Path) -> None:
    """Files that were written before are read beside those that are written now, and compacted with them."""
    texts = [random.Random(number).randbytes(200).hex() for number in range(300)]
    compressions = (Compression.LZ4, Compression.ZSTD, Compression.NONE)
    for number, compression in enumerate(compressions):
        with RocksStore.open(tmp_path, StorageConfig(log_compression=compression)) as store:
            if not number:
                store.create_table(ITEMS)
            bucket = store.bucket("items", 0)
            bucket.commit([puts((100 * number + each, texts[100 * number + each]) for each in range(100))])
            bucket.flush()
            expected = [("+I", each, text) for each, text in enumerate(texts[: 100 * (number + 1)])]
            assert changes_of(bucket) == expected
    with RocksStore.open(tmp_path) as store:
        store.bucket("items", 0).compact()
        assert changes_of(store.bucket("items", 0)) == expected


def test_a_log_that_is_cut_while_it_is_written_stays_small(
    full_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was truncated goes from the files, also where newer changes are in memory beside it."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    with RocksStore.open(full_log, _SMALL) as store:
        bucket = store.bucket("items", 0)
        for _ in range(10):
            bucket.commit([puts((key, "y" * 50) for key in range(3000))])
            bucket.truncate_log(bucket.log_end - 1000)
            bucket.free_log()
        assert bucket._lifetime.database is not None
        files = rocks_log.log_files(bucket._lifetime.database)
        assert sum(file.entries for file in files) < 40
        bucket.commit([[put(1, "z")]])


_GOOD = chunks(Entry(15_000, 15_001, 1, 1), 15_000, b"\x01", [b"row"])[0][1]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"short", b"", "none of a chunk"),
        (log_key(15_000, 15_000), b"\x01", "offset 15000 are damaged"),
        (log_key(15_000, 15_000), b"\x63" + _GOOD[1:], "format 99"),
        (log_key(15_000, 15_000), _GOOD[:-1], "offset 15000 are damaged"),
        (log_key(15_000, 15_000), _GOOD + b"x", "offset 15000 are damaged"),
        (log_key(15_000, 15_000), _GOOD.replace(b"\x01\x03\0\0\0row", b"\x09\x03\0\0\0row"), "no known kind"),
        (log_key(15_000, 15_000), None, "offset 15000 is missing"),
    ],
)
def test_records_that_are_none_are_damage(
    full_log: Path, key: bytes, value: bytes | None, message: str
) -> None:
    """Keys and chunks that are damaged, of another format, or gone are found by who needs them."""
    with RocksStore.open(full_log, _SMALL) as store:
        bucket = store.bucket("items", 0)
        bucket.truncate_log(10_000)
        database = bucket._lifetime.database
        assert database is not None
        if value is None:
            database.log.delete(key)
        else:
            database.log[key] = value
        bucket.flush()
        with pytest.raises(DataCorrupted, match=message):
            _ = bucket.log_bytes if key == b"short" else list(read_changes(bucket, 14_000, 16_000))


def test_what_is_in_front_of_damage_is_read(tmp_path: Path) -> None:
    """Also from the middle of the entry before it, where that has as much as is asked for, or more."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([[put(1, "a" * 50), put(2, "b")], [put(3, "c")]])
        (_, second, _) = read_changes(bucket, 0, 3)
        database = bucket._lifetime.database
        assert database is not None
        database.log[log_key(2, 1)] = b"damaged"
        assert bucket.read_change_block(1, 3, 50).rows == [second.row]
        with pytest.raises(DataCorrupted, match="offset 2 are damaged"):
            bucket.read_change_block(2, 3, 50)


_ROWS_OF_ENTRIES = st.lists(
    st.tuples(st.sampled_from(ChangeKind), st.one_of(st.binary(max_size=40), st.just(b"x" * 9))), min_size=1
)


@given(changes=_ROWS_OF_ENTRIES, repeat=st.sampled_from([1, 1, 50]), chunk_bytes=st.integers(1, 3000))
def test_an_entry_is_read_back_as_it_was(
    changes: list[tuple[ChangeKind, bytes]], repeat: int, chunk_bytes: int
) -> None:
    """However it is cut into chunks: kinds, rows and times are the same, and keys ascend without a gap."""
    changes *= repeat
    entry = Entry(70, 70 + len(changes), 12, -3)
    kinds, rows = bytes(kind for kind, _ in changes), [row for _, row in changes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scanner.storage.rocksdb.changelog.CHUNK_BYTES_MAX", chunk_bytes)
        found = [decode_chunk(key, value) for key, value in chunks(entry, 5, kinds, rows)]
    assert [chunk.ordinal for chunk in found] == list(range(5, 5 + len(found)))
    assert [chunk.offset for chunk in found] == [70, *(chunk.end for chunk in found[:-1])]
    assert all(chunk.entry == entry for chunk in found)
    assert [kind for chunk in found for kind in chunk.kinds] == list(kinds)
    assert [row for chunk in found for row in chunk.rows.to_list()] == rows
    assert all(chunk.rows.nbytes <= chunk_bytes or len(chunk) == 1 for chunk in found)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store whose log has 8 MB of what no compression makes less."""
    directory, draw = tmp_path_factory.mktemp("large") / "store", random.Random(1)
    with RocksStore.open(directory, _SMALL) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for number in range(80):
            bucket.commit([puts([(number, draw.randbytes(100_000).decode("latin-1"))])])
        bucket.compact()
    return directory


def _log_size(bucket: RocksBucket) -> int:
    with bucket._lifetime.using() as database:
        return sum(file.size_bytes for file in sst_files(database, database.log))


def test_what_was_truncated_takes_no_disk_though_nothing_is_written(large: Path, tmp_path: Path) -> None:
    """Of all or of a part; what is left is the log as it was, also when it is opened again."""
    path = shutil.copytree(large, tmp_path / "store")
    for start in (60, 80):
        with RocksStore.open(path, _SMALL) as store:
            bucket = store.bucket("items", 0)
            assert isinstance(bucket, RocksBucket)
            kept, before = changes_of(bucket)[start - bucket.log_start :], _log_size(bucket)
            bucket.truncate_log(start)
            bucket.free_log()
            assert _log_size(bucket) < before / 2
            assert changes_of(bucket) == kept
        with RocksStore.open(path, _SMALL) as store:
            assert changes_of(store.bucket("items", 0)) == kept


@pytest.mark.parametrize(
    ("start", "free_bytes", "frees"), [(5, 1 << 40, False), (20, 1_900_007, False), (20, 1_900_008, True)]
)
def test_no_more_is_written_again_than_is_freed(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, free_bytes: int, frees: bool
) -> None:
    """Files are left where more of them stays than goes, or the disk has no room for that and what is in memory."""
    compacted: list[bytes] = []
    monkeypatch.setattr(rocks_bucket, "cut_bytes", lambda *_: (start * 100_000, 1_900_000))
    monkeypatch.setattr(rocks_bucket, "unflushed_bytes", lambda _: 7)
    monkeypatch.setattr(rocks_bucket, "compact_log", lambda _, end_key: compacted.append(end_key))
    monkeypatch.setattr(DiskSpace, "_room", lambda _: Room(free_bytes, 1 << 50))
    with RocksStore.open(shutil.copytree(large, tmp_path / "store"), _SMALL) as store:
        bucket = store.bucket("items", 0)
        bucket.truncate_log(start)
        for _ in range(2):
            bucket.free_log()
    assert compacted == [last_key(start - 1)] * frees


def test_a_share_that_is_being_applied_is_not_taken_for_cut(tmp_path: Path) -> None:
    """Its changes are behind the log's end, and as large as they may be: nothing is flushed and written again."""
    draw = random.Random(1)
    with RocksStore.open(tmp_path, _SMALL) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for number in range(3):
            bucket.commit([[put(number, "x")]])
        bucket.truncate_log(1)
        part = [put(number, draw.randbytes(100_000).decode("latin-1")) for number in range(20)]
        bucket.commit_prepared(bucket.prepare([part]), unfinished=True)
        bucket.flush()
        assert not bucket.free_log()


_KIB, _MIB = 1024, 1024 * 1024


def _row(*sizes: int, level: int = 6) -> list[LogFile]:
    """Adjacent files of these sizes, a chunk each."""
    keys = [log_key(number, number) for number in range(len(sizes))]
    return [LogFile(Path(), key, key, 1, 0, size, level) for key, size in zip(keys, sizes, strict=True)]


@pytest.mark.parametrize(
    ("files", "joined"),
    [
        pytest.param(_row(*[2 * _KIB] * 16), (0, 0), id="few files"),
        pytest.param(_row(*[2 * _KIB] * 17), (0, 17), id="more files"),
        pytest.param(_row(*[2 * _KIB] * 50), (0, 32), id="as many as may be joined"),
        pytest.param(_row(*[2 * _MIB] * 18), (0, 0), id="few for so much"),
        pytest.param(_row(*[9 * _MIB] * 100), (0, 0), id="large ones"),
        pytest.param(_row(*[8 * _MIB] * 100), (0, 8), id="not so large ones"),
        pytest.param(
            _row(*[70 * _KIB] * 20, *[2 * _KIB] * 10, *[70 * _KIB, 2 * _KIB] * 2), (20, 30), id="small ones"
        ),
        pytest.param(_row(*[2 * _KIB] * 7, *[9 * _MIB] * 60, *[2 * _KIB] * 7), (0, 8), id="with a large one"),
    ],
)
def test_files_that_cost_the_least_are_joined(files: list[LogFile], joined: tuple[int, int]) -> None:
    """By what is written for each that goes; the order in which they are listed does not count."""
    expected = files[slice(*joined)]
    assert list(files_to_join(random.Random(1).sample(files, len(files)))) == expected


def test_what_overlaps_is_not_joined() -> None:
    """RocksDB would write the other file again, too, as one that cuts the log's beginning reaches over all of it."""
    files = _row(*[2 * _KIB] * 40)
    reaching = files[39]._replace(start_key=log_key(0), level=0)
    assert not files_to_join([*files[:39], reaching])
    assert not files_to_join(_row(*[2 * _KIB] * 40, level=0))
    # It begins in the twelfth and ends in the twentieth: those from the one to the other stay together.
    between = files[20]._replace(start_key=log_key(11, 11), end_key=log_key(19, 19), level=5, size_bytes=_MIB)
    assert list(files_to_join([*files[:20], between, *files[21:]])) == files[21:]


@pytest.fixture
def of_ten_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksBucket]:
    """A bucket whose log has ten files, all on the last level, of which nine are left as they are."""
    monkeypatch.setattr(rocks_log, "_FILES_MAX", 9)
    with RocksStore.open(tmp_path / "store") as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        assert isinstance(bucket, RocksBucket)
        for number in range(10):
            bucket.commit([puts((key, "x") for key in range(3 * number, 3 * number + 3))])
            bucket.flush()
            bucket.compact()
        yield bucket


def _files(bucket: RocksBucket) -> list[LogFile]:
    with bucket._lifetime.using() as database:
        return log_files(database)


def test_many_small_files_become_one(of_ten_files: RocksBucket) -> None:
    """What is read is the same, before and after the bucket is opened anew, and it is cut as before."""
    bucket, changes = of_ten_files, changes_of(of_ten_files)
    assert [len(_files(bucket)), bucket.join_log(), len(_files(bucket))] == [10, True, 1]
    assert not bucket.join_log()
    assert changes_of(bucket) == changes
    bucket.truncate_log(6)
    bucket.suspend()
    assert changes_of(bucket) == changes[6:]


@pytest.mark.parametrize("number", [0, 4, 9])
def test_a_damaged_file_is_not_joined(of_ten_files: RocksBucket, number: int) -> None:
    """It is found before RocksDB compacts, and would take no writes behind it; who reads elsewhere meets nothing."""
    ordered = sorted(_files(of_ten_files), key=lambda file: file.start_key)
    flip(Path(ordered[number].path), 20)
    for _ in range(2):
        with pytest.raises(DataCorrupted, match="are damaged"):
            of_ten_files.join_log()
        of_ten_files.commit([[put(100, "x")]])
    assert [len(_files(of_ten_files)), of_ten_files.failure] == [10, None]


def test_files_may_end_with_what_was_deleted(of_ten_files: RocksBucket) -> None:
    """Their last keys are then not those of chunks, and nothing is there behind the last chunk."""
    files = sorted(_files(of_ten_files), key=lambda file: file.start_key)
    with of_ten_files._lifetime.using() as database:
        require_readable(database, [*files[:-1], files[-1]._replace(end_key=log_key(1000))])


@pytest.mark.parametrize(("more", "joins"), [(0, False), (1, True)])
def test_files_are_joined_beside_the_reserve_only(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch, more: int, joins: bool
) -> None:
    """A disk that is nearly full has something better to do."""
    size = sum(file.size_bytes for file in _files(of_ten_files))
    room = Room(StorageConfig().disk_reserve_bytes + size + more, 1 << 50)
    monkeypatch.setattr(DiskSpace, "_room", lambda _: room)
    assert of_ten_files.join_log() == joins


@pytest.mark.parametrize("frees", [False, True])
def test_a_cut_writes_nothing_again_that_stays(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch, *, frees: bool
) -> None:
    """Not in the files behind the cut, and not when newer changes get a place beside them."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    bucket, before = of_ten_files, sorted(file.path for file in _files(of_ten_files))
    bucket.truncate_log(15)
    bucket.commit([[put(100, "x")]])
    changes = changes_of(bucket)
    assert not frees or bucket.free_log()
    bucket.flush()
    with bucket._lifetime.using() as database:
        database.log.compact_range(log_key(bucket.log_end - 1), None)
    after = sorted(file.path for file in _files(bucket))
    assert after[:-1] == before[5 * frees :]
    bucket.suspend()
    assert changes_of(bucket) == changes


def test_what_is_damaged_can_be_cut(of_ten_files: RocksBucket) -> None:
    """The time of the newest commit that goes is not known then."""
    flip(Path(sorted(_files(of_ten_files), key=lambda file: file.start_key)[3].path), 20)
    of_ten_files.truncate_log(15)
    assert (of_ten_files.log_start, of_ten_files.truncated_commit_us) == (15, None)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_cut_and_damaged_stays(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The bucket takes writes, also after RocksDB has compacted newer files; mended, what is cut goes."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    bucket = of_ten_files
    ordered = sorted(_files(bucket), key=lambda file: file.start_key)
    bucket.truncate_log(15)
    flip(Path(ordered[number].path), 20)
    for key in range(100, 106):
        with pytest.raises(DataCorrupted, match="are damaged"):
            bucket.free_log()
        bucket.commit([[put(key, "x")]])
        bucket.flush()
    assert bucket.failure is None
    flip(Path(ordered[number].path), 20)
    bucket.suspend()
    assert bucket.free_log()
    assert not {Path(file.path) for file in ordered[:5]} & {Path(file.path) for file in _files(bucket)}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were read each time that some were, to be cut."""
    read, counts = require_readable, list[int]()

    def counted(database: Database, files: list[LogFile], on_chunk: Callable[[], None]) -> None:
        counts.append(len(files))
        read(database, files, on_chunk)

    monkeypatch.setattr(rocks_bucket, "require_readable", counted)
    return counts


@pytest.mark.parametrize("number", [0, 4])
def test_what_is_all_cut_and_damaged_stops_no_writes(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch, reads: list[int], number: int
) -> None:
    """The last entry stays until the file is mended; that is damaged is found once for each opening."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    bucket = of_ten_files
    path = Path(sorted(_files(bucket), key=lambda file: file.start_key)[number].path)
    flip(path, 20)
    for key in range(100, 106):
        bucket.truncate_log(bucket.log_end)
        assert bucket.log_end - bucket.log_start == (3 if key == 100 else 1)
        with pytest.raises(DataCorrupted, match="are damaged"):
            bucket.free_log()
        bucket.commit([[put(key, "x")]])
        bucket.flush()
    assert (bucket.failure, reads) == (None, [10])
    flip(path, 20)
    bucket.suspend()
    bucket.truncate_log(bucket.log_end)
    assert bucket.free_log()
    assert (bucket.log_start, _files(bucket)) == (bucket.log_end, [])


def test_what_was_read_before_is_cut_without_reading(of_ten_files: RocksBucket, reads: list[int]) -> None:
    """Nobody commits beside a truncation, and reading a large log takes seconds."""
    assert of_ten_files.log_is_readable()
    of_ten_files.truncate_log(of_ten_files.log_end)
    assert (of_ten_files.log_start, reads) == (30, [10])


@pytest.mark.parametrize("ending", [RocksBucket.close, functools.partial(RocksBucket.suspend, leaving=True)])
def test_who_closes_a_bucket_does_not_wait_until_its_log_is_read(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch, ending: Callable[[RocksBucket], None]
) -> None:
    """What is cut may be GiBs, which are read before they go."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    read, closing = require_readable, list[threading.Thread]()

    def close_meanwhile(database: Database, files: list[LogFile], on_chunk: Callable[[], None]) -> None:
        closing.append(threading.Thread(target=ending, args=(of_ten_files,)))
        closing[0].start()

        def endless() -> None:
            while True:
                on_chunk()

        read(database, files, endless)

    monkeypatch.setattr(rocks_bucket, "require_readable", close_meanwhile)
    of_ten_files.truncate_log(15)
    with pytest.raises(StoreClosed):
        of_ten_files.free_log()
    closing[0].join()


def test_a_compaction_that_was_refused_is_known_before_a_write_fails(of_ten_files: RocksBucket) -> None:
    """RocksDB takes no writes after it; opened anew at once, the bucket does, and no writer notices."""
    with file_size_limit(16), pytest.raises(StoreFailed, match="File too large"):
        of_ten_files.join_log()
    assert "File too large" in str(of_ten_files.failure)
    of_ten_files.reopen(writable=True)
    of_ten_files.commit([[put(100, "x")]])
    assert of_ten_files.join_log()


def test_a_cut_that_was_not_durable_is_not_freed(
    of_ten_files: RocksBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails while what it cuts is read, and the bucket is opened anew before that is deleted."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    bucket, lifetime, before = of_ten_files, of_ten_files._lifetime, changes_of(of_ten_files)
    read, close = require_readable, lifetime._close
    reading, closing, freed = threading.Event(), threading.Event(), list[Future[bool]]()

    def read_meanwhile(database: Database, files: list[LogFile], on_chunk: Callable[[], None]) -> None:
        reading.set()
        assert closing.wait(_WAIT_S)
        read(database, files, on_chunk)

    def close_meanwhile() -> None:
        closing.set()
        close()

    with ThreadPoolExecutor(1) as threads:

        def fail(database: Database, batch: WriteBatch) -> NoReturn:
            freed.append(threads.submit(bucket.free_log))
            assert reading.wait(_WAIT_S)
            raise StoreFailed("the disk refused")

        monkeypatch.setattr(rocks_bucket, "require_readable", read_meanwhile)
        monkeypatch.setattr(lifetime, "_close", close_meanwhile)
        with monkeypatch.context() as patch:
            patch.setattr(rocks_bucket, "write_synced", fail)
            with pytest.raises(StoreFailed, match="nothing of this write is promised"):
                bucket.truncate_log(15)
        bucket.reopen(writable=True)
        assert not freed[0].result(_WAIT_S)
    assert (bucket.log_start, changes_of(bucket)) == (0, before)


def test_a_log_that_was_freed_needs_no_write_ahead_log(
    of_ten_files: RocksBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it begins is in a file before what is in front of that goes, also if no compaction follows."""
    monkeypatch.setattr(rocks_bucket, "_FREED_BYTES_MIN", 1)
    monkeypatch.setattr(rocks_bucket, "compact_log", lambda *_: None)
    of_ten_files.truncate_log(15)
    of_ten_files.commit([[put(100, "x")]])
    assert of_ten_files.free_log()
    copy = copy_living(tmp_path / "store", tmp_path / "copy")
    for log in copy.glob("tables/*/*/*.log"):
        log.unlink()
    with RocksStore.open(copy) as store:
        assert changes_of(store.bucket("items", 0)) == changes_of(of_ten_files)


def test_the_search_for_a_time_ends_in_a_log_that_was_longer_when_it_began(tmp_path: Path) -> None:
    """The bucket was opened anew meanwhile, after a failed write, and has lost its newest changes."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "a") for number in range(3))], clock_us=100)
        found = bucket._state.log_range
        ranges = iter([found._replace(end=1000), *[found] * 20])
        lifetime = bucket._lifetime
        using = functools.partial(lifetime.using, after_failure=True)
        reader = LogReader(tmp_path, bucket._keys_of, using, lifetime.require_open, lambda: next(ranges))
        assert reader.offset_at(101) == 3
