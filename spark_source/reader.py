"""Plans a read on the driver and does it in the tasks.

A reader is made on the driver and pickled to the executors, by reference to this module, so `spark_source` and
`scanner` have to be installed there. Each task opens its own connection and scans one bucket.

Invariants:
1. What the driver knows of the table is asked for once per planning; a task never sees another schema than the
   one Spark planned with, or it fails.
2. A task holds at most the credit (push) or its pages (pull), one converted batch, and what Spark buffers.
3. Every task, retry and copy of a read in the modes push and asof reads one state of its bucket, or fails: that of
   option ``asOf``, or that of the planning, which the driver leases. (Not with ``leaseTtl`` 0.)
4. However `read` ends, by the end of data, an error or being closed half-way, its scan and its connection end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from scanner import Condition, ScanSource
from spark_source.connection import open_client
from spark_source.errors import SourceOptionError
from spark_source.filters import to_conditions
from spark_source.leasing import TaskLease, lease_states
from spark_source.partitions import BucketPartition, bucket_partitions
from spark_source.schema import STATISTICS_COLUMN, arrow_schema, check_schema, spark_schema, to_spark_batch
from spark_source.statistics import BucketReport, report_batch
from spark_source.tables import describe_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner import ScanStatistics, TableDescription
    from scanner.sync import Scan, Table
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
        self._conditions: tuple[Condition, ...] = ()
        self._table: TableDescription | None = None

    def partitions(self) -> list[BucketPartition]:
        """One partition per bucket, after checking that the table still is what Spark planned with.

        Raises:
            SourceSchemaError: It is not.
            SourceOptionError: Option ``asOf`` does not say what every bucket is read as of.
            TableNotFound: The table is gone.
            ScannerError: The lease could not be taken.

        Waits: For the server's description of the table, and for the lease.
        """
        table = self._describe()
        available = spark_schema(
            table.project(self._options.columns or ()), statistics=self._options.statistics
        )
        check_schema(self._schema, available)
        if not self._options.takes_lease:
            return bucket_partitions(self._options, _offsets_asked_for(self._options, table.buckets))
        with open_client(self._options) as client:
            planned = lease_states(client, self._options)
        return bucket_partitions(self._options, planned.offsets, planned.lease_id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scan one bucket.

        Yields:
            Arrow batches in key order, none of them empty, as the server cut them; with option ``statistics``, the
            report last.

        Raises:
            LeaseNotFound: The state that was planned is no longer kept; nothing was yielded.
            ScannerError: The scan failed; what was yielded before is a part.
            SourceSchemaError: A value has no equal in Spark's type.

        Waits: For the server, at most as long as its heartbeats come.
        """
        assert isinstance(partition, BucketPartition)
        target = arrow_schema(self._schema)
        with open_client(partition.options) as client:
            scan = self._scan(client.table(partition.table), partition)
            lease = TaskLease(client, partition.lease_id, partition.options.lease_ttl_s)
            lease.begin()
            with scan.execute() as batches:
                for batch in batches:
                    if batch.num_rows:
                        yield to_spark_batch(batch, target)
                    lease.renew_if_due()
            if partition.options.statistics:
                yield report_batch(_report(batches.statistics()), target)

    def _describe(self) -> TableDescription:
        if self._table is None:
            self._table = describe_table(self._options)
        return self._table

    def _scan(self, table: Table, partition: BucketPartition) -> Scan:
        options = partition.options
        columns = [name for name in self._schema.fieldNames() if name != STATISTICS_COLUMN]
        scan = table.new_scan().with_source(ScanSource.LIVE_KV).select(*columns).bucket(partition.bucket)
        scan = scan.where(*self._conditions).with_mode(options.mode)
        if partition.as_of is not None:
            scan = scan.as_of(partition.as_of)
        if options.credit_bytes is not None:
            scan = scan.with_credit(options.credit_bytes)
        if options.page_bytes is not None:
            scan = scan.with_page_bytes(options.page_bytes)
        if options.page_depth is not None:
            scan = scan.with_page_depth(options.page_depth)
        return scan


class FilteringBucketReader(BucketReader):
    """A `BucketReader` that lets the server evaluate the filters that it can.

    A class of its own, because Spark refuses a reader that has `pushFilters` unless
    ``spark.sql.python.filterPushdown.enabled`` is set, even if the query has no filter.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the conditions for the server; Spark is asked to evaluate every filter again.

        Waits: For the server's description of the table.
        """
        self._conditions = to_conditions(filters, self._describe().schema)
        return filters


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
