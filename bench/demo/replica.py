"""A stream of Spark: every change that the demo made, in micro-batches, into a copy of the table that ends up equal."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.harness import flights
from bench.replica.query import start_replica
from spark_source.batch.compare import find_difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    client.create_table(REPLICA, flights.SCHEMA, flights.PRIMARY_KEY, flights.BUCKETS)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weir-demo-checkpoint-") as checkpoint:
        query = start_replica(
            spark,
            endpoint,
            (flights.TABLE, REPLICA),
            checkpoint,
            to_end=True,
            startingOffsets="earliest",
            maxRowsPerTrigger=ROWS_PER_TRIGGER,
        )
        query.awaitTermination()
        sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
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
