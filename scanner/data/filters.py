"""Filters: what rows a scan delivers, as comparisons of columns with literals, joined by and, or and not.

A `Predicate` is data, a tree: the client makes it, the wire carries it, the server binds it to a table's
schema (`Filter`). What a comparison means is in `scanner.data.comparisons`; here is how they are combined, which is as
in SQL: with a null cell every comparison but IS_NULL and IS_NOT_NULL is unknown, NOT of unknown is unknown, AND is
false if any operand is, OR is true if any is, and a row passes if the whole is true.

Trees come from peers, so their depth is bounded here, and their size where they are read (`scanner.wire.queries`).

This module knows no transport and no storage.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from scanner.data.comparisons import Test, compared, equal_to_any, starts_with
from scanner.data.literals import LiteralValue, literal
from scanner.errors import ArgumentInvalid, ColumnNotFound
from scanner.escapes import listed

__all__ = [
    "DEPTH_MAX",
    "Filter",
    "LiteralValue",
    "Operator",
    "Predicate",
    "literal",
]

DEPTH_MAX: Final = 32
"""Levels of a predicate: a comparison has one. Far from what protobuf and Python allow, and enough for people."""


class Operator(enum.Enum):
    """How a cell is compared, or predicates are combined; the value is the number on the wire."""

    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    LESS_OR_EQUAL = 4
    GREATER = 5
    GREATER_OR_EQUAL = 6
    IN = 7
    """Equal to one of the literals, of which there is at least one."""
    IS_NULL = 8
    IS_NOT_NULL = 9
    STARTS_WITH = 10
    """Of a string or binary column."""
    AND = 11
    OR = 12
    NOT = 13


_COMPARISONS: Final = {
    Operator.EQUAL: "equal",
    Operator.NOT_EQUAL: "not_equal",
    Operator.LESS: "less",
    Operator.LESS_OR_EQUAL: "less_equal",
    Operator.GREATER: "greater",
    Operator.GREATER_OR_EQUAL: "greater_equal",
}
_COMBINATIONS: Final = (Operator.AND, Operator.OR, Operator.NOT)
_RowTest: TypeAlias = Callable[[pa.RecordBatch], pa.BooleanArray]


@dataclass(frozen=True, slots=True)
class Predicate:
    """One comparison, `column operator literals`, or a combination of predicates, `operator operands`.

    Raises:
        ArgumentInvalid: The number of literals or operands is not the operator's, or it is deeper than `DEPTH_MAX`.
    """

    column: str
    """Empty: a combination."""
    operator: Operator
    literals: tuple[LiteralValue, ...] = ()
    operands: tuple[Predicate, ...] = ()
    depth: int = field(init=False, repr=False, compare=False)
    """Levels: 1 of a comparison."""

    def __post_init__(self) -> None:
        if self.operator in _COMBINATIONS:
            self._check_combination()
        else:
            self._check_comparison()
        depth = 1 + max((each.depth for each in self.operands), default=0)
        if depth > DEPTH_MAX:
            raise ArgumentInvalid(f"the filter is nested more than {DEPTH_MAX} levels deep; write it flatter")
        object.__setattr__(self, "depth", depth)

    def leaves(self) -> Iterator[Predicate]:
        """The comparisons in it, from left to right."""
        if not self.operands:
            yield self
        for each in self.operands:
            yield from each.leaves()

    def _check_comparison(self) -> None:
        count = len(self.literals)
        if self.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
            fits, wanted = count == 0, "no literal"
        elif self.operator is Operator.IN:
            fits, wanted = count > 0, "one literal or more"
        else:
            fits, wanted = count == 1, "one literal"
        if not fits:
            raise ArgumentInvalid(
                f"{self.operator.name} on column {self.column!r} takes {wanted}, but got {count}"
            )
        if self.operands:
            raise ArgumentInvalid(f"{self.operator.name} on column {self.column!r} takes no operands")

    def _check_combination(self) -> None:
        count = len(self.operands)
        fits = count == 1 if self.operator is Operator.NOT else count >= 2
        if not fits:
            wanted = "one operand" if self.operator is Operator.NOT else "two operands or more"
            raise ArgumentInvalid(f"{self.operator.name} takes {wanted}, but got {count}")
        if self.column or self.literals:
            raise ArgumentInvalid(f"{self.operator.name} takes operands only, neither column nor literals")


class Filter:
    """Predicates bound to a schema: knows the columns it needs and tells which rows pass.

    Args:
        predicates: All of them must be true of a row.
        schema: Of the table; every predicate's columns are looked up in it.

    Raises:
        ColumnNotFound: A predicate names a column that the schema has not.
        ArgumentInvalid: A literal's kind is not that of its column.
    """

    def __init__(self, predicates: Sequence[Predicate], schema: pa.Schema) -> None:
        self._tests = [_bind(each, schema) for each in predicates]
        self.columns: tuple[str, ...] = tuple(
            dict.fromkeys(leaf.column for each in predicates for leaf in each.leaves())
        )
        """The columns that `mask` looks at, each once."""

    def __bool__(self) -> bool:
        return bool(self._tests)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Tell for each row whether it passes.

        Args:
            batch: Has at least `columns`, by name.

        Returns:
            One boolean a row, none of them null.
        """
        if not self._tests:
            return pa.repeat(pa.scalar(True), batch.num_rows)
        masks = (pc.fill_null(test(batch), False) for test in self._tests)
        return functools.reduce(pc.and_, masks)


def _bind(predicate: Predicate, schema: pa.Schema) -> _RowTest:
    if predicate.operator in _COMBINATIONS:
        return _combined(predicate.operator, [_bind(each, schema) for each in predicate.operands])
    name = predicate.column
    index = schema.get_field_index(name)
    if index < 0:
        raise ColumnNotFound(
            f"the filter names column {name!r}, which the table has not; it has {listed(schema.names)}"
        )
    test = _comparison(predicate, schema.field(index))
    return lambda batch: test(batch.column(name))


def _combined(operator: Operator, tests: Sequence[_RowTest]) -> _RowTest:
    if operator is Operator.NOT:
        (test,) = tests
        return lambda batch: pc.invert(test(batch))
    combine = pc.and_kleene if operator is Operator.AND else pc.or_kleene
    return lambda batch: functools.reduce(combine, (test(batch) for test in tests))


def _comparison(predicate: Predicate, column: pa.Field) -> Test:
    match predicate.operator:
        case Operator.IS_NULL:
            return lambda cells: pc.is_null(cells)
        case Operator.IS_NOT_NULL:
            return lambda cells: pc.is_valid(cells)
        case Operator.IN:
            return equal_to_any(predicate.literals, column)
        case Operator.STARTS_WITH:
            return starts_with(predicate.literals[0], column)
        case _:
            return compared(_COMPARISONS[predicate.operator], predicate.literals[0], column)
