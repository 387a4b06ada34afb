"""`weir streams`, `weir snapshots` and `weir drain`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from scanner.cli.amounts import Seconds
from scanner.cli.app import connected, endpoint_option, example, note
from scanner.cli.display import print_table
from scanner.cli.units import short_bytes, short_seconds
from transport import StallTimes

if TYPE_CHECKING:
    from scanner.client.admin import SnapshotInfo, StreamInfo

json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, with every field."
)


@click.command(epilog=example("weir streams", "weir streams --json"))
@json_option
@endpoint_option
def streams(as_json: bool, endpoint: str) -> None:
    """List the calls that run at the server: what each reads, its credit and windows, and what holds it up."""
    with connected(endpoint) as client:
        found = client.list_streams()
    if as_json:
        _print_json(found)
        return
    print_table(
        {
            "stream": [f"{each.connection_id}/{each.stream_id}" for each in found],
            "call": [each.method for each in found],
            "reads": [what(each) for each in found],
            "age": [short_seconds(each.age_s) for each in found],
            "rows": [None if each.scan is None else each.scan.rows for each in found],
            "sent": [short_bytes(each.bytes_sent) for each in found],
            "unsent": [short_bytes(each.unsent_bytes) for each in found],
            "credit": ["-" if each.scan is None else short_bytes(each.credit_left) for each in found],
            "window": [short_bytes(min(each.send_window, each.connection_send_window)) for each in found],
            "stall": [each.stall.label for each in found],
            "mostly": [each.stalls.longest.label for each in found],
            "pins": [pins(each) for each in found],
            "peer": [each.peer for each in found],
            "principal": [each.principal for each in found],
        },
        hint="--json has them all",
    )


@click.command(epilog=example("weir snapshots", "weir snapshots --table orders"))
@click.option("--table", "-t", metavar="NAME", help="Only of this table.")
@json_option
@endpoint_option
def snapshots(table: str | None, as_json: bool, endpoint: str) -> None:
    """List the states of buckets that scans and sessions pin: since when, how far behind, and for whom."""
    with connected(endpoint) as client:
        found = client.list_snapshots(table)
        if table is not None and not found:
            client.table(table)  # Or there is none of this name.
    if as_json:
        _print_json(found)
        return
    if not found:
        note("no scan or session pins a state")
        return
    print_table(
        {
            "table": [each.scan.table for each in found],
            "bucket": [each.scan.bucket for each in found],
            "log offset": [each.scan.log_offset for each in found],
            "behind": [each.scan.log_behind for each in found],
            "age": [short_seconds(each.scan.pinned_s) for each in found],
            "rows": [each.scan.rows for each in found],
            "holder": [each.holder for each in found],
            "stream": [f"{each.connection_id}/{each.stream_id}" for each in found],
            "peer": [each.peer for each in found],
            "principal": [each.principal for each in found],
        },
        hint="--json has them all",
    )


@click.command(epilog=example("weir drain", "weir drain --timeout 60"))
@click.option(
    "--timeout",
    type=Seconds(0, 1_000_000),
    help="How long the shutdown takes at most; running calls may finish in four fifths of it. [default: the server's"
    " --drain-timeout]",
)
@endpoint_option
def drain(timeout: float | None, endpoint: str) -> None:
    """Shut the server down gracefully, as SIGTERM does: it takes no new calls, and running ones may finish."""
    with connected(endpoint) as client:
        begun = client.drain(timeout)
        others = begun.streams - 1
        calls = "1 call runs" if others == 1 else f"{others} calls run"
        note(f"{'was draining before' if begun.already_draining else 'draining'}; {calls}")


def what(stream: StreamInfo) -> str:
    """What a stream reads, `orders[2]`; nothing if it is no scan."""
    return "" if stream.scan is None else f"{stream.scan.table}[{stream.scan.bucket}]"


def pins(stream: StreamInfo) -> str:
    """What a stream pins: `@1200 +35 12s`, log offset, changes since, and for how long; or nothing.

    Where it pins the changelog alone, `parked` or `log` stands in place of a time.
    """
    scan = stream.scan
    if scan is None:
        return ""
    held = short_seconds(scan.pinned_s) if scan.iterator_open else "parked" if scan.parked else "log"
    return f"@{scan.log_offset} +{scan.log_behind} {held}"


def _print_json(found: list[StreamInfo] | list[SnapshotInfo]) -> None:
    for each in found:
        click.echo(json.dumps({name: _plain(getattr(each, name)) for name in _names(each)}))


def _names(record: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def _plain(value: Any) -> Any:
    if isinstance(value, StallTimes):
        return value.to_dict()
    if hasattr(value, "label"):
        return value.label
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
