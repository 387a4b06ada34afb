"""What cells are, worked out in Python alone: fractions, strings and octets, with nothing of Arrow's casts."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY_MS = 86_400_000
Exact: TypeAlias = tuple[str, object]
"""A kind and a value of it. Equal if and only if they are the same value: -0.0 is not 0.0, and NaN is NaN."""


def exact_values(array: pa.Array) -> list[Exact | None]:
    """Each cell as it is; None for null."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = exact_values(array.dictionary)
        return [None if index is None else values[index] for index in array.indices.to_pylist()]
    return [None if raw is None else _exact(raw, kind) for raw in _raw_values(array)]


def has_exactly(data_type: pa.DataType, value: Exact) -> bool:
    """Whether a type that can be stored has this very value."""
    types, (kind, what) = pa.types, value
    if kind != kind_of(data_type):
        return False
    if types.is_integer(data_type):
        end = 1 << (int(data_type.bit_width) - 1)
        return -end <= _number(what) < end
    if types.is_float32(data_type):
        return isinstance(what, str) or _is_float32(_number(what[0] if isinstance(what, tuple) else what))
    if types.is_decimal(data_type):
        unscaled = _number(what) * Fraction(10) ** int(data_type.scale)
        return unscaled.denominator == 1 and abs(unscaled) < 10 ** int(data_type.precision)
    if types.is_date(data_type):
        return _number(what).denominator == 1 and -(1 << 31) <= _number(what) < 1 << 31
    if types.is_timestamp(data_type):
        count = _number(what) * PER_SECOND[data_type.unit]
        return count.denominator == 1 and -(1 << 63) <= count < 1 << 63
    return True


def kind_of(data_type: pa.DataType) -> str:
    """What its values are; a name that no other kind has."""
    types = pa.types
    if types.is_dictionary(data_type):
        return kind_of(data_type.value_type)
    for name, checks in {
        "bool": (types.is_boolean,),
        "integer": (types.is_integer,),
        "float": (types.is_floating,),
        "decimal": (types.is_decimal,),
        "date": (types.is_date,),
        "string": (types.is_string, types.is_large_string, types.is_string_view),
        "binary": (
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        ),
    }.items():
        if any(check(data_type) for check in checks):
            return name
    if types.is_timestamp(data_type):
        return "instant" if data_type.tz else "local time"
    return str(data_type)


def _raw_values(array: pa.Array) -> list[object]:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return list(array.view(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(array.view(pa.int32()).to_pylist())
    return list(array.to_pylist())


def _exact(raw: object, kind: pa.DataType) -> Exact:
    name = kind_of(kind)
    match raw:
        case bool():
            return name, raw
        case int() if pa.types.is_timestamp(kind):
            return name, Fraction(raw, PER_SECOND[kind.unit])
        case int() if pa.types.is_date64(kind):
            return name, Fraction(raw, DAY_MS)
        case int() | Decimal():
            return name, Fraction(raw)
        case float() if math.isnan(raw):
            return name, "NaN"
        case float() if math.isinf(raw):
            return name, str(raw)
        case float():
            return name, (Fraction(raw), math.copysign(1.0, raw))
    return name, raw


def _number(what: object) -> Fraction:
    assert isinstance(what, Fraction)
    return what


def _is_float32(value: Fraction) -> bool:
    """Whether it has at most 24 binary digits in front of a power of two that a float32 can have."""
    if not value:
        return True
    top, bottom = abs(value.numerator), value.denominator
    trailing = (top & -top).bit_length() - 1
    lowest = trailing if bottom == 1 else -(bottom.bit_length() - 1)
    highest = top.bit_length() - bottom.bit_length()  # `bottom` is a power of two.
    return highest <= 127 and lowest >= max(highest - 23, -149)
