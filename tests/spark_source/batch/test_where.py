"""Option ``where`` against Spark's own answers: both are asked the same random conditions of the same rows."""

import datetime
import math
import random
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from scanner.sync import Client
from tests.spark_source.frames import read, table_name
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

ROWS: Final = 60
CONDITIONS: Final = 48
UTC: Final = datetime.UTC

# Numbers that a double does not hold are left out: weir compares them as they are, Spark as the nearest double. So is
# NaN, which is no number to weir, and the largest one to Spark; and what is beyond a BIGINT, where Spark 4.3 takes
# `NOT (null >= 99999999999999999999)` for true.
CELLS: Final[dict[str, tuple[pa.DataType, list[object], list[str]]]] = {
    "i8": (
        pa.int8(),
        [-128, -1, 0, 1, 5, 127],
        ["5", "300", "-129", "2.5", "0", "-1", "1e2", "5.0", "-0.0", "2147483648"],
    ),
    "i64": (
        pa.int64(),
        [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1],
        [
            "0",
            "9007199254740993",
            "9223372036854775807",
            "-9223372036854775808",
            "0.5",
            "99999999999999999999",
        ],
    ),
    "f32": (
        pa.float32(),
        [0.1, -0.0, 0.0, 16777216.0, 1.5, math.inf, -math.inf],
        ["0.1", "16777217", "1.5", "0", "-0.0", "1e39", "1e-50"],
    ),
    "f64": (
        pa.float64(),
        [0.1, -0.0, 5e-324, 1e23, 1e308, math.inf, -math.inf, 2.5],
        ["0.1", "0", "1e23", "1e308", "5e-324", "2.5", "-7"],
    ),
    "x": (
        pa.decimal128(12, 4),
        [Decimal("1.2500"), Decimal("-0.0001"), Decimal(0), Decimal("99999999.9999")],
        ["1.25", "1.2500", "1.25001", "-0.0001", "0", "100000000", "99999999.99990001"],
    ),
    "d": (
        pa.date32(),
        [datetime.date(1, 1, 1), datetime.date(1582, 10, 4), datetime.date(1970, 1, 1), datetime.date.max],
        ["DATE '1970-01-01'", "DATE '1582-10-15'", "DATE '0001-01-01'", "DATE '9999-12-31'", "'1970-01-01'"],
    ),
    "tz": (
        pa.timestamp("us", tz="UTC"),
        [
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime.datetime(2013, 3, 10, 7, 30, tzinfo=UTC),
        ],
        ["TIMESTAMP '2013-03-10 02:30:00-05:00'", "TIMESTAMP '1969-12-31 23:59:59.999999Z'"],
    ),
    "s": (
        pa.string(),
        ["", "a", "A", "ab", "a%", "é", "e\u0301", "\U0001d4b3", "\uffff", "it's", " a", "a "],
        ["'a'", "''", "'A'", "'it''s'", "'é'", "'\U0001d4b3'", "'\uffff'", "'a '"],
    ),
    "b": (pa.binary(), [b"", b"\x00", b"\xff", b"a"], ["X''", "X'00'", "X'FF'", "X'61'"]),
    "t": (pa.bool_(), [True, False], ["true", "false"]),
}
"""Of every kind of column its type, cells, and what they are compared with."""


def rows(draw: random.Random) -> pa.Table:
    """Rows of these cells, every fifth of them null."""
    columns = {
        name: pa.array([None if draw.random() < 0.2 else draw.choice(cells) for _ in range(ROWS)], kind)
        for name, (kind, cells, _) in CELLS.items()
    }
    return pa.table({"k": pa.array(range(ROWS), pa.int64()), **columns})


def comparison(draw: random.Random) -> str:
    """One column and one or more values."""
    name = draw.choice(list(CELLS))
    values = [draw.choice(CELLS[name][2]) for _ in range(3)]
    operator = draw.choice(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
    negation = draw.choice(["", "NOT "])
    return draw.choice(
        [
            f"{name} {operator} {values[0]}",
            f"{values[0]} {operator} {name}",
            f"{name} {negation}IN ({', '.join(values[: draw.randint(1, 3)])})",
            f"{name} {negation}BETWEEN {values[0]} AND {values[1]}",
            f"{name} IS {negation}NULL",
            f"s {negation}LIKE '{draw.choice(['a', 'A', 'é', ''])}%'",
        ]
    )


def condition(draw: random.Random, depth: int) -> str:
    """Comparisons, joined and negated."""
    if depth == 0:
        return comparison(draw)
    if draw.random() < 0.3:
        return f"NOT ({condition(draw, depth - 1)})"
    return f"({condition(draw, depth - 1)}) {draw.choice(['AND', 'OR'])} ({condition(draw, depth - 1)})"


@pytest.mark.parametrize("seed", [1])
def test_conditions_mean_what_they_mean_in_spark(
    request: pytest.FixtureRequest, spark: SparkSession, server: RunningServer, client: Client, seed: int
) -> None:
    """Three-valued logic, values of other types, edges of every type: weir passes the rows that Spark passes."""
    draw = random.Random(seed)
    given = rows(draw)
    table = client.create_table(table_name(request), given.schema, primary_key=["k"], buckets=2)
    table.write(given)
    conditions = [condition(draw, depth) for depth in (0, 0, 1, 2) for _ in range(CONDITIONS // 4)]
    columns = [f"({text}) AS c{index}" for index, text in enumerate(conditions)]
    answers = read(spark, server, table.name).selectExpr("k", *columns).toArrow()
    for index, text in enumerate(conditions):
        passed = table.new_scan().select("k").where(text).to_arrow()["k"].to_pylist()
        assert sorted(passed) == sorted(answers.filter(answers[f"c{index}"])["k"].to_pylist()), text
    read_where = read(spark, server, table.name, where=conditions[-1], columns="k")
    assert {row.k for row in read_where.collect()} == set(passed)
