"""Rows and keys that other libraries hand over: what they write is what Arrow's own tables write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import product

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import scanner
import scanner.sync
from scanner.client.arrow_input import to_arrow
from tests.support.client import SCHEMA, rows

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = rows(20_000)
"""More than two requests."""
ABROAD = timezone(timedelta(hours=2))
FORMS: dict[str, Callable[[pa.Table], object]] = {
    "pyarrow": lambda table: table,
    "reader": lambda table: table.to_reader(max_chunksize=7000),
    "polars": polars.from_arrow,
    "structs": lambda table: polars.DataFrame(table).to_struct(),
    "pandas": pa.Table.to_pandas,
    "duckdb": duckdb.from_arrow,
}


class OwnFrame(polars.DataFrame):
    """As libraries derive from polars."""


class Wrapped:
    """A data frame behind the interface of narwhals."""

    def __init__(self, native: object) -> None:
        self._native = native

    def to_native(self) -> object:
        """What it wraps."""
        return self._native

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """That one's stream."""
        return self._native.__arrow_c_stream__(requested_schema)  # type: ignore[attr-defined]


@pytest.fixture
def table(client: scanner.sync.Client) -> scanner.sync.Table:
    """An empty table."""
    return client.create_table("items", SCHEMA, ["k"], buckets=2)


def stored(table: scanner.sync.Table) -> pa.Table:
    """What it has, by key."""
    return table.new_scan().to_arrow().sort_by("k").cast(ROWS.schema)


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_any_library_are_written(table: scanner.sync.Table, form: str) -> None:
    """Written, staged, read by their keys and deleted: all rows, whoever gives them; a stream is read once."""
    give = FORMS[form]
    assert table.write(give(ROWS)).rows == 20_000
    assert stored(table).equals(ROWS)
    some = ROWS.select(["k"]).slice(5, 10_000)
    assert table.get(give(some)).rows.num_rows == 10_000
    assert table.delete(give(some)).rows == 10_000
    version = table.transaction("load", 1)
    assert version.stage(give(ROWS), part=0, attempt=0).rows == 20_000
    with version.part(0, 0) as writer:
        writer.delete(give(ROWS.select(["k"]).slice(19_000)))
        assert writer.close().rows == 1000
    version.publish({0: 0})
    assert stored(table).equals(ROWS.slice(0, 19_000))


def test_a_scan_is_written_to_another_table(client: scanner.sync.Client, table: scanner.sync.Table) -> None:
    """A stream that calls the client that writes it."""
    table.write(ROWS)
    copy = client.create_table("copy", SCHEMA, ["k"], buckets=1)
    copy.write(table.new_scan())
    assert stored(copy).equals(ROWS)


class StoppedError(Exception):
    """A user's own."""


@pytest.mark.parametrize("error", [StoppedError("mine"), KeyboardInterrupt(), scanner.DiskFull("full")])
def test_what_a_readers_batches_raise_is_raised(table: scanner.sync.Table, error: BaseException) -> None:
    """By each call that takes rows, of which nothing is written then: it is no error of pyarrow's."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS.slice(0, 10).to_batches()[0]
        raise error

    for call in calls_that_take_rows(table):
        with pytest.raises(type(error)) as raised:
            call(pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
        assert raised.value is error
    assert stored(table).num_rows == 0


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"number": [0.5], "text": ["a"], "k": pa.array([1], pa.int64())}),
        pa.table({"k": pa.array([1], pa.int32()), "text": ["a"], "number": [0.5]}),
        pa.table({"k": pa.array([1.0]), "text": ["a"], "number": pa.array([1], pa.int64())}),
    ],
)
def test_a_readers_batches_are_what_its_schema_says(table: scanner.sync.Table, other: pa.Table) -> None:
    """Or they are refused: in Arrow's stream the octets of a float would be those of an integer."""
    batches = [ROWS.slice(0, 10).to_batches()[0], *other.to_batches()]
    for call in calls_that_take_rows(table):
        with pytest.raises(scanner.SchemaMismatch, match="a batch of the reader has the columns"):
            call(pa.RecordBatchReader.from_batches(ROWS.schema, batches))
    assert stored(table).num_rows == 0


def test_a_readers_batches_may_have_nulls_where_its_schema_has_none(table: scanner.sync.Table) -> None:
    """By their schema: whoever makes a reader with the schema of the table makes batches without."""
    never_null = pa.schema([field.with_nullable(False) for field in ROWS.schema])
    assert table.write(pa.RecordBatchReader.from_batches(never_null, ROWS.to_batches())).rows == 20_000
    assert stored(table).equals(ROWS)


def test_a_readers_batches_may_name_another_zone(client: scanner.sync.Client) -> None:
    """Times with a zone count in UTC, whichever it is; without one, or in another unit, they are others."""

    def read(kind: pa.DataType) -> pa.RecordBatchReader:
        times = pa.array([1, None, 3], pa.int64()).cast(kind)
        return pa.RecordBatchReader.from_batches(schema, [pa.record_batch({"k": [1, 2, 3], "at": times})])

    schema = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")})
    table = client.create_table("zoned", schema, ["k"], buckets=1)
    for zone in ("+00:00", "Etc/UTC", "Europe/Berlin"):
        table.write(read(pa.timestamp("us", zone)))
        found = table.new_scan().to_arrow().sort_by("k")
        assert found["at"].cast(pa.int64()).to_pylist() == [1, None, 3]
        table.delete([(1,), (2,), (3,)])
    for other in (pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.int64()):
        with pytest.raises(scanner.SchemaMismatch, match="a batch of the reader has the columns"):
            table.write(read(other))


@pytest.mark.parametrize("form", ["scan", "reader", "batches"])
def test_a_scan_that_fails_where_it_is_written(
    client: scanner.sync.Client, table: scanner.sync.Table, form: str
) -> None:
    """Its error is that of the call, under its own name."""
    dropped = client.create_table("dropped", SCHEMA, ["k"], buckets=1)
    scan = dropped.new_scan()
    client.drop_table("dropped")
    for call in calls_that_take_rows(table):
        with pytest.raises(scanner.TableNotFound):
            if form == "batches":
                with scan.execute() as batches:
                    call(batches)
            else:
                call(scan if form == "scan" else scan.to_batches())


def test_an_endless_scan_is_no_rows(client: scanner.sync.Client, table: scanner.sync.Table) -> None:
    """Whoever would wait for all of it would wait for ever."""
    tail = client.create_table("tailed", SCHEMA, ["k"], buckets=1).new_scan().with_source("log")
    with tail.execute() as batches:
        for call, given in product(calls_that_take_rows(table), (tail, batches)):
            with pytest.raises(scanner.ArgumentInvalid, match="this call wants every row"):
                call(given)


def calls_that_take_rows(table: scanner.sync.Table) -> list[Callable[[object], object]]:
    """One of each."""
    version = table.transaction("load", 1)
    return [
        table.write,
        table.delete,
        table.get,
        partial(in_block, table.open_writer, "write"),
        partial(version.stage, part=0, attempt=0),
        partial(in_block, partial(version.part, 0, 0), "upsert"),
        partial(in_block, partial(version.part, 0, 0), "delete"),
    ]


def in_block(opened: Callable[[], AbstractContextManager[object]], method: str, given: object) -> None:
    """Call a method of what a block opens."""
    with opened() as writer:
        getattr(writer, method)(given)


@pytest.mark.parametrize("wrong", [[{"k": 1, "text": "a", "number": 0.5}], {"k": [1]}, "k", None])
def test_what_gives_no_arrow_is_refused(table: scanner.sync.Table, wrong: object) -> None:
    """It is said what would do, and nothing is written."""
    with pytest.raises(TypeError, match=r"rows are an Arrow table.*from_pylist"):
        table.write(wrong)
    for column in (polars.Series("id", [1]), pa.chunked_array([[1]])):
        for call in (table.write, table.delete, table.get):
            with pytest.raises(
                TypeError, match=r"is one without; make a table of it, such as pyarrow\.table"
            ):
                call(column)
    with pytest.raises(TypeError, match="rows are an Arrow table"):
        table.transaction("load", 1).stage(wrong, part=0, attempt=0)
    assert stored(table).num_rows == 0


@pytest.mark.parametrize(
    ("kind", "give"),
    [
        ("UHUGEINT", lambda: duckdb.sql("SELECT 1::BIGINT AS k, 1::UHUGEINT AS n, NULL::BLOB AS b")),
        ("BIT", lambda: duckdb.sql("SELECT 1::BIGINT AS k, 1::HUGEINT AS n, '101'::BIT AS b")),
        ("Object", lambda: polars.DataFrame({"k": [1], "n": [Decimal(1)], "b": [object()]})),
        ("Int128", lambda: polars.DataFrame({"n": [1]}, {"n": polars.Int128})),
        ("Object", lambda: OwnFrame({"k": [1], "n": [Decimal(1)], "b": [object()]})),
        ("Object", lambda: Wrapped(polars.DataFrame({"k": [1], "n": [Decimal(1)], "b": [object()]}))),
    ],
)
def test_what_arrow_has_not_is_refused(
    client: scanner.sync.Client, kind: str, give: Callable[[], object]
) -> None:
    """DuckDB gives the greatest UHUGEINT as -1 and a BIT as octets of its own, polars objects as addresses."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.decimal128(38, 0)), ("b", pa.binary())])
    table = client.create_table("others", schema, ["k"], buckets=1)
    with pytest.raises(
        scanner.SchemaMismatch, match=rf"is of type {kind}, which Arrow has not.*cast it first"
    ):
        table.write(give())
    assert table.new_scan().to_arrow().num_rows == 0


def test_an_index_of_pandas_is_a_column(table: scanner.sync.Table) -> None:
    """A level with the name of a column is that column; another one is refused and not dropped."""
    frame: pd.DataFrame = ROWS.to_pandas()
    table.write(frame.set_index("k"))
    assert stored(table).equals(ROWS)
    numbered = frame.sort_values("k").drop(columns="k")
    numbers = pd.RangeIndex(7, 7 + len(numbered), name="k")
    table.write(numbered.set_index(numbers))
    assert set(numbers) < set(stored(table)["k"].to_pylist())
    further = numbered.set_index(pd.MultiIndex.from_arrays([numbers + 50_000, numbered.pop("text")]))
    table.write(Wrapped(further))
    assert set(numbers + 50_000) < set(stored(table)["k"].to_pylist())
    with pytest.raises(
        scanner.SchemaMismatch, match=r"__index_level_0__.*reset_index\(drop=True\) leaves it out"
    ):
        table.write(frame.iloc[[0, 1, 3]])


def test_a_range_as_an_index_with_the_name_of_a_column(table: scanner.sync.Table) -> None:
    """Arrow leaves it out and takes the column: right only where they are the same, as `set_index(drop=False)` has."""
    frame: pd.DataFrame = ROWS.to_pandas().assign(k=range(ROWS.num_rows))
    for index in (pd.RangeIndex(len(frame), name="k"), pd.RangeIndex(0, name="k")):
        table.write(frame.head(len(index)).set_index(index))
    before = stored(table)
    for name, start in (("k", 7), ("text", 0)):
        with pytest.raises(scanner.SchemaMismatch, match=rf"column '{name}' and the index of that name"):
            table.write(frame.set_index(pd.RangeIndex(start, start + len(frame), name=name)))
    assert stored(table).equals(before)


def test_a_level_of_pandas_whose_name_is_a_number(client: scanner.sync.Client) -> None:
    """It has its own values, also where its name is the place of another level, as of columns without names."""
    table = client.create_table(
        "numbered", pa.schema(dict.fromkeys("012", pa.int64())), ["0", "1"], buckets=1
    )
    levels = [pd.RangeIndex(3, name=1), pd.RangeIndex(5, 8, name=0)]
    table.write(pd.DataFrame({2: [1, 2, 3]}, pd.MultiIndex.from_arrays(levels)))
    assert table.new_scan().to_arrow().to_pydict() == {"0": [5, 6, 7], "1": [0, 1, 2], "2": [1, 2, 3]}
    of_other_columns = pd.DataFrame([[1, "a", 2.5]]).set_index([1, 2])
    assert to_arrow(of_other_columns).to_pydict() == {"0": [1], "1": ["a"], "2": [2.5]}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (date(2020, 1, 1), datetime(2020, 1, 1, 5), "mixes dates and times without a zone"),
        (
            datetime(2020, 1, 1),
            datetime(2020, 1, 1, tzinfo=ABROAD),
            "times with a zone and times without a zone",
        ),
        (
            datetime(2020, 1, 1, tzinfo=ABROAD),
            datetime(2020, 1, 1),
            "times with a zone and times without a zone",
        ),
        (b"a", "b", "mixes octets and text"),
        (datetime(2020, 1, 1), pd.Timestamp(1), "no nanoseconds"),
        (1.5, True, "mixes bools and numbers"),
        (2, np.bool_(True), "mixes bools and numbers"),
        (np.timedelta64(5, "ns"), 1, "mixes numbers and spans of time"),
        (date(2020, 1, 1), 0, "mixes dates and numbers"),
        (0.5, date(2020, 1, 1), "mixes dates and numbers"),
        (datetime(2020, 1, 1), Decimal(1), "mixes numbers and times without a zone"),
        (date(2020, 1, 1), np.bool_(True), "mixes bools and dates"),
    ],
)
def test_objects_of_pandas_are_stored_as_they_are(first: object, second: object, message: str) -> None:
    """Arrow makes all of a column what the first object is: a time loses its hour, text becomes octets, 0 1970."""
    mixed = pd.Series([first, None, second], dtype=object)
    categories = pd.Categorical.from_codes([0, -1, 1], pd.Index([first, second], dtype=object))
    for frame in (
        pd.DataFrame({"k": [1, 2, 3], "v": mixed}),
        pd.DataFrame({"v": categories}),
        pd.DataFrame({"k": [1, 2, 3]}, index=pd.Index(mixed.to_numpy(), dtype=object, name="v")),
    ):
        for given in (frame, Wrapped(frame)):
            with pytest.raises(scanner.SchemaMismatch, match=f"column 'v' .*{message}"):
                to_arrow(given)
    for alike in (first, second):
        if not isinstance(alike, pd.Timestamp | np.timedelta64):
            frame = pd.DataFrame({"v": pd.Series([alike, pd.NaT, None, math.nan], dtype=object)})
            assert to_arrow(frame)["v"].to_pylist() == [alike, None, None, None]


def test_a_signaling_nan_is_null_as_any_other() -> None:
    """To compare one raises; Arrow takes it for null beside days, too."""
    values = [date(2020, 1, 1), Decimal("sNaN"), Decimal("NaN"), pd.NaT]
    frame = pd.DataFrame({"v": pd.Series(values, dtype=object)})
    assert to_arrow(frame)["v"].to_pylist() == [date(2020, 1, 1), None, None, None]
