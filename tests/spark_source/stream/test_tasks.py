"""What a task of a stream is to read, and when it has read all of it; without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from scanner.client.scan.statistics import BucketProgress
from spark_source.errors import SourceError
from spark_source.stream.offsets import Position
from spark_source.stream.options import ChangeOptions
from spark_source.stream.tasks import LogSlice, _require_all, log_slices

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
