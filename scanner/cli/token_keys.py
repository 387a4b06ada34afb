"""`weir rotate-token-keys`."""

from __future__ import annotations

from pathlib import Path

import click

from scanner.cli.amounts import Seconds
from scanner.cli.app import example, tell_done
from scanner.cli.options import data_option
from scanner.cli.units import utc_time
from scanner.errors import ArgumentInvalid
from scanner.server.scan.token_keys import OVERLAP_S_DEFAULT, OVERLAP_S_MAX, rotate_token_keys
from scanner.storage.rocksdb.data_directory import entries_of
from scanner.storage.rocksdb.store import RocksStore


@click.command("rotate-token-keys", epilog=example("weir rotate-token-keys --data ./data"))
@data_option("The data directory; no server may have it open.", exists=True)
@click.option(
    "--overlap",
    type=Seconds(0, OVERLAP_S_MAX),
    default=OVERLAP_S_DEFAULT,
    show_default=True,
    help="How long resume tokens of the old key are still accepted.",
)
def rotate_keys(data: Path, overlap: float) -> None:
    """Make a new key for signing resume tokens."""
    if not entries_of(data):  # Opening it would make a data directory, and its keys.
        raise ArgumentInvalid(f"{data} is no data directory of weir; say --data DIR")
    with RocksStore.open(data) as store:
        keys = rotate_token_keys(store, overlap_s=overlap)
    tell_done(f"key {keys.current.key_id} signs resume tokens from now on")
    for key in keys.accepted[:-1]:
        assert key.expires_at_s is not None  # It is retired.
        click.echo(f"key {key.key_id} is accepted until {utc_time(key.expires_at_s)}")
