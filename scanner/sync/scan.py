"""Scans of the blocking client: described, run in a block, or handed to whatever reads Arrow streams.

A scan is a recipe. Each use of it runs it anew, as of then, as a query of DuckDB or a dataset of pyarrow is run anew:
`pyarrow.table(scan)` twice is two scans. What runs is a `Batches`, which is read once.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import trio

from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.folded import TableAt
from scanner.client.scan.plan import ScanPlan
from scanner.client.scan.resume_position import BucketPosition
from scanner.client.scan.scan import Scan as TrioScan
from scanner.client.scan.statistics import ScanStatistics
from scanner.client.scan.table_scan import Batches as TrioBatches
from scanner.errors import SchemaMismatch
from scanner.extras import extras_needed
from scanner.sync.groups import GroupScan
from scanner.sync.hand_over import HandOver
from scanner.sync.portal import Held, Portal
from scanner.sync.progress import with_progress

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


_FLOAT_INTEGER_MAX: Final = 2**53
"""Up to it a float64 is every integer."""
_SECONDS_MAX: Final = (2**63 - 1) // 1000
"""Before and after 1970, that a count of milliseconds reaches."""


class Scan(ScanBuilder):
    """A scan of a table: described by its builder methods, run any number of times.

    It is an Arrow stream (`__arrow_c_stream__`): `pyarrow.table(scan)`, `polars.DataFrame(scan)` and
    `duckdb.from_arrow(scan)` read it, DuckDB batch by batch within the scan's credit. Each use runs it anew.
    """

    def __init__(self, portal: Portal, scan: TrioScan) -> None:
        super().__init__(scan.plan)
        self._portal = portal
        self._scan = scan

    def _derive(self, plan: ScanPlan) -> Scan:
        return Scan(self._portal, self._scan.with_plan(plan))

    @contextmanager
    def execute(self) -> Iterator[Batches]:
        """Run the scan for the length of a block; leaving the block early ends it at the server, too.

        Example:
            >>> with scan.execute() as batches:
            ...     for batch in batches: ...
            >>> batches.statistics().rows
        """
        held = self._hold()
        try:
            yield Batches(self._portal, held, self.plan)
        except BaseException:
            held.leave(abandoned=True)
            raise
        held.leave()

    def in_group(self, group: str, *, member: str = "", auto_commit: bool = False) -> GroupScan:
        """Share the buckets out among the readers of a group; see `scanner.Scan.in_group`."""
        return GroupScan(self._portal, self._scan.in_group(group, member=member, auto_commit=auto_commit))

    def to_batches(self) -> pa.RecordBatchReader:
        """Run the scan and read its batches: it begins when the first is asked for.

        The order of rows is not defined, and where a batch ends means nothing. Any thread may read, one at a time.

        Returns:
            A reader. Dropping it (`del reader`, leaving the loop over it) ends the scan at the server soon. Its own
            `close()` does not, since pyarrow does not pass that on to batches from Python: `execute` has a block for
            that. It raises what `Batches.__next__` raises, again and again; an error is never an end.
        """
        return pa.RecordBatchReader.from_batches(self.schema, _LazyBatches(self))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Run the scan for a consumer of Arrow's C streams: it begins when the first batch is asked for.

        Args:
            requested_schema: A capsule with the types that the consumer would like. Values are cast as by
                `pyarrow.Table.cast`: where that raises an error, the export fails; it rounds floats without one.

        Returns:
            A capsule. When the consumer releases the stream, the scan ends. A failure of the scan is an error of the
            stream, in the consumer's own class, with the message that `ScannerError` has here.
        """
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def to_arrow(self, *, progress: bool = False) -> pa.Table:
        """Run the scan and collect every row.

        Args:
            progress: Show meanwhile how many rows there are, on a terminal or in a notebook.

        Raises:
            ExtraMissing: rich, which shows progress, is not installed; nothing was read.
            ArgumentInvalid: The scan is endless.
            ScannerError: The scan failed.
        """
        if not progress:  # One call, and not one for each batch.
            return self._portal.read(self._scan.to_arrow)
        self.plan.require_end("to_arrow()")
        with self.execute() as batches:
            shown = with_progress(batches, self.plan.row_limit)
            return pa.Table.from_batches(shown, schema=batches.schema)

    def to_table(self, at: TableAt = None) -> pa.Table:
        """Fold a snapshot and its changes, source HYBRID, to the table at some offsets; see `scanner.Scan.to_table`."""
        folded = self._portal.read(self._scan.folded, at)
        fold = folded.new_fold()
        with self._derive(folded.plan).execute() as batches:
            for batch in batches:
                fold.apply(batch)
        return folded.finish(fold)

    def to_pandas(self, *, progress: bool = False) -> pd.DataFrame:
        """Run the scan and collect every row as a data frame of pandas.

        pandas makes floats of integers where there are nulls. A column of which that would change a number is of its
        type `Int64` instead.

        Args:
            progress: See `to_arrow`.

        Raises:
            ExtraMissing: pandas is not installed; nothing was read.
            ArgumentInvalid: The scan is endless.
            ScannerError: The scan failed.
        """
        self.plan.require_end("to_pandas()")
        with extras_needed("to_pandas()"):
            pandas = import_module("pandas")
        table = self.to_arrow(progress=progress)
        frame: pd.DataFrame = table.to_pandas()
        exact = {pa.int64(): pandas.Int64Dtype()}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if not _is_exact_as_float(column):
                frame[name] = column.to_pandas(types_mapper=exact.get)
        return frame

    def to_polars(self, *, progress: bool = False) -> pl.DataFrame:
        """Run the scan and collect every row as a data frame of polars.

        Times whose zone is an offset, such as `+05:30`, come in UTC: polars has no such zones.

        Args:
            progress: See `to_arrow`.

        Raises:
            ExtraMissing: polars is not installed; nothing was read.
            ArgumentInvalid: The scan is endless.
            SchemaMismatch: polars does not have a column's decimals; nothing was read. Or a time in seconds is too
                far away for polars, which counts milliseconds.
            ScannerError: The scan failed.
        """
        self.plan.require_end("to_polars()")
        with extras_needed("to_polars()"):
            import polars
        _require_decimals(self.schema)
        table = self.to_arrow(progress=progress)
        _require_milliseconds(table)
        table = table.cast(pa.schema(map(_with_named_zone, table.schema)))
        # polars gives a column without a name another one, and raises if the table has that.
        frame = polars.from_arrow(table.rename_columns([str(number) for number in range(table.num_columns)]))
        assert isinstance(frame, polars.DataFrame)
        frame.columns = table.column_names
        return frame

    def _hold(self) -> Held[TrioBatches]:
        return self._portal.hold(self._scan.execute())


def _is_exact_as_float(column: pa.ChunkedArray) -> bool:
    """Whether pandas changes no number of a column, which it makes floats of if there are nulls among integers."""
    if not pa.types.is_int64(column.type) or not column.null_count:
        return True
    ends = pc.min_max(column).as_py()
    return ends["min"] is None or max(-ends["min"], ends["max"]) <= _FLOAT_INTEGER_MAX


def _require_decimals(schema: pa.Schema) -> None:
    """Refuse decimals that polars does not have: its own error names no column.

    Raises:
        SchemaMismatch: A column is of such a type.
    """
    for field in schema:
        if pa.types.is_decimal(field.type) and not 0 <= field.type.scale <= field.type.precision:
            raise SchemaMismatch(
                "polars has no decimals with a negative scale, or one above the precision, and column"
                f" {field.name!r} is {field.type}; leave the column out by select(), or call to_arrow()"
            )


def _require_milliseconds(table: pa.Table) -> None:
    """Refuse times in seconds of which polars would make others, without a word: it multiplies them by 1000.

    Raises:
        SchemaMismatch: There is one.
    """
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_timestamp(field.type) and field.type.unit == "s":
            ends = pc.min_max(column.cast(pa.int64())).as_py()
            if ends["min"] is not None and max(-ends["min"], ends["max"]) > _SECONDS_MAX:
                raise SchemaMismatch(
                    f"column {field.name!r} has a time that is too far away for polars, which has no seconds, and"
                    " counts milliseconds; leave the column out by select(), or call to_arrow()"
                )


def _with_named_zone(column: pa.Field) -> pa.Field:
    """The column, of the same instants in UTC if its zone is an offset, at which polars panics."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz.startswith(("+", "-")):
        return column.with_type(pa.timestamp(kind.unit, "UTC"))
    return column


class _Place(NamedTuple):
    """How far a scan has come."""

    bucket: int | None
    positions: Mapping[int, int]
    snapshot_ends: Mapping[int, int]
    watermark: datetime.datetime | None
    behind: Mapping[int, BucketPosition]


class Batches(Iterator[pa.RecordBatch]):
    """The batches of a running scan; made by `Scan.execute`. See `scanner.client.scan.table_scan.Batches`.

    It is an Arrow stream, too, that can be read once: `pyarrow.table(batches)`.
    """

    def __init__(self, portal: Portal, held: Held[TrioBatches], plan: ScanPlan) -> None:
        self.plan = plan
        """What is scanned."""
        self._held = held
        self._batches = batches = held.value
        self._hand_over = HandOver(
            portal,
            batches,
            lambda: _Place(
                batches.bucket,
                batches.positions,
                batches.snapshot_ends,
                batches.watermark(),
                batches.behind,
            ),
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._batches.schema

    @property
    def bucket(self) -> int | None:
        """The bucket that the newest batch is of; None: none has come."""
        return self._hand_over.place.bucket

    def resume_position(self) -> str:
        """Where the scan stands, for `Scan.resume_at`; see `scanner.Batches.resume_position`."""
        return self._batches.position_text(self._hand_over.place.behind)

    @property
    def positions(self) -> dict[int, int]:
        """LOG and HYBRID: where a scan with `start_at` goes on; see `scanner.Batches.positions`."""
        return dict(self._hand_over.place.positions)

    @property
    def snapshot_ends(self) -> dict[int, int]:
        """HYBRID: by bucket, the offset that its snapshot is as of; see `scanner.Batches.snapshot_ends`."""
        return dict(self._hand_over.place.snapshot_ends)

    def watermark(self) -> datetime.datetime | None:
        """LOG and HYBRID: the time at or below which all buckets are complete; see `scanner.Batches.watermark`."""
        return self._hand_over.place.watermark

    @property
    def schema_outdated(self) -> bool:
        """LOG and HYBRID: whether the table has got columns since; see `scanner.Batches.schema_outdated`."""
        return self._batches.schema_outdated

    def __next__(self) -> pa.RecordBatch:
        """The next batch; the one before counts as consumed.

        Raises:
            StopIteration: Every bucket came to its proven end, or the limit is reached; now and for ever.
            ScannerError: The scan failed, now and for ever: what was delivered is right, but not all.
            trio.ClosedResourceError: The scan or the client was left.
            trio.BusyResourceError: Another thread is waiting for a batch.

        Cancellation:
            KeyboardInterrupt loses and repeats nothing in a `for` loop: the next goes on. In `batch = next(batches)`
            Python may raise it between the two, when the batch counts as handed out and nobody has it.
        """
        return self._hand_over.next()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """What is left of the batches, for a consumer of Arrow's C streams; see `Scan.__arrow_c_stream__`."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self)
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End the scan at the server soon, from any thread: who waits for a batch gets `trio.ClosedResourceError`.

        Leaving the block of `Scan.execute` does it as well, and waits until it is done. Idempotent.
        """
        self._held.leave_soon()

    def statistics(self) -> ScanStatistics:
        """What the scan did until now; may be asked for during and after the scan."""
        return self._batches.statistics()


class _LazyBatches(Iterator[pa.RecordBatch]):
    """The batches of one run of a scan, for a reader that cannot say when it is done with them.

    Invariants:

    1. Nothing is opened before the first batch is asked for, and nothing stays open behind the end or a failure.
    2. A failure is final: asking again raises it again, and never looks like the end.
    3. Dropping this ends the scan, in any thread, also amidst garbage collection, without waiting for it.
    4. An interrupt loses nothing: the next call goes on.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._held: Held[TrioBatches] | None = None
        self._batches: Batches | None = None
        self._end: Exception | None = None

    def __next__(self) -> pa.RecordBatch:
        """The next batch; see `Batches.__next__`."""
        try:
            return self._next()
        except KeyboardInterrupt:
            # Consumers in C show the message alone, and an interrupt has none.
            raise KeyboardInterrupt("interrupted while waiting for the rows of a scan") from None

    def _next(self) -> pa.RecordBatch:
        if self._end is not None:
            raise self._end
        try:
            # Not by `next()`: Python looks for signals behind a call into C.
            return self._opened().__next__()
        except trio.BusyResourceError:
            raise
        except Exception as error:
            self._end = error
            self._left()
            raise

    def __del__(self) -> None:
        if self._held is not None:
            self._held.leave_soon()

    def _opened(self) -> Batches:
        if self._held is None:
            self._held = self._scan._hold()
        if self._batches is None:
            self._batches = Batches(self._scan._portal, self._held, self._scan.plan)
        return self._batches

    def _left(self) -> None:
        held, self._held, self._batches = self._held, None, None
        if held is not None:
            held.leave(abandoned=True)
