"""What a Spark task reads: one bucket of one table. Plain values only, so that it pickles small and anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from spark_source.batch.leasing import PlannedStates
    from spark_source.options import SourceOptions


@dataclass(frozen=True)
class BucketPartition(InputPartition):
    """One bucket, scanned by one task."""

    table_id: int
    """Of the table that was planned with; another one of its name is not read."""
    bucket: int
    """Index of the bucket, from 0."""
    options: SourceOptions
    """How to read it."""
    as_of: int | None = None
    """The log offset that it is read as of; None: what is there when the task begins."""
    history: bytes = b""
    """The history of the bucket that the offset is of; empty: whichever it has."""
    lease_id: str | None = None
    """What keeps that state readable; None: nothing but the server's retention."""


def bucket_partitions(options: SourceOptions, table_id: int, planned: PlannedStates) -> list[BucketPartition]:
    """One partition per bucket, in bucket order.

    Args:
        options: The read.
        table_id: Of the table.
        planned: What the buckets are read as of, and what keeps that readable.
    """
    return [
        BucketPartition(
            table_id=table_id,
            bucket=bucket,
            options=options,
            as_of=offset,
            history=history,
            lease_id=planned.lease_id,
        )
        for bucket, (offset, history) in enumerate(zip(planned.offsets, planned.histories, strict=True))
    ]
