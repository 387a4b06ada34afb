"""Spark finds the format by itself, quickly, and is none the worse for it where nobody uses it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pyspark_weir
import weir.spark
from scanner.sync import connect
from spark_source import WeirDataSource
from tests.spark_source.frames import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server import RunningServer

HEAVY = ("google.protobuf", "numpy", "pandas", "pyarrow", "scanner.client", "sqlglot", "transport", "trio")


def test_the_format_has_a_name() -> None:
    """What Spark takes from the module that it finds is the data source, under the name of the format."""
    assert pyspark_weir.DefaultSource is WeirDataSource
    assert pyspark_weir.DefaultSource.name() == "weir"


def test_finding_it_imports_little() -> None:
    """Spark has 10 s for all the modules it looks into: ours brings neither Arrow nor a client."""
    program = f"import sys, pyspark_weir; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
def test_without_being_registered(spark: SparkSession, server: RunningServer) -> None:
    """A session that was told nothing reads the format, in SQL too; telling it all the same changes nothing."""
    rows = pa.table({"id": range(10)})
    with connect(server.endpoint) as client:
        client.create_table("found", rows.schema, primary_key=["id"], buckets=2).write(rows)
    assert read(spark, server, "found").count() == 10
    view = f"CREATE OR REPLACE TEMPORARY VIEW found USING weir OPTIONS (endpoint '{server.endpoint}', table 'found')"
    spark.sql(view)
    assert spark.sql("SELECT sum(id) AS s FROM found").collect()[0].s == 45
    weir.spark.register(spark)
    assert read(spark, server, "found").count() == 10
