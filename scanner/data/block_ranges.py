"""Which blocks of rows may have one that passes a filter, by what is known of each block's columns.

Of a column of a block are known bounds of its cells, and whether some are null, and some NaN. Of a condition that says
whether it may be true of some row, and whether it may be false of some: a combination follows from its operands as in
SQL, and NOT exchanges the two. What is unknown makes neither. A block is left out if the whole cannot be true.

Invariants:

1. A block in which a row passes `scanner.data.filters.Filter` is never left out. Bounds may be wider than the cells,
   and operands are taken to be independent; either only keeps blocks that could have been left out.
2. Bounds ignore NaN, which has no place among numbers: a comparison with it is false, and so its NOT is true. -0.0
   is equal to 0.0.
3. Conditions are tested by `scanner.data.comparisons`, the same as cells are: all blocks at once, by their bounds.

This module knows no files and no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.data.comparisons import cells_equal, compared, starts_with
from scanner.data.filters import Operator

if TYPE_CHECKING:
    from scanner.data.comparisons import Test
    from scanner.data.filters import Predicate

_Blocks: TypeAlias = NDArray[np.bool_]
"""Of each block whether something holds."""
_AT_OR_BELOW: Final = {Operator.LESS: "less", Operator.LESS_OR_EQUAL: "less_equal"}
_AT_OR_ABOVE: Final = {Operator.GREATER: "greater", Operator.GREATER_OR_EQUAL: "greater_equal"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """On one side, of the cells of a column that are neither null nor NaN."""

    cells: pa.Array
    """Of each block; null: there are no such cells, or the bound is not known."""
    unknown: _Blocks
    """Which blocks have a bound that is not known."""

    def may_pass(self, test: Test) -> _Blocks:
        """Of which blocks the bound passes a test, or is not known."""
        return _mask(test(self.cells)) | self.unknown

    def may_fail(self, test: Test) -> _Blocks:
        """Of which blocks the bound fails it, or is not known."""
        return _mask(pc.invert(test(self.cells))) | self.unknown


@dataclass(frozen=True, slots=True)
class ColumnRanges:
    """What is known of one column, of each block."""

    low: Bounds
    """No such cell is smaller."""
    high: Bounds
    """None is greater."""
    nulls: _Blocks
    """Whether there is a null."""
    values: _Blocks
    """Whether there is anything else, NaN included."""
    nans: _Blocks
    """Whether there is NaN."""

    @classmethod
    def all_null(cls, kind: pa.DataType, blocks: int) -> ColumnRanges:
        """Those of a column that was added later."""
        none, nothing = np.zeros(blocks, np.bool_), pa.nulls(blocks, kind)
        return cls(Bounds(nothing, none), Bounds(nothing, none), ~none, none, none)


class _Outcomes(NamedTuple):
    """What a condition may be, of some row of each block."""

    true: _Blocks
    false: _Blocks


def may_pass(
    predicates: Sequence[Predicate], schema: pa.Schema, ranges_of: Callable[[str], ColumnRanges]
) -> _Blocks | None:
    """Tell which blocks may have a row that passes. Takes some tens of microseconds a comparison.

    Args:
        predicates: All of them must be true of a row; a `Filter` was made of them and the schema.
        schema: Of the table.
        ranges_of: What is known of a column that they name.

    Returns:
        Of each block; None: there is no predicate, so all rows pass.
    """
    passing = [_outcomes(each, schema, ranges_of).true for each in predicates]
    return np.logical_and.reduce(passing) if passing else None


def _outcomes(predicate: Predicate, schema: pa.Schema, ranges_of: Callable[[str], ColumnRanges]) -> _Outcomes:
    if not predicate.operands:
        return _of_comparison(predicate, schema.field(predicate.column), ranges_of(predicate.column))
    parts = [_outcomes(each, schema, ranges_of) for each in predicate.operands]
    true, false = [part.true for part in parts], [part.false for part in parts]
    match predicate.operator:
        case Operator.NOT:
            return _Outcomes(false[0], true[0])
        case Operator.AND:
            return _Outcomes(np.logical_and.reduce(true), np.logical_or.reduce(false))
        case _:
            return _Outcomes(np.logical_or.reduce(true), np.logical_and.reduce(false))


def _of_comparison(predicate: Predicate, field: pa.Field, ranges: ColumnRanges) -> _Outcomes:
    operator, literals = predicate.operator, predicate.literals
    match operator:
        case Operator.IS_NULL:
            return _Outcomes(ranges.nulls, ranges.values)
        case Operator.IS_NOT_NULL:
            return _Outcomes(ranges.values, ranges.nulls)
        case Operator.LESS | Operator.LESS_OR_EQUAL:
            test = compared(_AT_OR_BELOW[operator], literals[0], field)
            return _Outcomes(ranges.low.may_pass(test), ranges.high.may_fail(test) | ranges.nans)
        case Operator.GREATER | Operator.GREATER_OR_EQUAL:
            test = compared(_AT_OR_ABOVE[operator], literals[0], field)
            return _Outcomes(ranges.high.may_pass(test), ranges.low.may_fail(test) | ranges.nans)
        case Operator.STARTS_WITH:
            return _beginning(predicate, field, ranges)
        case Operator.IN:
            return _Outcomes(_some_between(cells_equal(literals, field), ranges), ranges.values)
        case Operator.EQUAL:
            return _equal(predicate, field, ranges)
        case _:
            return _Outcomes(*reversed(_equal(predicate, field, ranges)))


def _equal(predicate: Predicate, field: pa.Field, ranges: ColumnRanges) -> _Outcomes:
    (value,) = predicate.literals
    below, above = compared("less_equal", value, field), compared("greater_equal", value, field)
    equal = compared("equal", value, field)
    differs = ranges.nans | ranges.low.may_fail(equal) | ranges.high.may_fail(equal)
    return _Outcomes(ranges.low.may_pass(below) & ranges.high.may_pass(above), differs)


def _beginning(predicate: Predicate, field: pa.Field, ranges: ColumnRanges) -> _Outcomes:
    (prefix,) = predicate.literals
    begins = starts_with(prefix, field)
    below, above = compared("less_equal", prefix, field), compared("greater_equal", prefix, field)
    # What begins with the prefix is not below it, and is together: so two bounds that do have all between them do so.
    low = ranges.low.may_pass(below) | ranges.low.may_pass(begins)
    return _Outcomes(
        low & ranges.high.may_pass(above), ranges.low.may_fail(begins) | ranges.high.may_fail(begins)
    )


def _some_between(values: pa.Array, ranges: ColumnRanges) -> _Blocks:
    """Of which blocks some of these values, which are cells of the column's type, are between the bounds."""
    below_low, _ = _count_below(values, ranges.low.cells)
    _, up_to_high = _count_below(values, ranges.high.cells)
    below_low = np.where(ranges.low.unknown, 0, below_low)
    up_to_high = np.where(ranges.high.unknown, len(values), up_to_high)
    has_low = _mask(pc.is_valid(ranges.low.cells)) | ranges.low.unknown
    return has_low & (up_to_high > below_low)


def _count_below(values: pa.Array, bounds: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each bound, how many values are smaller, and how many are not greater; of a null one it means nothing."""

    def before(cells: pa.Array, is_value: _Blocks) -> NDArray[np.int64]:
        order = pc.sort_indices(cells).to_numpy()  # Stable: what is equal stays in its order.
        counts = np.empty(len(order), np.int64)
        counts[order] = np.cumsum(is_value[order])
        return counts[~is_value]

    is_value = np.arange(len(values) + len(bounds)) < len(values)
    smaller = before(pa.concat_arrays([bounds, values]), np.roll(is_value, len(bounds)))
    return smaller, before(pa.concat_arrays([values, bounds]), is_value)


def _mask(cells: pa.BooleanArray) -> _Blocks:
    found: _Blocks = pc.fill_null(cells, False).to_numpy(zero_copy_only=False)
    return found
