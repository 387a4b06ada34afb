"""How rows are cut into write requests, and a writer that waits for them."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.offsets import OffsetRange
from scanner.client.request_rows import (
    REQUEST_BYTES_MAX,
    REQUEST_ROWS_MAX,
    SCALE_MAX,
    BucketShares,
    conformed,
    joined,
    request_scale,
    split_rows,
)
from scanner.client.writer import WriteResult
from scanner.data.keys import KeyCodec, buckets_of
from scanner.data.table import TableDescription
from scanner.errors import KeyInvalid, SchemaMismatch, ServerUnavailable
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from tests.support.client import open_client
from tests.support.conformance import open_virtual_items
from tests.support.scans import sample


@given(sizes=st.lists(st.integers(0, 3_000), max_size=60), scale=st.sampled_from([1, 2, SCALE_MAX]))
def test_pieces_are_the_rows_in_order(sizes: list[int], scale: int) -> None:
    """The pieces concatenated are the rows, whatever the chunks; none is empty or too long."""
    chunks, first = [], 0
    for size in sizes:
        chunks.append(pa.record_batch({"k": pa.array(range(first, first + size), pa.int64())}))
        first += size
    table = pa.Table.from_batches(chunks, schema=pa.schema([("k", pa.int64())]))
    pieces = list(split_rows(table, scale))
    assert [k for piece in pieces for k in piece["k"].to_pylist()] == list(range(first))
    assert all(0 < piece.num_rows <= scale * REQUEST_ROWS_MAX for piece in pieces)
    if scale > 1:
        assert len(pieces) <= 1 + 2 * first // (scale * REQUEST_ROWS_MAX)


@pytest.mark.parametrize("width", [10, 100_000, 3_000_000])
def test_pieces_have_a_bounded_size(width: int) -> None:
    """Wide rows make shorter pieces; a row that is larger than a request goes alone."""
    batch = pa.record_batch({"text": ["x" * width] * 9})
    pieces = list(split_rows(batch))
    assert sum(piece.num_rows for piece in pieces) == 9
    assert all(piece.num_rows == 1 or piece.nbytes <= REQUEST_BYTES_MAX for piece in pieces)


_TEXTS = pa.array([f"{index:0100}" for index in range(20_000)])


@pytest.mark.parametrize(
    "column", [_TEXTS.dictionary_encode(), _TEXTS.cast(pa.string_view())], ids=["dictionary", "view"]
)
def test_values_that_slices_share_count_where_they_are_used(column: pa.Array) -> None:
    """A column whose values take more than a request is cut by what its rows take, not into rows."""
    pieces = list(split_rows(pa.record_batch({"text": column})))
    assert pa.concat_arrays([piece["text"].cast(pa.string()) for piece in pieces]) == _TEXTS
    assert len(pieces) == 3


def test_a_value_that_many_rows_name_counts_for_each() -> None:
    """A dictionary of one long value makes short pieces: it is sent for each row."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), ["x" * 100_000])
    pieces = list(split_rows(pa.record_batch({"text": column})))
    assert sum(piece.num_rows for piece in pieces) == 100
    assert max(piece.num_rows for piece in pieces) <= REQUEST_BYTES_MAX // 100_000


def test_many_tiny_chunks_become_few_requests() -> None:
    """A table in a thousand chunks is not a thousand requests."""
    table = pa.concat_tables([pa.table({"k": [i]}) for i in range(1_000)])
    assert len(list(split_rows(table))) == 1


def test_an_empty_batch_of_a_stream_is_no_rows() -> None:
    """A stream may have one between others, cut from columns whose values begin further on."""
    parts = pa.chunked_array([pa.array([1, 2]), pa.array([], pa.int64()), pa.array([3])])
    table = pa.table({"k": parts, "v": pa.array([None, 5, 6])})
    pieces = list(split_rows(pa.table(table.to_reader())))
    assert pa.Table.from_batches(pieces).to_pydict() == {"k": [1, 2, 3], "v": [None, 5, 6]}


KEYED = TableDescription("t", pa.schema([("k", pa.int64()), ("text", pa.string())]), ("k",), 16)


@pytest.mark.parametrize("rows", [1000, 65_536])
@pytest.mark.parametrize("width", [10, 5_000])
@pytest.mark.parametrize("buckets", [1, 4, 16, 64])
def test_no_bucket_gets_more_than_a_request_to_one_bucket_has(buckets: int, width: int, rows: int) -> None:
    """However the keys are spread: over all buckets, or all of them in one, as those of a scan of that bucket are."""
    table = TableDescription("t", KEYED.schema, ("k",), buckets)
    codec, shares, scale = KeyCodec(table), BucketShares(table), request_scale(buckets)
    keys = pa.record_batch({"k": pa.array(range(rows * min(4, buckets)))})
    numbers = buckets_of(codec.encode_array(keys), buckets)
    for wanted in (numbers >= 0, numbers == 0):
        mine = keys.filter(pa.array(wanted))["k"][:rows]
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(mine), np.int8)), ["x" * width])
        batch = pa.record_batch({"k": mine, "text": text})
        parts = [part for piece in conformed(batch, table.conform, scale) for part in shares.cut(piece)]
        assert [key for part in parts for key in part["k"].to_pylist()] == mine.to_pylist()
        largest = [np.bincount(buckets_of(codec.encode_array(part), buckets)).max() for part in parts]
        assert max(largest) <= REQUEST_ROWS_MAX
        assert max(largest) * width <= REQUEST_BYTES_MAX
        if wanted.all() and width == 10:
            assert len(parts) == -(-rows // (scale * REQUEST_ROWS_MAX))


def test_a_key_that_cannot_be_stored_is_the_servers_to_refuse() -> None:
    """It names the row; until then rows are cut as for one bucket."""
    table = TableDescription("t", pa.schema([("k", pa.string())]), ("k",), 16)
    keys = pa.array([f"{index}" for index in range(10_000)] + ["x" * 70_000])
    parts = list(BucketShares(table).cut(pa.record_batch({"k": keys})))
    assert pa.concat_arrays([part["k"] for part in parts]) == keys
    assert all(part.num_rows <= REQUEST_ROWS_MAX for part in parts)


def test_dictionaries_that_cannot_be_joined_stay_as_they_are() -> None:
    """Of an index of 8 bits, with more values than it counts together; also where the chunks are tiny."""
    indices = pa.array(range(100), pa.int8())
    batches = [
        pa.record_batch({"k": pa.DictionaryArray.from_arrays(indices, [f"{word}{n}" for n in range(100)])})
        for word in ("a", "b")
    ]
    assert list(joined(batches, 2)) == batches
    tiny = pa.Table.from_batches([batch.slice(row, 1) for batch in batches for row in range(100)])
    for scale in (1, 2):
        pieces = list(split_rows(tiny, scale))
        assert [k for piece in pieces for k in piece["k"].to_pylist()] == tiny["k"].to_pylist()


WITHOUT_VALUES = [
    pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.float64())),
    pa.DictionaryArray.from_arrays(pa.array([None, 0], pa.int8()), pa.nulls(1)),
    pa.DictionaryArray.from_arrays(pa.array([None, 0], pa.int8()), pa.array([None], pa.string())),
]
TABLE = TableDescription("t", pa.schema([("k", pa.int64()), ("text", pa.string())]), ("k",), 1)


@pytest.mark.parametrize("column", WITHOUT_VALUES, ids=lambda column: str(column.type.value_type))
def test_a_dictionary_without_values_is_nulls(column: pa.DictionaryArray) -> None:
    """Of pandas comes one for a category without any, and Arrow cannot join two of nulls. In a key it is refused."""
    for rows in (pa.record_batch({"k": [1, 2], "text": column}), pa.table({"k": [1, 2], "text": column})):
        (piece,) = conformed(rows, TABLE.conform)
        assert piece["text"].equals(pa.nulls(2, pa.string()))
    chunks = pa.chunked_array([column, column])
    assert (
        sum(piece.num_rows for piece in conformed(pa.table({"k": range(4), "text": chunks}), TABLE.conform))
        == 4
    )
    with pytest.raises(KeyInvalid, match="'k' is null in row 0"):
        list(conformed(pa.table({"k": column}), TABLE.conform_keys))


def test_a_key_that_is_refused_has_its_number_among_all() -> None:
    """Keys and rows are looked at in pieces, each of which is told where it begins."""
    rows = pa.table({"k": [*range(REQUEST_ROWS_MAX), None], "text": pa.nulls(REQUEST_ROWS_MAX + 1)})
    for some, conform in ((rows, TABLE.conform), (rows.select(["k"]), TABLE.conform_keys)):
        with pytest.raises(KeyInvalid, match=f"'k' is null in row {REQUEST_ROWS_MAX};"):
            list(conformed(some, conform))


def test_a_dictionary_of_values_of_another_kind_is_refused_before_a_row_is_sent() -> None:
    """Also where the first chunks have none of them, or an index is none."""
    values = pa.array([1.0]).dictionary_encode()
    chunks = pa.chunked_array([WITHOUT_VALUES[0].cast(values.type), values])
    with pytest.raises(SchemaMismatch, match="a float is no string"):
        next(conformed(pa.table({"k": [1, 2, 3], "text": chunks}), TABLE.conform))
    astray = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array([], pa.string()), safe=False)
    with pytest.raises(SchemaMismatch, match="'text' is not valid Arrow data"):
        next(conformed(pa.record_batch({"k": [1], "text": astray}), TABLE.conform))


async def test_a_writer_may_wait_for_its_first_rows(autojump_clock: trio.testing.MockClock) -> None:
    """However long, and without a second attempt: a server ends a call that begins with nothing after a minute."""
    async with open_virtual_items(5, retries=0) as items:
        async with items.table.open_writer() as writer:
            with trio.move_on_after(1000):
                await trio.sleep_forever()
            await writer.write(sample([7]))
        assert writer.result.rows == 1
        async with items.table.open_writer() as writer:
            pass
        assert writer.result.rows == 0


async def test_a_writer_goes_on_whose_first_stream_was_never_opened(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the write that was cancelled nothing had gone out, so nothing of it is waited for."""

    async def open_no_stream(*_: object, **__: object) -> NoReturn:
        raise ServerUnavailable("the connection was lost")

    async with open_virtual_items(0) as items, items.table.open_writer() as writer:
        with monkeypatch.context() as patch, trio.move_on_after(1) as cancelled:
            patch.setattr(writer, "_open_stream", open_no_stream)
            await writer.write(sample([7]))
        assert cancelled.cancelled_caught
        await writer.flush()
        await writer.write(sample([8]))
        await writer.flush()
        assert writer.result.rows == 1
        assert (await items.table.get([(7,), (8,)])).found == (False, True)


async def test_a_write_that_reaches_no_server_says_that_nothing_is_durable(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is cut off says how much is: who goes on from there needs no other case."""

    def reach_nobody(**_: object) -> NoReturn:
        raise ServerUnavailable("no weir server answers")

    async with open_virtual_items(0, retries=1) as items:
        with monkeypatch.context() as patch:
            patch.setattr(items.table._connection, "client", reach_nobody)
            with pytest.raises(ServerUnavailable, match="0 rows of this write") as raised:
                await items.table.write(sample([7]))
        assert raised.value.metadata["rows_acknowledged"] == "0"


async def test_many_rows_reach_many_buckets_in_few_commits() -> None:
    """One for each bucket, of as many rows as a request may have; deletes, whose rows may be large, in more."""
    rows = SCALE_MAX * REQUEST_ROWS_MAX
    async with open_client(MemoryStore()) as (client, server):
        table = await client.create_table("wide", pa.schema([("k", pa.int64())]), ["k"], buckets=16)
        keys = pa.table({"k": range(rows)})
        written = await table.write(
            pa.concat_tables(keys.slice(start, 5000) for start in range(0, rows, 5000))
        )
        assert (written.rows, server.statistics().activity.commit_writes) == (rows, 16)
        assert (await table.new_scan().to_arrow()).num_rows == rows
        await table.delete(keys)
        assert server.statistics().activity.commit_writes > 16 + 16
        assert (await table.new_scan().to_arrow()).num_rows == 0


async def test_a_writer_keeps_no_more_the_longer_it_is_open() -> None:
    """Of changes that adjoin it keeps where they begin and end, however many requests they were; not of others'."""
    async with open_client(MemoryStore()) as (client, _):
        table = await client.create_table("k", pa.schema([("k", pa.int64())]), ["k"], buckets=1)
        async with table.open_writer() as writer:
            for key in range(20):
                await writer.write(pa.table({"k": [key]}))
                await writer.flush()
            assert writer.result == WriteResult(20, (OffsetRange(0, 0, 20),))
            await table.write(pa.table({"k": [20]}))
            for key in 21, 22:
                await writer.write(pa.table({"k": [key]}))
        assert writer.result == WriteResult(22, (OffsetRange(0, 0, 20), OffsetRange(0, 21, 23)))


@pytest.mark.parametrize("large", ["key", "row"])
async def test_what_is_too_large_is_refused_with_its_request_alone(large: str) -> None:
    """By the server; what was sent before is written, and the error says how much that is."""
    long = "x" * 70_000
    config = ScannerConfig(row_bytes_max=1 << 20 if large == "key" else 10_000)
    async with open_client(MemoryStore(), config) as (client, _):
        schema = pa.schema([("k", pa.string()), ("text", pa.string())])
        table = await client.create_table("texts", schema, ["k"], buckets=1)
        keys = [f"{index:05}" for index in range(REQUEST_ROWS_MAX)] + [long if large == "key" else "k"]
        texts = [""] * REQUEST_ROWS_MAX + ["" if large == "key" else long]
        with pytest.raises(KeyInvalid if large == "key" else SchemaMismatch) as raised:
            await table.write(pa.table({"k": keys, "text": texts}))
        assert raised.value.metadata["rows_acknowledged"] == str(REQUEST_ROWS_MAX)
        assert (await table.new_scan().to_arrow()).num_rows == REQUEST_ROWS_MAX
