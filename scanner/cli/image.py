"""`weir image`: makes columnar images of a table, which whole scans read instead of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scanner.cli.app import connected, endpoint_option, example, fail, note
from scanner.cli.display import print_table

if TYPE_CHECKING:
    from scanner.client.admin import ImageInfo


@click.command(
    epilog=example("weir image orders", "weir image orders --list", "weir image orders --bucket 3 --drop")
)
@click.argument("table")
@click.option("--list", "list_", is_flag=True, help="Only show the images that there are.")
@click.option("--drop", is_flag=True, help="Remove the images.")
@click.option("--bucket", type=click.IntRange(0), metavar="N", help="Only of this bucket.")
@endpoint_option
def image(table: str, list_: bool, drop: bool, bucket: int | None, endpoint: str) -> None:
    """Make images of a table's rows as of now, in place of those that there are, and wait until scans use them.

    An image is a copy of a bucket's rows in columns. Whole scans read it, as long as little was changed since, and get
    what they would get without it, sooner. It takes about as much disk as the rows, and can be dropped at any time.
    """
    if list_ and drop:
        fail("--list and --drop exclude each other: name one of them")
    with connected(endpoint) as client:
        if drop:
            dropped = client.drop_images(table, bucket=bucket)
            note(f"dropped {dropped} {'image' if dropped == 1 else 'images'}")
            return
        images = client.list_images(table) if list_ else client.make_images(table, bucket=bucket)
    shown = [each for each in images if bucket in (None, each.bucket)]
    if not shown:
        note(f"no images; make them with: weir image {table}")
        return
    print_images(shown)


def print_images(images: list[ImageInfo]) -> None:
    """Print a table of images, a line each."""
    print_table(
        {
            "image of bucket": [each.bucket for each in images],
            "as of": [each.log_offset for each in images],
            "changes since": [each.log_behind for each in images],
            "rows": [each.rows for each in images],
            "disk bytes": [each.disk_bytes for each in images],
            "memory bytes": [each.memory_bytes for each in images],
        }
    )
