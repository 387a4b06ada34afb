"""The demo's reads through Spark: the table in every mode, against the CSV as Spark itself reads it."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.harness import flights
from spark_source.batch.compare import Comparison, Difference, compare, find_difference

RUNS = 3
CORES_MAX = 4
CSV = "csv"
LOGGING = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkResult:
    """What Spark found."""

    comparison: Comparison
    """The modes against each other, and what each cost."""
    to_csv: tuple[Difference, ...]
    """The CSV against each mode."""
    java: str
    """Version of the JVM."""

    @property
    def equal(self) -> bool:
        """Whether every mode delivers what the CSV holds."""
        return self.comparison.equal and all(difference.equal for difference in self.to_csv)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A local Spark for the length of the block, with this interpreter for its workers and no web page."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    cores = min(CORES_MAX, os.cpu_count() or 1)
    # Said by PySpark 4.3 of the pandas that it runs with; no pandas is on the way of what is measured here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("weir demo")
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
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def read_by_spark(spark: SparkSession, endpoint: str, csv: Path, modes: Sequence[str]) -> SparkResult:
    """Compare the modes with each other and each with the CSV. Nobody may write meanwhile."""
    comparison = compare(spark, endpoint, flights.TABLE, modes, runs=RUNS)
    expected = spark.read.csv(
        str(csv), schema=flights.spark_ddl(), header=True, nullValue=flights.NULL
    ).cache()
    differences = []
    for mode in modes:
        options = {"endpoint": endpoint, "table": flights.TABLE, "mode": mode}
        found = spark.read.format("weir").options(**options).load()
        differences.append(find_difference(expected, found, names=(CSV, mode)))
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    return SparkResult(comparison=comparison, to_csv=tuple(differences), java=str(java))
