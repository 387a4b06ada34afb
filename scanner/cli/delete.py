"""`weir delete`: rows out of a table."""

from __future__ import annotations

import click

from scanner.cli.app import connected, endpoint_option, example, tell_done
from scanner.cli.keys import parse_keys
from scanner.cli.units import counted


@click.command(epilog=example("weir delete flights 2013,1,1,UA,1545,EWR 2013,1,1,UA,1714,LGA"))
@click.argument("table")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@endpoint_option
def delete(table: str, keys: tuple[str, ...], endpoint: str) -> None:
    r"""Delete rows by primary key. KEY is the values of the key columns, in key order, separated by commas.

    Write binary values in hexadecimal after \x, as weir scan writes them in CSV; without \x they are taken as text. Put
    -- before keys that begin with a minus. A missing key is no error.
    """
    with connected(endpoint) as client:
        opened = client.table(table)
        result = opened.delete(parse_keys(opened.description, keys))
        deleted = sum(end - start for _, start, end in result.ranges)
        tell_done(f"deleted {counted(deleted, 'row')} of {table}")
