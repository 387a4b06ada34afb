"""Every stored type has one Spark type, and batches arrive in exactly the schema that Spark derives from it."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from spark_source import SourceSchemaError
from spark_source.schema import STATISTICS_COLUMN, arrow_schema, check_schema, spark_schema, to_spark_batch

TYPES: list[tuple[pa.DataType, spark.DataType]] = [
    (pa.bool_(), spark.BooleanType()),
    (pa.int8(), spark.ByteType()),
    (pa.int16(), spark.ShortType()),
    (pa.int32(), spark.IntegerType()),
    (pa.int64(), spark.LongType()),
    (pa.float32(), spark.FloatType()),
    (pa.float64(), spark.DoubleType()),
    (pa.decimal128(1, 0), spark.DecimalType(1, 0)),
    (pa.decimal128(12, 2), spark.DecimalType(12, 2)),
    (pa.decimal128(38, 38), spark.DecimalType(38, 38)),
    (pa.date32(), spark.DateType()),
    *[(pa.timestamp(unit), spark.TimestampNTZType()) for unit in ("s", "ms", "us", "ns")],
    *[(pa.timestamp(unit, tz="Europe/Berlin"), spark.TimestampType()) for unit in ("s", "ms", "us", "ns")],
    (pa.string(), spark.StringType()),
    (pa.binary(), spark.BinaryType()),
]
EVERY_TYPE = pa.schema([pa.field(f"c{index}", kind) for index, (kind, _) in enumerate(TYPES)])


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(("kind", "expected"), TYPES, ids=str)
def test_types(kind: pa.DataType, expected: spark.DataType, nullable: bool) -> None:
    """A column keeps its name and nullability, and gets the Spark type of the same values."""
    mapped = spark_schema(pa.schema([pa.field("c", kind, nullable=nullable)]))
    assert mapped == spark.StructType([spark.StructField("c", expected, nullable)])


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.date64(),
        pa.time64("us"),
        pa.duration("s"),
        pa.list_(pa.int8()),
        pa.decimal256(40, 2),
        pa.decimal128(5, -2),
        pa.decimal128(3, 5),
        pa.large_string(),
        pa.null(),
    ],
    ids=str,
)
def test_types_without_a_counterpart(kind: pa.DataType) -> None:
    """A type that Spark SQL does not have is refused, naming the column, the type and the way round it."""
    with pytest.raises(
        SourceSchemaError, match=r"column 'c' is .*leave the column out with option 'columns'"
    ) as caught:
        spark_schema(pa.schema([("c", kind)]))
    assert str(kind) in str(caught.value)


def test_arrow_schema_is_what_spark_expects() -> None:
    """The schema of our batches equals the one Spark compares them with, nullability included."""
    mixed = pa.schema([field.with_nullable(index % 2 == 0) for index, field in enumerate(EVERY_TYPE)])
    schema = spark_schema(mixed)
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_arrow_schema_of_foreign_types() -> None:
    """A type that no table has cannot be asked for."""
    wanted = spark.StructType([spark.StructField("c", spark.ArrayType(spark.LongType()))])
    with pytest.raises(SourceSchemaError, match="column 'c' is array<bigint>"):
        arrow_schema(wanted)


def test_statistics_column() -> None:
    """With statistics all columns become nullable and the report's column is the last."""
    schema = spark_schema(pa.schema([pa.field("k", pa.int64(), nullable=False)]), statistics=True)
    assert schema.simpleString() == f"struct<k:bigint,{STATISTICS_COLUMN}:string>"
    assert all(field.nullable for field in schema.fields)


def test_statistics_column_is_taken() -> None:
    """A table that has a column of that name can be read without statistics only."""
    taken = pa.schema([(STATISTICS_COLUMN, pa.string())])
    assert spark_schema(taken).fieldNames() == [STATISTICS_COLUMN]
    with pytest.raises(SourceSchemaError, match="without option 'statistics'"):
        spark_schema(taken, statistics=True)


def test_batch_that_fits_is_not_copied() -> None:
    """Columns that have Spark's type already are handed on as they are."""
    batch = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", None]})
    converted = to_spark_batch(batch, batch.schema)
    assert converted.equals(batch)
    assert converted.column("a").buffers()[1].address == batch.column("a").buffers()[1].address


def test_batch_takes_columns_by_name() -> None:
    """The order is the target's."""
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    target = pa.schema([("b", pa.string()), ("a", pa.int64())])
    assert to_spark_batch(batch, target).to_pylist() == [{"b": "x", "a": 1}]


def test_batch_gets_an_empty_statistics_column() -> None:
    """Rows of the table have no report."""
    target = pa.schema([("a", pa.int64()), (STATISTICS_COLUMN, pa.string())])
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    assert to_spark_batch(batch, target).column(STATISTICS_COLUMN).null_count == 2


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_keep_their_instant(unit: str, zone: str | None) -> None:
    """Every unit becomes microseconds, every zone UTC, and no instant moves; nulls stay."""
    instant = datetime.datetime(2013, 7, 1, 12, 30, 5, tzinfo=datetime.UTC if zone else None)
    batch = pa.RecordBatch.from_arrays([pa.array([instant, None], pa.timestamp(unit, tz=zone))], names=["t"])
    target = arrow_schema(spark_schema(batch.schema))
    converted = to_spark_batch(batch, target)
    assert converted.schema.field("t").type == pa.timestamp("us", tz="UTC" if zone else None)
    assert converted.column("t").to_pylist() == [instant, None]


def test_timestamps_finer_than_a_microsecond() -> None:
    """A nanosecond that Spark cannot hold is an error that names the column, never a rounded value."""
    batch = pa.RecordBatch.from_arrays([pa.array([1_001], pa.timestamp("ns"))], names=["t"])
    with pytest.raises(SourceSchemaError, match=r"column 't' holds a timestamp\[ns\].*option 'columns'"):
        to_spark_batch(batch, pa.schema([("t", pa.timestamp("us"))]))


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_timestamps_at_the_ends_of_sparks_range(unit: str, zone: str | None) -> None:
    """The first and the last instant of the years 1 to 9999 are read, and the next ones are refused by name."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    first, last = -62_135_596_800 * per_second, 253_402_300_800 * per_second - 1
    assert _converted(pa.array([first, last, None]), pa.timestamp(unit, tz=zone)) is not None
    for outside in (first - 1, last + 1, -(2**63), 2**63 - 1):
        with pytest.raises(SourceSchemaError, match=r"column 't' holds .*option 'columns'"):
            _converted(pa.array([None, outside, 0]), pa.timestamp(unit, tz=zone))


def test_dates_at_the_ends_of_sparks_range() -> None:
    """Likewise for dates."""
    first, last = -719_162, 2_932_896
    assert _converted(pa.array([first, None, last], pa.int32()), pa.date32()) is not None
    for outside in (first - 1, last + 1, -(2**31), 2**31 - 1):
        with pytest.raises(SourceSchemaError, match=r"column 't' holds .* days since 1970.*option 'columns'"):
            _converted(pa.array([0, outside], pa.int32()), pa.date32())


def _converted(numbers: pa.Array, kind: pa.DataType) -> pa.RecordBatch:
    """Numbers, as a column of that type, as Spark gets it."""
    batch = pa.RecordBatch.from_arrays([numbers.cast(kind)], names=["t"])
    return to_spark_batch(batch, arrow_schema(spark_schema(batch.schema)))


def test_values_survive() -> None:
    """A row of every type and a row of nulls arrive as they were."""
    row = [True, 1, 2, 3, 4, 0.5, 0.25, Decimal(7), Decimal("1234567890.12"), Decimal("0.5")]
    row += [datetime.date(2013, 1, 1)]
    row += [datetime.datetime(2013, 1, 1, 5, 15)] * 4
    row += [datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)] * 4
    row += ["ä", b"\x00\xff"]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([value, None], kind) for value, (kind, _) in zip(row, TYPES, strict=True)],
        schema=EVERY_TYPE,
    )
    converted = to_spark_batch(batch, arrow_schema(spark_schema(EVERY_TYPE)))
    assert list(converted.to_pylist()[0].values()) == row
    assert set(converted.to_pylist()[1].values()) == {None}


AVAILABLE = spark_schema(pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())]))


@pytest.mark.parametrize("ddl", ["k bigint not null, v string", "k bigint", "v string, k bigint"])
def test_schemas_that_fit(ddl: str) -> None:
    """Some of the columns, in any order, nullable or as strict as the table, may be asked for."""
    check_schema(_struct(ddl), AVAILABLE)


def test_of_many_columns_the_first_are_listed() -> None:
    """A table may have thousands, whose names nobody reads in a line."""
    wide = _struct(", ".join(f"c{each} bigint" for each in range(100)))
    with pytest.raises(SourceSchemaError, match=r"it has c0, c1, .*, c19 and 80 more$"):
        check_schema(_struct("nope bigint"), wide)


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("k bigint, w string", "the table has no column 'w'; it has k, v"),
        ("k int", "column 'k' is bigint, not int: read it as it is and cast it in Spark"),
        ("v string not null", "column 'v' can be null: do not declare it NOT NULL"),
    ],
)
def test_schemas_that_do_not_fit(ddl: str, problem: str) -> None:
    """What the table cannot deliver is refused before anything is read."""
    with pytest.raises(SourceSchemaError) as caught:
        check_schema(_struct(ddl), AVAILABLE)
    assert str(caught.value) == problem


def test_schema_without_the_statistics_column() -> None:
    """Statistics have to go somewhere."""
    available = spark_schema(pa.schema([("k", pa.int64())]), statistics=True)
    with pytest.raises(SourceSchemaError, match=f"needs a column {STATISTICS_COLUMN} STRING"):
        check_schema(_struct("k bigint"), available)


def _struct(ddl: str) -> spark.StructType:
    """A schema from a few words, without the JVM that Spark's own parser needs."""
    names = {"bigint": spark.LongType(), "int": spark.IntegerType(), "string": spark.StringType()}
    fields = [column.split(maxsplit=2) for column in ddl.split(", ")]
    return spark.StructType([spark.StructField(name, names[kind], not rest) for name, kind, *rest in fields])
