"""Live key-value tables of a weir server, in Spark.

    from weir.spark import WeirDataSource

    spark.dataSource.register(WeirDataSource)
    orders = spark.read.format("weir").option("endpoint", "127.0.0.1:9123").option("table", "orders").load()

Runs on PySpark 4.2 and later. The driver and every executor need this package and its dependencies: Spark sends
the classes to its Python workers by name, not by value. `spark_source.batch.compare` reads one table in several modes
and compares them; it is not imported here, because tasks do not need it.
"""

from scanner.extras import extras_needed

with extras_needed("the data source of Spark"):
    from spark_source.data_source import WeirDataSource, register
    from spark_source.errors import (
        SourceDataLossError,
        SourceError,
        SourceOptionError,
        SourceSchemaError,
        SourceUnsupportedError,
    )

__all__ = [
    "SourceDataLossError",
    "SourceError",
    "SourceOptionError",
    "SourceSchemaError",
    "SourceUnsupportedError",
    "WeirDataSource",
    "register",
]
