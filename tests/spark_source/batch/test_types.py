"""Every stored type in Spark, from a real server: extremes, odd values, nulls, and times in sessions of other zones."""

import datetime
import math
import struct
from collections.abc import Iterator
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from scanner.sync import Client
from spark_source.options import MODES
from tests.spark_source.frames import last_line, read
from tests.support.server import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.rocks, pytest.mark.socket]

US = 10**6
MIDDLE_US = 1_357_017_300 * US  # 2013-01-01 05:15:00 UTC
TIMES_US = {
    "s": [-62_135_596_800 * US, 253_402_300_799 * US, -12_219_292_801 * US, 0, MIDDLE_US, None],
    "ms": [-62_135_596_800 * US, 253_402_300_800 * US - 1000, -1000, 0, MIDDLE_US + 123_000, None],
    "us": [-62_135_596_800 * US, 253_402_300_800 * US - 1, -1, 0, MIDDLE_US + 123_456, None],
    "ns": [-9_223_372_036_854_775, 9_223_372_036_854_775, -1, 0, MIDDLE_US + 123_456, None],
}
"""Microseconds since 1970, of a unit's least and largest value that Spark holds, and of others."""
PER_US = {"s": (1, US), "ms": (1, 1000), "us": (1, 1), "ns": (1000, 1)}
VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "t": (pa.bool_(), [False, True, True, False, True, None]),
    **{
        f"i{bits}": (getattr(pa, f"int{bits}")(), [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0, 1, None])
        for bits in (8, 16, 32, 64)
    },
    "f32": (pa.float32(), [-3.4028234663852886e38, math.inf, math.nan, -0.0, 2.0**-149, None]),
    "f64": (pa.float64(), [-1.7976931348623157e308, -math.inf, math.nan, -0.0, 5e-324, None]),
    **{
        f"x{precision}_{scale}": (
            pa.decimal128(precision, scale),
            [
                None if number is None else Decimal(number).scaleb(-scale, Context(prec=38))
                for number in (-(10**precision) + 1, 10**precision - 1, -1, 0, 7, None)
            ],
        )
        for precision, scale in ((1, 0), (1, 1), (18, 2), (19, 2), (38, 0), (38, 10), (38, 38))
    },
    "d": (
        pa.date32(),
        [
            datetime.date(*day)
            for day in ((1, 1, 1), (9999, 12, 31), (1582, 10, 14), (1970, 1, 1), (2013, 7, 1))
        ]
        + [None],
    ),
    "s": (pa.string(), ["", "Zürich 🚂", "\0", " ", "x" * 100_000, None]),
    "b": (pa.binary(), [b"", bytes(range(256)), b"\0", b" ", b"x" * 100_000, None]),
}
"""Of every stored type the least and the largest value, odd ones, and null."""


def every_value() -> pa.Table:
    """A table of them all, times in every unit, with and without a zone."""
    columns: dict[str, pa.Array] = {"key": pa.array(range(6))}
    columns |= {name: pa.array(values, kind) for name, (kind, values) in VALUES.items()}
    for unit, times in TIMES_US.items():
        numbers = pa.array(
            [None if each is None else each * PER_US[unit][0] // PER_US[unit][1] for each in times]
        )
        columns[f"ntz_{unit}"] = numbers.cast(pa.timestamp(unit))
        for zone in ("UTC", "Asia/Kolkata", "-08:00"):
            columns[f"tz_{unit}_{zone}"] = numbers.cast(pa.timestamp(unit, tz=zone))
    return pa.table(columns)


def bits(value: object) -> object:
    """A float as its bits, so that NaN equals itself and -0.0 is not 0.0; anything else as it is."""
    return struct.pack("<d", value) if isinstance(value, float) else value


@pytest.fixture(params=["UTC", "America/New_York"])
def session_zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A time zone of the Spark session, for one test."""
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("session_zone")
def test_every_value(spark: SparkSession, server: RunningServer, client: Client) -> None:
    """The extremes of every stored type, odd values and nulls arrive as they were written, wherever Spark lives."""
    written = every_value()
    if "every_value" not in {each.name for each in client.tables()}:
        client.create_table("every_value", written.schema, primary_key=["key"], buckets=1).write(written)
    # Through Arrow, so that Python's own time zone has no part in it.
    got = read(spark, server, "every_value").toArrow()
    for name, (_, values) in VALUES.items():
        assert list(map(bits, got.column(name).to_pylist())) == list(map(bits, values)), name
    for name in got.column_names:
        if name.startswith(("ntz", "tz")):
            assert got.column(name).cast(pa.int64()).to_pylist() == TIMES_US[name.split("_")[1]], name


@pytest.mark.parametrize("mode", MODES)
def test_every_type(spark: SparkSession, server: RunningServer, client: Client, mode: str) -> None:
    """A value of every stored type, and a null of every one, arrives as it was written, in every mode."""
    name = f"types_{mode}"
    written = every_value().slice(4)
    client.create_table(name, written.schema, primary_key=["key"], buckets=1).write(written)
    got = read(spark, server, name, mode=mode).toArrow()
    for column in written.column_names:
        kind = got.schema.field(column).type
        assert got.column(column).to_pylist() == written.column(column).cast(kind).to_pylist(), column


def test_times_as_users_see_them(
    spark: SparkSession, server: RunningServer, client: Client, session_zone: str
) -> None:
    """An instant is shown in the session's zone, a time without one as it was written; both compare as themselves."""
    noon = datetime.datetime(2013, 7, 1, 12, 30)
    name = f"times_{session_zone.partition('/')[0]}"
    rows = pa.table(
        {
            "k": [1],
            "ntz": pa.array([noon], pa.timestamp("ms")),
            "tz": pa.array([noon.replace(tzinfo=datetime.UTC)], pa.timestamp("ns", tz="Asia/Kolkata")),
        }
    )
    client.create_table(name, rows.schema, primary_key=["k"], buckets=1).write(rows)
    frame = read(
        spark,
        server,
        name,
        where="ntz = TIMESTAMP '2013-07-01 12:30:00' AND tz > TIMESTAMP '2013-07-01 12:29:59Z'",
    )
    kept = frame.where("ntz = TIMESTAMP_NTZ '2013-07-01 12:30:00' AND tz = TIMESTAMP '2013-07-01 12:30:00Z'")
    shown = kept.selectExpr("CAST(ntz AS STRING) AS a", "CAST(tz AS STRING) AS b", "ntz")
    local = {"UTC": "2013-07-01 12:30:00", "America/New_York": "2013-07-01 08:30:00"}[session_zone]
    assert list(map(tuple, shown.collect())) == [("2013-07-01 12:30:00", local, noon)]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.timestamp("s"), 253_402_300_800),
        (pa.timestamp("s", tz="UTC"), 2**62),
        (pa.timestamp("ms"), -(2**63)),
        (pa.timestamp("us", tz="Europe/Berlin"), -62_135_596_800_000_001),
        (pa.date32(), 2_932_897),
    ],
    ids=str,
)
def test_times_that_spark_cannot_hold(
    spark: SparkSession,
    server: RunningServer,
    client: Client,
    kind: pa.DataType,
    number: int,
    request: pytest.FixtureRequest,
) -> None:
    """A time past Spark's range fails the read and names the column."""
    name = "past_range_" + "".join(filter(str.isalnum, request.node.name))
    numbers = pa.array([number], pa.int32() if pa.types.is_date32(kind) else pa.int64())
    rows = pa.table({"k": pa.array([1]), "t": numbers.cast(kind)})
    client.create_table(name, rows.schema, primary_key=["k"], buckets=1).write(rows)
    with pytest.raises(PySparkException) as caught:
        read(spark, server, name).collect()
    assert last_line(caught.value).startswith("spark_source.errors.SourceSchemaError: column 't' holds ")


def test_nanoseconds_that_spark_cannot_hold(
    spark: SparkSession, server: RunningServer, client: Client
) -> None:
    """A value finer than a microsecond fails the read and names the column; the other columns can be read."""
    rows = pa.table({"k": pa.array([1]), "t": pa.array([1_001], pa.timestamp("ns"))})
    client.create_table("nanoseconds", rows.schema, primary_key=["k"], buckets=1).write(rows)
    with pytest.raises(PySparkException) as caught:
        read(spark, server, "nanoseconds").collect()
    assert last_line(caught.value).startswith(
        "spark_source.errors.SourceSchemaError: column 't' holds a timestamp[ns]"
    )
    assert read(spark, server, "nanoseconds", columns="k").collect() == [(1,)]
