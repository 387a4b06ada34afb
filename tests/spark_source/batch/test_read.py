"""Reading a table through Spark, from a real server: every row, every type, in every mode, and nothing left open."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from scanner.sync import Client, connect
from spark_source.batch.statistics import BucketReport
from spark_source.options import AS_OF_MODES, MODES
from spark_source.schema import STATISTICS_COLUMN
from tests.spark_source.frames import last_line, read
from tests.support.nightly import NIGHTLY
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

BUCKETS = 3
ROWS = 20_000
SOME_MODES = MODES if NIGHTLY else ("push", "session", "asof")
"""Where what is asked is asked of the client: token and cursor go by pages as asof does."""
HOLDING_MODES = MODES if NIGHTLY else ("push", "session")
"""Where the server holds something between two batches: by token as for a session, by cursor and asof nothing."""


def numbers(rows: int) -> pa.Table:
    """Rows with a key, a nullable group and a text."""
    return pa.table(
        {
            "k": pa.array(range(rows), pa.int64()),
            "g": pa.array([None if row % 7 == 0 else row % 5 for row in range(rows)], pa.int32()),
            "s": pa.array([f"row {row:08d}" for row in range(rows)], pa.string()),
        }
    )


@pytest.fixture(scope="module")
def table(server: RunningServer) -> str:
    """A table of `ROWS` numbers in `BUCKETS` buckets."""
    rows = numbers(ROWS)
    with connect(server.endpoint) as client:
        client.create_table("numbers", rows.schema, primary_key=["k"], buckets=BUCKETS).write(rows)
    return "numbers"


@pytest.mark.parametrize("mode", MODES)
def test_full_read(spark: SparkSession, server: RunningServer, table: str, mode: str) -> None:
    """Every row that was written arrives once, in as many partitions as there are buckets."""
    frame = read(spark, server, table, mode=mode)
    assert frame.schema.simpleString() == "struct<k:bigint,g:int,s:string>"
    assert [field.nullable for field in frame.schema.fields] == [False, True, True]
    assert frame.rdd.getNumPartitions() == BUCKETS
    assert sorted(map(tuple, frame.collect())) == [tuple(row.values()) for row in numbers(ROWS).to_pylist()]


@pytest.mark.parametrize("mode", SOME_MODES)
def test_tiny_credit_and_pages(spark: SparkSession, server: RunningServer, table: str, mode: str) -> None:
    """However little may be under way, all rows come."""
    frame = read(spark, server, table, mode=mode, creditBytes="4k", pageBytes="16k", pageDepth=0)
    assert frame.count() == ROWS


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_splits(spark: SparkSession, server: RunningServer, client: Client, table: str, mode: str) -> None:
    """Buckets that are cut give more tasks, and the same rows."""
    client.checkpoint(table)
    frame = read(spark, server, table, mode=mode, splits=4)
    assert BUCKETS < frame.rdd.getNumPartitions() <= 4 * BUCKETS
    assert sorted(map(tuple, frame.collect())) == [tuple(row.values()) for row in numbers(ROWS).to_pylist()]


@pytest.mark.parametrize("mode", ["push", "asof"])
def test_as_of(spark: SparkSession, server: RunningServer, client: Client, mode: str) -> None:
    """A DataFrame as of offsets of the log is one state, however often it is read and whatever is written."""
    rows = numbers(1_000)
    table = client.create_table(f"past_{mode}", rows.schema, primary_key=["k"], buckets=2)
    table.write(rows)
    offsets = ",".join(f"{each.bucket}:{each.end_offset}" for each in table.offsets())
    table.delete([(key,) for key in range(500)])
    frame = read(spark, server, table.name, mode=mode, asOf=offsets)
    assert frame.join(frame.withColumnRenamed("s", "again"), "k").count() == 1_000
    assert read(spark, server, table.name, mode=mode).count() == 500


def test_columns(spark: SparkSession, server: RunningServer, table: str) -> None:
    """The columns that are named come, in the order in which they are named."""
    frame = read(spark, server, table, columns="s, k")
    assert frame.columns == ["s", "k"]
    assert frame.where("k = 17").collect() == [("row 00000017", 17)]


def test_user_schema(spark: SparkSession, server: RunningServer, table: str) -> None:
    """A schema given by the user picks columns too, and may call a key nullable."""
    reader = spark.read.format("weir").option("endpoint", server.endpoint).option("table", table)
    assert reader.schema("g INT, k BIGINT").load().where("k = 1").collect() == [(1, 1)]


def test_user_schema_of_another_type(spark: SparkSession, server: RunningServer, table: str) -> None:
    """A schema that the table cannot deliver is refused while planning, with what to do."""
    reader = spark.read.format("weir").option("endpoint", server.endpoint).option("table", table)
    with pytest.raises(AnalysisException) as caught:
        reader.schema("k INT").load().collect()
    assert last_line(caught.value) == (
        "spark_source.errors.SourceSchemaError: "
        "column 'k' is bigint, not int: read it as it is and cast it in Spark"
    )


def test_empty_table(spark: SparkSession, server: RunningServer, client: Client) -> None:
    """A table without rows is a DataFrame without rows; its buckets still report their log offset."""
    client.create_table("empty", numbers(0).schema, primary_key=["k"], buckets=2)
    assert read(spark, server, "empty").collect() == []
    reports = [
        BucketReport.from_json(row[STATISTICS_COLUMN])
        for row in read(spark, server, "empty", statistics=True).collect()
    ]
    assert [(report.bucket, report.rows, report.log_offset) for report in reports] == [(0, 0, 0), (1, 0, 0)]


def test_updates_and_deletes(spark: SparkSession, server: RunningServer, client: Client) -> None:
    """What was updated before the read is there as it is now, what was deleted is not."""
    rows = numbers(10)
    table = client.create_table("changed", rows.schema, primary_key=["k"], buckets=2)
    table.write(rows)
    table.write(rows.slice(2, 1).set_column(2, "s", pa.array(["changed"])))
    table.delete(rows.slice(5, 5).select(["k"]))
    frame = read(spark, server, "changed")
    assert sorted((row.k, row.s) for row in frame.collect()) == [
        (0, "row 00000000"),
        (1, "row 00000001"),
        (2, "changed"),
        (3, "row 00000003"),
        (4, "row 00000004"),
    ]


def test_unknown_option(spark: SparkSession, server: RunningServer, table: str) -> None:
    """An unknown option is refused at load, with the nearest and with all of them."""
    with pytest.raises(AnalysisException) as caught:
        read(spark, server, table, creditByte=1)
    line = last_line(caught.value)
    assert line.startswith(
        "spark_source.errors.SourceOptionError: unknown option 'creditbyte'; did you mean 'creditBytes'?"
    )
    assert "the options are endpoint, table, mode" in line


def test_load_with_a_path(spark: SparkSession, server: RunningServer, table: str) -> None:
    """`load(name)` is a mistake that is explained."""
    with pytest.raises(AnalysisException, match="name it with option 'table'"):
        spark.read.format("weir").option("endpoint", server.endpoint).load(table)


def test_unknown_table(spark: SparkSession, server: RunningServer, table: str) -> None:
    """An unknown table is one line that lists those there are."""
    with pytest.raises(AnalysisException) as caught:
        read(spark, server, "nubmers")
    line = last_line(caught.value)
    assert line.startswith("scanner.errors.TableNotFound: ")
    assert "nubmers" in line
    assert table in line


def test_unknown_column(spark: SparkSession, server: RunningServer, table: str) -> None:
    """An unknown column is one line that lists those there are."""
    with pytest.raises(AnalysisException) as caught:
        read(spark, server, table, columns="k,w")
    assert (
        last_line(caught.value)
        == "scanner.errors.ColumnNotFound: table numbers has no column 'w'. It has: k, g, s"
    )


def test_nobody_listens(spark: SparkSession) -> None:
    """An endpoint without a server is one line that names it, after one frame and no cause."""
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("weir").option("endpoint", "127.0.0.1:1").option("table", "orders").load()
    line = last_line(caught.value)
    assert line.startswith("scanner.errors.ServerUnavailable: ")
    assert "127.0.0.1:1" in line
    assert str(caught.value).count("\n  File ") == 1
    assert "exception" not in str(caught.value).lower().replace("pysparkexception", "")


def test_catalog_tables_are_refused(spark: SparkSession, server: RunningServer, table: str) -> None:
    """`CREATE TABLE ... USING weir`, which Spark cannot do, is refused with what to do instead."""
    options = f"OPTIONS (endpoint '{server.endpoint}', table '{table}')"
    for columns in ("", "(k BIGINT)"):
        with pytest.raises(AnalysisException, match=r"USING weir does not work.*use CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE refused {columns} USING weir {options}")
            spark.sql("SELECT * FROM refused").collect()
    spark.sql("DROP TABLE refused")


@pytest.mark.parametrize("mode", HOLDING_MODES)
def test_early_stop_frees_the_server(
    spark: SparkSession, server: RunningServer, table: str, mode: str
) -> None:
    """When Spark has enough rows, nothing of the scan stays open on the server."""
    frame = read(spark, server, table, mode=mode, creditBytes="64k", pageBytes="64k")
    assert len(frame.take(5)) == 5
    assert frame.limit(5).count() == 5
    server.wait_until(lambda running: running.statistics().iterators_open == 0)


@pytest.mark.parametrize("mode", HOLDING_MODES)
def test_failed_task_frees_the_server(
    spark: SparkSession, server: RunningServer, table: str, mode: str
) -> None:
    """When the query fails half-way through a scan, nothing of the scan stays open on the server."""
    frame = read(spark, server, table, mode=mode, creditBytes="64k", pageBytes="64k")
    with pytest.raises(PySparkException, match="enough of this"):
        frame.select(
            F.when(F.col("k") > 100, F.raise_error(F.lit("enough of this"))).otherwise(F.col("k"))
        ).collect()
    server.wait_until(lambda running: running.statistics().iterators_open == 0)


@pytest.mark.parametrize("mode", MODES)
def test_statistics(
    spark: SparkSession, server: RunningServer, client: Client, table: str, mode: str
) -> None:
    """With statistics each bucket ends with one report, on the rows that are in its partition."""
    frame = read(spark, server, table, mode=mode, statistics=True)
    rows = frame.select(F.spark_partition_id().alias("partition"), "*").collect()
    reports = [
        BucketReport.from_json(row[STATISTICS_COLUMN]) for row in rows if row[STATISTICS_COLUMN] is not None
    ]
    assert [report.bucket for report in reports] == list(range(BUCKETS))
    assert sum(report.rows for report in reports) == ROWS
    ends = {bucket: end for bucket, _, end in client.table(table).offsets()}
    for report in reports:
        in_partition = [row for row in rows if row.partition == report.bucket]
        assert in_partition[-1][STATISTICS_COLUMN] is not None
        assert len(in_partition) == report.rows + 1
        assert report.log_offset == ends[report.bucket]
        assert report.bytes_received > 0
        assert report.requests >= 1
        assert report.first_batch_s is not None


@pytest.mark.parametrize("mode", ["push", "asof"])
def test_retried_tasks_read_what_was_planned(
    spark: SparkSession, server: RunningServer, client: Client, mode: str
) -> None:
    """A task that fails after somebody wrote, and runs again, reads what its first attempt read."""
    rows = numbers(1_000)
    table = client.create_table(f"retried_{mode}", rows.schema, primary_key=["k"], buckets=BUCKETS)
    table.write(rows)
    endpoint, name = server.endpoint, table.name

    def write_and_fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            with connect(endpoint) as writer:
                part = context.partitionId()
                writer.table(name).write(pa.table({"k": [5_000 + part], "g": [9], "s": ["new"]}, rows.schema))
                writer.table(name).delete([(key,) for key in range(part, 1_000, 7)])
            raise RuntimeError("the first attempt of every task fails at its end")

    frame = read(spark, server, name, mode=mode)
    read_back = frame.mapInArrow(write_and_fail_at_first, frame.schema).toArrow()
    assert read_back.sort_by("k").to_pydict() == rows.to_pydict()
    assert table.new_scan().to_arrow().num_rows < 1_000


def test_retried_tasks_count_once(spark: SparkSession, server: RunningServer, table: str) -> None:
    """When a task fails after its scan and runs again, its rows and its report are there once."""

    def fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of every task fails at its end")

    frame = read(spark, server, table, statistics=True)
    result = frame.mapInArrow(fail_at_first, frame.schema).agg(
        F.count("k"), F.collect_list(STATISTICS_COLUMN)
    )
    counted, texts = result.collect()[0]
    reports = [BucketReport.from_json(text) for text in texts]
    assert counted == sum(report.rows for report in reports) == ROWS
    assert sorted(report.bucket for report in reports) == list(range(BUCKETS))
