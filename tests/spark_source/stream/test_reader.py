"""The stream reader without Spark: planned and read as Spark does it, pickled on the way, from a real server."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio.testing
from pyspark.sql.streaming.datasource import ReadAllAvailable

import scanner.sync
from scanner.client import table as trio_table
from scanner.client.leases import Leases
from scanner.errors import ServerUnavailable, SnapshotLost, TableNotFound
from scanner.sync import connect
from spark_source import SourceError, SourceOptionError, WeirDataSource
from spark_source.connection import AWAY
from spark_source.errors import SourceDataLossError
from spark_source.stream import tasks
from spark_source.stream.changes import ChangesReader
from spark_source.stream.reader import ChangeStreamReader
from tests.spark_source.frames import table_name
from tests.spark_source.key_values import contents, folded, kv_rows
from tests.support.pickling import sent_to_worker
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from scanner import ScannerError
    from scanner.sync import Client, Table

pytestmark = [pytest.mark.rocks, pytest.mark.socket]

BUCKETS = 2
Offset = dict[str, Any]


class Stream:
    """A query as Spark runs it: offsets through JSON, tasks through pickles, a planner that can be started anew.

    Args:
        server: To read from.
        table: Name of the table.
        options: Of the read, beside ``readChanges``.
    """

    def __init__(self, server: RunningServer, table: str, **options: str) -> None:
        self._options = {"endpoint": server.endpoint, "table": table, "readChanges": "true"} | options
        self.offsets: list[Offset] = []
        self.start()

    def start(self, **changed: str) -> None:
        """Begin a planner process; of a query whose options have changed, from now on."""
        self._options |= changed
        source = sent_to_worker(WeirDataSource(dict(self._options)))
        reader = source.streamReader(source.schema())
        assert isinstance(reader, ChangeStreamReader)
        self.reader = reader

    def stop(self) -> None:
        """End it."""
        self.reader.stop()

    def first(self) -> Offset:
        """The initial offset."""
        return _through_json(self.reader.initialOffset())

    def next(self) -> list[dict[str, Any]] | None:
        """The rows of the next micro-batch; None: there is none."""
        start = self.offsets[-1] if self.offsets else self.first()
        end = _through_json(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(start):
            return None
        self.offsets.append(end)
        return self.read(start, end)

    def read(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """The rows of a micro-batch."""
        worker = sent_to_worker(self.reader)
        partitions = sent_to_worker(self.reader.partitions(start, end))
        return [row for part in partitions for batch in worker.read(part) for row in batch.to_pylist()]

    def rest(self) -> list[list[dict[str, Any]]]:
        """All micro-batches until there is none."""
        batches = []
        while (rows := self.next()) is not None:
            batches.append(rows)
        return batches


def _through_json(offset: Offset) -> Offset:
    read: Offset = json.loads(json.dumps(offset))
    return read


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> Table:
    """A table of its own for each test, empty."""
    name = table_name(request)
    return client.create_table(name, kv_rows(0, 0).schema, primary_key=["k"], buckets=BUCKETS)


@pytest.fixture
def streams(server: RunningServer, table: Table) -> Iterator[list[Stream]]:
    """Streams to be stopped at the end."""
    opened: list[Stream] = []
    yield opened
    for each in opened:
        each.stop()


@pytest.mark.parametrize("error", AWAY)
def test_the_server_goes_away_while_a_micro_batch_is_planned(
    server: RunningServer,
    table: Table,
    streams: list[Stream],
    monkeypatch: pytest.MonkeyPatch,
    error: type[ScannerError],
) -> None:
    """Each question is asked once more; no row is missing, and none is there twice."""
    failed: list[str] = []

    def fail_once(patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        call = getattr(kind, name)

        async def failing(*args: Any, **options: Any) -> object:
            if name not in failed:
                failed.append(name)
                raise error("going down")
            return await call(*args, **options)

        patch.setattr(kind, name, failing)

    table.write(kv_rows(0, 50))
    streams.append(stream := Stream(server, table.name, startingOffsets="earliest"))
    batches = []
    for value in ("b", "c"):
        with monkeypatch.context() as patch:
            fail_once(patch, trio_table.Table, "measure_log")
            fail_once(patch, Leases, "acquire")
            batches.append(stream.next() or [])
        assert failed == ["measure_log", "acquire"]
        failed.clear()
        table.write(kv_rows(0, 50, value))
    batches += stream.rest()
    places = [
        (row["k"] % BUCKETS, row["_log_offset"], row["_change_type"]) for each in batches for row in each
    ]
    assert len(set(places)) == len(places)
    assert folded(itertools.chain(*batches)) == contents(table)


def test_a_micro_batch_waits_for_the_server_behind_a_proxy(
    server: RunningServer, table: Table, streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answers in its place, at once, does not use the second question up."""
    monkeypatch.setattr(random, "uniform", lambda least, most: 0.0)
    away = iter(range(4))

    def unless_away(kind: type, name: str) -> None:
        call = getattr(kind, name)

        def answer(*args: Any, **options: Any) -> object:
            if next(away, None) is not None:
                raise ServerUnavailable("answered by a proxy")
            return call(*args, **options)

        monkeypatch.setattr(kind, name, answer)

    table.write(kv_rows(0, 50))
    streams.append(stream := Stream(server, table.name, startingOffsets="earliest"))
    assert folded(stream.next() or []) == contents(table)
    table.write(kv_rows(0, 50, "b"))
    unless_away(trio_table.Table, "measure_log")
    unless_away(scanner.sync.Client, "table")
    changes = stream.next() or []
    assert len(changes) == 100
    assert next(away, None) is None


def test_a_table_and_then_its_changes(server: RunningServer, table: Table, streams: list[Stream]) -> None:
    """`full`: the rows as inserts of no offset, then inserts, updates and deletes; folded they are the table."""
    table.write(kv_rows(0, 100))
    streams.append(stream := Stream(server, table.name))
    first = stream.next()
    assert first is not None
    assert {row["_change_type"] for row in first} == {"insert"}
    assert {(row["_log_offset"], row["_commit_timestamp"]) for row in first} == {(None, None)}
    assert stream.next() is None
    table.write(kv_rows(50, 150, "b"))
    table.delete([(number,) for number in range(10)])
    changes = stream.rest()
    kinds = [row["_change_type"] for batch in changes for row in batch]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "insert": 50,
        "update_preimage": 50,
        "update_postimage": 50,
        "delete": 10,
    }
    assert folded(itertools.chain(first, *changes)) == contents(table)
    assert all(row["_commit_timestamp"] is not None for batch in changes for row in batch)


@pytest.mark.parametrize(("starting", "expected"), [("earliest", 200), ("latest", 100)])
def test_where_a_stream_begins(
    server: RunningServer, table: Table, streams: list[Stream], starting: str, expected: int
) -> None:
    """At the oldest change or behind the newest; where, is in the first micro-batch's end, also if it is empty."""
    table.write(kv_rows(0, 100))
    streams.append(stream := Stream(server, table.name, startingOffsets=starting))
    before = stream.next()
    assert before is not None
    table.write(kv_rows(100, 200))
    stream.stop()
    stream.start()
    rows = before + [row for batch in stream.rest() for row in batch]
    assert len(rows) == expected


def test_the_first_micro_batch_is_the_same_again(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """Spark asks for the initial offset again when it repeats the first one: its end says where that began."""
    table.write(kv_rows(0, 100))
    for starting in ("full", "earliest", "latest"):
        streams.append(stream := Stream(server, table.name, startingOffsets=starting))
        rows = stream.next()
        table.write(kv_rows(0, 100, starting))
        stream.stop()
        stream.start()
        assert stream.read(stream.first(), stream.offsets[0]) == rows


def test_what_began_at_a_time_is_the_same_again(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """When retention has taken all that was before: the lease keeps the rest. A time before that is refused."""
    table.write(kv_rows(0, 100))
    middle = {each.bucket: each.end_offset for each in table.offsets()}
    table.write(kv_rows(0, 100, "b"))
    log = table.new_scan().with_source("log").stop_at("end")
    early = min(log.to_arrow()["_commit_timestamp"].to_pylist()).isoformat()
    # Both buckets' later commits are at or behind it, their earlier ones before.
    time = min(log.start_at(middle).to_arrow()["_commit_timestamp"].to_pylist()).isoformat()
    streams.append(stream := Stream(server, table.name, startingTimestamp=time))
    rows = stream.next()
    assert len(rows or []) == 200
    options = {"endpoint": server.endpoint, "table": table.name, "readChanges": "true"}
    source = WeirDataSource(options | {"startingTimestamp": time})
    reader, again = (sent_to_worker(source).reader(source.schema()) for _ in range(2))
    assert isinstance(reader, ChangesReader)
    partitions = reader.partitions()
    _cut(server, table, {each.bucket: each.end_offset for each in table.offsets()})
    assert {each.bucket: each.start_offset for each in table.offsets()} == middle
    stream.stop()
    stream.start()
    assert stream.read(stream.first(), stream.offsets[0]) == rows
    assert again.partitions() == partitions
    streams.append(late := Stream(server, table.name, startingTimestamp=time))
    assert late.next() == rows
    streams.append(earlier := Stream(server, table.name, startingTimestamp=early))
    with pytest.raises(SourceDataLossError, match=f"the changes since {early[:10]}"):
        earlier.next()


def test_a_micro_batch_is_the_same_again(server: RunningServer, table: Table, streams: list[Stream]) -> None:
    """After a restart and more commits, with the same start and end: the same rows."""
    streams.append(stream := Stream(server, table.name, maxRowsPerTrigger="30"))
    stream.next()
    for number in range(10):
        table.write(kv_rows(number, number + 10, f"{number}"))
    batches = stream.rest()
    assert len(batches) > 2
    stream.stop()
    stream.start()
    for (start, end), rows in zip(
        zip(stream.offsets, stream.offsets[1:], strict=False), batches, strict=True
    ):
        assert stream.read(start, end) == rows


def test_limits_are_reached_and_passed_by_less_than_a_commit(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """Each micro-batch but the last has at least the limit, less than a commit more, and commits are whole."""
    for number in range(30):
        table.write(kv_rows(number * 10, number * 10 + 10))
    streams.append(stream := Stream(server, table.name, startingOffsets="earliest", maxRowsPerTrigger="25"))
    batches = stream.rest()
    assert all(25 <= len(rows) < 25 + 10 for rows in batches[:-1])
    assert sum(map(len, batches)) == 300
    commits = [{(row["_commit_timestamp"], row["k"] % BUCKETS) for row in rows} for rows in batches]
    times = [{row["_commit_timestamp"] for row in rows} for rows in batches]
    assert commits
    assert len(set().union(*times)) >= 30
    by_bytes = Stream(server, table.name, startingOffsets="earliest", maxBytesPerTrigger="1")
    streams.append(by_bytes)
    assert len(by_bytes.rest()) >= 30


def test_a_busy_bucket_leaves_the_others_their_share(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """What is little is read at once beside what is much."""
    bucket_of = {key: bucket for bucket in range(BUCKETS) for key in _written_to(table, bucket)}
    busy = [key for key, bucket in bucket_of.items() if bucket == 0]
    quiet = [key for key, bucket in bucket_of.items() if bucket == 1]
    streams.append(stream := Stream(server, table.name, startingOffsets="latest", maxRowsPerTrigger="22"))
    stream.next()
    for number in range(20):
        table.write(_of_keys(busy[:10], f"{number}"))
    table.write(_of_keys(quiet[:3], "late"))
    batch = stream.next()
    assert batch is not None
    assert {row["k"] for row in batch if row["v"] == "late"} == set(quiet[:3])


def _written_to(table: Table, bucket: int) -> list[int]:
    table.write(kv_rows(0, 100))
    rows = table.new_scan().bucket(bucket).to_arrow()
    return sorted(rows.column("k").to_pylist())


def _of_keys(keys: list[int], value: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.string())})


def test_available_now_ends_where_the_log_ended(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """What is committed after the start is not read, in as many micro-batches as the limits make; nor is it lost."""
    for starting, expected in (("full", 100), ("earliest", 100), ("latest", 0)):
        name = f"{table.name}_{starting}"
        with_rows = _created(client, name)
        with_rows.write(kv_rows(0, 100))
        streams.append(stream := Stream(server, name, startingOffsets=starting, maxRowsPerTrigger="10"))
        stream.reader.prepareForTriggerAvailableNow()
        with_rows.write(kv_rows(100, 150))
        assert sum(map(len, stream.rest())) == expected
        stream.stop()
        stream.start()
        stream.reader.prepareForTriggerAvailableNow()
        assert sum(map(len, stream.rest())) == (50 if starting != "latest" else 0)


def _created(client: Client, name: str) -> Table:
    return client.create_table(name, kv_rows(0, 0).schema, primary_key=["k"], buckets=BUCKETS)


def test_everything_at_once_if_spark_says_so(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """`ReadAllAvailable` counts more than the options."""
    for number in range(5):
        table.write(kv_rows(number * 10, number * 10 + 10))
    streams.append(stream := Stream(server, table.name, startingOffsets="earliest", maxRowsPerTrigger="1"))
    end = stream.reader.latestOffset(stream.first(), ReadAllAvailable())
    assert len(stream.read(stream.first(), end)) == 50
    assert stream.reader.reportLatestOffset() is not None


def test_a_micro_batch_waits_for_enough(server: RunningServer, table: Table, streams: list[Stream]) -> None:
    """The first does not; a later one waits for the minimum of changes."""
    table.write(kv_rows(0, 10))
    streams.append(
        stream := Stream(
            server, table.name, startingOffsets="earliest", minRowsPerTrigger="20", maxTriggerDelay="24h"
        )
    )
    assert len(stream.next() or []) == 10
    table.write(kv_rows(10, 20))
    assert stream.next() is None
    table.write(kv_rows(20, 30))
    assert len(stream.next() or []) == 20


def test_the_first_micro_batch_is_planned_again(
    server: RunningServer,
    client: Client,
    table: Table,
    streams: list[Stream],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the server goes away amid it: it does not wait, since an end that is the start would be none; one lease."""
    measure = trio_table.Table.measure_log
    failed: list[object] = []

    async def fail_once(
        self: trio_table.Table, *args: Any, rows_max: int | None = None, **options: Any
    ) -> object:
        if rows_max is not None and not failed:
            failed.append(rows_max)
            raise ServerUnavailable("going down")
        return await measure(self, *args, rows_max=rows_max, **options)

    table.write(kv_rows(0, 10))
    streams.append(
        stream := Stream(
            server,
            table.name,
            startingOffsets="earliest",
            minRowsPerTrigger="20",
            maxRowsPerTrigger="100",
            maxTriggerDelay="24h",
        )
    )
    monkeypatch.setattr(trio_table.Table, "measure_log", fail_once)
    assert len(stream.next() or []) == 10
    assert failed
    (lease,) = client.list_leases(table.name)
    assert lease.lease_id == stream.offsets[0]["lease"]
    table.write(kv_rows(10, 20))
    assert stream.next() is None


def test_columns_and_rows_are_chosen(server: RunningServer, table: Table, streams: list[Stream]) -> None:
    """`columns` and `where`, in the snapshot as in the changes; each change passes by its own row."""
    table.write(kv_rows(0, 10))
    streams.append(stream := Stream(server, table.name, columns="k", where="k < 5"))
    table.write(kv_rows(0, 10, "b"))
    batches = stream.rest()
    table.write(kv_rows(0, 10, "c"))
    batches += stream.rest()
    assert set(batches[0][0]) == {"k", "_change_type", "_log_offset", "_commit_timestamp"}
    assert [len(rows) for rows in batches] == [5, 10]
    assert {row["k"] for rows in batches for row in rows} == set(range(5))


@pytest.mark.parametrize("ttl", ["600", "0"])
def test_the_table_is_read_by_more_tasks_than_buckets(
    server: RunningServer, table: Table, streams: list[Stream], ttl: str
) -> None:
    """With `splits`, a bucket's keys are shared out; the rows are the same, and changes come bucket by bucket.

    Without a lease the parts are of one state, too: that of the offset.
    """
    table.write(kv_rows(0, 1000))
    streams.append(stream := Stream(server, table.name, splits="3", leaseTtl=ttl))
    rows = stream.next()
    assert rows is not None
    assert sorted(row["k"] for row in rows) == list(range(1000))
    assert len(stream.reader.partitions(stream.first(), stream.offsets[0])) > BUCKETS
    table.write(kv_rows(0, 1000, "b"))
    assert stream.read(stream.first(), stream.offsets[0]) == rows
    assert len(stream.next() or []) == 2000
    assert len(stream.reader.partitions(*stream.offsets)) == BUCKETS


def test_changes_that_are_gone(
    server: RunningServer, table: Table, streams: list[Stream], caplog: pytest.LogCaptureFixture
) -> None:
    """Told with table, bucket and range before a task begins; or left out, with a warning, if that is wanted."""
    table.write(kv_rows(0, 100))
    options = {"startingOffsets": "earliest", "leaseTtl": "0", "maxRowsPerTrigger": "1"}
    streams.append(strict := Stream(server, table.name, **options))
    streams.append(lenient := Stream(server, table.name, failOnDataLoss="false", **options))
    strict.next()
    lenient.next()
    table.write(kv_rows(100, 200))
    ends = {each.bucket: each.end_offset for each in table.offsets()}
    table.write(kv_rows(200, 210))
    _cut(server, table, ends)
    with pytest.raises(SourceDataLossError, match=f"table {table.name}, bucket .: the changes from offset"):
        strict.next()
    with caplog.at_level(logging.WARNING, "weir.spark"):
        rest = lenient.rest()
    assert {row["k"] for rows in rest for row in rows} == set(range(200, 210))
    assert "are not kept any more and are skipped" in caplog.text


@pytest.mark.parametrize("strict", ["true", "false"])
def test_changes_that_go_while_a_task_begins(
    server: RunningServer,
    table: Table,
    streams: list[Stream],
    monkeypatch: pytest.MonkeyPatch,
    strict: str,
) -> None:
    """Retention passes between the task's question and its scan: it fails by name, or begins behind that by itself."""
    table.write(kv_rows(0, 100))
    ends = {each.bucket: each.end_offset for each in table.offsets()}
    table.write(kv_rows(100, 200))
    first_kept = tasks._first_kept

    def cut_behind(*arguments: Any) -> int:
        start = first_kept(*arguments)
        _cut(server, table, ends)
        return start

    options = {"startingOffsets": "earliest", "leaseTtl": "0", "failOnDataLoss": strict}
    streams.append(stream := Stream(server, table.name, **options))
    monkeypatch.setattr(tasks, "_first_kept", cut_behind)
    if strict == "true":
        with pytest.raises(SourceDataLossError, match="the changes from offset 0 to"):
            stream.next()
    else:
        assert {row["k"] for row in stream.next() or []} == set(range(100, 200))


def _cut(server: RunningServer, table: Table, ends: dict[int, int]) -> None:
    with connect(server.endpoint) as admin:
        for bucket, end in ends.items():
            admin.compact_log(table.name, before=end, bucket=bucket)


def test_what_is_not_read_yet_is_leased(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """The lease stands where the newest micro-batch begins, survives the planner, and is found by the next one."""
    table.write(kv_rows(0, 100))
    streams.append(stream := Stream(server, table.name))
    stream.next()
    (lease,) = client.list_leases(table.name)
    assert lease.lease_id == stream.offsets[0]["lease"]
    before = lease.offsets(table.name)
    table.write(kv_rows(0, 100, "b"))
    ends = {each.bucket: each.end_offset for each in table.offsets()}
    _cut(server, table, ends)
    stream.stop()
    stream.start()
    assert len(stream.next() or []) == 200
    (lease,) = client.list_leases(table.name)
    assert lease.offsets(table.name) == before
    table.write(kv_rows(0, 1, "c"))
    stream.next()
    (lease,) = client.list_leases(table.name)
    assert lease.offsets(table.name) == ends


def test_a_table_that_is_planned_again_is_leased_again(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """Its micro-batch was not committed, and its lease has ended since."""
    table.write(kv_rows(0, 100))
    streams.append(stream := Stream(server, table.name))
    rows = stream.next()
    stream.stop()
    (before,) = client.list_leases(table.name)
    client.leases.drop(before.lease_id)
    stream.start()
    assert stream.read(stream.first(), stream.offsets[0]) == rows
    (lease,) = client.list_leases(table.name)
    assert lease.lease_id == before.lease_id
    assert lease.offsets(table.name) == before.offsets(table.name)


def test_a_query_that_is_started_anew_keeps_its_lease_before_anything_is_committed(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """Its next micro-batch may come long after the lease would have ended: it is renewed where it is, or anew."""
    table.write(kv_rows(0, 100))
    streams.append(stream := Stream(server, table.name, leaseTtl="100"))
    stream.next()
    table.write(kv_rows(0, 100, "b"))
    stream.next()
    (before,) = client.list_leases(table.name)
    ends = {each.bucket: each.end_offset for each in table.offsets()}
    stream.stop()
    stream.start(leaseTtl="200")
    assert stream.next() is None
    (lease,) = client.list_leases(table.name)
    assert (lease.lease_id, lease.ttl_s) == (before.lease_id, 200)
    assert lease.offsets(table.name) == before.offsets(table.name) != ends
    stream.stop()
    client.leases.drop(lease.lease_id)
    stream.start()
    assert stream.next() is None
    (lease,) = client.list_leases(table.name)
    assert lease.lease_id == before.lease_id
    assert lease.offsets(table.name) == ends


def test_another_table_of_the_name_is_refused(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """A table that was dropped and created anew has other changes, whatever its offsets are."""
    table.write(kv_rows(0, 10))
    streams.append(stream := Stream(server, table.name))
    stream.next()
    client.drop_table(table.name)
    client.create_table(table.name, table.schema, primary_key=["k"], buckets=BUCKETS).write(kv_rows(0, 50))
    stream.stop()
    stream.start()
    with pytest.raises(TableNotFound, match="created anew"):
        stream.next()


def test_another_table_by_its_option_is_refused(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """A query that is started anew with another table is told so: its own was not dropped."""
    streams.append(stream := Stream(server, table.name))
    stream.next()
    other = client.create_table(f"{table.name}_other", table.schema, primary_key=["k"], buckets=BUCKETS)
    stream.stop()
    stream.start(table=other.name)
    found = f"'{other.name}' has the id {other.table_id}, and what was planned before is of {table.table_id}"
    with pytest.raises(TableNotFound, match=f"{found}: .* or option 'table' has changed"):
        stream.next()


def test_another_table_of_the_name_between_micro_batches(
    server: RunningServer, table: Table, streams: list[Stream], client: Client
) -> None:
    """A planner that lives on plans nothing of it, also where it has read nothing: every history begins with that."""
    streams.append(stream := Stream(server, table.name, startingOffsets="latest"))
    assert stream.next() == []
    client.drop_table(table.name)
    client.create_table(table.name, table.schema, primary_key=["k"], buckets=BUCKETS).write(kv_rows(0, 50))
    with pytest.raises(TableNotFound, match="created anew"):
        stream.next()
    assert len(stream.offsets) == 1


def test_places_that_cannot_be(server: RunningServer, table: Table) -> None:
    """An offset inside a commit, past the end, of no bucket, a time in the future: one line, when the query starts."""
    table.write(kv_rows(0, 100))
    for option, value, problem in (
        ("startingOffsets", '{"0": 1, "1": 0}', "is inside the commit"),
        ("startingOffsets", '{"0": 1000, "1": 0}', "past the end"),
        ("startingOffsets", '{"0": 0}', "has the buckets 0 to 1"),
        ("startingTimestamp", "2100-01-01T00:00:00Z", "is in the future"),
        ("where", "nothing > 1", "nothing"),
        ("endingOffsets", "latest", "goes with spark.read alone"),
    ):
        with pytest.raises(Exception, match=problem) as caught:
            stream = Stream(server, table.name, **{option: value})
            try:
                stream.first()
            finally:
                stream.stop()
        assert "\n" not in str(caught.value)


def test_a_batch_read_of_the_changes(server: RunningServer, table: Table) -> None:
    """Between two places, by default everything that is kept; planned once, whatever is committed later."""
    table.write(kv_rows(0, 100))
    (ends,) = [{each.bucket: each.end_offset for each in table.offsets()}]
    table.write(kv_rows(0, 100, "b"))
    middle = json.dumps({str(bucket): end for bucket, end in ends.items()})
    for options, expected in (
        ({}, 300),
        ({"startingOffsets": middle}, 200),
        ({"endingOffsets": middle}, 100),
        ({"startingTimestamp": "2026-01-01T00:00:00Z", "startingOffsets": middle}, 300),
        ({"endingTimestamp": "2026-01-01"}, 0),
    ):
        source = WeirDataSource(
            {"endpoint": server.endpoint, "table": table.name, "readChanges": "true"} | options
        )
        reader = source.reader(source.schema())
        assert isinstance(reader, ChangesReader)
        partitions = reader.partitions()
        table.write(kv_rows(1000, 1010))
        table.delete([(number,) for number in range(1000, 1010)])
        worker = sent_to_worker(reader)
        rows = [row for part in partitions for batch in worker.read(part) for row in batch.to_pylist()]
        assert len([row for row in rows if row["k"] < 1000]) == expected


def test_copies_of_one_load_read_the_same_changes(server: RunningServer, table: Table) -> None:
    """Spark plans both sides of a self-join in processes of their own: who is second takes what the first has found."""
    table.write(kv_rows(0, 100))
    source = WeirDataSource({"endpoint": server.endpoint, "table": table.name, "readChanges": "true"})
    first, second = (sent_to_worker(source).reader(source.schema()) for _ in range(2))
    assert isinstance(first, ChangesReader)
    assert isinstance(second, ChangesReader)
    planned = first.partitions()
    table.write(kv_rows(0, 100, "b"))
    assert second.partitions() == planned


@pytest.mark.parametrize("ended", [("-start",), ("-end",), ("-start", "-end")])
def test_changes_that_are_planned_again_when_a_lease_has_ended(
    server: RunningServer, client: Client, table: Table, ended: tuple[str, ...]
) -> None:
    """They would end, or begin, somewhere else: the load is refused, and another one reads them."""
    table.write(kv_rows(0, 100))
    source = WeirDataSource({"endpoint": server.endpoint, "table": table.name, "readChanges": "true"})
    first, second = (sent_to_worker(source).reader(source.schema()) for _ in range(2))
    assert isinstance(first, ChangesReader)
    assert isinstance(second, ChangesReader)
    lease_ids = first.partitions()[0].lease_ids
    table.write(kv_rows(0, 100, "b"))
    for each in ended:
        (lease_id,) = (lease_id for lease_id in lease_ids if lease_id.endswith(each))
        assert client.leases.drop(lease_id)
    with pytest.raises(
        SnapshotLost, match=r"nothing keeps the state .*' has ended; .*; load the DataFrame again"
    ):
        second.partitions()
    anew = WeirDataSource({"endpoint": server.endpoint, "table": table.name, "readChanges": "true"})
    assert anew.reader(source.schema()).partitions()


def test_changes_of_a_table_that_was_created_anew_since_they_were_planned(
    server: RunningServer, client: Client, table: Table
) -> None:
    """They are gone, and the error says what to do in a read that has no checkpoint."""
    table.write(kv_rows(0, 100))
    source = WeirDataSource({"endpoint": server.endpoint, "table": table.name, "readChanges": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangesReader)
    partition, *_ = reader.partitions()
    client.drop_table(table.name)
    client.create_table(table.name, table.schema, primary_key=["k"], buckets=BUCKETS).write(kv_rows(0, 100))
    with pytest.raises(TableNotFound, match=r"dropped and created anew since, .*; load the DataFrame again"):
        list(reader.read(partition))


def test_tasks_and_plans_renew_both_ends_of_a_read_of_changes(tmp_path: Path) -> None:
    """While a load is used, neither what is read nor where that ends is forgotten."""
    clock = trio.testing.MockClock(rate=1.0)
    with running_server(tmp_path, clock=clock) as server:
        with connect(server.endpoint) as client:
            _created(client, "items").write(kv_rows(0, 100))
        options = {"endpoint": server.endpoint, "table": "items", "readChanges": "true", "leaseTtl": "600"}
        source = WeirDataSource(options)
        reader, again = (sent_to_worker(source).reader(source.schema()) for _ in range(2))
        assert isinstance(reader, ChangesReader)
        partitions = reader.partitions()

        def use_late(use: Callable[[], object]) -> None:
            server.ask(lambda _: clock.jump(400))
            use()
            with connect(server.endpoint) as client:  # The jump ended connections that were idle so long.
                left = [lease.remaining_s for lease in client.list_leases("items")]
            assert len(left) == 2
            assert min(left) > 300

        use_late(lambda: list(sent_to_worker(reader).read(partitions[0])))
        use_late(lambda: again.partitions())
        use_late(lambda: list(sent_to_worker(reader).read(partitions[1])))
        assert again.partitions() == partitions


def test_a_batch_read_that_cannot_be(server: RunningServer, table: Table) -> None:
    """It begins at no table, and ends at no beginning; limits go with streams."""
    table.write(kv_rows(0, 100))
    for options, problem in (
        ({"startingOffsets": "full"}, "cannot be 'full' in a batch read"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"maxRowsPerTrigger": "1"}, "goes with spark.readStream alone"),
        ({"startingOffsets": '{"0": -2, "1": -1}'}, "cannot be latest"),
        ({"splits": "2"}, "changes are read bucket by bucket"),
    ):
        source = WeirDataSource(
            {"endpoint": server.endpoint, "table": table.name, "readChanges": "true"} | options
        )
        with pytest.raises(SourceOptionError, match=problem.replace("(", r"\(")):
            source.reader(source.schema()).partitions()


def test_offsets_of_another_stream_are_refused(
    server: RunningServer, table: Table, streams: list[Stream]
) -> None:
    """Neither guessed nor read: a newer version, and what another source wrote."""
    streams.append(stream := Stream(server, table.name))
    for offset, problem in (({"version": 2}, "version 2"), ({"partition": 3}, "did not write")):
        with pytest.raises(SourceError, match=problem):
            stream.reader.latestOffset(offset, ReadAllAvailable())
