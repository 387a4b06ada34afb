"""Is a snapshot with the changes after it the table, while a writer goes on?

One stream for each bucket brings the rows as of an offset, and then every change from there on, pushed as it is
committed. They are folded as docs/tail.md says, by code that knows neither the writer nor the oracle. When there are
enough changes the writer stops, the tail is read up to the end of each log, and the oracle judges the fold as it judges
a scan: every row, at that offset.
"""

import datetime
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

import scanner.sync
from bench.harness import flights
from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory, Key, Row, Violation, keys_of
from bench.harness.writer import Writer

CHANGES_MIN = 5_000
"""Changes that come behind the snapshots before the writer stops, over all buckets."""
COLUMNS_OF_A_CHANGE = ("_change_type", "_log_offset", "_commit_timestamp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tailed:
    """What came, and what it made."""

    snapshot_rows: int
    changes: int
    """Changes behind the snapshots."""
    commits_meanwhile: int
    """Commits of a bucket that were acknowledged while it was tailed."""
    seconds: float
    """From the opening to the last change."""
    to_hand_ms: float
    """From the commit of a change to the consumer's hand, median over the batches."""
    violations: tuple[Violation, ...]
    """Rows of the fold that are not those of the table."""


class Fold:
    """One bucket, made of its snapshot and its changes."""

    def __init__(self) -> None:
        self.snapshot: list[pa.RecordBatch] = []
        self.changed: dict[Key, Row | None] = {}
        """What each key that changed holds; None: nothing."""
        self.changes = 0

    def take(self, batch: pa.RecordBatch) -> float | None:
        """Apply a batch.

        Returns:
            The commit time of its last change, seconds since 1970; None: its rows are the snapshot's.
        """
        kinds, offsets, times = (batch.column(name) for name in COLUMNS_OF_A_CHANGE)
        rows = batch.drop_columns(list(COLUMNS_OF_A_CHANGE))
        if offsets.null_count:
            self.snapshot.append(rows)
            return None
        keys = keys_of(pa.Table.from_batches([rows]), flights.PRIMARY_KEY)
        cells = zip(*(column.to_pylist() for column in rows.columns), strict=True)
        for kind, key, row in zip(kinds.to_pylist(), keys, cells, strict=True):
            self.changed[key] = row if kind in ("insert", "update_postimage") else None
        self.changes += batch.num_rows
        last: datetime.datetime = times[-1].as_py()
        return last.timestamp()

    def table(self, schema: pa.Schema) -> pa.Table:
        """What it has made."""
        snapshot = pa.Table.from_batches(self.snapshot, schema)
        kept = [key not in self.changed for key in keys_of(snapshot, flights.PRIMARY_KEY)]
        put = [row for row in self.changed.values() if row is not None]
        columns = zip(*put, strict=True) if put else ((),) * len(schema)
        arrays = [pa.array(cells, each.type) for cells, each in zip(columns, schema, strict=True)]
        return pa.concat_tables([snapshot.filter(pa.array(kept)), pa.table(arrays, schema=schema)])


def tail_under_writes(
    client: scanner.sync.Client, endpoint: str, known: Mapping[int, BucketHistory], seed: int
) -> Tailed:
    """Tail every bucket, from a snapshot on, beside a writer.

    Args:
        client: Of the reader.
        endpoint: HOST:PORT, for the writer's own client.
        known: What is in each bucket now; nothing is recorded there.
        seed: Chooses what the writer changes.

    Raises:
        BenchFailed: The writer failed.
    """
    histories = {bucket: history.since(history.end_offset) for bucket, history in known.items()}
    folds = {bucket: Fold() for bucket in known}
    delays_ms: list[float] = []
    started = time.monotonic()
    with client.table(flights.TABLE).new_scan().with_source("hybrid").execute() as batches:

        def take() -> None:
            batch = next(batches)
            if batches.bucket is None:
                raise BenchFailed("a batch came that is of no bucket")
            committed_s = folds[batches.bucket].take(batch)
            if committed_s is not None:
                delays_ms.append((time.time() - committed_s) * 1000)

        with Writer(endpoint, flights.TABLE, histories, seed):
            while (
                len(batches.snapshot_ends) < len(folds)
                or sum(fold.changes for fold in folds.values()) < CHANGES_MIN
            ):
                take()
        ends = {bucket: history.end_offset for bucket, history in histories.items()}
        while batches.positions != ends:
            take()
        snapshot_ends = batches.snapshot_ends
    seconds = time.monotonic() - started
    schema = client.table(flights.TABLE).schema
    return Tailed(
        snapshot_rows=sum(batch.num_rows for fold in folds.values() for batch in fold.snapshot),
        changes=sum(fold.changes for fold in folds.values()),
        commits_meanwhile=sum(
            commit.start_offset >= snapshot_ends[bucket]
            for bucket, history in histories.items()
            for commit in history.commits
        ),
        seconds=round(seconds, 2),
        to_hand_ms=round(statistics.median(delays_ms), 2),
        violations=tuple(
            violation
            for bucket, history in histories.items()
            for violation in history.violations(ends[bucket], folds[bucket].table(schema))
        ),
    )
