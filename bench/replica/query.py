"""`python -m bench.replica.query ENDPOINT SOURCE TARGET CHECKPOINT [--to-end]` keeps one table a copy of another.

A streaming query of a user: the changes of one table, from ``full`` on, into the other. It is killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bench.harness.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_TRIGGER: Final = 2_000


def start_replica(
    spark: SparkSession,
    endpoint: str,
    tables: tuple[str, str],
    checkpoint: str,
    *,
    to_end: bool,
    **options: object,
) -> StreamingQuery:
    """Start the query.

    Args:
        spark: The session.
        endpoint: Of the server of both tables.
        tables: The one that is read, and the one that is written; it has the same columns.
        checkpoint: Directory of the query.
        to_end: Whether it ends where the changelogs end now.
        options: Further ones of the read.
    """
    reader = spark.readStream.format("weir").option("endpoint", endpoint).option("table", tables[0])
    reader = reader.option("readChanges", "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.format("weir").option("endpoint", endpoint).option("table", tables[1])
    writer = writer.option("checkpointLocation", checkpoint)
    if to_end:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def main() -> None:
    """Run it until it is killed, or has come to the end."""
    endpoint, source, target, checkpoint, *rest = sys.argv[1:]
    with spark_session("weir replica") as spark:
        spark.sparkContext.setLogLevel("OFF")
        query = start_replica(
            spark,
            endpoint,
            (source, target),
            checkpoint,
            to_end=rest == ["--to-end"],
            maxRowsPerTrigger=ROWS_PER_TRIGGER,
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
