"""`weir offsets`."""

from __future__ import annotations

import json

import click

from scanner.cli.app import connected, endpoint_option, example
from scanner.cli.display import print_table
from scanner.cli.log_places import offsets_at, parse_time


@click.command(
    epilog=example(
        "weir offsets orders", "weir offsets orders --at 2026-03-29T08:00:00Z", "weir offsets orders --json"
    )
)
@click.argument("table")
@click.option(
    "--at",
    metavar="TIME",
    help="Also where this time is: the first commit at or after it. Without a zone it is one of UTC.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@endpoint_option
def offsets(table: str, at: str | None, as_json: bool, endpoint: str) -> None:
    """Show where the changelog of each bucket of a table begins and ends, and where a time is in it.

    The log end is the offset that the next change gets. Both are ends of commits: weir tail --from and --to take them.
    """
    time = None if at is None else parse_time("--at", at)
    with connected(endpoint) as client:
        opened = client.table(table)
        found = opened.offsets() if time is None else offsets_at(opened, time)
    headings = ("bucket", "log start", "log end", "at")[: 3 if time is None else 4]
    columns = {heading: [each[index] for each in found] for index, heading in enumerate(headings)}
    if not as_json:
        print_table(columns)
        return
    names = [name.replace(" ", "_") for name in columns]
    for row in zip(*columns.values(), strict=True):
        click.echo(json.dumps(dict(zip(names, row, strict=True))))
