"""Files that `weir load` reads: Parquet and CSV, plain, gzipped or zipped, as a schema and a stream of batches.

A CSV says nothing of its types, so it is read twice: once to find for every column the first type, in the order of
`_TYPES_TRIED`, that fits all of its values; once to deliver them. Neither reading holds more than a few blocks.
"""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final, Protocol, cast

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scanner.cli.app import fail

NULL_VALUES_DEFAULT: Final = ("", "NA", "NULL")
_BLOCK_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = 8192
_TYPES_TRIED: Final = (
    pa.null(),
    pa.int64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.float64(),
    pa.string(),
)
"""Arrow's own order of inference, without what a table cannot store."""


class RowFile(Protocol):
    """A file of rows."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def rows(self) -> int | None:
        """Its rows, if that is known."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in order; may be called again."""


def open_file(path: Path, null_values: Sequence[str], schema: pa.Schema | None) -> RowFile:
    """Open a file, by its content.

    Args:
        path: The file.
        null_values: What stands for null in a CSV.
        schema: Types for the columns of a CSV that are in it; None: they are found in the file.

    Raises:
        Failure: It is none that can be read; the message says why.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if magic == b"PAR1":
        return _ParquetFile(path)
    if magic.startswith((b"PK", b"\x1f\x8b")) or path.suffix.lower() in {".csv", ".tsv", ".txt"}:
        return _CsvFile(path, null_values, schema)
    if not magic:
        fail(f"{path} is empty")
    fail(f"{path} is neither Parquet nor CSV (.csv, .tsv, .csv.gz, .zip with one CSV in it)")


class _ParquetFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading() as file:
            self._schema: pa.Schema = file.schema_arrow
            self._rows: int = file.metadata.num_rows

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def rows(self) -> int:
        return self._rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._reading() as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS)

    @contextmanager
    def _reading(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self._path) as file:
                yield file
        except (pa.ArrowException, OSError) as error:
            fail(f"{self._path} is not a Parquet file that can be read: {error}")


class _CsvFile:
    def __init__(self, path: Path, null_values: Sequence[str], schema: pa.Schema | None) -> None:
        self._path = path
        self._null_values = list(null_values)
        self._types = {} if schema is None else {field.name: field.type for field in schema}
        self._rows: int | None = None
        if schema is None:
            self._find_types()
        else:
            with self._reading() as reader:
                self._schema = reader.schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def rows(self) -> int | None:
        return self._rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._reading() as reader:
            yield from reader

    def _find_types(self) -> None:
        """Read the file until every column has a type that fits all its values.

        A value that does not fit ends a reading; the column then gets the next type, and the file is read again.
        Every reading moves one column on, so there are at most columns x types of them, nearly all of them short.
        """
        names: list[str] = []
        while True:
            try:
                with self._open() as reader:
                    names = names or list(reader.schema.names)
                    self._types = {field.name: field.type for field in reader.schema} | self._types
                    self._rows = sum(batch.num_rows for batch in reader)
                    break
            except pa.ArrowInvalid as error:
                if not self._widen(str(error), names):
                    fail(f"{self._path} cannot be read as CSV: {error}")
            except (OSError, EOFError, zipfile.BadZipFile, UnicodeError) as error:
                fail(f"{self._path} cannot be read: {error}")
        types = {name: pa.string() if kind == pa.null() else kind for name, kind in self._types.items()}
        self._types = types
        self._schema = pa.schema([(name, types[name]) for name in names])

    def _widen(self, message: str, names: Sequence[str]) -> bool:
        """Give the column that the error names its next type. False: the error is of another kind."""
        found = re.search(r"In CSV column #(\d+)", message)
        if found is None or "conversion error" not in message or not names:
            return False
        name = names[int(found[1])]
        kind = self._types[name]
        position = _TYPES_TRIED.index(kind) if kind in _TYPES_TRIED else len(_TYPES_TRIED) - 2
        if position + 1 == len(_TYPES_TRIED):
            return False
        self._types[name] = _TYPES_TRIED[position + 1]
        return True

    @contextmanager
    def _reading(self) -> Iterator[pacsv.CSVStreamingReader]:
        try:
            with self._open() as reader:
                yield reader
        except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile) as error:
            fail(f"{self._path} cannot be read as CSV: {error}")

    @contextmanager
    def _open(self) -> Iterator[pacsv.CSVStreamingReader]:
        delimiter = "\t" if ".tsv" in self._path.suffixes else ","
        with ExitStack() as stack:
            file = pa.PythonFile(self._bytes(stack), mode="r")
            yield stack.enter_context(
                pacsv.open_csv(
                    file,
                    read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                    convert_options=pacsv.ConvertOptions(
                        null_values=self._null_values, strings_can_be_null=True, column_types=self._types
                    ),
                )
            )

    def _bytes(self, stack: ExitStack) -> IO[bytes]:
        raw = stack.enter_context(self._path.open("rb"))
        magic = raw.read(2)
        raw.seek(0)
        if magic == b"\x1f\x8b":
            return cast("IO[bytes]", stack.enter_context(gzip.open(raw)))
        if magic != b"PK":
            return raw
        archive = stack.enter_context(zipfile.ZipFile(raw))
        members = [
            name
            for name in archive.namelist()
            if not name.endswith("/")
            and not name.startswith("__MACOSX/")
            and name.lower().endswith((".csv", ".tsv"))
        ]
        if len(members) != 1:
            held = ", ".join(archive.namelist()[:5]) or "nothing"
            fail(f"{self._path} must have exactly one .csv in it, but it has {len(members)}; it holds {held}")
        return stack.enter_context(archive.open(members[0]))
