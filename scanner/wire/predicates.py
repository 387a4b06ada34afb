"""Messages of filters, to and from the trees of `scanner.data.filters`. Pure."""

from __future__ import annotations

import decimal

from scanner.data.filters import Operator, Predicate
from scanner.data.literals import LiteralValue, Temporal, decimal_literal
from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb


def predicate_to_proto(predicate: Predicate) -> pb.Predicate:
    """Write a predicate as its message."""
    return pb.Predicate(
        column=predicate.column,
        operator=f"OPERATOR_{predicate.operator.name}",
        literals=[literal_to_proto(value) for value in predicate.literals],
        operands=[predicate_to_proto(each) for each in predicate.operands],
    )


def predicate_from_proto(message: pb.Predicate) -> Predicate:
    """Read a predicate.

    Args:
        message: From the peer. Protobuf reads none that is nested more than a hundred times.

    Raises:
        ArgumentInvalid: An operator is not known here, a literal cannot be read, or a part makes no sense.
    """
    try:
        operator = Operator(message.operator)
    except ValueError:
        raise ArgumentInvalid(
            f"the filter on column {message.column!r} has operator {message.operator}, "
            "which this server does not know"
        ) from None
    literals = tuple(literal_from_proto(message.column, each) for each in message.literals)
    operands = tuple(predicate_from_proto(each) for each in message.operands)
    return Predicate(message.column, operator, literals, operands)


def literal_to_proto(value: LiteralValue) -> pb.Literal:
    """Write a literal as its message."""
    match value:
        case bool():
            return pb.Literal(boolean=value)
        case int():
            return pb.Literal(integer=value)
        case float():
            return pb.Literal(number=value)
        case str():
            return pb.Literal(text=value)
        case bytes():
            return pb.Literal(binary=value)
        case decimal.Decimal():
            return pb.Literal(decimal=str(value))
        case Temporal():
            return pb.Literal(temporal=value.text)


def literal_from_proto(column: str, message: pb.Literal) -> LiteralValue:
    """Read a literal.

    Raises:
        ArgumentInvalid: It has no value, or one that cannot be read.
    """
    kind = message.WhichOneof("value")
    if kind is None:
        raise ArgumentInvalid(
            f"the filter on column {column!r} has a literal without a value; use IS_NULL to find nulls"
        )
    if kind == "decimal":
        return decimal_literal(message.decimal)
    if kind == "temporal":
        return Temporal(message.temporal)
    value: LiteralValue = getattr(message, kind)
    return value
