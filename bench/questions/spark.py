"""How many rows a second does Spark read from weir, how many could it read, and does a second task help?

Spark reads a table of one bucket in one task, and in tasks that share its keys (option `splits`); beside it the same
number of rows from a source that has its Arrow batches ready in memory: the most that Spark takes from any Python
source. Each read is a sum that is checked, over all columns, from the load to the result. Rounds are interleaved; a
ratio is the median of the rounds' ratios. CPU is what the kernel counts for the server, for Spark's Python processes
and for its JVM.

What was expected: per row the server's scan costs most, about a microsecond, and a Python worker hands batches on for
little more than their bytes; so one task reads at the speed of one server, and two tasks gain what one leaves idle.

What was found, from an image, on two cores: one task fills both, so more tasks gain nothing, and what counts is CPU.
Batches reach Spark as the server cut them, 1.8 MB each, and cost the JVM what ready ones do. The scan takes the server
0.03 to 0.05 us a row, and a worker 0.05 us more than ready batches: it receives each octet, looks at the checksum, and
writes the octet to the JVM. What does not grow with the rows counts as much in a read of three million:

- Spark's daemon collects all of Python's garbage each time that a worker has done its part: one finds the schema, one
  plans, and one reads for each task. With the client's modules in memory that takes 0.02 to 0.03 s each, twice what it
  takes without.
- To cut a bucket for several tasks, the server takes the blocks of the image. While it walked the rows that are in
  memory behind its files, as it does without an image, that took up to 0.12 s, in a thread that mostly holds the
  interpreter's lock: two tasks had 0.58 of ready batches, and have 0.71 since. While these rows counted uncompressed
  beside compressed files, the first of two tasks had 63 % of all rows.
- The lease of the planning is synced to the disk, and so is its renewal by each task.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import scanner.sync
from bench.harness.bars import Bar, at_least, write_json
from bench.harness.errors import BenchFailed
from bench.harness.server import running_server
from bench.harness.sheet import Sheet
from bench.harness.spark import spark_session
from bench.peers.rows import PRIMARY_KEY, SCHEMA, WIDTHS, pieces
from bench.reading.cpu import Cpu, Measured, cpu_now
from bench.reading.ready_source import ReadySource, keep

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from bench.harness.processes import Peer

TASKS: Final = (1, 2, 4)
TWO_OVER_ONE_MIN: Final = 1.6
OVER_READY_MIN: Final = 0.6
WEIR: Final = "weir"
READY: Final = "ready"
SOURCES: Final = (READY, WEIR)
TABLE: Final = "rows"


@dataclass(frozen=True, slots=True)
class Way:
    """A source, and how many tasks read it."""

    source: str
    tasks: int

    def __str__(self) -> str:
        return f"{self.source} x {self.tasks}"


class Reads:
    """What is read, and how.

    Args:
        spark: The session.
        server: Gets the table.
        directory: Where the ready batch goes.
        rows: Of each read.
        images: Whether the server is to read from a columnar image.
    """

    def __init__(
        self, spark: SparkSession, server: Peer, directory: Path, rows: int, *, images: bool
    ) -> None:
        self._spark = spark
        self._server = server
        self._ready = directory / "ready.arrow"
        self._rows = rows
        self._images = images
        self._jvm_pid = int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]

    def prepare(self) -> pa.RecordBatch:
        """Make the table, and the batch that is ready: the largest that a scan gets."""
        with scanner.sync.connect(self._server.endpoint) as client:
            table = client.create_table(TABLE, SCHEMA, primary_key=list(PRIMARY_KEY), buckets=1)
            for rows in pieces(WIDTHS["86"], self._rows):
                table.write(rows)
            with table.new_scan().execute() as batches:
                largest = max(batches, key=lambda batch: batch.num_rows)
            if self._images:
                client.make_images(TABLE)
        keep(largest, self._ready)
        return largest

    def measure(self, way: Way) -> tuple[float, Cpu]:
        """Read once: the seconds, and the CPU seconds.

        Raises:
            BenchFailed: The rows are not those that there are.
        """
        before, started = self._cpu(), time.perf_counter()
        (found,) = self._frame(way).selectExpr("count(*)", "sum(id)", "count(name)").collect()
        seconds = time.perf_counter() - started
        spent = self._cpu() - before
        if (found[0], found[2]) != (self._rows, self._rows):
            raise BenchFailed(f"{way}: {found[0]} rows were read of {self._rows}")
        if way.source == WEIR and found[1] != self._rows * (self._rows - 1) // 2:
            raise BenchFailed(f"{way}: the ids that were read add up to {found[1]}")
        return seconds, spent

    def _frame(self, way: Way) -> DataFrame:
        options: Mapping[str, object] = (
            {"endpoint": self._server.endpoint, "table": TABLE, "splits": way.tasks}
            if way.source == WEIR
            else {"path": self._ready, "rows": self._rows, "tasks": way.tasks}
        )
        reader = self._spark.read.format(way.source)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def _cpu(self) -> Cpu:
        return cpu_now(self._server.pid, self._jvm_pid)


def run(
    output: Path | None,
    console: Console,
    *,
    rows: int,
    rounds: int,
    tasks: Sequence[int],
    images: bool = False,
) -> list[Bar]:
    """Measure, write the JSON, and print."""
    ways = [Way(source, count) for count in tasks for source in SOURCES]
    measured = {way: Measured() for way in ways}
    with (
        tempfile.TemporaryDirectory(prefix="weir-spark-") as folder,
        running_server(Path(folder, "data")) as server,
        spark_session("weir spark", master=f"local[{max(tasks)}]") as spark,
    ):
        spark.dataSource.register(ReadySource)
        reads = Reads(spark, server, Path(folder), rows, images=images)
        console.print(f"loading {rows:,} rows")
        batch = reads.prepare()
        for way in ways:
            reads.measure(way)  # The JVM compiles, and workers are forked.
        for number in range(rounds):
            for way in ways:
                seconds, spent = reads.measure(way)
                measured[way].rows_per_s.append(round(rows / seconds))
                measured[way].cpu_us_per_row.append(spent.per_row_us(rows))
                console.print(f"round {number + 1} of {rounds}: {way}: {rows / seconds:,.0f} rows/s")
    judged = write_json(
        output,
        judge(measured),
        rows=rows,
        images=images,
        batch={"rows": batch.num_rows, "bytes": batch.nbytes},
        ways={str(way): each for way, each in measured.items()},
    )
    console.print(_table(measured).rich())
    return judged


def judge(measured: Mapping[Way, Measured]) -> list[Bar]:
    """What the ratios must be, of those that were measured."""
    wanted = [
        ("2 tasks over one", Way(WEIR, 2), Way(WEIR, 1), TWO_OVER_ONE_MIN),
        ("weir over ready batches, one task", Way(WEIR, 1), Way(READY, 1), OVER_READY_MIN),
        ("weir over ready batches, 2 tasks", Way(WEIR, 2), Way(READY, 2), OVER_READY_MIN),
    ]
    found = []
    for name, mine, other, least in wanted:
        if mine in measured and other in measured:
            ratio = measured[mine].over(measured[other])
            found.append(at_least(name, ratio, least))
    return found


def _table(measured: Mapping[Way, Measured]) -> Sheet:
    rows = [
        (str(way), *each.cells(measured[Way(READY, way.tasks)], ("server", "workers", "jvm")))
        for way, each in measured.items()
    ]
    return Sheet("medians", ("", "rows/s", "of ready", "CPU us/row: server", "workers", "JVM"), rows)
