"""Filters: what rows a scan delivers, as a conjunction of comparisons of a column with literals.

A `Predicate` is data: the client makes it, the wire carries it, the server binds it to a table's
schema (`Filter`), which is where its literals get the column's type. A null cell satisfies IS_NULL
and nothing else, so NOT_EQUAL does not deliver rows whose cell is null. NaN equals nothing, in
EQUAL and in IN.

This module knows no transport and no storage.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from scanner.errors import ArgumentInvalid, ColumnNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb

LiteralValue: TypeAlias = bool | int | float | str | bytes
"""What travels. Dates, timestamps and decimals travel as text."""

_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1


class Operator(enum.Enum):
    """How a cell is compared; the value is the number on the wire."""

    EQUAL = pb.Predicate.OPERATOR_EQUAL
    NOT_EQUAL = pb.Predicate.OPERATOR_NOT_EQUAL
    LESS = pb.Predicate.OPERATOR_LESS
    LESS_OR_EQUAL = pb.Predicate.OPERATOR_LESS_OR_EQUAL
    GREATER = pb.Predicate.OPERATOR_GREATER
    GREATER_OR_EQUAL = pb.Predicate.OPERATOR_GREATER_OR_EQUAL
    IN = pb.Predicate.OPERATOR_IN
    """Equal to one of the literals, of which there is at least one."""
    IS_NULL = pb.Predicate.OPERATOR_IS_NULL
    IS_NOT_NULL = pb.Predicate.OPERATOR_IS_NOT_NULL


_COMPARISONS = {
    Operator.EQUAL: "equal",
    Operator.NOT_EQUAL: "not_equal",
    Operator.LESS: "less",
    Operator.LESS_OR_EQUAL: "less_equal",
    Operator.GREATER: "greater",
    Operator.GREATER_OR_EQUAL: "greater_equal",
}


@dataclass(frozen=True, slots=True)
class Predicate:
    """One comparison: `column operator literals`."""

    column: str
    operator: Operator
    literals: tuple[LiteralValue, ...] = ()

    def __post_init__(self) -> None:
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


def literal(value: object) -> LiteralValue:
    """Turn a Python value into what travels.

    Args:
        value: bool, int, float, str, bytes, `Decimal`, `date` or `datetime`; numpy scalars count as
            their Python value.

    Raises:
        ArgumentInvalid: It is of another type, None included, or an int of more than 64 bits.
    """
    item = getattr(value, "item", None)
    if callable(item) and not isinstance(value, bytes | str):
        value = item()
    match value:
        case bool() | float() | str() | bytes():
            return value
        case int() if _INTEGER_MIN <= value <= _INTEGER_MAX:
            return value
        case int():
            raise ArgumentInvalid(f"{value} does not fit into 64 bits")
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal() if value.is_finite():
            return format(value, "f")
    raise ArgumentInvalid(
        f"a {type(value).__name__} ({value!r}) cannot be compared with a column; "
        "use bool, int, float, str, bytes, Decimal, date or datetime, and is_null() for nulls"
    )


def predicate_to_proto(predicate: Predicate) -> pb.Predicate:
    """Write a predicate as its message."""
    return pb.Predicate(
        column=predicate.column,
        operator=predicate.operator.value,
        literals=[_literal_to_proto(value) for value in predicate.literals],
    )


def predicate_from_proto(message: pb.Predicate) -> Predicate:
    """Read a predicate.

    Raises:
        ArgumentInvalid: Its operator is not known here, a literal is empty, or their number is wrong.
    """
    try:
        operator = Operator(message.operator)
    except ValueError:
        raise ArgumentInvalid(
            f"the filter on column {message.column!r} has operator {message.operator}, "
            "which this server does not know"
        ) from None
    literals = tuple(_literal_from_proto(message.column, each) for each in message.literals)
    return Predicate(message.column, operator, literals)


class Filter:
    """Predicates bound to a schema: knows the columns it needs and tells which rows pass.

    Args:
        predicates: All of them must be true of a row.
        schema: Of the table; every predicate's column is looked up in it.

    Raises:
        ColumnNotFound: A predicate names a column that the schema has not.
        ArgumentInvalid: A literal does not fit its column's type.
    """

    def __init__(self, predicates: Sequence[Predicate], schema: pa.Schema) -> None:
        self._terms = [(each, _bind(each, schema)) for each in predicates]
        self.columns: tuple[str, ...] = tuple(dict.fromkeys(each.column for each in predicates))
        """The columns that `mask` looks at, each once."""

    def __bool__(self) -> bool:
        return bool(self._terms)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Tell for each row whether it passes.

        Args:
            batch: Has at least `columns`, by name.

        Returns:
            One boolean a row, none of them null.
        """
        masks = [
            _evaluate(predicate, literals, batch.column(predicate.column))
            for predicate, literals in self._terms
        ]
        if not masks:
            return pa.repeat(pa.scalar(True), batch.num_rows)
        return functools.reduce(pc.and_, masks)


def _bind(predicate: Predicate, schema: pa.Schema) -> list[pa.Scalar]:
    index = schema.get_field_index(predicate.column)
    if index < 0:
        known = ", ".join(schema.names)
        raise ColumnNotFound(
            f"the filter names column {predicate.column!r}, which the table has not; it has {known}"
        )
    field = schema.field(index)
    return [_cast(value, field) for value in predicate.literals]


def _cast(value: LiteralValue, field: pa.Field) -> pa.Scalar:
    try:
        if _comparable(value, field.type):
            if isinstance(value, str) and not _is_text(field.type):
                return pa.scalar(value, pa.string()).cast(field.type)
            if isinstance(value, int) and pa.types.is_decimal(field.type):
                return pa.scalar(decimal.Decimal(value), field.type)
            if isinstance(value, float) and pa.types.is_integer(field.type):
                return pa.scalar(value, pa.float64()).cast(field.type)
            return pa.scalar(value, field.type)
    except (pa.ArrowException, ValueError, OverflowError, TypeError, decimal.InvalidOperation):
        pass  # Falls through to the one message that says what does not fit what.
    raise ArgumentInvalid(
        f"the filter compares column {field.name!r} of type {field.type} with {value!r}, which does not fit it"
    )


def _comparable(value: LiteralValue, kind: pa.DataType) -> bool:
    types = pa.types
    if isinstance(value, bool):
        return bool(types.is_boolean(kind))
    if isinstance(value, int):
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
    if isinstance(value, float):
        return bool(types.is_integer(kind) or types.is_floating(kind))
    if isinstance(value, bytes):
        return bool(types.is_binary(kind) or types.is_large_binary(kind))
    return bool(_is_text(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _evaluate(predicate: Predicate, literals: Sequence[pa.Scalar], column: pa.Array) -> pa.BooleanArray:
    if predicate.operator is Operator.IS_NULL:
        return pc.is_null(column)
    if predicate.operator is Operator.IS_NOT_NULL:
        return pc.is_valid(column)
    if predicate.operator is Operator.IN:
        return pc.fill_null(_is_in(column, literals), False)
    return pc.fill_null(pc.call_function(_COMPARISONS[predicate.operator], [column, literals[0]]), False)


def _is_in(column: pa.Array, literals: Iterable[pa.Scalar]) -> pa.BooleanArray:
    if pa.types.is_floating(column.type):
        # The hash lookup of is_in takes NaN for equal to NaN and -0.0 for other than 0.0.
        return functools.reduce(pc.or_, [pc.equal(column, each) for each in literals])
    return pc.is_in(column, value_set=pa.array([each.as_py() for each in literals], column.type))


def _literal_to_proto(value: LiteralValue) -> pb.Literal:
    if isinstance(value, bool):
        return pb.Literal(boolean=value)
    if isinstance(value, int):
        return pb.Literal(integer=value)
    if isinstance(value, float):
        return pb.Literal(number=value)
    if isinstance(value, str):
        return pb.Literal(text=value)
    return pb.Literal(binary=value)


def _literal_from_proto(column: str, message: pb.Literal) -> LiteralValue:
    kind = message.WhichOneof("value")
    if kind is None:
        raise ArgumentInvalid(
            f"the filter on column {column!r} has a literal without a value; use IS_NULL to find nulls"
        )
    value: LiteralValue = getattr(message, kind)
    return value
