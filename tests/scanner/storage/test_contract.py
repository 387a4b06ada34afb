"""What every store does, whatever it keeps its data in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.data.keys import KeyRange
from scanner.data.table import TableDescription
from scanner.errors import (
    BucketNotFound,
    OffsetOutOfRange,
    StoreClosed,
    TableExists,
    TableNotFound,
)
from tests.support.changes import read_changes
from tests.support.storage_tables import (
    ITEMS,
    changes_of,
    contents,
    delete,
    drain,
    item_key,
    items_of,
    put,
    puts,
    replayed,
)

if TYPE_CHECKING:
    from scanner.storage.interface import Mutation, Store


def test_an_empty_bucket_scans_to_a_proven_end(store: Store) -> None:
    """An empty bucket opens, yields nothing, ends, and says so again."""
    scan = store.bucket("items", 0).open_snapshot().scan()
    assert scan.log_offset == 0
    assert not scan.read(10, 1000)
    assert scan.read(10, 1000).last_key is None
    scan.close()


def test_rows_come_in_key_order_whatever_the_order_of_the_writes(store: Store) -> None:
    """A scan yields every live row once, in key order, negative keys first."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts([(3, "c"), (-1, "n"), (2, None)]), puts([(0, "z")])])
    assert drain(bucket.open_snapshot().scan()) == [(-1, "n"), (0, "z"), (2, None), (3, "c")]


def test_a_commit_tells_each_group_its_offsets(store: Store) -> None:
    """Offsets are dense: an insert and a delete take one, an update two, a delete of nothing none."""
    bucket = store.bucket("items", 0)
    assert bucket.commit([[put(1, "a")], [], [put(1, "b"), delete(9)], [delete(9)], [delete(1)]]) == [
        (0, 1),
        (1, 1),
        (1, 3),
        (3, 3),
        (3, 4),
    ]
    assert (bucket.log_start, bucket.log_end) == (0, 4)
    assert changes_of(bucket) == [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "b"), ("-D", 1, "b")]


def test_a_commit_of_nothing_changes_nothing(store: Store) -> None:
    """No groups, empty groups and deletes of absent keys leave the log where it was."""
    bucket = store.bucket("items", 0)
    assert bucket.commit([]) == []
    assert bucket.commit([[], [delete(1)]]) == [(0, 0), (0, 0)]
    assert bucket.log_end == 0


def test_a_flush_changes_what_is_in_memory_and_nothing_else(store: Store) -> None:
    """Rows, log and scans that are open stay; only what a bucket has before its first row is still in memory."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "old" * 1000) for number in range(200))])
    scan, before = bucket.open_snapshot().scan(), bucket.unflushed_bytes
    bucket.flush()
    assert bucket.unflushed_bytes <= before // 10
    assert drain(scan) == list(contents(bucket).items()) == [(number, "old" * 1000) for number in range(200)]
    assert len(changes_of(bucket)) == 200
    assert not store.write_buffers_half_full


def test_an_upsert_of_the_same_row_is_still_an_update(store: Store) -> None:
    """Writing an identical row is recorded as -U and +U."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "a")]])
    assert bucket.commit([[put(1, "a")]]) == [(1, 3)]
    assert changes_of(bucket, 1) == [("-U", 1, "a"), ("+U", 1, "a")]


def test_a_key_that_comes_and_goes_in_one_commit_leaves_only_its_changes(store: Store) -> None:
    """Later mutations of a commit see the earlier ones."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "a"), delete(1), put(2, "b"), put(2, "c"), delete(2), put(2, "d")]])
    assert [symbol for symbol, _, _ in changes_of(bucket)] == ["+I", "-D", "+I", "-U", "+U", "-D", "+I"]
    assert contents(bucket) == {2: "d"}


def test_a_scan_does_not_see_later_commits(store: Store) -> None:
    """Rows written, replaced or deleted after the open are invisible, even to reads that come later."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "old") for number in range(20))])
    scan = bucket.open_snapshot().scan()
    first = scan.read(5, 1 << 20)
    bucket.commit([[put(6, "new"), delete(7), put(99, "new"), put(-1, "new")]])
    assert scan.log_offset == 20
    assert items_of(first.rows) + drain(scan) == [(number, "old") for number in range(20)]
    assert contents(bucket)[6] == "new"


def test_two_scans_of_a_bucket_progress_independently(store: Store) -> None:
    """Interleaved reads of two scans each give the whole state."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(9))])
    one, two = bucket.open_snapshot().scan(), bucket.open_snapshot().scan()
    assert len(one.read(4, 1000)) == 4
    assert len(drain(two, rows_max=1)) == 9
    assert len(drain(one)) == 5


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(None, None, 10), (3, None, 7), (None, 3, 3), (3, 7, 4), (3, 3, 0), (7, 3, 0), (50, 60, 0)],
)
def test_a_range_has_its_start_and_not_its_end(
    store: Store, start: int | None, end: int | None, expected: int
) -> None:
    """A scan of a key range yields the keys in [start, end) and proves that end."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(10))])
    key_range = KeyRange(
        b"" if start is None else item_key(start),
        b"" if end is None else item_key(end),
    )
    assert len(drain(bucket.open_snapshot().scan(key_range), rows_max=2)) == expected


@pytest.mark.parametrize("high", [None, 10])
def test_a_read_that_asks_for_more_than_there_is_proves_the_end(store: Store, high: int | None) -> None:
    """It says so with the last rows: a short scan is one read, and holds nothing behind it."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts([(number, "x") for number in range(10)]), puts([(20, "y")] * (high is not None))])
    scan = bucket.open_snapshot().scan(KeyRange(end=b"" if high is None else item_key(high)))
    read = scan.read(20, 1 << 20)
    assert (len(read), read.last) == (10, True)
    assert not scan.read(20, 1 << 20)


def test_last_key_is_the_key_of_the_last_row(store: Store) -> None:
    """What a read yields knows the key to continue from."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(10))])
    assert bucket.open_snapshot().scan().read(4, 1 << 20).last_key == item_key(3)


def test_a_read_is_bounded_by_bytes_but_never_empty(store: Store) -> None:
    """A byte limit smaller than a row yields one row; otherwise the rows stay within it."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x" * (1000 if number % 2 else 1)) for number in range(40))])
    scan = bucket.open_snapshot().scan()
    assert len(scan.read(100, 1)) == 1
    assert len(scan.read(100, 10)) == 1
    seen = 2
    while read := scan.read(100, 2500):
        assert sum(map(len, read.rows)) <= 2500
        seen += len(read)
    assert seen == 40


def test_close_is_idempotent_and_then_the_scan_refuses(store: Store) -> None:
    """A closed scan raises StoreClosed; it does not look like the end."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "a")]])
    scan = bucket.open_snapshot().scan()
    scan.close()
    scan.close()
    for _ in range(2):
        with pytest.raises(StoreClosed):
            scan.read(1, 1)


def test_changes_carry_key_and_a_clock_that_does_not_go_back(store: Store) -> None:
    """Every change has its offset, its primary key, and a timestamp not before the one ahead of it."""
    bucket = store.bucket("items", 0)
    for number in range(5):
        bucket.commit([[put(number % 3, str(number))]])
    changes = list(read_changes(bucket, 0, bucket.log_end))
    assert [change.offset for change in changes] == list(range(7))
    assert [change.key for change in changes][:3] == [item_key(0), item_key(1), item_key(2)]
    stamps = [change.timestamp_us for change in changes]
    assert stamps == sorted(stamps)
    assert stamps[0] > 1_600_000_000_000_000


def test_a_part_of_the_log_can_be_read(store: Store) -> None:
    """Any range inside the log is readable, the empty one too."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(10))])
    assert [change.offset for change in read_changes(bucket, 3, 6)] == [3, 4, 5]
    assert list(read_changes(bucket, 10, 10)) == []


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 3), (2, 1), (3, 3)])
def test_offsets_outside_the_log_are_refused(store: Store, start: int, end: int) -> None:
    """A range that is not inside the log is refused at once, naming the log's range."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts([(1, "a"), (2, "b")])])
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 2\)"):
        read_changes(bucket, start, end)


def test_buckets_are_independent(store: Store) -> None:
    """A write to one bucket is in no other."""
    store.bucket("items", 0).commit([[put(1, "a")]])
    assert contents(store.bucket("items", 1)) == {}
    assert store.bucket("items", 1).log_end == 0
    assert store.bucket("items", 0) is store.bucket("items", 0)


def test_what_is_not_there_is_refused_by_name(store: Store) -> None:
    """Unknown tables and buckets are typed errors that say what there is."""
    with pytest.raises(TableNotFound, match="items"):
        store.table("nothing")
    with pytest.raises(TableNotFound):
        store.bucket("nothing", 0)
    with pytest.raises(TableNotFound):
        store.drop_table("nothing")()
    for index in (-1, 2):
        with pytest.raises(BucketNotFound, match="0 to 1"):
            store.bucket("items", index)


def test_a_table_is_created_once(store: Store) -> None:
    """A taken name is refused, and the table that has it is untouched."""
    store.bucket("items", 0).commit([[put(1, "a")]])
    with pytest.raises(TableExists):
        store.create_table(ITEMS)
    assert contents(store.bucket("items", 0)) == {1: "a"}


def test_tables_are_listed_by_name(store: Store) -> None:
    """The list is ordered and has what was created."""
    other = TableDescription("another", pa.schema([("k", pa.string())]), ("k",), 1)
    store.create_table(other)
    assert store.tables() == [other, ITEMS]
    assert store.table("another") == other
    assert store.key_codec("another") is store.key_codec("another")
    assert store.row_codec("another").schema == other.schema


def test_dropping_a_table_ends_its_scans_with_an_error(store: Store) -> None:
    """A scan of a dropped table raises StoreClosed; a new table of the name starts empty."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x") for number in range(10))])
    scan = bucket.open_snapshot().scan()
    scan.read(1, 1)
    store.drop_table("items")()
    with pytest.raises(StoreClosed):
        scan.read(1, 1)
    with pytest.raises(StoreClosed):
        bucket.commit([[put(1, "a")]])
    store.create_table(ITEMS)
    assert contents(store.bucket("items", 0)) == {}


def test_a_closed_store_refuses_everything(store: Store) -> None:
    """After close, scans, buckets and the store itself raise StoreClosed; closing again is fine."""
    bucket = store.bucket("items", 0)
    scan = bucket.open_snapshot().scan()
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        scan.read(1, 1)
    with pytest.raises(StoreClosed):
        bucket.open_snapshot().scan()
    with pytest.raises(StoreClosed):
        read_changes(bucket, 0, 0)
    with pytest.raises(StoreClosed):
        store.bucket("items", 0)
    with pytest.raises(StoreClosed):
        store.create_table(TableDescription("more", ITEMS.schema, ("id",), 1))


_MUTATIONS = st.tuples(st.integers(0, 5), st.none() | st.text(max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commits=st.lists(st.lists(st.lists(_MUTATIONS, max_size=6), max_size=3), max_size=5))
def test_the_log_replays_to_the_rows_at_every_commit(
    store: Store, commits: list[list[list[tuple[int, str | None]]]]
) -> None:
    """Whatever is written, folding the log gives the state a scan gives, now and at each earlier commit."""
    if any(table.name == "fresh" for table in store.tables()):
        store.drop_table("fresh")()
    store.create_table(TableDescription("fresh", ITEMS.schema, ITEMS.primary_key, 1))
    bucket = store.bucket("fresh", 0)
    model: dict[int, str] = {}
    scans = []
    for groups in commits:
        mutations: list[list[Mutation]] = []
        for group in groups:
            mutations.append(
                [delete(number) if text is None else put(number, text) for number, text in group]
            )
            for number, text in group:
                if text is None:
                    model.pop(number, None)
                else:
                    model[number] = text
        offsets = bucket.commit(mutations)
        assert [start for start, _ in offsets[1:]] == [end for _, end in offsets[:-1]]
        scans.append((bucket.open_snapshot().scan(), dict(model)))
    assert contents(bucket) == model == replayed(bucket)
    for scan, expected in scans:
        assert dict(drain(scan, rows_max=2)) == expected == replayed(bucket, scan.log_offset)
        scan.close()
