"""Live key-value tables of a weir server, in Spark.

    import weir.spark

    orders = spark.read.format("weir").option("endpoint", "127.0.0.1:9123").option("table", "orders").load()
    named = weir.spark.table(spark, "orders", endpoint="127.0.0.1:9123").where("item IS NOT NULL").load()

Runs on PySpark 4.2 and later, which finds the format by itself (`pyspark_weir`). The driver and every executor need
this package and its dependencies: Spark sends the classes to its Python workers by name, not by value.
`spark_source.batch.compare` reads one table in several modes and compares them; it is not imported here.

A name is imported when it is first used: what looks for formats and what runs in a task has no need of all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from scanner.extras import extras_needed

if TYPE_CHECKING:
    from spark_source.tables import TableRead, table, views

with extras_needed("the data source of Spark"):
    from spark_source.data_source import WeirDataSource, register
    from spark_source.errors import (
        SourceDataError,
        SourceDataLossError,
        SourceError,
        SourceMissingBatchesError,
        SourceOptionError,
        SourceSchemaError,
        SourceUnsupportedError,
    )

__all__ = [
    "SourceDataError",
    "SourceDataLossError",
    "SourceError",
    "SourceMissingBatchesError",
    "SourceOptionError",
    "SourceSchemaError",
    "SourceUnsupportedError",
    "TableRead",
    "WeirDataSource",
    "register",
    "table",
    "views",
]

_LATER: Final = ("TableRead", "table", "views")


def __getattr__(name: str) -> Any:
    """What needs the client, imported when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'spark_source' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("spark_source.tables"), name)
    return value
