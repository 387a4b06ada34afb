"""What a Spark task reads: a range of keys of one bucket. Plain values only, so that it pickles small and anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from scanner import ScanPlan
    from spark_source.options import SourceOptions


@dataclass(frozen=True)
class BucketPartition(InputPartition):
    """A range of the keys of one bucket, scanned by one task."""

    options: SourceOptions
    """The read: where the server is, and what to report."""
    plan: ScanPlan
    """What to scan: one bucket, one range of its keys, and as of which offset, all checked against the table."""
    split: int = 0
    """Place of the range among those of the bucket, from 0, in key order."""
    lease_id: str | None = None
    """Keeps the state that is read; None: nothing does but the server's retention."""
    lease_ttl_s: float = 0.0
    """Time to live of that lease, seconds."""

    @property
    def bucket(self) -> int:
        """Index of the bucket, from 0."""
        assert self.plan.bucket is not None
        return self.plan.bucket
