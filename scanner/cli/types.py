"""Types of columns as people write them: as `weir describe` prints them, and the short names of Arrow."""

from __future__ import annotations

import datetime
import re
import zoneinfo

import pyarrow as pa

from scanner.errors import ArgumentInvalid

_DECIMAL = re.compile(r"decimal(?:128)?\s*[\[(]\s*(\d{1,2})\s*,\s*(-?\d{1,2})\s*[\])]")
_TIMESTAMP = re.compile(r"timestamp\s*[\[(]\s*(s|ms|us|ns)\s*(?:,\s*(?:tz=)?\s*([A-Za-z0-9_+:/-]+)\s*)?[\])]")
_PLAIN = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(),
    pa.binary(),
)  # fmt: skip
_NAMED = {str(kind): kind for kind in _PLAIN} | {
    "boolean": pa.bool_(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "date32": pa.date32(),
}


def parse_type(text: str) -> pa.DataType:
    """The type of a name.

    Raises:
        ArgumentInvalid: There is no such type, or no such time zone.
    """
    try:
        if decimal := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if timestamp := _TIMESTAMP.fullmatch(text):
            _require_time_zone(timestamp[2])
            return pa.timestamp(timestamp[1], timestamp[2])
        return _NAMED[text]
    except (ValueError, KeyError) as error:
        raise ArgumentInvalid(
            f"{text!r} is no type of a column; types are such as bool, int8, int16, int32, int64, float32, float64,"
            " decimal128(12, 2), date, timestamp[us], timestamp[us, tz=UTC], string, binary"
        ) from error


def time_zone(name: str) -> datetime.tzinfo | None:
    """The zone that a type names, as IANA does or by its offset; None if this machine knows none of that name."""
    if name == "UTC":
        return datetime.UTC
    match = re.fullmatch(r"([-+])([0-9]{2}):?([0-9]{2})", name)
    try:
        if match is None:
            return zoneinfo.ZoneInfo(name)
        offset = datetime.timedelta(hours=int(match[2]), minutes=int(match[3]))
        return datetime.timezone(offset if match[1] == "+" else -offset)
    except (KeyError, ValueError, OSError):  # Not there; no offset or no path of one; a folder of zones.
        return None


def _require_time_zone(name: str | None) -> None:
    """Refuse a zone that is none: nobody could take it out of a table again.

    Raises:
        ArgumentInvalid: This machine knows none of that name.
    """
    if name is not None and time_zone(name) is None:
        raise ArgumentInvalid(
            f"this machine knows no time zone {name!r}; zones are such as UTC, Europe/Berlin, +02:00"
        )
