"""The data source of Spark; see `spark_source`."""

from spark_source import (
    SourceError,
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
    "SourceError",
    "SourceOptionError",
    "SourceSchemaError",
    "SourceUnsupportedError",
    "TableRead",
    "WeirDataSource",
    "register",
    "table",
    "views",
]
