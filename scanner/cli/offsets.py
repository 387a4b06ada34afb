"""`weir offsets`."""

from __future__ import annotations

import click

from scanner.cli.app import connected, endpoint_option, example
from scanner.cli.display import print_records
from scanner.cli.log_places import offsets_at, parse_time
from scanner.cli.options import json_lines_option


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
@json_lines_option
@endpoint_option
def offsets(table: str, at: str | None, as_json: bool, endpoint: str) -> None:
    """Show where the changelog of each bucket of a table begins and ends, and where a time is in it.

    The log end is the offset that the next change gets. Both are ends of commits: weir tail --from and --to take them.
    """
    time = None if at is None else parse_time("--at", at)
    with connected(endpoint) as client:
        opened = client.table(table)
        found = opened.offsets() if time is None else offsets_at(opened, time, range(opened.buckets))
    names = ("bucket", "log_start", "log_end", "at")
    print_records([dict(zip(names, each, strict=False)) for each in found], as_json=as_json)
