"""The demo's reads through Spark: the table in every mode, against the CSV as Spark itself reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.harness import flights
from spark_source.batch.compare import Comparison, Difference, compare, find_difference

RUNS = 3
CSV = "csv"


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
