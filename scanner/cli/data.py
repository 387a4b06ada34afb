"""`weir load` and `weir delete`: rows into a table, and out of it."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from scanner.cli.app import connected, endpoint_option, example, fail, is_terminal, names
from scanner.cli.files import NULL_VALUES_DEFAULT, RowFile, open_file
from scanner.client import BUCKETS_DEFAULT
from scanner.errors import ArgumentInvalid, KeyInvalid, ScannerError, TableNotFound
from scanner.keys import key_cells
from scanner.literals import Temporal, decimal_literal

if TYPE_CHECKING:
    from scanner.sync import Client, Table
    from scanner.table import TableDescription


@click.command(
    epilog=example(
        "weir load flights.csv.zip --primary-key year,month,day,carrier,flight,origin",
        "weir load orders.parquet --table orders --primary-key o_orderkey --buckets 8",
    )
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--table", "-t", "table_name", metavar="NAME", help="Default: the file's name without its endings."
)
@click.option(
    "--primary-key",
    "-k",
    multiple=True,
    metavar="A,B",
    help="Key columns, in key order; needed for a new table.",
)
@click.option(
    "--buckets", type=click.IntRange(1, 1024), help=f"Shards of a new table. [default: {BUCKETS_DEFAULT}]"
)
@click.option(
    "--null-value",
    "null_values",
    multiple=True,
    metavar="TEXT",
    help="What stands for null in a CSV; may be repeated. Default: nothing at all, NA and NULL.",
)
@endpoint_option
def load(
    file: Path,
    table_name: str | None,
    primary_key: tuple[str, ...],
    buckets: int | None,
    null_values: tuple[str, ...],
    endpoint: str,
) -> None:
    """Load a Parquet or CSV file into a table, which is created if it is missing.

    CSV may be gzipped (.csv.gz) or alone in a .zip. Rows replace those that have the same key, and later rows of the
    file earlier ones.
    """
    name = table_name or file.name.partition(".")[0]
    started_at = time.monotonic()
    with connected(endpoint) as client:
        table = _existing(client, name)
        source = open_file(file, null_values or NULL_VALUES_DEFAULT, None if table is None else table.schema)
        created = table is None
        if table is None:
            table = _create(client, name, source, file, names(primary_key), buckets or BUCKETS_DEFAULT)
        else:
            _require_same(table, names(primary_key), buckets)
        rows = _load(client, table, source, file, created)
    seconds = time.monotonic() - started_at
    click.echo(f"loaded {rows} rows into {name} in {seconds:.1f} s")


def _existing(client: Client, name: str) -> Table | None:
    try:
        return client.table(name)
    except TableNotFound:
        return None


def _create(
    client: Client, name: str, source: RowFile, file: Path, primary_key: list[str], buckets: int
) -> Table:
    columns = ", ".join(source.schema.names)
    if not primary_key:
        fail(f"table {name} does not exist; to create it say --primary-key COLUMNS, out of {columns}")
    for column in primary_key:
        if column not in source.schema.names:
            fail(f"{file} has no column {column!r} for the primary key; it has {columns}")
    return client.create_table(name, source.schema, primary_key, buckets)


def _require_same(table: Table, primary_key: list[str], buckets: int | None) -> None:
    if primary_key and tuple(primary_key) != table.primary_key:
        fail(
            f"table {table.name} exists with the primary key {', '.join(table.primary_key)};"
            " leave --primary-key out, or choose another --table"
        )
    if buckets is not None and buckets != table.buckets:
        fail(
            f"table {table.name} exists with {table.buckets} buckets; leave --buckets out, or choose another --table"
        )


def _load(client: Client, table: Table, source: RowFile, file: Path, created: bool) -> int:
    acknowledged = 0

    def advance(rows: int) -> None:
        nonlocal acknowledged
        acknowledged = rows
        show(rows)

    try:
        _require_columns(table.description, source.schema, file)
        with _progress(table.name, source.rows) as show, table.open_writer(advance) as writer:
            rows_before = 0
            for batch in source.batches():
                _require_keys(table.description, batch, rows_before, file)
                writer.write(batch)
                rows_before += batch.num_rows
    except BaseException as error:
        if created and not acknowledged:
            with suppress(ScannerError):
                client.drop_table(table.name)  # Nothing is in it, and the next try may want another one.
        elif isinstance(error, click.ClickException):
            fail(f"{error.format_message()} ({acknowledged} rows were loaded before)")
        raise
    return writer.result.rows


def _require_columns(table: TableDescription, schema: pa.Schema, file: Path) -> None:
    missing = [name for name in table.column_names if name not in schema.names]
    if missing:
        fail(
            f"{file} has no column {', '.join(missing)}, which table {table.name} has; it has {', '.join(schema.names)}"
        )
    extra = [name for name in schema.names if name not in table.column_names]
    if extra:
        fail(f"table {table.name} has no column {', '.join(extra)}, which {file} has; choose another --table")


def _require_keys(table: TableDescription, batch: pa.RecordBatch, rows_before: int, file: Path) -> None:
    for name in table.primary_key:
        column = batch.column(name)
        if column.null_count:
            row = rows_before + column.is_null().index(True).as_py() + 1
            fail(f"{file}: primary key column {name!r} is null in row {row}; every row needs a key")


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """What shows how many rows are durable: a bar on a terminal, else nothing."""
    layout = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*layout, console=console, transient=True, disable=not is_terminal()) as progress:
        task = progress.add_task(name, total=total)
        yield lambda rows: progress.update(task, completed=rows)


@click.command(epilog=example("weir delete flights 2013,1,1,UA,1545,EWR 2013,1,1,UA,1714,LGA"))
@click.argument("table")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@endpoint_option
def delete(table: str, keys: tuple[str, ...], endpoint: str) -> None:
    """Delete rows by their primary key: the values of the key columns, in key order, with commas between.

    A key that is not there is no error.
    """
    with connected(endpoint) as client:
        opened = client.table(table)
        result = opened.delete(parse_keys(opened.description, keys))
    deleted = sum(end - start for _, start, end in result.ranges)
    click.echo(f"deleted {deleted} rows of {table}")


def parse_keys(table: TableDescription, keys: tuple[str, ...]) -> pa.RecordBatch:
    """Read keys as written on the command line, one CSV record each.

    Raises:
        KeyInvalid: A key has too few or too many values, or one that is not of its column's type.
    """
    rows = list(csv.reader(keys))
    for row in rows:
        if len(row) != len(table.primary_key):
            wanted = ",".join(table.primary_key)
            raise KeyInvalid(f"key {','.join(row)!r} does not have the form {wanted}")
    columns = [
        key_cells([_key_value(text, field) for text in texts], field)
        for field, texts in zip(table.key_schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(table.primary_key))


def _key_value(text: str, field: pa.Field) -> object:
    """What a word on the command line says in a key column, exactly: `key_cells` rounds nothing."""
    types, kind = pa.types, field.type
    try:
        if types.is_boolean(kind):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if "_" in text and (types.is_integer(kind) or types.is_floating(kind)):
            raise ValueError  # Python would read 1_000.
        if types.is_integer(kind):
            return int(text)
        if types.is_floating(kind):
            return float(text)
        if types.is_decimal(kind):
            return decimal_literal(text)
        if types.is_date(kind) or types.is_timestamp(kind):
            return Temporal(text)
    except (ValueError, KeyError, ArgumentInvalid) as error:
        raise KeyInvalid(f"{text!r} is no {kind}, which key column {field.name!r} is") from error
    return text.encode() if types.is_binary(kind) else text
