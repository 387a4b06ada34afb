"""Plans a read on the driver and does it in the tasks.

A reader is made on the driver and pickled to the executors, by reference to this module, so `spark_source` and
`scanner` have to be installed there. The driver plans over one connection. Each task opens its own, and on it one scan,
of a range of keys of one bucket; it asks for nothing else, but to renew the lease.

Spark keeps one reader, and the partitions that it gave, for each ``load()``, whatever is planned from it. So a reader
has no state that one plan could change for another: above all it takes no filters of Spark's (`pushFilters`).

Invariants:
1. Everything that the options say is checked against the table on the driver, before a task begins.
2. A task sees the table and the schema that Spark planned with, or fails: a table that was created anew is another one.
3. A task holds at most the credit (push) or its pages (pull), one converted batch, and what Spark buffers.
4. Every task, retry, copy and later use of a read in the modes push and asof reads one state of its bucket, or fails:
   that of option ``asOf``, ``asOfTimestamp`` or ``leaseId``, or that of the planning, which the driver leases. (Not
   with ``leaseTtl`` 0.)
5. However `read` ends, by the end of data, an error or being closed half-way, its scan and its connection end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from scanner import OffsetOutOfRange, SnapshotLost, TableNotFound
from spark_source.batch.leasing import TaskLease
from spark_source.batch.partitions import BucketPartition
from spark_source.batch.planning import bucket_partitions, plan_states
from spark_source.batch.scans import plan_scan
from spark_source.batch.statistics import BucketReport, report_batch
from spark_source.connection import ask, open_client_again, patience
from spark_source.errors import PlainErrors
from spark_source.release import OfOneRelease
from spark_source.schema import STATISTICS_COLUMN, arrow_schema, check_schema, spark_schema, to_spark_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from scanner import ScanStatistics
    from scanner.sync import Client
    from spark_source.load import Load
    from spark_source.options import SourceOptions


def read_schema(options: SourceOptions) -> tuple[StructType, int]:
    """The schema of what the options read, and the id of its table.

    Raises:
        SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table.
        SourceSchemaError: A column is of a type that Spark SQL does not have.
        ScannerError: There is no such table or column, or the server cannot be asked.

    Waits: For the server's description of the table.
    """

    def described(client: Client) -> tuple[pa.Schema, int]:
        table = client.table(options.table)
        return plan_scan(table, options).schema, table.table_id

    columns, table_id = ask(options, described)
    return spark_schema(columns, statistics=options.statistics), table_id


class BucketReader(OfOneRelease, DataSourceReader):
    """Reads a table bucket by bucket.

    Args:
        options: The read.
        schema: The columns Spark wants, in its types and order.
        load: The ``load()``, the same in all copies of its reader.
    """

    def __init__(self, options: SourceOptions, schema: StructType, load: Load) -> None:
        self._options = options
        self._schema = schema
        self._load = load

    def partitions(self) -> list[BucketPartition]:
        """One partition per bucket, or per range of its keys, after checking that the table is what Spark planned with.

        Raises:
            SourceSchemaError: It is not.
            SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table, or ``asOf``,
                ``asOfTimestamp`` or ``leaseId`` does not say what every bucket is read as of.
            TableNotFound: The table is gone, or another one has its name since Spark asked for the schema.
            ScannerError: The lease could not be taken, or the changelog does not reach back to what is asked for.

        Waits: For the server's description of the table, for the lease, and for where buckets are to be cut; half a
            minute for the server to be there, if it was there for the schema.
        """
        with PlainErrors():
            return ask(self._options, self._plan, patience(self._load))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scan one partition.

        Yields:
            Arrow batches in key order, none of them empty, as the server cut them; with option ``statistics``, the
            report last.

        Raises:
            SnapshotLost: The state that was planned is no longer kept, and the changelog does not reach back to it;
                nothing was yielded.
            TableNotFound: The table was dropped; nothing was yielded if another has its name.
            ScannerError: The scan failed; what was yielded before is a part.
            SourceSchemaError: A value has no equal in Spark's type.

        Waits: For the server: half a minute for it to be there, and then at most as long as its heartbeats come.
        """
        assert isinstance(partition, BucketPartition)
        with PlainErrors():
            try:
                yield from self._read(partition)
            except TableNotFound as error:
                raise TableNotFound(
                    f"the table that Spark planned to read is gone: {error.message}; load the DataFrame again"
                ) from None
            except (SnapshotLost, OffsetOutOfRange) as error:
                if not partition.options.takes_lease:
                    raise
                raise SnapshotLost(
                    f"the state that Spark planned to read is no longer kept: {error.message}; load the DataFrame"
                    " again, and give option leaseTtl more seconds if it is used for long",
                    oldest_offset=error.oldest_offset,
                ) from None

    def _plan(self, client: Client) -> list[BucketPartition]:
        options = self._options
        table = client.table(options.table)
        self._load.require_table(table)
        scan = plan_scan(table, options)
        check_schema(self._schema, spark_schema(scan.schema, statistics=options.statistics))
        scan = scan.select(*(name for name in self._schema.fieldNames() if name != STATISTICS_COLUMN))
        planned = plan_states(client, table, options, self._load, scan.reads)
        return bucket_partitions(options, scan, table, planned)

    def _read(self, partition: BucketPartition) -> Iterator[pa.RecordBatch]:
        target = arrow_schema(self._schema)
        with open_client_again(partition.options) as client:
            lease = TaskLease(
                client, () if partition.lease_id is None else (partition.lease_id,), partition.lease_ttl_s
            )
            lease.begin()
            with client.scan(partition.plan).execute() as batches:
                for batch in batches:
                    yield to_spark_batch(batch, target)
                    lease.renew_if_due()
            if partition.options.statistics:
                yield report_batch(_report(partition, batches.statistics()), target)


def _report(partition: BucketPartition, statistics: ScanStatistics) -> BucketReport:
    """The report on a scan that came to its end."""
    (bucket,) = statistics.buckets
    # All came, or the scan had failed.
    assert bucket.log_offset is not None
    assert bucket.digest is not None
    assert bucket.stored_bytes is not None
    return BucketReport(
        bucket=bucket.bucket,
        split=partition.split,
        log_offset=bucket.log_offset,
        rows=bucket.rows,
        digest=bucket.digest,
        stored_bytes=bucket.stored_bytes,
        bytes_received=statistics.bytes_received,
        requests=statistics.requests,
        first_batch_s=statistics.first_batch_s,
        overrun_bytes=statistics.overrun_bytes,
        held_bytes_max=statistics.held_bytes_max,
        states=bucket.states,
        stalls=statistics.stalls.to_dict(),
        server_stalls=statistics.server_stalls.to_dict(),
    )
