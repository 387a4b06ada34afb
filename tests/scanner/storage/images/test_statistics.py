"""Statistics of blocks: bounds are never too narrow, and no block is left out that has a row for a filter."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scanner.data.block_ranges import ColumnRanges, may_pass
from scanner.data.filters import Filter, Operator, Predicate, literal
from scanner.storage.images import statistics
from scanner.storage.images.statistics import (
    block_statistics,
    column_ranges,
    decode_statistics,
    encode_statistics,
    lower_bound,
    upper_bound,
)
from tests.support.nightly import everyday

_LONG = st.builds(
    lambda count, end: "x" * count + end,
    st.sampled_from([0, 61, 64]),
    st.sampled_from(["", "a", "x", "xxxxy", "\ue000\ue000", "\U0010ffff", "\U0010ffff" * 17]),
)
_FLOATS = st.sampled_from([math.nan, 0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1.5])
VALUES: Final[dict[pa.DataType, st.SearchStrategy[Any]]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-4, 4) | st.sampled_from([-128, 127]),
    pa.int64(): st.integers(-4, 4) | st.sampled_from([-(2**63), 2**63 - 1]),
    pa.float32(): _FLOATS,
    pa.float64(): _FLOATS,
    pa.decimal128(5, 2): st.integers(-300, 300).map(lambda number: Decimal(number) / 100),
    pa.decimal128(5, -2): st.integers(-3, 3).map(lambda number: Decimal(number * 100)),
    pa.date32(): st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 2)),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1969, 12, 31), datetime.datetime(1970, 1, 1)),
    pa.timestamp("ns", "UTC"): st.datetimes(
        datetime.datetime(1969, 12, 31), datetime.datetime(1970, 1, 1), timezones=st.just(datetime.UTC)
    ),
    pa.string(): _LONG,
    pa.binary(): st.builds(
        lambda count, end: b"x" * count + end, st.sampled_from([0, 61, 64]), st.binary(max_size=4)
    )
    | st.sampled_from([64, 65, 80]).map(lambda count: b"\xff" * count),
}
"""Types of columns, and cells of them: few, so that conditions meet them."""
TYPES: Final = list(VALUES)
FLOATS: Final = [pa.float32(), pa.float64()]
TEXTS: Final = [pa.string(), pa.binary()]
_ORDERED: Final = [
    Operator.EQUAL,
    Operator.NOT_EQUAL,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
    Operator.GREATER,
    Operator.GREATER_OR_EQUAL,
]


Case = tuple[list[pa.RecordBatch], list[Predicate], pa.Schema]
"""Blocks, conditions, and the columns of the table: one more than the blocks have."""


def comparison(draw: st.DrawFn, schema: pa.Schema) -> Predicate:
    """A comparison of some column with literals that may be its cells."""
    field = schema.field(draw(st.integers(0, len(schema) - 1)))
    operators = [*_ORDERED, Operator.IN, Operator.IS_NULL, Operator.IS_NOT_NULL]
    if field.type in (pa.string(), pa.binary()):
        operators.append(Operator.STARTS_WITH)
    operator = draw(st.sampled_from(operators))
    count = {Operator.IS_NULL: 0, Operator.IS_NOT_NULL: 0, Operator.IN: 3}.get(operator, 1)
    return Predicate(field.name, operator, tuple(literal(draw(VALUES[field.type])) for _ in range(count)))


def block(draw: st.DrawFn, schema: pa.Schema) -> pa.RecordBatch:
    """A few rows: of a column all may be null, or have one value."""
    columns = []
    for field in schema:
        values = VALUES[field.type]
        cells = draw(st.sampled_from([st.none(), values, st.none() | values]))
        column = pa.array([draw(cells), draw(cells)], field.type)
        columns.append(column.take(pa.array(draw(st.sampled_from([[0, 0], [0, 1]])))))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@st.composite
def cases(draw: st.DrawFn, types: list[pa.DataType]) -> Case:
    """Some blocks of two columns, and conditions that combine some comparisons."""
    kinds = [draw(st.sampled_from(types)) for _ in range(2)]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    table = schema.append(pa.field("added", pa.int64()))
    parts = [comparison(draw, table) for _ in range(2)]
    both = Predicate("", draw(st.sampled_from([Operator.AND, Operator.OR])), (), tuple(parts))
    whole = draw(st.sampled_from([parts[0], both]))
    predicates = [Predicate("", Operator.NOT, (), (whole,)) if draw(st.booleans()) else whole]
    return [block(draw, schema) for _ in range(2)], predicates, table


def kept(case: Case) -> list[bool]:
    """Which blocks are read, as their stored statistics say."""
    batches, predicates, table = case
    schema = batches[0].schema
    message = encode_statistics([block_statistics(batch) for batch in batches], schema)
    found, rows = decode_statistics(message, schema), [batch.num_rows for batch in batches]

    def ranges_of(name: str) -> ColumnRanges:
        return column_ranges(found, schema, rows, table.field(name))

    answer = may_pass(predicates, table, ranges_of)
    assert answer is not None
    return [bool(each) for each in answer]


def passing(case: Case) -> list[int]:
    """How many rows of each block pass."""
    batches, predicates, table = case
    added = [[*batch.columns, pa.nulls(len(batch), pa.int64())] for batch in batches]
    wholes = [pa.RecordBatch.from_arrays(columns, schema=table) for columns in added]
    return [int(Filter(predicates, table).mask(whole).true_count) for whole in wholes]


def nothing_is_lost(types: list[pa.DataType], examples: int = everyday(150, nightly=4000)) -> None:
    """A block that is left out has no row that passes."""

    @settings(
        derandomize=True,
        database=None,
        max_examples=examples,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(types))
    def check(case: Case) -> None:
        for is_kept, rows in zip(kept(case), passing(case), strict=True):
            assert is_kept or not rows

    check()


@pytest.mark.parametrize("types", [TYPES, FLOATS, TEXTS], ids=["all", "floats", "texts"])
def test_no_block_with_a_passing_row_is_left_out(types: list[pa.DataType]) -> None:
    """Of every type and every condition, nulls, NaN, infinities, both zeros and long strings among them."""
    nothing_is_lost(types)


def forget_nan(patch: pytest.MonkeyPatch) -> None:
    """That a block has NaN is not stored."""
    patch.setattr(statistics, "_HAS_NAN", 0)


def cut_upper_bounds(patch: pytest.MonkeyPatch) -> None:
    """Upper bounds of long strings are cut off, and not rounded up."""
    patch.setattr(statistics, "upper_bound", lower_bound)


def take_unknown_for_none(patch: pytest.MonkeyPatch) -> None:
    """Where no upper bound is known there seem to be no cells."""
    patch.setattr(statistics, "_HIGH_UNKNOWN", 0)


@pytest.mark.parametrize(
    ("broken", "types"), [(forget_nan, FLOATS), (cut_upper_bounds, TEXTS), (take_unknown_for_none, TEXTS)]
)
def test_a_broken_variant_is_found(
    broken: Callable[[pytest.MonkeyPatch], None], types: list[pa.DataType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The property finds each of these."""
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        nothing_is_lost(types, 5000)  # It ends with the first that it finds.


NAN = math.nan
SKIPPED: Final[list[tuple[pa.DataType, list[Any], Operator, list[Any]]]] = [
    (pa.int8(), [3, 5, None], Operator.LESS, [3]),
    (pa.int8(), [3, 5], Operator.EQUAL, [6]),
    (pa.int8(), [3, 5], Operator.GREATER, [300]),
    (pa.int8(), [4, 4, None], Operator.NOT_EQUAL, [4]),
    (pa.int8(), [3, 5], Operator.IN, [2, 6, 1]),
    (pa.int8(), [None, None], Operator.IS_NOT_NULL, []),
    (pa.int8(), [1, 2], Operator.IS_NULL, []),
    (pa.float64(), [NAN, 1.0, 2.0], Operator.GREATER, [2.0]),
    (pa.float64(), [NAN, None], Operator.LESS, [math.inf]),
    (pa.float64(), [0.0, -0.0], Operator.LESS, [0.0]),
    (pa.float64(), [-0.0], Operator.NOT_EQUAL, [0.0]),
    (pa.float32(), [-0.0, 1.0], Operator.IN, [-1.0, 2.0]),
    (pa.decimal128(5, 2), [Decimal("1.25")], Operator.LESS_OR_EQUAL, [Decimal("1.249")]),
    (pa.decimal128(5, -2), [Decimal(100), Decimal(300)], Operator.GREATER, [Decimal(300)]),
    (pa.date32(), [datetime.date(2013, 7, 1)], Operator.LESS, [datetime.date(2013, 7, 1)]),
    (pa.timestamp("s"), [datetime.datetime(2013, 7, 1)], Operator.GREATER, [datetime.datetime(2013, 7, 1)]),
    (pa.bool_(), [False, None], Operator.EQUAL, [True]),
    (pa.string(), ["eu", "us"], Operator.STARTS_WITH, ["a"]),
    (pa.string(), ["eu-1", "eu-2"], Operator.STARTS_WITH, ["eu-3"]),
    (pa.string(), ["eu" * 50], Operator.LESS, ["eu"]),
    (pa.binary(), [b"\xff" * 100], Operator.LESS, [b"\xfe"]),
]


@pytest.mark.parametrize(("kind", "cells", "operator", "values"), SKIPPED)
def test_blocks_are_left_out(
    kind: pa.DataType, cells: list[Any], operator: Operator, values: list[Any]
) -> None:
    """Where bounds, nulls or NaN rule a condition out, the block is not read; where it is negated, it is."""
    schema = pa.schema([("c", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array(cells, kind)], schema=schema)
    found = block_statistics(batch)
    condition = Predicate("c", operator, tuple(literal(value) for value in values))

    def is_read(predicate: Predicate) -> bool:
        answer = may_pass(
            [predicate], schema, lambda name: column_ranges(found, schema, [len(cells)], schema.field(name))
        )
        assert answer is not None
        return bool(answer[0])

    assert not is_read(condition)
    negated = Predicate("", Operator.NOT, (), (condition,))
    assert is_read(negated) == bool(Filter([negated], schema).mask(batch).true_count)


@given(st.text(max_size=80) | _LONG | st.binary(max_size=80))
def test_bounds_of_text_are_short_and_wide_enough(value: str | bytes) -> None:
    """A lower one is not greater, an upper one not smaller, and neither takes more than 64 octets."""
    low, high = lower_bound(value), upper_bound(value)
    for bound in (low, high):
        octets = bound.encode() if isinstance(bound, str) else bound or b""
        assert len(octets) <= 64
    assert low <= value  # type: ignore[operator]
    assert high is None or high >= value  # type: ignore[operator]


def test_upper_bounds_are_rounded_up() -> None:
    """The last character that has a greater one gets it; no surrogate, and nothing behind the last of all."""
    assert upper_bound("a" * 70) == "a" * 63 + "b"
    assert upper_bound("a" * 60 + "\ud7ff" * 2) == "a" * 60 + "\ue000"
    assert upper_bound("\U0010ffff" * 17) is None
    assert upper_bound("a" + "\U0010ffff" * 17) == "b"
    assert upper_bound(b"a" + b"\xff" * 70) == b"b"
    assert upper_bound(b"\xff" * 65) is None


def test_statistics_that_are_none_are_refused() -> None:
    """Octets that are no record batch of them."""
    with pytest.raises(ValueError, match="metadata bytes"):
        decode_statistics(b"no statistics at all", pa.schema([("c", pa.int8())]))
