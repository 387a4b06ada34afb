"""`weir leases` and `weir checkpoint`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from scanner.cli.admin import json_option
from scanner.cli.amounts import Seconds
from scanner.cli.app import OneLineGroup, connected, endpoint_option, example, fail, note
from scanner.cli.display import print_table
from scanner.cli.options import bucket_option
from scanner.cli.units import counted, short_seconds, utc_time
from scanner.client.leases import LeaseState, LeaseTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

    from scanner.client.leases import LeaseInfo
    from scanner.sync import Client

_TARGETS = "TABLE[:BUCKETS]"

ttl_option = click.option(
    "--ttl",
    type=Seconds(0, min_open=True),
    metavar="TIME",
    help="How long it lives from now on, e.g. 12h. [default: the server's, or as before]",
)
principal_option = click.option(
    "--principal",
    default="",
    metavar="NAME",
    help="Owner of the lease, if it is not yours; for administrators.",
)


class _ListedByDefault(OneLineGroup):
    """A group of which `list` is what it does without the name of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of arguments that name no command."""
        options = args and args[0].startswith("-") and args[0] not in ("-h", "--help")
        if options or not (args or ctx.resilient_parsing):  # A shell that completes asks for the commands.
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, or the options of `list`."""
        if incomplete.startswith("-"):
            return self.commands["list"].shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete)


@click.group(
    cls=_ListedByDefault,
    epilog=example(
        "weir leases                              list them",
        "weir leases acquire orders --id nightly  keep a state of every bucket",
        "weir scan orders --lease nightly         read it, now and later",
        "weir leases drop nightly                 release it",
    ),
)
def leases() -> None:
    """Keep states of tables readable for a while; without a command, list what is kept."""


@leases.command("list", epilog=example("weir leases", "weir leases list --table orders --json"))
@click.option("--table", "-t", metavar="NAME", help="Only leases that keep something of this table.")
@json_option
@endpoint_option
def list_(table: str | None, as_json: bool, endpoint: str) -> None:
    """List your leases and what they keep; everybody's, if you administer the server."""
    with connected(endpoint) as client:
        found = client.list_leases(table)
        if table is not None and not found:
            client.table(table)  # Or there is none of this name.
    if as_json:
        for each in found:
            click.echo(json.dumps(dataclasses.asdict(each), default=bytes.hex))
        return
    if not found:
        note("no leases; acquire one with: weir leases acquire TABLE")
        return
    _print(found)


@leases.command(
    epilog=example(
        "weir leases acquire orders",
        "weir leases acquire orders customers --id nightly --ttl 12h --state new",
        "weir leases acquire orders:0,2 --id nightly   add or move these buckets",
        "weir leases acquire orders:0 --offset 1200    the state as of a log offset",
    )
)
@click.argument("targets", nargs=-1, required=True, metavar=f"{_TARGETS}...")
@click.option(
    "--id",
    "lease_id",
    metavar="ID",
    help="Its id; an existing lease gets these buckets too. [default: a new id]",
)
@ttl_option
@click.option(
    "--state",
    type=click.Choice([state.value for state in LeaseState]),
    help="The newest checkpoint, made by administrators if there is none, or not; a new one; or now, by the"
    " changelog alone. [default: newest]",
)
@click.option(
    "--checkpoint", "checkpoint_id", type=click.IntRange(0), metavar="N", help="This one, of one bucket."
)
@click.option("--offset", type=click.IntRange(0), metavar="N", help="As of this log offset of one bucket.")
@click.option("--partial", is_flag=True, help="Lease what exists, even if something is missing.")
@endpoint_option
def acquire(
    targets: tuple[str, ...],
    lease_id: str | None,
    ttl: float | None,
    state: str | None,
    checkpoint_id: int | None,
    offset: int | None,
    partial: bool,
    endpoint: str,
) -> None:
    """Acquire a lease on tables or buckets, or add buckets to one. Renew it before its time is over."""
    if state is not None and (checkpoint_id is not None or offset is not None):
        fail("--state goes with neither --checkpoint nor --offset: name one of them")
    if offset is not None or checkpoint_id is not None:
        option = "--checkpoint" if offset is None else "--offset"
        for table, buckets in map(_parse_target, targets):
            if len(buckets) != 1:
                fail(f"{option} is of one bucket: name that, for example {table}:0")
    wanted = [
        LeaseTarget(table, buckets, state or LeaseState.NEWEST, checkpoint_id, offset)
        for table, buckets in map(_parse_target, targets)
    ]
    with connected(endpoint) as client:
        lease = client.acquire_lease(*wanted, lease_id=lease_id, ttl_s=ttl, partial=partial)
        try:
            for missing in lease.not_leased:
                where = missing.table if missing.bucket is None else f"{missing.table}[{missing.bucket}]"
                note(f"not leased: {where}: {missing.error}")
            for half in lease.half_applied:
                note(str(half))
            _print([lease.info])
        except BaseException:
            if lease_id is None:  # Nobody knows the id that was made up, and could drop it.
                lease.drop()
            raise


@leases.command(epilog=example("weir leases renew nightly", "weir leases renew nightly --ttl 2h"))
@click.argument("lease_id", metavar="ID")
@ttl_option
@principal_option
@endpoint_option
def renew(lease_id: str, ttl: float | None, principal: str, endpoint: str) -> None:
    """Restart a lease's time."""
    with connected(endpoint) as client:
        renewed = client.leases.renew(lease_id, ttl, principal)
        note(f"lease {lease_id} ends in {round(renewed.remaining_s, 1):g} s, unless it is renewed")


@leases.command(
    epilog=example("weir leases release nightly orders:0,2", "weir leases release nightly orders")
)
@click.argument("lease_id", metavar="ID")
@click.argument("targets", nargs=-1, required=True, metavar=f"{_TARGETS}...")
@principal_option
@endpoint_option
def release(lease_id: str, targets: tuple[str, ...], principal: str, endpoint: str) -> None:
    """Release tables or buckets of a lease. A lease without buckets is gone. A missing lease is no error."""
    left: LeaseInfo | None = None
    with connected(endpoint) as client:
        before = _owners(client, lease_id)
        for table, buckets in map(_parse_target, targets):
            left = client.leases.release(lease_id, table, buckets, principal)
        # An administrator sees the leases of others, which may have that id and are not meant.
        ended = before - _owners(client, lease_id)
        if left is not None:
            note(f"lease {lease_id} keeps {counted(len(left.buckets), 'bucket')}")
        else:
            note(f"lease {lease_id} is gone" if ended else f"there was no lease {lease_id}")


def _owners(client: Client, lease_id: str) -> set[str]:
    return {each.principal for each in client.list_leases() if each.lease_id == lease_id}


@leases.command(epilog=example("weir leases drop nightly"))
@click.argument("lease_ids", nargs=-1, required=True, metavar="ID...")
@principal_option
@endpoint_option
def drop(lease_ids: tuple[str, ...], principal: str, endpoint: str) -> None:
    """Drop leases, with everything that they keep. A missing lease is no error."""
    with connected(endpoint) as client:
        for lease_id in lease_ids:
            dropped = client.leases.drop(lease_id, principal)
            note(f"dropped {lease_id}" if dropped else f"there was no lease {lease_id}")


@click.command(
    epilog=example(
        "weir checkpoint orders", "weir checkpoint orders --bucket 3", "weir checkpoint orders --list"
    )
)
@click.argument("table")
@bucket_option
@click.option("--list", "only_list", is_flag=True, help="List the checkpoints that are kept, and make none.")
@endpoint_option
def checkpoint(table: str, bucket: int | None, only_list: bool, endpoint: str) -> None:
    """Make a checkpoint of a table, for scans of source snapshot, and wait until it is on the server's disk.

    The newest two of each bucket are kept, and those that a lease keeps. One after which nothing was stored, a
    position of a reader group included, is not made again, but for the first after the server's start.
    """
    with connected(endpoint) as client:
        if only_list:
            buckets = client.table(table).buckets
            if bucket is not None and bucket >= buckets:
                fail(f"table {table} has no bucket {bucket}; it has 0 to {buckets - 1}")
            found = [each for each in client.list_checkpoints(table) if bucket in (None, each.bucket)]
        else:
            found = client.checkpoint(table, bucket)
    if not found:
        note(f"no checkpoints; make one with: weir checkpoint {table}")
        return
    print_table(
        {
            "bucket": [each.bucket for each in found],
            "checkpoint": [each.checkpoint_id for each in found],
            "log offset": [each.log_offset for each in found],
            "made": [utc_time(each.timestamp_us / 1e6) for each in found],
            "leases": [each.leases for each in found],
        }
    )


def _print(found: Sequence[LeaseInfo]) -> None:
    rows: list[tuple[LeaseInfo, Any]] = [(lease, each) for lease in found for each in lease.buckets]
    print_table(
        {
            "lease": [lease.lease_id for lease, _ in rows],
            "principal": [lease.principal for lease, _ in rows],
            "left": [short_seconds(lease.remaining_s) for lease, _ in rows],
            "table": [each.table for _, each in rows],
            "bucket": [each.bucket for _, each in rows],
            "log offset": [each.log_offset for _, each in rows],
            "checkpoint": [
                "-" if each.checkpoint_id is None else str(each.checkpoint_id) for _, each in rows
            ],
        }
    )


def _parse_target(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `orders` or `orders:0,2`.

    Raises:
        Failure: It is neither.
    """
    table, colon, listed = text.partition(":")
    numbers = listed.split(",") if colon else []
    if not table or not all(number.isascii() and number.isdigit() for number in numbers):
        fail(f"cannot read {text!r}; write a table, orders, or buckets of it, orders:0,2")
    return table, tuple(map(int, numbers))
