"""What a Spark task reads: one bucket of one table. Plain values only, so that it pickles small and anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from spark_source.options import SourceOptions


@dataclass(frozen=True)
class BucketPartition(InputPartition):
    """One bucket, scanned by one task."""

    table: str
    """Name of the table."""
    bucket: int
    """Index of the bucket, from 0."""
    options: SourceOptions
    """How to read it."""


def bucket_partitions(options: SourceOptions, buckets: int) -> list[BucketPartition]:
    """One partition per bucket, in bucket order.

    Args:
        options: The read.
        buckets: How many the table has, at least 1.
    """
    return [BucketPartition(table=options.table, bucket=bucket, options=options) for bucket in range(buckets)]
