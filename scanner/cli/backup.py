"""`weir backup` and `weir restore`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from scanner.cli.app import connected, endpoint_option, example, fail, is_terminal, note, tell_done
from scanner.cli.display import print_table
from scanner.cli.options import data_option
from scanner.cli.units import counted, short_bytes, utc_time
from scanner.client.leases import LeaseState, LeaseTarget
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    LeaseNotFound,
    ScannerError,
    StoreFailed,
    TableNotFound,
)
from scanner.server.retention.lease_registry import LEASES_DOCUMENT, LeaseRegistry
from scanner.storage.rocksdb.backup_manifest import list_backups
from scanner.storage.rocksdb.backups import begin_backup
from scanner.storage.rocksdb.catalog import CatalogReader, missing_catalog
from scanner.storage.rocksdb.checkpoints import list_checkpoints
from scanner.storage.rocksdb.data_directory import (
    FORMAT_NAME,
    bucket_name,
    checkpoints_directory,
    require_format,
)
from scanner.storage.rocksdb.restoring import restore

if TYPE_CHECKING:
    from scanner import sync
    from scanner.storage.records import Checkpoint
    from scanner.storage.rocksdb.backup_manifest import Backup, BackupFound
    from scanner.storage.rocksdb.backups import BackupWriter
    from scanner.storage.rocksdb.catalog import TableEntry
    from scanner.sync.leases import Lease

_LEASE_S: Final = 600.0
"""Of a table that is copied; renewed meanwhile, and over by itself if this process is killed."""
_UNANSWERED_LEASE_S: Final = 60.0
"""Of one that is not known to be there: where the answer is lost and the server is away, nobody can release it."""
_COLUMNS: Final = ("backup", "begun", "tables", "rows", "size", "problem")


@click.command(
    "backup",
    epilog=example(
        "weir backup /mnt/backups --data ./data   back up all tables",
        "weir backup /mnt/backups --list          list the backups",
    ),
)
@click.argument("destination", type=click.Path(path_type=Path, file_okay=False))
@data_option("The data directory of the server, which runs on this machine.")
@click.option("--list", "only_list", is_flag=True, help="List the backups in DESTINATION.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each backup.")
@endpoint_option
def backup(destination: Path, data: Path, only_list: bool, as_json: bool, endpoint: str) -> None:
    """Back up all tables of a server into DESTINATION, while it runs; or list the backups there are.

    Each bucket is as of one log offset: that of a checkpoint, which the server makes and a lease keeps. Of a table, all
    buckets have a version of a transaction, or none; one that the server cannot apply to all is named. Files that an
    earlier backup in DESTINATION has already are linked, the others copied; then all of it is read back and compared.
    It takes the rights to administer the server and to read all tables, on its machine, and the server's user.
    """
    if only_list:
        _list(destination, as_json)
        return
    require_format(data)
    if not (data / FORMAT_NAME).exists():
        raise ArgumentInvalid(f"{data} is no data directory of weir; say --data DIR")
    with connected(endpoint) as client:
        with (
            _progress() as on_bytes,
            begin_backup(data, destination, time.time_ns() // 1000, on_bytes) as writer,
        ):
            missing = _add_tables(client, writer, CatalogReader(data))
            made, copied = writer.finish(), writer.copied_bytes
        # Not behind the end of the connection, during which Ctrl-C would keep it from being said.
        if as_json:
            tell_done(json.dumps({**dataclasses.asdict(made), "copied_bytes": copied}))
        else:
            tell_done(
                f"backup {destination / made.backup_id}: {_outline(made)}, {short_bytes(copied)} of it new"
            )
    _warn(made)
    if missing:
        fail(f"backup {made.backup_id} lacks {counted(len(missing), 'damaged table')}: {', '.join(missing)}")


def _add_tables(client: sync.Client, writer: BackupWriter, source: CatalogReader) -> list[str]:
    """Add every table, and return the names of those that are damaged; each was reported."""
    # What the catalog names, and not what the server lists: a caller may not see all of its tables.
    names = set(_tables_of(source))
    for description in client.tables():
        if description.name not in names and description.name not in _tables_of(source):
            fail(_other_server(source.directory, f"it has no table {description.name!r}"))
    damaged = []
    for name in sorted(names):
        try:
            if not _add_named(client, writer, source, name):
                note(f"table {name!r} was dropped meanwhile")
        except DataCorrupted as error:
            note(f"table {name!r} is not in the backup: {error.message}")
            damaged.append(name)
    return damaged


def _add_named(client: sync.Client, writer: BackupWriter, source: CatalogReader, name: str) -> bool:
    """Add the table of a name; where that is dropped meanwhile, the one that was made anew. False: there is none."""
    while (entry := _tables_of(source).get(name)) is not None:
        try:
            _add_table(client, writer, source, name)
            return True
        except TableNotFound:
            # A server forgets a table once its catalog does: until then it is being dropped.
            forgotten = all(each.name != name for each in client.tables())
            if forgotten and _tables_of(source).get(name) == entry:
                fail(_other_server(source.directory, f"the server has no table {name!r}"))
        except (DataCorrupted, LeaseNotFound, StoreFailed):
            if not _is_going(client, source, entry):
                raise
    return False


def _is_going(client: sync.Client, source: CatalogReader, entry: TableEntry) -> bool:
    """Whether a table is being dropped, or is gone: then its files may be missed."""
    name = entry.description.name
    try:
        client.table(name).offsets()
    except TableNotFound:
        return True
    except ScannerError:
        return False
    # Not by the server's table: in another one's directory that is never the same.
    return _tables_of(source).get(name) != entry


def _add_table(client: sync.Client, writer: BackupWriter, source: CatalogReader, name: str) -> None:
    added = False
    try:
        with client.acquire_lease(
            LeaseTarget(name, state=LeaseState.NEW), ttl_s=_UNANSWERED_LEASE_S
        ) as lease:
            lease.renew(_LEASE_S)
            # Read after the checkpoints were made: it names every column that their rows have.
            entry = _tables_of(source).get(name)
            if entry is None:
                raise TableNotFound(f"there is no table {name!r}")
            writer.add_table(
                entry,
                [_checkpoint(source.directory, entry, lease, i) for i in range(entry.description.buckets)],
                lease.half_applied,
            )
            added = True
    except LeaseNotFound:
        if not added:  # Else the copies are whole, and need it no longer.
            raise


def _tables_of(source: CatalogReader) -> dict[str, TableEntry]:
    catalog = source.read()
    if catalog is None:
        raise missing_catalog(source.directory)
    return catalog.tables


def _other_server(data: Path, why: str) -> str:
    return f"{data} is not the data directory of this server: {why}; say --data DIR"


def _checkpoint(data: Path, entry: TableEntry, lease: Lease, index: int) -> Checkpoint:
    """The checkpoint that a lease keeps of a bucket, as the data directory names it.

    Raises:
        StoreFailed: It is not there: the table is being dropped, or the directory is another server's.
        DataCorrupted: The server's answer names none.
    """
    name = entry.description.name
    kept = (each for each in lease.buckets if (each.table, each.bucket) == (name, index))
    leased = next(kept, None)
    if leased is None:
        raise DataCorrupted(f"the server's answer names no checkpoint of bucket {index} of {name}")
    directory = checkpoints_directory(data, entry.table_id) / bucket_name(index)
    for each in list_checkpoints(directory):
        if (each.checkpoint_id, each.log_offset, each.history) == (
            leased.checkpoint_id,
            leased.log_offset,
            leased.history,
        ):
            return each
    why = f"{directory} lacks checkpoint {leased.checkpoint_id}, which the server made"
    raise StoreFailed(_other_server(data, why))


def _list(destination: Path, as_json: bool) -> None:
    found = list_backups(destination)
    if as_json:
        for each in found:
            content = (
                {"backup_id": each.directory.name, "problem": each.problem}
                if each.backup is None
                else dataclasses.asdict(each.backup)
            )
            click.echo(json.dumps(content))
        return
    rows = [_row_of(each) for each in found]
    if not rows:
        note(f"no backups in {destination}")
        return
    print_table(
        dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)), hint="--json has them all"
    )


def _row_of(found: BackupFound) -> tuple[object, ...]:
    backup, name = found.backup, found.directory.name
    if backup is None:
        return name, "", "", "", "", found.problem
    begun, size = utc_time(backup.created_us / 1e6), short_bytes(backup.size_bytes)
    return name, begun, len(backup.tables), backup.rows, size, "; ".join(backup.warnings)


@click.command("restore", epilog=example("weir restore /mnt/backups/20261122T004447Z ./data"))
@click.argument("backup_directory", metavar="BACKUP", type=click.Path(path_type=Path, file_okay=False))
@click.argument("data", type=click.Path(path_type=Path, file_okay=False))
def restore_backup(backup_directory: Path, data: Path) -> None:
    """Restore one BACKUP into DATA, a new or empty data directory; every file and every row is verified.

    Resume tokens, leases and checkpoints of the old directory are not restored.
    """
    # Of leases that the old server ended it knows nothing: ids from before name none here, and begin none.
    now_us = time.time_ns() // 1000
    documents = {LEASES_DOCUMENT: LeaseRegistry.document_without_past(now_us // 1000)}
    with _progress() as on_bytes:
        restored = restore(backup_directory, data, on_bytes, now_us=now_us, documents=documents)
    start = shlex.join(["weir", "serve", "--data", str(data)])
    tell_done(f"{data} is restored: {_outline(restored)}; start a server with: {start}")
    _warn(restored)


def _warn(backup: Backup) -> None:
    for each in backup.warnings:
        note(f"backup {backup.backup_id}: {each}")


def _outline(made: Backup) -> str:
    return (
        f"{counted(len(made.tables), 'table')}, {counted(made.rows, 'row')}, {short_bytes(made.size_bytes)}"
    )


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """What shows how much was linked or copied: a line on a terminal, else nothing."""
    layout = (SpinnerColumn(), TextColumn("copying"), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*layout, console=console, transient=True, disable=not is_terminal()) as progress:
        task = progress.add_task("copying", total=None)
        yield lambda octets: progress.advance(task, octets)
