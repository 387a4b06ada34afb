"""What a scan did, as frozen records. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketStatistics:
    """One bucket's part of a table scan."""

    bucket: int
    log_offset: int | None
    """The scan shows the bucket as of this offset; None until the server has said it."""
    rows: int
    """Rows handed to the consumer."""
    digest: int | None
    """CRC-32C over the stored rows scanned, in key order; None unless the scan of the bucket came to its end."""
    reason: str | None
    """Why it ended: `EXHAUSTED`, `LIMIT`, `STOP_OFFSET` or `DRAINED`; None if it has not ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanStatistics:
    """A table scan, until now or as a whole."""

    rows: int
    """Rows handed to the consumer."""
    digest: int | None
    """Of the digests of all buckets, in bucket order; None unless every bucket came to its end."""
    buckets: tuple[BucketStatistics, ...]
    """Ascending by bucket."""
    bytes_received: int
    """Message bytes of the batches or pages that arrived."""
    requests: int
    """Calls made to the server: one per bucket by push, one per page by session, releases included."""
    credit_messages: int
    """Grants of credit sent along on the calls (push)."""
    first_batch_s: float | None
    """From the start of the scan to the first rows that arrived, seconds; None if none did."""
    overrun_bytes: int
    """The furthest that a server went past the credit of its bucket, bytes."""
    held_bytes_max: int
    """The most message bytes that waited for the consumer or were in its hands at once."""


@dataclass(kw_only=True, slots=True)
class BucketProgress:
    """The counters of one bucket's scan while it runs; written by its receiver and by the hand-out."""

    bucket: int
    log_offset: int | None = None
    rows: int = 0
    digest: int | None = None
    reason: str | None = None
    bytes_received: int = 0
    requests: int = 0
    credit_messages: int = 0
    overrun_bytes: int = 0

    def freeze(self) -> BucketStatistics:
        """What is published of it."""
        return BucketStatistics(
            bucket=self.bucket,
            log_offset=self.log_offset,
            rows=self.rows,
            digest=self.digest,
            reason=self.reason,
        )
