"""What crosses Spark's pickle boundary arrives as it left."""

import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from scanner import ScanPlan, TableDescription, parse_where
from spark_source import (
    SourceError,
    SourceOptionError,
    SourceSchemaError,
    SourceUnsupportedError,
    WeirDataSource,
    release,
)
from spark_source.batch.partitions import BucketPartition
from spark_source.batch.reader import BucketReader
from spark_source.options import SourceOptions
from spark_source.stream.changes import ChangesReader
from spark_source.stream.reader import ChangeStreamReader
from spark_source.writing.writer import SaveWriter, StreamWriter
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

OF_ONE_RELEASE = [BucketReader, ChangesReader, ChangeStreamReader, SaveWriter, StreamWriter]
"""What Spark pickles to the tasks."""


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


@pytest.mark.parametrize("kind", OF_ONE_RELEASE)
def test_another_release_reads_nothing(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task gets is refused where another release is installed, before anything of it is read."""
    sent: Any = object.__new__(kind)
    sent.plan = PARTITION
    assert sent_to_worker(sent).plan == PARTITION
    arriving = pickled(sent)
    monkeypatch.setattr(release, "installed_version", lambda: "0.0.1")
    monkeypatch.setattr(BucketPartition, "__setstate__", None, raising=False)  # Not to be called.
    with pytest.raises(
        SourceError, match=r"the driver has weir .*, and this Python 0\.0\.1: install the same"
    ):
        pickle.loads(arriving)


def test_one_load_has_one_id() -> None:
    """Copies of a data source, and the readers that they make, are of one load; another data source is of another."""
    options = {"endpoint": "127.0.0.1:9123", "table": "orders"}
    schema = StructType().add("a", "long")
    source = WeirDataSource(options)
    copies = [source, sent_to_worker(source), sent_to_worker(source)]
    (load,) = {sent_to_worker(copy.reader(schema))._load for copy in copies}
    assert WeirDataSource(options).reader(schema)._load.id != load.id
