"""Changes read by the block: the same as one by one, bounded, and as careful about what is missing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import DataCorrupted, OffsetOutOfRange, StoreClosed
from scanner.storage.records import Entry
from scanner.storage.rocksdb.changelog import ChunkDecoder, decode_chunk, log_key
from tests.support.changelog import chunks
from tests.support.changes import read_changes
from tests.support.histories import changes_of, commit, random_history

if TYPE_CHECKING:
    from scanner.storage.interface import Store

ANY = 1 << 30


def encoded(kinds: bytes, rows: list[bytes]) -> tuple[bytes, bytes]:
    """The one chunk of an entry."""
    (chunk,) = chunks(Entry(5, 5 + len(rows), 1, 2), 3, kinds, rows)
    return chunk


def test_a_chunk_is_read_as_it_was_written() -> None:
    """Of one kind or several, of one length or several."""
    for kinds, rows in ((b"\1\1", [b"a", b"b"]), (b"\1\2", [b"", b"abc"]), (b"\4", [b"x" * 10_000])):
        chunk = decode_chunk(*encoded(kinds, rows))
        assert (chunk.offset, chunk.kinds.tobytes(), chunk.rows.to_list()) == (5, kinds, rows)


def test_a_chunk_is_stored_as_it_always_was() -> None:
    """Octet for octet: a directory goes on where another version left it."""
    key, value = encoded(b"\2\3\1", [b"a", b"bc", b""])
    assert key.hex() == "00000000000000050000000000000003"
    header = "02000700030000000500000000000000080000000000000001000000000000000200000000000000"
    assert value.hex() == header + "12000000" + "020301" + "010000000200000000000000" + b"abc".hex()


@pytest.mark.parametrize("kinds", [b"\1\0", b"\5\1"])
def test_a_change_of_no_known_kind_is_damage(kinds: bytes) -> None:
    """A kind that no version wrote is not taken for another."""
    key, value = encoded(b"\1\2", [b"a", b"b"])
    body = len(value) - len(b"\1\2") - len(bytes(4)) - len(b"ab")
    with pytest.raises(DataCorrupted, match="no known kind"):
        decode_chunk(key, value[:body] + kinds + value[body + 2 :])


def test_a_chunk_that_is_cut_is_damage() -> None:
    """Wherever it ends: in its header, its lengths or its rows."""
    key, value = encoded(b"\1\2", [b"abc", b"d"])
    for size in range(len(value)):
        with pytest.raises(DataCorrupted, match="at offset 5 are damaged"):
            decode_chunk(key, value[:size])


def test_a_chunk_outside_its_entry_is_damage() -> None:
    """Before its start, or past its end."""
    for start, end in ((5, 7), (3, 7), (5, 9)):
        ((_, value),) = chunks(Entry(start, end, 1, 2), 3, b"\1\1", [b"a", b"b"])
        assert len(decode_chunk(log_key(5, 3), value)) == 2
    for start, end in ((6, 9), (5, 6), (3, 6)):
        ((_, value),) = chunks(Entry(start, end, 1, 2), 3, b"\1\1", [b"a", b"b"])
        with pytest.raises(DataCorrupted, match=rf"do not belong into the entry \[{start}, {end}\)"):
            decode_chunk(log_key(5, 3), value)


def test_chunks_are_read_together_as_they_were_written() -> None:
    """Whatever they are like: of one kind or several, of one length or several, compressed or not."""
    decoder, offset = ChunkDecoder(), 5
    expected = [
        (b"\1\1", [b"a", b"b"]),
        (b"\1\2", [b"", b"abc"]),
        (b"\4", [b"x" * 10_000]),
        (b"\2\3", [b"", b""]),
    ]
    for number, (kinds, rows) in enumerate(expected):
        entry = Entry(offset, offset + len(rows), number, 2)
        ((key, value),) = chunks(entry, number, kinds, rows)
        assert decoder.add(key, value) == sum(map(len, rows))
        offset = entry.end
        assert (decoder.offset, decoder.end, decoder.entries[-1]) == (5, offset, entry)
    all_kinds, all_rows = decoder.changes()
    assert all_kinds.tobytes() == b"".join(kinds for kinds, _ in expected)
    assert all_rows.to_list() == [row for _, rows in expected for row in rows]
    assert decoder.ends == [2, 4, 5, 7]


def test_a_row_that_is_alone_is_not_copied() -> None:
    """It may have tens of megabytes: what is read of it is what RocksDB has given."""
    row = random.Random(1).randbytes(10_000)
    key, value = encoded(b"\1", [row])
    rows = decode_chunk(key, value).rows
    assert rows.to_list() == [row]
    assert np.shares_memory(np.frombuffer(rows.buffer, np.uint8), np.frombuffer(value, np.uint8))


def test_two_chunks_that_are_damaged_alike_are_damage() -> None:
    """Where the rows of one are longer than its lengths say, and those of another are shorter by as much."""
    ((first, longer),) = chunks(Entry(5, 7, 1, 2), 3, b"\1\2", [b"abc", b"d"])
    ((second, shorter),) = chunks(Entry(7, 9, 2, 2), 4, b"\1\2", [b"abc", b"d"])
    at = longer.index(b"\3\0\0\0\1\0\0\0abcd")
    for lengths in ((b"\2", b"\4"), (b"\4", b"\2")):
        decoder = ChunkDecoder()
        decoder.add(first, longer[:at] + lengths[0] + longer[at + 1 :])
        decoder.add(second, shorter[:at] + lengths[1] + shorter[at + 1 :])
        with pytest.raises(DataCorrupted, match="at offset 5 are damaged"):
            decoder.changes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bytes_max=st.integers(1, 3000), count=st.integers(1, 200))
def test_blocks_hold_what_the_log_holds(store: Store, bytes_max: int, count: int) -> None:
    """Read block by block: every change once, in order, with kind, time, row and key; each block is bounded."""
    bucket = store.bucket("items", 0)
    if not bucket.log_end:
        commit(bucket, random_history(2, commits=5, writes=40, ids=40))
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
        assert block.entry_ends.tolist() == [
            change.offset + 1
            for change in expected
            if bucket.entry_at(change.offset).end == change.offset + 1
        ]
        # Reading stops when enough was read, which may be a row late.
        assert sum(map(len, block.rows[:-1])) <= bytes_max
        offset += len(block)


def test_no_change_is_passed_over_for_a_smaller_one(store: Store) -> None:
    """Where one does not fit any more the block ends, though the next entry's would."""
    bucket = store.bucket("items", 0)
    commit(bucket, [[(1, "a"), (2, "b" * 1000)], [(3, "c")]])
    rows = [change.row for change in read_changes(bucket, 0, 3)]
    for bytes_max in (1, 100, 1000, 1050):
        block = bucket.read_change_block(0, 3, bytes_max)
        assert block.rows == rows[: len(block)]


def test_an_empty_block_is_empty(store: Store) -> None:
    """From an offset to itself there is nothing."""
    assert len(store.bucket("items", 0).read_change_block(0, 0, ANY)) == 0


@pytest.mark.parametrize(("start", "end"), [(0, 12), (4, 8), (8, 7), (8, 99)])
def test_blocks_outside_the_log_are_refused(store: Store, start: int, end: int) -> None:
    """What was truncated, is not there yet, or runs backwards."""
    bucket = store.bucket("items", 0)
    commit(bucket, [[(number, "row")] for number in range(12)])
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
