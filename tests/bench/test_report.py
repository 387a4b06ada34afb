"""The report of the demo: what is in demo.json, and which bars it holds findings to."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.demo.replica import Streamed
from bench.demo.report import Findings
from bench.demo.spark import SparkResult
from bench.demo.stall import Stall
from bench.demo.tail import Tailed
from bench.harness import flights
from bench.harness.bars import failures
from bench.harness.isolation import CheckedScan
from bench.harness.oracle import Violation
from spark_source.batch.compare import Comparison, Difference, ModeResult

MODE = ModeResult(
    mode="push",
    rows=flights.ROWS,
    digest=0xC0FFEE,
    seconds=1.5,
    first_batch_ms=20.0,
    bytes_received=50_000_000,
    requests=4,
    overrun_bytes=0,
    held_bytes_max=1,
    log_offsets=(1, 2, 3, 4),
)
SCAN = CheckedScan(
    mode="push", bucket=0, log_offset=5, rows=10, commits_meanwhile=2, overrun_bytes=900, violations=()
)
STALL = Stall(
    mode="push", seconds=3.0, sent_bytes=1_000_000, overrun_bytes=800, server_growth_bytes=0, rows=10
)
TAILED = Tailed(
    snapshot_rows=flights.ROWS,
    changes=5_000,
    commits_meanwhile=90,
    seconds=4.0,
    to_hand_ms=3.0,
    violations=(),
)
STREAMED = Streamed(changes=flights.ROWS + 100, batches=4, seconds=9.0, rows_wrong=0)
MODES = ("push", "session")


def findings() -> Findings:
    comparison = Comparison(
        table="flights", modes=tuple(replace(MODE, mode=mode) for mode in MODES), differences=()
    )
    to_csv = tuple(Difference(left="csv", right=mode, left_only=0, right_only=0) for mode in MODES)
    return Findings(
        rows=flights.ROWS,
        load_seconds=3.0,
        spark=SparkResult(comparison=comparison, to_csv=to_csv, java="17"),
        scans=tuple(replace(SCAN, mode=mode) for mode in MODES),
        stalls=tuple(replace(STALL, mode=mode) for mode in MODES),
        tailed=TAILED,
        streamed=STREAMED,
        row_message_bytes=1000,
        changes=100,
        seed=1,
    )


def with_mode(found: Findings, **changes: object) -> Findings:
    """The findings, with one mode's read changed."""
    first, second = found.spark.comparison.modes
    comparison = replace(found.spark.comparison, modes=(first, replace(second, **changes)))  # type: ignore[arg-type]
    return replace(found, spark=replace(found.spark, comparison=comparison))


def test_the_json_has_what_was_promised() -> None:
    """rows, equal, isolation_violations and overrun_bytes on top; rows, digest and costs for each mode."""
    found = findings().to_dict()
    assert found["rows"] == 336_776
    assert found["equal"] is True
    assert found["isolation_violations"] == 0
    assert found["overrun_bytes"] == 900
    assert found["row_message_bytes"] == 1000
    assert found["tail"] == {
        "snapshot_rows": 336_776,
        "changes": 5_000,
        "commits_meanwhile": 90,
        "seconds": 4.0,
        "to_hand_ms": 3.0,
        "violations": 0,
    }
    modes = found["modes"]
    assert isinstance(modes, list)
    assert [mode["mode"] for mode in modes] == ["push", "session"]
    for mode in modes:
        assert {"rows", "digest", "seconds", "first_batch_ms", "bytes", "requests"} <= mode.keys()


def test_the_table_has_a_row_per_mode() -> None:
    """Both modes are printed, each on a line of its own, with its digest."""
    console = Console(width=120, file=io.StringIO())
    with console.capture() as printed:
        console.print(findings().render())
    lines = [line for line in printed.get().splitlines() if "00c0ffee" in line]
    assert [line.split()[0] for line in lines] == ["push", "session"]


def test_good_findings_miss_no_bar() -> None:
    """What is as it must be fails nothing."""
    assert failures(findings().bars()) == []


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (replace(findings(), rows=1), "rows: 1"),
        (with_mode(findings(), digest=1), "rows and digests"),
        (with_mode(findings(), rows=1), "rows and digests"),
        (replace(findings(), scans=()), "scans judged"),
        (replace(findings(), scans=(replace(SCAN, commits_meanwhile=0),)), "nothing was committed: 1"),
        (replace(findings(), scans=(replace(SCAN, violations=(Violation("stale", "x"),)),)), "violations: 1"),
        (replace(findings(), tailed=replace(TAILED, changes=0)), "changes tailed: 0"),
        (
            replace(findings(), tailed=replace(TAILED, violations=(Violation("missing", "x"),))),
            "snapshot plus log is not the table: 1",
        ),
        (replace(findings(), streamed=replace(STREAMED, changes=1)), "changes streamed: 1"),
        (replace(findings(), streamed=replace(STREAMED, rows_wrong=2)), "the replica is not the table: 2"),
        (replace(findings(), row_message_bytes=899), "past the credit: 900, must be <= 899"),
    ],
)
def test_each_bad_finding_misses_its_bar(found: Findings, name: str) -> None:
    """What is not as it must be is a line of its own."""
    assert any(name in line for line in failures(found.bars()))


def test_a_difference_from_the_csv_is_not_equal() -> None:
    """One row that Spark finds in one direction only is enough."""
    found = findings()
    lost = Difference(left="csv", right="push", left_only=1, right_only=0)
    found = replace(found, spark=replace(found.spark, to_csv=(lost, found.spark.to_csv[1])))
    assert found.to_dict()["equal"] is False
    assert any("equal to the CSV" in line for line in failures(found.bars()))
