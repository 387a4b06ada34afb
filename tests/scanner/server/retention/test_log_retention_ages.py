"""What retention cuts: at the ends of commits, and nothing early, whatever the clocks said."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.server.config import ScannerConfig
from scanner.server.retention.log_retention import walk_expired
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery
from tests.support.maintenance import WALL_S, open_maintenance
from tests.support.scans import description, mutations, sample
from tests.support.storage_tables import ITEMS, delete, put

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.storage.interface import Bucket, Store

_QUERY = ScanQuery(table="items")
DAY_US = 24 * 3600 * 1_000_000
NOW_US = 20_000 * DAY_US


def _bucket(clocks_us: list[int]) -> Bucket:
    """A bucket with a commit of one insert for each clock reading."""
    store = MemoryStore()
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    for number, clock_us in enumerate(clocks_us):
        bucket.commit([[put(number, "a")]], clock_us)
    return bucket


@pytest.mark.parametrize(
    ("days_ago", "kept_days", "expected"),
    [
        ([9, 8, 3, 2, 1], 7, 2),
        ([9, 8, 3, 2, 1], 0.5, 5),
        # A commit a day ahead, then the clock is corrected: what follows goes when its clock says so, and it with them.
        ([3, 2, -1, 1.9, 1.8, 0.1], 1, 5),
        # The commits that are too young still keep the one that was stamped ahead.
        ([3, 2, -1, 0.5, 0.4], 1, 2),
        ([-1], 1, 0),
        # Nine days ahead, then corrected: nothing fresh goes.
        ([-9, -9, 0.01, 0.01], 7, 0),
        # Set back by years for a while: no older than what was committed before.
        ([3, 0.5, 4000, 0.4], 1, 1),
        ([0.5, 4000, 3999, 0.4], 1, 0),
        # The same behind one that was ahead, where commit times tell nothing: it goes with the one behind it.
        ([3, -1, 1.5, 4000, 0.4], 1, 3),
        ([3, -1, 4000, 0.4], 1, 1),
        ([], 1, 0),
    ],
)
def test_a_wrong_clock_makes_nothing_go_early(days_ago: list[float], kept_days: float, expected: int) -> None:
    """Entries go by what their clocks said where those can have been right, and by their neighbours' age where not."""
    bucket = _bucket([NOW_US - round(days * DAY_US) for days in days_ago])
    assert walk_expired(bucket, NOW_US - round(kept_days * DAY_US), NOW_US).end == expected


@given(
    truth=st.lists(st.tuples(st.integers(0, 20), st.integers(-30, 30) | st.just(0)), max_size=30),
    kept=st.integers(0, 40),
)
def test_what_a_right_clock_stamped_goes_in_time_and_never_early(
    truth: list[tuple[int, int]], kept: int
) -> None:
    """With clocks ahead at times no commit goes before its true age; with right ones all go that are due."""
    times, at = [], 0
    for step, _ in truth:
        at += step
        times.append(at)
    now = at
    skews = [max(0, skew) for _, skew in truth]
    bucket = _bucket([time + skew for time, skew in zip(times, skews, strict=True)])
    for before in (None, walk_expired(bucket, now - 2 * kept, now, entries_max=3)):
        end = walk_expired(bucket, now - kept, now, before).end
        assert all(now - time > kept for time in times[:end])
        if not any(skews):
            assert end == sum(now - time > kept for time in times)


@given(
    clocks=st.lists(st.integers(-5, 15), max_size=30),
    times=st.lists(st.integers(0, 20), min_size=2, max_size=4),
    entries_max=st.integers(1, 4),
)
def test_a_walk_in_pieces_comes_to_the_same_end(
    clocks: list[int], times: list[int], entries_max: int
) -> None:
    """However few entries are looked at in one go: what goes is what a walk without a pause lets go."""
    bucket = _bucket([clock + DAY_US for clock in clocks])
    now = DAY_US + max(times)
    pieces = whole = None
    for time in sorted(times):
        whole = walk_expired(bucket, DAY_US + time, now, whole)
        pieces = walk_expired(bucket, DAY_US + time, now, pieces, entries_max)
        while not pieces.is_done:
            pieces = walk_expired(bucket, DAY_US + time, now, pieces, entries_max)
        assert pieces == whole
        assert whole.is_done


@pytest.mark.rocks
async def test_what_a_clock_that_was_ahead_stamped_goes_however_much_it_is(tmp_path: Path) -> None:
    """More commits than are looked at in one go, a day ahead of the time, leave with the one behind them."""
    now_us = round(WALL_S * 1e6)
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(ITEMS)
        bucket = store.bucket("items", 0)
        bucket.commit([[put(number, "a")] for number in range(10_001)], now_us + DAY_US)
        bucket.commit([[put(0, "b")]], now_us - DAY_US)
        async with open_maintenance(store, ScannerConfig(log_retention_s=3600)) as kept:
            await kept.bucket()
            await kept.maintenance.retention.sweep()
            assert (bucket.log_start, bucket.log_end) == (10_003, 10_003)


_WRITES = st.lists(
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=12
)


@settings(deadline=None)
@given(commits=_WRITES, cuts=st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_the_oldest_state_is_one_that_a_commit_left(
    commits: list[list[tuple[int, bool]]], cuts: list[int]
) -> None:
    """Wherever the log is cut, `log_start` is where a commit ended, so the state as of it existed."""
    store = MemoryStore()
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    ends = {0}
    for number, writes in enumerate(commits):
        bucket.commit([[delete(key) if gone else put(key, str(number)) for key, gone in writes]])
        ends.add(bucket.log_end)
        if number < len(cuts):
            bucket.truncate_log(cuts[number])
            assert bucket.log_start in ends
            assert bucket.offset_at(bucket.contents.timestamp_us) in ends


@pytest.mark.rocks
@pytest.mark.parametrize("kind", ["memory", "rocks"])
async def test_as_of_the_oldest_offset_is_always_a_state_that_existed(tmp_path: Path, kind: str) -> None:
    """Random histories, sizes and ages: after each sweep the state as of `log_start` is one that some commit left."""
    source = random.Random(kind)
    store: Store = MemoryStore() if kind == "memory" else RocksStore.open(tmp_path / "data")
    store.create_table(description())
    rows_at: dict[int, list[int]] = {0: []}
    present: set[int] = set()
    swept = 0
    for _ in range(6):
        config = ScannerConfig(
            log_retention_s=source.choice([0.001, 1e12]),
            log_retention_bytes=source.choice([1, 3000, 1 << 40]),
        )
        async with open_maintenance(store, config) as kept:
            bucket = await kept.bucket()
            for _ in range(12):
                ids = source.sample(range(60), source.randrange(1, 25))
                gone = source.random() < 0.3
                group = mutations(store, "items", sample(ids))
                if gone:
                    group = [each._replace(row=None) for each in group]
                await bucket.submit(group).wait_durable()
                present = present - set(ids) if gone else present | set(ids)
                rows_at[bucket.storage.log_end] = sorted(present)
                if source.random() < 0.4:
                    before = bucket.storage.log_start
                    await kept.maintenance.retention.sweep()
                    swept += bucket.storage.log_start > before
                    start = bucket.storage.log_start
                    assert (
                        await kept.scan(await kept.opener.open(_QUERY, "anna", log_offset=start))
                        == rows_at[start]
                    )
    assert swept > 5
    store.close()
