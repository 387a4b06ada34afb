"""Saves in Spark: what `df.write` puts into a table, in every type, and what it refuses."""

import datetime
import math
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

import weir.spark
from scanner.sync import Client
from tests.spark_source.frames import last_line, read, table_name
from tests.spark_source.key_values import contents
from tests.support import broken_transactions
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.string())])
Save = Callable[..., None]


@pytest.fixture
def table(request: pytest.FixtureRequest, client: Client) -> str:
    """A table of its own for each test, of two buckets and two rows."""
    name = table_name(request)
    table = client.create_table(name, COLUMNS, primary_key=["k"], buckets=2)
    table.write(pa.table({"k": [0, 1], "v": ["old", "old"]}, schema=COLUMNS))
    return name


@pytest.fixture
def save(server: RunningServer, table: str) -> Save:
    """Saves a DataFrame into the table."""

    def run(frame: DataFrame, *, mode: str = "append", **options: object) -> None:
        writer = frame.write.format("weir").mode(mode).options(endpoint=server.endpoint, table=table)
        writer.options(**{name: str(value) for name, value in options.items()}).save()

    return run


def refused(act: Callable[[], object]) -> str:
    """Our line of Spark's error."""
    with pytest.raises(PySparkException) as caught:
        act()
    return last_line(caught.value)


def test_append(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """An append inserts new rows and replaces those of their keys, over several tasks; columns go by name."""
    save(spark.range(1, 30_000, 1, 3).selectExpr("concat('v', id) AS v", "id AS k"))
    assert contents(client.table(table)) == {0: "old"} | {key: f"v{key}" for key in range(1, 30_000)}
    assert sum(each.end_offset for each in client.table(table).offsets()) == 2 + 2 + 29_998


def test_columns_that_are_left_out(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A save is of whole rows: a column that is left out is null."""
    save(spark.range(1, 3).selectExpr("id AS k"))
    assert contents(client.table(table)) == {0: "old", 1: None, 2: None}


def test_changes(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """Rows of change kinds are applied as such, and what else a read of changes adds is passed over."""
    rows = [
        (0, "old", "delete", 5),
        (1, "old", "update_preimage", 6),
        (1, "new", "update_postimage", 7),
        (2, "two", "insert", 8),
    ]
    columns = "k BIGINT, v STRING, _change_type STRING, _log_offset BIGINT"
    save(spark.createDataFrame(rows, columns).coalesce(1))
    assert contents(client.table(table)) == {1: "new", 2: "two"}
    save(spark.sql("SELECT 1L AS k, 'x' AS v, 'delete' AS op"), changeTypeColumn="op")
    assert contents(client.table(table)) == {2: "two"}


def test_insert_into_a_view(spark: SparkSession, server: RunningServer, client: Client, table: str) -> None:
    """A temporary view of a table can be inserted into: by place, as SQL has it, or by name."""
    options = f"endpoint '{server.endpoint}', table '{table}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW written USING weir OPTIONS ({options})")
    spark.sql("INSERT INTO written VALUES (5, 'five'), (1, 'new')")
    assert contents(client.table(table)) == {0: "old", 1: "new", 5: "five"}
    assert {tuple(row) for row in read(spark, server, table).collect()} == {
        (0, "old"),
        (1, "new"),
        (5, "five"),
    }
    spark.sql("INSERT INTO written BY NAME SELECT 'six' AS v, 6L AS k")
    spark.sql("INSERT INTO written SELECT 7L AS v, 'seven' AS k")
    assert contents(client.table(table)) == {0: "old", 1: "new", 5: "five", 6: "six", 7: "seven"}


def test_saves_of_several_threads(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A thread that has registered the format saves; of two overwrites at once all rows of one are there."""

    def overwrite(text: str) -> None:
        weir.spark.register(spark)
        save(spark.range(40).selectExpr("id AS k", f"'{text}' AS v").coalesce(1), mode="overwrite")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(overwrite, ("one", "two")))
    assert contents(client.table(table)) in [dict.fromkeys(range(40), text) for text in ("one", "two")]


def test_a_version_that_is_saved_again(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A job that is run again under its name and version adds nothing; an older version is an error."""
    frame = spark.range(1, 3).selectExpr("id AS k", "'first' AS v")
    save(frame, txnName="nightly", txnVersion=2)
    save(frame.selectExpr("k + 10 AS k", "'again' AS v"), txnName="nightly", txnVersion=2)
    assert contents(client.table(table)) == {0: "old", 1: "first", 2: "first"}
    line = refused(lambda: save(frame, txnName="nightly", txnVersion=1))
    assert line.startswith("scanner.errors.VersionSuperseded: ")


def test_for_each_batch(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """In foreachBatch the number of the batch is the version, and a batch that is run again adds nothing."""
    for batch, rows in [(0, 1), (0, 2), (1, 3)]:
        save(spark.range(rows).selectExpr("id AS k", "'new' AS v"), txnName="query", txnVersion=batch)
    assert contents(client.table(table)) == {0: "new", 1: "new", 2: "new"}


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (
            "'x' AS v",
            {},
            "SourceSchemaError: the DataFrame has no column 'k', which is part of the primary key",
        ),
        ("id AS k, id AS x", {}, "SourceSchemaError: table "),
        ("id AS k, id AS v", {}, "SourceSchemaError: column 'v' is bigint, and the table's is string"),
        ("id AS k", {"where": "k > 1"}, "SourceOptionError: option 'where' is one of reading"),
        ("id AS k", {"txnNme": "a"}, "SourceOptionError: unknown option 'txnnme'; did you mean 'txnName'?"),
        ("id AS k", {"txnName": "a"}, "SourceOptionError: option 'txnName' needs option 'txnVersion'"),
        ("id AS k", {"table": "missing"}, "TableNotFound: "),
    ],
)
def test_what_is_refused(
    spark: SparkSession,
    server: RunningServer,
    client: Client,
    columns: str,
    options: dict[str, str],
    expected: str,
) -> None:
    """What cannot be written is refused in one line before a task begins."""
    name = "refused"
    client.create_table(name, COLUMNS, primary_key=["k"], buckets=1, exist_ok=True)
    frame = spark.range(3).selectExpr(*columns.split(", "))
    given = {"endpoint": server.endpoint, "table": name} | options
    group = f"refused {columns} {options}"
    spark.sparkContext.setJobGroup(group, "")
    try:
        line = refused(lambda: frame.write.format("weir").mode("append").options(**given).save())
        assert expected in line
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert contents(client.table(name)) == {}


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_other_modes(spark: SparkSession, client: Client, table: str, save: Save, mode: str) -> None:
    """Modes that ask whether there is a table are refused by Spark; nothing is written."""
    with pytest.raises(PySparkException) as caught:
        save(spark.range(1).selectExpr("id AS k", "'new' AS v"), mode=mode)
    assert caught.value.getCondition() == "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
    assert contents(client.table(table)) == {0: "old", 1: "old"}


def test_overwrite(
    spark: SparkSession, server: RunningServer, client: Client, table: str, save: Save
) -> None:
    """An overwriting save leaves its rows alone, also if they are made of the table's own."""
    save(spark.range(1, 4).selectExpr("id AS k", "'new' AS v"), mode="overwrite")
    assert contents(client.table(table)) == {1: "new", 2: "new", 3: "new"}
    own = read(spark, server, table).where("k > 1").selectExpr("k", "concat(v, '!') AS v")
    save(own, mode="overwrite")
    assert contents(client.table(table)) == {2: "new!", 3: "new!"}
    save(spark.range(0).selectExpr("id AS k"), mode="overwrite")
    assert contents(client.table(table)) == {}


def test_a_task_that_fails(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A null key fails its task and with it the save: no row of any task is seen, and no stage is left."""
    frame = spark.range(0, 6, 1, 3).selectExpr("CASE WHEN id = 5 THEN NULL ELSE id END AS k", "'new' AS v")
    assert "KeyInvalid" in refused(lambda: save(frame))
    assert contents(client.table(table)) == {0: "old", 1: "old"}
    assert sum(each.stages for each in client.table(table).transactions()) == 0


def test_one_key_in_two_tasks(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A key that two tasks write is refused by name; repartitioned by key, the save is taken."""
    frame = spark.range(0, 4, 1, 4).selectExpr("id % 2 + 7 AS k", "'new' AS v")
    assert "scanner.errors.PartsConflict: " in refused(lambda: save(frame))
    assert contents(client.table(table)) == {0: "old", 1: "old"}
    save(frame.repartition("k"))
    assert contents(client.table(table)) == {0: "old", 1: "old", 7: "new", 8: "new"}


def test_rows_that_the_server_lost(spark: SparkSession, client: Client, table: str, save: Save) -> None:
    """A save whose tasks staged more than the server has is refused as a whole; with all of it, it is taken."""
    frame = spark.range(2, 42, 1, 2).selectExpr("id AS k", "'new' AS v")
    with pytest.MonkeyPatch.context() as patch:
        broken_transactions.stage_half(patch)
        line = refused(lambda: save(frame))
    assert "scanner.errors.StageNotFound: of part 0, attempt " in line
    assert "at least 20 rows and keys were staged" in line
    assert contents(client.table(table)) == {0: "old", 1: "old"}
    save(frame)
    assert len(contents(client.table(table))) == 42


STORED: dict[str, tuple[pa.DataType, spark_types.DataType, list[object]]] = {
    "t": (pa.bool_(), spark_types.BooleanType(), [True, False]),
    "i8": (pa.int8(), spark_types.ByteType(), [-(2**7), 2**7 - 1]),
    "i16": (pa.int16(), spark_types.ShortType(), [-(2**15), 2**15 - 1]),
    "i32": (pa.int32(), spark_types.IntegerType(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), spark_types.LongType(), [-(2**63), 2**63 - 1]),
    "wide": (pa.int64(), spark_types.ByteType(), [-(2**7), 2**7 - 1]),
    "f32": (pa.float32(), spark_types.FloatType(), [-0.0, math.nan]),
    "f64": (pa.float64(), spark_types.DoubleType(), [5e-324, -math.inf]),
    "x38_10": (
        pa.decimal128(38, 10),
        spark_types.DecimalType(38, 10),
        [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")],
    ),
    "x5_2": (pa.decimal128(12, 4), spark_types.DecimalType(5, 2), [Decimal("-999.99"), Decimal("0.01")]),
    "d": (pa.date32(), spark_types.DateType(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "s": (pa.string(), spark_types.StringType(), ["", "Zürich 🚂\0" * 1000]),
    "b": (pa.binary(), spark_types.BinaryType(), [b"", bytes(range(256))]),
    "ntz": (
        pa.timestamp("us"),
        spark_types.TimestampNTZType(),
        [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)],
    ),
    "tz": (
        pa.timestamp("us", tz="UTC"),
        spark_types.TimestampType(),
        [
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC),
            datetime.datetime(2013, 3, 10, 7, 30, 0, 1, datetime.UTC),
        ],
    ),
    "tz_s": (
        pa.timestamp("s", tz="Asia/Kolkata"),
        spark_types.TimestampType(),
        [
            datetime.datetime(2013, 3, 10, 7, 30, tzinfo=datetime.UTC),
            datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        ],
    ),
}
"""Of every stored type two values that lie at its edges, and the type in which Spark has them."""


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_type(spark: SparkSession, server: RunningServer, client: Client, zone: str) -> None:
    """The edges of every type, and nulls, go from Spark into a table and back unchanged, wherever the session lives."""
    name = "types_" + zone.partition("/")[0]
    schema = pa.schema([("k", pa.int64()), *((column, stored) for column, (stored, _, _) in STORED.items())])
    client.create_table(name, schema, primary_key=["k"], buckets=1)
    rows = [[row, *(values[row] for _, _, values in STORED.values())] for row in range(2)]
    rows.append([2, *(None for _ in STORED)])
    fields = [spark_types.StructField(column, kind) for column, (_, kind, _) in STORED.items()]
    frame_schema = spark_types.StructType([spark_types.StructField("k", spark_types.LongType()), *fields])
    kinds = pa.schema([("k", pa.int64()), *((column, _arrow(column)) for column in STORED)])
    given = pa.Table.from_pylist([dict(zip(kinds.names, row, strict=True)) for row in rows], kinds)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(given, frame_schema)
        frame.write.format("weir").mode("append").options(endpoint=server.endpoint, table=name).save()
        back = read(spark, server, name).orderBy("k").toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = client.table(name).new_scan().to_arrow().sort_by("k")
    for column, (kind, _, _) in STORED.items():
        expected = [bits(value) for value in given.column(column).cast(kind).to_pylist()]
        assert [bits(value) for value in stored.column(column).to_pylist()] == expected, column
        seen = back.column(column).cast(given.column(column).type if column not in ("wide", "x5_2") else kind)
        assert [bits(value) for value in seen.to_pylist()] == [
            bits(value) for value in given.column(column).cast(seen.type).to_pylist()
        ], column


def _arrow(column: str) -> pa.DataType:
    """As what Spark takes the values of a column."""
    stored, kind, _ = STORED[column]
    if isinstance(kind, spark_types.TimestampType):
        return pa.timestamp("us", tz="UTC")
    return {"wide": pa.int8(), "x5_2": pa.decimal128(5, 2)}.get(column, stored)


def bits(value: object) -> object:
    """A float as its bits, so that NaN equals itself and -0.0 is not 0.0; an instant in UTC; else as it is."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    return value


def test_a_time_that_the_unit_cannot_hold(spark: SparkSession, server: RunningServer, client: Client) -> None:
    """A time that is finer than the table's unit fails its task and names the column; nothing is cut."""
    client.create_table("seconds", pa.schema([("k", pa.int64()), ("t", pa.timestamp("s"))]), ["k"], 1)
    frame = spark.sql("SELECT 1L AS k, TIMESTAMP_NTZ '2013-07-01 12:30:00.000001' AS t")
    writer = frame.write.format("weir").mode("append").options(endpoint=server.endpoint, table="seconds")
    line = refused(writer.save)
    assert line.startswith("scanner.errors.SchemaMismatch: column 't' is timestamp[us]")
    assert client.table("seconds").new_scan().to_arrow().num_rows == 0
