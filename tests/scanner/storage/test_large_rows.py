"""Rows of megabytes: what is read at once is bounded by bytes from the first read on, not by a number of rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanner.data import row_block
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_tables import ITEMS, put, puts

pytestmark = pytest.mark.rocks

KIB = 1024
ROW_BYTES = 256 * KIB
ROWS = 64
READ_BYTES = 64 * KIB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """A bucket with rows of 256 KiB, and many small ones behind them."""
    with RocksStore.open(tmp_path / "data") as opened:
        opened.create_table(ITEMS)
        bucket = opened.bucket("items", 0)
        bucket.commit([puts((number, "x" * ROW_BYTES) for number in range(ROWS))])
        bucket.commit([puts((number, "x") for number in range(ROWS, ROWS + 2000))])
        yield opened


@pytest.fixture
def memory() -> Iterator[None]:
    """Counts what Python allocates."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("shared", [False, True])
def test_a_scan_reads_no_more_large_rows_than_it_gives(store: RocksStore, shared: bool, memory: None) -> None:
    """However small the first read is, only a few rows are in memory; and all of them come, in order."""
    bucket = store.bucket("items", 0)
    snapshot = bucket.open_snapshot()
    if shared:  # A scan of a state that has passed goes another way.
        bucket.commit([[put(ROWS + 2000, "x")]])
    scan = snapshot.scan()
    counts = []
    while rows := scan.read(1000, READ_BYTES).rows:
        counts.append(len(rows))
        del rows
    snapshot.close()
    assert counts[:ROWS] == [1] * ROWS
    assert sum(counts) == ROWS + 2000
    assert max(counts) > 500
    assert tracemalloc.get_traced_memory()[1] < 8 * ROW_BYTES


def test_large_rows_behind_small_ones_end_a_piece(tmp_path: Path, memory: None) -> None:
    """By the small ones thousands fit a read; of the large ones a few hundred are in memory at most."""
    small, large, large_bytes = 6_000, 2_000, 8 * KIB
    with RocksStore.open(tmp_path / "data") as opened:
        opened.create_table(ITEMS)
        bucket = opened.bucket("items", 0)
        bucket.commit([puts((number, "x") for number in range(small))])
        bucket.commit([puts((number, "x" * large_bytes) for number in range(small, small + large))])
        scan, count = bucket.open_snapshot().scan(), 0
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        while rows := scan.read(1000, READ_BYTES).rows:
            count += len(rows)
        assert count == small + large
        assert tracemalloc.get_traced_memory()[1] - before < 1024 * large_bytes * 1.5


@pytest.mark.parametrize("rows_in_a_block", [1, 2, 3])
def test_large_rows_behind_small_ones(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch, rows_in_a_block: int
) -> None:
    """A piece that was thought to be small, and is too much for one block, comes in several; nothing is lost."""
    monkeypatch.setattr(row_block, "BLOCK_BYTES_MAX", rows_in_a_block * ROW_BYTES + ROW_BYTES // 2)
    bucket = store.bucket("items", 0)
    bucket.commit([puts((number, "x" * ROW_BYTES) for number in range(ROWS + 2000, 2 * ROWS + 2000))])
    scan = bucket.open_snapshot().scan()
    keys: list[bytes] = []
    while len(read := scan.read(1000, READ_BYTES)):
        keys += read.keys_of(read.rows)
    assert keys == sorted(set(keys))
    assert len(keys) == 2 * ROWS + 2000


def test_changes_are_read_no_further_than_they_are_wanted(store: RocksStore, memory: None) -> None:
    """A block of the log has one large change, or many small ones."""
    bucket = store.bucket("items", 0)
    offset, counts = 0, []
    while offset < bucket.log_end:
        counts.append(len(bucket.read_change_block(offset, bucket.log_end, READ_BYTES)))
        offset += counts[-1]
    assert counts[:ROWS] == [1] * ROWS
    assert max(counts) > 500
    assert tracemalloc.get_traced_memory()[1] < 8 * ROW_BYTES
