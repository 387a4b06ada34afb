"""Scans of one bucket as of the same offset: they share what changes have undone, and show what one alone shows."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.keys import KeyRange
from scanner.errors import SnapshotLost
from scanner.server.config import ScannerConfig
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import PastChanges, SharedPast
from tests.support.conformance import open_items
from tests.support.histories import (
    EVERYTHING,
    LIMITS,
    TINY,
    as_of,
    changes_of,
    commit,
    histories,
    key_ranges,
    memory_store,
    random_history,
    read_all,
    rows_as_of,
)
from tests.support.storage_tables import item_key

if TYPE_CHECKING:
    from scanner.sources.as_of import AsOfScan

ROOMY = OverlayLimits()


class Running(NamedTuple):
    """A scan that is being read."""

    scan: AsOfScan
    key_range: KeyRange
    rows: list[bytes]


@given(
    histories(),
    histories(),
    st.data(),
    LIMITS | st.just(OverlayLimits(bytes_max=600)),
    st.randoms(use_true_random=False),
)
def test_each_shows_the_state_whatever_the_others_do(
    history: list[list[tuple[int, str | None]]],
    later: list[list[tuple[int, str | None]]],
    data: st.DataObject,
    limits: OverlayLimits,
    rng: random.Random,
) -> None:
    """Opened at any time, of any range, read in any turns and pieces, with commits between that must not show."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, history)
    log_offset = data.draw(st.integers(0, bucket.log_end))
    changes = changes_of(bucket)
    shared = SharedPast(bucket, log_offset, limits)
    running: list[Running] = []
    ended: list[Running] = []
    with ExitStack() as scans:
        while running or later or not ended:
            what = rng.choice(["open", "commit", "read", "read", "read"])
            if what == "commit" and later:
                commit(bucket, [later.pop()])
            elif what == "open" and len(running) + len(ended) < 6:
                key_range = data.draw(key_ranges())
                scan = scans.enter_context(closing(as_of(bucket, log_offset, key_range, limits, shared)))
                running.append(Running(scan, key_range, []))
            elif running:
                one = rng.choice(running)
                read = one.scan.read(rng.randrange(1, 8), rng.choice([30, EVERYTHING]))
                one.rows.extend(read.rows)
                if not read.rows and not read.unfinished:
                    running.remove(one)
                    ended.append(one)
    assert [one.rows for one in ended] == [rows_as_of(changes, log_offset, one.key_range) for one in ended]


def test_a_change_behind_a_scan_that_another_one_adds_comes_not_twice() -> None:
    """A scan is past its first rows when one with a later end adds that they have changed since."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(10)], [(5, "new")]])
    expected = rows_as_of(changes_of(bucket), 10)
    shared = SharedPast(bucket, 10, ROOMY)
    scans = [as_of(bucket, 10, shared=shared) for _ in range(2)]
    rows: list[bytes] = []
    while len(rows) < 8:
        rows += scans[1].read(1, EVERYTHING).rows
    commit(bucket, [[(1, "newest"), (7, "newest"), (9, None), (99, "added")]])
    scans.append(as_of(bucket, 10, shared=shared))
    assert read_all(scans[2]) == expected
    assert rows + read_all(scans[1]) == expected
    assert read_all(scans[0]) == expected


def test_one_alone_keeps_its_range_only() -> None:
    """It collects for itself, whatever it could share; the second one does not, and nor does the first from then on."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, random_history(3, commits=4, writes=60, ids=100))
    start, some = 60, KeyRange(item_key(20), item_key(23))
    shared = SharedPast(bucket, start, ROOMY)
    first, second = (PastChanges(shared, bucket.log_end, some) for _ in range(2))
    while not first.ready:
        first.step()
    assert 0 < first.overlay.entries <= 3
    assert shared.memory_bytes == 0
    while not second.ready:
        second.step()
    assert second.overlay.entries == 0
    assert shared.memory_bytes > first.overlay.memory_bytes
    assert second.take(None, 100, EVERYTHING) == first.take(None, 100, EVERYTHING)
    first.close()
    second.close()


def test_what_is_shared_is_bounded() -> None:
    """Where it does not suffice each collects for itself, with the disk; those that were ready go on."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(100)], [(number, "new") for number in range(10)]])
    expected = rows_as_of(changes_of(bucket), 100)
    limits = OverlayLimits(bytes_max=6000)
    shared = SharedPast(bucket, 100, limits)
    _, ready = (as_of(bucket, 100, limits=limits, shared=shared) for _ in range(2))
    while not ready.past.ready:
        ready.read(1, 1)
    commit(bucket, [[(number, "newer") for number in range(100)]])
    late = as_of(bucket, 100, limits=limits, shared=shared)
    assert read_all(late) == expected
    assert late.past.overlay.spilled_bytes > 0
    assert shared.is_full
    assert shared.memory_bytes <= limits.bytes_max
    assert read_all(ready) == expected
    assert read_all(as_of(bucket, 100, limits=limits, shared=shared)) == expected

    shared = SharedPast(bucket, 100, TINY)
    for _ in range(3):
        assert read_all(as_of(bucket, 100, limits=TINY, shared=shared)) == expected


def test_a_log_that_is_cut_is_a_lost_state_for_who_needs_it() -> None:
    """Who is ready needs it no longer; the others are told each time that they ask."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(10)], [(5, "new")]])
    expected = rows_as_of(changes_of(bucket), 10)
    shared = SharedPast(bucket, 10, ROOMY)
    _, ready = (as_of(bucket, 10, shared=shared) for _ in range(2))
    while not ready.past.ready:
        ready.read(1, 1)
    commit(bucket, [[(6, "new")], [(7, "new")]])
    late = as_of(bucket, 10, shared=shared)
    bucket.truncate_log(14)
    for _ in range(2):
        with pytest.raises(SnapshotLost, match="can no longer be rebuilt"):
            read_all(late)
    assert read_all(ready) == expected


def test_nothing_is_left_of_scans_that_have_failed() -> None:
    """Their errors have tracebacks, which keep what was shared until Python looks for cycles: it is empty by then."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(10)], [(number, "new") for number in range(6)]])
    limits = OverlayLimits(bytes_max=6000)
    shared = SharedPast(bucket, 10, limits)
    idle, failed = (as_of(bucket, 10, limits=limits, shared=shared) for _ in range(2))
    failed.read(1, 1)
    assert shared.memory_bytes > 0
    bucket.truncate_log(bucket.log_end)
    with pytest.raises(SnapshotLost):
        read_all(failed)
    assert shared.memory_bytes > 0, "another scan may come while one is open"
    idle.close()
    idle.close()
    assert shared.memory_bytes == 0


def test_what_is_shared_begins_anew_behind_its_last_scan() -> None:
    """Where something keeps it that long."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(10)], [(5, "new")]])
    expected = rows_as_of(changes_of(bucket), 10)
    shared = SharedPast(bucket, 10, ROOMY)
    for _ in range(2):
        scans = [as_of(bucket, 10, shared=shared) for _ in range(3)]
        assert [read_all(scan) for scan in scans] == [expected] * 3
        assert scans[1].past.overlay.entries == 0
        assert not shared.keys(b"", b"", 1)
        commit(bucket, [[(6, "newer"), (11, "added")]])


async def test_twenty_scans_read_the_changelog_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the server: what the first one reads for itself, and what all others share."""
    store = memory_store()
    bucket = store.bucket("items", 0)
    commit(bucket, random_history(2, commits=5, writes=400, ids=300))
    start = bucket.log_end
    expected = rows_as_of(changes_of(bucket), start)
    commit(bucket, random_history(5, commits=5, writes=400, ids=300))
    counts: list[int] = []
    read = bucket.read_change_block

    def counted(start: int, end: int, bytes_max: int) -> object:
        block = read(start, end, bytes_max)
        counts.append(len(block))
        return block

    monkeypatch.setattr(bucket, "read_change_block", counted)
    async with open_items(store, there=True, config=ScannerConfig()) as items:
        scan = items.table.new_scan().bucket(0).as_of(start).with_credit(1000)
        begun, all_begun, rows = 0, trio.Event(), list[int]()

        async def read_bucket() -> None:
            nonlocal begun
            async with scan.execute() as batches:
                first = await anext(batches)
                begun += 1
                if begun == 20:
                    all_begun.set()
                await all_begun.wait()
                rows.append(len(first) + sum([len(batch) async for batch in batches]))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(read_bucket)
        assert rows == [len(expected)] * 20
        assert sum(counts) == 2 * (bucket.log_end - start)
