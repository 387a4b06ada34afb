"""Arrow types of a table, as Spark SQL types, and batches of the one as batches of the other.

Spark takes Arrow batches from a Python source only if their schema is *exactly* what it derives from its own
schema: microsecond timestamps, UTC for those with a time zone, 32-bit offsets, the same nullability. What a
table stores in another unit is cast here, and only if no value changes by it.

This module knows no network and no options.
"""

from __future__ import annotations

import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from spark_source.errors import SourceSchemaError, listed

_EPOCH: Final = datetime.date(1970, 1, 1)
_DAYS: Final = range((datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days + 1)
"""What Spark documents for DATE and TIMESTAMP: the years 1 to 9999. Past them its parts disagree."""
_MICROSECONDS: Final = range(_DAYS.start * 86_400_000_000, _DAYS.stop * 86_400_000_000)

STATISTICS_COLUMN = "_weir_statistics"
"""Column that option ``statistics`` adds: null in rows of the table, JSON in the report that ends each bucket."""

_ARROW_TYPES: dict[type[spark.DataType], pa.DataType] = {
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.DateType: pa.date32(),
    spark.StringType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.TimestampType: pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
}


def spark_schema(schema: pa.Schema, *, statistics: bool = False) -> spark.StructType:
    """The Spark schema of a table, or of some of its columns.

    Args:
        schema: Arrow schema of the columns, in the order wanted.
        statistics: Whether to add `STATISTICS_COLUMN`. The report's row has nulls in all the other columns,
            so they all become nullable.

    Raises:
        SourceSchemaError: A column is of a type that Spark SQL does not have.
    """
    fields = [
        spark.StructField(field.name, _spark_type(field), field.nullable or statistics) for field in schema
    ]
    if statistics:
        if STATISTICS_COLUMN in schema.names:
            raise SourceSchemaError(
                STATISTICS_COLUMN,
                f"the table has a column {STATISTICS_COLUMN!r}: read it without option 'statistics'",
            )
        fields.append(spark.StructField(STATISTICS_COLUMN, spark.StringType(), True))
    return spark.StructType(fields)


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """The only Arrow schema that Spark accepts from a source that declared `schema`.

    Raises:
        SourceSchemaError: A column is of a Spark type that no table has.
    """
    return pa.schema([pa.field(f.name, _arrow_type(f), nullable=f.nullable) for f in schema.fields])


def check_schema(requested: spark.StructType, available: spark.StructType) -> None:
    """Check that a schema given by the user, or cached since an earlier load, fits the table as it is.

    Args:
        requested: The columns Spark is going to ask for.
        available: The columns there are, with `STATISTICS_COLUMN` if option ``statistics`` is set.

    Raises:
        SourceSchemaError: A column is missing, has another type, or is nullable and was declared not to be.
    """
    there = {field.name: field for field in available.fields}
    for field in requested.fields:
        if field.name not in there:
            raise SourceSchemaError(
                field.name, f"the table has no column {field.name!r}; it has {listed(there)}"
            )
        actual = there[field.name]
        if field.dataType != actual.dataType:
            raise SourceSchemaError(
                field.name,
                f"column {field.name!r} is {actual.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: read it as it is and cast it in Spark",
            )
        if actual.nullable and not field.nullable:
            raise SourceSchemaError(
                field.name, f"column {field.name!r} can be null: do not declare it NOT NULL"
            )
    if STATISTICS_COLUMN in there and STATISTICS_COLUMN not in requested.fieldNames():
        raise SourceSchemaError(
            STATISTICS_COLUMN,
            f"with option 'statistics' the schema needs a column {STATISTICS_COLUMN} STRING",
        )


def to_spark_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """One batch of the table in the form that Spark accepts; columns that fit already are not copied.

    Args:
        batch: Rows of the table; has every column of `target` but `STATISTICS_COLUMN`, which becomes null.
        target: From `arrow_schema`.

    Raises:
        SourceSchemaError: A value has no equal in Spark's type, such as a timestamp finer than a microsecond.
    """
    columns = [
        pa.nulls(batch.num_rows, field.type)
        if field.name == STATISTICS_COLUMN
        else _cast(batch.column(field.name), field)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type != field.type:
        try:
            column = column.cast(field.type, safe=True)
        except pa.ArrowException as error:
            raise SourceSchemaError(
                field.name,
                f"column {field.name!r} holds a {column.type} that Spark's {field.type} cannot: {error}; "
                "leave the column out with option 'columns'",
            ) from None
    if pa.types.is_timestamp(field.type):
        _require_in_range(column, field, _MICROSECONDS, "microseconds")
    elif pa.types.is_date32(field.type):
        _require_in_range(column, field, _DAYS, "days")
    return column


def _require_in_range(column: pa.Array, field: pa.Field, bounds: range, unit: str) -> None:
    extremes = pc.min_max(column)
    for found in (extremes["min"].value, extremes["max"].value):
        if found is not None and found not in bounds:
            raise SourceSchemaError(
                field.name,
                f"column {field.name!r} holds {found} {unit} since 1970, which is not in the years 1 to 9999 of Spark's"
                f" {field.type}; leave the column out with option 'columns'",
            )


def _spark_type(field: pa.Field) -> spark.DataType:
    kind = field.type
    for spark_type, arrow_type in _ARROW_TYPES.items():
        if arrow_type.equals(kind):
            return spark_type()
    if pa.types.is_timestamp(kind):
        return spark.TimestampNTZType() if kind.tz is None else spark.TimestampType()
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return spark.DecimalType(kind.precision, kind.scale)
    raise SourceSchemaError(
        field.name,
        f"column {field.name!r} is {kind}, which Spark SQL does not have: "
        "leave the column out with option 'columns'",
    )


def _arrow_type(field: spark.StructField) -> pa.DataType:
    kind = field.dataType
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if type(kind) not in _ARROW_TYPES:
        raise SourceSchemaError(
            field.name,
            f"column {field.name!r} is {kind.simpleString()}, and no table has columns of this type",
        )
    return _ARROW_TYPES[type(kind)]
