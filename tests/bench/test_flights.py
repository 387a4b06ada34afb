"""The data set of the demo is the one that the bars were set for."""

import pyarrow as pa
import pytest

from bench.harness import flights
from bench.harness.errors import BenchFailed


@pytest.fixture(scope="module")
def text() -> bytes:
    return flights.csv_text()


def test_the_flights_of_2013_are_all_there(text: bytes) -> None:
    """336 776 rows of 19 columns, with a unique key, and `NA` read as null in numbers and in text alike."""
    table = flights.read_flights(text)
    assert table.schema == flights.SCHEMA
    assert table.num_rows == flights.ROWS
    assert len(table.schema) == 19
    assert table["dep_time"].null_count == 8255
    assert table["tailnum"].null_count == 2512
    assert all(table[name].null_count == 0 for name in flights.PRIMARY_KEY)
    assert table.schema.field("time_hour").type == pa.timestamp("us", tz="UTC")


def test_a_short_file_is_refused(text: bytes) -> None:
    """A data set that is cut off ends the bench instead of making it easier."""
    with pytest.raises(BenchFailed, match="rows, not 336776"):
        flights.read_flights(text[: text.index(b"\n", 100_000) + 1])


def test_a_repeated_key_is_refused(text: bytes) -> None:
    """A key that occurs twice would make `rows` of the table smaller than `rows` of the file."""
    header, first, _second, rest = text.split(b"\n", 3)
    with pytest.raises(BenchFailed, match="primary key occurs twice"):
        flights.read_flights(b"\n".join([header, first, first, rest]))


def test_spark_reads_the_same_columns() -> None:
    """The DDL for Spark names the columns in order, each with the type that Arrow's becomes."""
    ddl = flights.spark_ddl()
    assert ddl.startswith("year BIGINT, month BIGINT")
    assert ddl.endswith("minute BIGINT, time_hour TIMESTAMP")
    assert "tailnum STRING" in ddl
