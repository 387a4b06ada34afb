"""What a read asks of the server, built from its options: on the driver to be checked, in a task to be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner import ArgumentInvalid, KeyInvalid, ScanSource, TableNotFound
from spark_source.batch.keys import key_prefix
from spark_source.errors import SourceOptionError

if TYPE_CHECKING:
    from scanner.sync import Client, Scan, Table
    from spark_source.options import SourceOptions


def plan_scan(table: Table, options: SourceOptions) -> Scan:
    """The scan of a table that the options describe: all of its buckets, as they are now.

    Raises:
        SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table.
        ColumnNotFound: The table has no such column; the message lists those it has.
    """
    scan = table.new_scan().with_source(ScanSource.LIVE_KV).with_mode(options.mode)
    if options.columns is not None:
        scan = scan.select(*options.columns)
    if options.where is not None:
        try:
            scan = scan.where(options.where)
        except ArgumentInvalid as error:
            raise _refuse("where", options.where, error) from error
    scan = _within_keys(scan, table, options)
    if options.credit_bytes is not None:
        scan = scan.with_credit(options.credit_bytes)
    if options.page_bytes is not None:
        scan = scan.with_page_bytes(options.page_bytes)
    if options.page_depth is not None:
        scan = scan.with_page_depth(options.page_depth)
    return scan


def require_same_table(table: Table, table_id: int) -> None:
    """Check that a table is the one that Spark planned to read.

    Raises:
        TableNotFound: It is another one of the same name.
    """
    if table.table_id != table_id:
        raise TableNotFound(
            f"table {table.name!r} was dropped and created anew since Spark planned the read; load the DataFrame again"
        )


def require_still_same_table(client: Client, name: str, table_id: int) -> None:
    """Ask the server whether the table that a scan is open on is the one that Spark planned to read.

    Ids are never given twice: if the name has this id now, it had it when the scan was opened.

    Raises:
        TableNotFound: The name is gone, or belongs to another table.
        ScannerError: The server cannot be asked.

    Waits: For one call.
    """
    require_same_table(client.table(name), table_id)


def _within_keys(scan: Scan, table: Table, options: SourceOptions) -> Scan:
    bounds = {"keyFrom": options.key_from, "keyTo": options.key_to}
    start, end = (
        None if text is None else key_prefix(option, text, table.description)
        for option, text in bounds.items()
    )
    for option, text in bounds.items():
        try:
            scan.key_range(start if option == "keyFrom" else None, end if option == "keyTo" else None)
        except (ArgumentInvalid, KeyInvalid) as error:
            raise _refuse(option, str(text), error) from error
    scan = scan.key_range(start, end)
    keys = scan.plan.key_range
    if keys.end and keys.end < keys.start:
        raise SourceOptionError(
            "keyTo",
            options.key_to,
            f"option 'keyTo' cannot be {options.key_to!r}: keyFrom, {options.key_from!r}, sorts after it,"
            " and no key would be read",
        )
    return scan


def _refuse(option: str, text: str, error: ArgumentInvalid | KeyInvalid) -> SourceOptionError:
    return SourceOptionError(option, text, f"option {option!r} cannot be {text!r}: {error.message}")
