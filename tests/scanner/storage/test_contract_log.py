"""What every store does with the old end of a changelog: truncation, times, sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import ArgumentInvalid, DataCorrupted, OffsetOutOfRange, StoreClosed, StoreFailed
from tests.support.changes import read_changes
from tests.support.storage_tables import changes_of, contents, delete, put, puts

if TYPE_CHECKING:
    from scanner.storage.interface import Store


def test_a_truncation_drops_the_front_of_the_log_and_nothing_else(store: Store) -> None:
    """log_start moves; the later changes, the rows and the numbering go on as they were."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "a") for number in range(10)), [put(3, "b"), delete(4)]])
    later = changes_of(bucket, 10)
    bucket.truncate_log(10)
    assert (bucket.log_start, bucket.log_end) == (10, 13)
    assert changes_of(bucket, 10) == later
    assert len(contents(bucket)) == 9
    assert bucket.commit([[put(4, "c")]]) == [(13, 14)]
    assert changes_of(bucket, 13) == [("+I", 4, "c")]


def test_a_truncation_keeps_entries_whole(store: Store) -> None:
    """An offset inside a commit keeps all of that commit: the log starts where a commit ended, always."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "a") for number in range(10)), [put(3, "b"), delete(4)], [put(5, "c")]])
    for start, expected in ((1, 0), (9, 0), (10, 10), (11, 10), (12, 10), (13, 13), (14, 13), (15, 15)):
        bucket.truncate_log(start)
        assert bucket.log_start == expected


def test_an_entry_is_found_by_any_of_its_offsets(store: Store) -> None:
    """Each request is an entry of its own, with a commit time of its own, also in one commit and by one clock."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "a" * 3000) for number in range(300)), [put(3, "b")], [delete(999)]], 7)
    bucket.commit([[delete(4)]], 7)
    expected = [(0, 300, 7, 7, False), (300, 302, 8, 7, False), (302, 303, 9, 7, False)]
    for offset in (0, 1, 150, 299, 300, 301, 302):
        assert bucket.entry_at(offset) == next(each for each in expected if each[0] <= offset < each[1])
    for offset in (-1, 303, 1 << 40):
        with pytest.raises(OffsetOutOfRange, match=r"\[0, 303\)"):
            bucket.entry_at(offset)
    assert [bucket.offset_at(each) for each in (0, 7, 8, 9, 10)] == [0, 0, 300, 302, 303]


def test_entries_are_measured_without_their_rows(store: Store) -> None:
    """Ends, stored bytes and times, from an entry's beginning on and as many as asked for."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "a" * 3000) for number in range(300)), [put(3, "b")], [delete(999)]], 7)
    bucket.commit([puts((number, f"{number}") for number in range(5)), [delete(4)]], 20)
    sizes = bucket.measure_entries(0, 100, 1 << 40)
    assert [(each.end, each.timestamp_us) for each in sizes] == [(300, 7), (302, 8), (312, 20), (313, 21)]
    starts = [0, *(each.end for each in sizes)]
    for index, each in enumerate(sizes):
        rows = read_changes(bucket, starts[index], each.end)
        assert each.row_bytes == sum(len(change.row) for change in rows)
        assert bucket.measure_entries(starts[index], 2, 1 << 40) == sizes[index : index + 2]
        assert bucket.measure_entries(starts[index], 100, each.row_bytes) == [each]
        assert bucket.measure_entries(starts[index], 100, each.row_bytes + 1) == sizes[index : index + 2]
    assert bucket.measure_entries(313, 1, 1) == []
    for inside in (1, 299, 301, 311):
        with pytest.raises(DataCorrupted, match=f"the change at offset {inside} is missing"):
            bucket.measure_entries(inside, 100, 1 << 40)
    bucket.truncate_log(302)
    assert bucket.measure_entries(302, 1, 1 << 40) == [sizes[2]]
    for offset in (0, 300, 314):
        with pytest.raises(OffsetOutOfRange):
            bucket.measure_entries(offset, 1, 1)


def test_a_clock_that_was_set_back_makes_no_commit_older(store: Store) -> None:
    """Commit times grow by a microsecond until the clock has caught up; what the clock said is kept beside them."""
    bucket = store.bucket("items", 0)
    for number, clock_us in enumerate((1000, 500, 500, 1001, 2000)):
        bucket.commit([[put(number, "a")]], clock_us)
    entries = [bucket.entry_at(offset) for offset in range(5)]
    assert [entry.timestamp_us for entry in entries] == [1000, 1001, 1002, 1003, 2000]
    assert [entry.clock_us for entry in entries] == [1000, 500, 500, 1001, 2000]


def test_a_commit_is_stamped_later_than_it_has_to_be(store: Store) -> None:
    """Later than the clock, if need be, and each of its entries later than the one before; the clock's time stays."""
    bucket = store.bucket("items", 0)
    assert bucket.newest_commit_us == 0
    for number, (after_us, newest_us) in enumerate(((0, 1001), (5000, 5002), (400, 5004))):
        bucket.commit_prepared(bucket.prepare([[put(number, "a")], [put(number, "b")]], 1000, after_us))
        assert bucket.newest_commit_us == newest_us
    entries = [bucket.entry_at(offset) for offset in (0, 1, 3, 4, 6, 7)]
    assert [entry.timestamp_us for entry in entries] == [1000, 1001, 5001, 5002, 5003, 5004]
    assert {entry.clock_us for entry in entries} == {1000}


def test_a_request_that_is_too_large_is_refused_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an entry may hold counts before-images too; the requests beside it are committed, and see nothing of it."""
    for module in ("scanner.storage.rocksdb.commits", "scanner.storage.memory.bucket"):
        monkeypatch.setattr(f"{module}.ENTRY_BYTES_MAX", 1000)
    bucket = store.bucket("items", 0)
    bucket.commit([[put(number, "x" * 400)] for number in range(4)])
    deletes, inserts = (
        [delete(number) for number in range(4)],
        puts((number, "w" * 90) for number in range(9, 30)),
    )
    for group in (deletes, inserts):
        prepared = bucket.prepare([[put(7, "a")], group, [put(0, "x" * 400), delete(7)]])
        (refusal,) = prepared.refusals.values()
        assert prepared.refusals.keys() == {1}
        assert isinstance(refusal, ArgumentInvalid)
        assert refusal.metadata == {"write_too_large": str(len(group))}
        assert prepared.offsets == [(4, 5), (5, 5), (5, 8)]
    bucket.commit_prepared(prepared)
    assert contents(bucket) == dict.fromkeys(range(4), "x" * 400)
    # One row alone is written however large it is.
    bucket.commit([[put(1, "v" * 2000)]])
    bucket.commit([[delete(1)]])
    with pytest.raises(ArgumentInvalid, match=r"write fewer rows|too large"):
        bucket.commit([[put(99, "a")], [delete(number) for number in range(4)]])
    assert sorted(contents(bucket)) == [0, 2, 3]


def test_a_request_that_just_fits_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of as many bytes as an entry may hold; one byte less, and they are too many."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "a"), put(2, "b")]])
    size = sum(len(change.row) for change in read_changes(bucket, 0, 2))
    for allowed, refused in ((size - 1, True), (size, False)):
        for module in ("scanner.storage.rocksdb.commits", "scanner.storage.memory.bucket"):
            monkeypatch.setattr(f"{module}.ENTRY_BYTES_MAX", allowed)
        for group in ([put(3, "a"), put(4, "b")], [delete(1), delete(2)]):
            assert bool(bucket.prepare([group]).refusals) == refused


def test_a_commit_that_was_prepared_for_another_end_is_refused(store: Store) -> None:
    """Its before-images and offsets are those of a state that has passed: nothing is written."""
    bucket = store.bucket("items", 0)
    stale = bucket.prepare([[put(1, "stale")]])
    bucket.commit([[put(1, "a")]])
    with pytest.raises(StoreFailed, match=r"nothing was written|log ends"):
        bucket.commit_prepared(stale)
    assert contents(bucket) == {1: "a"}
    assert bucket.commit([[put(1, "b")]]) == [(1, 3)]


def test_a_truncation_between_prepare_and_commit_stays(store: Store) -> None:
    """The log starts where it was cut, not where it started when the commit was prepared."""
    bucket = store.bucket("items", 0)
    bucket.commit([[put(1, "a")], [put(2, "b")]])
    prepared = bucket.prepare([[put(3, "c")]])
    bucket.truncate_log(1)
    bucket.commit_prepared(prepared)
    assert (bucket.log_start, bucket.log_end) == (1, 3)
    assert changes_of(bucket) == [("+I", 2, "b"), ("+I", 3, "c")]


def test_a_truncation_never_goes_back_and_never_past_the_end(store: Store) -> None:
    """At or below log_start nothing happens; past log_end the log is empty and goes on from there."""
    bucket = store.bucket("items", 0)
    bucket.commit([[each] for each in puts((number, "a") for number in range(10))])
    for start, expected in ((-5, 0), (0, 0), (4, 4), (2, 4), (99, 10), (99, 10)):
        bucket.truncate_log(start)
        assert bucket.log_start == expected
    assert (bucket.log_start, bucket.log_end) == (10, 10)
    assert list(read_changes(bucket, 10, 10)) == []
    assert bucket.commit([[put(1, "b")]]) == [(10, 12)]
    assert changes_of(bucket) == [("-U", 1, "a"), ("+U", 1, "b")]


def test_offsets_before_the_log_are_refused_with_the_oldest(store: Store) -> None:
    """What was truncated is OFFSET_OUT_OF_RANGE, and the error names what there still is."""
    bucket = store.bucket("items", 0)
    bucket.commit([[each] for each in puts((number, "a") for number in range(10))])
    bucket.truncate_log(7)
    with pytest.raises(OffsetOutOfRange, match=r"\[7, 10\)") as caught:
        read_changes(bucket, 6, 10)
    assert caught.value.oldest_offset == 7


@pytest.mark.parametrize("taken", [0, 1, 1024, 1500])
def test_a_reader_that_a_truncation_overtakes_is_told(store: Store, taken: int) -> None:
    """Reading changes that go away meanwhile is OFFSET_OUT_OF_RANGE, not damage and not a short read."""
    bucket = store.bucket("items", 0)
    bucket.commit([[each] for each in puts((number, "a" * 1000) for number in range(4000))])
    changes = read_changes(bucket, 0, 4000)
    seen = [next(changes).offset for _ in range(taken)]
    bucket.truncate_log(3999)
    with pytest.raises(OffsetOutOfRange) as caught:
        seen += [change.offset for change in changes]
    assert caught.value.oldest_offset == 3999
    assert seen == list(range(len(seen)))


def test_a_truncated_log_survives_a_restart(store: Store, restart: Callable[[Store], Store]) -> None:
    """Range, changes, rows and the clock are the same after close and open, even of an empty log."""
    bucket = store.bucket("items", 0)
    bucket.commit([[each] for each in puts((number, "a") for number in range(100))])
    bucket.truncate_log(40)
    before = changes_of(bucket)
    store = restart(store)
    bucket = store.bucket("items", 0)
    assert (bucket.log_start, bucket.log_end) == (40, 100)
    assert changes_of(bucket) == before
    bucket.truncate_log(100)
    store = restart(store)
    bucket = store.bucket("items", 0)
    assert (bucket.log_start, bucket.log_end) == (100, 100)
    assert len(contents(bucket)) == 100
    assert bucket.commit([[delete(1)]]) == [(100, 101)]


def test_the_time_of_the_newest_commit_that_was_truncated(
    store: Store, restart: Callable[[Store], Store]
) -> None:
    """It tells from when on the log has everything; an offset inside a commit truncates those before."""
    bucket = store.bucket("items", 0)
    bucket.truncate_log(1)  # There is nothing to drop.
    assert bucket.truncated_commit_us is None
    for number in range(4):
        bucket.commit([puts((each, f"{number}") for each in range(5))], clock_us=100 * (number + 1))
    for start, expected in ((3, None), (5, 100), (14, 100), (15, 200), (35, 400)):
        bucket.truncate_log(start)
        assert bucket.truncated_commit_us == expected
        store = restart(store)
        bucket = store.bucket("items", 0)
        assert bucket.truncated_commit_us == expected
    bucket.commit([[delete(1)]], clock_us=500)
    assert bucket.truncated_commit_us == 400


def test_a_time_has_its_offset(store: Store) -> None:
    """The first change committed at or after a time, whatever is asked; log_end past the newest."""
    bucket = store.bucket("items", 0)
    assert bucket.offset_at(0) == 0
    for number in range(6):
        bucket.commit([puts((number * 10 + each, "a") for each in range(number + 1))])
    stamps = [change.timestamp_us for change in read_changes(bucket, 0, bucket.log_end)]
    for wanted in (0, 5, bucket.log_end):
        bucket.truncate_log(wanted)
        start = bucket.log_start
        for time in {0, *stamps, *(stamp + 1 for stamp in stamps), *(stamp - 1 for stamp in stamps)}:
            expected = next((at for at in range(start, len(stamps)) if stamps[at] >= time), len(stamps))
            assert bucket.offset_at(time) == expected


def test_the_size_of_the_log_follows_what_it_holds(store: Store) -> None:
    """Rough, but it grows with the log, falls with a truncation, and is nothing for nothing."""
    bucket = store.bucket("items", 0)
    assert bucket.log_bytes == 0
    source = random.Random(1)
    texts = ((number, source.randbytes(50).hex()) for number in range(10_000))
    bucket.commit([puts(islice(texts, 100)) for _ in range(100)])
    full = bucket.log_bytes
    assert full > 600_000  # Hexadecimal digits compress by half at best.
    assert [bucket.log_bytes_from(offset) for offset in (0, 10_000, 10_001)] == [full, 0, 0]
    assert full * 0.05 < bucket.log_bytes_from(9_000) < full * 0.2
    bucket.truncate_log(9_000)
    assert full * 0.05 < bucket.log_bytes < full * 0.2
    assert bucket.log_bytes_from(0) == bucket.log_bytes
    bucket.truncate_log(10_000)
    assert bucket.log_bytes == 0


def test_a_closed_bucket_has_no_log(store: Store) -> None:
    """Everything about the log raises StoreClosed once the store is closed, a running reader too."""
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "a" * 1000) for number in range(3000))])
    changes = read_changes(bucket, 0, 3000)
    next(changes)
    store.close()
    for ask in (
        lambda: list(changes),
        lambda: bucket.truncate_log(1),
        lambda: bucket.offset_at(0),
        lambda: bucket.log_bytes,
        lambda: bucket.log_bytes_from(0),
        bucket.log_is_readable,
        bucket.free_log,
        bucket.join_log,
        bucket.compact,
    ):
        with pytest.raises(StoreClosed):
            ask()


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "truncate", "compact"]), st.integers(0, 20)), max_size=25
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(steps=_STEPS)
def test_whatever_is_truncated_the_rest_of_the_log_is_what_it_was(
    store: Store, steps: list[tuple[str, int]]
) -> None:
    """At every step the log holds the changes of [log_start, log_end), and the rows are untouched."""
    bucket = store.bucket("items", 0)
    bucket.commit([[delete(number) for number in range(21)]])
    base = bucket.log_end
    all_changes: list[tuple[str, int, str | None]] = []
    state: dict[int, str | None] = {}
    for count, (what, number) in enumerate(steps):
        if what == "truncate":
            bucket.truncate_log(base + number)
        elif what == "compact":
            bucket.compact()
        else:
            end = bucket.log_end
            bucket.commit([[put(number, str(count)) if what == "put" else delete(number)]])
            all_changes += changes_of(bucket, end)
            state.pop(number, None)
            if what == "put":
                state[number] = str(count)
        start = max(base, bucket.log_start)
        assert changes_of(bucket, start) == all_changes[start - base :]
        assert contents(bucket) == state
