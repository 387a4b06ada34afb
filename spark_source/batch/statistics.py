"""What one task's scan of one bucket cost, and how that gets to the driver.

With option ``statistics`` a task ends its rows with one more, which is null but for a JSON text. So the
measurements travel the way the rows do: a task that is retried or run twice counts once, as its rows do, and
nothing has to be reachable that is not reachable anyway.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from spark_source.schema import STATISTICS_COLUMN


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketReport:
    """The scan of one bucket, as the task saw it."""

    bucket: int
    """Index of the bucket."""
    log_offset: int
    """The scan showed the bucket as of this offset."""
    rows: int
    """Rows delivered."""
    digest: int
    """CRC-32C over the stored rows scanned, in key order."""
    split: int
    """Place of the range of keys that was scanned among those of the bucket, from 0, in key order."""
    stored_bytes: int
    """Length of the stored rows scanned: with it the digests of a bucket's ranges join to the bucket's."""
    bytes_received: int
    """Message bytes of the batches."""
    requests: int
    """Requests sent for the scan."""
    first_batch_s: float | None
    """Seconds from the open to the first batch; None if there was none."""
    overrun_bytes: int
    """Most bytes received beyond the credit."""
    held_bytes_max: int
    """Most message bytes that waited for the task at once."""
    states: int = 1
    """States that the rows came from: 1, or more in mode cursor, where `log_offset` is the first one's."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Where the task's time on the scan went, seconds by reason; adds up to the scan's time."""
    server_stalls: dict[str, float] = field(default_factory=dict)
    """Where the server's time on it went."""

    def to_json(self) -> str:
        """The report as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketReport:
        """Parse what `to_json` made."""
        return cls(**json.loads(text))


def report_batch(report: BucketReport, target: pa.Schema) -> pa.RecordBatch:
    """The row that ends a bucket: the report, and nulls.

    Args:
        report: What the task measured.
        target: Schema of the task's batches; it has `STATISTICS_COLUMN`, and every column is nullable.
    """
    columns = [
        pa.array([report.to_json()], field.type)
        if field.name == STATISTICS_COLUMN
        else pa.nulls(1, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
