"""`weir transactions`."""

from __future__ import annotations

import dataclasses

import click

from scanner.cli.app import connected, endpoint_option, example
from scanner.cli.display import print_records
from scanner.cli.options import json_lines_option


@click.command(epilog=example("weir transactions orders", "weir transactions orders --json"))
@click.argument("table")
@json_lines_option
@endpoint_option
def transactions(table: str, as_json: bool, endpoint: str) -> None:
    """Show a table's transactions: the newest decided version of each name, and what is staged.

    A version that is decided and not applied yet is being applied; if that lasts, the server's log says why.
    """
    with connected(endpoint) as client:
        rows = [dataclasses.asdict(each) for each in client.table(table).transactions()]
    print_records(rows, as_json=as_json, none=f"no transactions of table {table} are remembered")
