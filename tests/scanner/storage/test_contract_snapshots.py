"""What every store's snapshots do: one state, held open for any number of scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.data.keys import KeyRange
from scanner.errors import StoreClosed
from tests.support.storage_tables import contents, delete, drain, item_key, items_of, put, puts

if TYPE_CHECKING:
    from scanner.storage.interface import BucketScan, Store

_OLD = [(number, "old") for number in range(40)]


def test_scans_of_a_snapshot_show_its_state_whenever_they_are_opened(store: Store) -> None:
    """Before, between and after later commits, a truncation and a compaction: always the same rows."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    snapshot = bucket.open_snapshot()
    early = snapshot.scan()
    assert drain(snapshot.scan()) == drain(snapshot.scan(short=True)) == _OLD
    bucket.commit([[put(6, "new"), delete(7), put(99, "new"), put(-1, "new")]])
    late = snapshot.scan()
    bucket.truncate_log(bucket.log_end)
    bucket.compact()
    assert snapshot.log_offset == early.log_offset == late.log_offset == 40
    assert drain(early) == drain(late) == drain(snapshot.scan()) == drain(snapshot.scan(short=True)) == _OLD
    assert contents(bucket)[6] == "new"
    snapshot.close()


def test_a_snapshot_of_an_empty_bucket_stays_empty(store: Store) -> None:
    """Nothing is as exact a state as any other."""
    bucket = store.bucket("items", 0)
    snapshot = bucket.open_snapshot()
    assert drain(snapshot.scan()) == []
    bucket.commit([puts(_OLD)])
    assert drain(snapshot.scan()) == []
    assert drain(snapshot.scan(KeyRange(item_key(3), item_key(5)))) == []


def test_a_range_of_a_snapshot_has_its_start_and_not_its_end(store: Store) -> None:
    """A scan of a key range of a snapshot yields the keys in [start, end), before and after a commit."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number * 2, "x") for number in range(10))])
    snapshot = bucket.open_snapshot()
    bounds = (None, 0, 3, 4, 7, 18, 19, 50)
    ranges = [(start, end) for start in bounds for end in bounds]
    fresh = [snapshot.scan(_range_of(start, end)) for start, end in ranges]
    bucket.commit([puts((number, "later") for number in range(-5, 30))])
    for (start, end), scan in zip(ranges, fresh, strict=True):
        expected = [
            (number, "x")
            for number in range(0, 20, 2)
            if (start is None or start <= number) and (end is None or number < end)
        ]
        assert drain(scan, rows_max=2) == expected
        for rows_max in (1, 2, 100):
            assert drain(snapshot.scan(_range_of(start, end)), rows_max) == expected


def _range_of(start: int | None, end: int | None) -> KeyRange:
    return KeyRange(b"" if start is None else item_key(start), b"" if end is None else item_key(end))


def test_a_read_of_a_snapshot_is_bounded_by_bytes_but_never_empty(store: Store) -> None:
    """The limits of a read hold for scans that share a snapshot too."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x" * (1000 if number % 2 else 1)) for number in range(40))])
    snapshot = bucket.open_snapshot()
    bucket.commit([[delete(3)]])
    scan = snapshot.scan()
    assert len(scan.read(100, 1)) == len(scan.read(100, 10)) == 1
    seen = 2
    while read := scan.read(100, 2500):
        assert sum(map(len, read.rows)) <= 2500
        seen += len(read)
    assert seen == 40


def test_closing_a_scan_leaves_the_snapshot_and_its_neighbours(store: Store) -> None:
    """Only the closed one refuses."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    snapshot = bucket.open_snapshot()
    bucket.commit([[delete(1)]])
    one, two = snapshot.scan(), snapshot.scan()
    first = items_of(two.read(5, 1 << 20).rows)
    one.read(9, 1 << 20)
    one.close()
    with pytest.raises(StoreClosed):
        one.read(1, 1)
    assert first + drain(two) == drain(snapshot.scan()) == _OLD


def test_closing_a_snapshot_ends_its_scans_with_an_error(store: Store) -> None:
    """A scan of a closed snapshot raises StoreClosed and never looks ended; closing again is fine."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    snapshot = bucket.open_snapshot()
    fresh = snapshot.scan()
    bucket.commit([[delete(1)]])
    late = snapshot.scan()
    snapshot.close()
    snapshot.close()
    for scan in (fresh, late):
        with pytest.raises(StoreClosed):
            scan.read(1, 1)
    with pytest.raises(StoreClosed):
        snapshot.scan()
    assert len(contents(bucket)) == 39


@pytest.mark.parametrize("ending", ["drop", "close"])
def test_the_end_of_the_bucket_ends_its_snapshots(store: Store, ending: str) -> None:
    """After a drop of the table or a close of the store, snapshots and their scans raise StoreClosed."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    snapshot = bucket.open_snapshot()
    scan = snapshot.scan()
    if ending == "drop":
        store.drop_table("items")()
    else:
        store.close()
    for ask in (lambda: scan.read(1, 1), snapshot.scan, bucket.open_snapshot):
        with pytest.raises(StoreClosed):
            ask()
    assert bucket.open_iterators == 0


def test_what_is_held_open_is_counted(store: Store) -> None:
    """Snapshots and readers count; closed ones, and scans that are ended, closed or share the snapshot's do not."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts(_OLD)])
    assert bucket.open_iterators == 0
    snapshot, closed, reader = bucket.open_snapshot(), bucket.open_snapshot(), bucket.open_reader()
    assert bucket.open_iterators == 3
    ended, left = snapshot.scan(), snapshot.scan()
    assert bucket.open_iterators >= 3
    bucket.commit([[delete(1)]])
    snapshot.scan().read(3, 1 << 20)
    drain(ended)
    left.close()
    assert bucket.open_iterators == 3
    closed.close()
    reader.close()
    assert bucket.open_iterators == 1
    snapshot.close()
    assert bucket.open_iterators == 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 12), st.none() | st.text(max_size=2)),
        st.tuples(st.just("scan"), st.integers(0, 13), st.integers(0, 13)),
        st.tuples(st.just("read"), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 30), st.none()),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(before=st.dictionaries(st.integers(0, 12), st.text(max_size=2)), steps=_STEPS)
def test_interleaved_scans_of_a_snapshot_each_give_its_rows(
    store: Store, before: dict[int, str], steps: list[tuple[str, int, object]]
) -> None:
    """Whatever is written, truncated and read in between, each scan yields the rows of its range as of S."""
    bucket = store.bucket("items", 0)
    bucket.commit([[delete(number) for number in range(13)], puts(before.items())])
    snapshot = bucket.open_snapshot()
    scans: list[tuple[BucketScan, list[tuple[int, str | None]], list[tuple[int, str | None]]]] = []
    for what, number, other in steps:
        if what == "write":
            bucket.commit([[delete(number) if other is None else put(number, str(other))]])
        elif what == "truncate":
            bucket.truncate_log(number)
        elif what == "scan":
            assert isinstance(other, int)
            expected: list[tuple[int, str | None]] = [
                (key, text) for key, text in sorted(before.items()) if number <= key < other
            ]
            scans.append((snapshot.scan(KeyRange(item_key(number), item_key(other))), expected, []))
        elif scans:
            assert isinstance(other, int)
            scan, _, seen = scans[number % len(scans)]
            seen += items_of(scan.read(other, 1 << 20).rows)
    for scan, expected, seen in scans:
        assert seen + drain(scan, rows_max=2) == expected
    snapshot.close()
    assert bucket.open_iterators == 0
