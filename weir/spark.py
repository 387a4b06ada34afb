"""The data source of Spark; see `spark_source`."""

from spark_source import (
    SourceDataLossError,
    SourceError,
    SourceOptionError,
    SourceSchemaError,
    SourceUnsupportedError,
    WeirDataSource,
    register,
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
