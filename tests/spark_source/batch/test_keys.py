"""Bounds of the key are read as their columns' types, exactly, or refused with how to write them."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner import ColumnNotFound, TableDescription
from spark_source import SourceOptionError, WeirDataSource
from spark_source.batch.keys import key_prefix

if TYPE_CHECKING:
    from scanner.sync import Client
    from tests.support.server import RunningServer

NOON = datetime.datetime(2013, 7, 1, 12, 30)
TWO_HOURS = datetime.timezone(datetime.timedelta(hours=2))


def table(*kinds: pa.DataType) -> TableDescription:
    """A table whose key has columns of these types."""
    names = [f"k{index}" for index in range(len(kinds))]
    return TableDescription("t", pa.schema(list(zip(names, kinds, strict=True))), tuple(names), 1)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.bool_(), "true", True),
        (pa.bool_(), "[false]", False),
        (pa.int8(), "-128", -128),
        (pa.int64(), "[9223372036854775807]", 2**63 - 1),
        (pa.int64(), " 7\t", 7),
        (pa.float32(), "0.5", 0.5),
        (pa.float64(), "[-1e300]", -1e300),
        (pa.float64(), "0.1", 0.1),
        (
            pa.decimal128(38, 10),
            "1234567890123456789012345678.0123456789",
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        (pa.decimal128(10, 2), "[2.50]", Decimal("2.5")),
        (pa.decimal128(10, 2), '["2.50"]', Decimal("2.5")),
        (pa.date32(), "2013-07-01", NOON.date()),
        (pa.date32(), '["0001-01-01"]', datetime.date.min),
        (pa.timestamp("us"), "2013-07-01T12:30:00.123456", NOON.replace(microsecond=123456)),
        (pa.timestamp("ns"), "2013-07-01T12:30:00.123456000", NOON.replace(microsecond=123456)),
        (pa.timestamp("s"), '["2013-07-01 12:30:00"]', NOON),
        (pa.timestamp("ms", tz="Europe/Berlin"), "2013-07-01T12:30:00Z", NOON.replace(tzinfo=datetime.UTC)),
        (
            pa.timestamp("s", tz="Europe/Berlin"),
            "9999-12-31T23:59:59Z",
            datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
        ),
        (
            pa.timestamp("us", tz="-12:00"),
            '["0001-01-01T00:00:00Z"]',
            datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        ),
        (
            pa.timestamp("ns", tz="UTC"),
            '["2013-07-01T14:30:00+02:00"]',
            NOON.replace(hour=14, tzinfo=TWO_HOURS),
        ),
        (pa.string(), "JFK", "JFK"),
        (pa.string(), "100", "100"),
        (pa.string(), '["[x] "]', "[x] "),
        (pa.string(), ' ["b "] ', "b "),
        (pa.string(), '\u00a0["b"]\u00a0', "b"),
        (pa.string(), '[""]', ""),
        (pa.binary(), "00fF", b"\x00\xff"),
        (pa.binary(), '[""]', b""),
    ],
    ids=str,
)
def test_values(kind: pa.DataType, text: str, value: object) -> None:
    """A value is the one that its text says, alone and in an array."""
    (found,) = key_prefix("keyFrom", text, table(kind))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.bool_(), "1"),
        (pa.bool_(), "TRUE"),
        (pa.bool_(), '["true"]'),
        (pa.int8(), "128"),
        (pa.int64(), "9223372036854775808"),
        (pa.int64(), "1.0"),
        (pa.int64(), "[1.5]"),
        (pa.int64(), "[1e3]"),
        (pa.int64(), '["1"]'),
        (pa.int64(), "[true]"),
        (pa.int64(), "[null]"),
        (pa.int64(), "[[1]]"),
        (pa.int64(), "1_000"),
        (pa.int64(), "٣"),
        (pa.int64(), "JFK"),
        (pa.float32(), "16777217"),
        (pa.float32(), "0.1"),
        (pa.float64(), "9007199254740993"),
        (pa.float64(), "1e400"),
        (pa.float64(), "nan"),
        (pa.float64(), "inf"),
        (pa.float64(), "[NaN]"),
        (pa.decimal128(10, 2), "2.505"),
        (pa.decimal128(4, 2), "100"),
        (pa.date32(), "2013-02-30"),
        (pa.date32(), "2013-07-01T00:00:00"),
        (pa.date32(), "20130701"),
        (pa.timestamp("us"), "2013-07-01T12:30:00Z"),
        (pa.timestamp("us", tz="UTC"), "2013-07-01T12:30:00"),
        (pa.timestamp("us"), "2013-07-01"),
        (pa.timestamp("ns"), "2013-07-01T12:30:00.1234567"),
        (pa.timestamp("s"), "2013-07-01T12:30:00.5"),
        (pa.timestamp("ms"), "2013-07-01T12:30:00.1234"),
        (pa.string(), "[1]"),
        (pa.string(), "b "),
        (pa.string(), "\u00a0b"),
        (pa.string(), "b\x1f"),
        (pa.string(), '["\\ud800"]'),
        (pa.binary(), "0"),
        (pa.binary(), "00 ff"),
        (pa.binary(), "xy"),
    ],
    ids=str,
)
def test_values_refused(kind: pa.DataType, text: str) -> None:
    """What is not exactly a value of the column's type is refused in one line, with how one is written."""
    with pytest.raises(SourceOptionError, match=r"option 'keyTo' cannot be ") as caught:
        key_prefix("keyTo", text, table(kind))
    assert caught.value.option == "keyTo"
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[", "[1", "[1]x", "[]", "[1, 2, 3]", "[" * 100_000, "[Infinity]", "[1,]"])
def test_arrays_refused(text: str) -> None:
    """So is what is no JSON array, an empty one, and one of more values than the key has columns."""
    with pytest.raises(SourceOptionError, match=r"option 'keyFrom' cannot be "):
        key_prefix("keyFrom", text, table(pa.int64(), pa.int64()))


@given(text=st.text(min_size=1), kind=st.sampled_from([pa.int32(), pa.string(), pa.binary(), pa.date32()]))
def test_any_text(text: str, kind: pa.DataType) -> None:
    """Whatever the text, it is a value of the column's type or a SourceOptionError."""
    try:
        (value,) = key_prefix("keyFrom", text, table(kind))
    except SourceOptionError:
        return
    assert pa.scalar(value, kind).as_py() == value


@given(key=st.tuples(st.integers(-(2**31), 2**31 - 1), st.text()))
def test_json_round_trip(key: tuple[int, str]) -> None:
    """A key that was written as JSON is read as itself."""
    assert key_prefix("keyFrom", json.dumps(key), table(pa.int32(), pa.string())) == key


ROWS = 100


@pytest.fixture
def cities(server: RunningServer, client: Client) -> dict[str, str]:
    """Options that read a table with a key of two columns."""
    if "cities" not in {each.name for each in client.tables()}:
        rows = pa.table(
            {"n": [row // 10 for row in range(ROWS)], "c": [f"c{row % 10}" for row in range(ROWS)]}
        )
        client.create_table("cities", rows.schema, primary_key=["n", "c"], buckets=3).write(rows)
    return {"endpoint": server.endpoint, "table": "cities"}


@pytest.mark.rocks
@pytest.mark.socket
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keyFrom": "8"}, range(80, 100)),
        ({"keyTo": "[2]"}, range(20)),
        ({"keyFrom": '[3, "c5"]', "keyTo": '[4, "c2"]'}, range(35, 42)),
        ({"keyFrom": "3", "keyTo": '[3, "c2"]'}, range(30, 32)),
        ({"keyFrom": "3", "keyTo": "3"}, range(0)),
        ({"keyFrom": '[9, "c8"]', "where": "c <> 'c8'"}, range(99, 100)),
    ],
    ids=str,
)
def test_ranges(cities: dict[str, str], options: dict[str, str], expected: range) -> None:
    """The keys from the one, inclusive, to the other, exclusive, are read, and no others."""
    source = WeirDataSource(cities | options)
    reader = source.reader(source.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(10 * row["n"] + int(row["c"][1:]) for row in rows) == list(expected)


@pytest.mark.rocks
@pytest.mark.socket
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keyFrom": "JFK"}, "option 'keyFrom' cannot be 'JFK': key column 'n' is int64"),
        ({"keyTo": '[1, "a", 2]'}, "the columns of the key are n, c, and 3 values are given"),
        ({"keyFrom": "5", "keyTo": "4"}, "option 'keyTo' cannot be '4': keyFrom, '5', sorts after it"),
        ({"keyFrom": '[5, "c"]', "keyTo": "5"}, "sorts after it"),
        ({"keyFrom": "b "}, "option 'keyFrom' cannot be 'b '"),
        ({"where": "n = "}, "option 'where' cannot be 'n =': "),
        ({"where": "c = c1"}, "option 'where' cannot be 'c = c1': "),
        ({"where": "n = 1; drop"}, "option 'where' cannot be"),
    ],
    ids=str,
)
def test_bounds_and_conditions_that_do_not_fit(
    cities: dict[str, str], options: dict[str, str], problem: str
) -> None:
    """They are refused at load, and while Spark plans, before a task begins."""
    source = WeirDataSource(cities | options)
    for refuse in (source.schema, source.reader(WeirDataSource(cities).schema()).partitions):
        with pytest.raises(SourceOptionError) as caught:
            refuse()
        assert problem in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.rocks
@pytest.mark.socket
def test_condition_on_a_column_that_is_not_there(cities: dict[str, str]) -> None:
    """It keeps the error that names the nearest one."""
    with pytest.raises(ColumnNotFound, match="'m'"):
        WeirDataSource(cities | {"where": "m = 1"}).schema()
