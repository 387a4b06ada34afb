"""A stream of a table's changes: plans micro-batches in Spark's planner process, and reads them in the tasks.

Spark makes one reader in a process that lives as long as the query, asks it for offsets and partitions, and sends it to
the tasks, pickled as it was made.

Invariants:

1. A micro-batch is the changes between two ends of commits of every bucket, as they stand in its offsets; the first one
   of a stream from ``full`` is the table as of an offset of every bucket. Planned again, it is the same.
2. A commit is in one micro-batch, whole.
3. Nothing raises in the constructor: Spark reports that as an error of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from scanner import Unauthenticated
from spark_source.connection import AWAY, ask_again, open_client, open_client_again, patience
from spark_source.errors import PlainErrors, SourceError
from spark_source.load import new_lease_id
from spark_source.release import OfOneRelease
from spark_source.schema import check_schema
from spark_source.stream.admission import Delay
from spark_source.stream.log_lease import LogLease
from spark_source.stream.logs import TableLogs
from spark_source.stream.offsets import INITIAL, Positions, StreamOffset
from spark_source.stream.options import Full, Limits
from spark_source.stream.tasks import (
    LogSlice,
    Slice,
    SnapshotSlice,
    change_schema,
    log_slices,
    read_slice,
    require_same_table,
    snapshot_slices,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner.sync import Client, Table
    from spark_source.load import Load
    from spark_source.options import SourceOptions
    from spark_source.stream.options import ChangeOptions

T = TypeVar("T")
STREAM_WITHOUT_CHANGES = (
    "a stream reads the changes of a table: add option readChanges=true, which adds the columns _change_type,"
    " _log_offset and _commit_timestamp (Spark does not tell a source written in Python that it streams)"
)
_UNLIMITED = Limits()


class RefusingStreamReader(DataSourceStreamReader):
    """Refuses at the first question that Spark asks.

    `DataSource.streamReader` cannot refuse: Spark reports whatever it raises as an UnboundLocalError of its own.

    Args:
        error: Why.
    """

    def __init__(self, error: SourceError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Refuse.

        Raises:
            SourceError: Always.
        """
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """As `initialOffset`."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """As `initialOffset`."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As `initialOffset`."""
        raise self._error


class ChangeStreamReader(OfOneRelease, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table's changes in micro-batches.

    Args:
        options: The read.
        schema: The columns Spark wants, in its types and order.
        load: The ``load()`` that it is of.
    """

    def __init__(self, options: ChangeOptions, schema: StructType, load: Load) -> None:
        self._options = options
        self._schema = schema
        self._load = load
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # A task plans nothing.

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. It says nothing yet: the end of the first micro-batch tells where that began.

        Raises:
            SourceOptionError: An option does not go with a stream, or does not fit the table.
            SourceSchemaError: The schema does not fit the table.
            ScannerError: The table is gone, or the server cannot be asked.
        """
        self._planned(lambda planner: planner.check())
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits that the options set; what counts is `latestOffset`'s own sum of them."""
        limits = self._options.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadAllAvailable() if limits.rows_min is None else ReadMinRows(limits.rows_min)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` if there is none.

        Args:
            start: Where it begins.
            limit: `ReadAllAvailable`: everything that there is; any other: as the options say.

        Raises:
            SourceError: The offset is of another version of this source, or an option does not fit.
            SourceDataLossError: Changes are not kept any more.
            SnapshotLost: The table was restored from a copy.
            ScannerError: The table is gone, or the server cannot be asked.

        Waits:
            For the server.
        """
        limits = _UNLIMITED if isinstance(limit, ReadAllAvailable) else self._options.limits
        return self._planned(
            lambda planner: planner.next_end(StreamOffset.from_json(start), limits).to_json()
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the logs end: the query ends there, and reads nothing that is committed later.

        Raises:
            ScannerError: The table is gone, or the server cannot be asked.
        """
        self._planned(lambda planner: planner.stop_at_ends())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs ended when the newest micro-batch was planned, for Spark's progress reports."""
        return None if self._planner is None else self._planner.newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One partition for each bucket that has something in the micro-batch; a function of its ends alone.

        Raises:
            SourceError, SourceDataLossError, SnapshotLost, ScannerError: As `latestOffset`.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        return list(self._planned(lambda planner: planner.slices(first, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; see `spark_source.stream.tasks.read_slice`."""
        assert isinstance(partition, LogSlice | SnapshotSlice)
        with PlainErrors():
            yield from read_slice(partition, self._schema)

    def stop(self) -> None:
        """End the planner's connection and thread; the lease ends with its time. Idempotent."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _planned(self, ask: Callable[[_Planner], T]) -> T:
        """Ask the planner; once more, over another connection, if the server goes away, or knows its token no more."""
        with PlainErrors():
            try:
                return ask(self._begun())
            except AWAY:
                if self._planner is not None:
                    self._planner.connect_again()  # Its client does so by itself, but behind a proxy it need not.
                return ask(self._begun())
            except Unauthenticated:
                if self._planner is None:
                    raise
                self._planner.connect_again()
                return ask(self._planner)

    def _begun(self) -> _Planner:
        if self._planner is None:
            self._options.require_stream()
            self._planner = _Planner(self._options, self._schema, self._load)
        return self._planner


class _Planner:
    """What the planner process keeps: a connection, a lease, and what was said of the present run of the query."""

    def __init__(self, options: ChangeOptions, schema: StructType, load: Load) -> None:
        self._options = options
        self._schema = schema
        self._load = load
        self._connect(patience(self._load))
        self._lease = LogLease(self._client, self._table.name, options.source.lease_ttl_s)
        self._lease_id = new_lease_id()
        """Of a query that begins here: begun twice, it has one lease."""
        self._delay = Delay(options.limits)
        self._until: dict[int, int] | None = None
        self._target: Positions | None = None
        self.newest: dict[str, Any] | None = None

    def _connect(self, connect: Callable[[SourceOptions], Client]) -> None:
        client = connect(self._options.source)
        try:
            name = self._options.source.table
            table = client.table(name) if connect is open_client else ask_again(lambda: client.table(name))
            self._load.require_table(table)
            check_schema(self._schema, change_schema(table, self._options))
        except BaseException:
            client.close()
            raise
        self._client: Client = client
        self._table: Table = table
        self._logs = TableLogs(table, fail_on_data_loss=self._options.fail_on_data_loss)

    def connect_again(self) -> None:
        """Connect when the server is there, with the credentials that the files have now.

        They may have been in pieces when the client asked.
        """
        before = self._client
        self._connect(open_client_again)
        self._lease.go_on(self._client)
        before.close()

    def check(self) -> None:
        """See that where the stream is to begin can be; it may have begun, and then its lease keeps what it wants."""
        place = self._options.starting
        if place is not None and not isinstance(place, Full):
            self._logs.place("startingOffsets", place)

    def stop_at_ends(self) -> None:
        """Let this run of the query end where the logs end now."""
        self._target = self._logs.ends()
        self._until = {bucket: position.offset for bucket, position in self._target.items()}

    def next_end(self, start: StreamOffset, limits: Limits) -> StreamOffset:
        """The end of the next micro-batch; the start itself if there is none."""
        begun = self._begin() if start.phase == "initial" else start
        if begun.phase == "full" and start.phase == "initial":
            return begun  # The table is a micro-batch of its own.
        self._require_table(begun)
        behind = self._logs.behind(begun.buckets)
        self._lease.resume(begun.lease_id, behind.kept)
        self.newest = begun.at(behind.ends).to_json()
        now_s = time.monotonic()
        if self._until is None and self._delay.waits(behind.changes, now_s):
            return start
        buckets = self._logs.admit(behind, self._until, limits)
        if buckets != begun.buckets:
            self._delay.begin(now_s)
        if start.phase == "initial":
            return replace(begun, buckets=buckets, first=begun.buckets)
        return start if buckets == begun.buckets else start.at(buckets)

    def slices(self, start: StreamOffset, end: StreamOffset) -> list[Slice]:
        """What the tasks of a micro-batch read; its changes are leased from then on."""
        self._require_table(end)
        if start.phase == "initial" and end.phase == "full":
            self._lease.hold(end.lease_id, end.buckets)
            names = self._schema.fieldNames()
            return list(snapshot_slices(self._options, self._table, end.buckets, names))
        begin = end.first if start.phase == "initial" else start.buckets
        if begin is None or begin.keys() != end.buckets.keys():
            raise SourceError(f"the offsets {start.to_json()} and {end.to_json()} are not of one stream")
        ends: Mapping[int, int] = {bucket: position.offset for bucket, position in end.buckets.items()}
        self._lease.hold(end.lease_id, self._logs.behind(begin, ends).kept)
        return list(log_slices(self._options, end.table_id, begin, end.buckets))

    def close(self) -> None:
        """End the thread that renews the lease, and the connection."""
        self._lease.stop()
        self._client.close()
        self._lease.wait_stopped()

    def _begin(self) -> StreamOffset:
        """Where the stream begins, leased from now on."""
        place = self._options.starting or Full()
        if isinstance(place, Full) and self._target is not None:
            at: Positions = self._target  # Not later than what Spark was told to stop at.
        else:
            at = self._logs.start(place)
        if self._until is not None:
            # A start at the end, or at a time behind it, is not before where the query stops.
            self._until = {bucket: max(offset, at[bucket].offset) for bucket, offset in self._until.items()}
        phase = "full" if isinstance(place, Full) else "log"
        begun = StreamOffset(phase=phase, table_id=self._table.table_id, lease_id=self._lease_id, buckets=at)
        self._lease.hold(begun.lease_id, at)
        return begun

    def _require_table(self, offset: StreamOffset) -> None:
        require_same_table(self._table, offset.table_id)
        if len(offset.buckets) != self._table.buckets:
            raise SourceError(f"the offset {offset.to_json()} is not of table {self._table.name}")
