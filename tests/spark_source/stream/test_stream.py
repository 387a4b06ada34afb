"""Streams of changes in Spark: what arrives, in how many micro-batches, and again after a restart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark_source.frames import last_line, read, table_name
from tests.spark_source.key_values import contents, folded, kv_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from scanner.sync import Client, Table
    from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

BUCKETS = 2


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> Table:
    """A table of its own for each test, with a hundred rows."""
    table = client.create_table(table_name(request), kv_rows(0, 0).schema, primary_key=["k"], buckets=BUCKETS)
    table.write(kv_rows(0, 100))
    return table


class Query:
    """A query with a checkpoint, run with trigger AvailableNow as often as wanted; keeps its micro-batches by number.

    Args:
        spark: The session.
        server: To read from.
        table: Name of the table.
        directory: Of the checkpoint.
        options: Of the read, beside ``readChanges``.
    """

    def __init__(
        self, spark: SparkSession, server: RunningServer, table: str, directory: Path, **options: str
    ) -> None:
        self._spark = spark
        self._options = {"endpoint": server.endpoint, "table": table, "readChanges": "true"} | options
        self.directory = directory
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.fails_at: int | None = None
        """A micro-batch that fails after its rows were seen."""

    def run(self) -> None:
        """Start it, and wait for its end.

        Raises:
            StreamingQueryException: It failed.
        """
        query = (
            self._spark.readStream.format("weir")
            .options(**self._options)
            .load()
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(self.directory))
            .foreachBatch(self._keep)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(
            (row.asDict() for row in frame.collect()),
            key=lambda row: (row["k"] % BUCKETS, row["_log_offset"] or 0),
        )
        self.batches[batch_id] = rows
        if batch_id == self.fails_at:
            raise ValueError("as the test wants it")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of all micro-batches, in order."""
        return [row for _, rows in sorted(self.batches.items()) for row in rows]


def test_full_then_changes_is_the_table(
    spark: SparkSession, server: RunningServer, table: Table, tmp_path: Path
) -> None:
    """Rows, then updates and deletes, over restarts from the checkpoint; a limit cuts them into micro-batches."""
    query = Query(spark, server, table.name, tmp_path / "checkpoint", maxRowsPerTrigger="50")
    query.run()
    assert len(query.rows) == 100
    for number in range(4):
        table.write(kv_rows(number * 10, number * 10 + 30, f"{number}"))
    table.delete([(key,) for key in range(5)])
    query.run()
    assert len(query.batches) >= 3
    assert folded(query.rows) == contents(table)
    before = len(query.batches)
    query.run()
    assert len(query.batches) == before


def test_a_micro_batch_that_failed_comes_again(
    spark: SparkSession, server: RunningServer, table: Table, tmp_path: Path
) -> None:
    """The first and a later one: with the same rows, whatever was committed since."""
    query = Query(spark, server, table.name, tmp_path / "checkpoint")
    for failing, value in ((0, "b"), (2, "c")):
        query.fails_at = failing
        with pytest.raises(StreamingQueryException):
            query.run()
        seen = query.batches.pop(failing)
        table.write(kv_rows(0, 50, value))
        query.fails_at = None
        query.run()
        assert query.batches[failing] == seen
        table.write(kv_rows(0, 50, value + "2"))
    assert len(query.rows) == 100 + 100 + 100 + 100


def test_retention_that_has_passed_the_checkpoint(
    spark: SparkSession, server: RunningServer, table: Table, tmp_path: Path, client: Client
) -> None:
    """The query fails and names the range; with failOnDataLoss=false it goes on with what there is."""
    options = {"startingOffsets": "earliest", "leaseTtl": "0"}
    query = Query(spark, server, table.name, tmp_path / "checkpoint", **options)
    query.run()
    table.write(kv_rows(0, 100, "b"))
    for each in table.offsets():
        client.compact_log(table.name, before=each.end_offset, bucket=each.bucket)
    table.write(kv_rows(0, 100, "c"))
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    assert f"table {table.name}, bucket 0: the changes from offset" in str(caught.value)
    assert "set option failOnDataLoss to false" in str(caught.value)
    lenient = Query(spark, server, table.name, tmp_path / "checkpoint", failOnDataLoss="false", **options)
    lenient.run()
    assert {(row["k"], row["v"]) for row in lenient.rows if row["_change_type"] == "update_postimage"} == {
        (key, "c") for key in range(100)
    }


def test_a_stream_without_its_option(spark: SparkSession, server: RunningServer, table: Table) -> None:
    """One line says which one, when the query starts."""
    frame = spark.readStream.format("weir").options(endpoint=server.endpoint, table=table.name).load()
    with pytest.raises(StreamingQueryException, match="add option readChanges=true") as caught:
        frame.writeStream.format("noop").start().processAllAvailable()
    assert "UnboundLocalError" not in str(caught.value)


def test_changes_of_a_batch_read(spark: SparkSession, server: RunningServer, table: Table) -> None:
    """All that are kept, those between two offsets, and a wrong place in one line before a task starts."""
    ends = json.dumps({str(each.bucket): each.end_offset for each in table.offsets()})
    table.write(kv_rows(50, 150, "b"))
    changes = read(spark, server, table.name, readChanges="true")
    counts = {row["_change_type"]: row["count"] for row in changes.groupBy("_change_type").count().collect()}
    assert counts == {"insert": 150, "update_preimage": 50, "update_postimage": 50}
    later = read(spark, server, table.name, readChanges="true", startingOffsets=ends)
    assert later.count() == 150
    assert later.where("k < 60 AND _change_type = 'update_postimage'").count() == 10
    now = json.dumps({str(each.bucket): each.end_offset for each in table.offsets()})
    nothing = read(spark, server, table.name, readChanges="true", startingOffsets=now)
    assert nothing.count() == 0
    assert "_change_type" in nothing.toArrow().column_names
    with pytest.raises(Exception, match="is inside the commit") as caught:
        read(spark, server, table.name, readChanges="true", startingOffsets='{"0": 1, "1": 0}').count()
    assert "option 'startingOffsets' cannot be" in last_line(caught.value)  # type: ignore[arg-type]


def test_a_continuous_query_reads_on(
    spark: SparkSession, server: RunningServer, table: Table, tmp_path: Path
) -> None:
    """Rows that are committed while it runs; its progress names the logs' ends, and nothing is left of it."""
    seen: list[int] = []
    query = (
        spark.readStream.format("weir")
        .options(endpoint=server.endpoint, table=table.name, readChanges="true")
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.append(frame.count()))
        .start()
    )
    try:
        query.processAllAvailable()
        table.write(kv_rows(100, 130))
        query.processAllAvailable()
        table.delete([(key,) for key in range(10)])
        query.processAllAvailable()
        latest = json.loads(query.lastProgress["sources"][0]["latestOffset"])  # type: ignore[index]
    finally:
        query.stop()
    assert sum(seen) == 100 + 30 + 10
    assert {int(bucket): each["offset"] for bucket, each in latest["buckets"].items()} == {
        each.bucket: each.end_offset for each in table.offsets()
    }


@pytest.mark.parametrize("left_out", [None, "1"])
def test_a_replica_that_spark_keeps(
    spark: SparkSession,
    server: RunningServer,
    table: Table,
    tmp_path: Path,
    client: Client,
    left_out: str | None,
) -> None:
    """Changes out of one table and into another, nothing in between: the same rows, and each change once.

    With a condition these are the rows that meet it: those that an update moved out of it are gone.
    """
    where = {} if left_out is None else {"where": f"v <> '{left_out}'"}
    replica = client.create_table(f"{table.name}_copy", table.schema, primary_key=["k"], buckets=3)

    def run() -> None:
        changes = spark.readStream.format("weir").options(
            endpoint=server.endpoint, table=table.name, readChanges="true", maxRowsPerTrigger="150", **where
        )
        sink = changes.load().writeStream.format("weir").trigger(availableNow=True)
        sink = sink.options(endpoint=server.endpoint, table=replica.name)
        sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    for number in range(3):
        table.write(kv_rows(number * 20, number * 20 + 50, f"{number}"))
        table.delete([(key,) for key in range(number * 20, number * 20 + 5)])
    run()
    assert contents(replica) == {k: v for k, v in contents(table).items() if v != left_out}
    changes = replica.new_scan().with_source("log").stop_at("end").to_arrow().to_pylist()
    images = [(row["k"], row["v"]) for row in changes if row["_change_type"] == "update_postimage"]
    assert len(set(images)) == len(images)
