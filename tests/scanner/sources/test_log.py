"""Scans of a changelog: every change once, in order, in batches that end with commits, whatever they are cut into."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.changes import CHANGE_TYPES, change_schema
from scanner.data.filters import Filter, Operator, Predicate
from scanner.data.position import Position
from scanner.errors import ArgumentInvalid, ColumnNotFound, OffsetOutOfRange, StoreClosed
from scanner.sources.interface import EndReason
from scanner.sources.log import LogSource
from scanner.sources.log_blocks import LogBlocks, RingBudget
from scanner.storage.memory.store import MemoryStore
from scanner.wire.arrow_ipc import batch_size_bytes, decode_batch
from tests.support.changes import read_changes
from tests.support.histories import Commit, changes_of, commit, histories, random_history
from tests.support.storage_tables import ITEMS, items_of

if TYPE_CHECKING:
    from scanner.sources.interface import Batch
    from scanner.storage.interface import Bucket

ANY = 1 << 30
SHORT_TEXT = Predicate("text", Operator.LESS, ("b",))

Row = dict[str, Any]


def filled(history: Sequence[Commit]) -> MemoryStore:
    """A store whose bucket 0 has this history."""
    store = MemoryStore()
    store.create_table(ITEMS)
    commit(store.bucket("items", 0), history)
    return store


def blocks_of(
    store: MemoryStore,
    *,
    columns: tuple[str, ...] = (),
    predicates: tuple[Predicate, ...] = (),
    ring: int = ANY,
    on_decode: Callable[[], None] | None = None,
    budget: RingBudget | None = None,
) -> LogBlocks:
    """What reads the changelog of bucket 0."""
    table = store.table("items")
    return LogBlocks(
        store.bucket("items", 0),
        change_schema(table, columns),
        Filter(predicates, table.schema),
        lambda: store.row_codec("items"),
        ring_bytes_max=ring,
        on_decode=on_decode,
        budget=budget,
    )


def drive(
    source: LogSource, payload_bytes_max: int = ANY, rows_max: int = ANY, step: int | None = None
) -> list[Batch]:
    """Step and take until nothing is left to read, and look at what every batch promises."""
    batches: list[Batch] = []
    covered = source.covered
    while source.end is None and (source.pending_bytes or source.wants_step):
        batch = source.take(payload_bytes_max, rows_max)
        if batch is None:
            source.step(step)
            continue
        assert batch.changes is not None
        assert 1 <= batch.rows.num_rows <= rows_max
        assert batch.rows.num_rows == 1 or batch.payload_bytes <= payload_bytes_max
        assert batch.payload_bytes == batch_size_bytes(batch.rows)
        if batch.encoded is not None:
            assert decode_batch(batch.encoded.payload, batch.rows.schema).equals(batch.rows)
        assert batch.changes.start == covered
        assert batch.changes.end == source.next_offset
        covered = batch.changes.end
        batches.append(batch)
    return batches


def expected_rows(bucket: Bucket, start: int = 0) -> list[Row]:
    """Every change from an offset on, read one by one."""
    changes = list(read_changes(bucket, start, bucket.log_end))
    return [
        {
            "id": number,
            "text": text,
            "_change_type": CHANGE_TYPES[change.kind - 1],
            "_log_offset": change.offset,
            "_commit_timestamp": change.timestamp_us,
        }
        for change, (number, text) in zip(changes, items_of([each.row for each in changes]), strict=True)
    ]


def rows_of(batches: list[Batch]) -> list[Row]:
    """Their rows, with times as numbers."""
    rows: list[Row] = []
    for batch in batches:
        index = batch.rows.schema.get_field_index("_commit_timestamp")
        numbers = batch.rows.column(index).cast(pa.int64())
        rows += batch.rows.set_column(index, "_commit_timestamp", numbers).to_pylist()
    return rows


def entry_ends(bucket: Bucket) -> list[int]:
    """Where entries end."""
    ends, offset = [], bucket.log_start
    while offset < bucket.log_end:
        offset = bucket.entry_at(offset).end
        ends.append(offset)
    return ends


@given(
    history=histories(),
    start=st.integers(0, 5),
    payload=st.integers(1, 2000),
    rows=st.integers(1, 9),
    step=st.integers(1, 400),
    filtered=st.booleans(),
)
def test_every_change_comes_once_in_order(
    history: list[Commit], start: int, payload: int, rows: int, step: int, filtered: bool
) -> None:
    """However it is cut: rows, kinds, offsets and times are those of the log, and so are the ends of commits."""
    store = filled(history)
    bucket = store.bucket("items", 0)
    ends = [0, *entry_ends(bucket)]
    first = ends[min(start, len(ends) - 1)]
    source = LogSource(blocks_of(store, predicates=(SHORT_TEXT,) if filtered else ()), first)
    batches = drive(source, payload, rows, step)

    expected = expected_rows(bucket, first)
    passing = [row for row in expected if not filtered or (row["text"] is not None and row["text"] < "b")]
    assert rows_of(batches) == passing
    assert [each.row_ordinal for each in batches] == list(
        itertools.accumulate([each.rows.num_rows for each in batches], initial=0)
    )[: len(batches)]
    for batch in batches:
        assert batch.changes is not None
        assert batch.changes.commit_end == (batch.changes.end in ends)
    assert source.next_offset == bucket.log_end  # What does not pass is behind it, too.
    assert source.bookmark == ends[-1]
    assert source.end is None


@given(history=histories(), payload=st.integers(1, 800), cut=st.integers(0, 30))
def test_a_source_goes_on_where_another_one_stood(history: list[Commit], payload: int, cut: int) -> None:
    """Inside an entry, too: offset and rows are all that it takes."""
    store = filled(history)
    first = LogSource(blocks_of(store), 0)
    before: list[Batch] = []
    while first.wants_step or first.pending_bytes:
        batch = first.take(payload, ANY)
        if batch is None:
            first.step(100)
        elif len(before) == cut:
            break
        else:
            before.append(batch)
            continue
    position = before[-1].changes if before else None
    offset = position.end if position is not None else 0
    rows = sum(batch.rows.num_rows for batch in before)
    second = LogSource(blocks_of(store), offset, position=Position(rows=rows))
    after = drive(second, payload)
    assert rows_of(before) + rows_of(after) == expected_rows(store.bucket("items", 0))
    assert not after or after[0].row_ordinal == rows


def test_a_batch_ends_with_a_commit_where_one_ends_in_it() -> None:
    """A commit that fits is not cut to fill a batch."""
    store = filled([[(number, "xxxx") for number in range(3 * group, 3 * group + 3)] for group in range(4)])
    batches = drive(LogSource(blocks_of(store), 0), rows_max=4)
    assert [(each.rows.num_rows, each.changes and each.changes.commit_end) for each in batches] == [
        (3, True)
    ] * 4


def test_a_commit_larger_than_a_batch_is_cut_and_says_so() -> None:
    """Only its last batch can be stopped at."""
    store = filled([[(number, "x" * 50) for number in range(10)]])
    source = LogSource(blocks_of(store), 0)
    source.step()
    bookmarks = []
    ends = []
    while (batch := source.take(ANY, 4)) is not None:
        ends.append(batch.changes)
        bookmarks.append(source.bookmark)
    assert [(each.start, each.end, each.commit_end) for each in ends if each] == [
        (0, 4, False),
        (4, 8, False),
        (8, 10, True),
    ]
    assert bookmarks == [0, 0, 10]


def test_changes_that_do_not_pass_move_the_position() -> None:
    """With nothing to deliver the source still says how far it is."""
    store = filled([[(1, "zzz")], [(2, "zzz")]])
    source = LogSource(blocks_of(store, predicates=(SHORT_TEXT,)), 0)
    while source.wants_step:
        source.step(1)
    assert (source.pending_bytes, source.next_offset, source.bookmark) == (0, 2, 2)


def test_a_stop_offset_ends_the_scan() -> None:
    """By the position that was reached, also where nothing of the last entry passes."""
    store = filled([[(1, "a")], [(2, "a")], [(3, "zzz")], [(4, "a")]])
    source = LogSource(blocks_of(store, predicates=(SHORT_TEXT,)), 0, stop_offset=3)
    batches = drive(source)
    assert [row["id"] for row in rows_of(batches)] == [1, 2]
    assert (source.end, source.next_offset) == (EndReason.STOP_OFFSET, 3)
    assert LogSource(blocks_of(store), 2, stop_offset=2).end is EndReason.STOP_OFFSET


def test_a_row_limit_ends_the_scan() -> None:
    """After exactly as many rows, counted from where the scan began, not from where it was resumed."""
    store = filled([[(number, "a") for number in range(5)], [(9, "a")]])
    source = LogSource(blocks_of(store), 0, row_limit=4)
    assert sum(each.rows.num_rows for each in drive(source, rows_max=3)) == 4
    assert (source.end, source.next_offset) == (EndReason.LIMIT, 4)
    resumed = LogSource(blocks_of(store), 4, row_limit=4, position=Position(rows=4))
    assert resumed.end is EndReason.LIMIT


def test_columns_come_as_they_are_asked_for() -> None:
    """Of the table or of the change, in any order, each once."""
    store = filled([[(1, "a")], [(1, "b")]])
    columns = ("_log_offset", "text", "_change_type")
    batches = drive(LogSource(blocks_of(store, columns=columns), 0))
    assert batches[0].rows.schema.names == list(columns)
    assert [list(row.values()) for batch in batches for row in batch.rows.to_pylist()] == [
        [0, "a", "insert"],
        [1, "a", "update_preimage"],
        [2, "b", "update_postimage"],
    ]
    with pytest.raises(ColumnNotFound, match="_commit_timestamp"):
        change_schema(ITEMS, ("nothing",))
    with pytest.raises(ArgumentInvalid, match="twice"):
        change_schema(ITEMS, ("id", "id"))


def test_tails_of_one_kind_share_what_is_read_and_encoded() -> None:
    """A commit is read once and encoded once; each of a hundred tails gets the same octets."""
    store = filled([[(number, "first") for number in range(100)]])
    decoded: list[None] = []
    blocks = blocks_of(store, on_decode=lambda: decoded.append(None))
    tails = [LogSource(blocks, 100) for _ in range(100)]
    payloads = set()
    for number in range(1, 4):
        commit(store.bucket("items", 0), [[(number, "again")]])
        for tail in tails:
            (batch,) = drive(tail)
            assert batch.encoded is not None
            payloads.add(id(batch.encoded))
        assert len(decoded) == len(payloads) == number


def test_a_tail_behind_the_ring_reads_for_itself_and_comes_back() -> None:
    """The ring is bounded; who is behind it catches up to the first block that is there, then shares again."""
    store = filled([])
    bucket = store.bucket("items", 0)
    decoded: list[None] = []
    blocks = blocks_of(store, ring=3000, on_decode=lambda: decoded.append(None))
    fast, slow = LogSource(blocks, 0), LogSource(blocks, 0)
    for number in range(20):
        commit(bucket, [[(number, "x" * 100)]])
        drive(fast)
    decoded.clear()
    assert rows_of(drive(slow)) == expected_rows(bucket)
    assert 1 <= len(decoded) < 20
    commit(bucket, [[(99, "last")]])
    assert drive(fast)[0].encoded is drive(slow)[0].encoded


@given(seed=st.integers(0, 1000), ring=st.sampled_from([1, 2000, ANY]), data=st.data())
def test_tails_at_any_distance_see_the_same_changes(seed: int, ring: int, data: st.DataObject) -> None:
    """Whoever reads first, and however much the ring holds."""
    store = filled([])
    bucket = store.bucket("items", 0)
    blocks = blocks_of(store, ring=ring)
    tails = [LogSource(blocks, 0) for _ in range(4)]
    seen: list[list[Row]] = [[] for _ in tails]
    for writes in random_history(seed, commits=8, writes=6, ids=5):
        commit(bucket, [writes])
        index = data.draw(st.integers(0, 3))
        seen[index] += rows_of(
            drive(tails[index], payload_bytes_max=data.draw(st.sampled_from([1, 900, ANY])))
        )
    for index, tail in enumerate(tails):
        seen[index] += rows_of(drive(tail))
        assert seen[index] == expected_rows(bucket)


def test_what_retention_has_taken_is_out_of_range() -> None:
    """It says so, and names the range; nothing is skipped in silence."""
    store = filled([[(1, "a")], [(2, "a")], [(3, "a")]])
    source = LogSource(blocks_of(store), 0)
    store.bucket("items", 0).truncate_log(2)
    with pytest.raises(OffsetOutOfRange, match=r"\[2, 3\)") as refused:
        source.step()
    assert refused.value.oldest_offset == 2


def test_all_rings_together_are_bounded() -> None:
    """However many filters there are: the largest make room, tails see the same, and what has gone counts no more."""
    store = filled([])
    bucket = store.bucket("items", 0)
    budget = RingBudget(20_000)
    tails = [
        LogSource(
            blocks_of(
                store, predicates=(Predicate("id", Operator.GREATER_OR_EQUAL, (-number,)),), budget=budget
            ),
            0,
        )
        for number in range(30)
    ]
    seen: list[list[Row]] = [[] for _ in tails]
    for number in range(12):
        commit(bucket, [[(number, "x" * 300)]])
        for index, tail in enumerate(tails):
            seen[index] += rows_of(drive(tail))
            assert budget.held_bytes <= 20_000
    assert all(each == expected_rows(bucket) for each in seen)
    assert budget.held_bytes
    del tails, tail
    assert budget.held_bytes == 0


def test_a_closed_source_reads_nothing() -> None:
    """Typed, and as often as it is asked."""
    source = LogSource(blocks_of(filled([[(1, "a")]])), 0)
    source.close()
    source.close()
    with pytest.raises(StoreClosed):
        source.step()


def test_a_table_with_such_a_column_has_no_scan_of_its_log() -> None:
    """Two columns of one name would be told apart by nobody."""
    table = ITEMS.with_column(pa.field("_change_type", pa.string()))
    with pytest.raises(ArgumentInvalid, match="_change_type"):
        change_schema(table)


def test_the_whole_log_of_the_sample_is_what_folds_to_it() -> None:
    """Of a longer history, read in blocks of a few rows."""
    store = filled(random_history(7, commits=30, writes=40, ids=25))
    assert rows_of(drive(LogSource(blocks_of(store), 0), 3000, 7, 500)) == expected_rows(
        store.bucket("items", 0)
    )
    assert changes_of(store.bucket("items", 0))
