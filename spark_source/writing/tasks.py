"""What a task of a write does: it stages its rows, durable and invisible, until the driver publishes them.

Invariants:
1. A task's rows count as a whole or not at all, and only in the attempt whose message reached the driver.
2. Each run of a task is an attempt of its own. Its number is drawn, because Spark counts attempts from 0 in each
   application, and one that was killed may have left stages under the same part.
3. A task writes to the table and the columns that were planned with, or fails. A column that the table has got since
   is null in its rows, as every column that the DataFrame lacks.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from scanner import TableNotFound
from spark_source.connection import ask_again, open_client_again
from spark_source.errors import SourceUnsupportedError
from spark_source.writing.changes import Operation, gathered, steps

if TYPE_CHECKING:
    from scanner.sync import Client, Table
    from spark_source.writing.options import WriteOptions
    from spark_source.writing.plan import WritePlan

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_ATTEMPT_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Transaction:
    """Names what is published together, once."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class StagedPart(WriterCommitMessage):
    """What a task tells the driver: the rows of a part that it staged."""

    transaction: Transaction
    part: int
    """Number of the task among those of the write, from 0."""
    attempt: int
    """Of this run of the task."""
    rows: int
    """Rows and keys that were staged; 0: there is no stage."""


def this_part() -> int:
    """The number of the task that runs."""
    return _context().partitionId()


def this_micro_batch() -> Transaction:
    """The transaction of the micro-batch that the task belongs to: the query, and the batch's number.

    The query's id is that of its checkpoint, so a batch that is run again after a restart is the same one.

    Raises:
        SourceUnsupportedError: Spark does not tell which batch of which query it is.
    """
    context = _context()
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise SourceUnsupportedError(
            "Spark does not tell this task which micro-batch it belongs to: write with df.write in foreachBatch, with"
            " the options txnName and txnVersion"
        )
    return Transaction(query, int(batch))


def stage(
    options: WriteOptions,
    plan: WritePlan,
    transaction: Transaction,
    part: int,
    batches: Iterable[pa.RecordBatch],
) -> StagedPart:
    """Stage the rows of one task.

    Args:
        options: The write.
        plan: What becomes of the columns.
        transaction: What the rows belong to.
        part: The number of the task.
        batches: Of the DataFrame.

    Raises:
        SourceDataError: A row is of no known kind of change.
        ScannerError: A value or a null does not fit the table, or the server failed; what was staged is never seen.

    Waits: For the server's disk, behind what it has not acknowledged.
    """
    attempt = secrets.randbits(_ATTEMPT_BITS)
    work = itertools.chain.from_iterable(
        steps(piece, plan) for piece in gathered(batches, options.batch_bytes)
    )
    first = next(work, None)
    rows = 0
    if first is not None:
        with open_client_again(options.target) as client:
            table = ask_again(functools.partial(planned_table, client, options, plan))
            staging = table.transaction(transaction.name, transaction.version)
            added = _added_since(table, plan)
            with staging.part(part, attempt) as writer:
                for operation, batch in itertools.chain([first], work):
                    rows += batch.num_rows
                    if operation is Operation.DELETE:
                        writer.delete(batch)
                    else:
                        writer.upsert(_with_nulls(batch, added))
    return StagedPart(transaction, part, attempt, rows)


def _added_since(table: Table, plan: WritePlan) -> list[pa.Field]:
    """Columns that the table has got since the write was planned."""
    planned = {*plan.columns, *(field.name for field in plan.absent)}
    return [field for field in table.schema if field.name not in planned]


def _with_nulls(batch: pa.RecordBatch, fields: Iterable[pa.Field]) -> pa.RecordBatch:
    for field in fields:
        batch = batch.append_column(field.name, pa.nulls(batch.num_rows, field.type))
    return batch


def planned_table(client: Client, options: WriteOptions, plan: WritePlan) -> Table:
    """The table of a write.

    Raises:
        TableNotFound: It was dropped; another one of its name is not written.

    Waits: For one call.
    """
    table = client.table(options.target.table)
    if table.table_id != plan.table_id:
        raise TableNotFound(
            f"table {table.name!r} was dropped and created anew since Spark planned the write; start it again"
        )
    return table


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark runs this in tasks alone"
    return context
