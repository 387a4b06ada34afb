"""One JVM and one server for all the tests of a session that need them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from scanner.server.config import ScannerConfig
from scanner.sync import Client, connect
from tests.spark_source import jvm, python_of_workers
from tests.spark_source.cluster.processes import Cluster, running_cluster
from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session, which finds format `weir` by itself, and whose workers are this Python."""
    python = python_of_workers.write_python(tmp_path_factory.mktemp("python"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", str(python))
        session = (
            SparkSession.builder.master("local[2, 2]")  # Two cores, and two attempts for each task.
            .appName("weir tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", jvm.OPTIONS)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of two workers, beside the local session."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a data directory of its own.

    It closes buckets that nobody reads, so that the tables of hundreds of tests do not take a thousand descriptors of
    this process: PySpark waits for its own sockets with select, which knows no descriptor from 1024 on.
    """
    config = ScannerConfig(buckets_open_max=32)
    with running_server(tmp_path_factory.mktemp("weir"), config) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A blocking client of the server."""
    with connect(server.endpoint) as client:
        yield client
