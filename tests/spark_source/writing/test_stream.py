"""Streaming sinks in Spark: each micro-batch once, also when Spark runs it again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from scanner.sync import Client, connect
from tests.spark_source.frames import table_name
from tests.spark_source.key_values import changes, contents
from tests.support import broken_transactions
from tests.support.processes import weir
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

Start = Callable[..., StreamingQuery]


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> str:
    """A table of its own for each test, of two buckets."""
    name = table_name(request)
    create(client, name)
    return name


def create(client: Client, name: str) -> None:
    """The table of these tests."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    client.create_table(name, schema, primary_key=["k"], buckets=2)


@pytest.fixture
def start(spark: SparkSession, server: RunningServer, table: str, tmp_path: Path) -> Start:
    """Starts a query, always of the same checkpoint, from what is in the directory to the table."""

    def run(change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **options: str) -> StreamingQuery:
        (tmp_path / "rows").mkdir(exist_ok=True)
        rows = spark.readStream.schema("k BIGINT, v STRING, _change_type STRING").json(str(tmp_path / "rows"))
        writer = change(rows).writeStream.format("weir").options(endpoint=server.endpoint, table=table)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).options(**options)
        return writer.trigger(availableNow=True).start()

    return run


def arrive(directory: Path, name: str, *rows: tuple[int, str | None, str]) -> None:
    """Rows of key, value and kind of change, in a file that the stream finds."""
    (directory / "rows").mkdir(exist_ok=True)
    lines = [json.dumps({"k": k, "v": v, "_change_type": kind}) for k, v, kind in rows]
    (directory / "rows" / f"{name}.json").write_text("\n".join(lines))


def test_micro_batches(client: Client, table: str, tmp_path: Path, start: Start) -> None:
    """Inserts, updates and deletes arrive batch by batch, under the query's id and the batch's number."""
    arrive(tmp_path, "first", (1, "one", "insert"), (2, "two", "insert"))
    query = start()
    query.awaitTermination()
    assert contents(client.table(table)) == {1: "one", 2: "two"}
    arrive(
        tmp_path, "second", (1, None, "delete"), (2, "two", "update_preimage"), (2, "new", "update_postimage")
    )
    start().awaitTermination()
    assert contents(client.table(table)) == {2: "new"}
    (transaction,) = client.table(table).transactions()
    assert (transaction.name, transaction.decided_version) == (query.id, 1)
    assert transaction.stages == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_the_newest_commit_of_the_checkpoint_is_lost(
    client: Client, table: str, tmp_path: Path, start: Start, parts: int
) -> None:
    """Spark runs its last batch again, in other parts and with other rows, and the table does not change by it."""
    arrive(tmp_path, "first", (1, "one", "insert"), (2, "two", "insert"))
    start().awaitTermination()
    arrive(tmp_path, "second", (1, "new", "update_postimage"), (3, "three", "insert"))
    start().awaitTermination()
    before = changes(client, table)
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    arrive(tmp_path, "third", (4, "four", "insert"))
    start(
        lambda frame: frame.selectExpr("k", "concat(v, '!') AS v", "_change_type").repartition(parts)
    ).awaitTermination()
    # What changed between the runs shows in the new batch alone.
    assert contents(client.table(table)) == {1: "new", 2: "two", 3: "three", 4: "four!"}
    assert changes(client, table) == before + 1


def test_a_batch_that_fails(client: Client, table: str, tmp_path: Path, start: Start) -> None:
    """A batch whose task fails shows nothing; run again without the fault it is published."""
    arrive(tmp_path, "first", (1, "one", "insert"), (2, "two", "upsert"))
    with pytest.raises(StreamingQueryException, match="a change of kind 'upsert' is not known"):
        start().awaitTermination()
    assert contents(client.table(table)) == {}
    start(lambda frame: frame.selectExpr("k", "v", "'insert' AS _change_type")).awaitTermination()
    assert contents(client.table(table)) == {1: "one", 2: "two"}


def test_rows_that_the_server_lost(client: Client, table: str, tmp_path: Path, start: Start) -> None:
    """A batch whose tasks staged more than the server has shows nothing; run again it is published, once."""
    arrive(tmp_path, "first", *((key, "new", "insert") for key in range(20)))
    with pytest.MonkeyPatch.context() as patch:
        broken_transactions.stage_half(patch)
        with pytest.raises(StreamingQueryException, match="at least 20 rows and keys were staged"):
            start().awaitTermination()
    assert contents(client.table(table)) == {}
    start().awaitTermination()
    assert contents(client.table(table)) == dict.fromkeys(range(20), "new")
    assert changes(client, table) == 20


def test_a_table_that_was_created_anew(client: Client, table: str, tmp_path: Path, start: Start) -> None:
    """It lacks what the query has written before, so the query ends, unless it is told to go on; then it goes on."""
    arrive(tmp_path, "first", (1, "one", "insert"))
    start().awaitTermination()
    client.drop_table(table)
    create(client, table)
    arrive(tmp_path, "second", (2, "two", "insert"))
    with pytest.raises(
        StreamingQueryException, match=f"table {table} has no batch of this query, and this is batch 1"
    ):
        start().awaitTermination()
    assert contents(client.table(table)) == {}
    assert [each.stages for each in client.table(table).transactions()] == [0]
    start(failOnMissingBatches="false").awaitTermination()
    arrive(tmp_path, "third", (3, "three", "insert"))
    start().awaitTermination()
    assert contents(client.table(table)) == {2: "two", 3: "three"}


def test_a_table_that_was_restored(tmp_path: Path, start: Start, kept_port: int) -> None:
    """A query whose checkpoint is later than the backup ends; one with the checkpoint of that time misses nothing.

    The newest micro-batch before the backup has no rows.
    """
    data, backups, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    checkpoint, of_then = tmp_path / "checkpoint", tmp_path / "then"
    with running_server(data, port=kept_port) as server, connect(server.endpoint) as client:
        own = {"endpoint": server.endpoint, "table": "t"}
        create(client, "t")
        for name, rows in (("first", [(1, "one", "insert")]), ("none", [])):
            arrive(tmp_path, name, *rows)
            start(**own).awaitTermination()
        made = weir("backup", backups, "--data", data, "-e", server.endpoint, "--json")
        shutil.copytree(checkpoint, of_then)
        arrive(tmp_path, "second", (2, "two", "insert"))
        start(**own).awaitTermination()
    weir("restore", backups / json.loads(made.stdout)["backup_id"], restored)
    arrive(tmp_path, "third", (3, "three", "insert"))
    with running_server(restored, port=kept_port) as server, connect(server.endpoint) as client:
        with pytest.raises(
            StreamingQueryException, match="table t has batches up to 1 of this query, and this is batch 3"
        ):
            start(**own).awaitTermination()
        assert contents(client.table("t")) == {1: "one"}
        shutil.rmtree(checkpoint)
        of_then.rename(checkpoint)
        start(**own).awaitTermination()
        assert contents(client.table("t")) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize(
    ("options", "columns", "expected"),
    [
        ({"txnName": "a", "txnVersion": "1"}, "k, v", "option 'txnName' is one of df.write"),
        ({"mode": "push"}, "k, v", "option 'mode' is one of reading"),
        ({}, "v", "the DataFrame has no column 'k', which is part of the primary key"),
        ({}, "k, k AS v", "column 'v' is bigint, and the table's is string"),
    ],
    ids=["of_saves", "of_reads", "no_key", "type"],
)
def test_what_is_refused(
    client: Client,
    table: str,
    tmp_path: Path,
    start: Start,
    options: dict[str, str],
    columns: str,
    expected: str,
) -> None:
    """What cannot be written ends the query in one line, and nothing is written."""
    arrive(tmp_path, "first", (1, "one", "insert"))
    with pytest.raises(StreamingQueryException, match=expected):
        start(lambda frame: frame.selectExpr(*columns.split(", ")), **options).awaitTermination()
    assert contents(client.table(table)) == {}


def test_complete_mode(
    spark: SparkSession, server: RunningServer, client: Client, table: str, tmp_path: Path
) -> None:
    """In output mode complete each micro-batch is all that the table has."""
    for batch, keys in enumerate([(1, 1, 2), (2, 3)]):
        arrive(tmp_path, str(batch), *((key, None, "insert") for key in keys))
        rows = spark.readStream.schema("k BIGINT").json(str(tmp_path / "rows"))
        counted = (
            rows.groupBy("k").count().selectExpr("k", "CAST(count AS STRING) AS v").where("v > 1 OR k < 3")
        )
        writer = counted.writeStream.format("weir").outputMode("complete").trigger(availableNow=True)
        writer = writer.options(endpoint=server.endpoint, table=table)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        assert contents(client.table(table)) == [{1: "2", 2: "1"}, {1: "2", 2: "2"}][batch]
