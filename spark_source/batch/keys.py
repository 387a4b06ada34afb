"""Options ``keyFrom`` and ``keyTo``: values of the first columns of the primary key, as text.

A text that begins with ``[`` is a JSON array, with a value for each of the first key columns; every other text is the
value of the first key column alone, as it stands. A value is read as the type of its column or refused: nothing is
rounded, cut or taken for another type, because a bound that moved would add or take away rows. So a value of a string
column has spaces at an end in an array alone.

Pure: knows no network and no Spark.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa

from spark_source.options import refused

if TYPE_CHECKING:
    from scanner import TableDescription

_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0{0,3})?)?"
    r"(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)
_HEXADECIMAL: Final = re.compile(r"([0-9a-fA-F]{2})*")


def key_prefix(option: str, text: str, table: TableDescription) -> tuple[object, ...]:
    """The values of the first key columns.

    Args:
        option: Its name, for messages.
        text: What the user gave it; not empty.
        table: Has the key.

    Returns:
        At least one Python value, in key order, each exactly one of its column's type.

    Raises:
        SourceOptionError: The text is no JSON array, has more values than the key has columns, or a value that is
            none of its column's type.
    """

    def refuse(why: str) -> NoReturn:
        raise refused(option, text, why)

    values = _values(text, refuse)
    if len(values) > len(table.primary_key):
        refuse(
            f"the columns of the key are {', '.join(table.primary_key)}, and {len(values)} values are given"
        )
    found = []
    for value, field in zip(values, table.key_schema, strict=False):
        converted = _convert(value, field.type)
        if converted is None or not _is_exact(converted, field.type):
            refuse(f"key column {field.name!r} is {field.type}, which {_SPELLING[_kind(field.type)]}")
        found.append(converted)
    return tuple(found)


def _values(text: str, refuse: Callable[[str], NoReturn]) -> list[object]:
    """The values as they are spelled: texts, but for the numbers and booleans of a JSON array."""
    array = text.strip()
    if not array.startswith("["):
        return [_Plain(text)]
    try:
        values = json.loads(array, parse_int=Decimal, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        refuse('what begins with [ is a JSON array, such as [2013, "JFK"]')
    if not values:
        refuse("the array is empty; leave the option out to read from the first key, or to the last")
    return list(values)


def _refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity, which Python takes for JSON."""
    raise ValueError(name)


class _Plain(str):
    """A value that stands outside JSON: its type is that of its column."""


def _kind(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    for name, matches in _KINDS.items():
        if matches(kind):
            return name
    raise AssertionError(f"no key is of type {kind}")


_KINDS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "boolean": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "date": pa.types.is_date,
    "string": pa.types.is_string,
    "binary": pa.types.is_binary,
}

_SPELLING: Final = {
    "boolean": "is written true or false",
    "integer": "is written as a whole number in its range",
    "float": "is written as a number that it holds exactly",
    "decimal": "is written as a number of its precision and scale",
    "date": "is written as 2013-07-01, in an array as a JSON string",
    "timestamp": "is written as 2013-07-01T12:30:00, without a zone, no finer than it is or than microseconds, in an"
    " array as a JSON string",
    "instant": "is written as 2013-07-01T12:30:00Z or +02:00, no finer than it is or than microseconds, in an array as"
    " a JSON string",
    "string": "is written without spaces at an end, or in an array as a JSON string",
    "binary": "is written in hexadecimal digits, in an array as a JSON string",
}


def _convert(value: object, kind: pa.DataType) -> object | None:
    """The value as Python has it; None: it is spelled as one of another type."""
    name = _kind(kind)
    if isinstance(value, _Plain):
        text = value.strip()
        # Spaces may be part of a string, or typed around it: only an array says which.
        return None if name == "string" and text != value else _from_text(text, name)
    if isinstance(value, bool):
        return value if name == "boolean" else None
    if isinstance(value, Decimal):
        return _from_text(str(value), name) if name in ("integer", "float", "decimal") else None
    if isinstance(value, str) and name not in ("boolean", "integer", "float"):
        return _from_text(value, name)
    return None


def _from_text(text: str, name: str) -> object | None:
    try:
        match name:
            case "boolean":
                return {"true": True, "false": False}.get(text)
            case "integer":
                return int(text) if _INTEGER.fullmatch(text) else None
            case "float":
                return _float(text) if _NUMBER.fullmatch(text) else None
            case "decimal":
                return Decimal(text) if _NUMBER.fullmatch(text) else None
            case "date":
                return datetime.date.fromisoformat(text) if _DATE.fullmatch(text) else None
            case "timestamp" | "instant":
                match = _TIMESTAMP.fullmatch(text)
                zoned = match is not None and match["zone"] is not None
                return (
                    datetime.datetime.fromisoformat(text) if match and zoned == (name == "instant") else None
                )
            case "binary":
                return bytes.fromhex(text) if _HEXADECIMAL.fullmatch(text) else None
            case _:
                return text
    except ValueError:
        return None


def _float(text: str) -> float | None:
    """The number; a whole one only if it is exactly that."""
    number = float(text)
    if math.isinf(number) or (_INTEGER.fullmatch(text) and int(text) != number):
        return None
    return number


def _is_exact(value: object, kind: pa.DataType) -> bool:
    """Whether a value of the column is this one."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Of an instant at the ends of Python's calendar its own zone may have another year than it knows.
        kind = pa.timestamp(kind.unit, "UTC")
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
