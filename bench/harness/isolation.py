"""Is every scan exactly the table at the log offset it was given, while a writer keeps changing it?

A check that passes because nothing happened proves nothing. So each scan reads with a credit, or in pages, far smaller
than the bucket; after its first batch it waits until a commit to its bucket was acknowledged *beyond* its offset; and
only then it reads on. The commits that fell between a scan's offset and its end are counted and reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

import scanner.sync
from bench.harness import flights
from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory, Violation
from bench.harness.writer import Writer

CREDIT_BYTES = 1 << 20
PAGE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedScan:
    """One scan of one bucket, judged."""

    mode: str
    bucket: int
    log_offset: int
    rows: int
    commits_meanwhile: int
    """Commits to the bucket after the scan's offset that were acknowledged before its last batch was read."""
    overrun_bytes: int
    violations: tuple[Violation, ...]


def check_under_writes(
    client: scanner.sync.Client,
    writer: Writer,
    histories: Mapping[int, BucketHistory],
    modes: Sequence[str],
    rounds: int,
) -> list[CheckedScan]:
    """Scan every bucket in every mode, `rounds` times, while the writer writes; judge each scan.

    Raises:
        BenchFailed: The writer failed, or a scan could not be judged.
    """
    return [
        _checked_scan(client, writer, histories[bucket], mode, bucket)
        for _ in range(rounds)
        for mode in modes
        for bucket in histories
    ]


def small_scan(client: scanner.sync.Client, mode: str, bucket: int) -> scanner.sync.Scan:
    """A scan that the server cannot finish before it is read: a tenth of a bucket at most is on its way."""
    scan = client.table(flights.TABLE).new_scan().bucket(bucket).with_mode(mode)
    return scan.with_credit(CREDIT_BYTES).with_page_bytes(PAGE_BYTES)


def _checked_scan(
    client: scanner.sync.Client, writer: Writer, history: BucketHistory, mode: str, bucket: int
) -> CheckedScan:
    received: list[pa.RecordBatch] = []
    with small_scan(client, mode, bucket).execute() as batches:
        for batch in batches:
            if not received:
                writer.wait_past(bucket, _log_offset(batches.statistics()))
            received.append(batch)
        statistics = batches.statistics()
    log_offset = _log_offset(statistics)
    meanwhile = sum(commit.start_offset >= log_offset for commit in history.commits)
    rows = pa.Table.from_batches(received, history.base.schema)
    return CheckedScan(
        mode=mode,
        bucket=bucket,
        log_offset=log_offset,
        rows=rows.num_rows,
        commits_meanwhile=meanwhile,
        overrun_bytes=statistics.overrun_bytes,
        violations=tuple(history.violations(log_offset, rows)),
    )


def _log_offset(statistics: scanner.ScanStatistics) -> int:
    (bucket,) = statistics.buckets
    if bucket.log_offset is None:
        raise BenchFailed(f"a scan of bucket {bucket.bucket} delivered rows before it said its log offset")
    return bucket.log_offset
