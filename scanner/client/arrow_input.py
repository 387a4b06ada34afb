"""What a caller hands over as rows: Arrow, or the data frame of another library that can give it."""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from numbers import Number
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio

from scanner.errors import SchemaMismatch

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@runtime_checkable
class ArrowStream(Protocol):
    """Gives its rows as an Arrow stream, as data frames of polars and pandas and relations of DuckDB do.

    Source: the Arrow PyCapsule interface.
    """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The capsule of the stream."""


ArrowRows: TypeAlias = pa.Table | pa.RecordBatch
Rows: TypeAlias = ArrowRows | ArrowStream
"""Rows by column name. Of a pandas data frame NaN counts as null, and each level of its index is a column, but for a
RangeIndex without a name."""


_OF_DUCKDB: Final = ("types", ("UHUGEINT", "BIT"))
_OF_POLARS: Final = ("dtypes", ("Object", "Int128", "UInt128"))
_UNLIKE_ARROW: Final = {"polars": _OF_POLARS, "duckdb": _OF_DUCKDB, "_duckdb": _OF_DUCKDB}
"""By library, what tells the types of columns, and those that come as what they are not: a UHUGEINT as a signed number,
a BIT as octets of DuckDB's own, an Object as the address of one, an Int128 under a name that only polars knows."""

_OCTETS: Final = (bytes, bytearray, memoryview)
_BESIDE_NUMBERS: Final = (bool, np.bool_, np.timedelta64)


def is_rows(value: object) -> TypeIs[Rows]:
    """Whether something is Arrow, or can give it."""
    return hasattr(value, "__arrow_c_stream__")


def to_arrow(rows: Rows) -> ArrowRows:
    """The rows as Arrow; those of a stream are all read, into memory.

    Raises:
        SchemaMismatch: A library would hand over other values than it has.
        TypeError: They are nothing of the kind.
        Exception: What reading the stream raises.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return _read_all(rows)
    if is_rows(rows):
        own: Any = rows
        if hasattr(type(own), "to_native"):  # A frame of narwhals gives the stream of the one that it wraps.
            own = own.to_native()
        if not _is_pandas(own):
            _require_own_values(own)
            try:
                return pa.table(rows)
            except pa.ArrowInvalid as error:
                if "non-struct type" not in str(error):
                    raise
                raise TypeError(
                    f"rows are columns with names, and this {type(rows).__name__} is one without; make a table of it,"
                    " such as pyarrow.table({'id': values}), or select it as a data frame"
                ) from error
        own = _with_text_names(own)
        _require_own_values(own)
        table = pa.table(own)
        # Arrow leaves a RangeIndex out, and pandas 3 makes one of every level of numbers that it fits.
        for name, values in _levels(own):
            if name is None:
                continue
            if name not in table.column_names:
                table = table.append_column(name, pa.array(values))
            elif type(values).__name__ == "RangeIndex":
                _require_same(name, table.column(name), pa.array(values))
        return table
    raise TypeError(
        "rows are an Arrow table, a data frame of polars or pandas, or another Arrow stream, not"
        f" {type(rows).__name__}; make a table of dicts with pyarrow.Table.from_pylist"
    )


def _read_all(reader: pa.RecordBatchReader) -> pa.Table:
    """All batches of a reader.

    Its stream in C would take them for what its schema says, whatever they are: octets of floats for integers, where
    their columns are in another order. And it would make an error of pyarrow's of what they raise.

    Raises:
        SchemaMismatch: A batch has other columns than the schema says.
        Exception: What the batches raise.
    """
    schema, batches = reader.schema, []
    for batch in reader:
        if batch.schema.names != schema.names or not all(map(_is_same, batch.schema.types, schema.types)):
            raise SchemaMismatch(
                f"a batch of the reader has the columns {_described(batch.schema)}, and the reader's schema says"
                f" {_described(schema)}; make them the same"
            )
        columns = (
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(batch.columns, schema.types, strict=True)
        )
        # The schema may say that there are no nulls, and the batch not.
        batches.append(pa.RecordBatch.from_arrays(list(columns), schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def _is_same(given: pa.DataType, said: pa.DataType) -> bool:
    """Whether values of both types are the same; of times with a zone they are, whichever it is: they count in UTC."""
    if given == said:
        return True
    if not (pa.types.is_timestamp(given) and pa.types.is_timestamp(said)):
        return False
    return given.unit == said.unit and None not in (given.tz, said.tz)


def _described(schema: pa.Schema) -> str:
    return f"({', '.join(f'{field.name} {field.type}' for field in schema)})"


def _require_own_values(rows: Any) -> None:
    """Refuse columns that a library hands over as other values. Its own types alone tell.

    Raises:
        SchemaMismatch: There is one.
    """
    # A frame may be of a class that somebody derived from the library's.
    libraries = {each.__module__.partition(".")[0] for each in type(rows).__mro__}.intersection(_UNLIKE_ARROW)
    types, unlike_arrow = _UNLIKE_ARROW[libraries.pop()] if libraries else ("", ())
    for name, kind in zip(getattr(rows, "columns", ()), getattr(rows, types, ()), strict=False):
        if str(kind) in unlike_arrow:
            raise SchemaMismatch(f"column {name!r} is of type {kind}, which Arrow has not; cast it first")
    if _is_pandas(rows):
        for name, column in chain(rows.items(), _levels(rows)):
            values = getattr(column.dtype, "categories", column)
            if values.dtype == object:
                _require_one_kind(name, values.to_numpy())


def _is_pandas(rows: object) -> bool:
    # pandas has none yet where another thread is just importing it.
    frames: Any = getattr(sys.modules.get("pandas"), "DataFrame", ())
    return isinstance(rows, frames)


def _with_text_names(frame: Any) -> Any:
    """The data frame with a text as the name of each level of its index; the caller's stays as it is.

    Arrow asks for a level by its number, which pandas takes for the level that has it as its name, if one has.
    """
    named = frame.copy(deep=False)
    named.index = frame.index.set_names([None if name is None else str(name) for name in frame.index.names])
    return named


def _levels(frame: Any) -> Iterator[tuple[str | None, Any]]:
    return ((name, frame.index.get_level_values(level)) for level, name in enumerate(frame.index.names))


def _require_same(name: str, column: pa.ChunkedArray, level: pa.Array) -> None:
    """Refuse a level of an index that has the name of a column, but for one that was made of it (`drop=False`).

    Raises:
        SchemaMismatch: Its values are others.
    """
    with suppress(pa.ArrowException):  # They cannot even be compared.
        if pc.all(pc.fill_null(pc.equal(column, level), False), min_count=0).as_py():
            return
    raise SchemaMismatch(
        f"column {name!r} and the index of that name have other values; reset_index(drop=True) leaves the index out"
    )


def _require_one_kind(name: object, values: Iterable[object]) -> None:
    """Refuse Python's objects in a column of pandas that Arrow would store as something else, without a word.

    It takes the type of the first and makes that of the others, too: a time becomes its day, text its octets, a time
    without a zone one of UTC, a bool a number, and a number a day or a time from 1970 on. Of a time it takes
    microseconds alone.

    Raises:
        SchemaMismatch: There is one.
    """
    # Types first: most such columns have text or dates alone.
    types = set(map(type, values))

    def has(*kinds: type) -> bool:
        return any(issubclass(each, kinds) for each in types)

    if has(str) and has(*_OCTETS):
        kinds = {"text", "octets"}
    elif has(datetime.datetime, *_BESIDE_NUMBERS) or (has(datetime.date) and has(Number)):
        known = [
            each
            for each in values
            if isinstance(each, (datetime.date, Number, np.bool_)) and not _is_null(each)
        ]
        kinds = set(map(_kind_of, known))
        if any(getattr(each, "nanosecond", 0) for each in known):
            raise SchemaMismatch(
                f"column {name!r} has objects of Python, of whose times Arrow takes no nanoseconds; make a column of"
                " times of it first, with pandas.to_datetime"
            )
    else:
        return
    if len(kinds) > 1:
        raise SchemaMismatch(
            f"column {name!r} mixes {' and '.join(sorted(kinds))}, and Arrow would make one of the other; make them one"
            " kind first"
        )


def _is_null(value: object) -> bool:
    """Whether something is NaN or NaT, which Arrow takes for null; a signaling NaN is not to be compared."""
    return value.is_nan() if isinstance(value, decimal.Decimal) else bool(value != value)


def _kind_of(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "bools"
    if not isinstance(value, datetime.date):
        return "spans of time" if isinstance(value, np.timedelta64) else "numbers"
    if not isinstance(value, datetime.datetime):
        return "dates"
    return "times without a zone" if value.tzinfo is None else "times with a zone"


async def read_arrow(rows: Rows) -> ArrowRows:
    """As `to_arrow`; what has to be read is read in a thread.

    Cancellation:
        What is being read is read to its end.
    """
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    return await trio.to_thread.run_sync(to_arrow, rows)
