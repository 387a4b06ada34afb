"""One `load()`, used more than once: every use has its own filters and reads the rows that they name, of one state.

Spark keeps one reader and its partitions for each `load()`. Whatever a use of it left behind there would change the
others, without an error.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio.testing
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from scanner.server.config import ScannerConfig
from scanner.sync import connect
from spark_source.options import AS_OF_MODES
from tests.spark_source.frames import last_line, read
from tests.support.nightly import everyday
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from scanner.server.server import Server
    from scanner.server.tables.bucket import ServedBucket

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

ROWS = 100
TTL_S = 600
RETENTION_INTERVAL_S = 3600.0
NUMBERS = pa.table({"id": range(ROWS), "g": [row % 7 for row in range(ROWS)], "v": [None, 1] * (ROWS // 2)})


@pytest.fixture(scope="module")
def table(server: RunningServer) -> str:
    """A table with the numbers."""
    with connect(server.endpoint) as client:
        client.create_table("one_load", NUMBERS.schema, primary_key=["id"], buckets=2).write(NUMBERS)
    return "one_load"


@pytest.fixture
def frame(spark: SparkSession, server: RunningServer, table: str) -> Iterator[DataFrame]:
    """One load, and a view `numbers` of it; Spark may push filters into sources written in Python, if they take any."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    loaded = read(spark, server, table)
    loaded.createOrReplaceTempView("numbers")
    yield loaded
    spark.catalog.dropTempView("numbers")
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


UNION = "SELECT * FROM numbers WHERE id < 10 UNION ALL SELECT * FROM numbers WHERE id >= 90"
SELF_JOIN = "SELECT a.id FROM numbers a JOIN numbers b ON a.id = b.id + 50 WHERE a.id >= 60 AND b.id < 30"
LARGEST_OF_GROUP = """
    SELECT id FROM numbers o WHERE g < 3 AND id = (SELECT max(id) FROM numbers i WHERE i.g = o.g AND i.v IS NULL)
"""
EXISTS = """
    SELECT id FROM numbers o WHERE v IS NULL AND id < 20
       AND EXISTS (SELECT 1 FROM numbers i WHERE i.g = o.g AND i.id > 90)
       AND NOT EXISTS (SELECT 1 FROM numbers i WHERE i.g = o.g AND i.id > 97)
"""
ABOVE_AVERAGE = "SELECT id FROM numbers WHERE g = 2 AND id > (SELECT avg(id) FROM numbers WHERE v = 1)"


def ids(keep: Callable[[int], bool]) -> list[int]:
    """The numbers that are kept."""
    return [row for row in range(ROWS) if keep(row)]


def largest_of_group(row: int) -> bool:
    """What `LARGEST_OF_GROUP` selects."""
    return row % 7 < 3 and row == max(ids(lambda other: other % 7 == row % 7 and other % 2 == 0))


def exists(row: int) -> bool:
    """What `EXISTS` selects."""
    group = ids(lambda other: other % 7 == row % 7)
    return row % 2 == 0 and row < 20 and max(group) > 90 and not max(group) > 97


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (UNION, ids(lambda row: row < 10 or row >= 90)),
        (SELF_JOIN, ids(lambda row: 60 <= row < 80)),
        (LARGEST_OF_GROUP, ids(largest_of_group)),
        (EXISTS, ids(exists)),
        (ABOVE_AVERAGE, ids(lambda row: row % 7 == 2 and row > 50)),
    ],
    ids=["union", "self-join", "largest of group", "exists", "above average"],
)
@pytest.mark.usefixtures("frame")
def test_queries_over_one_view(spark: SparkSession, query: str, expected: list[int]) -> None:
    """A query that names one view more than once, as TPC-H's 2, 5, 21 and 22 do, has its right answer."""
    assert sorted(row.id for row in spark.sql(query).collect()) == expected


def test_uses_of_one_frame(frame: DataFrame) -> None:
    """A filter of one use takes nothing away from another: in one plan, and one after the other."""
    assert frame.where("id < 10").union(frame.where("id >= 90")).count() == 20
    assert frame.where("id < 5").count() == 5
    assert frame.count() == ROWS
    left, right = frame.where("id >= 60").alias("a"), frame.where("id < 30").alias("b")
    assert left.join(right, F.expr("a.id = b.id + 50")).count() == 20


def test_one_statement_after_another(spark: SparkSession, frame: DataFrame) -> None:
    """The same with statements over its view."""
    for query, count in [("id < 5", 5), ("true", ROWS), ("id >= 95", 5), ("v IS NULL", ROWS // 2)]:
        assert spark.sql(f"SELECT count(*) AS n FROM numbers WHERE {query}").collect()[0].n == count
    assert frame.count() == ROWS


@pytest.mark.parametrize("mode", ["push", "session"])
def test_conditions_of_loads(spark: SparkSession, server: RunningServer, table: str, mode: str) -> None:
    """Each load has the rows of its own condition and keys, together in one plan and again later."""
    few = read(spark, server, table, mode=mode, where="id < 10 AND v IS NULL")
    late = read(spark, server, table, mode=mode, keyFrom=90)
    middle = read(spark, server, table, mode=mode, keyFrom="[40]", keyTo="[60]", where="g = 3")
    everything = read(spark, server, table, mode=mode)
    for _ in range(2):
        assert few.union(late).union(middle).count() == 5 + 10 + 3
        assert sorted(row.id for row in middle.collect()) == [45, 52, 59]
        assert everything.count() == ROWS
        assert everything.join(few, "id").count() == 5


def test_conditions_of_views(spark: SparkSession, server: RunningServer, table: str) -> None:
    """The same in SQL, where the condition is an option of the view."""
    for view, condition in {"few": "id < 10", "late": "id >= 90 AND v = 1"}.items():
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING weir"
            f" OPTIONS (endpoint '{server.endpoint}', table '{table}', where '{condition}')"
        )
    both = "SELECT id FROM few UNION ALL SELECT id FROM late"
    assert sorted(row.id for row in spark.sql(both).collect()) == [*range(10), *range(91, 100, 2)]
    assert spark.sql("SELECT * FROM few WHERE id > 5").count() == 4
    assert spark.sql("SELECT * FROM few").count() == 10


@pytest.mark.parametrize("options", [{}, {"splits": 3}], ids=["whole", "split"])
def test_both_sides_of_a_self_join_are_one_state(
    spark: SparkSession, server: RunningServer, options: dict[str, object]
) -> None:
    """Spark plans both sides at once, in two processes; beside a writer no row is on one side only."""
    name = "joined" + "".join(options)
    with connect(server.endpoint) as client:
        table = client.create_table(name, NUMBERS.schema, primary_key=["id"], buckets=3)
        table.write(NUMBERS)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                table.delete([(key,) for key in range(0, ROWS, 2)])
                table.write(NUMBERS)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(everyday(1, nightly=20)):
                frame = read(spark, server, name, **options)
                both = frame.alias("a").join(frame.alias("b"), F.expr("a.id = b.id"), "full_outer")
                assert both.where("a.id IS NULL OR b.id IS NULL").count() == 0
                assert frame.exceptAll(frame).count() == 0
        finally:
            stop.set()
            writer.join()


@pytest.fixture(scope="module")
def clock() -> trio.testing.MockClock:
    """Of a server: passes as the machine's does, and jumps when it is told to."""
    return trio.testing.MockClock(rate=1.0)


@pytest.fixture(scope="module")
def forgetful(
    tmp_path_factory: pytest.TempPathFactory, clock: trio.testing.MockClock
) -> Iterator[RunningServer]:
    """A server that cuts off every change that nobody needs, once an hour."""
    # The clock jumps by hours. A bucket that closed for being idle meanwhile would not be looked at.
    config = ScannerConfig(
        log_retention_s=0.001, retention_interval_s=RETENTION_INTERVAL_S, bucket_idle_close_s=math.inf
    )
    with running_server(tmp_path_factory.mktemp("weir"), config, clock=clock) as running:
        yield running


def buckets(server: Server, table: str) -> list[ServedBucket]:
    """Those of a table, seen from the server's thread."""
    return [bucket for name, _, bucket in server._services.catalog.open_buckets() if name == table]


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_a_frame_outlives_its_lease(
    spark: SparkSession, forgetful: RunningServer, clock: trio.testing.MockClock, mode: str
) -> None:
    """Every use reads the state of the first, also after the lease ended, until the changelog no longer has it."""
    name = f"outlives_{mode}"
    with connect(forgetful.endpoint) as client:
        client.create_table(name, NUMBERS.schema, primary_key=["id"], buckets=2).write(NUMBERS)
    frame = read(spark, forgetful, name, mode=mode, leaseTtl=TTL_S)
    frame.createOrReplaceTempView(name)
    expected = sorted(map(tuple, frame.collect()))
    assert len(expected) == ROWS

    forgetful.ask(lambda _: clock.jump(TTL_S + 1))
    with connect(forgetful.endpoint) as client:
        assert client.list_leases() == []
        changed = NUMBERS.slice(0, 50).set_column(2, "v", pa.array([9] * 50))
        client.table(name).write(changed)
        client.table(name).delete([(key,) for key in range(50, 60)])
    assert sorted(map(tuple, frame.collect())) == expected
    assert sorted(map(tuple, spark.sql(f"SELECT * FROM {name}").collect())) == expected
    assert frame.where("v = 9").join(frame, "id").count() == 0

    def is_cut(running: Server) -> bool:
        # Spark ends a join whose one side is empty while tasks of the other still begin: their scans pin the log, and
        # what one sweep could not cut the next one does.
        clock.jump(RETENTION_INTERVAL_S)
        return all(bucket.storage.log_start > ROWS // 2 for bucket in buckets(running, name))

    forgetful.wait_until(is_cut)
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert last_line(caught.value).startswith("scanner.errors.SnapshotLost: the state that Spark planned")
    assert "load the DataFrame again" in last_line(caught.value)
    assert read(spark, forgetful, name, mode=mode).where("v = 9").count() == 50


def test_a_table_that_was_created_anew_since_the_load(spark: SparkSession, server: RunningServer) -> None:
    """What Spark was told of is gone: nothing of the table that has its name now is read, in any way."""
    with connect(server.endpoint) as client:
        client.create_table("anew", NUMBERS.schema, primary_key=["id"], buckets=1).write(NUMBERS)
        loads = [read(spark, server, "anew"), read(spark, server, "anew", readChanges="true")]
        options = {"endpoint": server.endpoint, "table": "anew"}
        given = spark.read.schema("id BIGINT").format("weir").options(**options).load()
        stream = spark.readStream.format("weir").options(**options, readChanges="true").load()
        client.drop_table("anew")
        client.create_table("anew", NUMBERS.schema, primary_key=["id"], buckets=1).write(NUMBERS[:3])
    for loaded in loads:
        with pytest.raises(PySparkException) as caught:
            loaded.collect()
        assert "TableNotFound: table 'anew' was dropped and created anew" in last_line(caught.value)
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="dropped and created anew since it was loaded"):
        query.awaitTermination()
    assert given.count() == 3  # Spark has asked nothing about the table before now.
