"""What a table is: its name, its schema, its primary key, its bucket count, and which Arrow types can be stored.

A `TableDescription` that exists is valid: its construction checks everything. Stored types are bool, int8
to int64, float32, float64, decimal128, date32, timestamp (any unit, with or without zone), string and
binary. Other layouts of the same values (large_string, string_view, dictionary-encoded strings, ...) are
accepted at this boundary and normalised: the description holds the stored type, `conform` casts the
batches, where no value changes by it. Types whose values would change (unsigned and half-precision numbers, date64,
time, nested types) are refused by name.

This module knows no encoding and no storage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from scanner.data.arrow_sizes import require_size, spelled_out_bytes, stored_bytes_min
from scanner.data.exact_casts import cast_exactly, require_castable
from scanner.errors import ArgumentInvalid, ColumnNotFound, KeyInvalid, SchemaMismatch, TableNotFound
from scanner.escapes import listed

BUCKETS_MAX = 1024
COLUMNS_MAX = 4096
COLUMN_NAME_BYTES_MAX = 512
"""In UTF-8. Every description of the table and every block of its rows carries the names."""
DECIMAL_SCALE_MAX = 1_000
"""Of a decimal column, above 0 and below: a filter works out that power of ten."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class TableDescription:
    """A table as its users see it.

    Args:
        name: A letter or underscore, then letters, digits, `_`, `.`, `-`; 128 characters at most.
        schema: Columns in order. Types are normalised, key columns become not nullable, metadata is dropped.
        primary_key: Names of the key columns, in key order, which is the order of every scan.
        buckets: Shards, 1 to 1024; fixed for the life of the table.

    Raises:
        ArgumentInvalid: name or bucket count is out of range, or a column or key column is named twice.
        ColumnNotFound: a key column is not in the schema.
        SchemaMismatch: a column's type cannot be stored, or there are no columns.
        KeyInvalid: the primary key is empty.
    """

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    buckets: int

    def __post_init__(self) -> None:
        require_table_name(self.name)
        if not 1 <= self.buckets <= BUCKETS_MAX:
            raise ArgumentInvalid(f"a table has 1 to {BUCKETS_MAX} buckets, not {self.buckets}")
        object.__setattr__(self, "primary_key", tuple(self.primary_key))
        _check_columns(self.schema, self.primary_key)
        object.__setattr__(self, "schema", pa.schema([self._stored_field(field) for field in self.schema]))

    def _stored_field(self, field: pa.Field) -> pa.Field:
        nullable = field.nullable and field.name not in self.primary_key
        return pa.field(field.name, stored_type(field.name, field.type), nullable=nullable)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all columns, in schema order."""
        return tuple(self.schema.names)

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns alone, in key order."""
        return pa.schema([self.schema.field(name) for name in self.primary_key])

    def project(self, columns: Sequence[str] = ()) -> pa.Schema:
        """Pick columns, in the order asked for.

        Args:
            columns: Column names; none of them means all.

        Raises:
            ColumnNotFound: a name is unknown; the message lists the known ones.
            ArgumentInvalid: a name is asked for twice.
        """
        if not columns:
            return self.schema
        require_columns(self.schema, columns)
        _require_distinct(columns, "column")
        return pa.schema([self.schema.field(name) for name in columns])

    def with_column(self, column: pa.Field) -> TableDescription:
        """This table with one more column, the last one.

        Raises:
            SchemaMismatch: It is not nullable, of a type that cannot be stored, or one too many.
            ArgumentInvalid: It has no name, or there is a column of that name.
        """
        if not column.name:
            raise ArgumentInvalid("a column that is added needs a name")
        if not column.nullable:
            raise SchemaMismatch(f"column {column.name!r} must be nullable: present rows have no value")
        if column.name in self.schema.names:
            kind = self.schema.field(column.name).type
            raise ArgumentInvalid(f"table {self.name} has a column {column.name!r} already, of type {kind}")
        return replace(self, schema=self.schema.append(column))

    def conform(
        self, batch: pa.RecordBatch, bytes_max: int | None = None, *, first_row: int = 0
    ) -> pa.RecordBatch:
        """Check rows that are to be written, and cast them to the table's schema.

        Columns go by name; their order may differ, and their types inside a kind, if every value is one of the table's
        type as well (`scanner.data.exact_casts`): nothing is rounded, parsed or cut. The batch may come from a hostile
        peer: its buffers are validated in full.

        Args:
            batch: The rows.
            bytes_max: What they may take with every cell spelled out; None: anything.
            first_row: The number that errors give to the first row.

        Raises:
            ArgumentInvalid: they would take more.
            SchemaMismatch: a column is missing, unknown or of another kind, or holds a value that the table's type has
                not, or a null it must not.
            KeyInvalid: a key column holds a null.
        """
        return _conform(batch, self.schema, self.primary_key, bytes_max, first_row)

    def conform_keys(
        self, batch: pa.RecordBatch, bytes_max: int | None = None, *, first_row: int = 0
    ) -> pa.RecordBatch:
        """Check primary keys that are to be deleted or looked up, and cast them to `key_schema`; see `conform`.

        Raises:
            ArgumentInvalid: they would take more than `bytes_max`.
            SchemaMismatch: a key column is missing, another column is present, or a value is none of its column's type.
            KeyInvalid: a key column holds a null.
        """
        return _conform(batch, self.key_schema, self.primary_key, bytes_max, first_row)


def stored_type(column: str, data_type: pa.DataType) -> pa.DataType:
    """The type as which values of an Arrow type are stored.

    Raises:
        SchemaMismatch: they cannot be stored without changing them; the message names the column.
    """
    types = pa.types
    if types.is_dictionary(data_type):
        return stored_type(column, data_type.value_type)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type) or _is_fixed_binary(data_type):
        return pa.binary()
    if types.is_decimal32(data_type) or types.is_decimal64(data_type):
        data_type = pa.decimal128(data_type.precision, data_type.scale)
    if types.is_decimal128(data_type) and abs(data_type.scale) > DECIMAL_SCALE_MAX:
        raise SchemaMismatch(
            f"column {column!r} has type {data_type}, which cannot be stored: its scale is at most"
            f" {DECIMAL_SCALE_MAX}, and at least -{DECIMAL_SCALE_MAX}"
        )
    if any(check(data_type) for check in _STORED_AS_THEY_ARE):
        return data_type
    raise SchemaMismatch(f"column {column!r} has type {data_type}, which cannot be stored; {_HINT}")


def require_table_name(name: str) -> None:
    """Check that a table can have a name.

    Raises:
        ArgumentInvalid: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ArgumentInvalid(
            f"table name {name!r} is not valid: a letter or underscore, then up to 127 letters, digits,"
            " '_', '.' or '-'"
        )


def require_columns(schema: pa.Schema, columns: Iterable[str]) -> None:
    """Check that a schema has columns of these names.

    Raises:
        ColumnNotFound: it has not; the message lists those it has, or some of them.
    """
    known = set(schema.names)
    for name in columns:
        if name not in known:
            raise ColumnNotFound(f"no column {name!r}; the columns are {listed(schema.names)}")


_HINT = (
    "cast it to one of bool, int8, int16, int32, int64, float32, float64, decimal128, date32, timestamp,"
    " string, binary"
)
_INDEX_PREFIX = "__index_level_"
"""Of the columns that an index of pandas without a name becomes."""
_STORED_AS_THEY_ARE = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_binary,
)


def _is_fixed_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(data_type)) and not pa.types.is_decimal(data_type)


def _check_columns(schema: pa.Schema, primary_key: tuple[str, ...]) -> None:
    if not 1 <= len(schema.names) <= COLUMNS_MAX:
        raise SchemaMismatch(f"a table has 1 to {COLUMNS_MAX} columns, not {len(schema.names)}")
    longest = max(schema.names, key=lambda name: len(name.encode()))
    if len(longest.encode()) > COLUMN_NAME_BYTES_MAX:
        raise SchemaMismatch(
            f"the name of column {longest[:32]!r}... takes {len(longest.encode())} bytes;"
            f" at most {COLUMN_NAME_BYTES_MAX} are allowed"
        )
    _require_distinct(schema.names, "column")
    if not primary_key:
        raise KeyInvalid("a table needs a primary key: name at least one column")
    require_columns(schema, primary_key)
    _require_distinct(primary_key, "primary key column")


def _require_distinct(names: Sequence[str], what: str) -> None:
    if len(set(names)) != len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise ArgumentInvalid(f"{what} {repeated!r} is named twice")


def _conform(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    primary_key: tuple[str, ...],
    bytes_max: int | None,
    first_row: int,
) -> pa.RecordBatch:
    _require_columns(batch.schema, schema)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise _describe_invalid(batch, error) from error
    if bytes_max is not None:
        require_size(_decoded_bytes(batch, schema), bytes_max)
    columns = [cast_exactly(batch.column(name), schema.field(name), first_row) for name in schema.names]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:
            row = first_row + column.is_null().index(True).as_py()
            if field.name in primary_key:
                raise KeyInvalid(
                    f"primary key column {field.name!r} is null in row {row}; give every row a key"
                )
            raise SchemaMismatch(f"column {field.name!r} must not be null, and is in row {row}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _describe_invalid(batch: pa.RecordBatch, error: pa.ArrowException) -> SchemaMismatch:
    """The error of rows that are not valid; Arrow's own tells a column by its place in the message alone."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as of_column:  # of a view, an index error
            return SchemaMismatch(f"column {name!r} is not valid Arrow data: {of_column}")
    return SchemaMismatch(f"the batch is not valid Arrow data: {error}")


def _decoded_bytes(batch: pa.RecordBatch, schema: pa.Schema) -> int:
    """What rows take with each cell spelled out, as it was sent or as it is stored, whichever is more."""
    return sum(
        max(spelled_out_bytes(column), stored_bytes_min(batch.num_rows, schema.field(name).type))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    )


def _require_columns(given: pa.Schema, schema: pa.Schema) -> None:
    """Check names and types of columns that are to be written, before anything looks at what they hold."""
    # Arrow makes the list of names anew each time it is asked for it.
    wanted, names = schema.names, given.names
    known, found = set(wanted), set(names)
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in names if name not in known]
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if missing or unknown or repeated:
        message = (
            f"columns do not fit the table: missing {_quoted(missing)}, unknown {_quoted(unknown)}, named twice"
            f" {_quoted(repeated)}; exactly these are wanted: {listed(wanted)}"
        )
        if any(name.startswith(_INDEX_PREFIX) for name in unknown):
            message += "; the index of a data frame is a column, too: reset_index(drop=True) leaves it out"
        raise SchemaMismatch(message)
    for name in wanted:
        kind, field = given.field(name).type, schema.field(name)
        if kind != field.type:  # Its own is of a kind.
            require_castable(kind, field)


def _quoted(names: Sequence[str]) -> str:
    return f"[{listed(map(repr, names))}]"


def no_table(name: str, tables: Iterable[str]) -> TableNotFound:
    """The error where a table is looked for that is not there; it names those that are, or some of them."""
    names = sorted(tables)
    if not names:
        return TableNotFound(f"no table {name!r}; there are no tables")
    return TableNotFound(f"no table {name!r}; the tables are: {listed(names)}")
