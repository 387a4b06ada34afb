"""Files that `weir load` reads: Parquet, Arrow IPC and CSV, as a schema and a stream of batches.

A CSV says nothing of its types, so it is read twice: once to find for each column a type that keeps every digit, once
to deliver the rows. If all types are given it is read once. Neither reading holds more than a few blocks. Of a Parquet
file a row group is held at a time, or a few where they are small.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scanner.cli.app import Failure, fail
from scanner.cli.cells import FRACTION_DIGITS, all_true, from_text
from scanner.cli.csv_text import (
    ARROW_MAGIC,
    GZIP_BEGINS,
    PARQUET_MAGIC,
    ZIP_BEGINS,
    CsvBlock,
    CsvDialect,
    CsvText,
    delimiter_by_name,
    require_names_apart,
    shortened,
)
from scanner.cli.csv_types import ColumnTypes
from scanner.cli.units import counted
from scanner.data.arrow_sizes import require_readable_file
from scanner.data.exact_casts import require_castable
from scanner.escapes import listed

NULL_VALUES_DEFAULT: Final = ("", "NA", "NULL")
_BATCH_ROWS: Final = 8192
_LOOK_BYTES: Final = 8 << 20
"""Of a CSV, of which types are found at once. With a thousand columns that is a thousand cells of each."""
_CSV_SUFFIXES: Final = {".csv", ".tsv", ".txt"}
_ARROW_STREAM_BEGINS: Final = b"\xff\xff\xff\xff"
_NANOSECONDS_REACH_US: Final = (2**63 - 1) // 1000
"""Microseconds before and after 1970 that a count of nanoseconds reaches."""
_INTERVAL_BYTES: Final = 12
"""Months, days and milliseconds."""
_EXTENSION: Final = b"ARROW:extension:name"
_SPARK_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_VERSION: Final = re.compile(rb"([0-9]+)[.]([0-9]+)")
_GREGORIAN_FROM_DAY: Final = -141_427
"""1582-10-15: days before it have another date in the Julian calendar."""
_ZONES_AGREE_FROM_S: Final = -2_208_988_800
"""1900-01-01: of times before it the rules for the old calendar know other offsets, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvOptions:
    """How a CSV is read."""

    dialect: CsvDialect | None = None
    """None: with commas, or tabs in a .tsv, also one in a zip."""
    null_values: tuple[str, ...] = NULL_VALUES_DEFAULT
    """What stands for null: in a column of strings without quotes around it, in others with or without."""
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Types of columns that are not found in the file; of a file that is no CSV, those of its columns in a table."""
    given: tuple[str, ...] = ()
    """Options that say how a CSV is read, and mean nothing for another file."""


class RowFile(Protocol):
    """A file of rows."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as a table has them that is made for it. Those of a batch may be of another type of the kind."""

    @property
    def rows(self) -> int | None:
        """Its rows, if that is known."""

    @property
    def found_types(self) -> tuple[str, ...]:
        """Columns whose types were found in their cells."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in order; may be called again."""


OnRead = Callable[[int], None]
"""Told how many octets of the file have been read to find its types."""


def open_file(
    path: Path, options: CsvOptions, schema: pa.Schema | None = None, on_read: OnRead | None = None
) -> RowFile:
    """Open a file, by its content.

    Args:
        path: The file.
        options: How a CSV is read.
        schema: Types for the columns of a CSV that are in it; None: they are found in the file.
        on_read: Told how far the file has been read to find its types.

    Raises:
        Failure: It is none that can be read; the message says why.
    """
    if not path.is_file():
        fail(f"{path} is no regular file, and files are read more than once; write it to a file first")
    try:
        version = _Version(path)
    except OSError as error:  # Arrow's own words name the path again.
        fail(f"cannot read {path}: {os.strerror(error.errno or errno.EIO)}")
    file = _open_by_content(path, options, schema, on_read)
    if not isinstance(file, _CsvFile):  # Which has seen to its types before it has read all of it.
        if options.given:
            fail(f"{path} is no CSV: leave {', '.join(options.given)} out")
        _require_types(path, file.schema.names, options.types, schema)
    return _UnchangedFile(path, version, file, _with_types(file.schema, options.types))


def _open_by_content(
    path: Path, options: CsvOptions, schema: pa.Schema | None, on_read: OnRead | None
) -> RowFile:
    try:
        with path.open("rb") as file:
            magic = file.read(len(ARROW_MAGIC))
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    suffix = path.suffix.lower()
    if magic.startswith((*ZIP_BEGINS, GZIP_BEGINS)) or suffix in _CSV_SUFFIXES:
        return _CsvFile(path, options, schema, on_read)
    if magic.startswith(PARQUET_MAGIC):
        return _ParquetFile(path)
    if magic == ARROW_MAGIC:
        return _ArrowFile(path)
    if not magic:
        fail(f"{path} is empty")
    if magic.startswith(_ARROW_STREAM_BEGINS):
        fail(f"{path} is a stream of Arrow, not a file; write it with pyarrow.ipc.new_file, or as Parquet")
    fail(f"{path} is neither Parquet, Arrow nor CSV (.csv, .tsv, .csv.gz, .zip with one CSV in it)")


def _require_types(
    path: Path, names: Sequence[str], types: Mapping[str, pa.DataType], table: pa.Schema | None
) -> None:
    """Check the types that were asked for.

    Raises:
        Failure: One is of a column that the file does not have, or that the table has with another type.
    """
    for name, kind in types.items():
        if name not in names:
            fail(f"{path} has no column {name!r} for --types; it has {listed(names)}")
        if table is not None and name in table.names and table.field(name).type != kind:
            fail(f"column {name!r} of the table is {table.field(name).type}; leave it out of --types")


def _with_types(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns with the types that were asked for.

    Raises:
        SchemaMismatch: One is of another kind than the column, whose values no cast leaves as they are.
    """
    fields = [pa.field(each.name, types.get(each.name, each.type), each.nullable) for each in schema]
    for given, wanted in zip(schema, fields, strict=True):
        if wanted.name in types:
            require_castable(given.type, wanted)
    return pa.schema(fields)


class _UnchangedFile:
    """A file of rows that hands none of them out once the file has changed or was replaced.

    What was found in it first, such as names, types and where its rows begin, is not true of another one.
    """

    def __init__(self, path: Path, version: _Version, file: RowFile, schema: pa.Schema) -> None:
        self._path = path
        self._version = version
        self._file = file
        self.schema, self.rows, self.found_types = schema, file.rows, file.found_types

    def batches(self) -> Iterator[pa.RecordBatch]:
        batches = self._file.batches()
        while True:
            try:
                batch = next(batches, None)
            except Failure:
                self._require_unchanged()  # Then that is the reason.
                raise
            self._require_unchanged()
            if batch is None:
                return
            yield batch

    def _require_unchanged(self) -> None:
        if not self._version.is_current():
            fail(f"{self._path} has changed while it was read; load it again when it is complete")


class _Version:
    """A file as it is now.

    Times alone do not tell it from another one: the files of an unpacked archive may all have the same, that of the
    last change included, whose clock ticks every few milliseconds. Nor does its number, unless it is held open: another
    file gets that of one that is gone, and some file systems in user space number a file anew once nobody has it open.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Closed with this object, and not by code of Python's, in which a Ctrl-C would be lost.
        self._held = pa.OSFile(os.fsencode(path))  # A name may be no UTF-8.
        self._state = _state_of(path)

    def is_current(self) -> bool:
        """Whether the path leads to it, and it has not changed."""
        try:
            return _state_of(self._path) == self._state
        except OSError:
            return False


def _state_of(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _ParquetFile:
    found_types: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unit = "us"
        with self._reading(self._unit) as file:
            leaves = [file.schema.column(index) for index in range(len(file.schema))]
            # The old timestamps are instants in UTC wherever they are written: by Spark, Hive, Impala.
            self._instants = frozenset(leaf.path for leaf in leaves if leaf.physical_type == "INT96")
            # Enums, as of Avro and Protocol Buffers, are texts, of which Arrow makes octets.
            self._enums = frozenset(leaf.path for leaf in leaves if leaf.converted_type == "ENUM")
            _refuse_intervals(path, file, leaves)
            _refuse_extensions(path, file.schema_arrow)
            require_names_apart(path, file.schema_arrow.names)
            found: pa.Schema = file.schema_arrow
            self.rows: int = file.metadata.num_rows
            days_and_times, int96 = _in_old_calendar(file)
            self._old = [
                each.name for each in found if (int96 if each.name in self._instants else days_and_times)
            ]
        if instants := [name for name in found.names if name in self._instants]:
            self._unit = self._instants_unit(instants)
        self.schema = pa.schema([self._field(each) for each in found])

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._reading(self._unit) as file:
            for batch in _batches_of(file):
                for name in self._old:
                    self._require_new_calendar(name, batch.column(name))
                columns = [
                    column.cast(each.type) if each.name in self._instants | self._enums else column
                    for column, each in zip(batch.columns, self.schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _require_new_calendar(self, name: str, column: pa.Array) -> None:
        """Refuse days and times that were written by the Julian calendar: by ours they are others.

        Raises:
            Failure: There is one.
        """
        if pa.types.is_timestamp(column.type):
            first = _ZONES_AGREE_FROM_S * 10 ** FRACTION_DIGITS[column.type.unit]
            date, counts = "1900-01-01", column.cast(pa.int64())
        elif pa.types.is_date32(column.type):
            first, date, counts = _GREGORIAN_FROM_DAY, "1582-10-15", column.cast(pa.int32())
        else:
            return
        if not all_true(pc.greater_equal(counts, first)):
            fail(
                f"{self._path}: column {name!r} has a value before {date}, which Spark wrote by the Julian calendar,"
                " where its date is another one; read the file with Spark, and write it with the options"
                " spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite set to CORRECTED"
            )

    def _field(self, each: pa.Field) -> pa.Field:
        kind = each.type
        if each.name in self._instants:
            kind = pa.timestamp(self._unit, "UTC")
        elif each.name in self._enums:
            kind = pa.string()
        return pa.field(each.name, kind, each.nullable)

    def _instants_unit(self, names: list[str]) -> str:
        """The unit of the INT96 columns: microseconds, as Spark writes them, or nanoseconds if a value has these.

        Raises:
            Failure: One has, and one is of a year that a count of nanoseconds does not reach.
        """
        unit, far = "us", False
        with self._reading("us") as short, self._reading("ns") as long:
            batches = (_batches_of(each, names) for each in (short, long))
            for micros, nanos in zip(*batches, strict=True):
                for given, finer in zip(micros.columns, nanos.columns, strict=True):
                    count = given.cast(pa.int64())
                    # Past the years of nanoseconds both products wrap around, and alike.
                    if not all_true(pc.equal(pc.multiply(count, 1000), finer.cast(pa.int64()))):
                        unit = "ns"
                    far = far or not all_true(pc.less_equal(pc.abs(count), _NANOSECONDS_REACH_US))
        if unit == "ns" and far:
            fail(
                f"{self._path}: its INT96 timestamps have nanoseconds, and years that a timestamp with nanoseconds does"
                " not reach; write them as timestamps of another type first"
            )
        return unit

    @contextmanager
    def _reading(self, int96_unit: str) -> Iterator[pq.ParquetFile]:
        try:
            # INT96 holds days and nanoseconds: years that one count of nanoseconds cannot reach. Checksums, as Spark
            # writes them, are looked at by Arrow only when it is asked to.
            with (
                pa.OSFile(os.fsencode(self._path)) as source,
                pq.ParquetFile(
                    source, coerce_int96_timestamp_unit=int96_unit, page_checksum_verification=True
                ) as file,
            ):
                yield file
        except (pa.ArrowException, OSError, ValueError) as error:
            fail(f"{self._path} is not a Parquet file that can be read: {error}")


def _batches_of(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order.

    What Arrow has read of a row group it keeps until the iterator ends, so each group has one of its own. Small groups
    share one, as many as make a batch.
    """
    groups, rows = list[int](), 0
    for group in range(file.num_row_groups):
        more = file.metadata.row_group(group).num_rows
        if groups and rows + more > _BATCH_ROWS:
            yield from file.iter_batches(_BATCH_ROWS, groups, columns)
            groups, rows = [], 0
        groups.append(group)
        rows += more
    yield from file.iter_batches(_BATCH_ROWS, groups, columns)


def _in_old_calendar(file: pq.ParquetFile) -> tuple[bool, bool]:
    """Whether Spark wrote days and times, and INT96, by the Julian calendar where that was in use.

    It did before 3.0, INT96 before 3.1, and does since if it is told to.
    """
    metadata = file.metadata.metadata or {}
    if _SPARK_SCHEMA not in metadata:
        return False, False
    told = _SPARK_VERSION.match(metadata.get(b"org.apache.spark.version", b""))
    version = (0, 0) if told is None else (int(told[1]), int(told[2]))  # 2.4 did not tell.
    return (
        version < (3, 0) or b"org.apache.spark.legacyDateTime" in metadata,
        version < (3, 1) or b"org.apache.spark.legacyINT96" in metadata,
    )


def _refuse_intervals(path: Path, file: pq.ParquetFile, leaves: Sequence[Any]) -> None:
    """Refuse what Parquet stores as plain integers or octets, with its meaning beside it.

    Raises:
        Failure: A column is an interval or a duration.
    """
    refused = {leaf.path: "interval" for leaf in leaves if _is_interval(leaf)}
    refused |= {each.name: str(each.type) for each in file.schema_arrow if pa.types.is_duration(each.type)}
    spark = (file.metadata.metadata or {}).get(_SPARK_SCHEMA)
    if spark is not None:
        for each in json.loads(spark).get("fields", []):
            if isinstance(each["type"], str) and each["type"].startswith("interval"):
                refused[each["name"]] = each["type"]
    for name, kind in refused.items():
        fail(
            f"{path}: column {name!r} is of type {kind}, which a table cannot store; cast it to a number first"
        )


def _is_interval(leaf: Any) -> bool:
    """parquet-java calls an interval a column of nulls, too, and then Arrow reads nothing else."""
    is_null = leaf.logical_type.type == "UNKNOWN"
    return bool(leaf.converted_type == "INTERVAL" or (is_null and leaf.length == _INTERVAL_BYTES))


def _refuse_extensions(path: Path, schema: pa.Schema) -> None:
    """Refuse types that others have defined, which Arrow reads as what their values are kept in, without the meaning.

    Raises:
        Failure: A column is of such a type.
    """
    for each in schema:
        name = (each.metadata or {}).get(_EXTENSION)
        if name is not None:
            fail(
                f"{path}: column {each.name!r} is of type {name.decode(errors='replace')}, which a table cannot store;"
                f" cast it first, to {each.type} if that is what it means"
            )


class _ArrowFile:
    found_types: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading() as file:
            require_names_apart(path, file.schema.names)
            _refuse_extensions(path, file.schema)
            self.schema: pa.Schema = file.schema
            self.rows: int = sum(file.get_batch(index).num_rows for index in range(file.num_record_batches))

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._reading() as file:
            for index in range(file.num_record_batches):
                batch = file.get_batch(index)
                batch.validate(full=True)
                yield batch

    @contextmanager
    def _reading(self) -> Iterator[pa.ipc.RecordBatchFileReader]:
        try:
            with pa.memory_map(os.fsencode(self._path)) as source, pa.ipc.open_file(source) as file:
                require_readable_file(source.read_buffer())
                yield file
        except (pa.ArrowException, OSError, ValueError) as error:
            fail(f"{self._path} is not an Arrow file that can be read: {error}")


class _CsvFile:
    def __init__(
        self, path: Path, options: CsvOptions, schema: pa.Schema | None, on_read: OnRead | None
    ) -> None:
        self._path = path
        dialect = options.dialect or CsvDialect(delimiter=delimiter_by_name(path))
        self._text = CsvText(path, dialect)
        self._null_values = list(options.null_values)
        self._nulls = pa.array(self._null_values, pa.string())
        self.rows: int | None = None
        names = self._text.names
        _require_types(path, names, options.types, schema)
        given = {} if schema is None else {each.name: each.type for each in schema}
        given |= options.types
        self.found_types = tuple(name for name in names if name not in given) if schema is None else ()
        found = self._find_types(on_read) if self.found_types else {}
        # A column that the table lacks is refused by its name, whatever its type.
        types = (given.get(name, found.get(name, pa.string())) for name in names)
        self.schema = pa.schema(list(zip(names, types, strict=True)))

    def batches(self) -> Iterator[pa.RecordBatch]:
        for block in self._text.blocks():
            for texts in self._parse(block):
                columns = [
                    self._convert(column, each, block)
                    for column, each in zip(texts.columns, self.schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _find_types(self, on_read: OnRead | None) -> dict[str, pa.DataType]:
        """Read the whole file: a cell far down decides as well."""
        columns = {name: ColumnTypes(self._nulls) for name in self.found_types}
        rows = 0
        for texts in self._texts(on_read):
            rows += texts.num_rows
            for name, column in columns.items():
                column.see(texts.column(name))
        self.rows = rows
        return {name: column.found for name, column in columns.items()}

    def _texts(self, on_read: OnRead | None) -> Iterator[pa.RecordBatch]:
        """The rows as strings, some blocks at a time: to look at a few cells of a column takes as long as at many."""
        pending, size = list[pa.RecordBatch](), 0
        for block in self._text.blocks(on_read):
            pending += self._parse(block)
            size += len(block.data)
            if pending and size >= _LOOK_BYTES:
                yield pa.concat_batches(pending)
                pending, size = [], 0
        if pending:
            yield pa.concat_batches(pending)

    def _parse(self, block: CsvBlock) -> list[pa.RecordBatch]:
        """The rows of a block as strings; a cell is null if it stands for null and has no quotes around it."""
        if not block.data.strip(b"\r\n"):
            return []
        dialect, names = self._text.dialect, self._text.names
        data = block.data
        if data.startswith(codecs.BOM_UTF8):  # Arrow leaves one out, wherever in the file the block begins.
            data = codecs.BOM_UTF8 + data
        if not data.endswith((b"\n", b"\r")):  # In front of the end it takes an empty cell for one in quotes.
            data += b"\n"
        try:
            table = pacsv.read_csv(
                pa.BufferReader(data),
                read_options=pacsv.ReadOptions(
                    column_names=names, block_size=len(data) + 1, use_threads=False
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=dialect.delimiter,
                    quote_char=dialect.quote or False,
                    newlines_in_values=dialect.quote is not None,
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=self._null_values,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            self._refuse_block(block, error)
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        return batches

    def _refuse_block(self, block: CsvBlock, error: pa.ArrowInvalid) -> NoReturn:
        wanted = len(self._text.names)
        data = block.data
        alone = b"\n" in data and data.count(b"\r") > data.count(b"\r\n")
        hint = "; a carriage return alone ends a row, too, unless its value is in quotes" if alone else ""
        for line, _, values in self._text.records(block):
            if len(values) != wanted:
                fail(
                    f"{self._path}: the row on line {line} has {counted(len(values), 'value')},"
                    f" but the header has {wanted}; it begins with {shortened(values[0])}{hint}"
                )
        fail(f"{self._path} cannot be read as CSV from line {block.first_line} on: {error}")

    def _convert(self, texts: pa.Array, each: pa.Field, block: CsvBlock) -> pa.Array:
        try:
            return from_text(texts, each.type, self._nulls)
        except pa.ArrowInvalid:
            row = self._first_unfit(texts, each.type)
        line = next(
            (line for number, (line, *_) in enumerate(self._text.records(block)) if number == row),
            block.first_line,
        )
        cell = shortened(texts[row].as_py())
        fail(f"{self._path}: {cell} in column {each.name!r} on line {line} is no {each.type}")

    def _first_unfit(self, texts: pa.Array, kind: pa.DataType) -> int:
        """The first cell that is not of a type, of which one is not."""
        low, high = 0, len(texts)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                from_text(texts.slice(low, middle - low), kind, self._nulls)
            except pa.ArrowInvalid:
                high = middle
            else:
                low = middle
        return low
