"""`weir groups`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from scanner.cli.app import connected, endpoint_option, example, note
from scanner.cli.display import print_records
from scanner.cli.options import json_lines_option
from scanner.errors import GroupNotFound

if TYPE_CHECKING:
    from scanner.client.groups import GroupInfo


@click.command(
    epilog=example(
        "weir groups orders",
        "weir groups orders --json",
        "weir groups orders --delete billing",
    )
)
@click.argument("table")
@click.option(
    "--delete", metavar="GROUP", help="Forget this group and its positions; it has no readers then."
)
@json_lines_option
@endpoint_option
def groups(table: str, delete: str | None, as_json: bool, endpoint: str) -> None:
    """Show a table's reader groups: the reader of each bucket, its position, and how many changes are left.

    A bucket without a member has no reader now. The epoch is that of its newest assignment: a higher one is newer.
    """
    with connected(endpoint) as client:
        opened = client.table(table)
        if delete is not None:
            opened.delete_group(delete)
            note(f"reader group {delete} of table {table} is forgotten")
            return
        found: list[GroupInfo] = []
        for each in opened.groups():
            with suppress(GroupNotFound):  # It was deleted meanwhile.
                found.append(opened.group(each.name))
    rows: list[dict[str, Any]] = [
        {
            "group": group.name,
            "bucket": each.bucket,
            "member": each.member,
            "epoch": each.epoch,
            "position": each.position,
            "log_end": each.log_end,
            "lag": each.lag,
        }
        for group in found
        for each in group.buckets
    ]
    print_records(
        rows, as_json=as_json, none=f"no reader groups; begin one with: weir tail {table} --group NAME"
    )
