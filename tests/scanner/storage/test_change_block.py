"""Changes read by the block: the same as one by one, bounded, and as careful about what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, OffsetOutOfRange, StoreClosed
from scanner.storage.changelog import change_header, decode_change_block
from scanner.storage.interface import ChangeKind
from tests.support.histories import changes_of, commit, random_history

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanner.storage.interface import Store

ANY = 1 << 30


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bytes_max=st.integers(1, 3000), count=st.integers(1, 200))
def test_blocks_hold_what_the_log_holds(store: Store, bytes_max: int, count: int) -> None:
    """Read block by block: every change once, in order, with kind, time, row and key; each block is bounded."""
    bucket = store.bucket("items", 0)
    if not bucket.log_end:
        commit(bucket, random_history(2, commits=5, writes=100, ids=40))
    changes = changes_of(bucket)
    offset = 0
    while offset < bucket.log_end:
        block = bucket.read_change_block(offset, min(bucket.log_end, offset + count), bytes_max)
        expected = changes[offset : offset + len(block)]
        assert 1 <= len(block) <= count
        assert block.offset == offset
        assert block.kinds.tolist() == [change.kind for change in expected]
        assert block.timestamps_us.tolist() == [change.timestamp_us for change in expected]
        assert block.rows == [change.row for change in expected]
        assert block.keys_of(block.rows) == [change.key for change in expected]
        # Before anything is known of their size some records are read at once.
        assert sum(map(len, block.rows[64:-8])) <= bytes_max
        offset += len(block)


def test_an_empty_block_is_empty(store: Store) -> None:
    """From an offset to itself there is nothing."""
    assert len(store.bucket("items", 0).read_change_block(0, 0, ANY)) == 0


@pytest.mark.parametrize(("start", "end"), [(0, 12), (4, 8), (8, 7), (8, 99)])
def test_blocks_outside_the_log_are_refused(store: Store, start: int, end: int) -> None:
    """What was truncated, is not there yet, or runs backwards."""
    bucket = store.bucket("items", 0)
    commit(bucket, [[(number, "row") for number in range(12)]])
    bucket.truncate_log(5)
    with pytest.raises(OffsetOutOfRange, match=r"\[5, 12\)") as refused:
        bucket.read_change_block(start, end, ANY)
    assert refused.value.oldest_offset == 5


def test_a_closed_bucket_reads_no_blocks(store: Store) -> None:
    """As every other call."""
    bucket = store.bucket("items", 0)
    store.close()
    with pytest.raises(StoreClosed):
        bucket.read_change_block(0, 0, ANY)


@pytest.mark.parametrize("damaged", [b"", b"\x01\x02", b"\x00" + bytes(8), b"\x05" + bytes(20)])
def test_damaged_records_are_found(damaged: bytes) -> None:
    """Too short, or of a kind that there is not: an error that names the offset."""

    def keys_of(rows: Sequence[bytes]) -> list[bytes]:
        raise AssertionError(rows)

    good = change_header(ChangeKind.INSERT, 7) + b"row"
    with pytest.raises(DataCorrupted, match="offset 12"):
        decode_change_block(10, [good, good, damaged, good], keys_of)
