"""Spark's filters, as conditions that the server evaluates.

Spark evaluates every filter again, so a condition may keep a row too many but must never drop one that Spark
would keep. That is why a filter is left to Spark if its literal is not exactly a value of the column's type, and
why comparisons that are true of NaN in Spark (where NaN is the largest number and equal to itself) are not asked
of a server to which NaN compares as nothing.

Pure: knows no network.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import datasource as spark

from scanner import Condition, col

PREDICATES_MAX = 32
"""Conditions pushed with one scan; the server refuses a filter of more than twice as many."""

LITERALS_MAX = 1_000
"""Literals pushed in one IN list; a longer one is left to Spark."""

_Comparison = (
    spark.EqualTo
    | spark.EqualNullSafe
    | spark.GreaterThan
    | spark.GreaterThanOrEqual
    | spark.LessThan
    | spark.LessThanOrEqual
)


def to_conditions(filters: Iterable[spark.Filter], schema: pa.Schema) -> tuple[Condition, ...]:
    """The conditions that the server can evaluate for Spark.

    Args:
        filters: All of them must hold of a row.
        schema: Of the table, in its own types.

    Returns:
        Conditions that hold wherever all of `filters` do, at most `PREDICATES_MAX`.
    """
    found = (to_condition(each, schema) for each in filters)
    return tuple([condition for condition in found if condition is not None][:PREDICATES_MAX])


def to_condition(each: spark.Filter, schema: pa.Schema) -> Condition | None:
    """The condition that says the same as one filter; None if the server has none that is exact."""
    match each:
        case spark.IsNull((name,)) | spark.EqualNullSafe((name,), None) if name in schema.names:
            return col(name).is_null()
        case spark.IsNotNull((name,)) if name in schema.names:
            return col(name).is_not_null()
        case spark.Not(spark.IsNull(path)):
            return to_condition(spark.IsNotNull(path), schema)
        case spark.Not(spark.IsNotNull(path)):
            return to_condition(spark.IsNull(path), schema)
        case spark.In((name,), values) if name in schema.names:
            return _in(name, values, schema.field(name).type)
        case spark.Not(spark.EqualTo((name,), value)) if name in schema.names:
            return col(name) != value if _is_exact(value, schema.field(name).type) else None
        case (
            spark.EqualTo((name,), value)
            | spark.EqualNullSafe((name,), value)
            | spark.GreaterThan((name,), value)
            | spark.GreaterThanOrEqual((name,), value)
            | spark.LessThan((name,), value)
            | spark.LessThanOrEqual((name,), value)
        ) if name in schema.names and _is_exact(value, schema.field(name).type):
            return _compare(each, name, value, schema.field(name).type)
    return None


def _compare(each: spark.Filter, name: str, value: object, kind: pa.DataType) -> Condition | None:
    column = col(name)
    match each:
        case spark.EqualTo() | spark.EqualNullSafe():
            return column == value
        case spark.LessThan():
            return column < value
        case spark.LessThanOrEqual():
            return column <= value
        case spark.GreaterThan() if not pa.types.is_floating(kind):
            return column > value
        case spark.GreaterThanOrEqual() if not pa.types.is_floating(kind):
            return column >= value
    return None


def _in(name: str, values: tuple[object, ...], kind: pa.DataType) -> Condition | None:
    # `x IN (1, NULL)` is true where x = 1 and never else, so a null in the list selects nothing.
    literals = [value for value in values if value is not None]
    if not 1 <= len(literals) <= LITERALS_MAX or not all(_is_exact(value, kind) for value in literals):
        return None
    return col(name).isin(literals)


def _is_exact(value: object, kind: pa.DataType) -> bool:
    """Whether a literal is a value of the column's type, so that both sides compare the same two values."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        return False
    if isinstance(value, datetime.datetime) and (value.tzinfo is None) != (getattr(kind, "tz", None) is None):
        return False
    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
