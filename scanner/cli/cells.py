"""Cells as text, and text as cells, exactly: what `weir load` reads in a CSV and `weir scan` writes into one.

Text of a type becomes a value of it or is refused: nothing is rounded, but text of a float to the nearest float, and
nothing is cut. Each value is written as text that is read back as the same value.

Timestamps and dates go through NumPy where Arrow's calendar ends (years 0 to 9999 in text, -32767 to 32767 in print).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.cli.app import fail
from scanner.cli.types import parse_type, time_zone
from scanner.data.comparisons import cells_equal
from scanner.data.literals import decimal_literal
from scanner.errors import ArgumentInvalid

FRACTION_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
BINARY_PREFIX: Final = "\\x"
"""What octets begin with where they are text; their hexadecimal digits follow."""
_ARROW_SCALE_MAX: Final = 38
"""Of a decimal that Arrow writes as text, above 0 and below."""
_INTEGER: Final = r"^-?[0-9]+$"
_INFINITE: Final = r"(?i)inf"
_LOWEST: Final = -(2**63)
_DAY_S: Final = 86_400
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_STAMP_LENGTH: Final = len("1970-01-01T02:00:00+02:00")
_CALENDAR: Final = {
    unit: (
        max(-62135596800 * 10**digits, _LOWEST) + _DAY_S * 10**digits,
        min(253402300799 * 10**digits, -_LOWEST - 1) - _DAY_S * 10**digits,
    )
    for unit, digits in FRACTION_DIGITS.items()
}
"""Times since 1970 that have a date in any zone, in Python's calendar, years 1 to 9999, and as an int64; inclusive."""
_BARE_TIME: Final = re.compile(r"-?[0-9]+-[0-9]{2}-[0-9]{2}(T[0-9:.]+)?")
"""As NumPy writes a time; of one with a zone it warns, on standard error, and reads another one."""
_SHORT_YEAR: Final = re.compile(r"-([0-9]{1,3})-")
"""As NumPy writes the years -1 to -999."""
_GIVEN_TYPE: Final = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>\S.*?))\s*='
    r"(?P<type>[^=,\[\]()]*(?:[\[(][^\])]*[\])]\s*)?)(?P<more>,|\Z)",
    re.DOTALL,
)
"""A name up to the last equals sign that is not of the type's own arguments, as in `seen=timestamp[us, tz=UTC]`."""


def parse_types(texts: Sequence[str]) -> dict[str, pa.DataType]:
    """Read `--types`: `NAME=TYPE`, several with commas between; a type as `weir describe` shows it or shorter.

    A name is plain or in double quotes, as `app.names` has it.

    Raises:
        Failure: It cannot be read, or names a column twice.
        ArgumentInvalid: There is no such type, or no such time zone.
    """
    types: dict[str, pa.DataType] = {}
    for text in texts:
        at, more = 0, ","
        while more:
            given = _GIVEN_TYPE.match(text, at)
            if given is None:
                fail(f"cannot read --types {text[at:].strip()!r}; write NAME=TYPE, for example zip=string")
            name = given["plain"] or given["quoted"].replace('""', '"')  # A column may have no name.
            if name in types:
                fail(f"--types names column {name!r} twice")
            types[name] = parse_type(given["type"].strip())
            at, more = given.end(), given["more"]
    return types


def from_text(texts: pa.Array, kind: pa.DataType, nulls: pa.Array) -> pa.Array:
    """Read cells.

    Args:
        texts: Strings; null where the cell is.
        kind: What they are.
        nulls: Texts that stand for null, too, unless `kind` is string: there they are text.

    Raises:
        ArrowInvalid: A text is not of that type.
    """
    if pa.types.is_string(kind):
        return texts
    texts = trimmed(texts, nulls)
    if pa.types.is_binary(kind):
        return _binary_from_text(texts)
    if pa.types.is_integer(kind) and not all_true(pc.match_substring_regex(texts, _INTEGER)):
        raise pa.ArrowInvalid("not an integer")  # Arrow would read 0x10.
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _times_from_text(texts, kind)
    if pa.types.is_decimal(kind):
        return _decimals_from_text(texts, kind)
    values = texts.cast(kind)
    if pa.types.is_floating(kind):
        endless = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring_regex(texts, _INFINITE)))
        if pc.any(endless).as_py():
            raise pa.ArrowInvalid("out of range")
    return values


def trimmed(texts: pa.Array, nulls: pa.Array) -> pa.Array:
    """Cells that are no text: without the blanks around them, and null where one stands for null."""
    texts = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, value_set=nulls), pa.scalar(None, pa.string()), texts)


def to_text(column: pa.Array) -> pa.Array:
    """Write cells, so that `from_text` reads the same values."""
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_binary(kind):
        cells = (None if value is None else BINARY_PREFIX + value.hex() for value in column.to_pylist())
        return pa.array(cells, pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return times_to_text(column)
    if pa.types.is_decimal(kind):
        return decimals_to_text(column)
    return column.cast(pa.string())


def arrow_writes_decimals(kind: pa.DataType) -> bool:
    """Whether Arrow writes the decimals of a type: where the scale is farther from 0 it writes that it cannot."""
    return bool(abs(kind.scale) <= _ARROW_SCALE_MAX)


def decimals_to_text(column: pa.Array) -> pa.Array:
    """Write decimals as Python and Arrow do: `2.50`, `1.2E+20`."""
    kind = column.type
    if arrow_writes_decimals(kind):
        return column.cast(pa.string())
    whole = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0), len(column), column.buffers(), offset=column.offset
    )
    return pa.array(
        (None if value is None else _with_scale(value, kind.scale) for value in whole.to_pylist()),
        pa.string(),
    )


def _with_scale(whole: Decimal, scale: int) -> str:
    sign, digits, _ = whole.as_tuple()
    return str(Decimal((sign, digits, -scale)))


def times_to_text(column: pa.Array) -> pa.Array:
    """Write dates and timestamps as ISO 8601: `2013-01-01`, `2013-01-01T05:00:00.000000`, `...Z`, `...+02:00`.

    A time of a zone is written in UTC where it has no date in Python's calendar, years 1 to 9999, and where this
    machine does not know the zone.
    """
    kind = column.type
    unit = "D" if pa.types.is_date(kind) else kind.unit
    numbers = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    stamps = numbers.fill_null(0).to_numpy()
    lowest = stamps == _LOWEST
    written = np.datetime_as_string((stamps + lowest).astype(f"datetime64[{unit}]")).tolist()
    for index in np.flatnonzero(lowest):
        written[index] = _lowest_text(unit)
    texts = pa.array(map(_with_whole_year, written), pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        texts = pc.binary_join_element_wise(texts, "Z", "")
        if kind.tz != "UTC":
            texts = pc.coalesce(_in_zone(numbers, kind), texts)
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))


def _in_zone(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times in their own zone, with its offset; null where ISO 8601, the calendar or this machine has none."""
    zone, digits = time_zone(kind.tz), FRACTION_DIGITS[kind.unit]
    if zone is None:
        return pa.nulls(len(numbers), pa.string())
    low, high = _CALENDAR[kind.unit]
    texts: list[str | None] = []
    for number in numbers.to_pylist():
        if number is None or not low <= number <= high:
            texts.append(None)
            continue
        seconds, fraction = divmod(number, 10**digits)
        local = (_EPOCH + datetime.timedelta(seconds=seconds)).astimezone(zone)
        stamp = local.isoformat()
        tail = f".{fraction:0{digits}}" if digits else ""
        # Before there were zones, offsets had seconds.
        texts.append(f"{stamp[:19]}{tail}{stamp[19:]}" if len(stamp) == _STAMP_LENGTH else None)
    return pa.array(texts, pa.string())


def _decimals_from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read decimals; by Arrow those with no more digits than the type, since of more it makes other numbers."""
    before, behind = kind.precision - kind.scale, kind.scale
    if min(before, behind) < 0:
        odd = texts.is_valid()
    else:
        plain = f"^[-+]?[0-9]{{0,{before}}}(?:[.][0-9]{{0,{behind}}})?$"
        odd = pc.invert(pc.match_substring_regex(texts, plain)).fill_null(False)
    values = pc.if_else(odd, pa.scalar(None, pa.string()), texts).cast(kind)
    if not pc.any(odd).as_py():
        return values
    try:
        numbers = [decimal_literal(text) for text in texts.filter(odd).to_pylist()]
    except ArgumentInvalid as error:
        raise pa.ArrowInvalid(error.message) from error
    cells = cells_equal(numbers, pa.field("", kind))
    if len(cells) != len(numbers):
        raise pa.ArrowInvalid("out of range")
    return pc.replace_with_mask(values, odd, cells)


def _times_from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read times; where Arrow does not read some, each by itself.

    Raises:
        ArrowInvalid: One cannot be read, or does not fit the type.
    """
    with suppress(pa.ArrowInvalid):
        return texts.cast(kind)
    unit = "D" if pa.types.is_date(kind) else kind.unit
    numbers: list[int | None] = []
    for text in texts.to_pylist():
        if text is None:
            numbers.append(None)
            continue
        try:
            numbers.append(int(pa.scalar(text).cast(kind).value))
        except pa.ArrowInvalid:
            numbers.append(_far_number(text, unit, zoned=unit != "D" and kind.tz is not None))
    return pa.array(numbers, pa.int32() if unit == "D" else pa.int64()).cast(kind)


def _far_number(text: str, unit: str, *, zoned: bool) -> int:
    """A time that Arrow does not read: of a year beyond 9999 or before 0, or at the very ends of a unit. In UTC."""
    bare = text.removesuffix("Z")
    if (text != bare) != zoned or _BARE_TIME.fullmatch(bare) is None:
        raise pa.ArrowInvalid(f"{text!r} is no time")
    if unit != "D" and bare == _lowest_text(unit):
        return _LOWEST
    try:
        stamp = np.array(bare, f"datetime64[{unit}]")[()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    if _with_whole_year(str(stamp)) != bare:  # It has wrapped around, or has digits that the unit does not.
        raise pa.ArrowInvalid(f"{text!r} is out of range")
    return int(stamp.astype(np.int64))


def _lowest_text(unit: str) -> str:
    """The first time of a unit, which NumPy takes for no time at all; the time after it ends in 3."""
    return str(np.array(_LOWEST + 1, f"datetime64[{unit}]"))[:-1] + "2"


def _with_whole_year(text: str) -> str:
    match = _SHORT_YEAR.match(text)
    return text if match is None else f"-{match[1]:0>4}-{text[match.end() :]}"


def _binary_from_text(texts: pa.Array) -> pa.Array:
    values: list[bytes | None] = []
    for text in texts.to_pylist():
        if text is None:
            values.append(None)
            continue
        if not text.startswith(BINARY_PREFIX):
            raise pa.ArrowInvalid("not binary")
        try:
            values.append(bytes.fromhex(text.removeprefix(BINARY_PREFIX)))
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
    return pa.array(values, pa.binary())


def all_true(mask: pa.Array) -> bool:
    """Whether a mask has no False in it."""
    return pc.all(mask).as_py() is not False
