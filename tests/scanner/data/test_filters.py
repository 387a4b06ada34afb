"""Filters: which rows pass, what literals fit, and how both travel."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.filters import (
    DEPTH_MAX,
    Filter,
    LiteralValue,
    Operator,
    Predicate,
    literal,
)
from scanner.data.literals import Temporal
from scanner.errors import ArgumentInvalid, ColumnNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.predicates import predicate_from_proto, predicate_to_proto
from tests.support.predicates import PREDICATES, combined

COMPARISONS = {
    Operator.EQUAL: lambda cell, value: cell == value,
    Operator.NOT_EQUAL: lambda cell, value: cell != value,
    Operator.LESS: lambda cell, value: cell < value,
    Operator.LESS_OR_EQUAL: lambda cell, value: cell <= value,
    Operator.GREATER: lambda cell, value: cell > value,
    Operator.GREATER_OR_EQUAL: lambda cell, value: cell >= value,
}


def passing(array: pa.Array, operator: Operator, *literals: LiteralValue) -> list[bool]:
    """Which cells of a column pass."""
    batch = pa.record_batch([array], names=["c"])
    mask = Filter([Predicate("c", operator, literals)], batch.schema).mask(batch)
    assert mask.null_count == 0
    result: list[bool] = mask.to_pylist()
    return result


@given(st.lists(st.none() | st.integers(-5, 5)), st.sampled_from(list(COMPARISONS)), st.integers(-5, 5))
def test_comparisons_agree_with_python(cells: list[int | None], operator: Operator, value: int) -> None:
    """Each operator decides as Python does, and a null cell never passes."""
    expected = [cell is not None and COMPARISONS[operator](cell, value) for cell in cells]

    assert passing(pa.array(cells, pa.int64()), operator, value) == expected


@given(st.lists(st.none() | st.integers(-5, 5)), st.lists(st.integers(-5, 5), min_size=1))
def test_in_agrees_with_python(cells: list[int | None], values: list[int]) -> None:
    """IN passes what equals one of the literals; null equals none."""
    assert passing(pa.array(cells, pa.int32()), Operator.IN, *values) == [cell in values for cell in cells]


def test_nulls_satisfy_is_null_only() -> None:
    """IS_NULL and IS_NOT_NULL tell nulls apart."""
    cells = pa.array(["a", None, ""])

    assert passing(cells, Operator.IS_NULL) == [False, True, False]
    assert passing(cells, Operator.IS_NOT_NULL) == [True, False, True]


def test_nan_equals_nothing_and_zeros_are_equal() -> None:
    """EQUAL and IN treat floats alike, as IEEE 754 does."""
    cells = pa.array([math.nan, 0.0, -0.0, 1.5])

    assert passing(cells, Operator.EQUAL, math.nan) == [False] * 4
    assert passing(cells, Operator.IN, math.nan, 0.0) == [False, True, True, False]


def test_predicates_are_a_conjunction() -> None:
    """A row passes if all predicates are true of it; without any, all pass."""
    batch = pa.record_batch({"a": [1, 2, 3, None], "b": ["x", "y", "y", "y"]})
    both = Filter(
        [Predicate("a", Operator.GREATER, (1,)), Predicate("b", Operator.EQUAL, ("y",))], batch.schema
    )

    assert both.mask(batch).to_pylist() == [False, True, True, False]
    assert both.columns == ("a", "b")
    assert Filter([], batch.schema).mask(batch).to_pylist() == [True] * 4


ROWS = st.lists(
    st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(["", "a", "ab", "b"])),
    min_size=1,
    max_size=8,
)
NUMBERS = st.builds(
    lambda operator, value: Predicate("n", operator, (value,)),
    st.sampled_from(sorted(COMPARISONS, key=lambda each: each.value)),
    st.integers(-3, 3),
)
TEXTS = st.sampled_from(
    [
        Predicate("s", Operator.STARTS_WITH, ("a",)),
        Predicate("s", Operator.IN, ("b", "c")),
        Predicate("s", Operator.IS_NULL),
        Predicate("s", Operator.IS_NOT_NULL),
    ]
)


def holds(predicate: Predicate, row: dict[str, object]) -> bool | None:
    """SQL's three values, in Python: None is unknown."""
    known = [holds(each, row) for each in predicate.operands]
    match predicate.operator:
        case Operator.AND:
            return False if False in known else None if None in known else True
        case Operator.OR:
            return True if True in known else None if None in known else False
        case Operator.NOT:
            return None if known == [None] else not known[0]
        case Operator.IS_NULL:
            return row[predicate.column] is None
        case Operator.IS_NOT_NULL:
            return row[predicate.column] is not None
    cell = row[predicate.column]
    if cell is None:
        return None
    match predicate.operator:
        case Operator.STARTS_WITH:
            return str(cell).startswith(str(predicate.literals[0]))
        case Operator.IN:
            return cell in predicate.literals
    return bool(COMPARISONS[predicate.operator](cell, predicate.literals[0]))


@given(ROWS, st.recursive(NUMBERS | TEXTS, combined, max_leaves=8))
def test_trees_are_three_valued(rows: list[tuple[int | None, str | None]], predicate: Predicate) -> None:
    """A row passes if the tree is true of it, by SQL's logic of what is unknown."""
    batch = pa.record_batch(
        {
            "n": pa.array([row[0] for row in rows], pa.int8()),
            "s": pa.array([row[1] for row in rows], pa.string()),
        }
    )
    mask = Filter([predicate], batch.schema).mask(batch)
    assert mask.null_count == 0
    assert mask.to_pylist() == [holds(predicate, row) is True for row in batch.to_pylist()]


@given(PREDICATES)
def test_trees_round_trip(predicate: Predicate) -> None:
    """A tree read from its message is the same."""
    message = pb.Predicate.FromString(predicate_to_proto(predicate).SerializeToString())
    assert predicate_from_proto(message) == predicate


DAY = datetime.date(2013, 1, 2)
MOMENT = datetime.datetime(2013, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (pa.array([True]), True),
        (pa.array([7], pa.int8()), 7),
        (pa.array([7], pa.int64()), 7.0),
        (pa.array([7.0], pa.float32()), 7),
        (pa.array(["ä"]), "ä"),
        (pa.array([b"\x00"]), b"\x00"),
        (pa.array([DAY]), DAY),
        (pa.array([MOMENT], pa.timestamp("us")), MOMENT),
        (pa.array([MOMENT], pa.timestamp("ns", "UTC")), MOMENT.replace(tzinfo=datetime.UTC)),
        (pa.array([Decimal("1.50")], pa.decimal128(9, 2)), Decimal("1.5")),
        (pa.array([Decimal("3.00")], pa.decimal128(9, 2)), 3),
    ],
    ids=str,
)
def test_literals_of_every_type_find_their_cell(array: pa.Array, value: object) -> None:
    """A Python value that travels finds the equal cell in a column of the fitting type."""
    assert passing(array, Operator.EQUAL, literal(value)) == [True]
    assert passing(array, Operator.IN, literal(value)) == [True]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "1"),
        (pa.int64(), True),
        (pa.string(), 1),
        (pa.string(), b"a"),
        (pa.bool_(), 1),
        (pa.date32(), "tomorrow"),
        (pa.timestamp("us", "UTC"), "2013-01-02T03:04:05"),
        (pa.timestamp("us"), "2013-01-02T03:04:05Z"),
        (pa.timestamp("us"), 5),
        (pa.date32(), "2013-02-29"),
        (pa.decimal128(4, 2), 1.5),
        (pa.decimal128(4, 2), "1.5 or more"),
        (pa.float64(), "1.5"),
        (pa.binary(), "a"),
    ],
    ids=str,
)
def test_a_literal_that_does_not_fit_is_refused(kind: pa.DataType, value: LiteralValue) -> None:
    """A literal of the wrong type or range names the column and is an argument error."""
    with pytest.raises(ArgumentInvalid, match="'c'"):
        Filter([Predicate("c", Operator.EQUAL, (value,))], pa.schema([("c", kind)]))


def test_an_unknown_column_lists_the_known_ones() -> None:
    """A predicate on a column that is not there says which there are."""
    with pytest.raises(ColumnNotFound, match="alpha, beta"):
        Filter([Predicate("gamma", Operator.IS_NULL)], pa.schema([("alpha", pa.int8()), ("beta", pa.int8())]))


@pytest.mark.parametrize(
    ("operator", "literals"),
    [(Operator.IS_NULL, (1,)), (Operator.IN, ()), (Operator.EQUAL, ()), (Operator.LESS, (1, 2))],
)
def test_the_number_of_literals_is_checked(operator: Operator, literals: tuple[LiteralValue, ...]) -> None:
    """Each operator takes its number of literals and no other."""
    with pytest.raises(ArgumentInvalid, match="takes"):
        Predicate("c", operator, literals)


values = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)


@given(st.text(), st.lists(values, min_size=1))
def test_predicates_round_trip(column: str, literals: list[LiteralValue]) -> None:
    """A predicate read from its message is the same, the types of its literals included."""
    predicate = Predicate(column, Operator.IN, tuple(literals))
    again = predicate_from_proto(pb.Predicate.FromString(predicate_to_proto(predicate).SerializeToString()))

    assert again == predicate
    assert [type(each) for each in again.literals] == [type(each) for each in literals]


def test_unknown_operators_and_empty_literals_are_refused() -> None:
    """A message of a newer client, or a broken one, is an argument error."""
    with pytest.raises(ArgumentInvalid, match="operator 77"):
        predicate_from_proto(pb.Predicate(column="c", operator=77))  # type: ignore[arg-type]
    with pytest.raises(ArgumentInvalid, match="without a value"):
        predicate_from_proto(
            pb.Predicate(column="c", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal()])
        )


def test_values_that_cannot_travel_are_refused() -> None:
    """None, numbers without an end and foreign types are refused; numpy scalars and huge integers are not."""
    for value in (
        None,
        "\udcff",
        10**5000,
        object(),
        Decimal("NaN"),
        Decimal("1e10000"),
        np.datetime64("NaT", "us"),
        np.timedelta64(3, "ns"),
        np.arange(2),
    ):
        with pytest.raises(ArgumentInvalid):
            literal(value)
    with pytest.raises(
        ArgumentInvalid, match=r"a list \(\[0, 1, .* cannot be compared with a column.* isin"
    ) as refused:
        literal([*range(10_000)])
    assert len(str(refused.value)) < 300
    assert literal(np.int32(5)) == 5
    assert literal(2**64) == Decimal(2**64)
    assert type(literal(np.float32(0.5))) is float
    assert literal(np.datetime64("2013-01-02T03:04:05.000000006")) == Temporal(
        "2013-01-02T03:04:05.000000006"
    )
    assert literal(np.datetime64("2013-01-02T03")) == Temporal("2013-01-02T03:00")


def test_operators_have_their_numbers_on_the_wire() -> None:
    """Each operator is the one of its name there, and there is no other."""
    numbers = {f"OPERATOR_{each.name}": each.value for each in Operator}
    assert {"OPERATOR_UNSPECIFIED": 0} | numbers == dict(pb.Predicate.Operator.items())


def test_nesting_has_a_bound() -> None:
    """As many levels as are allowed evaluate; one more is refused, whoever made the tree."""
    schema = pa.schema([pa.field("c", pa.int64())])
    batch = pa.record_batch([pa.array([1, 2])], schema=schema)
    tree = Predicate("c", Operator.EQUAL, (1,))
    for depth in range(2, DEPTH_MAX + 1):
        tree = Predicate("", Operator.NOT, (), (tree,))
        assert tree.depth == depth
    assert Filter([tree], schema).mask(batch).to_pylist() == [False, True]
    with pytest.raises(ArgumentInvalid, match=f"more than {DEPTH_MAX} levels"):
        Predicate("", Operator.NOT, (), (tree,))
