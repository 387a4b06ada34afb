"""Casts of columns to the types of a table: the same values, or an error that names the first that is none."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from scanner.data.exact_casts import cast_exactly
from scanner.errors import SchemaMismatch


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array([1, None, -128], pa.int64()), pa.int8()),
        (pa.array([0.5, None, float("inf")], pa.float64()), pa.float32()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([1_000, None], pa.timestamp("ms")), pa.timestamp("s")),
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string()),
        (
            pa.DictionaryArray.from_arrays([1, None, 0], pa.array(["a", "b" * 20], pa.string_view())),
            pa.string(),
        ),
        (
            pa.DictionaryArray.from_arrays([1, 2, 0], pa.array([b"a", b"", None], pa.binary_view())),
            pa.binary(),
        ),
        (
            pa.DictionaryArray.from_arrays(
                [3, 2, None, 1, 0, 2], pa.array(["a", "b", "c" * 20, None, "d"], pa.string_view()).slice(1)
            ).slice(1, 4),
            pa.string(),
        ),
    ],
    ids=lambda each: str(each.type if isinstance(each, pa.Array) else each),
)
def test_a_cast_keeps_every_value(column: pa.Array, stored: pa.DataType) -> None:
    """What fits is stored as the column's type, nulls included."""
    cast = cast_exactly(column, pa.field("c", stored))
    assert cast.type == stored
    if pa.types.is_timestamp(stored):
        assert cast.cast(pa.int64()).to_pylist() == [1, None]
    else:
        assert cast.to_pylist() == column.to_pylist()


@pytest.mark.parametrize("encoded", [False, True], ids=["views", "dictionary"])
@pytest.mark.parametrize(
    ("given", "stored"), [(pa.string_view(), pa.string()), (pa.binary_view(), pa.binary())], ids=str
)
def test_what_a_null_view_says_is_passed_over(
    given: pa.DataType, stored: pa.DataType, *, encoded: bool
) -> None:
    """A length below 0 in a null is valid Arrow data, and moves no value to where another one is."""
    texts = [None, "a" * 20, "b" * 200, "c"]
    _, heads, octets = pa.array(texts, given).buffers()
    said = struct.pack("<i12x", -100) + heads.to_pybytes()[16:]
    views = pa.Array.from_buffers(given, 4, [pa.py_buffer(b"\x0e"), pa.py_buffer(said), octets])
    views.validate(full=True)
    column = pa.DictionaryArray.from_arrays([0, 1, 2, 3, None], views) if encoded else views
    assert cast_exactly(column, pa.field("c", stored)).equals(pa.array(column.to_pylist(), stored))


def test_nan_and_the_sign_of_zero_are_kept() -> None:
    """Neither equals what it is compared with, and both are the same values."""
    cast = cast_exactly(pa.array([float("nan"), -0.0]), pa.field("c", pa.float32()))
    assert [str(each) for each in cast.to_pylist()] == ["nan", "-0.0"]


@pytest.mark.parametrize(
    ("column", "stored", "told"),
    [
        (pa.array([1, 2, 300, 4, 500]), pa.int8(), "row 12 holds 300"),
        (pa.array([0.5, 0.1]), pa.float32(), "row 11 holds 0.1"),
        (pa.array([1_000, 1_500], pa.timestamp("ms")), pa.timestamp("s"), "row 11 holds"),
        (pa.array([1, 2**40]).dictionary_encode(), pa.int32(), "row 11 holds 1099511627776"),
    ],
    ids=lambda each: str(each.type if isinstance(each, pa.Array) else each),
)
def test_the_first_value_that_does_not_fit_is_named(column: pa.Array, stored: pa.DataType, told: str) -> None:
    """With its row; nothing is rounded, cut or wrapped."""
    with pytest.raises(SchemaMismatch, match=told):
        cast_exactly(column, pa.field("c", stored), first_row=10)


def test_numbers_of_one_kind_are_none_of_another() -> None:
    """Also whole ones."""
    with pytest.raises(SchemaMismatch, match=r"cannot be stored as double: an integer is no float; cast it"):
        cast_exactly(pa.array([1]), pa.field("c", pa.float64()))
    with pytest.raises(SchemaMismatch, match=r"cannot be stored as int64: a float is no integer; cast it"):
        cast_exactly(pa.array([1.0]), pa.field("c", pa.int64()))


def test_a_type_that_others_have_defined_is_told_by_its_name() -> None:
    """A column of UUIDs, as DuckDB and others have them, is refused in readable words."""
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
    with pytest.raises(SchemaMismatch, match=r"an extension<arrow\.uuid> is no binary; cast it to binary"):
        cast_exactly(column, pa.field("x", pa.binary()))


@pytest.mark.parametrize("scale", [80, -74, 1_275_068_418, -(2**30)])
@pytest.mark.parametrize("value", [0, 7])
def test_decimals_of_scales_that_are_far_apart_are_refused(scale: int, value: int) -> None:
    """Also a zero: nothing is moved by more places than Arrow has powers of ten for."""
    octets = pa.py_buffer(value.to_bytes(8, "little"))
    column = pa.Array.from_buffers(pa.decimal64(10, scale), 1, [None, octets])
    column.validate(full=True)
    with pytest.raises(SchemaMismatch, match=r"cannot be stored as decimal128\(12, 3\): their scales"):
        cast_exactly(column, pa.field("c", pa.decimal128(12, 3)))


@pytest.mark.parametrize("given", [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal256(40, 2)], ids=str)
def test_decimals_of_other_widths_that_fit_are_stored(given: pa.DataType) -> None:
    """In more digits than the given type has, of which Arrow's cast back would lose some."""
    values = [Decimal("-9999999.99"), Decimal("1.00"), None]
    stored = pa.decimal128(38, 31)
    assert cast_exactly(pa.array(values, given), pa.field("c", stored)).equals(pa.array(values, stored))
    with pytest.raises(SchemaMismatch, match=r"row 0 holds -9999999\.99"):
        cast_exactly(pa.array(values, given), pa.field("c", pa.decimal128(38, 1)))


def test_a_decimal_that_python_does_not_have_is_told_by_its_type() -> None:
    """Its scale is far above its digits."""
    column = pa.Array.from_buffers(pa.decimal32(9, 60), 1, [None, pa.py_buffer((7).to_bytes(4, "little"))])
    with pytest.raises(SchemaMismatch, match=r"row 0 holds a decimal32\(9, 60\)"):
        cast_exactly(column, pa.field("c", pa.decimal128(12, 3)))


def test_a_time_in_a_zone_that_there_is_none_of_is_told_as_a_number() -> None:
    """Any text is a time zone to Arrow; only Python has to know one, to write the time down."""
    column = pa.array([1_000, 1_500], pa.timestamp("ms", "Mars/Olympus"))
    with pytest.raises(SchemaMismatch, match="row 1 holds 1500, which is no timestamp"):
        cast_exactly(column, pa.field("c", pa.timestamp("s", "UTC")))


def test_a_dictionary_of_decimals_of_negative_scale_is_its_values() -> None:
    """Arrow casts none of them, but to the type that they have nothing has to be cast."""
    octets = b"".join(value.to_bytes(16, "little") for value in (5, 1 << 20))
    values = pa.Array.from_buffers(pa.decimal128(10, -1), 2, [None, pa.py_buffer(octets)])
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), values)
    assert cast_exactly(column, pa.field("c", values.type)).equals(values.take(column.indices))


def test_a_decimal_of_negative_scale_that_does_not_fit_is_refused() -> None:
    """Arrow does not compare those, also where it tells without a comparison that not all of them fit."""
    octets = b"".join(value.to_bytes(16, "little") for value in (0, 1 << 20))
    column = pa.Array.from_buffers(pa.decimal128(10, -1), 2, [None, pa.py_buffer(octets)])
    column.validate(full=True)
    with pytest.raises(
        SchemaMismatch, match=r"cannot be stored as decimal128\(5, 2\): Decimals with negative"
    ):
        cast_exactly(column, pa.field("c", pa.decimal128(5, 2)))


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([1]), pa.float64()),
        (pa.array([b"a"]), pa.string()),
        (pa.array([1], pa.timestamp("s")), pa.timestamp("s", "UTC")),
        (pa.array([1], pa.time32("s")), pa.int64()),
    ],
    ids=lambda each: str(each.type if isinstance(each, pa.Array) else each),
)
def test_values_of_another_kind_are_refused(column: pa.Array, stored: pa.DataType) -> None:
    """However much they look alike; the error says to cast them first."""
    with pytest.raises(SchemaMismatch, match="cast it to"):
        cast_exactly(column, pa.field("c", stored))
