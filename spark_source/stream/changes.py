"""A batch read of a table's changes: the changelogs between two places that are found when Spark plans.

As for every batch read, all copies of one ``load()`` read the same: two leases have its id in theirs, one of the start,
which keeps the changes, and one of the end. The tasks renew both. Who plans first makes them; who plans later is told
what the first has leased, or is refused if one of them has ended meanwhile. With ``leaseTtl`` 0 there are none, and
each plan finds its own end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_source.batch.leasing import shared_lease
from spark_source.connection import ask, patience
from spark_source.errors import PlainErrors, SourceOptionError
from spark_source.release import OfOneRelease
from spark_source.schema import check_schema
from spark_source.stream.log_lease import log_targets
from spark_source.stream.logs import TableLogs
from spark_source.stream.offsets import Position
from spark_source.stream.options import EARLIEST, LATEST, AtOffsets
from spark_source.stream.tasks import LogSlice, change_schema, log_slices, read_slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner import LeaseInfo
    from scanner.sync import Client, Table
    from spark_source.load import Load
    from spark_source.stream.offsets import Positions
    from spark_source.stream.options import ChangeOptions


class ChangesReader(OfOneRelease, DataSourceReader):
    """Reads the changes of a table between two places.

    Args:
        options: The read.
        schema: The columns Spark wants, in its types and order.
        load: The ``load()``, the same in all copies of its reader.
    """

    def __init__(self, options: ChangeOptions, schema: StructType, load: Load) -> None:
        self._options = options
        self._schema = schema
        self._load = load

    def partitions(self) -> list[LogSlice]:
        """One partition for each bucket that has changes there.

        Raises:
            SourceOptionError: An option does not go with a batch read, or does not fit the table.
            SourceSchemaError: The schema does not fit the table.
            SourceDataLossError: Changes are not kept any more.
            SnapshotLost: They were planned before, and what was planned then is not known any more.
            ScannerError: The table is gone, or the server cannot be asked.

        Waits:
            For the server, and for the lease; half a minute for the server to be there, if it was there for the schema.
        """
        with PlainErrors():
            self._options.require_batch()
            return ask(self._options.source, self._plan, patience(self._load))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; see `spark_source.stream.tasks.read_slice`.

        Args:
            partition: One of `partitions`. Where these are none Spark has one of its own read, in which nothing is.
        """
        if not isinstance(partition, LogSlice):
            return
        with PlainErrors():
            yield from read_slice(partition, self._schema)

    def _plan(self, client: Client) -> list[LogSlice]:
        options = self._options
        table = client.table(options.source.table)
        self._load.require_table(table)
        check_schema(self._schema, change_schema(table, options))
        logs = TableLogs(table, fail_on_data_loss=options.fail_on_data_loss)

        def find_end() -> Positions:
            return logs.place("endingOffsets", options.ending or AtOffsets(LATEST))

        def find_start() -> Positions:
            return logs.start(options.starting or AtOffsets(EARLIEST))

        lease_ids: tuple[str, ...] = ()
        if options.source.lease_ttl_s:
            leases = (
                self._agreed(client, table, "-end", find_end),
                self._agreed(client, table, "-start", find_start),
            )
            end, start = map(_positions, leases)
            lease_ids = tuple(lease.lease_id for lease in leases)
        else:
            end, start = find_end(), find_start()
        for bucket, position in start.items():
            if position.offset > end[bucket].offset:
                raise SourceOptionError(
                    "endingOffsets",
                    str(end[bucket].offset),
                    f"the read ends before it begins: in bucket {bucket} at offset {end[bucket].offset}, and it"
                    f" begins at {position.offset}",
                )
        return log_slices(options, table.table_id, start, end, lease_ids)

    def _agreed(self, client: Client, table: Table, of: str, find: Callable[[], Positions]) -> LeaseInfo:
        """What all copies of the load take for its start or its end: what the first of them has leased."""
        source = self._options.source
        return shared_lease(
            client, table, self._load, lambda: log_targets(source.table, find()), source.lease_ttl_s, of
        )


def _positions(lease: LeaseInfo) -> Positions:
    return {each.bucket: Position(each.log_offset, each.history) for each in lease.buckets}
