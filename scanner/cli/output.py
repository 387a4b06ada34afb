"""Where the rows of `weir scan` go: a table for people, JSON lines, Parquet, or nowhere."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scanner.cli.app import is_terminal

if TYPE_CHECKING:
    from types import TracebackType

FORMATS: Final = ("table", "json", "parquet", "none")
_SUFFIXES: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_WIDTH_MAX: Final = 100_000
"""Columns of a table that is not printed to a terminal: it is cut nowhere."""


class RowWriter(Protocol):
    """Takes the batches of a scan."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one."""

    def close(self) -> None:
        """Take no more: write what has to come last."""


def format_of(name: str | None, output: Path | None) -> str:
    """The format asked for, or the one that the file's name says, or a table."""
    if name is not None:
        return name
    return _SUFFIXES.get(output.suffix.lower(), "table") if output is not None else "table"


def open_rows(kind: str, file: IO[bytes], schema: pa.Schema) -> RowWriter:
    """A writer of one of `FORMATS`.

    Args:
        kind: The format.
        file: Where to write; not closed.
        schema: Of the batches.
    """
    if kind == "json":
        return _JsonRows(file)
    if kind == "parquet":
        return _ParquetRows(file, schema)
    if kind == "table":
        return _TableRows(file, schema)
    return _NoRows()


@contextmanager
def replaced_when_complete(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when the block ends well; until then, and otherwise, nothing changes there.

    Raises:
        OSError: The folder does not exist or cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp made it for the owner alone.
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def print_table(columns: Mapping[str, Sequence[object]], file: IO[str] | None = None) -> None:
    """Print columns of equal length side by side, numbers to the right.

    Args:
        columns: By heading.
        file: By default standard output.
    """
    out = sys.stdout if file is None else file
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, values in columns.items():
        numeric = all(isinstance(value, int | float) or value is None for value in values)
        table.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    width = None if is_terminal(out) else _WIDTH_MAX
    Console(file=out, width=width, highlight=False).print(table)


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
        columns = [_json_values(column) for column in batch.columns]
        lines = [
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        self._file.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        self._file.flush()


class _ParquetRows:
    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._writer = pq.ParquetWriter(_Appended(file), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
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

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


class _TableRows:
    """Collects rows and prints them at the end, because columns are as wide as their widest cell."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._columns: dict[str, list[object]] = {name: [] for name in schema.names}

    def write(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._columns[name] += _json_values(column)

    def close(self) -> None:
        if self._file.isatty():
            print_table(self._columns)  # As wide as the terminal is.
            return
        text = io.StringIO()
        print_table(self._columns, text)
        self._file.write(text.getvalue().encode())
        self._file.flush()


def _json_values(column: pa.Array) -> list[object]:
    """A column's values as JSON has them.

    Dates, timestamps and decimals become text, which JSON has no numbers for; binary becomes base64; numbers that are
    none (NaN, Infinity) become text.
    """
    kind = column.type
    if pa.types.is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        return list(pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1).to_pylist())
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return [value if value is None else names.get(str(value), value) for value in column.to_pylist()]
    return list(column.to_pylist())
