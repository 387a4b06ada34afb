"""`weir image`: makes columnar images of a table, which whole scans read instead of its rows, and tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scanner.cli.app import connected, endpoint_option, example, fail, note
from scanner.cli.display import print_table
from scanner.cli.options import bucket_option
from scanner.cli.units import counted

if TYPE_CHECKING:
    from scanner.data.images import ImageState


@click.command(
    epilog=example("weir image orders", "weir image orders --list", "weir image orders --bucket 3 --drop")
)
@click.argument("table")
@click.option("--list", "list_", is_flag=True, help="Only show the images that there are, and why.")
@click.option("--drop", is_flag=True, help="Remove the images.")
@bucket_option
@endpoint_option
def image(table: str, list_: bool, drop: bool, bucket: int | None, endpoint: str) -> None:
    """Make images of a table's current rows, replace older ones, and wait until scans use them.

    An image is a copy of a bucket's rows in columns. Full scans read it while few rows have changed since; they get the
    same rows, sooner. It takes about as much disk as the rows, and can be dropped at any time. A server makes images by
    itself, too, unless it runs with --images off; --list tells why there is one or none.
    """
    if list_ and drop:
        fail("--list and --drop exclude each other: name one of them")
    with connected(endpoint) as client:
        if list_ and bucket is not None and bucket >= (buckets := client.table(table).buckets):
            fail(f"table {table} has no bucket {bucket}; it has 0 to {buckets - 1}")
        if drop:
            dropped = client.drop_images(table, bucket=bucket)
            note(f"dropped {counted(dropped, 'image')}")
            return
        if not list_:
            client.make_images(table, bucket=bucket)
        states = client.image_states(table)
    print_images([each for each in states if bucket in (None, each.bucket)])


def print_images(states: list[ImageState]) -> None:
    """Print a table of the images that there are, a line each, and why other buckets have none."""
    images = [(each.image, each.why) for each in states if each.image is not None]
    if images:
        print_table(
            {
                "image of bucket": [image.bucket for image, _ in images],
                "as of": [image.log_offset for image, _ in images],
                "changes since": [image.log_behind for image, _ in images],
                "rows": [image.rows for image, _ in images],
                "disk bytes": [image.disk_bytes for image, _ in images],
                "memory bytes": [image.memory_bytes for image, _ in images],
                "state": [why for _, why in images],
            }
        )
    missing: dict[str, list[int]] = {}
    for each in states:
        if each.image is None:
            missing.setdefault(each.why, []).append(each.bucket)
    for why, buckets in missing.items():
        named = f"bucket {buckets[0]}" if len(buckets) == 1 else f"{len(buckets)} buckets"
        click.echo(f"no image of {named}: {why}")
