"""A stream of Spark: every change that the demo made, in micro-batches, into a copy of the table that ends up equal."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.harness import flights
from bench.replica.changes import last_changes
from spark_source.batch.compare import find_difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import scanner.sync

REPLICA: Final = "flights_replica"
ROWS_PER_TRIGGER: Final = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """What the stream brought, and whether the copy is one."""

    changes: int
    """Changes that came, those of the load included."""
    batches: int
    """Micro-batches."""
    seconds: float
    """From the start of the query to its end."""
    rows_wrong: int
    """Rows that only the table has, or only the copy."""


def stream_into_replica(spark: SparkSession, client: scanner.sync.Client, endpoint: str) -> Streamed:
    """Stream the table's whole changelog into a new table, and compare the two. Nobody may write meanwhile."""
    replica = client.create_table(REPLICA, flights.SCHEMA, flights.PRIMARY_KEY, flights.BUCKETS)
    sizes: list[int] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        changes = frame.toArrow()
        puts, deletes = last_changes(changes, flights.SCHEMA, flights.PRIMARY_KEY)
        # Both may be done twice: Spark repeats a micro-batch with the same rows.
        replica.write(puts)
        replica.delete(deletes)
        sizes.append(len(changes))

    started = time.monotonic()
    options = {"endpoint": endpoint, "table": flights.TABLE, "readChanges": "true"}
    stream = (
        spark.readStream.format("weir")
        .options(**options)
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", ROWS_PER_TRIGGER)
        .load()
    )
    with tempfile.TemporaryDirectory(prefix="weir-demo-checkpoint-") as checkpoint:
        writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
        writer.foreachBatch(take).start().awaitTermination()
    seconds = time.monotonic() - started
    table, copy = (
        spark.read.format("weir").options(endpoint=endpoint, table=name).load()
        for name in (flights.TABLE, REPLICA)
    )
    difference = find_difference(table, copy, names=("the table", "its replica"))
    return Streamed(
        changes=sum(sizes),
        batches=len(sizes),
        seconds=seconds,
        rows_wrong=difference.left_only + difference.right_only,
    )
