"""`weir load`: the rows of a file into a table."""

from __future__ import annotations

import codecs
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from scanner.cli.app import (
    CommandUnreadable,
    connected,
    endpoint_option,
    example,
    fail,
    is_terminal,
    names,
    note,
    shown_names,
    tell_done,
)
from scanner.cli.cells import parse_types
from scanner.cli.connection import with_options
from scanner.cli.csv_text import CsvDialect, delimiter_by_name
from scanner.cli.files import NULL_VALUES_DEFAULT, CsvOptions, RowFile, open_file
from scanner.cli.repeated_keys import RepeatedKeys
from scanner.cli.units import counted
from scanner.client.client import BUCKETS_DEFAULT
from scanner.client.request_rows import joined, request_scale
from scanner.client.writer import shown_progress
from scanner.data.table import require_table_name, stored_type
from scanner.errors import (
    KeyInvalid,
    ScannerError,
    SchemaMismatch,
    ServerUnavailable,
    TableExists,
    TableNotFound,
)
from scanner.escapes import listed

if TYPE_CHECKING:
    from scanner.client.writer import WriteResult
    from scanner.data.table import TableDescription
    from scanner.sync import Client, Table

_TABULATOR = ("tab", "\\t")
_SILENT_S_MAX: Final = 0.5
"""How long a command that was interrupted waits without a word."""


def _csv_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that reads a CSV; `_read_csv_options` reads them."""
    return with_options(
        command,
        click.option(
            "--types",
            multiple=True,
            metavar="NAME=TYPE,...",
            help="Types of columns: as what those of a CSV are read, which are inferred otherwise, and as what those of"
            " other files are stored, such as a uint64 as int64. A value that does not fit is an error. A name with a"
            " comma in double quotes.",
        ),
        click.option(
            "--delimiter",
            metavar="CHARACTER",
            help="Separates the values of a CSV; 'tab' for tabs. Default: a comma; tabs in a .tsv.",
        ),
        click.option(
            "--quote",
            metavar="CHARACTER",
            default='"',
            help="Encloses values of a CSV. none: quotes are ordinary text. Default: a double quote.",
        ),
        click.option("--encoding", metavar="NAME", help="Encoding of a CSV, such as cp1252. Default: UTF-8."),
        click.option(
            "--null-value",
            "null_values",
            multiple=True,
            metavar="TEXT",
            help="Text that means null in a CSV; may be repeated. Default: the empty field, NA and NULL.",
        ),
    )


def _read_csv_options(
    file: Path,
    types: tuple[str, ...],
    delimiter: str | None,
    quote: str,
    encoding: str | None,
    null_values: tuple[str, ...],
) -> CsvOptions:
    """What the options say.

    Raises:
        CommandUnreadable: One makes no sense.
        Failure: A type cannot be read.
    """
    said = {
        "--delimiter": delimiter,
        "--quote": quote != '"',
        "--encoding": encoding,
        "--null-value": null_values,
    }
    if delimiter is None:
        delimiter = delimiter_by_name(file)
    if delimiter in _TABULATOR:
        delimiter = "\t"
    quote_used = None if quote == "none" else quote
    for option, character in (("--delimiter", delimiter), ("--quote", quote_used)):
        if character is not None and (
            len(character) != 1 or not character.isascii() or character in "\r\n\0"
        ):
            raise CommandUnreadable(
                f"{option} takes one ASCII character, not {character!r}; see weir load --help"
            )
    if delimiter == quote_used:
        raise CommandUnreadable(f"--delimiter and --quote are both {delimiter!r}; see weir load --help")
    if encoding is not None:
        _require_encoding(encoding)
    dialect = CsvDialect(delimiter=delimiter, quote=quote_used, encoding=encoding)
    return CsvOptions(
        dialect=dialect,
        null_values=null_values or NULL_VALUES_DEFAULT,
        types=parse_types(types),
        given=tuple(option for option, value in said.items() if value),
    )


def _require_encoding(name: str) -> None:
    try:
        codecs.getincrementaldecoder(name)
        "".encode(name)  # Of text: base64 and its like are codecs, too.
    except (LookupError, UnicodeError) as error:  # UnicodeError: of the codec that is called `undefined`.
        raise CommandUnreadable(
            f"there is no encoding {name!r}; utf-8, utf-16, latin-1 and cp1252 are some; see weir load --help"
        ) from error


@click.command(
    epilog=example(
        "weir load flights.csv.zip --primary-key year,month,day,carrier,flight,origin",
        "weir load people.csv -k id --types zip=string,born=date --encoding cp1252",
        "weir load orders.parquet --table orders --primary-key o_orderkey --buckets 8",
    )
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--table", "-t", "table_name", metavar="NAME", help="Default: the file's name without its suffixes."
)
@click.option(
    "--primary-key",
    "-k",
    multiple=True,
    metavar="A,B",
    help="Key columns, in key order; needed for a new table. A name with a comma in double quotes.",
)
@click.option(
    "--buckets", type=click.IntRange(1, 1024), help=f"Shards of a new table. [default: {BUCKETS_DEFAULT}]"
)
@_csv_options
@endpoint_option
def load(
    file: Path,
    table_name: str | None,
    primary_key: tuple[str, ...],
    buckets: int | None,
    types: tuple[str, ...],
    delimiter: str | None,
    quote: str,
    encoding: str | None,
    null_values: tuple[str, ...],
    endpoint: str,
) -> None:
    """Load a Parquet, Arrow or CSV file into a table, which is created if it is missing.

    A CSV may be gzipped (.csv.gz) or the only file in a .zip. Rows replace those that have the same key, and later rows
    of the file replace earlier ones; weir prints how many. A value in quotes is never null in a column of strings. A
    backslash is ordinary text: files with escapes by it, as Spark and MySQL write them unless told otherwise, have
    other values.
    """
    options = _read_csv_options(file, types, delimiter, quote, encoding, null_values)
    name = file.name.partition(".")[0] if table_name is None else table_name
    started_at = time.monotonic()
    with connected(endpoint) as client:
        table = _existing(client, name)
        if table is None:
            require_table_name(name)  # Before a long file is read in vain.
        with _reading_progress(file) as on_read:
            source = open_file(file, options, None if table is None else table.schema, on_read)
        _tell_types(source)
        created = table is None
        if table is None:
            table = _create(client, name, source, file, names(primary_key), buckets or BUCKETS_DEFAULT)
        else:
            _require_same(table, names(primary_key), buckets)
        rows = _load(table, source, file, created)
        # Not behind the end of the connection, during which Ctrl-C would keep it from being said.
        seconds = time.monotonic() - started_at
        tell_done(f"loaded {counted(rows, 'row')} into {name} in {seconds:.1f} s")


def _existing(client: Client, name: str) -> Table | None:
    try:
        return client.table(name)
    except TableNotFound:
        return None


def _create(
    client: Client, name: str, source: RowFile, file: Path, primary_key: list[str], buckets: int
) -> Table:
    columns = shown_names(source.schema.names)
    if not primary_key:
        fail(f"table {name} does not exist; to create it say --primary-key COLUMNS, out of {columns}")
    for column in primary_key:
        if column not in source.schema.names:
            fail(f"{file} has no column {column!r} for the primary key; it has {columns}")
    for each in source.schema:
        _require_stored(each)
    try:
        return client.create_table(name, source.schema, primary_key, buckets)
    except KeyboardInterrupt:
        note(f"table {name} may have been made, without rows; load it again, or drop it")
        raise
    except TableExists:
        # Not the server's advice, which is to drop it: somebody is using it.
        fail(
            f"table {name} was made by somebody else while {file} was read; load it again, or choose another --table"
        )


def _require_stored(column: pa.Field) -> None:
    try:
        stored_type(column.name, column.type)
    except SchemaMismatch:
        other = _stored_instead(column.type)
        if other is None:
            raise
        option = shlex.quote(f"{shown_names([column.name])}={other}")
        fail(
            f"column {column.name!r} has type {column.type}, which cannot be stored; --types {option} casts it"
        )


def _stored_instead(kind: pa.DataType) -> str | None:
    """A type that `--types` casts one to which no table has; None: it casts that to none."""
    types = pa.types
    if types.is_decimal256(kind):
        return f"decimal128(38, {kind.scale})"
    others = {
        "int64": types.is_integer,
        "float32": types.is_floating,
        "date": types.is_date,
        "string": types.is_null,
    }
    return next((other for other, is_like in others.items() if is_like(kind)), None)


def _require_same(table: Table, primary_key: list[str], buckets: int | None) -> None:
    if primary_key and tuple(primary_key) != table.primary_key:
        fail(
            f"table {table.name} exists with the primary key {shown_names(table.primary_key)};"
            " leave --primary-key out, or choose another --table"
        )
    if buckets is not None and buckets != table.buckets:
        fail(
            f"table {table.name} exists with {table.buckets} buckets; leave --buckets out, or choose another --table"
        )


def _tell_types(source: RowFile) -> None:
    if source.found_types:
        found = ", ".join(
            f"{shown_names([name])} {source.schema.field(name).type}" for name in source.found_types
        )
        note(f"types found: {found}; --types NAME=TYPE takes others")


def _load(table: Table, source: RowFile, file: Path, created: bool) -> int:
    acknowledged = rows_before = sent = 0

    def advance(rows: int) -> None:
        nonlocal acknowledged
        acknowledged = rows
        show(rows)

    try:
        repeated = RepeatedKeys(table.description)
        _require_columns(table.description, source.schema, file)
        with _progress(table.name, source.rows) as show, table.open_writer(advance) as writer:
            for batch in joined(source.batches(), request_scale(table.buckets)):
                with _numbering_rows(table.description, batch, rows_before, file):
                    repeated.add(batch)
                    sent = rows_before + batch.num_rows
                    writer.write(batch)
                rows_before = sent
    except BaseException as error:
        unwritten = created and not acknowledged
        # A server that is away would be waited for once more.
        if unwritten and not isinstance(error, ServerUnavailable) and _drop_unwritten(table):
            raise
        refused = isinstance(error, click.ClickException)  # Before anything of its batch was sent.
        if refused or (isinstance(error, ScannerError | MemoryError) and (rows_before or acknowledged)):
            # Of what was sent and not answered, any part may be there.
            most = rows_before if refused else sent
            loaded = acknowledged if acknowledged == most else f"{acknowledged} to {most}"
            told = str(error).removesuffix(shown_progress(acknowledged))
            fail(f"{told or 'no memory is left'} ({loaded} rows were loaded before)")
        elif isinstance(error, KeyboardInterrupt) or (unwritten and isinstance(error, ServerUnavailable)):
            rows = f"has {acknowledged} of the file's rows, or some more"
            if unwritten:
                rows = "was made, and may be there, with some of the file's rows or none"
            note(f"table {table.name} {rows}; load it again for all of them")
        raise
    try:
        _require_all(writer.result, source, rows_before, repeated.count, table.name, created=created)
    except KeyboardInterrupt:  # Of many rows the keys are sorted for seconds.
        note(f"table {table.name} has all of the file's rows; whether keys repeat was not looked at")
        raise
    return rows_before


def _drop_unwritten(table: Table) -> bool:
    """Drop a table that was just made, since the next try may want another one; not if somebody has written to it.

    A server that does not answer is waited for aloud, and no longer than until the next Ctrl-C.

    Returns:
        Whether it is known to be gone.
    """
    waiting = (
        f"waiting for the server to drop table {table.name}, which was made for the file; Ctrl-C ends that"
    )
    slow = threading.Timer(_SILENT_S_MAX, note, (waiting,))
    slow.daemon = True
    with suppress(RuntimeError):  # No thread is left; the drop needs none.
        slow.start()
    try:
        return table.drop_unwritten()
    except (ScannerError, KeyboardInterrupt):
        return False
    finally:
        slow.cancel()


def _require_all(
    result: WriteResult, source: RowFile, rows: int, repeated: int, name: str, *, created: bool
) -> None:
    """Check that every row of the file is in the table, or was replaced by a later one of it, and tell of these.

    Raises:
        Failure: The numbers do not add up.
    """
    if source.rows not in {None, rows}:
        fail(
            f"the file has changed while it was read: it had {source.rows} rows and then {rows}; load it again"
        )
    # In the changelog a new row is one change, and a row that replaces another one two.
    changes = sum(end - start for _, start, end in result.ranges)
    new = 2 * result.rows - changes
    if result.rows != rows or new > rows - repeated or (created and new != rows - repeated):
        fail(
            f"of {rows} rows, {repeated} of them with the key of an earlier one, {result.rows} were acknowledged and"
            f" {new} were new to table {name}; somebody else writes to it, or rows are missing"
        )
    if repeated:
        rows_have = "1 row has" if repeated == 1 else f"{repeated} rows have"
        note(
            f"{rows_have} the key of an earlier row of the file, and replaced it:"
            f" {counted(rows - repeated, 'different key')}"
        )


def _require_columns(table: TableDescription, schema: pa.Schema, file: Path) -> None:
    # Arrow makes the list of names anew each time it is asked for it.
    wanted, given = table.column_names, schema.names
    known, found = set(wanted), set(given)
    missing = [name for name in wanted if name not in found]
    if missing:
        fail(f"{file} has no column {listed(missing)}, which table {table.name} has; it has {listed(given)}")
    extra = [name for name in given if name not in known]
    if extra:
        fail(f"table {table.name} has no column {listed(extra)}, which {file} has; choose another --table")


@contextmanager
def _numbering_rows(
    table: TableDescription, batch: pa.RecordBatch, rows_before: int, file: Path
) -> Iterator[None]:
    """Where rows do not fit, name them as a person counts those of the file, from 1."""
    try:
        yield
    except (KeyInvalid, SchemaMismatch):
        try:
            table.conform(batch, first_row=rows_before + 1)
        except (KeyInvalid, SchemaMismatch) as error:
            fail(f"{file}: {error}")
        raise


@contextmanager
def _reading_progress(file: Path) -> Iterator[Callable[[int], None]]:
    """What shows how far the types of a file have been found: a bar on a terminal, else nothing."""
    with _bar(DownloadColumn()) as progress:
        task = progress.add_task("finding types", total=file.stat().st_size, visible=False)
        yield lambda octets: progress.update(task, completed=octets, visible=True)


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """What shows how many rows are durable: a bar on a terminal, else nothing."""
    with _bar(MofNCompleteColumn()) as progress:
        task = progress.add_task(name, total=total)
        yield lambda rows: progress.update(task, completed=rows)


def _bar(count: ProgressColumn) -> Progress:
    layout = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    return Progress(*layout, console=Console(stderr=True), transient=True, disable=not is_terminal())
