"""What Spark does with a writer, without a JVM: tasks that are told who they are, and a commit on another copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import TaskContext

from tests.support.pickling import sent_to_worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    import pytest

    from spark_source.writing.tasks import StagedPart
    from spark_source.writing.writer import SaveWriter, StreamWriter


def run_task(
    monkeypatch: pytest.MonkeyPatch,
    writer: SaveWriter | StreamWriter,
    part: int,
    batches: Iterable[pa.RecordBatch],
    *,
    query: str | None = None,
    batch: int | None = None,
) -> StagedPart:
    """Write as the task `part` of a save, or of a micro-batch; the message as it reaches the driver."""
    properties: dict[str, str] = {}
    if query is not None:
        properties["sql.streaming.queryId"] = query
    if batch is not None:
        properties["streaming.sql.batchId"] = str(batch)
    with monkeypatch.context() as patch:
        patch.setattr(TaskContext, "_taskContext", None)
        TaskContext.from_json(
            {
                "stageId": 0,
                "partitionId": part,
                "attemptNumber": 0,
                "taskAttemptId": part,
                "cpus": 1,
                "resources": {},
                "localProperties": properties,
            }
        )
        return sent_to_worker(sent_to_worker(writer).write(iter(batches)))
