"""The writers without Spark: what tasks and commits do with a real server."""

import dataclasses
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

import scanner.sync
from scanner import (
    KeyInvalid,
    PartsConflict,
    SchemaMismatch,
    ServerUnavailable,
    StageNotFound,
    TableNotFound,
    VersionSuperseded,
)
from scanner.sync import Client
from spark_source import (
    SourceDataError,
    SourceMissingBatchesError,
    SourceUnsupportedError,
    WeirDataSource,
)
from spark_source.writing.tasks import StagedPart, Transaction
from spark_source.writing.writer import SaveWriter, StreamWriter
from tests.spark_source.frames import table_name
from tests.spark_source.key_values import changes, contents
from tests.spark_source.writing.tasks import run_task
from tests.support.server import RunningServer

pytestmark = [pytest.mark.rocks, pytest.mark.socket]

SCHEMA = types.StructType(
    [types.StructField("k", types.LongType()), types.StructField("v", types.StringType())]
)
CHANGES = types.StructType([*SCHEMA.fields, types.StructField("_change_type", types.StringType())])
QUERY = "0c9ae8f4-6e2c-4a3c-9f0e-1a2b3c4d5e6f"

Task = Callable[..., StagedPart]


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> str:
    """A table of its own for each test, of two buckets and one row."""
    name = table_name(request)
    create(client, name)
    return name


def create(client: Client, name: str) -> None:
    """The table of these tests."""
    rows = pa.table({"k": pa.array([0], pa.int64()), "v": ["old"]})
    client.create_table(name, rows.schema, primary_key=["k"], buckets=2).write(rows)


def open_source(server: RunningServer, table: str, **options: str) -> WeirDataSource:
    """The source of a write, as Spark makes it."""
    return WeirDataSource({"endpoint": server.endpoint, "table": table} | options)


@pytest.fixture
def save(server: RunningServer, table: str) -> SaveWriter:
    """The writer of a save to the table."""
    return open_source(server, table).writer(SCHEMA, False)


@pytest.fixture
def stream(server: RunningServer, table: str) -> StreamWriter:
    """The writer of a micro-batch to the table."""
    return open_source(server, table).streamWriter(SCHEMA, False)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Runs a task of a writer on one batch of keys and values."""

    def run(
        writer: SaveWriter | StreamWriter, part: int, rows: dict[object, object], **of: object
    ) -> StagedPart:
        return run_task(monkeypatch, writer, part, [batch(rows)] if rows else [], **of)  # type: ignore[arg-type]

    return run


def batch(rows: dict[object, object]) -> pa.RecordBatch:
    """Keys and values as Spark hands them to a task."""
    return pa.record_batch(
        {"k": pa.array(rows.keys(), pa.int64()), "v": pa.array(rows.values(), pa.string())}
    )


def test_a_server_that_is_away_while_a_write_is_planned(
    server: RunningServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch waits for it, since its query may have run for long; a save says so at once."""
    monkeypatch.setattr(random, "uniform", lambda least, most: 0.0)
    connect, left = scanner.sync.connect, [2]

    def refuse(endpoint: str, **options: Any) -> Client:
        if left[0]:
            left[0] -= 1
            raise ServerUnavailable("nobody answers")
        return connect(endpoint, **options)

    monkeypatch.setattr(scanner.sync, "connect", refuse)
    assert isinstance(open_source(server, table).streamWriter(SCHEMA, False), StreamWriter)
    assert left == [0]
    left[0] = 2
    with pytest.raises(ServerUnavailable, match="nobody answers"):
        open_source(server, table).writer(SCHEMA, False)
    assert left == [1]


def stages(client: Client, table: str) -> int:
    """How many stages the server keeps for the table."""
    return sum(each.stages for each in client.table(table).transactions())


def test_a_save(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """What tasks stage is seen by nobody; the commit shows all of it, each row once."""
    messages = [task(save, 0, {0: "new", 1: "one"}), task(save, 1, {2: "two"}), task(save, 2, {})]
    assert contents(client.table(table)) == {0: "old"}
    save.commit(messages)
    assert contents(client.table(table)) == {0: "new", 1: "one", 2: "two"}
    assert changes(client, table) == 1 + 2 + 1 + 1
    assert stages(client, table) == 0


def test_a_column_that_is_added_meanwhile(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """A save that was planned before goes on: the column is null in its rows, as any that it lacks."""
    messages = [task(save, 0, {1: "one"})]
    client.table(table).add_column(pa.field("added", pa.int32()))
    messages.append(task(save, 1, {2: "two"}))
    save.commit(messages)
    assert contents(client.table(table)) == {0: "old", 1: "one", 2: "two"}
    assert client.table(table).new_scan().to_arrow()["added"].null_count == 3


def test_a_task_that_runs_twice(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """Of several runs of a task the one counts whose message Spark commits, also if others stage after it."""
    task(save, 0, {1: "killed", 7: "killed"})
    chosen = task(save, 0, {1: "chosen"})
    task(save, 0, {1: "too late", 8: "too late"})
    save.commit([chosen])
    assert contents(client.table(table)) == {0: "old", 1: "chosen"}
    assert stages(client, table) == 0


def test_a_commit_whose_answer_was_lost(
    client: Client, table: str, save: SaveWriter, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Committing again changes nothing, and is no warning: the rows are those of this run."""
    messages = [task(save, 0, {1: "one"})]
    save.commit(messages)
    before = changes(client, table)
    with caplog.at_level(logging.WARNING, "weir.spark"):
        save.commit(messages)
    assert changes(client, table) == before
    assert not caplog.records


def test_a_version_that_is_saved_again(
    server: RunningServer, client: Client, table: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that is run again under its name and version adds nothing, and the log says so; the next version does."""

    def save_version(version: int, rows: dict[object, object]) -> None:
        options = {"txnName": "nightly", "txnVersion": str(version)}
        writer = open_source(server, table, **options).writer(SCHEMA, False)
        writer.commit([task(writer, part, {key: value}) for part, (key, value) in enumerate(rows.items())])

    save_version(1, {1: "first", 2: "first"})
    with caplog.at_level(logging.WARNING, "weir.spark"):
        save_version(1, {3: "again", 1: "again", 4: "again"})
    assert "version 1 of transaction nightly" in caplog.text
    assert "was published before: the 3 rows of this run were not added" in caplog.text
    assert contents(client.table(table)) == {0: "old", 1: "first", 2: "first"}
    save_version(5, {1: "fifth"})
    assert contents(client.table(table)) == {0: "old", 1: "fifth", 2: "first"}
    with pytest.raises(VersionSuperseded):
        save_version(4, {1: "fourth"})
    assert stages(client, table) == 0


def test_an_abort(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """An abort frees what was staged; nothing of it can be published any more."""
    message = task(save, 0, {1: "one"})
    assert stages(client, table) == 1
    save.abort([message, None])
    assert stages(client, table) == 0
    with pytest.raises(StageNotFound):
        save.commit([message])
    assert contents(client.table(table)) == {0: "old"}


def test_an_abort_behind_the_decision(
    client: Client, table: str, save: SaveWriter, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark aborts a write whose commit failed; if that was decided, its rows stay, and the log says so."""
    message = task(save, 0, {1: "one"})
    save.commit([message])
    with caplog.at_level(logging.WARNING, "weir.spark"):
        save.abort([message])
    assert "what was published under it stays, of this run or an earlier one" in caplog.text
    assert contents(client.table(table)) == {0: "old", 1: "one"}


def test_an_abort_of_a_version_that_is_superseded(
    server: RunningServer, client: Client, table: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is left, since the later version was decided: no warning says that something is."""
    older, later = (
        open_source(server, table, txnName="nightly", txnVersion=version).writer(SCHEMA, False)
        for version in ("4", "5")
    )
    message = task(older, 0, {1: "fourth"})
    later.commit([task(later, 0, {1: "fifth"})])
    assert stages(client, table) == 0
    with caplog.at_level(logging.WARNING, "weir.spark"):
        older.abort([message])
    assert not caplog.records


def test_an_abort_that_fails(
    client: Client, table: str, save: SaveWriter, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """An abort that cannot be is a warning, and does not hide why the write failed."""
    message = task(save, 0, {1: "one"})
    client.drop_table(table)
    with caplog.at_level(logging.WARNING, "weir.spark"):
        save.abort([message])
    assert "what a failed write staged stays until its time is over" in caplog.text


def test_an_empty_save(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """A save without rows, and one without tasks, changes nothing and leaves no trace."""
    save.commit([task(save, 0, {}), task(save, 1, {})])
    save.commit([])
    assert client.table(table).transactions() == []
    assert contents(client.table(table)) == {0: "old"}


def test_two_tasks_with_one_key(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """A key of two tasks is refused by name, because nobody can say which is the later; nothing is written."""
    messages = [task(save, 0, {1: "one"}), task(save, 1, {1: "other"})]
    with pytest.raises(PartsConflict, match="1"):
        save.commit(messages)
    assert contents(client.table(table)) == {0: "old"}


@pytest.mark.parametrize(
    ("schema", "column", "values", "error"),
    [
        (types.LongType(), "k", pa.array([1, None], pa.int64()), KeyInvalid),
        (types.StringType(), "n", pa.array(["x", None], pa.string()), SchemaMismatch),
    ],
)
def test_a_null_where_none_may_be(
    server: RunningServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    schema: types.DataType,
    column: str,
    values: pa.Array,
    error: type[Exception],
) -> None:
    """A null in a key, or in a column that is not nullable, fails its task, and nothing of it is staged."""
    columns = {"k": pa.array([1, 2], pa.int64()), "n": pa.array(["x", "y"])} | {column: values}
    stored = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.string(), nullable=False)])
    name = f"nulls_{column}"
    client.create_table(name, stored, primary_key=["k"], buckets=1)
    given = types.StructType(
        [types.StructField("k", types.LongType()), types.StructField("n", types.StringType())]
    )
    writer = open_source(server, name).writer(given, False)
    with pytest.raises(error, match=f"'{column}'"):
        run_task(monkeypatch, writer, 0, [pa.record_batch(columns)])
    assert stages(client, name) == 0


def test_changes_of_a_table(
    server: RunningServer, client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of change kinds are applied as such, in their order, over batches that are staged one by one."""
    writer = open_source(server, table, batchBytes="1").writer(CHANGES, False)
    rows = [
        (1, "a", "insert"),
        (0, None, "delete"),
        (1, "a", "update_preimage"),
        (1, "b", "update_postimage"),
        (2, "x", "insert"),
        (2, "x", "delete"),
        (3, "y", "insert"),
        (0, "again", "insert"),
    ]
    batches = [
        pa.record_batch(dict(zip(CHANGES.names, ([value] for value in row), strict=True))) for row in rows
    ]
    writer.commit([run_task(monkeypatch, writer, 0, batches)])
    assert contents(client.table(table)) == {0: "again", 1: "b", 3: "y"}


@pytest.mark.parametrize("of_log", [True, False])
def test_updates_out_of_a_condition(
    server: RunningServer, client: Client, table: str, monkeypatch: pytest.MonkeyPatch, *, of_log: bool
) -> None:
    """A row before an update without the one after it, as a read with a condition gives it, deletes its key.

    Of other sources it is passed over: there it may come behind the one after it.
    """
    client.table(table).write(pa.table({"k": [1], "v": ["one"]}))
    offset = types.StructField("_log_offset", types.LongType())
    schema = types.StructType([*CHANGES.fields, offset]) if of_log else CHANGES
    writer = open_source(server, table).writer(schema, False)
    left = {"k": [1], "v": ["one"], "_change_type": ["update_preimage"], "_log_offset": [5]}
    batch = pa.record_batch({name: left[name] for name in schema.names})
    writer.commit([run_task(monkeypatch, writer, 0, [batch])])
    assert contents(client.table(table)) == {0: "old"} | ({} if of_log else {1: "one"})
    assert stages(client, table) == 0


def test_a_kind_of_change_that_is_not_known(
    server: RunningServer, client: Client, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails the task, and its batches before are not staged either."""
    writer = open_source(server, table, batchBytes="1").writer(CHANGES, False)
    batches = [
        pa.record_batch({"k": [1], "v": ["one"], "_change_type": [kind]}) for kind in ("insert", "upsert")
    ]
    with pytest.raises(SourceDataError, match="a change of kind 'upsert' is not known"):
        run_task(monkeypatch, writer, 0, batches)
    assert stages(client, table) == 0


def test_a_task_that_fails_half_way(
    client: Client, table: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task staged before Spark failed it is not there."""
    writer = open_source(server, table, batchBytes="1").writer(SCHEMA, False)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch({1: "one"})
        yield batch({2: "two"})
        raise OSError("the executor lost its disk")

    with pytest.raises(OSError, match="lost its disk"):
        run_task(monkeypatch, writer, 0, batches())
    assert stages(client, table) == 0


def test_a_table_that_was_created_anew(client: Client, table: str, save: SaveWriter, task: Task) -> None:
    """Neither a task nor the commit takes another table of the same name for the one that was planned with."""
    message = task(save, 0, {1: "one"})
    client.drop_table(table)
    create(client, table)
    for act in (lambda: task(save, 1, {2: "two"}), lambda: save.commit([message])):
        with pytest.raises(TableNotFound, match="was dropped and created anew since Spark planned the write"):
            act()
    assert contents(client.table(table)) == {0: "old"}


def test_overwriting(server: RunningServer, client: Client, table: str, task: Task) -> None:
    """The rows of an overwriting save are all that the table has, also if there are none, and published once."""
    for rows in ({1: "one", 2: "two"}, {2: "two", 3: "three"}, {}):
        writer = open_source(server, table).writer(SCHEMA, True)
        messages = [task(writer, part, {key: rows[key]}) for part, key in enumerate(rows)]
        writer.commit(messages)
        before = changes(client, table)
        writer.commit(messages)
        assert contents(client.table(table)) == rows
        assert changes(client, table) == before


def commit_batch(
    stream: StreamWriter, task: Task, number: int, parts: Sequence[dict[object, object]], query: str = QUERY
) -> None:
    """Run and commit a micro-batch with these rows of its tasks."""
    messages = [task(stream, part, rows, query=query, batch=number) for part, rows in enumerate(parts)]
    stream.commit(messages, number)


def test_micro_batches(client: Client, table: str, stream: StreamWriter, task: Task) -> None:
    """Micro-batches of a query are transactions of its id, each published once; an empty one is one, too."""
    batches: list[list[dict[object, object]]] = [[{1: "one"}, {2: "two"}], [{}], [{1: "three"}], []]
    for number, parts in enumerate(batches):
        commit_batch(stream, task, number, parts)
    assert contents(client.table(table)) == {0: "old", 1: "three", 2: "two"}
    (transaction,) = client.table(table).transactions()
    assert (transaction.name, transaction.decided_version) == (QUERY, 2)


def test_an_empty_version_that_is_saved_again_as_another(
    server: RunningServer, client: Client, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An overwrite that does not happen, because its version was an append, is told, also where neither has rows."""
    for overwrite in (False, True):
        assert not caplog.records
        with caplog.at_level(logging.WARNING, "weir.spark"):
            source = open_source(server, table, txnName="nightly", txnVersion="1")
            source.writer(SCHEMA, overwrite).commit([])
    assert "was published before: the 0 rows of this run were not added, and replaced none" in caplog.text
    assert contents(client.table(table)) == {0: "old"}


@pytest.mark.parametrize("kind", ["save", "stream"])
def test_a_task_that_staged_more_than_is_there(
    request: pytest.FixtureRequest, client: Client, table: str, task: Task, kind: str
) -> None:
    """The commit asks for the rows that each task tells of; with fewer nothing is published."""
    writer: SaveWriter | StreamWriter = request.getfixturevalue(kind)
    of = {} if kind == "save" else {"query": QUERY, "batch": 0}
    first, second, empty = (
        task(writer, part, rows, **of) for part, rows in enumerate(({1: "one"}, {2: "two"}, {}))
    )

    def commit(messages: Sequence[StagedPart]) -> None:
        if isinstance(writer, SaveWriter):
            writer.commit(messages)
        else:
            writer.commit(messages, 0)

    lost = dataclasses.replace(second, rows=2)
    with pytest.raises(
        StageNotFound, match=r"part 1, .* at least 2 rows and keys were staged, and 1 are there"
    ):
        commit([first, lost, empty])
    assert contents(client.table(table)) == {0: "old"}
    for again in (second, lost):  # The second time it is decided.
        commit([first, again, empty])
        assert contents(client.table(table)) == {0: "old", 1: "one", 2: "two"}


def test_a_micro_batch_that_is_replayed(
    client: Client, table: str, stream: StreamWriter, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that was published is not published again, whatever parts and rows its replay has."""
    commit_batch(stream, task, 0, [{1: "one"}, {2: "two"}])
    before = changes(client, table)
    with caplog.at_level(logging.WARNING, "weir.spark"):
        commit_batch(stream, task, 0, [{2: "two"}, {}, {1: "one", 3: "other"}])
    assert "was published before" in caplog.text
    assert changes(client, table) == before
    commit_batch(stream, task, 1, [{3: "three"}])
    assert contents(client.table(table)) == {0: "old", 1: "one", 2: "two", 3: "three"}


def test_a_checkpoint_that_is_older_than_its_table(
    client: Client, table: str, stream: StreamWriter, task: Task
) -> None:
    """A batch behind which there are others is refused in words of checkpoints, staged or published."""
    late = task(stream, 0, {9: "late"}, query=QUERY, batch=0)
    for number in range(2):
        commit_batch(stream, task, number, [{1: f"batch {number}"}])
    with pytest.raises(VersionSuperseded, match=r"version 1 is decided; .* Begin anew with a new checkpoint"):
        task(stream, 0, {9: "old"}, query=QUERY, batch=0)
    with pytest.raises(VersionSuperseded, match="The checkpoint is older than what its query has written"):
        stream.commit([late], 0)
    assert contents(client.table(table)) == {0: "old", 1: "batch 1"}


def test_a_query_that_was_killed(client: Client, table: str, stream: StreamWriter, task: Task) -> None:
    """What the tasks of a killed query staged is not mixed with what the same tasks stage after its restart."""
    for part in range(3):
        task(stream, part, {10 + part: "killed"}, query=QUERY, batch=0)
    commit_batch(stream, task, 0, [{1: "one"}, {2: "two"}])
    assert contents(client.table(table)) == {0: "old", 1: "one", 2: "two"}
    assert stages(client, table) == 0


def test_an_abort_of_a_micro_batch(client: Client, table: str, stream: StreamWriter, task: Task) -> None:
    """The stages of a failed batch are freed, if a task came far enough to tell its query; other batches stay."""
    other = task(stream, 0, {5: "five"}, query="other", batch=0)
    message = task(stream, 0, {1: "one"}, query=QUERY, batch=0)
    stream.abort([None], 0)
    assert stages(client, table) == 2
    stream.abort([None, message], 0)
    assert stages(client, table) == 1
    stream.commit([other], 0)
    assert contents(client.table(table)) == {0: "old", 5: "five"}


def test_a_commit_of_another_batch(client: Client, table: str, stream: StreamWriter, task: Task) -> None:
    """If what Spark commits is not what its tasks were told, nothing is published."""
    message = task(stream, 0, {1: "one"}, query=QUERY, batch=3)
    with pytest.raises(SourceUnsupportedError, match="commits batch 4, and its tasks were told 3"):
        stream.commit([message], 4)
    other = task(stream, 1, {2: "two"}, query="other", batch=3)
    with pytest.raises(SourceUnsupportedError, match="nothing was published"):
        stream.commit([message, other], 3)
    assert contents(client.table(table)) == {0: "old"}


def test_a_task_that_is_not_told_its_batch(stream: StreamWriter, task: Task) -> None:
    """A task that does not know its transaction stages nothing, and says what to do."""
    for told in ({}, {"query": QUERY}, {"batch": 1}):
        with pytest.raises(SourceUnsupportedError, match=r"write with df\.write in foreachBatch"):
            task(stream, 0, {1: "one"}, **told)


def test_saves_have_transactions_of_their_own(server: RunningServer, table: str) -> None:
    """Two saves without a name never take each other for a replay."""
    writers = [open_source(server, table).writer(SCHEMA, False) for _ in range(2)]
    names = {writer._transaction.name for writer in writers}
    assert len(names) == 2
    named = open_source(server, table, txnName="a", txnVersion="7").writer(SCHEMA, False)
    assert named._transaction == Transaction("a", 7)


def test_batches_that_are_missing(
    server: RunningServer, client: Client, table: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch behind a gap is refused, or is told of where the user goes on; the one behind it follows it."""
    stream = open_source(server, table).streamWriter(SCHEMA, False)
    commit_batch(stream, task, 0, [{1: "one"}])
    for number in (3, 2):
        with pytest.raises(SourceMissingBatchesError) as refused:
            commit_batch(stream, task, number, [{2: "two"}])
        assert str(refused.value).startswith(
            f"table {table} has batches up to 0 of this query, and this is batch {number}. Perhaps"
        )
    with pytest.raises(SourceMissingBatchesError, match="has no batch of this query, and this is batch 3"):
        commit_batch(stream, task, 3, [{2: "two"}], query="moved")
    assert contents(client.table(table)) == {0: "old", 1: "one"}
    lenient = open_source(server, table, failOnMissingBatches="false").streamWriter(SCHEMA, False)
    with caplog.at_level(logging.WARNING, "weir.spark"):
        commit_batch(lenient, task, 3, [{3: "three"}])
    assert "has batches up to 0 of this query, and this is batch 3; it is written without" in caplog.text
    commit_batch(stream, task, 4, [{4: "four"}])
    assert contents(client.table(table)) == {0: "old", 1: "one", 3: "three", 4: "four"}


def test_a_batch_of_a_query_that_may_be_forgotten(
    server: RunningServer, client: Client, table: str, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """It is written, and a warning says that nobody can tell what comes before it."""
    stream = open_source(server, table).streamWriter(SCHEMA, False)
    with caplog.at_level(
        logging.WARNING, "weir.spark"
    ):  # The server forgets names of this kind all the time.
        commit_batch(stream, task, 7, [{7: "seven"}], query="once:other")
    assert "version 7 of transaction once:other" in caplog.text
    assert "is the first one that the table knows of" in caplog.text
    assert contents(client.table(table)) == {0: "old", 7: "seven"}


def test_a_batch_that_overwrites_needs_none_before_it(
    server: RunningServer, client: Client, table: str, task: Task
) -> None:
    """In output mode complete it is all that the table has."""
    stream = open_source(server, table).streamWriter(SCHEMA, True)
    commit_batch(stream, task, 5, [{5: "five"}])
    commit_batch(stream, task, 8, [{8: "eight"}])
    assert contents(client.table(table)) == {8: "eight"}
