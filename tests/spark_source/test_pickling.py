"""What crosses Spark's pickle boundary arrives as it left."""

import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from scanner import ScanPlan, TableDescription, parse_where
from spark_source import SourceOptionError, SourceSchemaError, SourceUnsupportedError, WeirDataSource
from spark_source.batch.partitions import BucketPartition
from spark_source.options import SourceOptions
from tests.support.pickling import pickled, sent_to_worker

OPTIONS = SourceOptions(endpoint="127.0.0.1:9123", table="orders", columns=("a", "b"), credit_bytes=1)


ORDERS = TableDescription(
    name="orders", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]), primary_key=("a",), buckets=4
)
PLAN = ScanPlan(
    table=ORDERS,
    table_id=4,
    columns=("a", "b"),
    predicates=parse_where("a > 5 AND b LIKE 'x%'").predicates,
    bucket=2,
    as_of=6,
    histories={2: b"x" * 16},
)
PARTITION = BucketPartition(options=OPTIONS, plan=PLAN, split=1, lease_id="spark-1", lease_ttl_s=600.0)


def test_partitions() -> None:
    """A partition has what its task needs, and no more than a message of a task can hold many times."""
    copy = sent_to_worker(PARTITION)
    assert copy == PARTITION
    assert (copy.bucket, copy.plan.predicates) == (2, PLAN.predicates)
    assert len(pickled(PARTITION)) < 1500


def test_partition_shows_what_it_is() -> None:
    """A partition in Spark's log says which bucket of which table it is."""
    shown = repr(PARTITION)
    assert "table_id=4" in shown
    assert "bucket=2" in shown
    assert "table='orders'" in shown


@pytest.mark.parametrize(
    "error",
    [
        SourceOptionError("mode", "pull", "one line"),
        SourceOptionError("table", None, "it"),
        SourceSchemaError("c", "why"),
        SourceUnsupportedError("not yet"),
    ],
    ids=repr,
)
def test_errors(error: Exception) -> None:
    """Errors keep their class, attributes and message."""
    copy = sent_to_worker(error)
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


def test_data_source_goes_by_reference() -> None:
    """Executors import the class; they are not sent its code."""
    assert sent_to_worker(WeirDataSource) is WeirDataSource
    assert len(pickled(WeirDataSource)) < 200


def test_a_python_that_has_imported_nothing_understands() -> None:
    """Class, partition and options arrive in a process that has not heard of weir."""
    sent = pickled((WeirDataSource, PARTITION))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert b"spark_source.data_source.WeirDataSource" in done.stdout
    assert b"bucket=2" in done.stdout


def test_one_load_has_one_id() -> None:
    """Copies of a data source, and the readers that they make, are of one load; another data source is of another."""
    options = {"endpoint": "127.0.0.1:9123", "table": "orders"}
    schema = StructType().add("a", "long")
    source = WeirDataSource(options)
    copies = [source, sent_to_worker(source), sent_to_worker(source)]
    (load,) = {sent_to_worker(copy.reader(schema))._load for copy in copies}
    assert WeirDataSource(options).reader(schema)._load.id != load.id
