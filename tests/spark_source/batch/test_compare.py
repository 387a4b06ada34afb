"""Comparing modes: equal reads are found equal and unequal ones unequal, and each mode's costs are its own."""

import io
import json
from typing import cast

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from scanner.sync import Client, connect
from spark_source.batch.compare import (
    Comparison,
    Difference,
    ModeResult,
    compare,
    find_difference,
    find_differences,
    median_run,
)
from spark_source.errors import SourceOptionError
from spark_source.options import MODES
from tests.support.server import RunningServer

ROWS = 10_000


def result(mode: str, **changes: object) -> ModeResult:
    """A mode's result, as good as any other but for `changes`."""
    values: dict[str, object] = {
        "mode": mode,
        "rows": 336_776,
        "digest": 0xDEADBEEF,
        "seconds": 1.23456,
        "first_batch_ms": 4.567,
        "bytes_received": 40_000_000,
        "requests": 4,
        "overrun_bytes": 0,
        "held_bytes_max": 1024,
        "log_offsets": (5, 6),
        "stalls": {"peer": 1.23456, "consumer": 0.0001},
    }
    return ModeResult(**(values | changes))  # type: ignore[arg-type]


def comparison(right: ModeResult, *, left_only: int = 0, right_only: int = 0) -> Comparison:
    """A comparison of push with another mode's result."""
    difference = Difference(left="push", right=right.mode, left_only=left_only, right_only=right_only)
    return Comparison(table="flights", modes=(result("push"), right), differences=(difference,))


def test_equal() -> None:
    """Modes that took different time and requests for the same rows are equal."""
    assert comparison(result("session", seconds=9.0, requests=11, bytes_received=1)).equal


@pytest.mark.parametrize("changes", [{"rows": 1}, {"digest": 1}, {"log_offsets": (5, 7)}], ids=str)
def test_another_state_is_not_equal(changes: dict[str, object]) -> None:
    """Rows, digest and log offsets all have to agree."""
    assert not comparison(result("session", **changes)).equal


@pytest.mark.parametrize("sides", [{"left_only": 1}, {"right_only": 1}], ids=str)
def test_rows_on_one_side_are_not_equal(sides: dict[str, int]) -> None:
    """A row that only one side has, whichever it is, makes the reads unequal."""
    assert not comparison(result("session"), **sides).equal


def test_to_dict_is_json() -> None:
    """The dictionary is ready for JSON and has what a report needs."""
    written = json.loads(json.dumps(comparison(result("session")).to_dict()))
    assert written["equal"] is True
    assert written["modes"][0] == {
        "mode": "push",
        "rows": 336_776,
        "digest": "deadbeef",
        "seconds": 1.235,
        "first_batch_ms": 4.6,
        "bytes": 40_000_000,
        "requests": 4,
        "overrun_bytes": 0,
        "held_bytes_max": 1024,
        "log_offsets": [5, 6],
        "stalls": {"peer": 1.235},
        "server_stalls": {},
    }


def test_rendering() -> None:
    """Printed with rich, a comparison is one table with a row per mode and the verdict as its title."""
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison(result("session"), left_only=1))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "flights: NOT EQUAL" in text
    assert "336,776" in text
    assert all(mode in text for mode in ("push", "session"))


@pytest.mark.parametrize(
    ("seconds", "median"), [([1.0], 1.0), ([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 3.0, 2.0], 2.0)]
)
def test_median_run(seconds: list[float], median: float) -> None:
    """Of several runs one stands for all: the one with the median time, or the faster of the two in the middle."""
    assert median_run([result("push", seconds=each) for each in seconds]).seconds == median


@pytest.fixture(scope="module")
def table(server: RunningServer) -> str:
    """A table of `ROWS` rows with nulls and repeated values."""
    rows = pa.table(
        {
            "k": pa.array(range(ROWS), pa.int64()),
            "v": pa.array([None if row % 3 == 0 else row / 7 for row in range(ROWS)]),
            "s": pa.array([f"text {row % 10}" for row in range(ROWS)]),
        }
    )
    with connect(server.endpoint) as client:
        client.create_table("compared", rows.schema, primary_key=["k"], buckets=3).write(rows)
    return "compared"


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
def test_compare(spark: SparkSession, server: RunningServer, client: Client, table: str) -> None:
    """All modes deliver the same rows of the same state, and say what it cost them."""
    compared = compare(spark, server.endpoint, table, credit_bytes=64 << 10)
    assert compared.equal
    assert [mode.mode for mode in compared.modes] == list(MODES)
    push, session = compared.modes[:2]
    assert {mode.rows for mode in compared.modes} == {ROWS}
    assert {mode.digest for mode in compared.modes} == {push.digest}
    assert push.log_offsets == tuple(end for _, _, end in client.table(table).offsets())
    for mode in compared.modes:
        assert mode.seconds > 0
        assert mode.first_batch_ms > 0
        assert mode.bytes_received > ROWS * 8
        assert 0 < mode.first_batch_ms / 1000 <= sum(mode.stalls.values())
        assert mode.server_stalls["storage"] > 0
    assert push.requests == 3
    assert session.requests >= 3
    with client.table(table).new_scan().execute() as batches:
        assert sum(batch.num_rows for batch in batches) == ROWS
    assert push.digest == batches.statistics().digest


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
def test_compare_columns_of_one_mode(spark: SparkSession, server: RunningServer, table: str) -> None:
    """One mode alone, on some columns, is a measurement without differences."""
    compared = compare(spark, server.endpoint, table, ["session"], columns=["s"])
    assert compared.equal
    assert compared.differences == ()
    assert compared.modes[0].rows == ROWS


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
def test_differences(spark: SparkSession, server: RunningServer, table: str) -> None:
    """Rows that only one DataFrame has, or has more often, are counted on the side that has them."""
    frame = spark.read.format("weir").option("endpoint", server.endpoint).option("table", table).load()
    changed = frame.selectExpr("k", "CASE WHEN k = 5 THEN NULL ELSE v END AS v", "s")
    fewer, more = frame.where("k > 1"), frame.union(frame.limit(3))
    assert find_differences([("a", frame), ("b", frame), ("c", fewer), ("d", more), ("e", changed)]) == (
        Difference(left="a", right="b", left_only=0, right_only=0),
        Difference(left="a", right="c", left_only=2, right_only=0),
        Difference(left="a", right="d", left_only=0, right_only=3),
        Difference(left="a", right="e", left_only=1, right_only=1),
    )
    assert find_difference(frame.limit(0), frame.limit(0)).equal


@pytest.mark.spark
@pytest.mark.parametrize("arguments", [{"modes": []}, {"modes": ["push", "push"]}, {"runs": 0}], ids=str)
def test_senseless_arguments(spark: SparkSession, arguments: dict[str, object]) -> None:
    """There has to be something to compare."""
    with pytest.raises(ValueError, match="at least one mode, each once, and one run"):
        compare(spark, "127.0.0.1:1", "t", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mode", "Table", "endpoint", "STATISTICS"])
def test_options_that_a_comparison_sets(name: str) -> None:
    """Taken as those of every read, they would have a mode compared with itself."""
    with pytest.raises(ValueError, match=f"compare sets {name.lower()} itself"):
        compare(cast("SparkSession", None), "127.0.0.1:1", "t", options={"tlsCa": "system", name: "push"})


@pytest.mark.parametrize("name", ["a,b", " a"])
def test_columns_that_the_option_would_read_as_others(name: str) -> None:
    """Taken for the columns a and b, the comparison would say of other columns that they are equal."""
    with pytest.raises(SourceOptionError, match="has a comma, or a space at an end"):
        compare(cast("SparkSession", None), "127.0.0.1:1", "t", columns=[name])


@pytest.mark.spark
@pytest.mark.rocks
@pytest.mark.socket
def test_unknown_mode(spark: SparkSession, server: RunningServer, table: str) -> None:
    """A mode that does not exist is refused as the option is."""
    with pytest.raises(AnalysisException, match="option 'mode' cannot be 'pull': it is one of push, session"):
        compare(spark, server.endpoint, table, ["pull"])
