"""The reader without Spark: what a task does with a real server."""

import collections
import gc
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql import types

from scanner import join_digests
from scanner.client.connection import Connection
from scanner.data.keys import KeyCodec, bucket_of
from scanner.errors import TableNotFound
from scanner.sync import Client
from spark_source import SourceOptionError, WeirDataSource
from spark_source.batch.partitions import BucketPartition
from spark_source.batch.reader import BucketReader
from spark_source.batch.statistics import BucketReport
from spark_source.options import AS_OF_MODES, MODES
from spark_source.schema import STATISTICS_COLUMN
from tests.spark_source.frames import table_name
from tests.support.pickling import sent_to_worker
from tests.support.server import RunningServer

pytestmark = [pytest.mark.rocks, pytest.mark.socket]

ROWS = 5_000
ONE_ROW_BYTES = 1024
"""No message of a single row of these tables is longer."""


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> str:
    """A table of its own for each test, of two buckets."""
    name = table_name(request)
    rows = pa.table({"k": range(ROWS), "s": [f"{row:0100d}" for row in range(ROWS)]})
    client.create_table(name, rows.schema, primary_key=["k"], buckets=2).write(rows)
    return name


def open_reader(server: RunningServer, table: str, **options: str) -> BucketReader:
    """A reader as Spark makes it, having crossed a pickle as it does on its way to the executors."""
    source = WeirDataSource({"endpoint": server.endpoint, "table": table} | options)
    source = sent_to_worker(source)
    reader = source.reader(source.schema())
    assert isinstance(reader, BucketReader)
    return sent_to_worker(reader)


@pytest.mark.parametrize("mode", MODES)
def test_partitions_cover_the_table(server: RunningServer, table: str, mode: str) -> None:
    """The partitions' rows are the table's, each once, in key order within a partition."""
    reader = open_reader(server, table, mode=mode)
    keys = [
        [key for batch in reader.read(partition) for key in batch.column("k").to_pylist()]
        for partition in reader.partitions()
    ]
    assert len(keys) == 2
    assert all(part == sorted(part) for part in keys)
    assert sorted(keys[0] + keys[1]) == list(range(ROWS))


CUTS = [{"splits": "5"}, {"splits": "1"}, {"targetSplitBytes": "4k"}, {"targetSplitBytes": "1g"}]
SOME_KEYS = {"keyFrom": "1000", "keyTo": "1500"}
NO_KEYS = {"keyFrom": "9999"}


@pytest.mark.parametrize(
    ("keys", "cut"),
    [*(({}, cut) for cut in CUTS), (SOME_KEYS, CUTS[0]), (SOME_KEYS, CUTS[2]), (NO_KEYS, CUTS[0])],
    ids=str,
)
@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_parts_of_buckets(
    server: RunningServer, client: Client, table: str, mode: str, keys: dict[str, str], cut: dict[str, str]
) -> None:
    """Ranges of keys add up to their bucket: rows, order and digest, as of one offset, whatever is written between."""
    client.checkpoint(table)  # What is in memory alone is not cut.
    whole = parts_of(open_reader(server, table, mode=mode, statistics="true", **keys))
    assert [len(reports) for _, reports in whole.values()] == [1, 1]
    reader = open_reader(server, table, mode=mode, statistics="true", **keys, **cut)
    partitions = reader.partitions()
    client.table(table).delete([(key,) for key in range(0, ROWS, 3)])
    client.table(table).write(pa.table({"k": range(ROWS + 100), "s": ["changed"] * (ROWS + 100)}))
    parts = parts_of(reader, partitions)
    for bucket, (rows, (one,)) in whole.items():
        found, reports = parts[bucket]
        assert found == rows
        assert [report.split for report in reports] == list(range(len(reports)))
        assert {report.log_offset for report in reports} == {one.log_offset}
        assert join_digests((report.digest, report.stored_bytes) for report in reports) == one.digest
        assert sum(report.rows for report in reports) == one.rows
    if not keys and cut in ({"splits": "5"}, {"targetSplitBytes": "4k"}):
        assert all(len(reports) > 2 for _, reports in parts.values())


def test_a_retry_of_a_part(server: RunningServer, client: Client, table: str) -> None:
    """An attempt that ends half-way, and the one after it, read one range of keys of one state."""
    client.checkpoint(table)
    reader = open_reader(server, table, splits="4", statistics="true", creditBytes="8k")
    partition = reader.partitions()[2]
    first = reader.read(partition)
    begun = next(iter(first)).to_pylist()
    client.table(table).write(pa.table({"k": range(ROWS), "s": ["changed"] * ROWS}))
    first.close()  # type: ignore[attr-defined]
    ((rows, (report,)),) = parts_of(reader, [partition]).values()
    assert rows[: len(begun)] == [row["k"] for row in begun]
    assert report.rows == len(rows)
    *batches, _ = reader.read(partition)
    assert not any(row["s"] == "changed" for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("rows", [0, 1])
def test_parts_of_next_to_nothing(server: RunningServer, client: Client, rows: int) -> None:
    """A table without keys to cut at still has a task, and a report, for each bucket."""
    name = f"next-to-nothing-{rows}"
    few = pa.table({"k": pa.array(range(rows), pa.int64())})
    client.create_table(name, few.schema, primary_key=["k"], buckets=2).write(few)
    parts = parts_of(open_reader(server, name, splits="1024", statistics="true"))
    assert sorted(key for found, _ in parts.values() for key in found) == list(range(rows))
    assert sorted(parts) == [0, 1]


@pytest.mark.parametrize(
    ("where", "tasks", "keys"),
    [
        ("k = 17", 1, [17]),
        ("k IN (17, 4711) AND s IS NOT NULL", None, [17, 4711]),
        ("k < 3 OR k IS NULL", 2, [0, 1, 2]),
        ("k > 5 AND k < 5", 1, []),
    ],
)
def test_conditions_on_the_key_leave_tasks_out(
    server: RunningServer, table: str, where: str, tasks: int | None, keys: list[int]
) -> None:
    """Where no row of a bucket can meet the condition there is no task for it, and all rows that meet it come."""
    reader = open_reader(server, table, where=where)
    partitions = reader.partitions()
    buckets = {bucket_of(KeyCodec(partitions[0].plan.table).encode((key,)), 2) for key in keys}
    assert len(partitions) == (len(buckets) if tasks is None else tasks)
    found = [
        key for each in partitions for batch in reader.read(each) for key in batch.column("k").to_pylist()
    ]
    assert sorted(found) == keys


def parts_of(
    reader: BucketReader, partitions: list[BucketPartition] | None = None
) -> dict[int, tuple[list[int], list[BucketReport]]]:
    """By bucket, the keys that its partitions give, in their order, and their reports."""
    found: dict[int, tuple[list[int], list[BucketReport]]] = {}
    for partition in reader.partitions() if partitions is None else partitions:
        *batches, last = reader.read(sent_to_worker(partition))
        keys, reports = found.setdefault(partition.bucket, ([], []))
        keys += [key for batch in batches for key in batch.column("k").to_pylist()]
        reports.append(BucketReport.from_json(last.column(STATISTICS_COLUMN)[0].as_py()))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_closing_half_way(server: RunningServer, table: str, mode: str) -> None:
    """A generator that is closed after one batch leaves no scan and no connection behind."""
    reader = open_reader(server, table, mode=mode, creditBytes="32k", pageBytes="32k")
    batches = reader.read(reader.partitions()[0])
    assert next(iter(batches)).num_rows > 0
    kept = 0 if mode in ("cursor", "asof") else 1
    server.wait_until(lambda running: running.statistics().iterators_open == kept)
    batches.close()  # type: ignore[attr-defined]
    server.wait_until(lambda running: running.statistics().iterators_open == 0)


@pytest.mark.parametrize("mode", MODES)
def test_forgetting_half_way(server: RunningServer, table: str, mode: str) -> None:
    """A generator that nobody refers to any more ends its scan too."""
    reader = open_reader(server, table, mode=mode, creditBytes="32k", pageBytes="32k")
    batches = reader.read(reader.partitions()[0])
    next(iter(batches))
    del batches
    gc.collect()
    server.wait_until(lambda running: running.statistics().iterators_open == 0)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "cursor"])
def test_writes_during_the_scan_are_not_seen(
    server: RunningServer, client: Client, table: str, mode: str
) -> None:
    """A bucket is read as of the offset at which its scan was opened, whatever is written before the next batch."""
    reader = open_reader(server, table, mode=mode, creditBytes="8k", pageBytes="8k", statistics="true")
    partition = reader.partitions()[0]
    before = {row["k"]: row["s"] for row in client.table(table).new_scan().bucket(0).to_arrow().to_pylist()}
    end = client.table(table).offsets()[0].end_offset

    batches = reader.read(partition)
    rows = next(iter(batches)).to_pylist()
    client.table(table).write(pa.table({"k": range(ROWS), "s": ["changed"] * ROWS}))
    client.table(table).delete([(key,) for key in range(0, ROWS, 2)])
    client.table(table).write(pa.table({"k": range(ROWS, ROWS + 100), "s": ["new"] * 100}))
    *rest, report = batches
    rows += [row for batch in rest for row in batch.to_pylist()]

    assert {row["k"]: row["s"] for row in rows} == before
    assert len(rows) == len(before)
    told = BucketReport.from_json(report.column(STATISTICS_COLUMN)[0].as_py())
    assert (told.log_offset, told.states) == (end, 1)


def test_writes_during_a_cursor_are_seen(server: RunningServer, client: Client, table: str) -> None:
    """Mode cursor reads each page as of when it is asked for, and the report tells that there were several states."""
    reader = open_reader(server, table, mode="cursor", pageBytes="8k", pageDepth="0", statistics="true")
    batches = reader.read(reader.partitions()[0])
    first = next(iter(batches)).to_pylist()
    client.table(table).write(pa.table({"k": range(ROWS), "s": ["changed"] * ROWS}))
    *rest, report = batches
    rows = [row for batch in rest for row in batch.to_pylist()]

    # The next page was on its way when the first was in use.
    assert sum(row["s"] == "changed" for row in rows) > len(rows) - 2 * len(first)
    assert all(row["s"] != "changed" for row in first)
    assert BucketReport.from_json(report.column(STATISTICS_COLUMN)[0].as_py()).states == 2


@pytest.mark.parametrize("mode", ["push", "asof"])
def test_as_of(server: RunningServer, client: Client, table: str, mode: str) -> None:
    """What is read is what was there in front of the offset of each bucket, or of all."""
    ends = {bucket: end for bucket, _, end in client.table(table).offsets()}
    before = client.table(table).new_scan().to_arrow().sort_by("k")
    client.table(table).write(pa.table({"k": range(ROWS + 50), "s": ["changed"] * (ROWS + 50)}))
    each = ",".join(f"{bucket}:{end}" for bucket, end in ends.items())
    for as_of, expected in [(each, before), ("0", before.slice(0, 0))]:
        reader = open_reader(server, table, mode=mode, asOf=as_of, pageBytes="64k")
        rows = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        assert sorted(row["k"] for batch in rows for row in batch.to_pylist()) == expected["k"].to_pylist()
        assert not any(row["s"] == "changed" for batch in rows for row in batch.to_pylist())


@pytest.mark.parametrize("as_of", ["0:5", "0:5,2:5", "0:5,1:5,2:5"], ids=["less", "other", "more"])
def test_as_of_of_other_buckets(server: RunningServer, table: str, as_of: str) -> None:
    """Offsets that do not fit the table's buckets are an error of the planning, which names the option."""
    reader = open_reader(server, table, asOf=as_of)
    with pytest.raises(SourceOptionError, match="has the buckets 0 to 1, and each of them needs an offset"):
        reader.partitions()


def test_credit_bounds_what_a_task_holds(server: RunningServer, table: str) -> None:
    """A task that takes its time has no more waiting for it than the credit and one row's message."""
    reader = open_reader(server, table, creditBytes="32k", statistics="true")
    *_, last = reader.read(reader.partitions()[0])
    report = BucketReport.from_json(last.column(STATISTICS_COLUMN)[0].as_py())
    assert report.bytes_received > 200 << 10
    assert report.overrun_bytes <= ONE_ROW_BYTES
    assert report.held_bytes_max <= (32 << 10) + ONE_ROW_BYTES


def test_no_filters_of_spark(server: RunningServer, table: str) -> None:
    """The reader takes no filters of Spark's: Spark would give those of one plan to every other."""
    assert type(open_reader(server, table)).pushFilters is spark.DataSourceReader.pushFilters


def test_table_that_went_away(server: RunningServer, client: Client, table: str) -> None:
    """A table that was dropped after the load is an error of the planning."""
    reader = open_reader(server, table)
    client.drop_table(table)
    with pytest.raises(TableNotFound, match=table.split("-")[0]):
        reader.partitions()


def test_table_that_changed(server: RunningServer, client: Client, table: str) -> None:
    """A table that was created anew is another one, whatever its columns."""
    reader = open_reader(server, table)
    client.drop_table(table)
    client.create_table(table, pa.schema([("k", pa.string())]), primary_key=["k"], buckets=1)
    with pytest.raises(TableNotFound, match="dropped and created anew since it was loaded"):
        reader.partitions()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("buckets", [1, 2])
def test_table_that_was_created_anew(
    server: RunningServer, client: Client, table: str, mode: str, buckets: int
) -> None:
    """A task does not read another table of the same name, though that has its bucket, its columns and its offset."""
    reader = open_reader(server, table, mode=mode, leaseTtl="0")
    partition = reader.partitions()[0]
    recreate(client, table, buckets)
    with pytest.raises(TableNotFound, match=r"dropped and created anew; .*load the DataFrame again"):
        next(iter(reader.read(partition)))


@pytest.mark.parametrize("cut", [{}, {"splits": "1"}], ids=str)
def test_a_task_asks_for_its_rows_alone(
    server: RunningServer, table: str, monkeypatch: pytest.MonkeyPatch, cut: dict[str, str]
) -> None:
    """A task describes no table: the open of its scan checks that it is the planned one. A planning connects once.

    It asks for the lease of another planning of its load first, and makes one if there is none. Where to cut a bucket
    that is not cut is not asked.
    """
    asked = counted_calls(monkeypatch)
    reader = open_reader(server, table, **cut)
    asked.clear()
    partition, other = reader.partitions()
    assert asked == {"DescribeTable": 1, "RenewLease": 1, "AcquireLease": 1}
    asked.clear()
    list(reader.read(partition))
    list(reader.read(other))
    assert asked == {"RenewLease": 2}


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """The unary calls that clients in this process make from now on, by method."""
    found: collections.Counter[str] = collections.Counter()
    make = Connection.call

    async def call(self: Connection, path: str, *args: Any, **named: Any) -> Any:
        found[path.rpartition("/")[2]] += 1
        return await make(self, path, *args, **named)

    monkeypatch.setattr(Connection, "call", call)
    return found


def recreate(client: Client, table: str, buckets: int) -> None:
    """Drop a table, and create another of its name, columns and changelog length."""
    schema = client.table(table).schema
    client.drop_table(table)
    rows = pa.table({"k": range(ROWS), "s": ["another table"] * ROWS}, schema)
    client.create_table(table, schema, primary_key=["k"], buckets=buckets).write(rows)


def test_projection_keeps_the_order(server: RunningServer, table: str) -> None:
    """Columns come in the order in which Spark asked for them."""
    reader = open_reader(server, table, columns="s,k")
    schema = types.StructType.fromJson(reader._schema.jsonValue())
    assert schema.fieldNames() == ["s", "k"]
    assert next(iter(reader.read(reader.partitions()[0]))).schema.names == ["s", "k"]
