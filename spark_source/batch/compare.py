"""Reads one table in several modes through Spark: are the rows equal, and what did each mode cost?

Invariants:
1. A mode's numbers come from the task attempts whose rows Spark used (see `spark_source.batch.statistics`).
2. Rows are compared by Spark itself, as multisets: it counts how often each read has each row.
3. Equality is checked in reads of its own, one of each mode, so that the measured ones do nothing but read.

The comparison assumes that nobody writes meanwhile: each read of each bucket is as of its own log offset. If
somebody does, it says *not equal*, and the log offsets tell why.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession, functions
from rich.table import Table

from scanner import combine_digests, join_digests
from spark_source.batch.statistics import BucketReport
from spark_source.data_source import WeirDataSource, register
from spark_source.options import MODES, columns_text
from spark_source.schema import STATISTICS_COLUMN

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_OWN_OPTIONS: Final = frozenset(["endpoint", "table", "mode", "statistics"])
"""Options in lower case that a comparison sets: another mode of every read would be found equal to itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeResult:
    """One mode's full read through Spark; of several runs, the one with the median time."""

    mode: str
    """How the rows travelled."""
    rows: int
    """Rows that Spark counted."""
    digest: int
    """CRC-32C over the digests of the buckets, in bucket order."""
    seconds: float
    """From planning to the last row, Spark's scheduling included."""
    first_batch_ms: float
    """Time from a task's open to its first batch: the median over the buckets that have rows."""
    bytes_received: int
    """Message bytes of the batches of all tasks."""
    requests: int
    """Requests of all tasks' scans."""
    overrun_bytes: int
    """Most bytes that any task received beyond its credit."""
    held_bytes_max: int
    """Most message bytes that waited for any task at once."""
    log_offsets: tuple[int, ...]
    """As of which offset each bucket was read, in bucket order."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Where the tasks' time on their scans went, seconds by reason, added up over the buckets."""
    server_stalls: dict[str, float] = field(default_factory=dict)
    """Where the server's time on them went."""

    def to_dict(self) -> dict[str, object]:
        """The result for JSON, the digest as eight hexadecimal digits."""
        return {
            "mode": self.mode,
            "rows": self.rows,
            "digest": f"{self.digest:08x}",
            "seconds": round(self.seconds, 3),
            "first_batch_ms": round(self.first_batch_ms, 1),
            "bytes": self.bytes_received,
            "requests": self.requests,
            "overrun_bytes": self.overrun_bytes,
            "held_bytes_max": self.held_bytes_max,
            "log_offsets": list(self.log_offsets),
            "stalls": _rounded(self.stalls),
            "server_stalls": _rounded(self.server_stalls),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two reads differ, as multisets of rows."""

    left: str
    """Name of the one read."""
    right: str
    """Name of the other."""
    left_only: int
    """Rows of the left that the right has not, or not as often."""
    right_only: int
    """Rows of the right that the left has not, or not as often."""

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return self.left_only == 0 and self.right_only == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Several reads of one table. Prints as a table with `rich`."""

    table: str
    """Name of the table."""
    modes: tuple[ModeResult, ...]
    """What each mode cost, in the order asked for."""
    differences: tuple[Difference, ...]
    """The first mode against each of the others."""

    @property
    def equal(self) -> bool:
        """Whether all modes delivered the same rows, of the same state.

        That is: Spark finds no difference, and rows, digests and log offsets are the same too.
        """
        states = {(mode.rows, mode.digest, mode.log_offsets) for mode in self.modes}
        return len(states) == 1 and all(difference.equal for difference in self.differences)

    def to_dict(self) -> dict[str, object]:
        """The comparison for JSON."""
        return {
            "table": self.table,
            "equal": self.equal,
            "modes": [mode.to_dict() for mode in self.modes],
            "differences": [asdict(difference) for difference in self.differences],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield render(self)


def compare(
    spark: SparkSession,
    endpoint: str,
    table: str,
    modes: Sequence[str] = MODES,
    *,
    columns: Sequence[str] | None = None,
    credit_bytes: int | None = None,
    runs: int = 1,
    options: Mapping[str, str] | None = None,
) -> Comparison:
    """Read one table in several modes and compare what came and what it cost.

    One unmeasured read goes first, so that no mode pays for the JVM's first time; the runs of the modes are
    interleaved.

    Args:
        spark: The session; format ``weir`` is registered with it.
        endpoint: ``HOST:PORT`` of the server.
        table: Name of the table; nobody should write to it meanwhile.
        modes: At least one, each once; those of option ``mode``.
        columns: Columns to read, in this order; None for all.
        credit_bytes: For mode push, as option ``creditBytes``.
        runs: Measured reads per mode, at least 1.
        options: More options of every read, such as ``tlsCa`` and ``tokenFile``; none that this sets itself.

    Returns:
        Per mode, the run with the median time, and how the modes' rows differ from the first one's.

    Raises:
        ValueError: No mode, a mode twice, or no run; or `options` have one that would be that of every read.
        SourceOptionError: A name in `columns` has a comma, or a space at an end.
        PySparkException: Spark could not read; its message ends with the reason.

    Waits: For 1 + runs x modes reads, and, of more than one mode, one more of each, whose rows are shuffled.
    """
    if not modes or len(set(modes)) < len(modes) or runs < 1:
        raise ValueError(f"compare needs at least one mode, each once, and one run: {modes=}, {runs=}")
    own = _OWN_OPTIONS & {name.lower() for name in options or {}}
    if own:
        raise ValueError(f"compare sets {', '.join(sorted(own))} itself: leave that out of options")
    wanted = None if columns is None else columns_text(columns)
    register(spark)

    def load(mode: str, *, measured: bool = False) -> DataFrame:
        reader = spark.read.format(WeirDataSource.name()).option("endpoint", endpoint).option("table", table)
        reader = reader.option("mode", mode).option("statistics", measured).options(**(options or {}))
        if wanted is not None:
            reader = reader.option("columns", wanted)
        if credit_bytes is not None:
            reader = reader.option("creditBytes", credit_bytes)
        return reader.load()

    load(modes[0], measured=True).agg(functions.count("*")).collect()
    measured = [[_measure(mode, load(mode, measured=True)) for mode in modes] for _ in range(runs)]
    return Comparison(
        table=table,
        modes=tuple(median_run(of_mode) for of_mode in zip(*measured, strict=True)),
        differences=find_differences([(mode, load(mode)) for mode in modes]),
    )


def find_difference(
    left: DataFrame, right: DataFrame, *, names: tuple[str, str] = ("left", "right")
) -> Difference:
    """Compare two DataFrames as multisets of rows, in Spark.

    Values are equal if Spark groups them together: NaN is NaN, and -0.0 is 0.0. Columns of two types are compared as
    what a union makes of them, so that 1 may be equal to '1'.

    Args:
        left: The one.
        right: The other, with the same number of columns in the same order.
        names: What to call them.

    Raises:
        AnalysisException: Their columns do not fit.

    Waits: For one job, which reads both once and shuffles all rows.
    """
    (difference,) = find_differences(list(zip(names, (left, right), strict=True)))
    return difference


def find_differences(reads: Sequence[tuple[str, DataFrame]]) -> tuple[Difference, ...]:
    """Compare the first read with each of the others, as `find_difference` does; in one job.

    Args:
        reads: By name, in the order wanted.
    """
    if len(reads) < 2:
        return ()
    numbered = [frame.select(functions.lit(number), "*") for number, (_, frame) in enumerate(reads)]
    columns = [f"column {place}" for place in range(len(numbered[0].columns) - 1)]
    rows = functools.reduce(DataFrame.union, numbered).toDF("read", *columns)
    counts = rows.groupBy(*columns).agg(
        *(functions.count_if(rows["read"] == number).alias(str(number)) for number in range(len(reads)))
    )
    first, *others = (counts[str(number)] for number in range(len(reads)))
    only = [each for other in others for each in (first - other, other - first)]
    none = functions.lit(0)
    (sums,) = counts.agg(*(functions.sum(functions.greatest(each, none)) for each in only)).collect()
    return tuple(
        Difference(left=reads[0][0], right=name, left_only=left_only or 0, right_only=right_only or 0)
        for (name, _), left_only, right_only in zip(reads[1:], sums[::2], sums[1::2], strict=True)
    )


def median_run(runs: Sequence[ModeResult]) -> ModeResult:
    """The run with the median time; of an even number, the faster of the two in the middle.

    Args:
        runs: At least one.
    """
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def render(comparison: Comparison) -> Table:
    """The comparison as a table, one row per mode."""
    verdict = "equal" if comparison.equal else "NOT EQUAL"
    table = Table(title=f"{comparison.table}: {verdict}")
    table.add_column("mode")
    for heading in ("rows", "digest", "seconds", "first batch ms", "bytes", "requests"):
        table.add_column(heading, justify="right")
    for mode in comparison.modes:
        table.add_row(
            mode.mode,
            f"{mode.rows:,}",
            f"{mode.digest:08x}",
            f"{mode.seconds:.2f}",
            f"{mode.first_batch_ms:.1f}",
            f"{mode.bytes_received:,}",
            f"{mode.requests:,}",
        )
    return table


def _measure(mode: str, frame: DataFrame) -> ModeResult:
    """Read every row and column once, in one job, and count them by the way."""
    started = time.perf_counter()
    (result,) = frame.agg(functions.count("*"), functions.collect_list(STATISTICS_COLUMN)).collect()
    seconds = time.perf_counter() - started
    counted, texts = result
    reports = sorted(
        (BucketReport.from_json(text) for text in texts), key=lambda report: (report.bucket, report.split)
    )
    buckets = [list(parts) for _, parts in itertools.groupby(reports, key=lambda report: report.bucket)]
    first_batches = [report.first_batch_s for report in reports if report.first_batch_s is not None]
    return ModeResult(
        mode=mode,
        rows=counted - len(reports),
        digest=combine_digests(
            [join_digests((part.digest, part.stored_bytes) for part in parts) for parts in buckets]
        ),
        seconds=seconds,
        first_batch_ms=1000 * statistics.median(first_batches) if first_batches else 0.0,
        bytes_received=sum(report.bytes_received for report in reports),
        requests=sum(report.requests for report in reports),
        overrun_bytes=max(report.overrun_bytes for report in reports),
        held_bytes_max=max(report.held_bytes_max for report in reports),
        log_offsets=tuple(parts[0].log_offset for parts in buckets),
        stalls=_added_up([report.stalls for report in reports]),
        server_stalls=_added_up([report.server_stalls for report in reports]),
    )


def _added_up(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    reasons = dict.fromkeys(reason for part in parts for reason in part)
    return {reason: sum(part.get(reason, 0.0) for part in parts) for reason in reasons}


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    """For JSON: milliseconds, and only where there are some."""
    return {reason: round(value, 3) for reason, value in seconds.items() if value >= 0.0005}
