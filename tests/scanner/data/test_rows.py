"""Stored rows: round trip, canonical bytes, schema changes, damage, blocks and slices."""

from __future__ import annotations

import decimal
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.keys import KeyCodec
from scanner.data.row_block import RowBlock
from scanner.data.rows import ROW_BYTES_MAX, RowCodec, keys_of_rows
from scanner.data.table import TableDescription
from scanner.errors import ColumnNotFound, DataCorrupted, KeyInvalid, SchemaMismatch
from tests.support.arrow_values import STORED_TYPES, batches
from tests.support.python_calls import counted_calls


@given(batch=batches())
def test_rows_decode_to_what_was_encoded(batch: pa.RecordBatch) -> None:
    """Every type, nulls included, survives the round trip."""
    codec = RowCodec(batch.schema)
    rows = codec.encode_batch(batch)
    assert len(rows) == len(batch)
    decoded = codec.decode(rows)
    decoded.validate(full=True)
    assert decoded.equals(batch)


@given(batch=batches(), data=st.data())
def test_a_projection_is_the_columns_asked_for_in_that_order(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    """Decoding some columns gives exactly these."""
    codec = RowCodec(batch.schema)
    names = data.draw(st.lists(st.sampled_from(batch.schema.names), min_size=1, unique=True))
    assert codec.decode(codec.encode_batch(batch), names).equals(batch.select(names))


@given(batch=batches(), data=st.data())
def test_the_bytes_of_a_row_depend_on_its_values_alone(batch: pa.RecordBatch, data: st.DataObject) -> None:
    """Row by row or together, sliced or not, and whatever lies under its nulls: the encoding is the same."""
    codec = RowCodec(batch.schema)
    rows = codec.encode_batch(batch)
    fresh = pa.RecordBatch.from_arrays(
        [pa.array(column.to_pylist(), column.type) for column in batch.columns]
        if all(not pa.types.is_timestamp(kind) for kind in batch.schema.types)
        else batch.columns,
        schema=batch.schema,
    )
    assert codec.encode_batch(fresh) == rows
    assert [codec.encode_batch(batch.slice(index, 1))[0] for index in range(len(batch))] == rows


def test_what_lies_under_a_null_is_not_stored() -> None:
    """Two arrays that differ only under a null encode to the same bytes."""
    validity = pa.py_buffer(b"\x01")
    cases = [
        (pa.int32(), b"\x01\0\0\0\x02\0\0\0", b"\x01\0\0\0\x07\0\0\0"),
        (pa.bool_(), b"\x01", b"\x03"),
    ]
    for kind, left, right in cases:
        codec = RowCodec(pa.schema([("a", kind)]))
        one, two = (
            pa.RecordBatch.from_arrays(
                [pa.Array.from_buffers(kind, 2, [validity, pa.py_buffer(data)])], names=["a"]
            )
            for data in (left, right)
        )
        assert codec.encode_batch(one) == codec.encode_batch(two)


def test_rows_never_change() -> None:
    """Rows that earlier versions stored stay readable: these bytes are fixed."""
    schema = pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.string()),
            ("c", pa.bool_()),
            ("d", pa.binary()),
            ("e", pa.decimal128(5, 1)),
        ]
    )
    batch = pa.RecordBatch.from_pylist(
        [
            {"a": 258, "b": "hé", "c": True, "d": b"\x00", "e": decimal.Decimal("-0.1")},
            {"a": None, "b": None, "c": None, "d": None, "e": None},
        ],
        schema,
    )
    rows = RowCodec(schema, schema_id=3).encode_batch(batch)
    assert [row.hex() for row in rows] == [
        "0300000201000001" + "ff" * 16 + "030000000100000068c3a900",
        "03001f0000000000" + "00" * 16 + "0000000000000000",
    ]


@pytest.mark.parametrize(
    ("columns", "nulls"), [(7, "7f"), (8, "ff"), (9, "ff01"), (16, "ffff"), (17, "ffff01")]
)
def test_each_eight_columns_have_an_octet_of_null_bits(columns: int, nulls: str) -> None:
    """As many as are needed, and none more: these bytes are fixed, too."""
    schema = pa.schema([(f"c{index}", pa.bool_()) for index in range(columns)])
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names, True), {}], schema)
    codec = RowCodec(schema, schema_id=3)
    rows = codec.encode_batch(batch)
    none = "00" * len(bytes.fromhex(nulls))
    assert [row.hex() for row in rows] == ["0300" + none + "01" * columns, "0300" + nulls + "00" * columns]
    assert codec.decode(rows).equals(batch)


def test_no_rows_decode_to_an_empty_batch() -> None:
    """No rows are no error: the batch has the columns and no row."""
    codec = RowCodec(pa.schema([(f"c{index}", kind) for index, kind in enumerate(STORED_TYPES)]))
    assert codec.decode([]).equals(pa.RecordBatch.from_pylist([], codec.schema))
    assert codec.encode_batch(codec.decode([])) == []
    assert codec.decode([], ["c1"]).schema == pa.schema([("c1", pa.int8())])


def test_a_row_of_an_older_schema_is_padded_with_nulls() -> None:
    """Rows of three schemas, mixed, come back in their order with the columns of the newest."""
    schemas = [
        pa.schema([("a", pa.int64()), ("b", pa.string())]),
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]),
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string()), ("d", pa.bool_())]),
    ]
    expected, rows = [], []
    for number in range(60):
        schema_id = number * 7 % 3
        values = {"a": number, "b": f"b{number}", "c": f"c{number}", "d": number % 2 == 0}
        known = {name: values[name] for name in schemas[schema_id].names}
        rows += RowCodec(schemas[schema_id], schema_id).encode_batch(
            pa.RecordBatch.from_pylist([known], schemas[schema_id])
        )
        expected.append({name: known.get(name) for name in values})
    codec = RowCodec(schemas[2], 2, {0: schemas[0], 1: schemas[1]})
    assert codec.decode(rows).to_pylist() == expected
    assert codec.decode(rows[::3], ["d", "a"]).to_pylist() == [
        {"d": row["d"], "a": row["a"]} for row in expected[::3]
    ]
    assert codec.decode_block(RowBlock.join(rows).slice(10, 20)).to_pylist() == expected[10:20]


def _histories(batch: pa.RecordBatch, lengths: list[int]) -> tuple[RowCodec, list[bytes]]:
    """A codec of a table that had the first so many columns of a batch before, and the rows under each schema."""
    schemas = dict(enumerate(pa.schema(list(batch.schema)[:length]) for length in lengths))
    rows = []
    for number, schema in schemas.items():
        rows += RowCodec(schema, number).encode_batch(batch.select(schema.names))
    newest = len(lengths) - 1
    return RowCodec(schemas.pop(newest), newest, schemas), rows


@given(batch=batches(), data=st.data())
def test_rows_of_many_schemas_decode_to_what_each_alone_does(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    """Whichever columns are asked for, in whichever order the rows are; also if only older schemas have rows."""
    names = batch.schema.names
    lengths = data.draw(st.lists(st.integers(1, len(names)), max_size=4, unique=True))
    nullable = pa.schema([field.with_nullable(True) for field in batch.schema])
    codec, rows = _histories(batch.cast(nullable), [*sorted(set(lengths) - {len(names)}), len(names)])
    rows = data.draw(st.permutations(rows))[: data.draw(st.integers(0, len(rows)))]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True))
    decoded = codec.decode(rows, wanted)
    decoded.validate(full=True)
    alone = [codec.decode([row], wanted) for row in rows]
    assert pa.Table.from_batches([decoded]).equals(
        pa.Table.from_batches(alone, decoded.schema).combine_chunks()
    )


@given(
    damage=st.lists(
        st.tuples(st.integers(0, 11), st.integers(0, 60), st.integers(1, 255)), min_size=1, max_size=4
    )
)
def test_damaged_rows_of_many_schemas_decode_or_are_corruption(damage: list[tuple[int, int, int]]) -> None:
    """Whatever bytes are flipped, decoding gives valid Arrow data, or DataCorrupted, as some row alone does."""
    batch = pa.record_batch(
        {
            "a": pa.array([1, 2, 3], pa.int32()),
            "b": ["b", None, "bbb"],
            "c": [True, False, None],
            "d": [b"", b"dd", None],
        }
    )
    codec, good = _histories(batch, [1, 2, 3, 4])
    rows = [bytearray(row) for row in good]
    for number, at, mask in damage:
        rows[number][at % len(rows[number])] ^= mask
    damaged = [bytes(row) for row in rows]
    try:
        alone = [codec.decode([row]) for row in damaged]
    except DataCorrupted:
        with pytest.raises(DataCorrupted):
            codec.decode(damaged)
        return
    decoded = codec.decode(damaged)
    decoded.validate(full=True)
    assert decoded.to_pylist() == [row for each in alone for row in each.to_pylist()]


def test_rows_of_many_schemas_cost_no_more_than_of_few() -> None:
    """Each column is decoded once: schema by schema, a step over rows of a hundred held the event loop for 0.2 s."""
    batch = pa.record_batch({f"c{each}": ["x"] * 4 for each in range(101)})

    def calls_of_decoding(lengths: list[int]) -> int:
        codec, rows = _histories(batch, lengths)
        codec.decode(rows)
        return counted_calls(lambda: codec.decode(rows))

    assert calls_of_decoding(list(range(1, 102))) < 2 * calls_of_decoding([100, 101])


def test_unknown_columns_are_refused_by_name() -> None:
    """The error lists the columns that there are."""
    with pytest.raises(ColumnNotFound, match=r"'x'.*a, b"):
        RowCodec(pa.schema([("a", pa.int8()), ("b", pa.int8())])).decode([], ["x"])


def test_a_batch_of_other_columns_is_refused() -> None:
    """Encoding takes exactly the columns of the table."""
    codec = RowCodec(pa.schema([("a", pa.int8())]))
    for batch in (
        pa.record_batch({"b": pa.array([1], pa.int8())}),
        pa.record_batch({"a": pa.array([1], pa.int16())}),
    ):
        with pytest.raises(SchemaMismatch):
            codec.encode_batch(batch)


def test_a_row_has_a_greatest_length() -> None:
    """A longer row is refused with both numbers."""
    codec = RowCodec(pa.schema([("a", pa.binary())]))
    with pytest.raises(SchemaMismatch, match=str(ROW_BYTES_MAX)):
        codec.encode_batch(pa.record_batch({"a": pa.array([bytes(ROW_BYTES_MAX)])}))


_TWO = RowCodec(
    pa.schema(
        [pa.field("a", pa.int32(), nullable=False), ("b", pa.string()), ("c", pa.string()), ("d", pa.bool_())]
    ),
    1,
)
_GOOD = bytes.fromhex("01000007000000010100000002000000") + b"bcc"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"", "0 bytes"),
        (b"\x01", "1 bytes"),
        (_GOOD[:10], "10 bytes"),
        (_GOOD[:-1], "add up"),
        (_GOOD + b"x", "add up"),
        (b"\x02\x00" + _GOOD[2:], "schema 2"),
        (_GOOD.replace(b"\x01\x00\x00\x00\x02", b"\xff\xff\xff\xff\x02"), "add up"),
        (_GOOD[:-3] + b"\xffcc", "UTF-8"),
        (b"\x01\x00\x01" + _GOOD[3:], "'a'.* cannot be null"),
        (_GOOD[:7] + b"\x02" + _GOOD[8:], "bool"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_bytes_that_are_no_row_are_corruption(row: bytes, message: str, alone: bool) -> None:
    """A damaged row raises DataCorrupted, alone or among good ones; no other error and no crash."""
    rows = [row] if alone else [_GOOD, row, _GOOD]
    with pytest.raises(DataCorrupted, match=message):
        _TWO.decode(rows)


def test_the_first_row_whose_cells_do_not_add_up_is_named() -> None:
    """By its number in the block, with both lengths."""
    rows = [_GOOD, _GOOD, _GOOD + b"x", _GOOD, _GOOD + b"yz"]
    told = f"row 2 of a block has {len(_GOOD) + 1} bytes, but its cells add up to {len(_GOOD)}"
    with pytest.raises(DataCorrupted, match=told):
        _TWO.decode(rows)


def test_lengths_that_lie_for_each_other_are_noticed() -> None:
    """Rows that are damaged so that only their total fits still raise."""
    with pytest.raises(DataCorrupted):
        _TWO.decode([_GOOD[:-1], _GOOD + b"x"])


@given(damage=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_rows_decode_or_are_corruption(damage: list[tuple[int, int]]) -> None:
    """Whatever bytes are flipped, decoding gives valid Arrow data or DataCorrupted."""
    rows = [bytearray(_GOOD) for _ in range(4)]
    for at, mask in damage:
        row = rows[at % 4]
        row[at % len(row)] ^= mask
    try:
        decoded = _TWO.decode([bytes(row) for row in rows])
    except DataCorrupted:
        return
    decoded.validate(full=True)


def test_keys_are_worked_out_from_rows() -> None:
    """The key of a stored row is the key of the batch that it came from, schema changes or not."""
    old = pa.schema([("a", pa.int64()), ("b", pa.string())])
    description = TableDescription("t", old.append(pa.field("c", pa.string())), ("b", "a"), 1)
    batch = pa.RecordBatch.from_pylist([{"a": number, "b": f"b{number}"} for number in range(5)], old)
    keys = KeyCodec(description)
    rows = RowCodec(old).encode_batch(batch)
    assert keys_of_rows(rows, RowCodec(description.schema, 1, {0: old}), keys) == keys.encode_batch(batch)


@given(batch=batches())
def test_the_key_of_one_row_is_that_of_many(batch: pa.RecordBatch) -> None:
    """The short way to the key of a single row gives what the long one gives, for every type; nulls are corruption."""
    description = TableDescription("t", batch.schema, tuple(batch.schema.names), 1)
    keys, codec = KeyCodec(description), RowCodec(batch.schema)
    for index, row in enumerate(codec.encode_batch(batch)):
        alone = batch.slice(index, 1)
        if any(column.null_count for column in alone.columns):
            with pytest.raises(DataCorrupted, match="null"):
                keys_of_rows([row], codec, keys)
        else:
            assert keys_of_rows([row], codec, keys) == keys.encode_batch(alone)
            assert keys.bytes_max(len(row)) >= len(keys.encode_batch(alone)[0])


@given(
    damage=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 255)), min_size=1), cut=st.integers(0, 60)
)
def test_the_key_of_a_damaged_row_is_corruption_or_a_key(damage: list[tuple[int, int]], cut: int) -> None:
    """Whatever bytes are flipped or missing, there is a key or DataCorrupted, and the long way agrees on which."""
    row = bytearray(_GOOD[:cut])
    for at, mask in damage:
        if row:
            row[at % len(row)] ^= mask
    keys = KeyCodec(TableDescription("t", _TWO.schema, tuple(_TWO.schema.names), 1))

    def key_or_none(rows: list[bytes]) -> list[bytes] | None:
        try:
            return keys_of_rows(rows, _TWO, keys)[:1]
        except (DataCorrupted, KeyInvalid):
            return None

    assert key_or_none([bytes(row)]) == key_or_none([bytes(row)] * 2)


def test_many_rows_at_once() -> None:
    """A batch of thousands of rows of all types goes through in one piece."""
    source = random.Random(7)
    batch = pa.record_batch(
        {
            "a": pa.array([source.randrange(10**9) if source.random() < 0.9 else None for _ in range(5000)]),
            "b": pa.array(
                ["x" * source.randrange(30) if source.random() < 0.9 else None for _ in range(5000)]
            ),
            "c": pa.array([source.random() for _ in range(5000)]),
            "d": pa.array([source.random() < 0.5 for _ in range(5000)]),
        }
    )
    codec = RowCodec(batch.schema)
    assert codec.decode(codec.encode_batch(batch)).equals(batch)
