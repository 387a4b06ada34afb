"""The data source of Spark; see `spark_source`."""

from spark_source import (
    SourceDataError,
    SourceDataLossError,
    SourceError,
    SourceMissingBatchesError,
    SourceOptionError,
    SourceSchemaError,
    SourceUnsupportedError,
    TableRead,
    WeirDataSource,
    register,
    table,
    views,
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
