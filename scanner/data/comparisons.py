"""Comparisons of a column with literals, by value: `int8 < 300` is true of every number, `int8 = 2.5` of none.

A literal need not be a value of the column's type. Where it is none, the comparison is made with the largest value of
the type that is below it (`_Place`), which decides the same. So no cell is ever rounded or cast.

Rules:

1. Numbers are compared exactly, whatever their types are. One exception, as in SQL: a decimal number with a fraction
   or an exponent that is compared with a float column means the float64 that is nearest to it, so that `price = 0.1`
   finds 0.1, and `mass = 1e23` finds 1e23.
2. A float is not compared with a decimal column: the float 0.1 is not the decimal 0.1, and the user means the latter.
3. NaN is not equal to anything, itself included, nor less nor greater; 0.0 and -0.0 are equal.
4. A date stands for its midnight. What has a zone is not compared with what has none.
5. A null cell gives null.

This module knows no transport and no storage.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.literals import LiteralValue, Temporal, decimal_literal, literal
from scanner.errors import ArgumentInvalid

Test: TypeAlias = Callable[[pa.Array], pa.BooleanArray]
"""What tells of each cell of a column whether a comparison holds; null of a null cell."""

_T = TypeVar("_T")
_DAY_S: Final = 86_400
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXPONENT_MAX: Final = 1_100
"""Beyond 10 to that power there is no value of any type, and within its inverse of 0 none but 0."""
_WHOLE_FLOATS: Final = {pa.float32(): np.float32, pa.float64(): np.float64}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a literal stands among the values of a column's type."""

    below: object | None
    """The largest of them that is not above it: an int as it is stored, or a Python value; None: all are above."""
    exact: bool
    """Whether it is equal to that."""


_NOWHERE: Final = None
"""The place of NaN, which has none."""


def compared(name: str, value: LiteralValue, field: pa.Field) -> Test:
    """A comparison of a column with one literal.

    Args:
        name: Of Arrow's function: equal, not_equal, less, less_equal, greater, greater_equal.
        value: The literal, which stands on the right.
        field: The column.

    Raises:
        ArgumentInvalid: The literal's kind cannot be compared with the column's type.
    """
    kind = field.type
    place = _place_of(value, field)
    if place is _NOWHERE:
        return _constant(name == "not_equal")
    if place.below is None:
        return _constant(name in ("not_equal", "greater", "greater_equal"))
    if not place.exact:
        if name in ("equal", "not_equal"):
            return _constant(name == "not_equal")
        name = "less_equal" if name.startswith("less") else "greater"
    (scalar,) = _cells([place.below], kind)
    if pa.types.is_boolean(kind):  # Arrow does not order them.
        scalar = scalar.cast(pa.int8())
        return lambda column: pc.call_function(name, [column.cast(pa.int8()), scalar])
    if (
        pa.types.is_decimal(kind) and kind.scale < 0
    ):  # Nor does it compare these, but in another unit it does.
        unit = pa.decimal128(kind.precision, 0)
        (scalar,) = _cells([place.below], unit)
        return lambda column: pc.call_function(name, [column.view(unit), scalar])
    return lambda column: pc.call_function(name, [column, scalar])


def equal_to_any(values: Sequence[LiteralValue], field: pa.Field) -> Test:
    """Whether a cell is equal to one of several literals. Takes about as long for many as for one.

    Raises:
        ArgumentInvalid: See `compared`.
    """
    kind, value_set = field.type, cells_equal(values, field)
    if not len(value_set):
        return _constant(False)
    if kind in _WHOLE_FLOATS:
        # The hash lookup takes -0.0 for other than 0.0; adding zero makes them one. NaN is not in the set.
        zero = pa.scalar(0.0, kind)
        value_set = pc.add(value_set, zero)
        return lambda column: _with_nulls_of(column, pc.is_in(pc.add(column, zero), value_set=value_set))
    return lambda column: _with_nulls_of(column, pc.is_in(column, value_set=value_set))


def starts_with(value: LiteralValue, field: pa.Field) -> Test:
    """Whether a cell of a string or binary column begins with a literal; every one begins with an empty one.

    Raises:
        ArgumentInvalid: The column is no string, or the literal is of another kind.
    """
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        raise _does_not_fit(value, field, "only a string or binary column begins with something")
    _place_of(value, field)
    return lambda column: pc.starts_with(column, pattern=value)


def cell_at_most(value: LiteralValue, field: pa.Field) -> tuple[pa.Array | None, bool] | None:
    """Where a literal stands among the values of a column's type, as `compared` takes it.

    Returns:
        The largest value of the type that is not above the literal, as an array of one cell, None if all are above; and
        whether it is equal to the literal. None: the literal is NaN, which stands nowhere.

    Raises:
        ArgumentInvalid: See `compared`.
    """
    place = _place_of(value, field)
    if place is _NOWHERE:
        return None
    return (None if place.below is None else _cells([place.below], field.type)), place.exact


def cells_equal(values: Sequence[LiteralValue], field: pa.Field) -> pa.Array:
    """The values of a column's type that are equal to one of several literals, in no order.

    Raises:
        ArgumentInvalid: See `compared`.
    """
    places = [_place_of(value, field) for value in values]
    return _cells([place.below for place in places if place is not _NOWHERE and place.exact], field.type)


def exact_cell(value: object, field: pa.Field) -> pa.Array:
    """The cell of a column that is a Python value: an array of one.

    Args:
        value: Of the column's kind. An int is a float or decimal, too, if there is one that is equal to it, and a
            `date` is none of the times of its day. -0.0 counts as 0.0.
        field: The column.

    Raises:
        ArgumentInvalid: The value is None, of another kind, or the column's type has none that is equal to it.
    """
    kind = field.type
    if isinstance(value, float) and not math.isfinite(value) and pa.types.is_floating(kind):
        return pa.array([value], kind)  # NaN as well: it is equal to nothing, but it can be stored.
    given = literal(value)
    place = _place_of(given, field)
    takes_floats, is_day = pa.types.is_floating(kind), isinstance(given, Temporal) and given.read()[2]
    other_kind = (
        (isinstance(given, float) and not takes_floats)
        or (
            isinstance(given, decimal.Decimal)
            and not isinstance(value, int)
            and not pa.types.is_decimal(kind)
        )
        or (isinstance(given, str) and not pa.types.is_string(kind))
        or (isinstance(given, Temporal) and is_day != pa.types.is_date32(kind))
    )
    if other_kind or place is _NOWHERE or not place.exact:
        raise ArgumentInvalid(
            f"{value!r} is no {kind}, which column {field.name!r} is; nothing is rounded or parsed"
        )
    return _cells([place.below], kind)


def _constant(holds: bool) -> Test:
    answer, null = pa.scalar(holds), pa.scalar(None, pa.bool_())
    return lambda column: pc.if_else(pc.is_valid(column), answer, null)


def _with_nulls_of(column: pa.Array, mask: pa.BooleanArray) -> pa.BooleanArray:
    return pc.if_else(pc.is_valid(column), mask, pa.scalar(None, pa.bool_())) if column.null_count else mask


def _cells(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Cells of a column's type, from what `_Place.below` holds."""
    if not _is_counted(kind):
        return pa.array(values, kind)
    width = kind.bit_width // 8
    stored = b"".join(
        value.to_bytes(width, "little", signed=True) for value in values if isinstance(value, int)
    )
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(stored)])


def _is_counted(kind: pa.DataType) -> bool:
    """Whether values are stored as whole numbers of some unit."""
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_decimal(kind) or types.is_date32(kind) or types.is_timestamp(kind)
    )


def _place_of(value: LiteralValue, field: pa.Field) -> _Place | None:
    types, kind = pa.types, field.type
    if types.is_integer(kind):
        return _counted(_number(value, field), 1, 1 << (kind.bit_width - 1))
    if types.is_floating(kind):
        return _floating(_number(value, field), _WHOLE_FLOATS[kind])
    if types.is_decimal(kind):
        if isinstance(value, float):
            raise _does_not_fit(value, field, "a float is no decimal number; use Decimal, or text")
        number = _read(decimal_literal, value, field) if isinstance(value, str) else _number(value, field)
        return _counted(number, Fraction(10) ** kind.scale, 10**kind.precision, symmetric=True)
    if types.is_date32(kind):
        return _counted(_seconds(value, field, zoned=False) / _DAY_S, 1, 1 << 31)
    if types.is_timestamp(kind):
        seconds = _seconds(value, field, zoned=kind.tz is not None)
        return _counted(seconds, _PER_SECOND[kind.unit], 1 << 63)
    wanted = {pa.bool_(): bool, pa.string(): str, pa.binary(): bytes}[kind]
    if not isinstance(value, wanted):
        raise _does_not_fit(value, field, _HINTS[wanted])
    return _Place(value, exact=True)


_HINTS: Final[dict[type, str]] = {
    bool: "it is true or false",
    str: "it is text, in single quotes",
    bytes: "it is octets, like X'00ff'",
}


def _number(value: LiteralValue, field: pa.Field) -> Fraction | float:
    """A number as it is: a float only if it is infinite or NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise _does_not_fit(value, field, "it is a number, without quotes")
    exact = _fraction(value)
    if (
        isinstance(value, decimal.Decimal)
        and pa.types.is_floating(field.type)
        and value.as_tuple().exponent != 0
    ):
        nearest = float(value)  # Rule 1.
        return Fraction(nearest) if math.isfinite(nearest) else exact
    return exact


def _fraction(value: Fraction | float | decimal.Decimal) -> Fraction:
    """A number as it is; one that is beyond every value, or next to 0, as another such, with which it takes no time."""
    if not isinstance(value, decimal.Decimal) or not value:
        return Fraction(value or 0)
    exponent = max(-_EXPONENT_MAX, min(value.adjusted(), _EXPONENT_MAX))
    if exponent != value.adjusted():
        value = decimal.Decimal((value.is_signed(), (1,), exponent))
    return Fraction(value)


def _seconds(value: LiteralValue, field: pa.Field, *, zoned: bool) -> Fraction:
    if isinstance(value, str):
        value = _read(Temporal, value, field)
    if not isinstance(value, Temporal):
        raise _does_not_fit(value, field, "it is a date or timestamp, like '2013-07-01 12:00:00'")
    seconds, has_zone, _ = value.read()
    if has_zone and not zoned:
        raise _does_not_fit(value, field, "the column has no time zone; leave the offset out")
    if zoned and not has_zone:
        raise _does_not_fit(
            value, field, "the column has a time zone; say which time is meant, like ...T12:00:00Z"
        )
    return seconds


def _read(kind: Callable[[str], _T], text: str, field: pa.Field) -> _T:
    """What a string says where the column is no string."""
    try:
        return kind(text)
    except ArgumentInvalid as error:
        raise _does_not_fit(text, field, error.message) from None


def _counted(
    value: Fraction | float | decimal.Decimal, per_unit: Fraction | int, end: int, *, symmetric: bool = False
) -> _Place | None:
    """The place among whole numbers, `per_unit` of them to one, from `-end` (above it, if symmetric) to below `end`."""
    low, high = -end + symmetric, end - 1
    if isinstance(value, float):
        if math.isnan(value):
            return _NOWHERE
        return _Place(high if value > 0 else None, exact=False)
    count = _fraction(value) * per_unit
    below = math.floor(count)
    if below < low:
        return _Place(None, exact=False)
    return _Place(min(below, high), exact=below <= high and count.denominator == 1)


def _floating(value: Fraction | float, kind: Any) -> _Place | None:
    if isinstance(value, float):
        return _NOWHERE if math.isnan(value) else _Place(value, exact=True)
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):  # Below the least finite one is -infinity, which numpy warns of.
        below = kind(nearest)
        if below == math.inf:
            below = np.finfo(kind).max
        elif below > -math.inf and Fraction(float(below)) > value:
            below = np.nextafter(below, kind(-math.inf))
    found = float(below)
    return _Place(found, exact=math.isfinite(found) and Fraction(found) == value)


def _does_not_fit(value: LiteralValue, field: pa.Field, hint: str) -> ArgumentInvalid:
    shown = value.text if isinstance(value, Temporal) else value
    return ArgumentInvalid(f"{shown!r} does not fit column {field.name!r} of type {field.type}: {hint}")
