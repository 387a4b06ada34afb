"""What `weir sql` leaves at the server changes no answer: each query is compared with DuckDB's on the whole table."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scanner.sync
from scanner.cli.sql_pushdown import table_uses, text_of
from scanner.cli.sql_tables import Query
from scanner.data.filters import Operator, Predicate
from tests.support.nightly import everyday
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

UTC = datetime.UTC
VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "b": (pa.bool_(), [True, False, None]),
    "i1": (pa.int8(), [-128, 0, 5, 127, None]),
    "i8": (pa.int64(), [-(2**63), -1, 0, 5, 2**53 + 1, 2**63 - 1, None]),
    "f4": (pa.float32(), [0.1, -0.0, 0.0, 1.5, math.nan, math.inf, -math.inf, None]),
    "f8": (pa.float64(), [0.1, -0.0, 0.0, 1.5, math.nan, math.inf, -math.inf, None, 2.0**53]),
    "d": (
        pa.decimal128(10, 2),
        [Decimal("1.20"), Decimal("-0.01"), Decimal(0), Decimal("99999999.99"), None],
    ),
    "d38": (pa.decimal128(38, 3), [Decimal("1.200"), Decimal(10) ** 30, -(Decimal(10) ** 30), None]),
    "da": (
        pa.date32(),
        [datetime.date(1969, 12, 31), datetime.date(2020, 2, 29), datetime.date(9999, 1, 1), None],
    ),
    "ts": (
        pa.timestamp("s"),
        [datetime.datetime(1969, 12, 31, 23, 59, 59), datetime.datetime(2020, 2, 29), None],
    ),
    "tm": (
        pa.timestamp("ms"),
        [datetime.datetime(2020, 2, 29, 0, 0, 0, 1000), datetime.datetime(2020, 2, 29), None],
    ),
    "tu": (
        pa.timestamp("us"),
        [datetime.datetime(2020, 2, 29, 0, 0, 0, 1), datetime.datetime(2020, 2, 29), None],
    ),
    "tn": (pa.timestamp("ns"), [1582934400000000001, 1582934400000000000, -1, None]),
    "tz": (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 2, 29, tzinfo=UTC), None]),
    "tb": (pa.timestamp("s", "Europe/Berlin"), [datetime.datetime(2020, 2, 28, 23, tzinfo=UTC), None]),
    "s": (pa.string(), ["", "a", "A", "ab", "aé", "b", "\U0001f600", "a%", None]),
    "bin": (pa.binary(), [b"", b"\x00", b"\xff", b"ab", None]),
}
"""Of columns of each type, the cells where comparisons differ."""
LITERALS = {
    "b": ["true", "false"],
    "i1": ["-128", "0", "5", "5.0", "2.5", "300", "'5'"],
    "i8": [
        "-9223372036854775808",
        "0",
        "5",
        "9007199254740993",
        "9007199254740992.0::double",
        "5.5",
        "1e300",
    ],
    "f4": ["0.1", "0.1::float", "0", "-0.0", "'nan'::float", "'inf'::float", "1.5", "1e300"],
    "f8": ["0.1", "0.1::float", "0", "-0.0", "'nan'::double", "'-inf'::double", "1.5", "9007199254740993"],
    "d": ["1.20", "1.2", "1.205", "0", "-0.01", "1.2::double", "99999999999"],
    "d38": ["1.2", "1000000000000000000000000000000", "0"],
    "da": [
        "date '2020-02-29'",
        "'2020-02-29'",
        "timestamp '2020-02-29 00:00:01'",
        "'infinity'::date",
        "date '1969-12-31'",
    ],
    "ts": [
        "timestamp '2020-02-29'",
        "'1969-12-31 23:59:59'",
        "timestamp '2020-02-29 00:00:00.5'",
        "date '2020-02-29'",
    ],
    "tm": [
        "timestamp '2020-02-29'",
        "timestamp '2020-02-29 00:00:00.0005'",
        "timestamp '2020-02-29 00:00:00.001'",
    ],
    "tu": [
        "timestamp '2020-02-29'",
        "timestamp '2020-02-29 00:00:00.000001'",
        "'infinity'::timestamp",
        "date '2020-02-29'",
    ],
    "tn": [
        "timestamp '2020-02-29'",
        "'2020-02-29 00:00:00.000000001'::timestamp_ns",
        "timestamp '1970-01-01'",
    ],
    "tz": [
        "timestamptz '2020-02-29 00:00:00+00'",
        "timestamptz '2020-02-29 01:00:00+01:00'",
        "'2020-02-29 00:00:00Z'",
    ],
    "tb": ["timestamptz '2020-02-28 23:00:00+00'", "timestamptz '2020-02-29 00:00:00.5+01:00'"],
    "s": ["''", "'a'", "'A'", "'ab'", "'aé'", "'b'", "'a%'", "chr(128512)", "'a' collate nocase"],
    "bin": ["'ab'::blob", "'\\x00'::blob", "''::blob"],
}
PATTERNS = ["a%", "%b", "_", "a", "%", "a\\%"]
ROWS = 400


def cell(name: str, row: int) -> object:
    """A cell; the columns' values come round at different speeds, so that all meet all."""
    values = VALUES[name][1]
    return values[(row * (3 + 2 * list(VALUES).index(name)) + row // 7) % len(values)]


@functools.cache
def whole_table() -> pa.Table:
    """Rows of all types."""
    columns = {"k": pa.array(range(ROWS), pa.int32())}
    for name, (kind, _) in VALUES.items():
        columns[name] = pa.array([cell(name, row) for row in range(ROWS)], kind)
    return pa.table(columns)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scanner.sync.Table]:
    """A table of a server that has them."""
    rows = whole_table()
    with running_server(tmp_path_factory.mktemp("weir")) as server:
        with scanner.sync.connect(server.endpoint) as client:
            table = client.create_table("t", rows.schema, ["k"], buckets=2)
            table.write(rows)
            yield table


def answered(rows: pa.Table) -> list[str]:
    """Rows as text, in one order: NaN is equal to NaN, and -0.0 is not 0.0."""
    return sorted(map(repr, rows.to_pylist()))


def with_pushdown(table: scanner.sync.Table, text: str) -> tuple[pa.Table, int, bool]:
    """A query's answer from the server, how many rows came from there, and whether a condition was sent."""
    with Query(text) as query:
        uses = query.uses({"t": table.description})
        query.register({"t": table.new_scan()}, uses)
        answer = query.connection.sql(text).to_arrow_table()
        received = sum(run.statistics.rows for run in query.runs.scans if run.statistics is not None)
        return answer, received, any(use.condition is not None for use in uses.values())


@functools.cache
def conditions(prefix: str) -> st.SearchStrategy[str]:
    """Conditions on the columns of one table, as somebody might write them."""

    @st.composite
    def comparison(draw: st.DrawFn) -> str:
        name = draw(st.sampled_from(list(VALUES)))
        column, literals = f"{prefix}{name}", LITERALS[name]
        one, other = draw(st.sampled_from(literals)), draw(st.sampled_from(literals))
        operator = draw(
            st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"])
        )
        forms = [
            f"{column} {operator} {one}",
            f"{one} {operator} {column}" if "distinct" not in operator else f"{column} = {one}",
            f"{column} is null",
            f"{column} is not null",
            f"{column} between {one} and {other}",
            f"{column} in ({one}, {other})",
            f"{column} in ({one}, {other}, null)",
            f"{column} not in ({one}, {other})",
            f"{column} not in ({one}, null)",
            f"coalesce({column}, {one}) {'=' if 'distinct' in operator else operator} {other}",
            f"{column}::varchar = ({one})::varchar",
            f"{prefix}b",
            f"{prefix}s like '{draw(st.sampled_from(PATTERNS))}'",
            f"{prefix}s ilike 'A%'",
            f"starts_with({prefix}s, 'a')",
            f"{prefix}i1 + 1 > {draw(st.integers(-3, 7))}",
            f"{prefix}f8 > {prefix}f4",
            f"{prefix}k < {draw(st.integers(0, ROWS))}",
            f"case when {column} = {one} then true else {prefix}b end",
        ]
        return draw(st.sampled_from(forms))

    def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined = st.builds(
            lambda operator, left, right: f"({left} {operator} {right})",
            st.sampled_from(["and", "or"]),
            inner,
            inner,
        )
        return joined | inner.map(lambda each: f"not ({each})")

    return st.recursive(comparison(), combined, max_leaves=5)


SHAPES = [
    "select * from t where {0}",
    "select k from t where {0}",
    "select count(*), min(abs(f8)), max(s), sum(i1) from t where {0}",
    "select s, count(*), avg(i1) from t where {0} group by s having count(*) > 1",
    "select k + 1 as n from (select *, i8 as unused from t) x where {0}",
    "with c as (select * from t where {0}) select k from c where {1}",
    "with c as materialized (select * from t where {0}) select k from c where {1} union all select -k from c",
    "select a.k, b.k from t a join t b on a.k = b.k + 1 where {a} and {b}",
    "select a.k, b.k from t a left join t b on a.k = b.k + 1 and {b} where {a}",
    "select a.k, b.k from t a full join t b on a.k = b.k and {a} and {b}",
    "select a.k from t a semi join t b on a.k = b.k and {b} where {a}",
    "select a.k from t a anti join t b on a.k = b.k and {b} where {a}",
    "select a.k from t a where {a} and exists (select 1 from t b where b.k = a.k + 1 and {b})",
    "select a.k from t a where a.i8 = (select max(b.i8) from t b where {b}) or {a}",
    "select a.k, (select count(*) from t b where b.i1 = a.i1 and {b}) as n from t a where {a}",
    "select k from t where k in (select k from t where {0}) or {1}",
    "select k from t where k not in (select k from t where {0})",
    "select k from t where {0} union select k from t where {1}",
    "select k from t where {0} except select k from t where {1}",
    "select k, row_number() over (partition by b order by k) as n from t where {0}",
    "select k from t where {0} qualify row_number() over (order by k) < 9",
    "select k, lag(k) over (order by k) as before from t where {0} order by k limit 7",
    "select k, count(*) filter (where {0}) as n from t group by k",
    "select distinct s from t where {0}",
    "from t select k where {0}",
]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Queries of every shape, with conditions where the shape has places for them."""
    text = draw(st.sampled_from(SHAPES))
    for place, prefix in {"{0}": "", "{1}": "", "{a}": "a.", "{b}": "b."}.items():
        if place in text:
            text = text.replace(place, draw(conditions(prefix)))
    return text


@pytest.fixture(scope="module")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB, with all rows and columns."""
    with duckdb.connect() as connection:
        yield connection.register("t", whole_table())


@settings(max_examples=everyday(100, nightly=10_000))  # Fewer leave out some conditions.
@given(text=queries())
def test_answers_are_those_of_the_whole_table(
    table: scanner.sync.Table, plain: duckdb.DuckDBPyConnection, text: str
) -> None:
    """Whatever is left at the server, the answer is DuckDB's on all rows and columns."""
    try:
        expected = plain.sql(text).to_arrow_table()
    except duckdb.Error:
        return  # A cast of some row fails, or the query makes no sense.
    found, _, _ = with_pushdown(table, text)
    assert answered(found) == answered(expected)
    assert found.schema.names == expected.schema.names


PUSHED = {
    "i1 = 5": '"i1" = 5',
    "5 > i1": '"i1" < 5',
    "f8 > 1.5": 'not ("f8" <= 1.5)',
    "f8 < 1.5": '"f8" < 1.5',
    "f4 >= 0.1": 'not ("f4" < 0.10000000149011612)',
    "d = 1.2": '"d" = 1.20',
    "da > '2020-02-29'": "\"da\" > DATE '2020-02-29'",
    "tn = '2020-02-29 00:00:00.000000001'": "\"tn\" = TIMESTAMP '2020-02-29T00:00:00.000000001'",
    "tb < timestamptz '2020-02-29 00:00:00+01'": "\"tb\" < TIMESTAMP '2020-02-28T23:00:00.000000Z'",
    "s like 'ab%'": "(\"s\" >= 'ab' and \"s\" < 'ac')",
    "s in ('a', 'b')": "\"s\" in ('a', 'b')",
    "s in ('a', null)": "\"s\" in ('a')",
    "s not in ('a', 'b')": "not (\"s\" in ('a', 'b'))",
    "s is null": '"s" is null',
    "b": '"b" = true',
    "not b": 'not ("b" = true)',
    "i1 = 5 or s = 'a'": '"s" = \'a\' or "i1" = 5',
    "i1 = 5 and s like '%b'": '"i1" = 5',
    "i8 between 1 and 3": '("i8" >= 1 and "i8" <= 3)',
}


def alternatives(condition: Predicate) -> set[str]:
    """What a condition joins by or, as text: DuckDB orders them as it likes."""
    operands = condition.operands if condition.operator is Operator.OR else (condition,)
    return {text_of(each) for each in operands}


@pytest.mark.parametrize("condition", PUSHED)
def test_what_is_pushed(table: scanner.sync.Table, condition: str) -> None:
    """These conditions reach the server, and fewer rows come back."""
    text = f"select k from t where {condition}"
    with Query(text) as query:
        (use,) = query.uses({"t": table.description}).values()
    assert use.condition is not None
    assert alternatives(use.condition) == {*PUSHED[condition].split(" or ")}
    answer, received, pushed = with_pushdown(table, text)
    assert pushed
    assert answer.num_rows <= received < ROWS


@pytest.mark.parametrize(
    "text",
    [
        "select * from t where i1 = 5 order by f8, k limit 3",
        "select avg(f8), count(distinct i8) from t where i1 = 5",
        "select count(*), count(distinct k), sum(f8), count(s) from t where i1 = 5",
    ],
)
def test_what_is_done_with_the_rows_keeps_no_condition_back(table: scanner.sync.Table, text: str) -> None:
    """The first rows in an order, and distinct counts, leave the others at the server as well."""
    with Query(text) as query:
        use = query.uses({"t": table.description})["t"]
    assert use.condition is not None
    assert text_of(use.condition) == '"i1" = 5'


@pytest.mark.parametrize(
    "condition", ["i1 + i8 = 5", "s collate nocase = 'a'", "f8 = 'nan'::double", "k = 1 or f8 > f4", "true"]
)
def test_what_is_not_pushed(table: scanner.sync.Table, condition: str) -> None:
    """What the server would read in another way, or not at all, is left to DuckDB."""
    with Query(f"select k from t where {condition}") as query:
        uses = query.uses({"t": table.description})
    assert all(use.condition is None for use in uses.values())


def test_scans_of_one_table_are_joined_by_or(table: scanner.sync.Table) -> None:
    """Two uses of a table need the rows of both; one that needs all takes the condition away."""
    text = "select k from t where i1 = 5 union all select k from t where s = 'a'"
    with Query(text) as query:
        use = query.uses({"t": table.description})["t"]
    assert use.condition is not None
    assert alternatives(use.condition) == {'"i1" = 5', "\"s\" = 'a'"}
    with Query(f"{text} union all select k from t") as query:
        assert query.uses({"t": table.description})["t"].condition is None


def test_more_than_a_server_takes_is_left_out(table: scanner.sync.Table) -> None:
    """A condition with too many values or parts, or too long ones, goes without them, and the answer is right."""
    many = ", ".join(map(str, range(0, 40_000, 2)))
    answer, _, pushed = with_pushdown(table, f"select k from t where k in ({many})")
    assert (answer.num_rows, pushed) == (ROWS // 2, False)
    parts = " or ".join(f"(k = {each} and s = 'a')" for each in range(100))
    answer, _, _ = with_pushdown(table, f"select k from t where {parts}")
    assert sorted(answer["k"].to_pylist()) == [row for row in range(100) if cell("s", row) == "a"]
    long = "s <> repeat('x', 5000000)"
    answer, _, pushed = with_pushdown(table, f"select k from t where {long}")
    named = sum(cell("s", row) is not None for row in range(ROWS))
    assert (answer.num_rows, pushed) == (named, False)
    answer, _, pushed = with_pushdown(table, f"select k from t where {long} and k < 9")
    assert (answer.num_rows, pushed) == (sum(cell("s", row) is not None for row in range(9)), True)


@pytest.mark.parametrize(
    "plan",
    [
        "",
        "nan",
        "[]",
        "{}",
        '{"plans": [{"type": "LOGICAL_GET"}]}',
        '{"plans": [{"type": "LOGICAL_GET", "function_data": {"table": "t"}}]}',
        '{"plans": [{"type": "LOGICAL_GET", "function_data": {"table": "t"}, "names": ["a"], "column_indexes": [],'
        ' "table_filters_by_projection": true, "table_filters": {"filters": [{"key": 7, "value": {}}]}}]}',
    ],
)
def test_a_plan_of_another_form_pushes_nothing(plan: str) -> None:
    """What a later DuckDB may write is not guessed at."""
    assert all(use.condition is None for use in table_uses(plan).values())
