"""Plans a write on the driver, stages it in the tasks, and publishes it, again on the driver.

A writer is made where Spark plans and pickled to the executors and to the process that commits. Everything in it is
plain values.

Invariants:
1. Everything that options and schema say is checked against the table before a task begins.
2. Nothing of a write is seen before its driver commits it, and then all of it will be: from the server's decision on,
   no driver is needed any more.
3. A version of a transaction is published once, whoever commits it how often, and whatever its tasks staged then.
4. A micro-batch that adds to a table is published behind the one before it, or whoever asked for less is warned. Spark
   runs one task at least of each batch, so every batch of a query is published, and none is left out.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from scanner import ScannerError, TransactionDecided, VersionGap, VersionSuperseded
from spark_source.connection import ask, open_client, open_client_again
from spark_source.errors import PlainErrors, SourceMissingBatchesError, SourceUnsupportedError
from spark_source.release import OfOneRelease
from spark_source.writing.options import ONCE
from spark_source.writing.plan import WritePlan, plan_write
from spark_source.writing.tasks import (
    StagedPart,
    Transaction,
    planned_table,
    stage,
    this_micro_batch,
    this_part,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner import Published
    from scanner.sync import Client
    from spark_source.options import SourceOptions
    from spark_source.writing.options import WriteOptions

_logger = logging.getLogger("weir.spark")

Messages = Sequence[WriterCommitMessage | None]


class SaveWriter(OfOneRelease, DataSourceArrowWriter):
    """Writes a DataFrame: ``df.write``.

    Args:
        options: The write.
        plan: What becomes of the columns.
    """

    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan
        # Spark gives the tasks and the commit copies of this one object.
        self._transaction = Transaction(
            options.txn_name or f"{ONCE}spark-{uuid.uuid4()}", options.txn_version
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage a task's rows; see `spark_source.writing.tasks.stage`."""
        return _staged(self._options, self._plan, self._transaction, iterator)

    def commit(self, messages: Messages) -> None:
        """Publish what the tasks staged; see `_publish`."""
        if self._options.txn_name is None and not self._plan.overwrite and not _staged_parts(messages):
            return  # Nobody can ask for this version again, so it need not be known that it is empty.
        _publish(self._options, self._plan, self._transaction, messages)

    def abort(self, messages: Messages) -> None:
        """Free what the tasks staged; see `_abort`."""
        _abort(self._options, self._plan, self._transaction)


class StreamWriter(OfOneRelease, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query: ``df.writeStream``. Spark makes one for each of them.

    Args:
        options: The write.
        plan: What becomes of the columns.
    """

    def __init__(self, options: WriteOptions, plan: WritePlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage a task's rows of the micro-batch; see `spark_source.writing.tasks.stage`."""
        try:
            return _staged(self._options, self._plan, this_micro_batch(), iterator)
        except VersionSuperseded as error:
            raise _of_old_checkpoint(error) from None

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publish the micro-batch; see `_publish`. One without tasks has nothing to publish.

        Raises:
            SourceMissingBatchesError: The one before it is not in the table; nothing was published.
            VersionSuperseded: A later one is, so the query's checkpoint is an old one; nothing was published.
        """
        transaction = _of_micro_batch(messages, batchId)
        if transaction is None:
            return
        # One that overwrites is all that the table has, whatever was there.
        previous = batchId - 1 if batchId and not self._plan.overwrite else None
        try:
            _publish(self._options, self._plan, transaction, messages, previous)
        except VersionGap as gap:
            newest = gap.metadata.get("decided_version")
            missing = SourceMissingBatchesError(
                self._options.target.table, batchId, None if newest is None else int(newest)
            )
            if self._options.fail_on_missing_batches:
                raise missing from None
            _logger.warning("%s; it is written without those between", missing.problem)
            _publish(self._options, self._plan, transaction, messages)
        except VersionSuperseded as error:
            raise _of_old_checkpoint(error) from None

    def abort(self, messages: Messages, batchId: int) -> None:
        """Free what the tasks staged; see `_abort`. If no task tells its query, that is left to its time."""
        transaction = _of_micro_batch(messages, batchId)
        if transaction is not None:
            _abort(self._options, self._plan, transaction)


def plan_save(schema: StructType, options: WriteOptions, *, overwrite: bool) -> SaveWriter:
    """Check a save, and make its writer; see `WeirDataSource.writer` for what it raises."""
    return SaveWriter(options, _plan(schema, options, open_client, overwrite=overwrite))


def plan_stream(schema: StructType, options: WriteOptions, *, overwrite: bool) -> StreamWriter:
    """Check a micro-batch, and make its writer; see `WeirDataSource.writer` for what it raises.

    Waits: For half a minute, if the server is away: it may be the batch of a query that has run for weeks.
    """
    return StreamWriter(options, _plan(schema, options, open_client_again, overwrite=overwrite))


def _plan(
    schema: StructType,
    options: WriteOptions,
    connect: Callable[[SourceOptions], Client],
    *,
    overwrite: bool,
) -> WritePlan:
    """What the tasks are to do. Waits for the server's description of the table."""
    with PlainErrors():
        table = ask(options.target, lambda client: client.table(options.target.table), connect)
        return plan_write(schema, table.description, table.table_id, options, overwrite=overwrite)


def _staged(
    options: WriteOptions, plan: WritePlan, transaction: Transaction, batches: Iterator[pa.RecordBatch]
) -> StagedPart:
    with PlainErrors():
        return stage(options, plan, transaction, this_part(), batches)


def _of_old_checkpoint(error: VersionSuperseded) -> VersionSuperseded:
    """The same error in the words of who starts queries: nobody has named a version."""
    return error.reworded(
        f"{error.message}. The checkpoint is older than what its query has written: it was put back from a copy, or"
        " another query goes on from a copy of it. Begin anew with a new checkpoint"
    )


def _of_micro_batch(messages: Messages, batch_id: int) -> Transaction | None:
    """The transaction that the tasks of a micro-batch staged under; None: no task tells.

    Raises:
        SourceUnsupportedError: They staged under another batch's number than Spark commits, or under several.
    """
    told = {message.transaction for message in messages if isinstance(message, StagedPart)}
    if not told:
        return None
    transaction = told.pop()
    if told or transaction.version != batch_id:
        raise SourceUnsupportedError(
            f"Spark commits batch {batch_id}, and its tasks were told {transaction.version} or several: nothing was"
            " published"
        )
    return transaction


def _staged_parts(messages: Messages) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart) and message.rows]


def _publish(
    options: WriteOptions,
    plan: WritePlan,
    transaction: Transaction,
    messages: Messages,
    previous: int | None = None,
) -> None:
    """Publish the attempts that the messages tell of.

    If the version was published before, nothing is added to the table, and a warning says so. If the server cannot tell
    whether the one before is there, which `previous` names, another one does.

    Raises:
        VersionGap: The newest version that was published is not `previous`; nothing was published.
        VersionSuperseded: A later version of the transaction was published; this one was before that, or never will
            be.
        PartsConflict: Two tasks wrote one key, so that nobody can say which is the later; nothing was published.
        StageNotFound: The server has less than the tasks staged; nothing was published.
        ScannerError: The server cannot be reached, or failed. If it had decided before, the rows appear all the same.

    Waits: Until every bucket has applied its share.
    """
    assert None not in messages, "Spark commits only what every task wrote"
    staged = _staged_parts(messages)
    attempts = {message.part: message.attempt for message in staged}
    rows = {message.part: message.rows for message in staged}
    what = f"version {transaction.version} of transaction {transaction.name} of table {options.target.table}"

    def decide(client: Client) -> Published:
        publishing = planned_table(client, options, plan).transaction(transaction.name, transaction.version)
        return publishing.publish(attempts, overwrite=plan.overwrite, rows=rows, previous_version=previous)

    with PlainErrors():
        published = ask(options.target, decide, open_client_again)
    if published.previous_unknown:
        _logger.warning(
            "%s is the first one that the table knows of: whether those before are in it, nobody can tell",
            what,
        )
    of_another_run = (published.attempts, published.overwrite) != (attempts, plan.overwrite)
    if not published.decided and of_another_run:
        instead = ", and replaced none" if plan.overwrite else ""
        _logger.warning(
            "%s was published before: the %d rows of this run were not added%s",
            what,
            sum(rows.values()),
            instead,
        )
    else:
        _logger.info("published %s: %d rows in %d parts", what, sum(rows.values()), len(attempts))


def _abort(options: WriteOptions, plan: WritePlan, transaction: Transaction) -> None:
    """Free the stages of a write that failed; what cannot be freed now goes with its time, and the log says so."""
    try:
        with open_client(options.target) as client:
            planned_table(client, options, plan).transaction(transaction.name, transaction.version).abort()
    except VersionSuperseded:
        pass  # The server freed what there was of it when it decided the later version.
    except TransactionDecided as error:
        _logger.warning(
            "the version was decided before this write failed, so what was published under it stays, of this run or an"
            " earlier one: %s",
            error.message,
        )
    except ScannerError as error:
        # Raised, it would hide from the user why the write failed.
        _logger.warning("what a failed write staged stays until its time is over: %s", error.message)
