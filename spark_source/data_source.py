"""The entry point of Spark: format ``weir``.

Invariant: one `WeirDataSource` is one ``load()``. Spark makes it once, and copies it by pickle to each process that
plans: both sides of a self-join are planned at once. What all copies have to agree on is made here, before any copy.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_source.errors import PlainErrors, SourceOptionError
from spark_source.load import Load
from spark_source.options import SourceOptions
from spark_source.stream.options import ChangeOptions, reads_changes, without_read_changes
from spark_source.writing.options import WriteOptions, is_of_write

if TYPE_CHECKING:
    from spark_source.batch.reader import BucketReader
    from spark_source.stream.changes import ChangesReader
    from spark_source.stream.reader import ChangeStreamReader, RefusingStreamReader
    from spark_source.writing.writer import SaveWriter, StreamWriter

# What needs Arrow and the client is imported where it is used: Spark imports this module to look for formats, also in
# sessions that never use this one (`pyspark_weir`).


class WeirDataSource(DataSource):
    """A live key-value table of a weir server: read bucket by bucket, written once and as a whole.

    Options
    -------
    endpoint : ``HOST:PORT``
        The server, reachable from the driver and from every executor. Required.
    table : str
        Name of the table. Required.
    mode : ``push`` | ``session`` | ``token`` | ``cursor`` | ``asof``, default ``push``
        How rows travel: pushed by the server within the task's credit, or pulled page by page: from an iterator that
        the server keeps, from a snapshot that it keeps, from what is there when each page is asked for, or from the
        first page's state, rebuilt. Pages of ``cursor`` are of different states if somebody writes meanwhile.
    asOf : ``OFFSET`` or ``BUCKET:OFFSET,...``, optional
        Modes ``push`` and ``asof``: read the table as it was in front of this log offset of every bucket, or of each.
        Every task, retry and copy then reads one state, as long as the server's log reaches back to it.
    asOfTimestamp : ``2013-07-01T12:30:00Z``, or with an offset from UTC, optional
        Modes ``push`` and ``asof``: read every commit before this instant, and none from it on. The driver asks the
        server for the offsets once, when Spark plans.
    leaseId : str, optional
        Modes ``push`` and ``asof``: read what this lease of yours keeps. All loads that name it read one state.
    leaseTtl : seconds, default 600
        Modes ``push`` and ``asof`` without ``asOf`` and ``leaseId``: the driver leases the table as it is when Spark
        plans, or as ``asOfTimestamp`` says; every task, retry and copy reads that state, and it is kept until so long
        after the last task began or renewed it. 0: no lease; each task reads what is there when it begins. Changes,
        default 3600: how long the server keeps what a query has not read, after it ended or its driver died.
    splits : int, 1 to 1024, optional
        Modes ``push`` and ``asof``: tasks that share the keys of each bucket. One by default.
    targetSplitBytes : size, optional
        Likewise: stored bytes that one task is to read, about; how many tasks that makes of a bucket is up to its size.
    columns : comma separated names, optional
        Columns to read, in this order. All of them by default. Spark does not tell a Python source which columns a
        query uses, so this is how to leave out what is not needed.
    where : condition, optional
        Read only the rows that meet it, such as ``o_orderdate >= DATE '2013-07-01' AND o_comment IS NOT NULL``. The
        server evaluates it. The filters of a query are Spark's own.
    keyFrom, keyTo : value or JSON array, optional
        Read only the keys from the one, inclusive, to the other, exclusive: the value of the first key column, or a
        JSON array of the values of the first few.
    creditBytes : size, optional
        Mode ``push``: bytes of batches the server may have under way to one task (``262144``, ``256k``, ``8m``).
    pageBytes : size, optional
        All modes but ``push``: bytes per page.
    pageDepth : int, optional
        All modes but ``push``: pages asked for ahead of the one in use.
    statistics : bool, default ``false``
        End each bucket with one row that holds, in column ``_weir_statistics``, what its scan cost, as JSON.

    readChanges : bool, default ``false``
        Read the changes of the table instead of its rows: inserts, deletes, and updates as two rows, before and after,
        with the columns ``_change_type``, ``_log_offset`` and ``_commit_timestamp``. A stream needs it.
    startingOffsets : ``full`` | ``earliest`` | ``latest`` | JSON
        Changes: where to begin. ``full``, the default of a stream: with the table as it is, as inserts. ``earliest``,
        the default of a batch read: with the oldest change that is kept. ``latest``: with the next commit. JSON such
        as ``{"0": 12, "1": -2}``: of each bucket an offset, -2 (earliest) or -1 (latest).
    startingTimestamp : time or milliseconds since 1970, optional
        Changes: begin with the first commit at or after this time, whatever ``startingOffsets`` says.
    endingOffsets : ``latest`` | JSON, default ``latest``
        Batch reads of changes: where to end, exclusive.
    endingTimestamp : time or milliseconds since 1970, optional
        Batch reads of changes: end in front of the first commit at or after this time.
    failOnDataLoss : bool, default ``true``
        Changes: fail if changes that are wanted are not kept any more; else go on from the oldest ones that are, with a
        warning in the log.
    maxRowsPerTrigger : int, optional
        Streams: the changes of one micro-batch. The commit that reaches the limit is the last one in it.
    maxBytesPerTrigger : size, optional
        Streams: the same of their stored bytes.
    minRowsPerTrigger : int, optional
        Streams: wait until there are so many changes, but no longer than ``maxTriggerDelay``.
    maxTriggerDelay : time, default ``15m``
        Streams: see ``minRowsPerTrigger``.

    tlsCa : path, optional
        The CAs of the server, a PEM file on the driver and on every executor; ``system`` for those the system trusts.
    tlsCert, tlsKey : path, optional
        The client's certificate and its key, for mutual TLS.
    tokenFile : path, optional
        A file with the bearer token that proves who reads. The token itself is never an option.

    Of these, a write takes ``endpoint``, ``table`` and the last four, and:

    txnName, txnVersion : str and int, optional
        Name a save, so that it is published once however often its job is run. A stream's batches are named already.
    failOnMissingBatches : bool, default ``true``
        A stream: fail if the table lacks micro-batches of the query before the one that is written, because it was
        restored from a backup or created anew; else go on without them, with a warning in the log.
    changeTypeColumn : str, default ``_change_type``
        If the DataFrame has this column, its rows are changes: ``insert`` and ``update_postimage`` are upserted,
        ``delete`` deletes the row of the key, and so does ``update_preimage`` if there is a column ``_log_offset``.
    batchBytes : size, default ``4m``
        Bytes of rows that a task gathers before it stages them.

    Sizes that belong to the other mode are checked and have no effect, so that a job changes its mode by one option.

    Schema
    ------
    That of the table: ``bool``, ``int8`` to ``int64``, ``float32``, ``float64``, ``decimal128``, ``date32``,
    ``string`` and ``binary`` as their namesakes in Spark SQL; timestamps as ``TIMESTAMP`` with a time zone and as
    ``TIMESTAMP_NTZ`` without. A column of the primary key is not nullable. ``.schema(...)`` may name some of the
    columns, in any order, in exactly these types.

    Examples
    --------
    >>> from spark_source import WeirDataSource
    >>> spark.dataSource.register(WeirDataSource)
    >>> orders = (
    ...     spark.read.format("weir").option("endpoint", "127.0.0.1:9123").option("table", "orders").load()
    ... )
    >>> orders.count()
    """  # noqa: D416  # The sections are NumPy's, as in Spark's own reference.

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read_options: SourceOptions | None = None
        self._changes: ChangeOptions | None = None
        # Spark does not tell here what it is going to ask for, and reads and writes know other options.
        if not is_of_write(options):
            self._parse_of_read()
        self._load = Load.new()
        """Names the state of this load: Spark plans it more than once, each time with a copy of this source."""
        self._schema: StructType | None = None

    @classmethod
    def name(cls) -> str:
        """``weir``."""
        return "weir"

    def schema(self) -> StructType:
        """The schema of the table, or of the columns that option ``columns`` names; asked for once.

        Raises:
            TableNotFound: There is no such table; the message lists those there are.
            ColumnNotFound: It has no such column; the message lists those it has.
            ServerUnavailable: Nobody answers at the endpoint.
            SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table, or an option is one of
                writes.
            SourceSchemaError: A column is of a type that Spark SQL does not have.

        Waits: For the server's description of the table, the first time.
        """
        if self._schema is None:
            with PlainErrors():
                self._schema, table_id = self._read_schema()
                self._load = self._load.of_table(table_id)
        return self._schema

    def reader(self, schema: StructType) -> BucketReader | ChangesReader:
        """A reader of these columns; the network is not touched before Spark plans."""
        if self._changes is not None:
            from spark_source.stream.changes import ChangesReader

            return ChangesReader(self._changes, schema, self._load)
        from spark_source.batch.reader import BucketReader

        return BucketReader(self._of_read(), schema, self._load)

    def streamReader(self, schema: StructType) -> ChangeStreamReader | RefusingStreamReader:
        """A reader of a stream of the changes; one that refuses to start where the options are none of a stream."""
        from spark_source.stream.reader import (
            STREAM_WITHOUT_CHANGES,
            ChangeStreamReader,
            RefusingStreamReader,
        )

        try:
            self._of_read()
        except SourceOptionError as error:  # With a schema of the user's, Spark has not asked for one.
            return RefusingStreamReader(error)
        if self._changes is not None:
            return ChangeStreamReader(self._changes, schema, self._load)
        return RefusingStreamReader(SourceOptionError("readChanges", None, STREAM_WITHOUT_CHANGES))

    def writer(self, schema: StructType, overwrite: bool) -> SaveWriter:
        """A writer of these columns, once they are known to fit the table.

        Raises:
            SourceOptionError: An option is unknown or missing, one of reads, or has a value that makes no sense.
            SourceSchemaError: A column is missing, is none of the table's, or does not fit.
            TableNotFound: There is no such table; the message lists those there are.
            ServerUnavailable: Nobody answers at the endpoint.

        Waits: For the server's description of the table.
        """
        from spark_source.writing.writer import plan_save

        return plan_save(schema, self._of_write(streaming=False), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer of one micro-batch; as `writer`."""
        from spark_source.writing.writer import plan_stream

        return plan_stream(schema, self._of_write(streaming=True), overwrite=overwrite)

    def _read_schema(self) -> tuple[StructType, int]:
        options = self._of_read()
        if self._changes is None:
            from spark_source.batch.reader import read_schema

            return read_schema(options)
        from spark_source.stream.tasks import read_change_schema

        return read_change_schema(self._changes)

    def _of_read(self) -> SourceOptions:
        return self._parse_of_read() if self._read_options is None else self._read_options

    def _parse_of_read(self) -> SourceOptions:
        with PlainErrors():
            if reads_changes(self.options):
                self._changes = ChangeOptions.parse(self.options)
                self._read_options = self._changes.source
            else:
                self._read_options = SourceOptions.parse(without_read_changes(self.options))
        return self._read_options

    def _of_write(self, *, streaming: bool) -> WriteOptions:
        with PlainErrors():
            return WriteOptions.parse(self.options, streaming=streaming)


def register(spark: SparkSession) -> None:
    """Make format ``weir`` known to a Spark session that has not found it by itself, and to the thread that calls.

    Spark finds it where `pyspark_weir` can be imported, which is where this package is installed. But a save looks for
    it in the active session of its thread: one that Python has begun has none before this.

    Args:
        spark: The session. Its executors need this package installed: Spark sends them its classes by name.
    """
    spark.dataSource.register(WeirDataSource)
    spark.createDataFrame([], "none INT")  # Makes the session the thread's active one.
