"""Spark's filters become server conditions only where both mean exactly the same."""

import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark

from scanner import Condition, col
from spark_source.filters import LITERALS_MAX, PREDICATES_MAX, to_condition, to_conditions

UTC = datetime.UTC
NOON = datetime.datetime(2013, 7, 1, 12)
SCHEMA = pa.schema(
    [
        ("i", pa.int16()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("t", pa.bool_()),
        ("x", pa.decimal128(8, 2)),
        ("d", pa.date32()),
        ("n", pa.timestamp("us")),
        ("z", pa.timestamp("s", tz="Europe/Berlin")),
    ]
)


@pytest.mark.parametrize(
    ("each", "condition"),
    [
        (spark.EqualTo(("i",), 5), col("i") == 5),
        (spark.EqualNullSafe(("i",), 5), col("i") == 5),
        (spark.EqualNullSafe(("i",), None), col("i").is_null()),
        (spark.Not(spark.EqualTo(("i",), 5)), col("i") != 5),
        (spark.LessThan(("i",), 5), col("i") < 5),
        (spark.LessThanOrEqual(("i",), 5), col("i") <= 5),
        (spark.GreaterThan(("i",), 5), col("i") > 5),
        (spark.GreaterThanOrEqual(("i",), 5), col("i") >= 5),
        (spark.IsNull(("i",)), col("i").is_null()),
        (spark.IsNotNull(("i",)), col("i").is_not_null()),
        (spark.Not(spark.IsNull(("i",))), col("i").is_not_null()),
        (spark.Not(spark.IsNotNull(("i",))), col("i").is_null()),
        (spark.In(("i",), (1, 2, None)), col("i").isin([1, 2])),
        (spark.EqualTo(("f",), 0.5), col("f") == 0.5),
        (spark.LessThan(("f",), math.inf), col("f") < math.inf),
        (spark.EqualTo(("s",), "JFK"), col("s") == "JFK"),
        (spark.GreaterThan(("b",), b"\x00"), col("b") > b"\x00"),
        (spark.EqualTo(("t",), True), col("t") == True),  # noqa: E712
        (spark.LessThan(("x",), Decimal("5.50")), col("x") < Decimal("5.50")),
        (spark.EqualTo(("d",), datetime.date(2013, 7, 1)), col("d") == datetime.date(2013, 7, 1)),
        (spark.LessThan(("n",), NOON), col("n") < NOON),
        (spark.LessThan(("z",), NOON.replace(tzinfo=UTC)), col("z") < NOON.replace(tzinfo=UTC)),
    ],
    ids=lambda value: str(value) if isinstance(value, spark.Filter) else "",
)
def test_pushed(each: spark.Filter, condition: Condition) -> None:
    """A filter whose literal is a value of the column's type becomes the condition of the same name."""
    assert to_condition(each, SCHEMA) == condition


@pytest.mark.parametrize(
    "each",
    [
        spark.GreaterThan(("f",), 0.5),  # NaN is the largest number to Spark, and no number to the server.
        spark.GreaterThanOrEqual(("f",), 0.5),
        spark.EqualTo(("f",), math.nan),
        spark.In(("f",), (1.0, math.nan)),
        spark.EqualTo(("g",), 0.1),  # No float32 is 0.1.
        spark.EqualTo(("i",), 40_000),  # No int16 is that large.
        spark.EqualTo(("i",), None),
        spark.EqualTo(("i",), True),
        spark.EqualTo(("t",), 1),
        spark.EqualTo(("x",), Decimal("5.505")),
        spark.LessThan(("n",), NOON.replace(tzinfo=UTC)),
        spark.LessThan(("z",), NOON),
        spark.LessThan(("z",), NOON.replace(microsecond=1, tzinfo=UTC)),  # The column has whole seconds.
        spark.EqualTo(("i", "j"), 5),
        spark.EqualTo(("unknown",), 5),
        spark.IsNull(("unknown",)),
        spark.IsNotNull(("i", "j")),
        spark.In(("unknown",), (1,)),
        spark.In(("i",), (None,)),
        spark.In(("i",), tuple(range(LITERALS_MAX + 1))),
        spark.Not(spark.In(("i",), (1, 2))),
        spark.Not(spark.EqualTo(("i",), None)),
        spark.Not(spark.LessThan(("i",), 5)),
        spark.StringStartsWith(("s",), "a"),
        spark.StringContains(("s",), "a"),
        spark.StringEndsWith(("s",), "a"),
    ],
    ids=str,
)
def test_left_to_spark(each: spark.Filter) -> None:
    """What the server has no exact word for is not asked of it."""
    assert to_condition(each, SCHEMA) is None


def test_conjunction() -> None:
    """Of several filters those that can be pushed are, and the rest is left out."""
    filters = [spark.IsNotNull(("i",)), spark.StringStartsWith(("s",), "a"), spark.EqualTo(("i",), 5)]
    assert to_conditions(filters, SCHEMA) == (col("i").is_not_null(), col("i") == 5)


def test_no_more_than_the_server_takes() -> None:
    """Filters past the bound are left to Spark instead of being refused by the server."""
    filters = [spark.LessThan(("i",), limit) for limit in range(PREDICATES_MAX + 10)]
    assert len(to_conditions(filters, SCHEMA)) == PREDICATES_MAX
