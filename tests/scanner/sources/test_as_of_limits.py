"""As-of scans between start and end: built in pieces, merged in pieces, truncated, failing, closed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.errors import DataCorrupted, OffsetOutOfRange, SnapshotLost, StoreClosed, StoreFailed
from scanner.sources.as_of import AsOfScan
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import SharedPast
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.histories import (
    EVERYTHING,
    TINY,
    as_of,
    changes_of,
    commit,
    memory_store,
    random_history,
    read_all,
    rows_as_of,
)
from tests.support.open_files import open_files
from tests.support.storage_tables import ITEMS, item_key, items_of, put

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, Rows, Store

HISTORY = random_history(4, commits=8, writes=25, ids=60)


def built(scan: AsOfScan) -> int:
    """Read until the overlay is built; how many reads it took. None of them gave a row or an end."""
    reads = 0
    while not scan.past.ready:
        read = scan.read(100, EVERYTHING)
        assert (read.rows, read.unfinished, read.last_key) == ([], True, None)
        reads += 1
    return reads


def test_the_overlay_is_built_in_bounded_pieces() -> None:
    """Reads give no rows and no end until it is there, and each looks at a bounded number of changes."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, random_history(1, commits=30, writes=300, ids=5000))
    scan = as_of(bucket, 0)
    entries = []
    while not scan.past.ready:
        scan.read(100, EVERYTHING)
        entries.append(scan.past.overlay.entries)
    steps = [after - before for before, after in zip([0, *entries], entries, strict=False)]

    assert max(steps) <= 4096
    assert len(entries) >= bucket.log_end // 4096
    assert scan.past.overlay.memory_bytes > 0
    assert scan.past.overlay.spilled_bytes == 0
    assert read_all(scan) == []


def test_an_offset_of_now_is_the_live_scan() -> None:
    """Nothing changed since: the overlay is empty, and rows pass as they were read."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    scan = as_of(bucket, bucket.log_end)

    assert built(scan) == 1
    assert scan.past.overlay.entries == 0
    assert read_all(scan) == rows_as_of(changes_of(bucket), bucket.log_end)


def test_rows_that_no_change_touches_pass_untouched() -> None:
    """A block without overlay keys in its range is handed on as it was read, its keys never worked out."""
    store = memory_store()
    bucket = store.bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(100)], [(55, "new")]])
    live = bucket.open_snapshot().scan()
    reads: list[Rows] = []
    original = live.read

    def noted(rows_max: int, bytes_max: int) -> Rows:
        reads.append(original(rows_max, bytes_max))
        return reads[-1]

    live.read = noted  # type: ignore[method-assign]
    scan = AsOfScan(live, SharedPast(bucket, 100, OverlayLimits()), ALL_KEYS)
    given_on = []
    built(scan)
    while read := scan.read(10, EVERYTHING):
        given_on.append(read)

    assert [one is other for one, other in zip(given_on, reads, strict=False)] == [True] * 5 + [False] + [
        True
    ] * 4
    assert given_on[5].rows != reads[5].rows


def test_deleted_and_inserted_rows_do_not_end_a_scan() -> None:
    """Long runs of rows that came or went since: blocks of which nothing is left, and keys that are gone now."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "kept") for number in (0, 500, 1000)]])
    log_offset = bucket.log_end
    commit(bucket, [[(number, "new") for number in range(1, 999) if number != 500]])

    assert items_of(read_all(as_of(bucket, log_offset), 10)) == [(0, "kept"), (500, "kept"), (1000, "kept")]
    then = bucket.log_end
    commit(bucket, [[(number, None) for number in range(1, 999)]])
    assert len(read_all(as_of(bucket, then), 10)) == 1000
    assert len(read_all(as_of(bucket, then, limits=TINY), 10)) == 1000


def test_rows_behind_the_last_live_key_come_too() -> None:
    """Keys that only the overlay has, in front of all live rows, behind them, and without any."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(number, "old") for number in range(10)], [(n, None) for n in (0, 1, 8, 9)]])
    assert [number for number, _ in items_of(read_all(as_of(bucket, 10), 3))] == list(range(10))
    commit(bucket, [[(number, None) for number in range(10)]])
    assert [number for number, _ in items_of(read_all(as_of(bucket, 10), 3))] == list(range(10))


def test_an_empty_bucket_is_empty() -> None:
    """No rows, no changes: an end."""
    scan = as_of(memory_store().bucket("items", 0), 0)
    assert read_all(scan) == []


def test_a_split_update_has_taken_the_old_row_and_not_put_the_new_one() -> None:
    """Between `-U` and `+U` the key is absent; one offset to either side it is not."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(1, "old"), (2, "other")], [(1, "new")]])

    assert [items_of(read_all(as_of(bucket, offset))) for offset in (2, 3, 4)] == [
        [(1, "old"), (2, "other")],
        [(2, "other")],
        [(1, "new"), (2, "other")],
    ]


def test_a_log_that_no_longer_reaches_back_is_refused_at_once() -> None:
    """The oldest offset that is still possible is named, and the live scan is not left open."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    bucket.truncate_log(50)
    oldest = bucket.log_start
    assert oldest > 20
    live = bucket.open_snapshot().scan()
    with pytest.raises(SnapshotLost, match=f"starts at {oldest}") as refused:
        AsOfScan(live, SharedPast(bucket, oldest - 1, OverlayLimits()), ALL_KEYS)
    assert refused.value.oldest_offset == oldest
    with pytest.raises(StoreClosed):
        live.read(1, 1)
    read_all(as_of(bucket, oldest))


def test_an_offset_that_is_not_there_yet_is_refused_at_once() -> None:
    """The log's end is named."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, [[(1, "row")]])
    with pytest.raises(OffsetOutOfRange, match="ends at 1"):
        as_of(bucket, 2)


@pytest.mark.parametrize("kind", ["rocks", "memory"])
def test_a_log_truncated_while_it_is_read_loses_the_state(kind: str, tmp_path: Path) -> None:
    """The error comes with the oldest offset, again at every further read; nothing half-built is shown."""
    store: Store = RocksStore.open(tmp_path / "data") if kind == "rocks" else MemoryStore()
    store.create_table(ITEMS)
    bucket = store.bucket("items", 0)
    commit(bucket, HISTORY)
    scan = as_of(bucket, 10, limits=TINY)
    for _ in range(7):
        assert scan.read(10, EVERYTHING).unfinished
    bucket.truncate_log(40)
    for _ in range(2):
        with pytest.raises(SnapshotLost) as lost:
            read_all(scan)
        assert lost.value.oldest_offset == bucket.log_start > 20
    store.close()


def test_a_log_truncated_behind_the_reader_does_not_matter() -> None:
    """Once the changes are read, the scan needs the log no more."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    expected = rows_as_of(changes_of(bucket), 10)
    scan = as_of(bucket, 10)
    built(scan)
    bucket.truncate_log(bucket.log_end)
    assert read_all(scan) == expected


class Holed:
    """A bucket whose log turns out to have a hole."""

    def __init__(self, bucket: Bucket, log_start: int) -> None:
        self._bucket = bucket
        self.log_start = 0
        self._log_start_then = log_start

    def __getattr__(self, name: str) -> object:
        return getattr(self._bucket, name)

    def read_change_block(self, start_offset: int, end_offset: int, bytes_max: int) -> object:
        """Fail as storage does when a record is not there."""
        self.log_start = self._log_start_then
        raise DataCorrupted(f"the change at offset {start_offset} is missing")


@pytest.mark.parametrize(("log_start", "error"), [(0, DataCorrupted), (5, SnapshotLost)])
def test_a_hole_is_damage_unless_a_truncation_made_it(log_start: int, error: type[Exception]) -> None:
    """Changes may go while they are read; what is missing for no reason stays damage."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    holed: Bucket = Holed(bucket, log_start)  # type: ignore[assignment]
    with pytest.raises(error):
        read_all(as_of(holed, 2))


def test_a_failing_disk_ends_the_scan(tmp_path: Path) -> None:
    """Spilling into a directory that is not there: one typed error, again and again."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    scan = as_of(bucket, 0, limits=OverlayLimits(bytes_max=1, directory=tmp_path / "nowhere"))
    for _ in range(2):
        with pytest.raises(StoreFailed, match="nowhere"):
            read_all(scan)


@pytest.mark.parametrize("reads", [0, 1, 100, 600])
def test_closing_at_any_time_leaves_nothing(reads: int, tmp_path: Path) -> None:
    """While building, spilling or merging: files and live scan are closed, and further reads say so."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    live = bucket.open_snapshot().scan()
    scan = AsOfScan(live, SharedPast(bucket, 0, replace(TINY, directory=tmp_path)), ALL_KEYS)
    for _ in range(reads):
        scan.read(1, EVERYTHING)
    scan.close()
    scan.close()

    assert open_files(tmp_path) == []
    assert scan.past.overlay.memory_bytes == 0
    for closed in (scan, live):
        with pytest.raises(StoreClosed):
            closed.read(1, 1)


def test_the_end_frees_the_temporary_file(tmp_path: Path) -> None:
    """A scan that was read to its end holds nothing, though nobody closed it yet."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    scan = as_of(bucket, 0, limits=replace(TINY, directory=tmp_path))
    read_all(scan)
    assert scan.past.overlay.spilled_bytes > 0
    assert open_files(tmp_path) == []


def test_keys_outside_the_range_take_no_room() -> None:
    """Changes of other keys are looked at, and forgotten."""
    bucket = memory_store().bucket("items", 0)
    commit(bucket, HISTORY)
    scan = as_of(bucket, 0, KeyRange(item_key(7), item_key(8)))
    read_all(scan)
    assert scan.past.overlay.entries == 1


def test_large_rows_are_read_one_by_one() -> None:
    """A piece of changes is bounded by bytes as well, so that memory is."""
    bucket = memory_store().bucket("items", 0)
    limits = OverlayLimits(bytes_max=160_000)
    bucket.commit([[put(number, "x" * 9000) for number in range(40)]])
    commit(bucket, [[(number, None) for number in range(40)]])
    scan = as_of(bucket, 40, limits=limits)
    seen = 0
    while not scan.past.ready:
        scan.read(10, EVERYTHING)
        seen = max(seen, scan.past.overlay.memory_bytes)

    assert seen <= limits.bytes_max
    assert len(read_all(scan, 3)) == 40
