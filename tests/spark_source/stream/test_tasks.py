"""What a task of a stream is to read, what it looks at while it reads, and when it has read all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from scanner.client.scan.statistics import BucketProgress
from scanner.errors import SnapshotLost
from spark_source.batch.leasing import TaskLease
from spark_source.errors import SourceError
from spark_source.stream import tasks
from spark_source.stream.offsets import Position
from spark_source.stream.options import ChangeOptions
from spark_source.stream.tasks import LogSlice, _require_all, log_slices, read_slice, snapshot_slices
from tests.spark_source.frames import table_name

if TYPE_CHECKING:
    from scanner.sync import Client
    from tests.support.server import RunningServer

OPTIONS = {"endpoint": "h:1", "table": "t", "readChanges": "true"}


@pytest.mark.parametrize(
    ("reason", "rows", "filtered", "complete"),
    [
        ("STOP_OFFSET", 5, False, True),
        ("STOP_OFFSET", 4, False, False),
        ("STOP_OFFSET", 6, False, False),
        ("STOP_OFFSET", 0, True, True),
        ("LIMIT", 5, False, False),
        ("LIMIT", 5, True, False),
        ("EXHAUSTED", 0, True, False),
        (None, 5, False, False),
    ],
)
def test_a_task_that_did_not_get_every_change_fails(
    reason: str | None, rows: int, filtered: bool, complete: bool
) -> None:
    """Else a batch would lack rows without a word: each change is counted, or, with a condition, the end awaited."""
    options = ChangeOptions.parse(OPTIONS | ({"where": "id < 3"} if filtered else {}))
    planned = LogSlice(options, table_id=7, bucket=2, start=10, end=15, history=b"h")
    done = BucketProgress(bucket=2, rows=rows, reason=reason).freeze()
    table = cast("Any", SimpleNamespace(name="t"))
    if complete:
        _require_all(table, planned, 10, done)
        return
    with pytest.raises(
        SourceError, match=rf"bucket 2: of the changes \[10, 15\) {rows} came, .* with {reason}"
    ):
        _require_all(table, planned, 10, done)


def test_a_bucket_with_changes_is_a_task() -> None:
    """Of the history of its end, with what keeps it; a bucket without changes is none."""
    options = ChangeOptions.parse(OPTIONS)
    start = {0: Position(5, b"old"), 1: Position(5, b"same"), 2: Position(0, b"")}
    end = {2: Position(9, b"two"), 0: Position(6, b"new"), 1: Position(5, b"same")}
    assert log_slices(options, 7, start, end, ("kept",)) == [
        LogSlice(options, 7, 0, 5, 6, b"new", ("kept",)),
        LogSlice(options, 7, 2, 0, 9, b"two", ("kept",)),
    ]


@pytest.fixture
def planned(request: pytest.FixtureRequest, server: RunningServer, client: Client) -> LogSlice:
    """The changes of a table of one bucket, which come in several batches."""
    schema = pa.schema([("k", pa.int64())])
    table = client.create_table(table_name(request), schema, primary_key=["k"], buckets=1)
    for first in range(0, 4000, 1000):
        table.write(pa.table({"k": range(first, first + 1000)}))
    (log,) = table.measure_log({0: 0})
    options = OPTIONS | {"endpoint": server.endpoint, "table": table.name, "creditBytes": "1000"}
    end = log.history_of(log.end_offset)
    return LogSlice(ChangeOptions.parse(options), table.table_id, 0, 0, log.end_offset, end)


@pytest.mark.rocks
@pytest.mark.socket
def test_a_bucket_that_is_restored_before_its_scan_opens_is_not_read(
    planned: LogSlice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its history is looked at before and behind that; no change of another one is handed to Spark."""
    measure, measured = tasks._measure_end, []

    def restored_at_the_second(*words: Any) -> Any:
        measured.append(measure(*words))
        if len(measured) == 2:
            raise SnapshotLost("the bucket was restored")
        return measured[-1]

    monkeypatch.setattr(tasks, "_measure_end", restored_at_the_second)
    with pytest.raises(SnapshotLost, match="was restored"):
        next(read_slice(planned, StructType().add("k", LongType())))


@pytest.mark.rocks
@pytest.mark.socket
def test_a_task_looks_after_its_leases_at_each_batch(
    planned: LogSlice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is read for longer than they live would go under the task."""
    looks = 0

    def look(_: TaskLease) -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(TaskLease, "renew_if_due", look)
    batches = [batch.num_rows for batch in read_slice(planned, StructType().add("k", LongType()))]
    assert sum(batches) == 4000
    assert looks == len(batches) > 2


@pytest.mark.rocks
@pytest.mark.socket
def test_the_rows_of_a_state_are_of_its_history(planned: LogSlice, client: Client) -> None:
    """The first micro-batch reads them, perhaps from a copy that was restored since: an offset says too little."""
    table = client.table(planned.options.source.table)
    at = {0: Position(planned.end, planned.history)}
    (part,) = snapshot_slices(planned.options, table, at, ["k"])
    assert (part.plan.as_of_bucket(0), part.plan.histories) == (planned.end, {0: planned.history})
    assert sum(batch.num_rows for batch in read_slice(part, StructType().add("k", LongType()))) == 4000
    at = {0: Position(planned.end, bytes(range(16)))}
    (part,) = snapshot_slices(planned.options, table, at, ["k"])
    with pytest.raises(SnapshotLost):
        next(read_slice(part, StructType().add("k", LongType())))
