"""Where the rows of `weir scan` go: a table for people, CSV, JSON lines, Arrow, Parquet, or nowhere."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scanner.cli.app import fail, is_terminal
from scanner.cli.cells import arrow_writes_decimals, decimals_to_text, times_to_text, to_text
from scanner.cli.connection import with_options
from scanner.cli.display import print_table, print_vertically
from scanner.escapes import escaped_json, escaped_lines

_F = TypeVar("_F", bound=Callable[..., Any])

_FORMATS: Final = ("table", "vertical", "csv", "json", "arrow", "parquet", "none")
ROWS_SHOWN: Final = 50
"""Rows that a person is shown without --limit: as many as one looks at."""
FIRST_ROWS_NOTE: Final = f"the first {ROWS_SHOWN} rows; --limit N shows more, --format json all of them"
FOR_PEOPLE: Final = frozenset({"table", "vertical"})
BINARY: Final = frozenset({"arrow", "parquet"})
_STANDARD_OUTPUT: Final = Path("-")
_SUFFIXES: Final = {
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def output_options(command: _F) -> _F:
    """The options of a command that writes rows: `kind`, for `format_of`, and `output`, None for standard output."""
    return with_options(
        command,
        click.option(
            "--format", "kind", type=click.Choice(_FORMATS), help="Default: what -o ends in, or table."
        ),
        click.option(
            "--output",
            "-o",
            type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
            callback=lambda _context, _option, path: None if path == _STANDARD_OUTPUT else path,
            metavar="FILE",
            help="Instead of standard output, which is '-'.",
        ),
    )


class RowWriter(Protocol):
    """Takes the batches of a scan."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one."""

    def close(self) -> None:
        """Take no more: write what has to come last."""


def format_of(name: str | None, output: Path | None) -> str:
    """The format asked for, or the one that the file's name says; a table where there is no file.

    Raises:
        Failure: The file's name says none, or a terminal would be shown what is for programs alone.
    """
    if name is None and output is not None and output.suffix.lower() not in _SUFFIXES:
        endings = ", ".join(_SUFFIXES)
        fail(f"the name of {output} says no format; say --format, or let it end in one of {endings}")
    form = name or ("table" if output is None else _SUFFIXES[output.suffix.lower()])
    if form in BINARY and output is None and is_terminal(sys.stdout):
        fail(f"{form} is not for a terminal; add -o FILE, or choose --format table or json")
    return form


def open_rows(kind: str, file: IO[bytes], schema: pa.Schema, *, picked_by: str = "--columns") -> RowWriter:
    """A writer of one of the formats.

    Args:
        kind: The format.
        file: Where to write; not closed.
        schema: Of the batches.
        picked_by: What picks columns in the command.

    Raises:
        Failure: The format cannot hold such rows.
    """
    match kind:
        case "csv":
            return _CsvRows(file, schema)
        case "json":
            return _JsonRows(file)
        case "arrow":
            return _ArrowRows(file, schema)
        case "parquet":
            return _ParquetRows(file, schema)
        case "table" | "vertical":
            return _ShownRows(file, schema, picked_by, vertical=kind == "vertical")
        case _:
            return _NoRows()


class _NoRows:
    def write(self, batch: pa.RecordBatch) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing comes last."""


class _JsonRows:
    """One object per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        columns = [json_values(column) for column in batch.columns]
        lines = [
            escaped_json(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
            for row in zip(*columns, strict=True)
        ]
        if lines:
            self._file.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        self._file.flush()


class _CsvRows:
    """Strings in quotes, null as nothing at all: so that `weir load` tells null and the empty string apart."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._alone = len(schema) == 1
        self._schema = pa.schema([(each.name, _csv_type(each.type)) for each in schema])
        sink: Any = _ShownText(file) if file.isatty() else _Appended(file)
        options = pacsv.WriteOptions(quoting_style="needed")
        self._writer = pacsv.CSVWriter(sink, self._schema, write_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._alone and batch.column(0).null_count:
            name = self._schema.names[0]
            fail(
                f"column {name!r} has a null, which in a CSV of one column is an empty line that readers skip;"
                " add a column, or choose --format json"
            )
        columns = [
            column if column.type == each.type else to_text(column)
            for column, each in zip(batch.columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        self._file.flush()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """As which type Arrow writes a column: numbers as they are, without quotes; the others as our own text."""
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if plain or (pa.types.is_decimal(kind) and arrow_writes_decimals(kind)) else pa.string()


class _ArrowRows:
    """The IPC file format."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._writer = pa.ipc.new_file(pa.PythonFile(_Appended(file), mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._file.flush()


class _ParquetRows:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._sink = _AppendedInCalls(file)
        try:
            with self._sink.calling():
                self._writer = pq.ParquetWriter(self._sink, schema, write_page_checksum=True)
        except (OSError, pa.ArrowNotImplementedError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            # Not of the file: it has no decimals with a negative scale, or one above the precision, and no intervals.
            fail(f"Parquet cannot hold these columns: {error}; choose --format arrow")

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            with self._sink.calling():
                self._writer.write_batch(batch)
        except pa.ArrowInvalid as error:  # It has no seconds, and its milliseconds end sooner.
            fail(f"Parquet cannot hold these rows: {error}; choose --format arrow")

    def close(self) -> None:
        with self._sink.calling():
            self._writer.close()
        self._file.flush()


class _Appended:
    """A file that is only appended to, such as a pipe, as Arrow wants it: it asks where it is."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        self._position += self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True


class _AppendedInCalls(_Appended):
    """As `_Appended`, for what is written in a call of ours alone.

    Arrow ends the file of a Parquet writer that it forgets, as after a failure: some of the rows would be read as all.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._in_call = False

    @contextmanager
    def calling(self) -> Iterator[None]:
        self._in_call = True
        try:
            yield
        finally:
            self._in_call = False

    def write(self, data: bytes) -> int:
        return super().write(data) if self._in_call else len(data)


class _ShownText(_Appended):
    """A terminal that obeys nothing in the text."""

    def write(self, data: bytes) -> int:
        # Arrow hands over whole batches: no character is cut.
        super().write(escaped_lines(bytes(data).decode()).encode())
        return len(data)


class _ShownRows:
    """Collects rows and prints them at the end, because columns are as wide as their widest cell."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, picked_by: str, *, vertical: bool) -> None:
        self._file = file
        self._hint = f"{picked_by} picks, --format vertical has all"
        self._vertical = vertical
        self._columns: dict[str, list[object]] = {name: [] for name in schema.names}

    def write(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._columns[name] += json_values(column)

    def close(self) -> None:
        # On a terminal of another encoding some octets of UTF-8 are control characters.
        encoding = sys.stdout.encoding if self._file is sys.stdout.buffer else "utf-8"
        text = io.TextIOWrapper(self._file, encoding=encoding, errors="backslashreplace", write_through=True)
        try:
            if self._vertical:
                print_vertically(self._columns, text)
            else:
                print_table(self._columns, text, hint=self._hint)
        finally:
            text.detach()  # The file is not ours to close.


def json_values(column: pa.Array) -> list[object]:
    """A column's values as JSON has them.

    Dates, timestamps and decimals become text, which JSON has no numbers for; binary becomes base64; numbers that are
    none (NaN, Infinity) become text.
    """
    kind = column.type
    if pa.types.is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return list(times_to_text(column).to_pylist())
    if pa.types.is_decimal(kind):
        return list(decimals_to_text(column).to_pylist())
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return [value if value is None else names.get(str(value), value) for value in column.to_pylist()]
    return list(column.to_pylist())
