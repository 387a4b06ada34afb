"""What a DataFrame's columns become is decided by name and type before a row is written."""

import itertools

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from scanner import TableDescription
from spark_source import SourceSchemaError
from spark_source.options import SourceOptions
from spark_source.writing.options import WriteOptions
from spark_source.writing.plan import WritePlan, plan_write
from tests.support.pickling import sent_to_worker

OPTIONS = WriteOptions(target=SourceOptions(endpoint="127.0.0.1:9123", table="orders"))
ORDERS = TableDescription(
    "orders",
    pa.schema(
        [
            ("id", pa.int64()),
            ("line", pa.int32()),
            ("item", pa.string()),
            pa.field("price", pa.float64(), nullable=False),
        ]
    ),
    ("id", "line"),
    4,
)
WHOLE = "id BIGINT, line INT, item STRING, price DOUBLE"

DECIMALS = [(1, 0), (10, 2), (12, 2), (12, 4), (38, 10), (38, 38)]
SPARK_TYPES: dict[spark.DataType, pa.DataType] = {
    spark.BooleanType(): pa.bool_(),
    spark.ByteType(): pa.int8(),
    spark.ShortType(): pa.int16(),
    spark.IntegerType(): pa.int32(),
    spark.LongType(): pa.int64(),
    spark.FloatType(): pa.float32(),
    spark.DoubleType(): pa.float64(),
    spark.DateType(): pa.date32(),
    spark.StringType(): pa.string(),
    spark.BinaryType(): pa.binary(),
    spark.TimestampType(): pa.timestamp("us", tz="UTC"),
    spark.TimestampNTZType(): pa.timestamp("us"),
    **{spark.DecimalType(*of): pa.decimal128(*of) for of in DECIMALS},
}
STORED = [
    *SPARK_TYPES.values(),
    *(pa.timestamp(unit, tz=tz) for unit in ("s", "ms", "ns") for tz in (None, "Asia/Kolkata")),
]
WIDER = {
    (pa.int8(), pa.int16()),
    (pa.int8(), pa.int32()),
    (pa.int8(), pa.int64()),
    (pa.int16(), pa.int32()),
    (pa.int16(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    *(
        (pa.decimal128(*of), pa.decimal128(*to))
        for of, to in [
            ((1, 0), (10, 2)),
            ((1, 0), (12, 2)),
            ((1, 0), (12, 4)),
            ((1, 0), (38, 10)),
            ((10, 2), (12, 2)),
            ((10, 2), (12, 4)),
            ((10, 2), (38, 10)),
            ((12, 2), (38, 10)),
            ((12, 4), (38, 10)),
        ]
    ),
}
"""Of each pair the second type holds every value of the first."""


def schema(ddl: str) -> spark.StructType:
    """Columns as Spark's DDL names them, all nullable. (Spark's own parser needs a JVM.)"""
    names = {each.simpleString(): each for each in SPARK_TYPES} | {"BIGINT": spark.LongType()}
    fields = [column.split() for column in ddl.split(", ")]
    return spark.StructType(
        [spark.StructField(name, names.get(kind) or names[kind.lower()]) for name, kind in fields]
    )


def plan(ddl: str, options: WriteOptions = OPTIONS, table: TableDescription = ORDERS) -> WritePlan:
    """The plan of a write of these columns."""
    return plan_write(schema(ddl), table, 7, options)


def refused(ddl: str, options: WriteOptions = OPTIONS, table: TableDescription = ORDERS) -> str:
    """The one line in which such a plan is refused."""
    with pytest.raises(SourceSchemaError) as caught:
        plan(ddl, options, table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_whole_rows() -> None:
    """Columns go by name, in any order."""
    found = plan("price DOUBLE, id BIGINT, item STRING, line INT")
    assert found == WritePlan(
        table_id=7, key=("id", "line"), columns=("price", "id", "item", "line"), absent=(), change_type=None
    )
    assert sent_to_worker(found) == found


def test_a_nullable_column_may_be_absent() -> None:
    """What the DataFrame has not, and may be null, is null."""
    assert plan("id BIGINT, line INT, price DOUBLE").absent == (pa.field("item", pa.string()),)


def test_changes() -> None:
    """A column of change kinds is none of the table's, nor are the others that a read of changes adds."""
    found = plan(f"_change_type STRING, {WHOLE}, _log_offset BIGINT, _commit_timestamp TIMESTAMP")
    assert found.change_type == "_change_type"
    assert found.columns == ("id", "line", "item", "price")
    assert found.of_log
    assert not plan(f"_change_type STRING, {WHOLE}").of_log


def test_a_table_of_such_columns() -> None:
    """A table that itself has columns as a read of changes adds them is written as it is."""
    table = TableDescription(
        "t", ORDERS.schema.append(pa.field("_log_offset", pa.int64())), ("id", "line"), 1
    )
    assert "_log_offset" in plan(f"{WHOLE}, _log_offset BIGINT, _change_type STRING", table=table).columns


def test_named_changes() -> None:
    """The column of change kinds is the one that the option names, and has to be there if it does."""
    named = WriteOptions(target=OPTIONS.target, change_type_column="op", requires_change_type=True)
    assert plan(f"{WHOLE}, op STRING", named).change_type == "op"
    assert (
        refused(WHOLE, named) == "option 'changeTypeColumn' names 'op', and the DataFrame has no such column"
    )
    assert refused(f"{WHOLE}, op INT", named).startswith(
        "column 'op' says what kind of change a row is, and is int"
    )


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        (
            "id BIGINT, item STRING, price DOUBLE",
            "the DataFrame has no column 'line', which is part of the primary",
        ),
        (
            "id BIGINT, line INT, item STRING",
            "the DataFrame has no column 'price', which is not nullable in table",
        ),
        (
            f"{WHOLE}, note STRING",
            "table orders has no column 'note' (it has id, line, item, price): drop it",
        ),
        (f"{WHOLE}, Item STRING", "table orders has no column 'Item'; did you mean 'item'?"),
        (f"{WHOLE}, item STRING", "column 'item' is there twice"),
        (f"{WHOLE}, _log_offset BIGINT", "table orders has no column '_log_offset'"),
        (
            "id BIGINT, line BIGINT, item STRING, price DOUBLE",
            "column 'line' is bigint, and the table's is int32, which does not hold all of its values: cast it",
        ),
    ],
)
def test_what_is_refused(ddl: str, expected: str) -> None:
    """What is missing, unknown or does not fit is refused by name."""
    assert refused(ddl).startswith(expected)


def test_of_many_columns_the_first_are_listed() -> None:
    """A table may have thousands, whose names nobody reads in a line."""
    wide = TableDescription("wide", pa.schema([(f"c{i}", pa.int64()) for i in range(100)]), ("c0",), 1)
    with pytest.raises(SourceSchemaError, match=r"\(it has c0, c1, .*, c19 and 80 more\): drop it"):
        plan("c0 BIGINT, note STRING", table=wide)


def test_changes_do_not_overwrite() -> None:
    """Changes of a table are not all of its rows, so a plan to overwrite it by them is refused."""
    with pytest.raises(SourceSchemaError, match="changes of a table, which cannot overwrite it"):
        plan_write(schema(f"{WHOLE}, _change_type STRING"), ORDERS, 7, OPTIONS, overwrite=True)
    assert plan_write(schema(WHOLE), ORDERS, 7, OPTIONS, overwrite=True).overwrite


def test_a_table_with_a_column_of_that_name() -> None:
    """A column of change kinds that the table has too is refused: either reading of it would be a guess."""
    table = TableDescription(
        "t", ORDERS.schema.append(pa.field("_change_type", pa.string())), ("id", "line"), 1
    )
    assert "itself: write its rows with the client" in refused(f"{WHOLE}, _change_type STRING", table=table)


@pytest.mark.parametrize("given", SPARK_TYPES, ids=lambda kind: kind.simpleString())
def test_every_pair_of_types(given: spark.DataType) -> None:
    """A column fits one of its own type, one that holds every value of it, and a timestamp of another unit."""
    for stored in STORED:
        table = TableDescription("t", pa.schema([("k", pa.int64()), ("v", stored)]), ("k",), 1)
        columns = spark.StructType([spark.StructField("k", spark.LongType()), spark.StructField("v", given)])
        of = SPARK_TYPES[given]
        times = (
            pa.types.is_timestamp(of)
            and pa.types.is_timestamp(stored)
            and (of.tz is None) == (stored.tz is None)
        )
        if of == stored or (of, stored) in WIDER or times:
            assert plan_write(columns, table, 1, OPTIONS).columns == ("k", "v")
        else:
            with pytest.raises(
                SourceSchemaError, match=r"column 'v' is .* cast it in Spark before the write"
            ):
                plan_write(columns, table, 1, OPTIONS)


@pytest.mark.parametrize(
    "given",
    [
        spark.ArrayType(spark.LongType()),
        spark.StructType([spark.StructField("a", spark.LongType())]),
        spark.MapType(spark.StringType(), spark.LongType()),
        spark.NullType(),
        spark.DayTimeIntervalType(),
        spark.YearMonthIntervalType(),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_types_that_no_table_has(given: spark.DataType) -> None:
    """A type that no table has is refused by name, and the message says what the table's is."""
    columns = schema("id BIGINT, line INT, price DOUBLE").add("item", given)
    with pytest.raises(
        SourceSchemaError, match=r"column 'item' is .*: cast it to the table's string before the write"
    ):
        plan_write(columns, ORDERS, 7, OPTIONS)


@pytest.mark.parametrize(
    "given", [spark.VarcharType(3), spark.CharType(3), spark.StringType("UTF8_LCASE")], ids=str
)
def test_strings_of_every_kind(given: spark.DataType) -> None:
    """A string is a string, whatever its collation or length."""
    columns = schema("id BIGINT, line INT, price DOUBLE").add("item", given)
    assert "item" in plan_write(columns, ORDERS, 7, OPTIONS).columns


def test_what_a_schema_says_of_nulls() -> None:
    """A nullable column may go to one that is not: Spark calls nearly every column nullable."""
    for nullable in itertools.product([True, False], repeat=2):
        columns = schema("id BIGINT, line INT, price DOUBLE")
        columns["id"].nullable, columns["price"].nullable = nullable
        assert plan_write(columns, ORDERS, 7, OPTIONS).columns == ("id", "line", "price")
