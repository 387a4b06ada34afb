"""DataFrames of the tests' tables, and what Spark says when one fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server import RunningServer


def read(spark: SparkSession, server: RunningServer, table: str, **options: object) -> DataFrame:
    """A DataFrame of the table."""
    reader = spark.read.format("weir").option("endpoint", server.endpoint).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def last_line(error: PySparkException) -> str:
    """The line of Spark's message that is ours: the last but for the SQLSTATE."""
    return [line for line in str(error).splitlines() if line.strip() and "SQLSTATE" not in line][-1]


def table_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's table has: all of a session share a server."""
    module = request.node.nodeid.partition("::")[0].removesuffix(".py").removeprefix("tests/spark_source/")
    return re.sub(r"\W", "-", f"{module}-{request.node.name}")[:128]
