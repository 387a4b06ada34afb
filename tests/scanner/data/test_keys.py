"""Memcomparable keys: order, round trip, prefixes, and bytes that must never change."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.keys import KEY_BYTES_MAX, KeyCodec, bucket_of, buckets_of, prefix_end, successor
from scanner.data.table import TableDescription
from scanner.errors import DataCorrupted, KeyInvalid, SchemaMismatch
from tests.support.arrow_values import STORED_TYPES, column, raw_values


def codec_of(*types: pa.DataType) -> KeyCodec:
    names = [f"k{index}" for index in range(len(types))]
    schema = pa.schema([*zip(names, types, strict=True), ("other", pa.string())])
    return KeyCodec(TableDescription("t", schema, tuple(names), 1))


def encode_columns(codec: KeyCodec, columns: list[pa.Array]) -> list[bytes]:
    return codec.encode_batch(pa.RecordBatch.from_arrays(columns, schema=codec.schema))


@st.composite
def keys_of_some_types(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(STORED_TYPES), min_size=1, max_size=4))
    keys = draw(st.lists(st.tuples(*map(raw_values, types)), min_size=2, max_size=8))
    return types, keys


@given(case=keys_of_some_types())
def test_encoded_keys_sort_like_the_values(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    """Bytewise order of keys is the order of the tuples, and equal tuples are equal keys."""
    types, keys = case
    columns = [
        column(list(values), kind) for values, kind in zip(zip(*keys, strict=True), types, strict=True)
    ]
    encoded = encode_columns(codec_of(*types), columns)
    # Text sorts by code point in Python and by byte here; UTF-8 makes the two the same.
    for left, left_key in zip(keys, encoded, strict=True):
        for right, right_key in zip(keys, encoded, strict=True):
            assert (left < right) == (left_key < right_key)
            assert (left == right) == (left_key == right_key)


@given(case=keys_of_some_types())
def test_a_key_decodes_to_its_values_and_encodes_again(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]]],
) -> None:
    """Decoding gives the Python values; encoding these one by one gives the same bytes as the batch did."""
    types, keys = case
    codec = codec_of(*types)
    columns = [
        column(list(values), kind) for values, kind in zip(zip(*keys, strict=True), types, strict=True)
    ]
    for index, key in enumerate(encode_columns(codec, columns)):
        values = codec.decode(key)
        assert values == tuple(cells[index].as_py() for cells in columns)
        assert codec.encode(values) == key


@given(case=keys_of_some_types(), data=st.data())
def test_a_prefix_bounds_exactly_the_keys_that_start_with_it(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """[prefix, prefix_end) has the keys whose first columns are equal, and no other."""
    types, keys = case
    codec = codec_of(*types)
    columns = [
        column(list(values), kind) for values, kind in zip(zip(*keys, strict=True), types, strict=True)
    ]
    encoded = encode_columns(codec, columns)
    count = data.draw(st.integers(1, len(types)))
    wanted = [cells[0].as_py() for cells in columns[:count]]
    prefix = codec.encode(wanted)
    end = prefix_end(prefix)
    for values, key in zip(keys, encoded, strict=True):
        assert (prefix <= key and (not end or key < end)) == (values[:count] == keys[0][:count])


def test_every_float_has_its_place() -> None:
    """Both zeros are one key, every NaN is one key, and NaN comes last."""
    codec = codec_of(pa.float64())
    strange = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    values = [-math.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, math.inf, math.nan, strange]
    keys = encode_columns(codec, [pa.array(values)])
    assert keys == sorted(keys)
    assert keys[3] == keys[4]
    assert keys[8] == keys[9]
    assert len(set(keys)) == 8
    (nan,) = codec.decode(keys[8])
    assert isinstance(nan, float)
    assert math.isnan(nan)


@pytest.mark.parametrize("data_type", STORED_TYPES, ids=str)
def test_a_slice_begins_at_its_own_first_row(data_type: pa.DataType) -> None:
    """A server encodes a write in slices, whose buffers begin before their first row and end behind their last one."""
    others: dict[pa.DataType, list[object]] = {
        pa.bool_(): [False, True],
        pa.string(): ["a", "b"],
        pa.binary(): [b"a", b"b"],
    }
    values = column(others.get(data_type, [0, 1]), data_type)
    codec = codec_of(data_type)
    first, second = encode_columns(codec, [values])
    assert encode_columns(codec, [values[1:]]) == [second] != [first]
    many = pa.concat_arrays([values] * 40)
    for start, count in ((1, 1), (1, 16), (3, 32), (0, 64)):
        assert (
            encode_columns(codec, [many.slice(start, count)]) == ([first, second] * 40)[start : start + count]
        )


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_a_stored_float_has_the_key_that_it_was_written_under(data_type: pa.DataType) -> None:
    """Both zeros and every NaN are stored as they came; the key that is worked out of one row is the batch's."""
    codec = codec_of(data_type)
    width = data_type.bit_width // 8
    strange = bytes.fromhex("010000000000f8ff" if width == 8 else "0100c0ff")
    signalling = bytes.fromhex("010000000000f07f" if width == 8 else "0100807f")
    values = np.array([-np.inf, -1.5, -0.0, 0.0, 1.5, np.inf, np.nan, -np.nan], f"<f{width}")
    stored = [value.tobytes() for value in values] + [strange, signalling]
    batch = pa.array(np.frombuffer(b"".join(stored), f"<f{width}"), data_type)
    assert [codec.encode_stored([cell]) for cell in stored] == encode_columns(codec, [batch])


@pytest.mark.parametrize("data_type", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_a_stored_integer_has_the_key_that_it_was_written_under(data_type: pa.DataType) -> None:
    """The key that is worked out of one row is the batch's, whatever its octets are."""
    codec = codec_of(data_type)
    width = data_type.bit_width // 8
    stored = [
        bytes((first, *range(2, width + 1)[:-1], last))[-width:]
        for first in (0, 1, 255)
        for last in (0, 127, 128)
    ]
    batch = pa.array(np.frombuffer(b"".join(stored), f"<i{width}"), data_type)
    assert [codec.encode_stored([cell]) for cell in stored] == encode_columns(codec, [batch])


def test_a_stored_bool_is_one_of_two_octets() -> None:
    """Any other is damage, and no key."""
    codec = codec_of(pa.bool_())
    assert [codec.encode_stored([cell]) for cell in (b"\x00", b"\x01")] == [b"\x00", b"\x01"]
    with pytest.raises(DataCorrupted, match="byte 2 is no bool"):
        codec.encode_stored([b"\x02"])


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (pa.bool_(), True, "01"),
        (pa.int8(), -1, "7f"),
        (pa.int16(), 1, "8001"),
        (pa.int32(), -2, "7ffffffe"),
        (pa.int64(), 2013, "80000000000007dd"),
        (pa.float32(), 1.0, "bf800000"),
        (pa.float64(), -2.0, "3fffffffffffffff"),
        (pa.decimal128(7, 2), decimal.Decimal("-1.25"), "7fffffffffffffffffffffffffffff83"),
        (pa.date32(), datetime.date(1970, 1, 2), "80000001"),
        (pa.timestamp("ms"), datetime.datetime(1970, 1, 1, 0, 0, 1), "80000000000003e8"),
        (pa.string(), "aé", "61c3a90001"),
        (pa.string(), "", "0001"),
        (pa.binary(), b"a\x00\xffb", "6100ffff620001"),
        (pa.binary(), b"a\x00", "6100ff0001"),
    ],
)
def test_keys_never_change(data_type: pa.DataType, value: object, expected: str) -> None:
    """Stored keys of earlier versions stay readable: these bytes are fixed."""
    codec = codec_of(data_type)
    assert codec.encode([value]).hex() == expected
    assert tuple(codec.decode(bytes.fromhex(expected))) == (value,)


@pytest.mark.parametrize(
    ("data_type", "stored", "value"),
    [
        (pa.date32(), 2**30, 2**30),
        (pa.timestamp("s"), 10**12, 10**12),
        (pa.timestamp("us", "Mars/Olympus"), 7, 7),
        (pa.decimal128(10, 900), 5, decimal.Decimal("5E-900")),
        (pa.decimal128(10, -900), -5, decimal.Decimal("-5E+900")),
    ],
)
def test_a_key_decodes_also_where_arrow_has_no_python_value(
    data_type: pa.DataType, stored: int, value: object
) -> None:
    """A day or a time beyond Python's, or in a zone that it does not know, is what is stored; a decimal is exact."""
    octets = stored.to_bytes(data_type.bit_width // 8, "little", signed=True)
    cells = pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(octets)])
    codec = codec_of(data_type)
    (key,) = encode_columns(codec, [cells])
    assert codec.decode(key) == (value,)


ZONE = datetime.timezone(datetime.timedelta(hours=2))
NOON = datetime.datetime(2013, 7, 1, 12)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.int64(), 1.0),
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int64(), "1"),
        (pa.int64(), decimal.Decimal(1)),
        (pa.int8(), 128),
        (pa.int64(), 1 << 63),
        (pa.float32(), 0.1),
        (pa.float32(), 1e300),
        (pa.float32(), 16777217),
        (pa.float64(), (1 << 53) + 1),
        (pa.float64(), decimal.Decimal("0.1")),
        (pa.decimal128(7, 2), decimal.Decimal("1.005")),
        (pa.decimal128(7, 2), 1.25),
        (pa.decimal128(7, 2), 100_000),
        (pa.date32(), NOON),
        (pa.date32(), "2013-07-01"),
        (pa.timestamp("us"), NOON.date()),
        (pa.timestamp("us"), NOON.replace(tzinfo=ZONE)),
        (pa.timestamp("us", "UTC"), NOON),
        (pa.timestamp("s"), NOON.replace(microsecond=1)),
        (pa.timestamp("us"), 5),
        (pa.string(), b"a"),
        (pa.binary(), "a"),
        (pa.bool_(), 1),
        (pa.string(), None),
    ],
    ids=str,
)
def test_a_key_is_never_another_one(data_type: pa.DataType, value: object) -> None:
    """A Python value that is not exactly one of the column's is refused, not rounded, cut, parsed or taken for UTC."""
    with pytest.raises(KeyInvalid, match="'k0'"):
        codec_of(data_type).encode([value])


@pytest.mark.parametrize(
    ("data_type", "value", "same"),
    [
        (pa.float32(), 16777216, 16777216.0),
        (pa.float32(), np.float32(0.1), float(np.float32(0.1))),
        (pa.float64(), -0.0, 0.0),
        (pa.decimal128(7, 2), 3, decimal.Decimal("3.00")),
        (pa.decimal128(7, 2), decimal.Decimal("1.500"), decimal.Decimal("1.5")),
        (pa.int8(), np.int64(5), 5),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=ZONE), NOON.replace(hour=10, tzinfo=datetime.UTC)),
        (pa.timestamp("ns"), np.datetime64("2013-07-01T12:00:00.000000000"), NOON),
    ],
    ids=str,
)
def test_a_key_is_found_by_equal_values(data_type: pa.DataType, value: object, same: object) -> None:
    """Values that are equal are one key, whatever they are written as."""
    assert codec_of(data_type).encode([value]) == codec_of(data_type).encode([same])


@pytest.mark.parametrize(
    ("key", "buckets", "expected"),
    [
        (b"", 4, 0),
        (b"123456789", 4, 3),
        (b"123456789", 1000, 755),
        (b"123456789", 1, 0),
        (b"\x80\x00\x07\xdd", 16, 5),
    ],
)
def test_a_key_never_changes_its_bucket(key: bytes, buckets: int, expected: int) -> None:
    """The assignment of keys to buckets is stored: these values are fixed."""
    assert bucket_of(key, buckets) == expected
    assert buckets_of(pa.array([key]), buckets).tolist() == [expected]


def test_neighbouring_keys_spread_over_the_buckets() -> None:
    """Consecutive numbers fill the buckets evenly."""
    codec = codec_of(pa.int64())
    keys = encode_columns(codec, [pa.array(range(4000), pa.int64())])
    counts = [0] * 4
    for key in keys:
        counts[bucket_of(key, 4)] += 1
    assert min(counts) > 900


def test_the_successor_is_the_next_key() -> None:
    """Nothing fits between a key and its successor."""
    assert b"ab" < successor(b"ab") <= b"ab\x00"


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"", b""), (b"a", b"b"), (b"a\xff\xff", b"b"), (b"\xff\xff", b"")]
)
def test_prefix_end_carries_over(prefix: bytes, end: bytes) -> None:
    """The end is the prefix plus one in its last place; where there is none, the range is open."""
    assert prefix_end(prefix) == end


def test_null_and_missing_key_columns_are_refused_by_name() -> None:
    """The message names the column and the row."""
    codec = codec_of(pa.int64(), pa.string())
    with pytest.raises(KeyInvalid, match="'k1' is null in row 1"):
        codec.encode_batch(
            pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", None])], names=["k0", "k1"])
        )
    with pytest.raises(KeyInvalid, match="'k1'"):
        codec.encode_batch(pa.RecordBatch.from_arrays([pa.array([1])], names=["k0"]))
    with pytest.raises(SchemaMismatch, match="'k0' is int32"):
        codec.encode_batch(
            pa.RecordBatch.from_arrays([pa.array([1], pa.int32()), pa.array(["a"])], names=["k0", "k1"])
        )


@pytest.mark.parametrize("values", [[None], ["x"], [1, 2], [2**70], [1.5]])
def test_values_that_do_not_fit_the_key_are_refused(values: list[object]) -> None:
    """A single key of wrong values is KeyInvalid, never a bare error."""
    with pytest.raises(KeyInvalid):
        codec_of(pa.int64()).encode(values)


def test_a_key_has_a_greatest_length() -> None:
    """Longer keys are refused with both numbers."""
    with pytest.raises(KeyInvalid, match=str(KEY_BYTES_MAX)):
        codec_of(pa.string()).encode(["x" * KEY_BYTES_MAX])


def test_an_empty_batch_has_no_keys() -> None:
    """No rows, no keys, whatever the types."""
    codec = codec_of(*STORED_TYPES)
    assert encode_columns(codec, [pa.array([], kind) for kind in STORED_TYPES]) == []


@pytest.mark.parametrize(
    "key", [b"\x80", b"\x80\x00\x00\x01a", b"\x80\x00\x00\x01a\x00\x02", b"\x80\x00\x00\x01\xff\x00\x01"]
)
def test_bytes_that_are_no_key_are_corruption(key: bytes) -> None:
    """A key that is cut, unterminated, badly escaped or not UTF-8 raises DataCorrupted."""
    with pytest.raises(DataCorrupted):
        codec_of(pa.int32(), pa.string()).decode(key)


@given(key=st.binary(max_size=40))
def test_any_bytes_decode_or_are_corruption(key: bytes) -> None:
    """Whatever the bytes, decoding gives values or DataCorrupted."""
    codec = codec_of(pa.bool_(), pa.string(), pa.decimal128(7, 2), pa.date32(), pa.timestamp("s"))
    try:
        values = codec.decode(key)
    except DataCorrupted:
        return
    assert len(values) <= 5
