"""`python -m bench.replica.query ENDPOINT SOURCE TARGET CHECKPOINT [--to-end]` keeps one table a copy of another.

A streaming query from ``full``. Each micro-batch is reduced to the last change of each key and written as a transaction
whose version is the micro-batch's number, so that it counts once. What it is doing stands on standard output, line by
line: it is killed there.
"""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Final

import scanner.sync
from bench.harness.ledger import SCHEMA
from bench.harness.spark import spark_session
from bench.replica.changes import last_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSACTION: Final = "replica"
ROWS_PER_TRIGGER: Final = 2_000


class Replica:
    """Writes micro-batches into the target.

    Args:
        target: The table.
    """

    def __init__(self, target: scanner.sync.Table) -> None:
        self._target = target
        self._attempt = secrets.randbelow(2**31)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, or find that it is written."""
        _tell("read", batch_id)
        puts, deletes = last_changes(frame.toArrow(), SCHEMA, ["id"])
        _tell("stage", batch_id)
        transaction = self._target.transaction(TRANSACTION, batch_id + 1)
        with transaction.part(0, self._attempt) as part:
            part.upsert(puts)
            part.delete(deletes)
        _tell("publish", batch_id)
        transaction.publish({0: self._attempt})
        _tell("published", batch_id)


def replicate(
    spark: SparkSession, endpoint: str, source: str, target: str, checkpoint: str, *, to_end: bool
) -> None:
    """Run the query: until it is killed, or to where the source's changelogs end now."""
    spark.sparkContext.setLogLevel("OFF")
    with scanner.sync.connect(endpoint) as client:
        replica = Replica(client.table(target))
        changes = (
            spark.readStream.format("weir")
            .option("endpoint", endpoint)
            .option("table", source)
            .option("readChanges", "true")
            .option("maxRowsPerTrigger", ROWS_PER_TRIGGER)
            .load()
        )
        writer = changes.writeStream.option("checkpointLocation", checkpoint).foreachBatch(replica.take)
        if to_end:
            writer = writer.trigger(availableNow=True)
        writer.start().awaitTermination()


def _tell(what: str, batch_id: int) -> None:
    sys.stdout.write(f"{what} {batch_id}\n")
    sys.stdout.flush()


def main() -> None:
    """Run it until it is killed, or has come to the end."""
    endpoint, source, target, checkpoint, *rest = sys.argv[1:]
    with spark_session("weir replica") as spark:
        replicate(spark, endpoint, source, target, checkpoint, to_end=rest == ["--to-end"])


if __name__ == "__main__":
    main()
