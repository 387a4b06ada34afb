"""What a read asks of the server, built from its options and checked against the table, on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner import ArgumentInvalid, KeyInvalid, ScanSource
from spark_source.batch.keys import key_prefix
from spark_source.errors import SourceOptionError, shown

if TYPE_CHECKING:
    from scanner.sync import Scan, Table
    from spark_source.options import SourceOptions


def plan_scan(table: Table, options: SourceOptions) -> Scan:
    """The scan of a table that the options describe: all of its buckets, as they are now; of this table or of none.

    Raises:
        SourceOptionError: Option ``where``, ``keyFrom`` or ``keyTo`` does not fit the table.
        ColumnNotFound: The table has no such column; the message lists those it has.
    """
    scan = table.new_scan().with_table_id(table.table_id)
    scan = scan.with_source(ScanSource.LIVE_KV).with_mode(options.mode)
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
            f"option 'keyTo' cannot be {shown(options.key_to)}: keyFrom, {shown(options.key_from)}, sorts after it,"
            " and no key would be read",
        )
    return scan


def _refuse(option: str, text: str, error: ArgumentInvalid | KeyInvalid) -> SourceOptionError:
    return SourceOptionError(option, text, f"option {option!r} cannot be {shown(text)}: {error.message}")
