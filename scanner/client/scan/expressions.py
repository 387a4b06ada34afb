"""Conditions on columns: written as Python, `(col("price") > 5) | col("item").startswith("b")`, or read from text.

Pure data: what a condition means for rows, nulls and types is `scanner.data.filters`' business.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NoReturn

from scanner.client.arguments import TEXT_OR_OCTETS
from scanner.data.filters import LiteralValue, Operator, Predicate, literal
from scanner.errors import ArgumentInvalid, ColumnNotFound
from scanner.escapes import listed


@dataclass(frozen=True, slots=True)
class Condition:
    """Predicates that must all be true.

    `&` adds more, `|` makes alternatives, `~` the opposite.
    """

    predicates: tuple[Predicate, ...]
    """As they travel to the server."""

    def __and__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        return Condition(self.predicates + other.predicates)

    def __or__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        return Condition((Predicate("", Operator.OR, (), (*self._alternatives, *other._alternatives)),))

    def __invert__(self) -> Condition:
        whole = self._whole
        return Condition(
            whole.operands if whole.operator is Operator.NOT else (Predicate("", Operator.NOT, (), (whole,)),)
        )

    def __bool__(self) -> bool:
        # `a and b`, `not a` and `1 < col < 5` would silently drop half of what was asked for.
        raise ArgumentInvalid(
            "a condition has no truth value; join conditions with &, | and ~, each in parentheses"
        )

    @property
    def _whole(self) -> Predicate:
        """All of it as one predicate."""
        if len(self.predicates) == 1:
            return self.predicates[0]
        return Predicate("", Operator.AND, (), self.predicates)

    @property
    def _alternatives(self) -> tuple[Predicate, ...]:
        whole = self._whole
        return whole.operands if whole.operator is Operator.OR else (whole,)


class Column:
    """A column in a condition; made by `col`, with its name as `name`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentInvalid(f"the name of a column is text, not {name!r}")
        self.name = name

    def __repr__(self) -> str:
        return f"col({self.name!r})"

    # A column is no value: it is hashed and compared as an object nowhere.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare(Operator.EQUAL, value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compare(Operator.NOT_EQUAL, value)

    def __lt__(self, value: object) -> Condition:
        return self._compare(Operator.LESS, value)

    def __le__(self, value: object) -> Condition:
        return self._compare(Operator.LESS_OR_EQUAL, value)

    def __gt__(self, value: object) -> Condition:
        return self._compare(Operator.GREATER, value)

    def __ge__(self, value: object) -> Condition:
        return self._compare(Operator.GREATER_OR_EQUAL, value)

    def between(self, low: object, high: object) -> Condition:
        """The cell is at least `low` and at most `high`.

        Raises:
            ArgumentInvalid: One of them cannot be compared.
        """
        return (self >= low) & (self <= high)

    def startswith(self, prefix: str | bytes) -> Condition:
        """The cell, of a string or binary column, begins with `prefix`.

        Raises:
            ArgumentInvalid: `prefix` is neither str nor bytes.
        """
        if not isinstance(prefix, str | bytes):
            raise ArgumentInvalid(f"a cell starts with str or bytes, not with {prefix!r}")
        return self._condition(Operator.STARTS_WITH, [literal(prefix)])

    def isin(self, values: Iterable[object]) -> Condition:
        """The cell equals one of `values`.

        Raises:
            ArgumentInvalid: `values` is empty or no list, or one of them cannot be compared.
        """
        if isinstance(values, TEXT_OR_OCTETS) or not isinstance(values, Iterable):
            raise ArgumentInvalid(f"isin takes a list of values, not {values!r}")
        literals = [literal(value) for value in values]
        if isinstance(values, AbstractSet):
            # Python has the texts of a set in another order in each process, and a scan that goes on is to be the same.
            literals.sort(key=repr)
        return self._condition(Operator.IN, literals)

    def is_null(self) -> Condition:
        """The cell is null."""
        return self._condition(Operator.IS_NULL, [])

    def is_not_null(self) -> Condition:
        """The cell is not null."""
        return self._condition(Operator.IS_NOT_NULL, [])

    def __bool__(self) -> NoReturn:
        raise ArgumentInvalid(f"{self!r} has no truth value; compare it, e.g. {self!r} == True")

    def _compare(self, operator: Operator, value: object) -> Condition:
        if isinstance(value, Column):
            raise ArgumentInvalid(f"{self!r} is compared with a value, not with another column ({value!r})")
        return self._condition(operator, [literal(value)])

    def _condition(self, operator: Operator, literals: Sequence[LiteralValue]) -> Condition:
        return Condition((Predicate(self.name, operator, tuple(literals)),))


def col(name: str) -> Column:
    """Name a column in a condition.

    Example:
        >>> scan.where((col("origin") == "JFK") & ~(col("dep_delay") > 60))
    """
    return Column(name)


def parse_where(text: str) -> Condition:
    """Read a condition that is written as in SQL; docs/filters.md has the grammar.

    Args:
        text: For example `origin = 'JFK' and (dep_delay > 60 or tailnum is null)`.

    Raises:
        ArgumentInvalid: It cannot be read in full; one line shows what was not understood and what is allowed.

    Example:
        >>> scan.where(parse_where("origin in ('JFK', 'LGA')"))
    """
    if not isinstance(text, str):
        raise ArgumentInvalid(f"a condition is text here, not {text!r}")
    # The SQL parser takes a tenth of a second to load, and few need it.
    from scanner.client.scan.where import parse

    return parse(text)


def column_not_found(table: str, name: str, known: Sequence[str]) -> ColumnNotFound:
    """The error for a column that a table does not have: names the nearest, and lists those it has, or some."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else "."
    return ColumnNotFound(f"table {table} has no column {name!r}{hint} It has: {listed(known)}")
