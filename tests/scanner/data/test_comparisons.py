"""Comparisons by value: every mask is what fractions say, cell by cell."""

from __future__ import annotations

import copy
import datetime
import decimal
import math
import operator
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.data import comparisons
from scanner.data.comparisons import compared, equal_to_any, exact_cell, starts_with
from scanner.data.literals import Temporal, decimal_literal, literal
from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.predicates import literal_from_proto, literal_to_proto
from tests.support.arrow_values import STORED_TYPES, raw_values
from tests.support.arrow_values import column as column_of
from tests.support.exact_values import PER_SECOND, exact_values

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
KINDS = (
    *STORED_TYPES,
    pa.timestamp("ms"),
    pa.timestamp("ns"),
    pa.timestamp("s", "UTC"),
    pa.decimal128(9, -2),
)
EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
Literal = tuple[object, object]
"""A literal, and what it is: a Fraction, an infinite or NaN float, or a value of another kind."""


def cells_of(kind: pa.DataType) -> st.SearchStrategy[pa.Array]:
    """A column of a type, with nulls, extremes and NaN."""
    values = raw_values(kind)
    if pa.types.is_floating(kind):
        values = st.floats(width=kind.bit_width) | st.sampled_from([16777216.0, 0.5, -0.0])
    if pa.types.is_timestamp(kind):
        values = values | st.integers(-(1 << 63), (1 << 63) - 1)
    if pa.types.is_date32(kind):
        values = values | st.integers(-(1 << 31), (1 << 31) - 1)
    return st.lists(st.none() | values, min_size=1, max_size=6).map(lambda cells: column_of(cells, kind))


def numbers(near: Fraction, kind: pa.DataType) -> st.SearchStrategy[Literal]:
    """Numbers of every kind that can be compared with a column, some of them close to a cell."""
    whole = st.integers(-(1 << 70), 1 << 70) | st.integers(-2, 2).map(lambda step: math.floor(near) + step)
    found: st.SearchStrategy[Literal] = whole.map(lambda value: (value, Fraction(value)))
    places = st.integers(0, 12)
    beside = st.builds(lambda step, digits: near + Fraction(step, 10**digits), st.integers(-3, 3), places)
    fractions: st.SearchStrategy[Decimal] = st.decimals(
        allow_nan=False, allow_infinity=False, places=3
    ) | beside.map(lambda value: Decimal(math.floor(value * 10**12)).scaleb(-12))
    found = found | fractions.filter(lambda value: len(str(value)) < 1000).map(
        lambda value: (value, _decimal(value, kind))
    )
    if pa.types.is_decimal(kind):
        return found
    floats = st.floats() | beside.map(float)
    return found | floats.map(lambda value: (value, Fraction(value) if math.isfinite(value) else value))


def _decimal(value: Decimal, kind: pa.DataType) -> Fraction:
    exact = Fraction(value)
    as_float = exact.denominator > 1 or "E+" in str(value)
    rounded = pa.types.is_floating(kind) and as_float and abs(exact) < 1 << 1000
    return Fraction(float(value)) if rounded else exact


@st.composite
def moments(draw: st.DrawFn, near: Fraction, kind: pa.DataType) -> Literal:
    """Dates and timestamps of any precision, in seconds; some of them close to a cell."""
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    digits = draw(st.integers(0, 12))
    arbitrary = st.integers(-(2**36), 2**36).map(Fraction)
    seconds = draw(arbitrary | st.integers(-2, 2).map(lambda step: near + Fraction(step, 10**digits)))
    count = math.floor(seconds * 10**digits)
    whole, fraction = divmod(count, 10**digits)
    offset = draw(st.integers(-23 * 60, 23 * 60)) * 60 if zoned else 0
    day, second = divmod(whole + offset, 86_400)
    if not 1 <= day + EPOCH_DAY <= 3_652_059:  # What datetime knows; the years beyond are tested below.
        day = 0
    date = datetime.date.fromordinal(day + EPOCH_DAY)
    text = f"{date.isoformat()}{draw(st.sampled_from('T '))}"
    text += f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    text += f".{fraction:0{digits}}" if digits else ""
    if zoned:
        sign, minutes = "-" if offset < 0 else "+", abs(offset) // 60
        text += (
            f"{sign}{minutes // 60:02}:{minutes % 60:02}"
            if offset
            else draw(st.sampled_from(["Z", "+00:00"]))
        )
    exact = Fraction(day * 86_400 + second - offset) + Fraction(fraction, 10**digits)
    return draw(st.sampled_from([text, Temporal(text)])), exact


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Array, list[object], list[Literal]]:
    """A column, what its cells are, and literals that it can be compared with."""
    kind = draw(st.sampled_from(KINDS))
    column = draw(cells_of(kind))
    cells = [_comparable(cell) for cell in exact_values(column)]
    if pa.types.is_date32(kind):
        cells = [cell * 86_400 if isinstance(cell, Fraction) else cell for cell in cells]
    near = draw(st.sampled_from([cell for cell in cells if isinstance(cell, Fraction)] or [Fraction(0)]))
    if pa.types.is_temporal(kind):
        literals = moments(near, kind)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        literals = numbers(near, kind)
    else:
        literals = same(kind)
    return column, cells, draw(st.lists(literals, min_size=1, max_size=4))


def same(kind: pa.DataType) -> st.SearchStrategy[Literal]:
    """Values of the column's own type."""
    if pa.types.is_string(kind):
        return st.text(max_size=2).map(lambda value: (value, value))
    if pa.types.is_binary(kind):
        return st.binary(max_size=2).map(lambda value: (value, value))
    return st.booleans().map(lambda value: (value, value))


def _comparable(cell: tuple[str, object] | None) -> object:
    if cell is None:
        return None
    what = cell[1][0] if isinstance(cell[1], tuple) else cell[1]
    return float(what) if cell[0] == "float" and isinstance(what, str) else what


@given(cases(), st.sampled_from(sorted(OPERATORS)))
def test_every_comparison_is_by_value(case: tuple[pa.Array, list[object], list[Literal]], name: str) -> None:
    """A random literal compared with a random column decides as fractions do; null decides nothing."""
    column, cells, ((value, exact), *_) = case
    test = compared(name, literal(value), pa.field("c", column.type))
    expected = [None if cell is None else OPERATORS[name](cell, exact) for cell in cells]
    assert test(column).to_pylist() == expected


@given(cases())
def test_in_is_equal_to_any(case: tuple[pa.Array, list[object], list[Literal]]) -> None:
    """IN is true where one of the literals is equal."""
    column, cells, literals = case
    test = equal_to_any([literal(value) for value, _ in literals], pa.field("c", column.type))
    expected = [None if cell is None else any(cell == exact for _, exact in literals) for cell in cells]
    assert test(column).to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@given(data=st.data())
def test_starts_with_agrees_with_python(kind: pa.DataType, data: st.DataObject) -> None:
    """A cell starts with what Python says it starts with."""
    values: st.SearchStrategy[Any] = (
        st.text("aä%_\\", max_size=3) if kind == pa.string() else st.binary(max_size=2)
    )
    cells, prefix = data.draw(st.lists(st.none() | values, max_size=5)), data.draw(values)
    found = starts_with(prefix, pa.field("c", kind))(pa.array(cells, kind)).to_pylist()
    assert found == [None if cell is None else cell.startswith(prefix) for cell in cells]


@given(st.sampled_from([kind for kind in KINDS if pa.types.is_timestamp(kind)]), st.data())
def test_a_cell_finds_itself(kind: pa.DataType, data: st.DataObject) -> None:
    """A timestamp that was read from a cell, as Python shows it or as Arrow prints it, is equal to the cell."""
    column = data.draw(
        st.lists(raw_values(kind), min_size=1, max_size=3).map(lambda cells: column_of(cells, kind))
    )
    index = data.draw(st.integers(0, len(column) - 1))
    texts = column.cast(pa.string()).to_pylist()
    for said in (column[index].as_py(), column[index].as_py().isoformat(), texts[index]):
        test = compared("equal", literal(said), pa.field("c", kind))
        assert test(column)[index].as_py() is True, said


@pytest.mark.parametrize(
    ("text", "equal"),
    [
        ("1e23", True),
        ("1E+308", True),
        ("1.5e300", True),
        ("9007199254740993.0", True),
        ("9007199254740993.", True),
        ("9.007199254740993e15", True),
        ("9007199254740993e0", True),
        ("9007199254740993", False),
    ],
)
def test_numbers_with_a_fraction_or_an_exponent(text: str, *, equal: bool) -> None:
    """Compared with floats they are floats, as in SQL, though few powers of ten are; whole numbers are themselves."""
    column = pa.array([float(text)])
    field = pa.field("x", column.type)
    assert compared("equal", decimal_literal(text), field)(column).to_pylist() == [equal]
    travelled = literal_from_proto("x", literal_to_proto(decimal_literal(text)))
    assert equal_to_any([travelled], field)(column).to_pylist() == [equal]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.decimal128(38, 1000),
        pa.decimal128(38, -1000),
        pa.decimal128(5, 2),
        pa.float32(),
        pa.float64(),
    ],
    ids=str,
)
@pytest.mark.parametrize("digits", ["1", "9", "1." + "3" * 1_000])
@pytest.mark.parametrize("exponent", [9999, 1101, 1100, 1099, 1038, -999, -1000, -1099, -1100, -1101, -9999])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_far_from_every_value_costs_no_more_than_others(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, digits: str, exponent: int, sign: str
) -> None:
    """It is on the same side of each value as it is, and no fraction of its size is made."""
    bits = []

    def made(*of: Any) -> Fraction:
        fraction = Fraction(*of)
        bits.append(max(fraction.numerator.bit_length(), fraction.denominator.bit_length()))
        return fraction

    text = f"{sign}{digits}e{exponent}"
    what = Fraction(text)
    values: list[Any] = [-math.inf, -1.0, -0.0, 1.0, math.inf]
    if pa.types.is_floating(kind):
        column = pa.array(values, kind)
        what = Fraction(0) if exponent < 0 else what
    else:
        width = kind.bit_width // 8
        most = (1 << 63) - 1 if pa.types.is_integer(kind) else 10**kind.precision - 1
        raw = [-most, -1, 0, 1, most]
        stored = b"".join(each.to_bytes(width, "little", signed=True) for each in raw)
        column = pa.Array.from_buffers(kind, len(raw), [None, pa.py_buffer(stored)])
        values = [Fraction(each) / Fraction(10) ** getattr(kind, "scale", 0) for each in raw]
    monkeypatch.setattr(comparisons, "Fraction", made)
    for name, compare in OPERATORS.items():
        mask = compared(name, decimal_literal(text), pa.field("c", kind))(column)
        assert mask.to_pylist() == [compare(each, what) for each in values]
    assert max(bits) < 10_000


@pytest.mark.parametrize("value", [-3.4028235e38, Decimal("-3.402823467e38"), -(2**128 - 2**104) - 1])
def test_just_below_the_least_float32_there_is_infinity_alone(value: object) -> None:
    """It is found without numpy's warning of an overflow, which is an error here."""
    below = compared("less", literal(value), pa.field("f", pa.float32()))
    cells = pa.array([-math.inf, -float(2**128 - 2**104), None], pa.float32())
    assert below(cells).to_pylist() == [True, False, None]


def test_years_that_python_has_not() -> None:
    """Timestamps of seconds reach far beyond year 9999, and are compared there, too."""
    column = pa.array([253_402_300_800, -62_167_219_201], pa.int64()).view(pa.timestamp("s"))
    field = pa.field("c", column.type)
    assert compared("equal", Temporal("10000-01-01 00:00:00"), field)(column).to_pylist() == [True, False]
    assert compared("equal", Temporal("-0001-12-31T23:59:59"), field)(column).to_pylist() == [False, True]
    assert compared("less", Temporal("999999-01-01"), field)(column).to_pylist() == [True, True]
    assert compared("less", Temporal("292277026596-12-04T15:30:08"), field)(column).to_pylist() == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "2013", "2013-02-29", "2013-13-01", "13-01-01", "2013-01-01T24:00", "2013-01-01 10", "2013-01-01T10:60",
        "2013-01-01T10:00:60", "2013-01-01T10:00:00.", "2013-01-01T10:00+24:00", "2013-01-01Z", "2013-01-01 10:00 CET",
        "2013-01-01T10:00:00\n", "٢٠١٣-01-01", "NaT", "now", "2013-01-01T10:00:00." + "1" * 19,
    ],
)  # fmt: skip
def test_what_is_no_date_is_refused(text: str) -> None:
    """Days and times that do not exist, or are written in another way, are refused."""
    with pytest.raises(ArgumentInvalid, match="no date or timestamp"):
        Temporal(text)


def test_what_a_column_is_compared_with() -> None:
    """A decimal with a number or a text of one, and with no float; text, octets and truth with their own kind."""
    column = pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")])
    field = pa.field("c", column.type)
    for value in ("1.5", decimal.Decimal("1.5"), "1.50"):
        assert compared("equal", literal(value), field)(column).to_pylist() == [True, False]
    assert compared("greater", literal(2), field)(column).to_pylist() == [False, True]
    with pytest.raises(ArgumentInvalid, match="a float is no decimal number"):
        compared("equal", literal(1.5), field)
    for cell, other in (("a", b"a"), (b"a", "a"), (True, "a")):
        column = pa.array([cell])
        field = pa.field("c", column.type)
        assert compared("equal", literal(cell), field)(column).to_pylist() == [True]
        with pytest.raises(ArgumentInvalid, match="does not fit column 'c'"):
            compared("equal", literal(other), field)


@pytest.mark.parametrize("text", ["", "1_0", "1e", "1e10000", "0x1", "inf", "NaN", "1" * 1201, "--1", "1,5"])
def test_decimals_that_cost_too_much_are_refused(text: str) -> None:
    """A number that cannot be read, or is longer than any that is needed, is refused before it is worked with."""
    with pytest.raises(ArgumentInvalid, match="no number that can be compared"):
        compared("less", literal_of_peer(text), pa.field("c", pa.int64()))


def literal_of_peer(text: str) -> Any:
    """A decimal as a peer sends it."""
    return literal_from_proto("c", pb.Literal(decimal=text))


@given(cases())
@example((pa.array([0], pa.date32()), [], [(Temporal("1970-01-02"), Fraction(86_400))]))
def test_an_exact_cell_is_equal_to_its_value(case: tuple[pa.Array, list[object], list[Literal]]) -> None:
    """A cell that is made of a value is equal to it, or the value is refused."""
    column, _, literals = case
    for value, exact in literals:
        try:
            cell = exact_cell(value, pa.field("c", column.type))
        except ArgumentInvalid:
            continue
        (found,) = [_comparable(each) for each in exact_values(cell)]
        if pa.types.is_date32(column.type):
            assert isinstance(found, Fraction)
            found *= 86_400
        assert found == exact or (found != found and exact != exact)


def test_the_units_are_those_of_arrow() -> None:
    """The factors that these tests and the code work with are Arrow's."""
    for unit, factor in PER_SECOND.items():
        assert pa.scalar(1, pa.timestamp("s")).cast(pa.timestamp(unit)).value == factor


@pytest.mark.parametrize(
    "text",
    [
        "1" * 1199 + ".",
        "-" + "1" * 1198 + ".",
        "1" * 1197 + "e5",
        "1" * 1000 + "e9999",
        "0." + "0" * 9 + "1e-9999",
    ],
)
def test_a_number_that_grows_on_the_way_is_refused_before(text: str) -> None:
    """Client and server count the same text, that which travels: what the one takes the other does not refuse."""
    with pytest.raises(ArgumentInvalid, match="1200 digits"):
        decimal_literal(text)
    longest = decimal_literal("1" * 1198 + ".")
    assert literal_from_proto("x", literal_to_proto(longest)) == longest


def test_a_time_is_read_from_a_pickle_of_its_text_alone() -> None:
    """As earlier versions have made it; and a newer one, or a copy, is the time itself."""
    time = Temporal("2013-07-01T12:00:00.5+02:00")
    earlier = Temporal.__new__(Temporal)
    earlier.__setstate__([time.text])
    for each in (earlier, copy.copy(time), copy.deepcopy(time), pickle.loads(pickle.dumps(time))):
        assert (each, hash(each), each.read()) == (time, hash(time), time.read())
