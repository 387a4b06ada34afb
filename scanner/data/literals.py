"""Values that columns are compared with: how they are made, and what they are exactly.

A literal has a kind of its own, which is not the column's: an integer, a float64, a decimal number, a string, octets,
a bool, or a date or timestamp (`Temporal`). `scanner.data.comparisons` compares it by value with a column of any type.

This module knows no transport and no storage.
"""

from __future__ import annotations

import datetime
import decimal
import re
import reprlib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from scanner.errors import ArgumentInvalid

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL_CHARACTERS_MAX: Final = 1_200
"""Enough for every float64, digit by digit. With four digits of exponent it bounds what a comparison costs."""
_TEMPORAL: Final = re.compile(
    r"(?P<date>[+-]?[0-9]{4,12}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,18}))?)?"
    r" ?(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2}(?:\.[0-9]{1,6})?)?)?)?)?"
)
_ZONE: Final = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})?:?([0-9]{2}(?:\.[0-9]+)?)?")
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Temporal:
    """A date, or a timestamp of any precision, with or without an offset from UTC.

    Args:
        text: ISO 8601: `2013-07-01`, `2013-07-01 12:00:00.123456789`, `2013-07-01T12:00Z`, `...+02:00`.

    Raises:
        ArgumentInvalid: The text is none of these, or there is no such day or time.
    """

    text: str
    _said: tuple[Fraction, bool, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_said", self._read())

    def __setstate__(self, state: list[str]) -> None:
        """Of a pickle or a copy; earlier versions pickled the text alone."""
        object.__setattr__(self, "text", state[0])
        self.__post_init__()

    def read(self) -> tuple[Fraction, bool, bool]:
        """What it says.

        Returns:
            Seconds since 1970-01-01 00:00, in UTC or without a zone; whether there is a zone; whether it is a date.
        """
        return self._said

    def _read(self) -> tuple[Fraction, bool, bool]:
        match = _TEMPORAL.fullmatch(self.text)
        try:
            if match is None:
                raise ValueError
            day = int(np.datetime64(match["date"], "D").astype(np.int64)) * _DAY_S
            if match["hour"] is None:
                return Fraction(day), False, True
            hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
            if hour > 23 or minute > 59 or second > 59:
                raise ValueError
            whole = day + hour * 3600 + minute * 60 + second - _zone_seconds(match["zone"])
            fraction = match["fraction"] or ""
            return whole + Fraction(int(fraction or 0), 10 ** len(fraction)), match["zone"] is not None, False
        except ValueError:
            raise ArgumentInvalid(
                f"{self.text!r} is no date or timestamp; write it like 2013-07-01 or 2013-07-01T12:00:00.5Z"
            ) from None


LiteralValue: TypeAlias = bool | int | float | str | bytes | decimal.Decimal | Temporal
"""What travels. An int has at most 64 bits; a larger one is a Decimal."""


def literal(value: object) -> LiteralValue:
    """Turn a Python value into what travels.

    Args:
        value: bool, int, float, str, bytes, `Decimal`, `date` or `datetime`; numpy scalars count as their Python
            value.

    Raises:
        ArgumentInvalid: It is of another type, None included, a decimal that is not finite or too long, or a string
            that is no Unicode text.
    """
    if isinstance(value, np.datetime64):  # Of whole hours numpy writes no minutes.
        return Temporal(f"{value}:00" if value.dtype == "M8[h]" else str(value))
    # A duration in nanoseconds would become a number.
    if isinstance(value, np.generic) and not isinstance(value, bytes | str | np.timedelta64):
        value = value.item()
    match value:
        case str():
            return _encodable(value)
        case bool() | float() | bytes() | Temporal():
            return value
        case int() if INTEGER_MIN <= value <= INTEGER_MAX:
            return value
        case int():
            return decimal_literal(decimal.Decimal(value) if value.bit_length() < 4_000 else "too long")
        case datetime.date():
            return Temporal(value.isoformat())
        case decimal.Decimal() if value.is_finite():
            return decimal_literal(value)
    raise ArgumentInvalid(
        f"a {type(value).__name__} ({reprlib.repr(value)}) cannot be compared with a column; "
        "use bool, int, float, str, bytes, Decimal, date or datetime, is_null() for nulls, isin() for several values"
    )


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Octets that are no UTF-8, on a command line for one.
        raise ArgumentInvalid(f"{text!r} is no Unicode text, and cannot be compared with a column") from error
    return text


def decimal_literal(value: decimal.Decimal | str) -> decimal.Decimal:
    """Check a decimal number, given as it is or as text: what it costs to compare it is bounded.

    Returns:
        The number. Its exponent is 0 only if it was written as a whole number, without a fraction or an exponent.

    Raises:
        ArgumentInvalid: It is none, is too long, or has an exponent of more than four digits.
    """
    text = str(value)
    if _is_decimal(text):
        number = decimal.Decimal(text)
        sign, digits, exponent = number.as_tuple()
        if exponent == 0 and not _WHOLE.fullmatch(text):  # 1.5e1 is 15.0, not 15.
            number = decimal.Decimal((sign, (*digits, 0), -1))
        # It travels as Python writes it, and whoever reads that counts again.
        if _is_decimal(str(number)):
            return number
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    raise ArgumentInvalid(
        f"{shown!r} is no number that can be compared; write at most {_DECIMAL_CHARACTERS_MAX} digits,"
        " with at most four digits of exponent"
    )


def _is_decimal(text: str) -> bool:
    return len(text) <= _DECIMAL_CHARACTERS_MAX and _DECIMAL.fullmatch(text) is not None


def _zone_seconds(zone: str | None) -> Fraction | int:
    match = _ZONE.fullmatch(zone or "")
    if match is None:
        return 0
    sign, hours, minutes, seconds = match.groups()
    if int(hours) > 23 or int(minutes or 0) > 59:
        raise ValueError
    offset = int(hours) * 3600 + int(minutes or 0) * 60 + (Fraction(seconds) if seconds else 0)
    return -offset if sign == "-" else offset
