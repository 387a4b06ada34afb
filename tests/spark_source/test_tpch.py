"""TPC-H at a hundredth: queries over tables of weir answer as they do over Parquet, and rows come out the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.tpch.data import PRIMARY_KEYS, generate, load, parquet_file, read_rows, table_schema
from bench.tpch.queries import IN_EVERY_MODE, Answer, ask, difference
from bench.tpch.views import parquet_views, weir_views
from scanner.sync import connect
from spark_source.options import MODES
from tests.spark_source.frames import read
from tests.support.nightly import everyday
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket, pytest.mark.slow]

SCALE: Final = 0.01
BUCKETS: Final = 2
SOME_MODES: Final = everyday(("push", "session", "asof"), nightly=MODES)
IN_OTHER_MODES: Final = everyday((3,), nightly=IN_EVERY_MODE)
"""Than push: conditions, aggregates and a join of three tables; `python -m bench tpch` asks all five in each mode."""
USED: Final = ("customer", "orders", "lineitem", "part", "partsupp")
"""By the queries, and the key of two columns."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables as Parquet."""
    directory = tmp_path_factory.mktemp("tpch")
    generate(directory, SCALE, USED)
    return directory


@pytest.fixture(scope="module")
def tables(server: RunningServer, generated: Path) -> None:
    """The tables in weir."""
    with connect(server.endpoint) as client:
        for table in USED:
            for _ in load(client, generated, table, BUCKETS):
                pass


@pytest.fixture(scope="module")
def expected(spark: SparkSession, generated: Path) -> Mapping[int, Answer]:
    """What Parquet answers."""
    views = parquet_views(spark, generated, USED)
    return {query: ask(views, query, SCALE) for query in IN_EVERY_MODE}


@pytest.mark.parametrize("mode", SOME_MODES)
def test_answers_are_those_of_parquet(
    spark: SparkSession, server: RunningServer, tables: None, expected: Mapping[int, Answer], mode: str
) -> None:
    """Queries over views of each mode, every digit of their decimals included."""
    asked = IN_EVERY_MODE if mode == "push" else IN_OTHER_MODES
    views = weir_views(spark, server.endpoint, USED, {"mode": mode})
    differences = {query: difference(expected[query], ask(views, query, SCALE)) for query in asked}
    assert differences == dict.fromkeys(asked)
    assert all(len(answer) > 0 for answer in expected.values())


def test_parquet_that_spark_writes(
    spark: SparkSession, server: RunningServer, generated: Path, tables: None, tmp_path: Path
) -> None:
    """The largest table, read by Spark and written to Parquet, has the generated rows, in the generated types."""
    assert_generated(read(spark, server, "lineitem"), generated, "lineitem", tmp_path / "parquet")


def test_parquet_through_spark_into_a_table_and_back(
    spark: SparkSession, server: RunningServer, generated: Path, tmp_path: Path
) -> None:
    """What Spark reads from Parquet and writes to a table comes back as the rows it was, in the types they had."""
    with connect(server.endpoint) as client:
        schema, key = table_schema(generated, "partsupp"), list(PRIMARY_KEYS["partsupp"])
        client.create_table("saved_partsupp", schema, primary_key=key, buckets=BUCKETS)
    options = {"endpoint": server.endpoint, "table": "saved_partsupp"}
    frame = spark.read.parquet(str(parquet_file(generated, "partsupp")))
    frame.write.format("weir").mode("append").options(**options).save()
    assert_generated(read(spark, server, "saved_partsupp"), generated, "partsupp", tmp_path / "parquet")


def assert_generated(frame: DataFrame, generated: Path, table: str, path: Path) -> None:
    """Fail unless the Parquet that Spark makes of the frame has the rows and types of a generated table."""
    frame.coalesce(1).write.parquet(str(path))
    (file,) = path.glob("*.parquet")
    rows, loaded = pq.read_table(file), pa.concat_tables(read_rows(generated, table))
    order = [(name, "ascending") for name in PRIMARY_KEYS[table]]
    assert rows.schema.types == loaded.schema.types
    assert rows.sort_by(order).equals(loaded.sort_by(order).cast(rows.schema))
