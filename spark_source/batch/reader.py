"""Plans a read on the driver and does it in the tasks.

A reader is made on the driver and pickled to the executors, by reference to this module, so `spark_source` and
`scanner` have to be installed there. Each task opens its own connection and scans one bucket.

Spark keeps one reader, and the partitions that it gave, for each ``load()``, whatever is planned from it. So a reader
has no state that one plan could change for another: above all it takes no filters of Spark's (`pushFilters`).

Invariants:
1. Everything that the options say is checked against the table on the driver, before a task begins.
2. A task sees the table and the schema that Spark planned with, or fails: a table that was created anew is another one.
3. A task holds at most the credit (push) or its pages (pull), one converted batch, and what Spark buffers.
4. Every task, retry, copy and later use of a read in the modes push and asof reads one state of its bucket, or fails:
   that of option ``asOf``, or that of the planning, which the driver leases. (Not with ``leaseTtl`` 0.)
5. However `read` ends, by the end of data, an error or being closed half-way, its scan and its connection end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from scanner import OffsetOutOfRange, ScannerError, SnapshotLost
from spark_source.batch.leasing import PlannedStates, TaskLease, lease_states
from spark_source.batch.partitions import BucketPartition, bucket_partitions
from spark_source.batch.scans import plan_scan, require_same_table, require_still_same_table
from spark_source.batch.statistics import BucketReport, report_batch
from spark_source.connection import open_client
from spark_source.errors import SourceError, SourceOptionError, without_traceback
from spark_source.schema import STATISTICS_COLUMN, arrow_schema, check_schema, spark_schema, to_spark_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner import ScanStatistics
    from scanner.sync import Client
    from spark_source.options import SourceOptions


class BucketReader(DataSourceReader):
    """Reads a table bucket by bucket.

    Args:
        options: The read.
        schema: The columns Spark wants, in its types and order.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[BucketPartition]:
        """One partition per bucket, after checking that the table still is what Spark planned with.

        Raises:
            SourceSchemaError: It is not.
            SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table, or ``asOf`` does not
                say what every bucket is read as of.
            TableNotFound: The table is gone.
            ScannerError: The lease could not be taken.

        Waits: For the server's description of the table, and for the lease.
        """
        try:
            with open_client(self._options) as client:
                return self._plan(client)
        except (ScannerError, SourceError) as error:
            raise without_traceback(error) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scan one bucket.

        Yields:
            Arrow batches in key order, none of them empty, as the server cut them; with option ``statistics``, the
            report last.

        Raises:
            SnapshotLost: The state that was planned is no longer kept, and the changelog does not reach back to it;
                nothing was yielded.
            TableNotFound: The table was dropped; nothing was yielded if another has its name.
            ScannerError: The scan failed; what was yielded before is a part.
            SourceSchemaError: A value has no equal in Spark's type.

        Waits: For the server, at most as long as its heartbeats come.
        """
        assert isinstance(partition, BucketPartition)
        try:
            yield from self._read(partition)
        except (SnapshotLost, OffsetOutOfRange) as error:
            if not partition.options.takes_lease:
                raise without_traceback(error) from None
            raise SnapshotLost(
                f"the state that Spark planned to read is no longer kept: {error.message}; load the DataFrame again,"
                " and give option leaseTtl more seconds if it is used for long",
                oldest_offset=error.oldest_offset,
            ) from None
        except (ScannerError, SourceError) as error:
            raise without_traceback(error) from None

    def _plan(self, client: Client) -> list[BucketPartition]:
        options = self._options
        table = client.table(options.table)
        available = spark_schema(plan_scan(table, options).schema, statistics=options.statistics)
        check_schema(self._schema, available)
        if options.takes_lease:
            planned = lease_states(client, options)
        else:
            offsets = _offsets_asked_for(options, table.buckets)
            planned = PlannedStates(None, tuple(offsets), (b"",) * table.buckets)
        return bucket_partitions(options, table.table_id, planned)

    def _read(self, partition: BucketPartition) -> Iterator[pa.RecordBatch]:
        options = partition.options
        target = arrow_schema(self._schema)
        columns = [name for name in self._schema.fieldNames() if name != STATISTICS_COLUMN]
        with open_client(options) as client:
            table = client.table(options.table)
            require_same_table(table, partition.table_id)
            scan = plan_scan(table, options).select(*columns).bucket(partition.bucket)
            if partition.as_of is not None:
                scan = scan.as_of(partition.as_of, {partition.bucket: partition.history})
            lease = TaskLease(client, partition.lease_id, options.lease_ttl_s)
            lease.begin()
            with scan.execute() as batches:
                batch = next(batches, None)
                # Now the scan is open, on one table for good, and nothing has been yielded.
                require_still_same_table(client, options.table, partition.table_id)
                while batch is not None:
                    if batch.num_rows:
                        yield to_spark_batch(batch, target)
                    lease.renew_if_due()
                    batch = next(batches, None)
            if options.statistics:
                yield report_batch(_report(batches.statistics()), target)


def _offsets_asked_for(options: SourceOptions, buckets: int) -> list[int | None]:
    """What option ``asOf`` says of each bucket.

    Raises:
        SourceOptionError: Not of every bucket, or of one that is not there.
    """
    if options.as_of is None or isinstance(options.as_of, int):
        return [options.as_of] * buckets
    named = [bucket for bucket, _ in options.as_of]
    if named != list(range(buckets)):
        value = ",".join(f"{bucket}:{offset}" for bucket, offset in options.as_of)
        raise SourceOptionError(
            "asOf",
            value,
            f"option 'asOf' cannot be {value!r}: table {options.table} has the buckets 0 to {buckets - 1},"
            " and each of them needs an offset",
        )
    return [offset for _, offset in options.as_of]


def _report(statistics: ScanStatistics) -> BucketReport:
    """The report on a scan of one bucket that came to its end."""
    (bucket,) = statistics.buckets
    # Both came, or the scan had failed.
    assert bucket.log_offset is not None
    assert bucket.digest is not None
    return BucketReport(
        bucket=bucket.bucket,
        log_offset=bucket.log_offset,
        rows=bucket.rows,
        digest=bucket.digest,
        bytes_received=statistics.bytes_received,
        requests=statistics.requests,
        first_batch_s=statistics.first_batch_s,
        overrun_bytes=statistics.overrun_bytes,
        held_bytes_max=statistics.held_bytes_max,
        states=bucket.states,
        stalls=statistics.stalls.to_dict(),
        server_stalls=statistics.server_stalls.to_dict(),
    )
