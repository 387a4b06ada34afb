"""Sizes and times as a narrow column shows them. Pure."""

from __future__ import annotations

import datetime

_SIZES = ("", "K", "M", "G", "T", "P")
_FOREVER = 2**62
"""Credit above it is no limit that anybody meant."""


def short_bytes(count: float | None) -> str:
    """Octets in at most six characters: `812`, `1.2M`, `-640K`; `any` for None and for what is as good as no limit."""
    if count is None or count >= _FOREVER:
        return "any"
    size, unit = float(count), 0
    while abs(size) >= 999.5 and unit < len(_SIZES) - 1:
        size /= 1024
        unit += 1
    digits = 1 if unit and abs(size) < 9.95 else 0
    return f"{size:.{digits}f}{_SIZES[unit]}"


def short_seconds(seconds: float) -> str:
    """A time in at most four characters: `0.3s`, `12s`, `1.7m`, `3.0h`, `12d`."""
    size, unit = 86400, "d"
    for smaller, name in ((1, "s"), (60, "m"), (3600, "h")):
        if seconds / smaller < 99.5:
            size, unit = smaller, name
            break
    count = seconds / size
    return f"{count:.{int(count < 9.95)}f}{unit}"


def utc_time(seconds: float) -> str:
    """A time, in seconds since 1970: `2013-07-01 12:30:00 UTC`."""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def counted(count: int, thing: str) -> str:
    """A number of things: `1 row`, `2 rows`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
