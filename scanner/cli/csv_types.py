"""Which type the cells of a CSV column have: one that keeps every digit that was written, else string.

A column is an integer, a date, a timestamp, ... only if each of its cells is; a float only if the nearest float64
prints the same digits, else a decimal if 38 digits are enough. Numbers that begin with a zero or a plus are text:
postal codes and telephone numbers are written so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from scanner.cli.cells import trimmed

_DECIMAL_DIGITS_MAX: Final = 38
_FLOAT_DIGITS_EXACT: Final = 15
"""So many significant digits every float64 keeps."""
_FLOAT_MIN: Final = 2.2250738585072014e-308
"""Nearer to zero a float64 keeps fewer digits."""
_INTEGER: Final = r"^(?:0|-?[1-9][0-9]*)$"
_NUMBER: Final = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)$"
_FLOAT: Final = (
    r"^(?:-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|NaN|nan|-?(?:inf|Inf|Infinity))$"
)
_BOOLEANS: Final = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)?)?$"
_INSTANT: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)?"
    r"(?:Z|[-+][0-9]{2}(?::?[0-9]{2})?)$"
)


class ColumnTypes:
    """Finds the type of one column, from all of its cells.

    Args:
        nulls: Texts that stand for null.
    """

    def __init__(self, nulls: pa.Array) -> None:
        self._nulls = nulls
        self._seen = False
        self._checks: dict[str, Callable[[pa.Array], bool]] = {
            "integer": _is_integer,
            "boolean": lambda texts: _all(pc.is_in(texts, value_set=_BOOLEANS)),
            "date": lambda texts: _matches(texts, _DATE) and _casts(texts, pa.date32()),
            "time": lambda texts: _matches(texts, _TIME) and self._is_exact_time(texts, None),
            "instant": lambda texts: _matches(texts, _INSTANT) and self._is_exact_time(texts, "UTC"),
            "float": self._is_float,
            "decimal": self._is_decimal,
        }
        """By kind, while every cell so far is of that kind."""
        self._whole = True
        """All numbers so far are written without a point, an exponent, or a name."""
        self._digits = [0, 0]
        """Most digits of a decimal in front of the point, and behind it."""
        self._fraction_digits = 0
        """Most digits of a fraction of a second."""
        self._nanoseconds_do = True
        """All times so far are of years that nanoseconds reach."""

    def see(self, texts: pa.Array) -> None:
        """Take the next cells, strings."""
        if not self._checks:
            return
        cells = trimmed(pc.unique(texts.drop_null()), self._nulls).drop_null()
        if not len(cells):
            return
        self._seen = True
        self._checks = {kind: check for kind, check in self._checks.items() if check(cells)}

    @property
    def found(self) -> pa.DataType:
        """The type of all cells so far; string if there is none."""
        kinds = self._checks if self._seen else {}
        unit = "s" if not self._fraction_digits else "us" if self._fraction_digits <= 6 else "ns"
        if "integer" in kinds:
            return pa.int64()
        if "boolean" in kinds:
            return pa.bool_()
        if "date" in kinds:
            return pa.date32()
        if "time" in kinds:
            return pa.timestamp(unit)
        if "instant" in kinds:
            return pa.timestamp(unit, "UTC")
        if "float" in kinds and not self._whole:
            return pa.float64()
        if "decimal" in kinds:
            return pa.decimal128(_DECIMAL_DIGITS_MAX, self._digits[1])
        return pa.string()

    def _is_exact_time(self, texts: pa.Array, zone: str | None) -> bool:
        fractions = pc.extract_regex(texts, r"\.(?P<digits>[0-9]+)").field(0)
        self._fraction_digits = max(self._fraction_digits, _longest(fractions))
        # One unit has to do for all cells, and nanoseconds end in the year 2262.
        if self._fraction_digits > 6 and not self._nanoseconds_do:
            return False
        self._nanoseconds_do = self._nanoseconds_do and _casts(texts, pa.timestamp("ns", zone))
        if self._fraction_digits > 6:
            return self._nanoseconds_do
        return _casts(texts, pa.timestamp("us", zone))

    def _is_float(self, texts: pa.Array) -> bool:
        if not _matches(texts, _FLOAT):
            return False
        plain = pc.match_substring_regex(texts, _INTEGER)
        if not _all(plain):
            self._whole = False
        # So short, and without an exponent, it has at most 15 digits.
        long = pc.or_(
            pc.greater(pc.utf8_length(texts), _FLOAT_DIGITS_EXACT), pc.match_substring_regex(texts, "[eE]")
        )
        return all(map(_float_keeps, texts.filter(long).to_pylist()))

    def _is_decimal(self, texts: pa.Array) -> bool:
        if not _matches(texts, _NUMBER):
            return False
        whole = pc.extract_regex(texts, r"^-?(?P<digits>[0-9]*)").field(0)
        fraction = pc.extract_regex(texts, r"\.(?P<digits>[0-9]*)").field(0)
        self._digits = [max(self._digits[0], _longest(whole)), max(self._digits[1], _longest(fraction))]
        return sum(self._digits) <= _DECIMAL_DIGITS_MAX


def _is_integer(texts: pa.Array) -> bool:
    return _matches(texts, _INTEGER) and _casts(texts, pa.int64())


def _float_keeps(text: str) -> bool:
    """Whether the nearest float64 prints the digits of this number."""
    value = float(text)
    if repr(value) == text:
        return True
    if not math.isfinite(value):
        return not any(character.isdigit() for character in text)
    if value and abs(value) < _FLOAT_MIN:
        return False
    return Decimal(repr(value)) == Decimal(text)


def _longest(texts: pa.Array) -> int:
    return pc.max(pc.utf8_length(texts)).as_py() or 0


def _matches(texts: pa.Array, pattern: str) -> bool:
    return _all(pc.match_substring_regex(texts, pattern))


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask).as_py())
