"""What crosses Spark's pickle boundary arrives as it left."""

import subprocess
import sys

import pytest

from spark_source import SourceOptionError, SourceSchemaError, SourceUnsupportedError, WeirDataSource
from spark_source.batch.leasing import PlannedStates
from spark_source.batch.partitions import BucketPartition, bucket_partitions
from spark_source.options import SourceOptions
from tests.support.pickling import pickled, sent_to_worker

OPTIONS = SourceOptions(endpoint="127.0.0.1:9123", table="orders", columns=("a", "b"), credit_bytes=1)


def test_partitions() -> None:
    """There is one partition per bucket, in order, each with what its task needs and no more."""
    partitions = bucket_partitions(OPTIONS, 4, PlannedStates("spark-1", (5, 6, 7), (b"x" * 16, b"", b"")))
    assert [partition.bucket for partition in partitions] == [0, 1, 2]
    assert [partition.history for partition in partitions] == [b"x" * 16, b"", b""]
    assert {partition.table_id for partition in partitions} == {4}
    assert [(partition.as_of, partition.lease_id) for partition in partitions] == [
        (5, "spark-1"),
        (6, "spark-1"),
        (7, "spark-1"),
    ]
    assert sent_to_worker(partitions) == partitions
    assert len(pickled(partitions[0])) < 600


def test_partition_shows_what_it_is() -> None:
    """A partition in Spark's log says which bucket of which table it is."""
    shown = repr(BucketPartition(table_id=4, bucket=2, options=OPTIONS))
    assert "table_id=4, bucket=2" in shown
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
    sent = pickled((WeirDataSource, bucket_partitions(OPTIONS, 4, PlannedStates(None, (5,), (b"",)))[0]))
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer))"
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert b"spark_source.data_source.WeirDataSource" in done.stdout
    assert b"table_id=4, bucket=0" in done.stdout
