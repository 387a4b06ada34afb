"""Splits measured in RocksDB's files: indexes are read as they are written, and damage only makes cuts coarser."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.data.key_ranges import SplitWish, ranges_between
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.table import TableDescription
from scanner.storage.records import Mutation
from scanner.storage.rocksdb import bucket_splits, sst_index
from scanner.storage.rocksdb.config import Compression, StorageConfig
from scanner.storage.rocksdb.sst_files import SstFile, sst_files
from scanner.storage.rocksdb.sst_index import SstIndex
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.splits import Piece
from tests.support.storage_tables import ITEMS, contents, delete, drain, item_key, puts

if TYPE_CHECKING:
    from scanner.storage.rocksdb.bucket import RocksBucket
    from scanner.storage.rocksdb.database import Database
    from scanner.storage.rocksdb.readers import Reading

pytestmark = pytest.mark.rocks

ROWS = 5000


def filled(path: Path, compression: Compression = Compression.LZ4, *, flushed: bool = True) -> RocksStore:
    """A store with rows of a hundred octets in one bucket, in files of some levels."""
    store = RocksStore.open(path, StorageConfig(compression=compression))
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    for part in range(2):
        bucket.commit([puts((number, f"{number:x}".rjust(100)) for number in range(part, ROWS, 2))])
        if flushed:
            flush(bucket)
    return store


def flush(bucket: RocksBucket) -> None:
    """Have what is in memory written to files."""
    assert bucket._lifetime.database is not None
    bucket._lifetime.database.kv.flush()


def files_of(bucket: RocksBucket) -> list[SstFile]:
    """The files of a bucket's rows."""
    assert bucket._lifetime.database is not None
    return sst_files(bucket._lifetime.database, bucket._lifetime.database.kv)


def halved(number: int) -> tuple[int, str]:
    """A row of two thousand octets, of which about the half is left when it is compressed."""
    return number, random.Random(number).randbytes(500).hex() + "x" * 1000


def rows_in(bucket: RocksBucket, ranges: list[KeyRange]) -> list[int]:
    """How many rows each range has."""
    counts = []
    for each in ranges:
        scan = bucket.open_snapshot().scan(each)
        counts.append(len(drain(scan, rows_max=10_000, bytes_max=1 << 24)))
        scan.close()
    return counts


@pytest.mark.parametrize("compression", Compression)
def test_an_index_is_read_as_it_was_written(tmp_path: Path, compression: Compression) -> None:
    """With each compression: keys and ends ascend, up to the file's last row, and rows lie where the index says."""
    with filled(tmp_path, compression) as store:
        files = files_of(store.bucket("items", 0))
        assert len(files) == 2
        for file in files:
            index = SstIndex.read(file.path)
            keys = [index.key(number) for number in range(len(index))]
            ends = [index.end_offset(number) for number in range(len(index))]
            assert len(keys) > 5
            assert all(one < other for one, other in pairwise(keys))
            assert all(one < other for one, other in pairwise(ends))
            assert keys[0] > file.start_key
            assert keys[-1] >= file.end_key
            assert file.size_bytes * 0.75 < ends[-1] < file.size_bytes
            assert [index.count_before(key) for key in keys] == list(range(len(keys)))
            assert index.count_before(b"") == 0
            assert index.count_before(b"\xff" * 9) == len(index)


@pytest.mark.parametrize("compression", Compression)
def test_an_index_of_long_keys_is_compressed(tmp_path: Path, compression: Compression) -> None:
    """RocksDB compresses an index where that helps, and then it is read all the same."""
    table = TableDescription("long", pa.schema([("id", pa.string())]), ("id",), 1)
    with RocksStore.open(tmp_path, StorageConfig(compression=compression)) as store:
        store.create_table(table)
        bucket = store.bucket("long", 0)
        rows = pa.record_batch(
            [[f"{'https://example.org/' * 20}{number:06}" for number in range(3000)]], ["id"]
        )
        encoded = store.key_codec("long").encode_batch(rows), store.row_codec("long").encode_batch(rows)
        bucket.commit([list(map(Mutation, *encoded))])
        flush(bucket)
        (file,) = files_of(bucket)
        index = SstIndex.read(file.path)
        keys = [index.key(number) for number in range(len(index))]
        assert len(keys) > 50
        assert keys == sorted(keys)
        assert sum(map(len, keys)) > 20_000
        if compression is not Compression.NONE:
            assert file.size_bytes < 2 * sum(map(len, keys))


@example(b"\xff" * 100)
@given(st.binary(max_size=8))
def test_octets_that_are_no_index(octets: bytes) -> None:
    """Too few for an entry and its place, or fewer than they are said to be: a ValueError."""
    with pytest.raises(ValueError, match="an index"):
        SstIndex(octets)


@given(st.binary(min_size=1, max_size=100), st.lists(st.integers(0, 120), min_size=1, max_size=20))
def test_entries_that_are_none(octets: bytes, starts: list[int]) -> None:
    """Each is taken for a key that stands there, or is a ValueError, wherever it is said to start."""
    block = octets + struct.pack(f"<{len(starts)}II", *starts, len(starts))
    index = SstIndex(block)
    assert len(index) == len(starts)
    for number, start in enumerate(starts):
        with suppress(ValueError):
            assert index.key(number) in block[start:]
            assert index.end_offset(number) > 0


@pytest.mark.parametrize("kept", [0, 10, 52, 53, 1000, -1, -53])
def test_a_file_that_was_cut_off(tmp_path: Path, kept: int) -> None:
    """It is no file with an index."""
    with filled(tmp_path / "data") as store:
        whole = files_of(store.bucket("items", 0))[0].path.read_bytes()
    cut = tmp_path / "cut.sst"
    cut.write_bytes(whole[:kept])
    with pytest.raises(ValueError, match=r"\w"):
        SstIndex.read(cut)


@given(position=st.integers(0, 200), octet=st.integers(0, 255))
def test_a_damaged_block_is_no_crash(position: int, octet: int) -> None:
    """Whatever one octet of an index becomes: samples, or a ValueError."""
    entry = b"\x00\x01%c\x80\x01\x40"
    block = bytearray(b"".join(entry % letter for letter in b"abc"))
    block += b"".join((6 * number).to_bytes(4, "little") for number in range(3)) + (3).to_bytes(4, "little")
    assert SstIndex(bytes(block)).key(2) == b"c"
    assert SstIndex(bytes(block)).end_offset(2) == 128 + 64 + 5
    block[position % len(block)] = octet
    try:
        index = SstIndex(bytes(block))
        assert all(isinstance(index.key(number), bytes) for number in range(len(index)))
    except ValueError:
        pass


def test_an_index_that_cannot_be_read_makes_cuts_coarser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such file is one piece, and the log names it; no row is lost."""

    def refuse(path: Path) -> SstIndex:
        raise ValueError("a file of version 9")

    with filled(tmp_path) as store:
        bucket = store.bucket("items", 0)
        monkeypatch.setattr(SstIndex, "read", refuse)
        ranges = ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=4)).cuts)
        part = KeyRange(item_key(100), item_key(200))
        assert bucket.split(SplitWish(splits=4), part).cuts == ()
        assert sum(rows_in(bucket, ranges)) == ROWS
        assert len(ranges) <= 2
    assert "splits are coarser: a file of version 9" in caplog.text


def test_a_file_that_a_compaction_took_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are listed again; if they are gone each time, each is one piece. Nothing is lost or reported."""
    with filled(tmp_path) as store:
        bucket = store.bucket("items", 0)
        listed = files_of(bucket)
        bucket.compact()
        gone = [file._replace(path=file.path.with_suffix(".gone")) for file in listed]
        whole = bucket.split(SplitWish(splits=4)).cuts
        listings = iter([gone, gone, files_of(bucket)])
        with monkeypatch.context() as patch:
            patch.setattr(bucket_splits, "sst_files", lambda *_: next(listings))
            assert bucket.split(SplitWish(splits=4)).cuts == whole
        monkeypatch.setattr(bucket_splits, "sst_files", lambda *_: gone)
        ranges = ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=4)).cuts)
        assert sum(rows_in(bucket, ranges)) == ROWS


def test_rows_in_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only samples of the indexes are: at most 64 a part and file, however many blocks there are."""
    with filled(tmp_path) as store:
        bucket = store.bucket("items", 0)
        looked_at: list[int] = []
        real = SstIndex.end_offset

        def end_offset(self: SstIndex, number: int) -> int:
            looked_at.append(number)
            return real(self, number)

        monkeypatch.setattr(SstIndex, "end_offset", end_offset)
        monkeypatch.setattr(bucket_splits, "_walk", None)
        monkeypatch.setattr(bucket_splits, "_PIECES_PER_SPLIT", 4)
        monkeypatch.setattr(bucket_splits, "_PIECES_MIN", 1)
        assert len(bucket.split(SplitWish(splits=2)).cuts) == 1
        assert 0 < len(looked_at) <= 2 * 2 * 4


def test_a_walk_keeps_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows in memory: neighbours are joined as they come, and parts are about equal all the same."""
    monkeypatch.setattr(bucket_splits, "_PIECES_MAX", 100)
    with filled(tmp_path, flushed=False) as store:
        bucket = store.bucket("items", 0)
        counts = rows_in(bucket, ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=4)).cuts))
        assert len(counts) == 4
        assert all(abs(count - ROWS / 4) < ROWS / 20 for count in counts)


@pytest.mark.parametrize("compression", Compression)
def test_rows_behind_and_before_all_files_count(tmp_path: Path, compression: Compression) -> None:
    """Keys that ascend are in memory behind what is in files: parts are about equal all the same, and bytes add up.

    Files are compressed, and rows in memory are not.
    """
    with RocksStore.open(tmp_path, StorageConfig(compression=compression)) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts(map(halved, range(2000)))])
        flush(bucket)
        flushed = bucket.split(SplitWish(splits=1)).stored_bytes
        for numbers in (range(2000, 2800), range(-200, 0)):
            bucket.commit([puts(map(halved, numbers))])
        split = bucket.split(SplitWish(splits=5))
        counts = rows_in(bucket, ranges_between(ALL_KEYS, split.cuts))
        assert counts == pytest.approx([600] * 5, abs=30)
        assert split.stored_bytes == pytest.approx(1.5 * flushed, rel=0.1)
        part = KeyRange(item_key(-100), item_key(100))
        counts = rows_in(bucket, ranges_between(part, bucket.split(SplitWish(splits=2), part).cuts))
        assert counts == pytest.approx([100] * 2, abs=10)


def test_files_of_many_more_rows_are_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compress to less than what is in memory: their indexes tell, and only what is outside of them is walked."""
    with RocksStore.open(tmp_path, StorageConfig(compression=Compression.ZSTD)) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([puts((number, "x" * 500) for number in range(ROWS))])
        flush(bucket)
        big = [(number, random.Random(number).randbytes(2000).hex()) for number in range(ROWS, ROWS + 100)]
        bucket.commit([puts(big)])
        (file,) = files_of(bucket)
        assert file.size_bytes < 100 * 4000
        walked: list[KeyRange] = []
        real = bucket_splits._walk

        def walk(database: Database, reading: Reading, key_range: KeyRange) -> list[Piece]:
            walked.append(key_range)
            return real(database, reading, key_range)

        monkeypatch.setattr(bucket_splits, "_walk", walk)
        ranges = ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=8)).cuts)
        assert [each for each in walked if each.start < item_key(ROWS - 1) and not each.end] == []
        counts = rows_in(bucket, ranges)
        assert sum(counts) == ROWS + 100
        assert all(counts)


def test_rows_that_are_known_are_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the files is cut between the pieces that are known, and counts as it would if it were walked.

    Pieces that are large beside a part are not taken.
    """
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        rows = puts(map(halved, range(2400)))
        bucket.commit([rows[:800]])
        flush(bucket)
        bucket.commit([rows[800:]])
        known = [
            Piece(rows[end - 1].key, sum(len(row.key) + len(row.row or b"") for row in rows[end - 50 : end]))
            for end in range(50, 2401, 50)
        ]
        walked = bucket.split(SplitWish(splits=3))
        assert bucket.split(SplitWish(splits=30), known=known) == bucket.split(SplitWish(splits=30))
        monkeypatch.setattr(bucket_splits, "_walk", None)
        split = bucket.split(SplitWish(splits=3), known=known)
        counts = rows_in(bucket, ranges_between(ALL_KEYS, split.cuts))
        assert counts == pytest.approx([800] * 3, abs=50)
        assert split.stored_bytes == pytest.approx(walked.stored_bytes, rel=0.05)


def test_a_walk_holds_one_row_at_a_time(tmp_path: Path) -> None:
    """Rows of a mebibyte do not add up in memory."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        row = "x" * (1 << 20)
        bucket.commit([puts((number, row) for number in range(16))])
        tracemalloc.start()
        try:
            assert len(bucket.split(SplitWish(splits=4)).cuts) == 3
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * len(row)


@pytest.mark.parametrize("seed", range(3))
def test_splits_have_each_row_once(tmp_path: Path, seed: int) -> None:
    """Whatever was put, deleted, flushed and compacted, of the bucket or of a range: as many rows as one scan has."""
    rng = random.Random(seed)
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        for _ in range(12):
            keys = range(start := rng.randrange(400), start + rng.randrange(1, 60))
            match rng.choice(["put", "put", "delete", "flush", "compact"]):
                case "put":
                    bucket.commit([puts((key, "x" * rng.choice([1, 50, 5000])) for key in keys)])
                case "delete":
                    bucket.commit([[delete(key) for key in keys]])
                case "flush":
                    flush(bucket)
                case _:
                    bucket.compact()
            for part in (ALL_KEYS, KeyRange(item_key(keys[0]), item_key(keys[-1] + 30))):
                wish = rng.randrange(1, 40)
                ranges = ranges_between(part, bucket.split(SplitWish(splits=wish), part).cuts)
                assert len(ranges) <= wish
                assert sum(rows_in(bucket, ranges)) == sum(rows_in(bucket, [part]))


def test_nothing_stays_open(tmp_path: Path) -> None:
    """A split holds no iterator and locks no directory, flushed or not, idle or not."""
    for flushed in (True, False):
        with filled(tmp_path / str(flushed), flushed=flushed) as store:
            bucket = store.bucket("items", 0)
            bucket.close_idle()
            assert bucket.idle
            assert len(bucket.split(SplitWish(splits=3)).cuts) == 2
            assert bucket.open_iterators == 0
        with RocksStore.open(tmp_path / str(flushed)) as again:
            assert len(contents(again.bucket("items", 0))) == ROWS


@pytest.mark.parametrize("octet", [1, 0x80, 0xFF])
def test_a_damaged_index_makes_cuts_coarser(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, octet: int
) -> None:
    """What is wrong with it may show only as its samples are read; a file takes no more than it has."""
    with filled(tmp_path, Compression.NONE) as store:
        bucket = store.bucket("items", 0)
        for file in files_of(bucket):
            content = bytearray(file.path.read_bytes())
            offset, length = sst_index._index_handle(bytes(content[-53:]))
            for number in (1, 3, 4, 5):
                content[offset + number : offset + length - 4 : 7] = [octet] * len(
                    content[offset + number : offset + length - 4 : 7]
                )
            file.path.write_bytes(content)
        for part in (ALL_KEYS, KeyRange(item_key(100), item_key(4000))):
            split = bucket.split(SplitWish(splits=4), part)
            assert 0 <= split.stored_bytes <= sum(file.size_bytes for file in files_of(bucket))
            assert sum(rows_in(bucket, ranges_between(part, split.cuts))) == (
                ROWS if part is ALL_KEYS else 3900
            )
    assert "splits are coarser" in caplog.text
