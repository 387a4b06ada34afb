"""What a read asks of the server, built from its options and checked against the table, on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner import ArgumentInvalid, KeyInvalid, ScanSource
from spark_source.batch.keys import key_prefix
from spark_source.errors import shown
from spark_source.options import refused

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
    scan = _within_keys(with_condition(scan, options), table, options)
    if options.credit_bytes is not None:
        scan = scan.with_credit(options.credit_bytes)
    if options.page_bytes is not None:
        scan = scan.with_page_bytes(options.page_bytes)
    if options.page_depth is not None:
        scan = scan.with_page_depth(options.page_depth)
    return scan


def with_condition(scan: Scan, options: SourceOptions) -> Scan:
    """A scan of those rows alone that meet option ``where``.

    Raises:
        SourceOptionError: It does not fit the table.
        ColumnNotFound: The table has no such column.
    """
    if options.where is None:
        return scan
    try:
        return scan.where(options.where)
    except ArgumentInvalid as error:
        raise refused("where", options.where, error.message) from error


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
            raise refused(option, str(text), error.message) from error
    scan = scan.key_range(start, end)
    keys = scan.plan.key_range
    if keys.end and keys.end < keys.start:
        why = f"keyFrom, {shown(options.key_from)}, sorts after it, and no key would be read"
        raise refused("keyTo", str(options.key_to), why)
    return scan
