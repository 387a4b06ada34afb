"""`weir scan`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from scanner.cli.amounts import Bytes
from scanner.cli.app import connected, endpoint_option, example, fail, is_terminal, names, note
from scanner.cli.destination import destination
from scanner.cli.log_places import as_of_option, require_places
from scanner.cli.options import columns_option, retries_option
from scanner.cli.output import FIRST_ROWS_NOTE, FOR_PEOPLE, ROWS_SHOWN, format_of, open_rows, output_options
from scanner.cli.units import counted
from scanner.client.scan.credit import AUTO
from scanner.client.scan.plan import ScanMode, ScanSource
from scanner.sync.progress import rows_shown

if TYPE_CHECKING:
    from scanner.cli.output import RowWriter
    from scanner.client.scan.statistics import ScanStatistics
    from scanner.sync import Batches, Scan


@click.command(
    epilog=example(
        'weir scan flights -c carrier,flight,dep_delay -w "dep_delay > 600"',
        "weir scan flights --format parquet -o flights.parquet --stats",
        "weir scan flights --as-of 0:1200 --as-of 1:1187 --mode asof   two buckets",
    )
)
@click.argument("table")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in ScanMode if not mode.of_changes]),
    default=ScanMode.PUSH.value,
    show_default=True,
    help="How the rows travel: pushed, or pulled page by page, by the models that push is compared with.",
)
@as_of_option
@columns_option
@click.option(
    "--where",
    "-w",
    multiple=True,
    metavar="CONDITION",
    help="Only rows for which this is true, as in SQL: \"origin = 'JFK' and (dep_delay > 60 or tailnum is null)\"."
    " All of several.",
)
@click.option("--limit", "-n", type=click.IntRange(0), metavar="ROWS", help="Stop after this many rows.")
@output_options
@click.option(
    "--credit",
    type=Bytes(1),
    default=None,
    show_default="sizes itself, 8 MiB to 64 MiB",
    help="Bytes that may be in flight to this command (mode push).",
)
@retries_option("scan")
@click.option("--snapshot", is_flag=True, help="Read the newest checkpoints instead of the present state.")
@click.option("--lease", metavar="ID", help="Read the state that this lease of yours keeps.")
@click.option("--stats", is_flag=True, help="Print statistics on standard error at the end.")
@endpoint_option
def scan(
    table: str,
    mode: str,
    as_of: int | dict[int, int] | None,
    columns: tuple[str, ...],
    where: tuple[str, ...],
    limit: int | None,
    kind: str | None,
    output: Path | None,
    credit: int | None,
    retries: int,
    snapshot: bool,
    lease: str | None,
    stats: bool,
    endpoint: str,
) -> None:
    """Read a table.

    Formats table and vertical show the first 50 rows unless --limit says otherwise; csv, json (one object per line),
    arrow and parquet take all of them; none only counts. A file appears when it is complete.
    """
    form = format_of(kind, output)
    if credit is not None and mode != ScanMode.PUSH.value:
        fail(f"--credit is for mode push; in mode {mode} a page is what is in flight")
    kept = "--lease" if lease is not None else "--snapshot" if snapshot else None
    if kept and mode != ScanMode.PUSH.value:
        fail(f"{kept} is for mode push; the others read what is there now")
    if kept and as_of is not None:
        fail(f"--as-of and {kept} both say which state is read; leave one out")
    with connected(endpoint) as client:
        opened = client.table(table)
        if isinstance(as_of, dict):
            require_places("--as-of", as_of, range(opened.buckets), opened.buckets)
        planned = opened.new_scan().with_mode(mode).with_credit(credit or AUTO).with_retries(retries)
        if lease is not None:
            planned = planned.with_lease(lease)
        elif snapshot:
            planned = planned.with_source(ScanSource.SNAPSHOT)
        if as_of is not None:
            planned = planned.as_of(as_of)
        if columns:
            planned = planned.select(*names(columns))
        planned = planned.where(*where)
        shortened = form in FOR_PEOPLE and limit is None
        if shortened:
            limit = ROWS_SHOWN + 1
        if limit is not None:
            planned = planned.limit(limit)
        started_at = time.monotonic()
        with destination(form, output) as file:
            statistics = _copy(planned, form, file, ROWS_SHOWN if shortened else None)
        seconds = time.monotonic() - started_at
    cut = shortened and statistics.rows > ROWS_SHOWN
    if cut:
        note(FIRST_ROWS_NOTE)
    if form == "none" and not stats:
        click.echo(counted(statistics.rows, "row"))
    if stats:
        _print_statistics(statistics, mode, seconds, " (the last of them is not shown)" if cut else "")


def _copy(planned: Scan, form: str, file: IO[bytes], rows_max: int | None) -> ScanStatistics:
    """Run the scan into `file`; of more than `rows_max` rows write only these."""
    # A bar between the lines of the output helps nobody.
    shown = is_terminal() and (form == "none" or not file.isatty())
    with (
        planned.execute() as batches,
        rows_shown(planned.plan.row_limit) if shown else nullcontext() as tell,
    ):
        writer = open_rows(form, file, batches.schema)
        _write_all(batches, writer, tell, rows_max)
        writer.close()
    return batches.statistics()


def _write_all(
    batches: Batches, writer: RowWriter, tell: Callable[[int, int], None] | None, rows_max: int | None
) -> None:
    written = 0
    for batch in batches:
        writer.write(batch if rows_max is None else batch.slice(0, max(0, rows_max - written)))
        written += batch.num_rows
        if tell is not None:
            tell(written, batches.statistics().bytes_received)


def _print_statistics(statistics: ScanStatistics, mode: str, seconds: float, remark: str) -> None:
    first_s, digest = statistics.first_batch_s, statistics.digest
    lines = {
        "mode": mode,
        "rows": f"{statistics.rows}{remark}",
        "digest": "none: not every bucket came to its end" if digest is None else f"{digest:08x}",
        "seconds": f"{seconds:.3f}",
        "first batch": "none" if first_s is None else f"{first_s * 1000:.1f} ms",
        "bytes": statistics.bytes_received,
        "requests": statistics.requests,
        "credit messages": statistics.credit_messages,
        "overrun bytes": statistics.overrun_bytes,
        "resumes": statistics.resumes,
        "read from": ", ".join(sorted({name for each in statistics.buckets for name in each.read_sources}))
        or "not told",
    }
    for name, value in lines.items():
        note(f"{name:<16}{value}")
    if statistics.buckets_skipped:
        skipped = ", ".join(map(str, statistics.buckets_skipped))
        note(f"{'skipped':<16}buckets {skipped}, which have no key that matches")
    for bucket in statistics.buckets:
        if bucket.log_offset is None:
            note(f"bucket {bucket.bucket:<9}not begun")
            continue
        digest_text = "none" if bucket.digest is None else f"{bucket.digest:08x}"
        later = f" and {bucket.states - 1} later ones" if bucket.states > 1 else ""
        note(
            f"bucket {bucket.bucket:<9}rows {bucket.rows}, log offset {bucket.log_offset}{later}, digest {digest_text},"
            f" {bucket.reason or 'cut off'}"
        )
