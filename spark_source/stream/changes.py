"""A batch read of a table's changes: the changelogs between two places that are found when Spark plans.

As for every batch read, all copies of one ``load()`` read the same: two leases have its id in theirs, one of the start,
which keeps the changes and is renewed by the tasks, and one of the end; who plans first makes them, and who plans
second is told what the first has leased. With ``leaseTtl`` 0 there are none, and each plan finds its own end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from scanner import ScannerError
from spark_source.connection import open_client
from spark_source.errors import SourceError, SourceOptionError, without_traceback
from spark_source.schema import arrow_schema, check_schema
from spark_source.stream.log_lease import log_targets
from spark_source.stream.logs import TableLogs
from spark_source.stream.offsets import Position
from spark_source.stream.options import EARLIEST, LATEST, AtOffsets
from spark_source.stream.tasks import LogSlice, change_schema, log_slices, read_slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner.sync import Client
    from spark_source.stream.offsets import Positions
    from spark_source.stream.options import ChangeOptions


class ChangesReader(DataSourceReader):
    """Reads the changes of a table between two places.

    Args:
        options: The read.
        schema: The columns Spark wants, in its types and order.
        load_id: Of the ``load()``, the same in all copies of its reader.
    """

    def __init__(self, options: ChangeOptions, schema: StructType, load_id: str) -> None:
        self._options = options
        self._schema = schema
        self._load_id = load_id

    def partitions(self) -> list[LogSlice]:
        """One partition for each bucket that has changes there.

        Raises:
            SourceOptionError: An option does not go with a batch read, or does not fit the table.
            SourceSchemaError: The schema does not fit the table.
            SourceDataLossError: Changes are not kept any more.
            ScannerError: The table is gone, or the server cannot be asked.

        Waits:
            For the server, and for the lease.
        """
        try:
            self._options.require_batch()
            with open_client(self._options.source) as client:
                return self._plan(client)
        except (ScannerError, SourceError) as error:
            raise without_traceback(error) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; see `spark_source.stream.tasks.read_slice`."""
        assert isinstance(partition, LogSlice)
        try:
            yield from read_slice(partition, self._schema, arrow_schema(self._schema))
        except (ScannerError, SourceError) as error:
            raise without_traceback(error) from None

    def _plan(self, client: Client) -> list[LogSlice]:
        options = self._options
        table = client.table(options.source.table)
        check_schema(self._schema, change_schema(table, options))
        logs = TableLogs(table, fail_on_data_loss=options.fail_on_data_loss)
        end: Positions = logs.place("endingOffsets", options.ending or AtOffsets(LATEST))
        start: Positions = logs.place("startingOffsets", options.starting or AtOffsets(EARLIEST))
        if options.source.lease_ttl_s:
            end = self._agreed(client, "end", end)
            start = self._agreed(client, "start", start)
        for bucket, position in start.items():
            if position.offset > end[bucket].offset:
                raise SourceOptionError(
                    "endingOffsets",
                    str(end[bucket].offset),
                    f"the read ends before it begins: in bucket {bucket} at offset {end[bucket].offset}, and it"
                    f" begins at {position.offset}",
                )
        lease_id = f"{self._load_id}-start" if options.source.lease_ttl_s else None
        return log_slices(options, table.table_id, start, end, lease_id)

    def _agreed(self, client: Client, which: str, found: Positions) -> Positions:
        """What all copies of the load take for its start or its end: what the first of them has leased."""
        lease = client.acquire_lease(
            *log_targets(self._options.source.table, found),
            lease_id=f"{self._load_id}-{which}",
            ttl_s=self._options.source.lease_ttl_s,
            if_absent=True,
        )
        return {each.bucket: Position(each.log_offset, each.history) for each in lease.buckets}
