"""As-of scans: the state at any offset, whatever is cut, spilled, interrupted, committed or truncated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import scanner.sources.past
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import KeyRange
from scanner.data.position import START
from scanner.sources.overlay import Overlay, OverlayLimits
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.histories import (
    EVERYTHING,
    IDS,
    LIMITS,
    TINY,
    Delivered,
    as_of,
    changes_of,
    commit,
    digest_of,
    drive,
    histories,
    key_ranges,
    memory_store,
    random_history,
    read_all,
    rows_as_of,
    source_of,
)
from tests.support.storage_tables import ITEMS, item_key, items_of

if TYPE_CHECKING:
    from scanner.storage.interface import Store

HISTORY = random_history(4, commits=8, writes=25, ids=60)


@pytest.fixture(scope="module", params=["rocks", "memory"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with some hundred changes in it, which no test adds to: the real one, then the verified fake."""
    path = tmp_path_factory.mktemp("history") / "data"
    store: Store = RocksStore.open(path) if request.param == "rocks" else MemoryStore()
    store.create_table(ITEMS)
    commit(store.bucket("items", 0), HISTORY)
    yield store
    store.close()


def check_every_offset(history: list[list[tuple[int, str | None]]]) -> None:
    """The property that matters: every offset, in memory and spilled, equals the fold of the changelog."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, history)
    changes = changes_of(bucket)
    for log_offset in range(bucket.log_end + 1):
        for limits in (None, TINY):
            expected = rows_as_of(changes, log_offset)
            assert read_all(as_of(bucket, log_offset, limits=limits)) == expected


@given(histories())
def test_every_offset_equals_the_fold_of_the_changelog(history: list[list[tuple[int, str | None]]]) -> None:
    """Random histories, every S from the first to the last, updates split in the middle included."""
    check_every_offset(history)


def test_an_overlay_that_lets_the_last_change_win_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above can fail: it finds the mistake that is easiest to make here."""

    class LastWins(Overlay):
        def add(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
            self._first.update(zip(keys, rows, strict=True))
            super().add(keys, rows)

    monkeypatch.setattr(scanner.sources.past, "Overlay", LastWins)
    # Nobody reads the example, so none that is smaller is looked for.
    quick = settings(
        database=None,
        derandomize=True,
        max_examples=100,
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    broken = quick(given(histories())(check_every_offset))
    with pytest.raises(AssertionError):
        broken()


@given(
    histories(),
    st.data(),
    LIMITS,
    key_ranges(),
    st.integers(1, IDS + 1),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_ranges_and_pieces_do_not_matter(
    history: list[list[tuple[int, str | None]]],
    data: st.DataObject,
    limits: OverlayLimits,
    key_range: KeyRange,
    rows_max: int,
    bytes_max: int,
    later: int,
) -> None:
    """Any key range, read in pieces of any size, with writes in between that must not show."""
    store = memory_store()
    bucket = store.bucket("items", 0)
    commit(bucket, history)
    log_offset = data.draw(st.integers(0, bucket.log_end))
    expected = rows_as_of(changes_of(bucket), log_offset, key_range)
    scan = as_of(bucket, log_offset, key_range, limits)
    rows = list(scan.read(rows_max, bytes_max).rows)
    commit(bucket, random_history(later, commits=2, writes=20, ids=IDS))
    rows += read_all(scan, rows_max, bytes_max)

    assert rows == expected
    assert scan.log_offset == log_offset


@pytest.mark.parametrize("rows_max", [1, 3, 100])
def test_rows_know_the_key_that_they_end_with(rows_max: int) -> None:
    """Whether changes touch them or not: a scan that is cut goes on behind it."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(9)], [(4, "new"), (7, None)]])
    scan, numbers = as_of(bucket, 9), []
    while (read := scan.read(rows_max, EVERYTHING)) or read.unfinished:
        numbers += [number for number, _ in items_of(read.rows)]
        assert read.last_key == (item_key(numbers[-1]) if read else None)
    assert numbers == list(range(9))


@given(st.data(), LIMITS, st.integers(-5, 70), st.integers(1, 70), st.integers(1, 80))
def test_both_stores_give_the_state_of_any_offset(
    history: Store, data: st.DataObject, limits: OverlayLimits, start: int, count: int, rows_max: int
) -> None:
    """Over files as over the fake: any offset of a long history, any range, any block size."""
    bucket = history.bucket("items", 0)
    log_offset = data.draw(st.integers(0, bucket.log_end))
    key_range = KeyRange(item_key(start), item_key(start + count))
    rows = read_all(as_of(bucket, log_offset, key_range, limits), rows_max)

    assert rows == rows_as_of(changes_of(bucket), log_offset, key_range)


@given(
    st.data(),
    LIMITS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=5),
    st.integers(1, 30),
    st.sampled_from([None, 0, 7, 1000]),
    st.booleans(),
)
def test_interrupted_anywhere_it_goes_on_exactly(
    history: Store,
    data: st.DataObject,
    limits: OverlayLimits,
    pieces: list[tuple[int, int]],
    block_rows_max: int,
    row_limit: int | None,
    some: bool,
) -> None:
    """Cut after any batches and opened again by position: rows, ordinals, digest and position as without a cut."""
    log_offset = data.draw(st.integers(0, history.bucket("items", 0).log_end))
    predicates = [Predicate("text", Operator.NOT_EQUAL, ("",))] if some else []
    key_range = KeyRange(item_key(3), item_key(55))
    whole = drive(
        source_of(history, log_offset, key_range=key_range, row_limit=row_limit, predicates=predicates)
    )
    items: list[tuple[int, str | None]] = []
    ordinals: list[int] = []
    position = START
    for batches_max, rows_max in [*pieces, (EVERYTHING, EVERYTHING)]:
        source = source_of(
            history,
            log_offset,
            key_range=key_range,
            limits=limits,
            row_limit=row_limit,
            predicates=predicates,
            position=position,
            block_rows_max=block_rows_max,
        )
        part = drive(source, batches_max=batches_max, rows_max=rows_max)
        items += part.items
        ordinals += part.ordinals
        position = part.position

    assert items == whole.items
    assert ordinals == list(range(len(items)))
    assert position == whole.position
    if row_limit is None:
        expected = rows_as_of(changes_of(history.bucket("items", 0)), log_offset, key_range)
        assert position.digest == digest_of(expected)
        assert items == [item for item in items_of(expected) if not some or item[1] not in ("", None)]


@pytest.mark.parametrize("kind", ["rocks", "memory"])
def test_the_digest_is_that_of_the_live_scan_of_then(kind: str, tmp_path: Path) -> None:
    """A live scan at each commit, and later scans as of these offsets: the same rows and the same digest."""
    store: Store = RocksStore.open(tmp_path / "data") if kind == "rocks" else MemoryStore()
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    live: dict[int, Delivered] = {}
    for writes in HISTORY:
        live[bucket.log_end] = drive(source_of(store, bucket.log_end))
        commit(bucket, [writes])
    for log_offset, then in live.items():
        assert drive(source_of(store, log_offset, limits=TINY, block_rows_max=9)) == then
    store.close()
