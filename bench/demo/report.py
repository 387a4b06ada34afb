"""What the demo found: the bars, the JSON, and one table with a row per mode."""

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version

from rich import box
from rich.table import Table

from bench.demo.replica import Streamed
from bench.demo.spark import SparkResult
from bench.demo.stall import Stall
from bench.demo.tail import Tailed
from bench.harness import flights
from bench.harness.bars import Bar, at_least, machine, none_of, some_of
from bench.harness.isolation import CheckedScan

LIBRARIES = ("weirstream", "h2", "pyarrow", "pyspark", "rocksdict", "trio")


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Everything that the demo measured."""

    rows: int
    """Rows that were loaded."""
    load_seconds: float
    spark: SparkResult
    scans: tuple[CheckedScan, ...]
    """The scans under writes."""
    stalls: tuple[Stall, ...]
    """One per mode."""
    tailed: Tailed
    """The snapshot and the changes after it."""
    streamed: Streamed
    """The changes in Spark, and the copy that they made."""
    row_message_bytes: int
    """Length of a message that carries one row."""
    changes: int
    """Changes that the writer's commits added to the changelogs."""
    seed: int

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes compared."""
        return tuple(mode.mode for mode in self.spark.comparison.modes)

    @property
    def isolation_violations(self) -> int:
        """Rows that were not as of the scan's offset, over all scans."""
        return sum(len(scan.violations) for scan in self.scans)

    @property
    def overrun_bytes(self) -> int:
        """The furthest that any scan of the demo was sent past its credit."""
        in_spark = (mode.overrun_bytes for mode in self.spark.comparison.modes)
        under_writes = (scan.overrun_bytes for scan in self.scans)
        return max(*in_spark, *under_writes, *(stall.overrun_bytes for stall in self.stalls))

    def bars(self) -> list[Bar]:
        """Everything that must be so, in the order in which it was measured."""
        quiet = {(mode.rows, mode.digest) for mode in self.spark.comparison.modes}
        unproven = sum(scan.commits_meanwhile == 0 for scan in self.scans)
        return [
            Bar("rows", self.rows, f"= {flights.ROWS}", self.rows == flights.ROWS),
            Bar("rows and digests over the modes", len(quiet), "= 1", len(quiet) == 1),
            Bar("Spark finds every mode equal to the CSV", self.spark.equal, "= True", self.spark.equal),
            some_of("scans judged under writes", len(self.scans)),
            none_of("scans during which nothing was committed", unproven),
            none_of("isolation violations", self.isolation_violations),
            Bar(
                "bytes sent past the credit",
                self.overrun_bytes,
                f"<= {self.row_message_bytes} (one row's message)",
                self.overrun_bytes <= self.row_message_bytes,
            ),
            some_of("changes tailed", self.tailed.changes),
            none_of("rows in which snapshot plus log is not the table", len(self.tailed.violations)),
            at_least("changes streamed", self.streamed.changes, self.rows),
            none_of("rows in which the replica is not the table", self.streamed.rows_wrong),
        ]

    def to_dict(self) -> dict[str, object]:
        """The contents of demo.json."""
        return {
            "rows": self.rows,
            "equal": self.spark.equal,
            "isolation_violations": self.isolation_violations,
            "overrun_bytes": self.overrun_bytes,
            "row_message_bytes": self.row_message_bytes,
            "modes": [
                {
                    **mode.to_dict(),
                    "under_writes": self._under_writes(mode.mode),
                    "stall": asdict(self._stall(mode.mode)),
                }
                for mode in self.spark.comparison.modes
            ],
            "tail": {**asdict(self.tailed), "violations": len(self.tailed.violations)},
            "stream": asdict(self.streamed),
            "bars": [asdict(bar) for bar in self.bars()],
            "load_seconds": round(self.load_seconds, 2),
            "changes_while_scanning": self.changes,
            "violations": [
                asdict(violation)
                for violations in (*(scan.violations for scan in self.scans), self.tailed.violations)
                for violation in violations
            ][:100],
            "seed": self.seed,
            "machine": machine(),
            "versions": {"python": platform.python_version(), "java": self.spark.java}
            | {name: version(name) for name in LIBRARIES},
        }

    def render(self) -> Table:
        """A row per mode."""
        table = Table(
            title="NYC flights 2013, one table read in each mode",
            caption=self._caption(),
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=0,
        )
        table.add_column("mode", no_wrap=True)
        headings = (
            "rows", "digest", "=\nCSV", "s", "first\nbatch\nms", "MB", "re-\nquests",
            "wrong\nrows", "bytes\npast\ncredit", "sent in\nstall\nMB", "server\ngrew\nMB",
        )  # fmt: skip
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for mode in self.modes:
            table.add_row(mode, *self._cells(mode))
        return table

    def _caption(self) -> str:
        return (
            f"s: Spark, median of full reads. Wrong rows: of {len(self.scans)} scans while a writer wrote. "
            f"Stall: {self.stalls[0].seconds:.0f} s without a read, 1 MiB of credit or pages. "
            f"One row's message: {self.row_message_bytes} bytes. "
            f"Tail: {self.tailed.snapshot_rows:,} rows and {self.tailed.changes:,} changes folded to the table, "
            f"{len(self.tailed.violations)} rows wrong; a change in hand {self.tailed.to_hand_ms:.0f} ms after its"
            " commit. "
            f"Stream: {self.streamed.changes:,} changes in {self.streamed.batches} micro-batches of Spark,"
            f" {self.streamed.seconds:.1f} s, {self.streamed.rows_wrong} rows of the replica wrong."
        )

    def _cells(self, mode: str) -> Iterator[str]:
        (cost,) = (found for found in self.spark.comparison.modes if found.mode == mode)
        (to_csv,) = (found for found in self.spark.to_csv if found.right == mode)
        under_writes, stall = self._under_writes(mode), self._stall(mode)
        yield f"{cost.rows:,}"
        yield f"{cost.digest:08x}"
        yield "yes" if to_csv.equal else "NO"
        yield f"{cost.seconds:.2f}"
        yield f"{cost.first_batch_ms:.1f}"
        yield f"{cost.bytes_received / 1e6:.1f}"
        yield f"{cost.requests}"
        yield f"{under_writes['violations']}"
        yield f"{max(cost.overrun_bytes, stall.overrun_bytes, under_writes['overrun_bytes'])}"
        yield f"{stall.sent_bytes / 1e6:.1f}"
        yield f"{stall.server_growth_bytes / 1e6:.1f}"

    def _under_writes(self, mode: str) -> dict[str, int]:
        scans = [scan for scan in self.scans if scan.mode == mode]
        return {
            "scans": len(scans),
            "rows": sum(scan.rows for scan in scans),
            "violations": sum(len(scan.violations) for scan in scans),
            "commits_meanwhile_min": min((scan.commits_meanwhile for scan in scans), default=0),
            "overrun_bytes": max((scan.overrun_bytes for scan in scans), default=0),
        }

    def _stall(self, mode: str) -> Stall:
        (stall,) = (stall for stall in self.stalls if stall.mode == mode)
        return stall
