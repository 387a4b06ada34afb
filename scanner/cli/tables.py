"""`weir tables`, `weir describe`, `weir add-column` and `weir drop`."""

from __future__ import annotations

import sys

import click
import pyarrow as pa

from scanner.cli.app import connected, endpoint_option, example, fail, note
from scanner.cli.display import print_table
from scanner.cli.image import print_images
from scanner.cli.types import parse_type
from scanner.cli.units import counted
from scanner.escapes import escaped


@click.command(epilog=example("weir tables"))
@endpoint_option
def tables(endpoint: str) -> None:
    """List the tables."""
    with connected(endpoint) as client:
        descriptions = client.tables()
    if not descriptions:
        note("no tables; make one with: weir load FILE --primary-key COLUMNS")
        return
    print_table(
        {
            "table": [table.name for table in descriptions],
            "columns": [len(table.schema) for table in descriptions],
            "primary key": [", ".join(table.primary_key) for table in descriptions],
            "buckets": [table.buckets for table in descriptions],
        }
    )


@click.command(epilog=example("weir describe flights"))
@click.argument("table")
@endpoint_option
def describe(table: str, endpoint: str) -> None:
    """Show a table's columns, key, buckets and log offsets, and its images, or why it has none."""
    with connected(endpoint) as client:
        opened = client.table(table)
        offsets = opened.offsets()
        images = client.image_states(table)
    key_columns = escaped(", ".join(opened.primary_key))
    click.echo(
        f"table {escaped(opened.name)}: primary key {key_columns}; {counted(opened.buckets, 'bucket')}\n"
    )
    key = {name: str(position) for position, name in enumerate(opened.primary_key, 1)}
    fields: list[pa.Field] = list(opened.schema)
    print_table(
        {
            "column": [field.name for field in fields],
            "type": [str(field.type) for field in fields],
            "null": ["yes" if field.nullable else "no" for field in fields],
            "key": [key.get(field.name, "") for field in fields],
        }
    )
    click.echo()
    print_table(
        {
            "bucket": [each.bucket for each in offsets],
            "log start": [each.start_offset for each in offsets],
            "log end": [each.end_offset for each in offsets],
        }
    )
    if images:
        click.echo()
        print_images(images)


@click.command(
    "add-column",
    epilog=example(
        "weir add-column flights remark string",
        "weir add-column flights fare 'decimal128(12, 2)'",
        "weir add-column flights seen 'timestamp[us, tz=UTC]'",
    ),
)
@click.argument("table")
@click.argument("name")
@click.argument("type_", metavar="TYPE")
@endpoint_option
def add_column(table: str, name: str, type_: str, endpoint: str) -> None:
    """Add a column, null in existing rows. TYPE is as weir describe prints it."""
    column = pa.field(name, parse_type(type_))
    with connected(endpoint) as client:
        client.table(table).add_column(column)
        note(f"added column {name} to {table}")


@click.command(epilog=example("weir drop flights --yes"))
@click.argument("table")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@endpoint_option
def drop(table: str, yes: bool, endpoint: str) -> None:
    """Drop a table with all its rows."""
    with connected(endpoint) as client:
        # A table that is not there is told before anything is asked, and what was asked for alone is dropped.
        meant = client.table(table)
        if not yes:
            if not sys.stdin.isatty():
                fail(f"dropping {table} cannot be undone; say --yes")
            if not click.confirm(f"Drop table {table} and everything in it?", err=True):
                fail(f"table {table} was not dropped")
        client.drop_table(table, table_id=meant.table_id)
        note(f"dropped {table}")
