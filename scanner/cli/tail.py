"""`weir tail`: a table's changes, a line each, as they are committed.

Invariants:

1. However it ends, it says where to go on: positions at the ends of commits of which every change was printed.
2. A signal that comes while lines are written lets the batch be finished, as long as its reader takes it: what is
   printed and what is told agree.
3. What was printed and comes again is told, for a group, too, but not to a reader that is gone.
"""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from scanner.cli.app import (
    OutputClosed,
    connected,
    endpoint_option,
    example,
    fail,
    names,
    note,
    takes_colour,
)
from scanner.cli.connection import META
from scanner.cli.ending import Ending
from scanner.cli.log_places import parse_stop, require_places, resolve_start
from scanner.cli.options import columns_option, json_lines_option, retries_option
from scanner.cli.output import json_values
from scanner.client.scan.plan import LATEST, ScanSource
from scanner.data.changes import (
    CHANGE_COLUMN_NAMES,
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    LOG_OFFSET,
)
from scanner.errors import GroupNotFound, PermissionDenied, ScannerError, Unauthenticated
from scanner.escapes import escaped, escaped_json

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from scanner.sync import Batches, GroupBatches, GroupScan, Scan, Table

_BUCKET: Final = "_bucket"
_SYMBOLS: Final = dict(zip(CHANGE_TYPES, ("+I", "-U", "+U", "-D"), strict=True))
_COLOURS: Final = {"+I": "green", "-U": "magenta", "+U": "yellow", "-D": "red"}
_NOT_AGAIN: Final = frozenset({"from_", "snapshot", "limit"})
"""Options that say where a tail begins, or that it is done."""


@click.command(
    epilog=example(
        "weir tail orders",
        'weir tail orders --from earliest --to end --json -w "price > 100"',
        "weir tail orders --from 2026-03-29T08:00:00Z",
        "weir tail orders --from 0:812 --from 1:799   two buckets",
        "weir tail orders --snapshot --json",
        "weir tail orders --group billing --json",
    )
)
@click.argument("table")
@click.option(
    "--from",
    "from_",
    multiple=True,
    metavar="PLACE",
    help="earliest, latest, a time (without a zone: UTC), OFFSET of every bucket, or BUCKET:OFFSET for each of them."
    "  [default: latest]",
)
@click.option(
    "--to",
    multiple=True,
    metavar="PLACE",
    help="End there: end (where the log ends now), OFFSET, or BUCKET:OFFSET for each bucket. Default: never.",
)
@click.option("--snapshot", is_flag=True, help="Print the current rows first, then their changes.")
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    help="Share the buckets with the other readers of this group, and store how far the output has come."
    " A bucket continues at the group's stored position; without one it starts at --from.",
)
@json_lines_option
@columns_option
@click.option(
    "--where",
    "-w",
    multiple=True,
    metavar="CONDITION",
    help="Only changes of rows of which this is true, as in SQL. All of several.",
)
@click.option("--bucket", type=click.IntRange(0), metavar="N", help="Only this bucket.")
@click.option("--limit", "-n", type=click.IntRange(0), metavar="CHANGES", help="Stop after this many.")
@retries_option("tail")
@endpoint_option
def tail(
    table: str,
    from_: tuple[str, ...],
    to: tuple[str, ...],
    snapshot: bool,
    group: str | None,
    as_json: bool,
    columns: tuple[str, ...],
    where: tuple[str, ...],
    bucket: int | None,
    limit: int | None,
    retries: int,
    endpoint: str,
) -> None:
    """Print a table's changes as they are committed, a line each: +I insert, -U and +U update, -D delete.

    An update is two lines, the row before and after it; --where is applied to each. The changes of a bucket come in
    commit order; there is no order between buckets. Ctrl-C ends the tail and prints the arguments to continue it.
    """
    if snapshot and from_:
        fail("--snapshot begins with the rows that are there; leave --from away")
    if group is not None and (snapshot or bucket is not None):
        fail("--group reads the changes of all buckets; leave --snapshot and --bucket away")
    stop = parse_stop(to)
    with connected(endpoint) as client:
        opened = client.table(table)
        planned = opened.new_scan().with_source(ScanSource.HYBRID if snapshot else ScanSource.LOG)
        if bucket is not None:
            planned = planned.bucket(bucket)
        planned = _with_columns(planned, opened, names(columns), as_json=as_json)
        read = planned.plan.buckets
        if isinstance(stop, dict):
            require_places("--to", stop, read, opened.buckets)
        planned = planned.where(*where).stop_at(stop).with_retries(retries)
        if limit is not None:
            planned = planned.limit(limit)
        start: dict[int, int] = {}
        if not snapshot:
            begun = set[int]() if group is None else _begun(opened, group)
            start = resolve_start(opened, from_ or (LATEST,), [each for each in read if each not in begun])
            require_places("--from", start, read, opened.buckets)
            planned = planned.start_at(start)
        if group is not None:
            _follow_group(planned.in_group(group), as_json=as_json)
            return
        place = _Place(read, start)
        try:
            _follow(planned, place, as_json=as_json)
        finally:
            error = sys.exception()
            # Nothing has moved: the place may be none, unless what failed is the way there or the caller's rights.
            if place.moved or not isinstance(error, ScannerError) or error.retriable or _turned_away(error):
                place.tell()


def _turned_away(error: ScannerError) -> bool:
    """Whether it is the caller that the server does not want: with other credentials the place is as good as before."""
    return isinstance(error, (PermissionDenied, Unauthenticated))


def _with_columns(planned: Scan, table: Table, columns: list[str], *, as_json: bool) -> Scan:
    """Ask for these columns and those of a change."""
    if as_json and _BUCKET in table.schema.names:
        fail(f"the table has a column {_BUCKET}, which --json adds to every line; leave --json away")
    if not columns:
        return planned
    return planned.select(*columns, *(each.name for each in CHANGE_COLUMNS if each.name not in columns))


def _follow(planned: Scan, place: _Place, *, as_json: bool) -> None:
    with planned.execute() as batches:
        try:
            with Ending(sys.stdout.buffer) as ending:
                _print_all(batches, ending, functools.partial(place.take, batches), as_json=as_json)
        finally:
            place.take_last(batches)


def _begun(table: Table, group: str) -> set[int]:
    """The buckets of which a group has a position: they do not begin at `--from`."""
    with suppress(GroupNotFound):
        return {each.bucket for each in table.group(group).buckets if each.position is not None}
    return set()


def _follow_group(planned: GroupScan, *, as_json: bool) -> None:
    amid: set[int] = set()
    """Buckets of which something was printed behind their position."""
    with planned.execute() as batches, Ending(sys.stdout.buffer) as ending:

        def commit(batch: pa.RecordBatch) -> None:
            assert batches.bucket is not None
            try:
                lost = batches.commit()
            except BaseException:
                note(
                    f"nobody knows whether the position of bucket {batches.bucket} is stored: what was printed of it"
                    " last may be printed once more"
                )
                raise
            for bucket in lost:
                note(
                    f"bucket {bucket} was given to a reader anew: what was printed of it last may be printed once more"
                )
            amid.difference_update(lost, {batches.bucket})
            position = batches.positions.get(batches.bucket, 0)
            if batches.bucket not in lost and position <= batch.column(LOG_OFFSET)[-1].as_py():
                amid.add(batches.bucket)

        try:
            _print_all(batches, ending, commit, as_json=as_json)
        finally:
            _tell_amid(amid)


def _print_all(
    batches: Batches | GroupBatches,
    ending: Ending,
    on_printed: Callable[[pa.RecordBatch], None],
    *,
    as_json: bool,
) -> None:
    out = sys.stdout.buffer
    coloured = not as_json and takes_colour(sys.stdout)
    outdated = False
    while True:
        with ending.at_once():
            batch = next(batches, None)
        if batches.schema_outdated and not outdated:
            outdated = True
            note("the table has got new columns, which this tail does not show; end it and go on to see them")
        if batch is None:
            return
        assert batches.bucket is not None
        lines = (
            _json_lines(batch, batches.bucket) if as_json else _text_lines(batch, batches.bucket, coloured)
        )
        try:
            out.write("".join(lines).encode())
            out.flush()
        except (BrokenPipeError, OutputClosed):
            raise
        except (OSError, click.ClickException):
            note(
                f"the output breaks off amidst changes of bucket {batches.bucket}, perhaps within a line: what was"
                " written of them comes again"
            )
            raise
        on_printed(batch)


class _Place:
    """How far the output has come.

    Args:
        buckets: Those that are read.
        start: Where the changes of each begin; empty: behind a snapshot.
    """

    def __init__(self, buckets: tuple[int, ...], start: dict[int, int]) -> None:
        self._buckets = buckets
        self._start = start
        self._positions: dict[int, int] = {}
        self._printed_ends: dict[int, int] = {}
        """By bucket, the offset behind the last change that was printed."""
        self._rows = 0

    @property
    def moved(self) -> bool:
        """Whether anything is known beside the start."""
        return bool(self._positions)

    def take(self, batches: Batches, batch: pa.RecordBatch) -> None:
        """A batch, the newest, was printed."""
        assert batches.bucket is not None
        self._rows += batch.num_rows
        self._positions = batches.positions
        last = batch.column(LOG_OFFSET)[-1].as_py()
        if last is not None:
            self._printed_ends[batches.bucket] = last + 1

    def take_last(self, batches: Batches) -> None:
        """The scan has ended. What moved since the last batch counts, unless a batch came that was not printed."""
        if batches.statistics().rows == self._rows:
            self._positions = batches.positions

    def tell(self) -> None:
        """Print where to go on."""
        places = {bucket: self._positions.get(bucket, self._start.get(bucket)) for bucket in self._buckets}
        if None in places.values():
            note(f"the snapshot is not complete; begin again with: {_again(['--snapshot'])}")
            return
        _tell_amid({each for each, at in places.items() if self._printed_ends.get(each, 0) > (at or 0)})
        starts = [word for bucket, at in places.items() for word in ("--from", f"{bucket}:{at}")]
        note(f"go on with: {_again(starts)}")


def _tell_amid(buckets: set[int]) -> None:
    """Say of which buckets a commit was printed in part, if of any."""
    if buckets:
        cut = ", ".join(map(str, sorted(buckets)))
        note(f"in the middle of a commit of bucket {cut}: its changes come again")


def _again(start: list[str]) -> str:
    """The command's arguments once more, with another beginning."""
    context = click.get_current_context()
    words = ["weir", "tail"]
    options: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params.get(name, context.meta.get(META + name))
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif name not in _NOT_AGAIN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            options += _option(max(parameter.opts, key=len), value)
    return shlex.join([*words, *start, *options])


def _option(name: str, value: Any) -> Iterator[str]:
    if value is True:
        yield name
        return
    for each in value if isinstance(value, tuple) else (value,):
        yield from (name, str(each))


def _json_lines(batch: pa.RecordBatch, bucket: int) -> Iterator[str]:
    columns = [json_values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        document = dict(zip(batch.schema.names, row, strict=True)) | {_BUCKET: bucket}
        yield escaped_json(json.dumps(document, ensure_ascii=False)) + "\n"


def _text_lines(batch: pa.RecordBatch, bucket: int, coloured: bool) -> Iterator[str]:
    shown = [name for name in batch.schema.names if name not in CHANGE_COLUMN_NAMES]
    kinds, offsets, times, *columns = (
        json_values(batch.column(name)) for name in (CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP, *shown)
    )
    labels = [f"{escaped(name)}=" for name in shown]
    for kind, offset, time, *cells in zip(kinds, offsets, times, *columns, strict=True):
        symbol = _SYMBOLS[str(kind)]
        words = [
            click.style(symbol, fg=_COLOURS[symbol]) if coloured else symbol,
            f"{bucket}:{'-' if offset is None else offset}",
            str(time or "-"),
        ]
        words += [
            label + escaped_json(json.dumps(cell, ensure_ascii=False))
            for label, cell in zip(labels, cells, strict=True)
        ]
        yield "  ".join(words) + "\n"
