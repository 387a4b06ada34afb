"""What a Spark task reads: one bucket of one table. Plain values only, so that it pickles small and anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    lease_id: str | None = None
    """What keeps that state readable; None: nothing but the server's retention."""


def bucket_partitions(
    options: SourceOptions, table_id: int, as_of: Sequence[int | None], lease_id: str | None = None
) -> list[BucketPartition]:
    """One partition per bucket, in bucket order.

    Args:
        options: The read.
        table_id: Of the table.
        as_of: Of every bucket of the table, what it is read as of.
        lease_id: What keeps these states readable.
    """
    return [
        BucketPartition(table_id=table_id, bucket=bucket, options=options, as_of=offset, lease_id=lease_id)
        for bucket, offset in enumerate(as_of)
    ]
