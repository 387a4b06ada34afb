"""Casts that change no value: between the types of one kind, checked on the values.

A kind is what values are, whatever they are kept in: a bool, a whole number, a float, a decimal, a date, a timestamp
with or without a time zone, a string, octets. A value of one kind is none of another, however much it looks like one:
"1" is no number, 1.0 no integer, and a timestamp without a zone no instant. Inside a kind a cast is right if casting
back gives the same, row by row. That is looked at, and not left to Arrow's safe casts, which let floats through that
overflow or are rounded.

This module knows no tables.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.arrow_sizes import is_view
from scanner.errors import SchemaMismatch

_KINDS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "bool": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "date": pa.types.is_date,
    "timestamp with a time zone": lambda kind: bool(pa.types.is_timestamp(kind) and kind.tz is not None),
    "timestamp without a time zone": lambda kind: bool(pa.types.is_timestamp(kind) and kind.tz is None),
    "string": lambda kind: bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    ),
    "binary": lambda kind: bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or (pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind))
    ),
}
_OCTETS: Final = ("string", "binary")
"""Kinds whose casts copy octets, and cannot change any."""
_VALUE_CHARACTERS_MAX: Final = 80
_DIGITS_MAX: Final = 76
"""Of a decimal of Arrow's."""
_SCALES_APART_MAX: Final = _DIGITS_MAX
"""Nothing but 0 has a place in both of two scales that are farther apart. Arrow looks the power of ten between two
scales up, wherever in memory that would be."""
_VIEW: Final = pa.binary(16)
"""The head of a view: its length, and its octets or where they are."""


def require_castable(given: pa.DataType, field: pa.Field) -> str | None:
    """Check that values of a type may be cast to a table's column, before any value is looked at.

    Arrow's functions can take validated values of the kinds, and not those of all other types: to ask for the size of a
    union without rows ends the process.

    Args:
        given: Of a column that is to be written.
        field: Of the table.

    Returns:
        The kind of the values; None: all are null.

    Raises:
        SchemaMismatch: The types are of different kinds; the message names the column and both.
    """
    if pa.types.is_null(given):
        return None
    values = given.value_type if pa.types.is_dictionary(given) else given
    kind, wanted = _kind_of(values), _kind_of(field.type)
    if kind is None or kind != wanted:
        shown = kind or str(values)
        article = "an" if shown.startswith(("integer", "extension")) else "a"
        raise _not_castable(given, field, f"{article} {shown} is no {wanted}")
    if kind == "decimal" and abs(values.scale - field.type.scale) > _SCALES_APART_MAX:
        raise _not_castable(given, field, "their scales are too far apart")
    return kind


def cast_exactly(column: pa.Array, field: pa.Field, first_row: int = 0) -> pa.Array:
    """Cast a column to the type of a table's column, if no value changes by it.

    A column of type null is one of nulls, of any type. A dictionary is its values.

    Args:
        column: Fully validated.
        field: Of the table.
        first_row: The number that the error gives to the column's first row.

    Returns:
        The same values: NaN stays NaN, and -0.0 keeps its sign.

    Raises:
        SchemaMismatch: The types are of different kinds, or a value is none of the table's type; the message names the
            column, both types, and the first value that is none, with its row.
    """
    if column.type == field.type:
        return column
    kind = require_castable(column.type, field)
    if kind is None:
        return pa.nulls(len(column), field.type)
    try:
        if pa.types.is_dictionary(column.type):
            column = _decoded(column)
            if column.type == field.type:
                return column
        if is_view(column.type) and column.null_count:
            column = _without_views(column)
        cast = _cast(column, field.type, kind)
        if cast is not None:
            return cast
        row = _first_inexact(column, field.type, kind)
    except pa.ArrowNotImplementedError as error:  # Decimals of negative scale, for one.
        raise _not_castable(column.type, field, str(error)) from error
    raise SchemaMismatch(
        f"column {field.name!r} is {column.type} and cannot be stored as {field.type}: row {first_row + row} holds"
        f" {_shown(column[row])}, which is no {field.type}; nothing is rounded, so write what fits, or another column"
    )


def _not_castable(given: pa.DataType, field: pa.Field, why: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {field.name!r} is {given} and cannot be stored as {field.type}: {why}; cast it to {field.type} before"
        " you write it"
    )


def _decoded(column: pa.DictionaryArray) -> pa.Array:
    """The value of each row, and none that no row names: views may be of far more octets than they take."""
    values = column.dictionary
    if not is_view(values.type):
        return values.take(column.indices)
    # Arrow cannot pick from views, but from their heads, which point into the octets of all.
    return _views(values, _heads(values).take(column.indices))


def _without_views(column: pa.Array) -> pa.Array:
    """The same values, copied, with heads of zeros for the nulls.

    Arrow's cast goes by the length of a null, too, which no validation looks at: by one below 0 it writes the next
    values over others, or in front of their memory.
    """
    kind = pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary()
    whole = _views(column, _heads(column).fill_null(bytes(_VIEW.byte_width)))
    return pc.if_else(column.is_valid(), whole.cast(kind), pa.scalar(None, kind))


def _heads(views: pa.Array) -> pa.Array:
    valid, heads, *_ = views.buffers()
    return pa.Array.from_buffers(_VIEW, len(views), [valid, heads], offset=views.offset)


def _views(into: pa.Array, heads: pa.Array) -> pa.Array:
    """Views with these heads into the octets of others."""
    octets = into.buffers()[2:]
    return pa.Array.from_buffers(into.type, len(heads), [*heads.buffers(), *octets], offset=heads.offset)


def _kind_of(data_type: pa.DataType) -> str | None:
    return next((kind for kind, matches in _KINDS.items() if matches(data_type)), None)


def _cast(column: pa.Array, data_type: pa.DataType, kind: str) -> pa.Array | None:
    """The column as the type; None: a value changes by it."""
    try:
        cast = column.cast(data_type)
        if kind in _OCTETS:
            return cast
        compared_as = _compared_as(column.type, kind)
        back, column = cast.cast(compared_as), column.cast(compared_as)
    except pa.ArrowInvalid:
        return None
    same = pc.equal(back, column)
    if kind == "float":
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
    return cast if pc.all(same, min_count=0).as_py() else None


def _compared_as(given: pa.DataType, kind: str) -> pa.DataType:
    """The type that the values before and after a cast are compared in; it holds all of the type that was given."""
    if kind == "float":
        return pa.float64()  # Arrow does not compare the shortest ones.
    if kind == "decimal":
        return pa.decimal256(_DIGITS_MAX, given.scale)  # Arrow loses digits on the way to a shorter decimal.
    return given


def _first_inexact(column: pa.Array, data_type: pa.DataType, kind: str) -> int:
    """The first row whose value changes, of a column that has one."""
    return bisect.bisect_left(
        range(len(column)), True, key=lambda row: _cast(column.slice(0, row + 1), data_type, kind) is None
    )


def _shown(value: pa.Scalar) -> str:
    try:
        shown = str(value.as_py())
    except (ValueError, OverflowError, KeyError):  # Python has no such date, time or time zone.
        shown = str(value.cast(pa.int64()).as_py())
    except ArithmeticError:  # Nor such a decimal: its scale is far above its digits.
        shown = f"a {value.type}"
    return shown if len(shown) <= _VALUE_CHARACTERS_MAX else f"{shown[:_VALUE_CHARACTERS_MAX]}..."
