"""What the tests have drivers do. Each function is called in a driver's process, with its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


def read_rows(spark: SparkSession, options: Mapping[str, str]) -> list[list[object]]:
    """The rows of a table, sorted."""
    return sorted(list(row) for row in spark.read.format("weir").options(**options).load().collect())


def read_rows_and_count_copies(spark: SparkSession, options: Mapping[str, str]) -> list[object]:
    """`read_rows`, and how many of its tasks were second copies that came to their end first."""
    spark.sparkContext.setJobGroup("copies", "")
    rows = read_rows(spark, options)
    jvm: Any = spark.sparkContext._jsc.sc()
    jvm.listenerBus().waitUntilEmpty()
    copies = 0
    for job in spark.sparkContext.statusTracker().getJobIdsForGroup("copies"):
        for stage in spark.sparkContext.statusTracker().getJobInfo(job).stageIds:  # type: ignore[union-attr]
            tasks = jvm.statusStore().taskList(stage, 0, 1_000)
            ran = [tasks.apply(position) for position in range(tasks.size())]
            copies += sum(task.speculative() and task.status() == "SUCCESS" for task in ran)
    return [rows, copies]


def save_numbers(spark: SparkSession, options: Mapping[str, str], rows: int, parts: int) -> None:
    """Save so many rows, of about a KiB each, from so many tasks."""
    frame = spark.range(0, rows, 1, parts).selectExpr("id AS k", "rpad(concat('new ', id), 1000, '.') AS v")
    frame.write.format("weir").mode("append").options(**options).save()


def stream_files(spark: SparkSession, directory: str, options: Mapping[str, str]) -> None:
    """Write what is in the directory's `rows` by a query whose checkpoint is beside it, until all of it is written."""
    rows = spark.readStream.schema("k BIGINT, v STRING").json(f"{directory}/rows")
    writer = rows.writeStream.format("weir").options(**options)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def stream_changes(spark: SparkSession, options: Mapping[str, str], directory: str) -> list[list[object]]:
    """Stream the changes of a table into Parquet until there are no more; what is there then, sorted."""
    sink, checkpoint = f"{directory}/changes", f"{directory}/checkpoint"
    changes = spark.readStream.format("weir").options(**options, readChanges="true").load()
    query = (
        changes.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", checkpoint)
        .format("parquet")
        .start(sink)
    )
    query.awaitTermination()
    found = spark.read.parquet(sink).select("k", "s", "_change_type", "_log_offset")
    return sorted(list(row) for row in found.collect())
