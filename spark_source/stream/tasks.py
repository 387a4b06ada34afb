"""What a task of a read of changes does: one bucket's changes between two commits' ends, or its rows as of one.

Invariants:

1. A task reads exactly what was planned, of the table and of the history of its bucket that it was planned with, or it
   fails. So a task that is repeated reads the same rows; ``failOnDataLoss=false`` alone lets it read fewer, with a
   warning.
2. However `read_slice` ends, its scan and its connection end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from scanner import OffsetOutOfRange, ScanSource, TableNotFound
from spark_source.batch.leasing import PlannedStates, TaskLease
from spark_source.batch.planning import bucket_partitions
from spark_source.batch.scans import with_condition
from spark_source.connection import ask, ask_again, open_client_again
from spark_source.errors import SourceDataLossError, SourceError
from spark_source.schema import arrow_schema, spark_schema, to_spark_batch
from spark_source.stream.logs import warn_of_loss

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from scanner import BucketStatistics, MeasuredLog, ScanPlan
    from scanner.sync import Client, Scan, Table
    from spark_source.stream.offsets import Positions
    from spark_source.stream.options import ChangeOptions

CHANGE_TYPE: Final = "_change_type"
CHANGE_COLUMNS: Final = (CHANGE_TYPE, "_log_offset", "_commit_timestamp")
"""What every change has beside the columns of its row."""


@dataclass(frozen=True)
class LogSlice(InputPartition):
    """The changes [start, end) of one bucket."""

    options: ChangeOptions
    """How to read them."""
    table_id: int
    """Of the table that was planned with."""
    bucket: int
    """Index of the bucket, from 0."""
    start: int
    """The end of a commit."""
    end: int
    """Likewise, above `start`."""
    history: bytes
    """The history of the bucket that `end` is of, and so all that is before it."""
    lease_ids: tuple[str, ...] = ()
    """What keeps them, and what was planned, and is to be renewed by the task; none: nothing, or the planner does."""


@dataclass(frozen=True)
class SnapshotSlice(InputPartition):
    """The rows of one bucket, or of a range of its keys, as of an offset, as inserts."""

    options: ChangeOptions
    """How to read them."""
    plan: ScanPlan
    """What to scan, checked against the table."""


Slice = LogSlice | SnapshotSlice


def log_slices(
    options: ChangeOptions, table_id: int, start: Positions, end: Positions, lease_ids: tuple[str, ...] = ()
) -> list[LogSlice]:
    """One slice for each bucket that has changes between two positions, in bucket order."""
    return [
        LogSlice(
            options,
            table_id,
            bucket,
            start[bucket].offset,
            end[bucket].offset,
            end[bucket].history,
            lease_ids,
        )
        for bucket in sorted(end)
        if start[bucket].offset < end[bucket].offset
    ]


def snapshot_slices(
    options: ChangeOptions, table: Table, at: Positions, names: Sequence[str]
) -> list[SnapshotSlice]:
    """One slice for each bucket that the condition leaves, or as many as `splits` and `targetSplitBytes` make of it.

    Args:
        options: How to read them.
        table: The table.
        at: What the buckets are read as of.
        names: The columns wanted; those of a change are not the table's.

    Waits: For the server, once for each bucket that is cut.
    """
    of_rows = [name for name in names if name not in CHANGE_COLUMNS]
    scan = _within(table.new_scan().with_table_id(table.table_id), options)
    scan = scan.select(*(of_rows or table.primary_key[:1]))
    states = PlannedStates(
        offsets=tuple(at[bucket].offset for bucket in sorted(at)),
        histories=tuple(at[bucket].history for bucket in sorted(at)),
    )
    parts = bucket_partitions(options.source, scan, table, states)
    return [SnapshotSlice(options, part.plan) for part in parts]


def read_change_schema(options: ChangeOptions) -> tuple[StructType, int]:
    """The schema of what the options read, and the id of its table; see `change_schema`.

    Waits: For the server's description of the table.
    """

    def described(client: Client) -> tuple[StructType, int]:
        table = client.table(options.source.table)
        return change_schema(table, options), table.table_id

    return ask(options.source, described)


def change_schema(table: Table, options: ChangeOptions) -> StructType:
    """The columns of a read of changes: the table's, or those that are named, and then what every change has.

    Raises:
        SourceOptionError: Option ``where`` does not fit the table.
        ColumnNotFound: The table has no such column.
        ArgumentInvalid: It has a column that changes have, too.
        SourceSchemaError: A column is of a type that Spark SQL does not have.
    """
    return spark_schema(_changes(table, options).schema)


def read_slice(planned: Slice, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read one slice.

    Args:
        planned: Which.
        schema: The columns wanted.

    Yields:
        Batches of changes in the order of the log, or of rows in key order; none of them empty.

    Raises:
        SourceDataLossError: The changes are not kept any more.
        SnapshotLost: Likewise the state; or the bucket was restored from a copy.
        TableNotFound: The table was dropped.
        SourceError: Not every change came.
        ScannerError: The scan failed; what was yielded before is a part.

    Waits:
        For the server: half a minute for it to be there, and then at most as long as its heartbeats come.
    """
    target = arrow_schema(schema)
    with open_client_again(planned.options.source) as client:
        if isinstance(planned, SnapshotSlice):
            yield from _read_snapshot(client, planned, target)
        else:
            yield from _read_log(client, planned, target)


def _read_log(client: Client, planned: LogSlice, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    lease = TaskLease(client, planned.lease_ids, planned.options.source.lease_ttl_s)
    lease.begin()
    table = ask_again(functools.partial(client.table, planned.options.source.table))
    require_same_table(table, planned.table_id)
    scan = _changes(table, planned.options).select(*target.names).bucket(planned.bucket)
    scan = scan.stop_at({planned.bucket: planned.end})
    while (start := _first_kept(table, planned)) < planned.end:
        with scan.start_at({planned.bucket: start}).execute() as batches:
            try:
                batch = next(batches, None)
            except OffsetOutOfRange as error:
                # Retention came between the question and the scan.
                oldest = planned.end if error.oldest_offset is None else error.oldest_offset
                if planned.options.fail_on_data_loss or oldest <= start:
                    raise SourceDataLossError(
                        table.name, planned.bucket, start, planned.end, oldest
                    ) from None
                continue
            # The scan is open, and stays with the history that it was opened on: all before `end` is the same, too.
            _measure_end(table, planned)
            while batch is not None:
                yield to_spark_batch(batch, target)
                lease.renew_if_due()
                batch = next(batches, None)
            (done,) = batches.statistics().buckets
        _require_all(table, planned, start, done)
        return


def _require_all(table: Table, planned: LogSlice, start: int, done: BucketStatistics) -> None:
    """See that every change from an offset on came; with a condition, that the scan came to the end."""
    whole = planned.options.source.where is not None or done.rows == planned.end - start
    if done.reason != "STOP_OFFSET" or not whole:
        raise SourceError(
            f"table {table.name}, bucket {planned.bucket}: of the changes [{start}, {planned.end}) {done.rows} came,"
            f" and the scan ended with {done.reason}"
        )


def require_same_table(table: Table, table_id: int) -> None:
    """Check that a table is the one that a stream, or a plan, is of.

    Raises:
        TableNotFound: It is another one, of the same name or, in a query that is started anew, by its option.
    """
    if table.table_id != table_id:
        raise TableNotFound(
            f"table {table.name!r} has the id {table.table_id}, and what was planned before is of {table_id}: it was"
            " dropped and created anew since, or option 'table' has changed; load the DataFrame again, and begin a"
            " stream as a new query, with a checkpoint of its own"
        )


def _first_kept(table: Table, planned: LogSlice) -> int:
    """Where to begin: where it was planned, or, if that may be, at the oldest change that is kept."""
    log = _measure_end(table, planned)
    if log.start_offset <= planned.start:
        return planned.start
    loss = SourceDataLossError(table.name, planned.bucket, planned.start, planned.end, log.start_offset)
    if planned.options.fail_on_data_loss:
        raise loss
    warn_of_loss(loss)
    return min(planned.end, log.start_offset)


def _measure_end(table: Table, planned: LogSlice) -> MeasuredLog:
    """Ask for the range of the log, and see that the bucket has the history that was planned with."""
    (log,) = table.measure_log({planned.bucket: planned.end}, histories={planned.bucket: planned.history})
    return log


def _read_snapshot(client: Client, planned: SnapshotSlice, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    with client.scan(planned.plan).execute() as batches:
        for batch in batches:
            yield to_spark_batch(_as_inserts(batch, target), target)


def _as_inserts(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Rows of a state as changes: inserts, of no offset and no time."""
    columns = {}
    for field in target:
        if field.name == CHANGE_TYPE:
            columns[field.name] = pa.repeat(pa.scalar("insert"), batch.num_rows)
        elif field.name in CHANGE_COLUMNS:
            columns[field.name] = pa.nulls(batch.num_rows, field.type)
        else:
            columns[field.name] = batch.column(field.name)
    return pa.RecordBatch.from_pydict(columns)


def _changes(table: Table, options: ChangeOptions) -> Scan:
    """The scan of a table's changes that the options describe, from nowhere to nowhere yet."""
    scan = table.new_scan().with_table_id(table.table_id).with_source(ScanSource.LOG)
    scan = _within(scan, options)
    columns = options.source.columns
    if columns is None:
        return scan
    return scan.select(*columns, *(name for name in CHANGE_COLUMNS if name not in columns))


def _within(scan: Scan, options: ChangeOptions) -> Scan:
    source = options.source
    scan = with_condition(scan, source)
    return scan if source.credit_bytes is None else scan.with_credit(source.credit_bytes)
