"""Tables and views in a few words: each load for itself, small tables hinted to be copied, and what is refused."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import weir.spark
from scanner import ColumnNotFound, LeaseTarget
from scanner.sync import Client, connect
from spark_source import SourceOptionError
from spark_source.tables import TableRead, _bytes
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

ROWS = 1_000
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two tables, on the disk."""
    with running_server(tmp_path_factory.mktemp("weir")) as running:
        with connect(running.endpoint) as client:
            for name, buckets in {"Orders": 2, "stock.2013": 1}.items():
                rows = pa.table({"id": range(ROWS), "v": [row % 10 for row in range(ROWS)]})
                client.create_table(name, rows.schema, primary_key=["id"], buckets=buckets).write(rows)
                client.checkpoint(name)
        yield running


def orders(spark: SparkSession, server: RunningServer, **options: object) -> TableRead:
    """One of the tables."""
    return weir.spark.table(spark, "Orders", endpoint=server.endpoint, **options)


def hints(frame: DataFrame) -> bool:
    """Whether Spark is told to copy the DataFrame to every executor."""
    plan = frame._jdf.queryExecution().analyzed().toString()
    return "ResolvedHint (strategy=broadcast)" in plan


def test_every_load_is_its_own(spark: SparkSession, server: RunningServer) -> None:
    """Conditions add up, columns do not, and what one read says is not said of another that was made from the same."""
    few = orders(spark, server, splits=2).where("id < 100 OR id > 990")
    fewer = few.where("v = 3").select("v").select("id")
    assert sorted(row.id for row in fewer.load().collect()) == [3, 13, 23, 33, 43, 53, 63, 73, 83, 93, 993]
    assert (few.load().count(), few.load().columns) == (109, ["id", "v"])
    assert few.load().join(fewer.load(), "id").count() == 11
    assert orders(spark, server).load().count() == ROWS


def test_states(spark: SparkSession, server: RunningServer, client: Client) -> None:
    """A state is named by offsets, by a time or by a lease, and the last name counts."""
    with connect(server.endpoint) as client:
        table = client.table("Orders")
        before = (
            table.new_scan().with_source("log").stop_at("end").to_arrow()["_commit_timestamp"].to_pylist()
        )
        ends = {each.bucket: each.end_offset for each in table.offsets()}
        lease = client.acquire_lease(LeaseTarget("Orders", state="log"))
        table.write(pa.table({"id": [ROWS], "v": [0]}))
        try:
            past = max(before) + datetime.timedelta(microseconds=1)
            for state in (ends, past, lease.id):
                assert orders(spark, server).as_of(0).as_of(state).load().count() == ROWS
            assert orders(spark, server).as_of(0).load().count() == 0
            assert orders(spark, server).load().count() == ROWS + 1
        finally:
            table.delete([(ROWS,)])
            lease.drop()


@pytest.mark.parametrize(
    ("threshold", "hinted"), [("10MB", True), ("1g", True), ("100", False), ("-1", False)]
)
def test_small_tables_are_copied(
    spark: SparkSession, server: RunningServer, threshold: str, hinted: bool
) -> None:
    """What takes no more than Spark's own threshold is hinted; the caller's word counts for more."""
    before = spark.conf.get(THRESHOLD)
    spark.conf.set(THRESHOLD, threshold)
    try:
        assert hints(orders(spark, server).load()) == hinted
        assert hints(orders(spark, server).load(broadcast=True))
        assert not hints(orders(spark, server).load(broadcast=False))
        for state in (0, datetime.datetime.now(datetime.UTC), "a-lease"):
            assert not hints(orders(spark, server).as_of(state).load())
    finally:
        spark.conf.set(THRESHOLD, before or "10MB")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10485760", 10 << 20),
        ("10485760b", 10 << 20),
        ("10MB", 10 << 20),
        ("2g", 2 << 30),
        ("-1", -1),
        ("many", -1),
    ],
)
def test_sizes_as_spark_writes_them(text: str, size: int) -> None:
    """A threshold is bytes, with or without a unit; below 0 nothing is copied."""
    assert _bytes(text) == size


def test_options_of_python(spark: SparkSession, server: RunningServer) -> None:
    """None is left out, as Spark's own `options` does; as text it may be a key. A day in a list is text.

    No digit of numpy's numbers is lost.
    """
    read = orders(spark, server, keyFrom=None, readChanges=None, splits=None, statistics=True)
    assert read.options == {"endpoint": server.endpoint, "table": "Orders", "statistics": "true"}
    days = orders(spark, server, keyFrom=(datetime.date(2013, 7, 1), True, 5))
    assert days.options["keyFrom"] == '["2013-07-01", true, 5]'
    for value, text in (
        ([np.int64(3), np.str_("JFK"), np.True_], '[3, "JFK", true]'),
        (np.bool_(False), "false"),
        (np.float32(0.1), "0.10000000149011612"),
        (np.array([0.1234567891, 2]), "[0.1234567891, 2.0]"),
        (np.array([20, 19], "M8[D]"), '["1970-01-21", "1970-01-20"]'),
        (np.array(7), "7"),
        (np.longdouble(7.5), "7.5"),
        (np.timedelta64(3, "ns"), "3 nanoseconds"),
    ):
        assert orders(spark, server, keyFrom=value).options["keyFrom"] == text
    for octets in (b"JFK", [1, b"JFK"], np.array([b"JFK"])):
        with pytest.raises(SourceOptionError, match="option 'keyTo' is text: write octets in hexadecimal"):
            orders(spark, server, keyTo=octets)


def test_views(spark: SparkSession, server: RunningServer) -> None:
    """Every table is a view, also one whose name SQL has to quote, and views join."""
    frames = weir.spark.views(spark, server.endpoint, prefix="w_", splits=2)
    assert sorted(frames) == ["Orders", "stock.2013"]
    joined = "SELECT count(*) AS n FROM w_orders JOIN `w_stock.2013` s USING (id) WHERE s.v = 1"
    assert spark.sql(joined).collect()[0].n == ROWS // 10


def test_views_without_a_table_of_a_strange_type(
    spark: SparkSession, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs the others nothing, and is named."""
    schema = pa.schema([("id", pa.int64()), ("hundreds", pa.decimal128(5, -2))])
    with connect(server.endpoint) as client:
        client.create_table("strange", schema, primary_key=["id"])
        try:
            frames = weir.spark.views(spark, server.endpoint, prefix="some_")
            assert sorted(weir.spark.views(spark, server.endpoint, prefix="ids_", columns="id")) == [
                "Orders",
                "stock.2013",
                "strange",
            ]
        finally:
            client.drop_table("strange")
    assert sorted(frames) == ["Orders", "stock.2013"]
    (warning,) = caplog.messages
    assert warning.startswith("table strange gets no view: column 'hundreds' is decimal128(5, -2)")


def test_views_of_one_name(spark: SparkSession, server: RunningServer) -> None:
    """Tables that differ in case alone would be one view: none is made."""
    schema = pa.schema([("id", pa.int64())])
    with connect(server.endpoint) as client:
        client.create_table("orders", schema, primary_key=["id"])
        try:
            with pytest.raises(SourceOptionError, match="'Orders' and 'orders' would be one view"):
                weir.spark.views(spark, server.endpoint, prefix="none_")
        finally:
            client.drop_table("orders")
    with pytest.raises(PySparkException):
        spark.sql("SELECT * FROM none_orders")


def test_refusals(spark: SparkSession, server: RunningServer) -> None:
    """What makes no sense is refused where it is said, or when the table is loaded, in a line of ours."""
    with pytest.raises(SourceOptionError, match="unknown option 'split'; did you mean 'splits'"):
        orders(spark, server, split=2)
    for twice in ("table", "Table", "ENDPOINT"):
        with pytest.raises(SourceOptionError, match=f"option '{twice}' is given twice"):
            orders(spark, server, **{twice: "stock.2013"})
    with pytest.raises(SourceOptionError, match="option 'table' is given twice"):
        weir.spark.views(spark, server.endpoint, table="Orders")
    with pytest.raises(SourceOptionError, match="option 'readchanges' is one of reading changes"):
        orders(spark, server, readchanges=True)
    with pytest.raises(SourceOptionError, match="option 'failOnDataLoss' is one of reading changes"):
        weir.spark.views(spark, server.endpoint, failOnDataLoss=False)
    with pytest.raises(SourceOptionError, match="option 'WHERE' is given twice"):
        orders(spark, server, where="v = 1", WHERE="v = 2")
    with pytest.raises(SourceOptionError, match="has a comma"):
        orders(spark, server).select("a,b")
    with pytest.raises(SourceOptionError, match="leave it out to read all"):
        orders(spark, server).select()
    names: Any = ["id", "v"]
    number: Any = 5
    with pytest.raises(SourceOptionError, match=r"select\('a', 'b'\), not \['id', 'v'\]"):
        orders(spark, server).select(names)
    with pytest.raises(SourceOptionError, match="option 'where' cannot be '5': a condition is text here"):
        orders(spark, server).where(number)
    with pytest.raises(SourceOptionError, match=r"option 'where' cannot be 'v = 1\) OR \(v = 2'"):
        orders(spark, server).where("id = 1").where("v = 1) OR (v = 2")
    for long in ("v" * 100_000, "v = " + "1" * 100_000, "v = 1 " + "w" * 100_000):
        with pytest.raises(SourceOptionError, match="option 'where' cannot be") as refused:
            orders(spark, server).where(long)
        assert (len(str(refused.value)) < 1_000, refused.value.value) == (True, long)
    with pytest.raises(SourceOptionError, match="an instant with its offset"):
        orders(spark, server).as_of(datetime.datetime(2013, 7, 1))
    with pytest.raises(SourceOptionError, match="mode cursor"):
        orders(spark, server, mode="cursor").as_of(5)
    with pytest.raises(PySparkException, match=f"{ColumnNotFound.__name__}.*nothing"):
        orders(spark, server).where("nothing = 1").load()
