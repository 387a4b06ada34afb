"""Types of columns as people write them: as `weir describe` prints them, and the short names of Arrow."""

from __future__ import annotations

import re

import pyarrow as pa

from scanner.errors import ArgumentInvalid

_DECIMAL = re.compile(r"decimal(?:128)?\((\d{1,2}), ?(-?\d{1,2})\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, ?(?:tz=)?([A-Za-z0-9_+:/-]+))?\]")


def parse_type(text: str) -> pa.DataType:
    """The type of a name.

    Raises:
        ArgumentInvalid: There is no such type.
    """
    try:
        if decimal := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if timestamp := _TIMESTAMP.fullmatch(text):
            return pa.timestamp(timestamp[1], timestamp[2])
        return pa.type_for_alias(text)
    except ValueError as error:
        raise ArgumentInvalid(
            f"{text!r} is no type of a column; types are such as int64, double, bool, string, binary, date32,"
            " timestamp[us], timestamp[us, tz=UTC], decimal128(12, 2)"
        ) from error
