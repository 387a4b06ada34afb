"""The bench of reads in Spark: what it concludes from its rounds, and the source that has its batches ready."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from bench.questions.spark import READY, WEIR, Way, judge
from bench.reading.cpu import Cpu, Measured, cpu_now
from bench.reading.ready_source import ReadySource, keep
from spark_source.schema import arrow_schema
from tests.support.pickling import sent_to_worker

BATCH = pa.record_batch(
    [pa.array(range(100), pa.int64()), pa.array(["text"] * 100)],
    schema=pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]),
)


def test_the_rounds_are_compared_one_by_one() -> None:
    """A round in which everything was slow counts like the others."""
    rates = {
        Way(READY, 1): [10.0, 5.0, 20.0],
        Way(WEIR, 1): [7.0, 3.5, 14.0],
        Way(READY, 2): [20.0, 10.0, 40.0],
        Way(WEIR, 2): [10.0, 5.0, 20.0],
    }
    found = {bar.name: (bar.value, bar.ok) for bar in judge({way: Measured(of) for way, of in rates.items()})}
    assert found == {
        "2 tasks over one": (1.429, False),
        "weir over ready batches, one task": (0.7, True),
        "weir over ready batches, 2 tasks": (0.5, False),
    }


def test_what_was_not_measured_has_no_bar() -> None:
    """A run with one number of tasks says nothing about others."""
    four = {Way(READY, 4): Measured([1.0]), Way(WEIR, 4): Measured([1.0])}
    assert judge(four) == []


@pytest.mark.parametrize("tasks", [1, 3])
def test_ready_batches_have_the_rows(tmp_path: Path, tasks: int) -> None:
    """All tasks together yield as many rows as were asked for, in the schema that Spark wants."""
    keep(BATCH, tmp_path / "batch")
    source = ReadySource({"path": str(tmp_path / "batch"), "rows": "250", "tasks": str(tasks)})
    reader = sent_to_worker(source.reader(source.schema()))
    batches = [batch for partition in reader.partitions() for batch in reader.read(sent_to_worker(partition))]
    assert len(reader.partitions()) == tasks
    assert sum(batch.num_rows for batch in batches) == 250
    assert {batch.schema for batch in batches} == {arrow_schema(source.schema())}


def test_cpu_is_told_per_row() -> None:
    """Of the time between two looks, in microseconds."""
    spent = Cpu(3.0, 2.0, 1.5) - Cpu(1.0, 1.0, 1.0)
    assert spent.per_row_us(1_000_000) == {"server": 2.0, "workers": 1.0, "jvm": 0.5}
    assert cpu_now(os.getpid(), os.getpid()).server > 0
