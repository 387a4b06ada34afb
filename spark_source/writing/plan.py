"""What a write does with the columns of a DataFrame, decided on the driver before a task begins.

A column goes to the table's column of its name, and only if every value of its type is one of the table's type: what
would have to be rounded, cut or taken for something else is refused by name. (A timestamp is the exception, because
Spark has only microseconds: whether it fits the table's unit is seen on its values, and one that does not fails its
task.) What a schema says of nulls proves nothing, since Spark calls nearly every column nullable: a null where none may
be fails its task, and nothing of the write is seen.

Pure: knows no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import types as spark

from spark_source.errors import SourceSchemaError, did_you_mean, listed
from spark_source.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Collection

    from scanner import TableDescription
    from spark_source.writing.options import WriteOptions

_LOG_OFFSET: Final = "_log_offset"
_OF_CHANGES: Final = frozenset([_LOG_OFFSET, "_commit_timestamp"])
"""Where and when a change was made: what a read of changes says of another table's log, and no column of this one."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the tasks of a write do with their rows. Plain values, so that it pickles small and anywhere."""

    table_id: int
    """Of the table that was planned with; another one of its name is not written."""
    key: tuple[str, ...]
    """Columns of the primary key, in key order."""
    columns: tuple[str, ...]
    """Columns of the DataFrame that are the table's."""
    absent: tuple[pa.Field, ...]
    """Columns of the table that the DataFrame has not; their values are null."""
    change_type: str | None
    """The column that says what kind of change a row is; None: every row is upserted."""
    of_log: bool = False
    """Whether the changes are of a log of ours, which has an offset of each: a row before an update comes before the
    one after it then, and alone where a condition left that one out. Those of others come in any order."""
    overwrite: bool = False
    """Whether rows of the table that are not written are deleted."""


def plan_write(
    schema: spark.StructType,
    table: TableDescription,
    table_id: int,
    options: WriteOptions,
    *,
    overwrite: bool = False,
) -> WritePlan:
    """Decide what is written where.

    Args:
        schema: Of the DataFrame.
        table: What is written to.
        table_id: Its id.
        options: The write.
        overwrite: Whether the rows are all that the table has then.

    Raises:
        SourceSchemaError: A key column, or one that must not be null, is missing; a column is not the table's, or is of
            a type that does not fit; or changes would overwrite the table.
    """
    names = schema.fieldNames()
    change_type = _change_type(schema, table, options)
    of_log = change_type is not None and _LOG_OFFSET in set(names) - set(table.column_names)
    given = {field.name: field for field in schema.fields}
    if len(given) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceSchemaError(twice, f"column {twice!r} is there twice: drop or rename one of them")
    if change_type is not None:
        if overwrite:
            raise SourceSchemaError(
                change_type,
                f"column {change_type!r} makes the rows changes of a table, which cannot overwrite it: append them, or"
                " drop the column",
            )
        del given[change_type]
        for name in _OF_CHANGES - set(table.column_names):
            given.pop(name, None)
    for name, field in given.items():
        if name not in table.column_names:
            raise SourceSchemaError(name, _describe_unknown(name, table))
        _require_fit(field, table.schema.field(name))
    absent = tuple(field for field in table.schema if field.name not in given)
    for field in absent:
        _require_absent_allowed(field, table, given)
    return WritePlan(table_id, table.primary_key, tuple(given), absent, change_type, of_log, overwrite)


def _change_type(schema: spark.StructType, table: TableDescription, options: WriteOptions) -> str | None:
    name = options.change_type_column
    if name not in schema.fieldNames():
        if options.requires_change_type:
            raise SourceSchemaError(
                name, f"option 'changeTypeColumn' names {name!r}, and the DataFrame has no such column"
            )
        return None
    if name in table.column_names:
        raise SourceSchemaError(
            name,
            f"table {table.name} has a column {name!r} itself: write its rows with the client; if the DataFrame's"
            " column is one of change kinds, rename that, and name it with option 'changeTypeColumn'",
        )
    if not isinstance(schema[name].dataType, spark.StringType):
        raise SourceSchemaError(
            name,
            f"column {name!r} says what kind of change a row is, and is {schema[name].dataType.simpleString()}, not"
            " string",
        )
    return name


def _describe_unknown(name: str, table: TableDescription) -> str:
    return (
        f"table {table.name} has no column {name!r}{did_you_mean(name, table.column_names)}"
        f" (it has {listed(table.column_names)}): drop it before the write"
    )


def _require_absent_allowed(field: pa.Field, table: TableDescription, given: Collection[str]) -> None:
    if field.name in table.primary_key:
        raise SourceSchemaError(
            field.name,
            f"the DataFrame has no column {field.name!r}, which is part of the primary key of table {table.name};"
            f" it has {listed(given) or 'none of its columns'}",
        )
    if not field.nullable:
        raise SourceSchemaError(
            field.name,
            f"the DataFrame has no column {field.name!r}, which is not nullable in table {table.name}: a write is of"
            " whole rows",
        )


def _require_fit(field: spark.StructField, stored: pa.Field) -> None:
    try:
        given = arrow_schema(spark.StructType([_plain(field)])).field(0).type
    except SourceSchemaError as error:
        raise SourceSchemaError(
            field.name, f"{error.problem}: cast it to the table's {stored.type} before the write"
        ) from None
    if not _holds(stored.type, given):
        raise SourceSchemaError(
            field.name,
            f"column {field.name!r} is {field.dataType.simpleString()}, and the table's is {stored.type}, which does"
            " not hold all of its values: cast it in Spark before the write",
        )


def _plain(field: spark.StructField) -> spark.StructField:
    """Strings of a collation, or of a length, are strings."""
    strings = (spark.StringType, spark.CharType, spark.VarcharType)
    if not isinstance(field.dataType, strings):
        return field
    return spark.StructField(field.name, spark.StringType())


def _holds(stored: pa.DataType, given: pa.DataType) -> bool:
    """Whether every value of the one type is one of the other, but for the unit of a timestamp."""
    types = pa.types
    if types.is_signed_integer(stored) and types.is_signed_integer(given):
        return bool(stored.bit_width >= given.bit_width)
    if types.is_floating(stored) and types.is_floating(given):
        return bool(stored.bit_width >= given.bit_width)
    if types.is_decimal(stored) and types.is_decimal(given):
        whole = stored.precision - stored.scale >= given.precision - given.scale
        return bool(whole and stored.scale >= given.scale)
    if types.is_timestamp(stored) and types.is_timestamp(given):
        return (stored.tz is None) == (given.tz is None)
    return bool(stored == given)
