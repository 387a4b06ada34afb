"""How many rows a second does Spark write to weir, beside a client that writes the same rows?

Three ways, in turn, round by round, each into a table of its own, dropped behind it:

    client    `Table.write`, rows ready in memory: every request is applied as it comes
    staged    a transaction of the client: the same rows staged by one part, and published
    spark     `df.write`, from rows that the JVM makes, one task for each core: planning, staging, publishing

A round's ratio is of its own ways; what counts is the median. Each way is read back and summed. CPU is what the kernel
counts for the server, Spark's Python processes, its JVM, and the client.

What was expected: a staged row is encoded once and applied from what was stored, so staging adds a file's writing and
reading to a write, and Spark adds the way from the JVM to Python, a pipe of Arrow batches.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from spark_source import register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from rich.console import Console

    from bench.harness.processes import Peer

OVER_CLIENT_MIN: Final = 0.4
WAYS: Final = ("client", "staged", "spark")
_TABLE: Final = "written"


class Writes:
    """What is written, and how.

    Args:
        spark: The session.
        server: Gets the rows.
        client: Of it.
        rows: Of each write.
        tasks: Of Spark's.
        buckets: Of each table.
    """

    def __init__(
        self,
        spark: SparkSession,
        server: Peer,
        client: scanner.sync.Client,
        *,
        rows: int,
        tasks: int,
        buckets: int,
    ) -> None:
        self._spark = spark
        self._server = server
        self._client = client
        self._rows = rows
        self._tasks = tasks
        self._buckets = buckets
        self._jvm_pid = int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        self._ways: Mapping[str, Callable[[scanner.sync.Table], None]] = {
            "client": self._write,
            "staged": self._stage,
            "spark": self._save,
        }
        self._pieces: Sequence[pa.Table] = list(pieces(WIDTHS["86"], rows))

    def measure(self, way: str) -> tuple[float, dict[str, float]]:
        """Write once: the seconds, and CPU microseconds for a row.

        Raises:
            BenchFailed: The rows are not those that were written.
        """
        table = self._client.create_table(
            _TABLE, SCHEMA, primary_key=list(PRIMARY_KEY), buckets=self._buckets
        )
        before, own, started = self._cpu(), time.process_time(), time.perf_counter()
        self._ways[way](table)
        seconds = time.perf_counter() - started
        spent = (self._cpu() - before).per_row_us(self._rows)
        spent["client"] = round((time.process_time() - own) / self._rows * 1e6, 3)
        ids = [
            sum(batch["id"].to_pylist()) for batch in table.new_scan().select("id").to_arrow().to_batches()
        ]
        if sum(ids) != self._rows * (self._rows - 1) // 2:
            raise BenchFailed(f"{way}: the ids that were written add up to {sum(ids)}")
        self._client.drop_table(_TABLE)
        return seconds, spent

    def _write(self, table: scanner.sync.Table) -> None:
        with table.open_writer() as writer:
            for rows in self._pieces:
                writer.write(rows)

    def _stage(self, table: scanner.sync.Table) -> None:
        transaction = table.transaction("bench", 0)
        with transaction.part(0, 0) as writer:
            for rows in self._pieces:
                writer.upsert(rows)
        transaction.publish({0: 0})

    def _save(self, table: scanner.sync.Table) -> None:
        text = f"lpad(CAST(id AS STRING), {WIDTHS['86'].text_bytes}, '0') AS name"
        frame = self._spark.range(0, self._rows, 1, self._tasks).selectExpr(
            "id", text, "id / 4 AS price", "CAST(id % 1000 AS INT) AS stock"
        )
        writer = frame.write.format("weir").mode("append")
        writer.options(endpoint=self._server.endpoint, table=table.name).save()

    def _cpu(self) -> Cpu:
        return cpu_now(self._server.pid, self._jvm_pid)


def run(
    output: Path | None, console: Console, *, rows: int, rounds: int, tasks: int, buckets: int
) -> list[Bar]:
    """Measure, write the JSON, and print."""
    measured = {way: Measured() for way in WAYS}
    with (
        tempfile.TemporaryDirectory(prefix="weir-spark-write-") as folder,
        running_server(Path(folder, "data")) as server,
        scanner.sync.connect(server.endpoint) as client,
        spark_session("weir spark-write", master=f"local[{tasks}]") as spark,
    ):
        register(spark)
        writes = Writes(spark, server, client, rows=rows, tasks=tasks, buckets=buckets)
        for way in WAYS:
            writes.measure(way)  # The JVM compiles, and workers are forked.
        for number in range(rounds):
            for way in WAYS:
                seconds, spent = writes.measure(way)
                measured[way].rows_per_s.append(round(rows / seconds))
                measured[way].cpu_us_per_row.append(spent)
                console.print(f"round {number + 1} of {rounds}: {way}: {rows / seconds:,.0f} rows/s")
    ratio = measured["spark"].over(measured["client"])
    found = [at_least("spark over client", ratio, OVER_CLIENT_MIN)]
    write_json(output, found, rows=rows, tasks=tasks, buckets=buckets, ways=measured)
    console.print(_table(measured).rich())
    return found


def _table(measured: Mapping[str, Measured]) -> Sheet:
    rows = [
        (way, *each.cells(measured["client"], ("server", "workers", "jvm", "client")))
        for way, each in measured.items()
    ]
    headings = ("", "rows/s", "of client", "CPU us/row: server", "workers", "JVM", "client")
    return Sheet("medians", headings, rows)
