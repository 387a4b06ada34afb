"""Where every store cuts a bucket: the parts are about equal, whatever its keys look like."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scanner.data.key_ranges import SplitWish, ranges_between
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.table import TableDescription
from scanner.errors import StoreClosed
from scanner.storage.interface import Mutation
from scanner.storage.rocksdb.bucket import RocksBucket
from tests.support.storage_tables import delete, item_key, puts

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, Store

ROWS = 20_000
KEYED = TableDescription(
    name="keyed",
    schema=pa.schema([("a", pa.string()), ("b", pa.int64()), ("pad", pa.binary())]),
    primary_key=("a", "b"),
    buckets=1,
)
_RNG = random.Random(5)
SHAPES: dict[str, list[tuple[str, int]]] = {
    "sequential": [("", number) for number in range(ROWS)],
    "random": [("", _RNG.getrandbits(63)) for _ in range(ROWS)],
    "long common prefixes": [("https://example.org/" * 20 + f"{number:x}", 0) for number in range(ROWS)],
    "composite": [(f"tenant-{number % 7}", number) for number in range(ROWS)],
    "skewed": [("", int(2 ** _RNG.uniform(14, 62))) for _ in range(ROWS)],
    "zeros in strings": [("\0" * (number % 5), number) for number in range(ROWS)],
}


def keyed(store: Store, keys: Sequence[tuple[str, int]]) -> list[Mutation]:
    """Upserts of rows with these keys, whose padding does not compress."""
    rng = random.Random(len(keys))
    batch = pa.record_batch(
        [
            pa.array([key[0] for key in keys], pa.string()),
            pa.array([key[1] % 2**63 for key in keys], pa.int64()),
            pa.array([rng.randbytes(200) for _ in keys], pa.binary()),
        ],
        schema=KEYED.schema,
    )
    encoded = store.key_codec("keyed").encode_batch(batch), store.row_codec("keyed").encode_batch(batch)
    return list(map(Mutation, *encoded))


def keyed_bucket(store: Store, keys: Sequence[tuple[str, int]]) -> Bucket:
    """A bucket with rows of these keys, in whatever order."""
    store.create_table(KEYED)
    bucket = store.bucket("keyed", 0)
    shuffled = list(keys)
    random.Random(len(keys)).shuffle(shuffled)
    for start in range(0, len(shuffled), 5000):
        bucket.commit([keyed(store, shuffled[start : start + 5000])])
    return bucket


def flush(bucket: Bucket) -> None:
    """Have what is in memory written to files."""
    if isinstance(bucket, RocksBucket):
        assert bucket._lifetime.database is not None
        bucket._lifetime.database.kv.flush()


def shares(bucket: Bucket, ranges: Sequence[KeyRange]) -> list[int]:
    """The bytes of the rows of each range, as they are before compression."""
    sizes = []
    for key_range in ranges:
        scan, size = bucket.open_snapshot().scan(key_range), 0
        while rows := scan.read(10_000, 1 << 24):
            size += sum(map(len, rows.rows))
        scan.close()
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_about_equal(store: Store, shape: str) -> None:
    """Within a twentieth of their share, while the rows are in memory, and when they are in files."""
    bucket = keyed_bucket(store, SHAPES[shape])
    for flushed in (False, True):
        if flushed:
            flush(bucket)
        split = bucket.split(SplitWish(splits=4))
        sizes = shares(bucket, ranges_between(ALL_KEYS, split.cuts))
        assert len(sizes) == 4
        share = sum(sizes) / 4
        assert [size for size in sizes if abs(size - share) > share / 20] == []
        assert split.stored_bytes > 0


def test_many_files_of_many_levels_are_measured_together(store: Store) -> None:
    """Rows that lie over one another in several files, some of them replaced: still about equal parts."""
    keys = SHAPES["sequential"]
    bucket = keyed_bucket(store, keys)
    flush(bucket)
    bucket.compact()
    for half in (keys[::2], keys[1::2]):
        bucket.commit([keyed(store, half)])
        flush(bucket)
    sizes = shares(bucket, ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=5)).cuts))
    assert all(abs(size - sum(sizes) / 5) < sum(sizes) / 100 for size in sizes)


def test_a_range_is_cut_inside(store: Store) -> None:
    """Cuts of a range are inside of it, its parts are about equal, and its bytes are about its share of all."""
    bucket = keyed_bucket(store, SHAPES["sequential"])
    flush(bucket)
    codec = store.key_codec("keyed")
    key_range = KeyRange(codec.encode(["", 5000]), codec.encode(["", 10_000]))
    split = bucket.split(SplitWish(splits=3), key_range)
    sizes = shares(bucket, ranges_between(key_range, split.cuts))
    assert all(abs(size - sum(sizes) / 3) < sum(sizes) / 20 for size in sizes)
    assert 0.2 < split.stored_bytes / bucket.split(SplitWish(splits=1)).stored_bytes < 0.3
    empty = KeyRange(codec.encode(["z", 0]), b"")
    assert bucket.split(SplitWish(splits=3), empty).cuts == ()


def test_a_target_makes_as_many_parts_as_it_takes(store: Store) -> None:
    """Parts of about the target's size; one part where everything fits."""
    bucket = keyed_bucket(store, SHAPES["random"])
    flush(bucket)
    stored = bucket.split(SplitWish(splits=1)).stored_bytes
    assert len(bucket.split(SplitWish(target_bytes=stored // 8)).cuts) in (7, 8)
    assert bucket.split(SplitWish(target_bytes=2 * stored)).cuts == ()


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_tiny_bucket_has_few_cuts(store: Store, rows: int, flushed: bool) -> None:
    """No more parts than rows, however many are wished for."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(rows))])
    if flushed:
        flush(bucket)
    split = bucket.split(SplitWish(splits=1024))
    assert len(split.cuts) <= max(0, rows - 1)
    assert sum(shares(bucket, ranges_between(ALL_KEYS, split.cuts))) == sum(shares(bucket, [ALL_KEYS]))


@pytest.mark.parametrize("flushed", [True, False])
def test_a_giant_row_is_a_part_of_its_own(store: Store, flushed: bool) -> None:
    """The rows beside it are cut as if it were not there, about."""
    bucket = store.bucket("items", 0)
    giant = random.Random(1).randbytes(4_000_000).hex()
    bucket.commit([puts((number, giant if number == 500 else "x" * 200) for number in range(1000))])
    if flushed:
        flush(bucket)
    ranges = ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=4)).cuts)
    sizes = shares(bucket, ranges)
    assert len([size for size in sizes if size > 1_000_000]) == 1
    assert all(sizes)


def test_a_bucket_of_deleted_rows(store: Store) -> None:
    """What is deleted may count until it is cleaned up; cuts are right all the same."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x" * 100) for number in range(5000))])
    flush(bucket)
    bucket.commit([[delete(number) for number in range(4999)]])
    flush(bucket)
    ranges = ranges_between(ALL_KEYS, bucket.split(SplitWish(splits=8)).cuts)
    assert sum(size > 0 for size in shares(bucket, ranges)) == 1


def test_cuts_follow_the_rows_that_are_not_flushed(store: Store) -> None:
    """Where more is in memory than in files, what is in memory counts."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(10))])
    flush(bucket)
    bucket.commit([puts((number, "x" * 50) for number in range(1000, 3000))])
    (cut,) = bucket.split(SplitWish(splits=2)).cuts
    assert item_key(1900) < cut < item_key(2100)


def test_a_closed_bucket_is_not_split(store: Store) -> None:
    """It says so."""
    bucket = store.bucket("items", 0)
    store.close()
    with pytest.raises(StoreClosed):
        bucket.split(SplitWish(splits=2))
