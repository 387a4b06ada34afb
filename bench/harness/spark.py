"""A local Spark for the benches."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from bench.harness.errors import BenchFailed

CORES_MAX = 4
LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def spark_session(name: str, **conf: str) -> Iterator[SparkSession]:
    """A local Spark for the length of the block, with this interpreter for its workers and no web page.

    Args:
        name: Of the application.
        conf: Further configuration, with `_` in place of the dots and without `spark.`.

    Raises:
        BenchFailed: It does not start.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    cores = min(CORES_MAX, os.cpu_count() or 1)
    # Said by PySpark 4.3 of the pandas that it runs with; no pandas is on the way of what is measured here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    options |= {f"spark.{key.replace('_', '.')}": value for key, value in conf.items()}
    for key, value in options.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise BenchFailed(f"Spark, which needs Java 17 or newer, does not start: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()
