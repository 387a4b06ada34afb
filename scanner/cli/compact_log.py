"""`weir compact-log`: cuts changelogs off now, and says what keeps the rest."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Final

import click

from scanner.cli.app import connected, endpoint_option, example, fail, note
from scanner.cli.display import print_table
from scanner.cli.log_places import parse_time
from scanner.cli.options import bucket_option

if TYPE_CHECKING:
    from scanner.client.admin import CompactedLog

_OFFSET: Final = re.compile(r"[0-9]{1,20}")
_SHOWN: Final = 3
"""Pins of a bucket that are named; there may be thousands."""


@click.command(
    epilog=example(
        "weir compact-log orders",
        "weir compact-log orders --before 2026-03-29T08:00:00Z",
        "weir compact-log orders --before 812 --bucket 0",
    )
)
@click.argument("table")
@click.option(
    "--before",
    metavar="PLACE",
    help="What goes: commits before a time (without a zone: UTC), or those that end at or before OFFSET of one bucket."
    "  [default: what the server's retention lets go]",
)
@bucket_option
@endpoint_option
def compact_log(table: str, before: str | None, bucket: int | None, endpoint: str) -> None:
    """Cut a table's changelogs off now, as the server does from time to time by itself.

    Changes that a scan, a tail (parked or not) or a lease still needs stay; the output names them and their owners.
    Rows are untouched.
    """
    place = None if before is None else _place(before, bucket)
    with connected(endpoint) as client:
        cuts = client.compact_log(table, before=place, bucket=bucket)
    print_table(
        {
            "bucket": [each.bucket for each in cuts],
            "dropped": [each.changes_dropped for each in cuts],
            "log start": [each.start_offset for each in cuts],
            "log end": [each.end_offset for each in cuts],
            "pinned": [each.changes_pinned for each in cuts],
            "by": [_pins(each) for each in cuts],
        }
    )
    if not any(each.changes_dropped or each.changes_pinned for each in cuts):
        note("no change was old enough to go")


def _place(text: str, bucket: int | None) -> int | datetime.datetime:
    if _OFFSET.fullmatch(text.strip()) is None:
        return parse_time("--before", text)
    if bucket is None:
        fail("each bucket has offsets of its own: add --bucket N, or give a time")
    return int(text)


def _pins(cut: CompactedLog) -> str:
    if not cut.changes_pinned:
        return ""
    named = [f"{pin.what} of {pin.principal} @{pin.offset}" for pin in cut.pins[:_SHOWN]]
    others = len(cut.pins) - _SHOWN
    return ", ".join([*named, f"{others} more"] if others > 0 else named)
