"""`weir get`: rows by their primary key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from scanner.cli.app import connected, endpoint_option, example, fail, names
from scanner.cli.destination import destination
from scanner.cli.keys import parse_keys
from scanner.cli.log_places import as_of_option, require_places
from scanner.cli.options import columns_option
from scanner.cli.output import format_of, open_rows, output_options
from scanner.cli.units import counted

if TYPE_CHECKING:
    from pathlib import Path

_NAMED_MAX: Final = 3
"""Missing keys that are named."""


@click.command(
    epilog=example(
        "weir get flights 2013,1,1,UA,1545,EWR 2013,1,1,UA,1714,LGA",
        "weir get people 7 --columns name,born --format json",
        "weir get orders 1 2 3 --as-of 1200",
        "weir get stations -- -1 -7",
    )
)
@click.argument("table")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@as_of_option
@columns_option
@output_options
@endpoint_option
def get(
    table: str,
    keys: tuple[str, ...],
    as_of: int | dict[int, int] | None,
    columns: tuple[str, ...],
    kind: str | None,
    output: Path | None,
    endpoint: str,
) -> None:
    r"""Read rows by primary key. KEY is the values of the key columns, in key order, separated by commas.

    Write binary values in hexadecimal after \x, as weir scan writes them in CSV; without \x they are taken as text. Put
    -- before keys that begin with a minus.

    The rows come in the order of the keys. Exit code 1, and a line on standard error, if a key has no row; the rows of
    the others are written all the same.
    """
    form = format_of(kind, output)
    with connected(endpoint) as client:
        opened = client.table(table)
        if isinstance(as_of, dict):  # Which buckets the keys belong to, the server knows.
            require_places("--as-of", as_of, (), opened.buckets)
        result = opened.get(
            parse_keys(opened.description, keys),
            columns=names(columns),
            as_of=as_of,
        )
    with destination(form, output) as file:
        writer = open_rows(form, file, result.rows.schema)
        for batch in result.rows.to_batches():
            writer.write(batch)
        writer.close()
    if form == "none":
        click.echo(counted(result.rows.num_rows, "row"))
    missing = [key for key, found in zip(keys, result.found, strict=True) if not found]
    if missing:
        others = f" and {len(missing) - _NAMED_MAX} others" if len(missing) > _NAMED_MAX else ""
        fail(f"table {table} has no row of key {' '.join(missing[:_NAMED_MAX])}{others}")
